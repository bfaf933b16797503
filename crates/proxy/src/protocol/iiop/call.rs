//! One request of a client, from its parsing to its reply.

use std::rc::Rc;

use plimsoll_brain::{MemberId, Time};
use plimsoll_wire::giop::write::{self, MessageFormat};
use plimsoll_wire::giop::{
    CODE_SETS, CompletionStatus, GiopError, GiopMessage, Ior, MessageContent, ServiceContext,
    SystemException, TargetAddress, rewrite,
};

use super::session::GiopSession;
use crate::net::reason::Reason;
use crate::upstream::side_car::MeterGuard;

/// A request.
pub(super) struct GiopCall {
    pub(super) session: Rc<GiopSession>,
    /// The client's request ID.
    pub(super) id: u32,
    /// The session's number of the request, which is never reused.
    pub(super) serial: u64,
    pub(super) format: MessageFormat,
    pub(super) kind: CallKind,
    /// The message as it arrived, with its header: it may have to be sent again.
    pub(super) message: Vec<u8>,
    /// The size of the message.
    pub(super) size: usize,
    /// For a fragmented message, the size of the first fragment.
    pub(super) first_fragment_len: Option<usize>,
    /// The members that did not accept it.
    pub(super) tried: Vec<MemberId>,
    /// Whether it was sent again because a member closed its connection.
    pub(super) resent: bool,
    pub(super) started_at: Time,
    /// In a side-car: the meter that counts the request.
    pub(super) meter: MeterGuard,
}

/// The kind of a client's request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CallKind {
    /// An operation with a reply.
    Request,
    /// An operation without a reply.
    Oneway,
    /// A query for the object's location.
    Locate,
}

impl GiopCall {
    /// Redirects the client.
    pub(super) fn reply_forward(self, ior: &Ior) {
        match self.kind {
            CallKind::Locate => {
                self.write_reply(|out, format, id| write::locate_forward(out, format, id, ior))
            }
            _ => self.write_reply(|out, format, id| write::forward(out, format, id, ior)),
        }
    }

    /// Answers that the object is here, or does not exist.
    pub(super) fn reply_located(self, is_here: bool) {
        self.write_reply(|out, format, id| write::locate_status(out, format, id, is_here));
    }

    /// Answers that there is no such object.
    pub(super) fn reply_unknown_object(self) {
        match self.kind {
            CallKind::Locate => self.reply_located(false),
            _ => self.reply_exception(&SystemException::OBJECT_NOT_EXIST),
        }
    }

    /// Answers that the operation was not executed, or may not have been.
    pub(super) fn reply_failure(self, reason: Reason) {
        let session = &self.session;
        let pool = session.listener.pool();
        pool.group.record_rejection(session.core.index, reason);
        let member_failed = matches!(reason, Reason::ConnectFailed | Reason::ConnectTimeout | Reason::Reset);
        if member_failed && pool.group.side_car.is_some() {
            drop(pool);
            return self.reply_server_gone(reason);
        }
        drop(pool);
        let exception = match reason {
            Reason::Reset => SystemException::COMM_FAILURE,
            Reason::AnswerTimeout | Reason::TotalTimeout => TIMEOUT,
            Reason::BadRequest => SystemException::MARSHAL,
            Reason::Exhausted | Reason::Memory => SystemException::NO_RESOURCES,
            // A later attempt may succeed.
            _ => SystemException::TRANSIENT,
        };
        self.reply_exception(&exception);
    }

    /// Sends a member's reply to this request's client.
    pub(super) fn reply(self, message: &mut [u8], fragment_len: Option<usize>) {
        // The message has a request ID, by which it was found.
        if rewrite::set_id(message, self.id).is_ok() {
            self.session.write_reply(message, fragment_len);
        }
        self.record_latency();
    }

    /// Returns the request for a member, with another ID. `key` maps the requested object key to the
    /// member's; `None` keeps it. Includes the client's code sets if the member has not received them.
    pub(super) fn rewrite_for_member<'k>(
        &self,
        id: u32,
        key: impl FnOnce(Option<&[u8]>) -> Option<&'k [u8]>,
        code_sets: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), GiopError> {
        let message = GiopMessage::parse(&self.message)?;
        match &message.content {
            MessageContent::Request(request) => {
                let requested_key = request.target.key();
                let key = key(requested_key).or(requested_key).unwrap_or_default();
                let context = code_sets.map(|data| ServiceContext { id: CODE_SETS, data });
                let changes = rewrite::GiopRewrite { id, key, context };
                rewrite::request(&message.header, &self.message, request, &changes, out)
            }
            MessageContent::LocateRequest(request) if let Some(key) = key(request.target.key()) => {
                write::locate_request(out, self.format, id, &TargetAddress::Key(key));
                Ok(())
            }
            _ => {
                out.extend_from_slice(&self.message);
                rewrite::set_id(out, id)
            }
        }
    }

    /// Answers for a side-car's server that is gone. If it may have begun the request, or the request is not
    /// for the group's object, the client's connection ends, as it would without a side-car. Otherwise the
    /// client is redirected to the group at once: some ORBs report a closed connection to their users, or try
    /// for seconds to reconnect.
    fn reply_server_gone(self, reason: Reason) {
        let view = self.session.listener.pool().view();
        let iiop = view.published.settings.iiop.as_ref();
        let home_ior = iiop.and_then(|iiop| iiop.home.as_ref()).filter(|_| reason != Reason::Reset);
        let request = match GiopMessage::parse(&self.message).map(|message| message.content) {
            Ok(MessageContent::Request(request)) if self.kind == CallKind::Request => Some(request),
            _ => None,
        };
        match (home_ior, request) {
            // The balancer itself sends this request, to find out whether to redirect clients here.
            (Some(_), Some(request)) if request.operation == b"_non_existent" => {
                self.reply_exception(&SystemException {
                    completed: CompletionStatus::No,
                    ..SystemException::COMM_FAILURE
                });
            }
            (Some(home_ior), Some(request))
                if iiop.is_some_and(|iiop| iiop.is_shared(request.target.key())) =>
            {
                self.reply_forward(home_ior);
            }
            _ => {
                self.session.write_queue.close();
                self.record_latency();
            }
        }
    }

    /// Records the latency, as the request has ended.
    pub(super) fn record_latency(&self) {
        let now = self.session.core.now();
        self.session.listener.pool().counters().latency.record(now.since(self.started_at));
    }

    fn reply_exception(self, exception: &SystemException<'_>) {
        match self.kind {
            CallKind::Locate => {
                self.write_reply(|out, format, id| write::locate_exception(out, format, id, exception))
            }
            _ => self.write_reply(|out, format, id| write::exception(out, format, id, exception)),
        }
    }

    fn write_reply(self, write: impl FnOnce(&mut Vec<u8>, MessageFormat, u32)) {
        if self.kind != CallKind::Oneway {
            let mut out = self.session.core.take_vector();
            write(&mut out, self.format, self.id);
            self.session.write_queue.push(&out);
            self.session.core.recycle(out);
        }
        self.record_latency();
    }
}

/// The member takes too long; it may still execute the request.
const TIMEOUT: SystemException<'static> = SystemException {
    type_id: b"IDL:omg.org/CORBA/TIMEOUT:1.0",
    minor: 0,
    completed: CompletionStatus::Maybe,
};

impl Drop for GiopCall {
    fn drop(&mut self) {
        self.session.record_answered(self);
        self.session.core.recycle(std::mem::take(&mut self.message));
    }
}
