//! One request of a client, from its parsing to its reply.

use std::rc::Rc;

use plimsoll_brain::{MemberId, Time};
use plimsoll_wire::giop::write::{self, Form};
use plimsoll_wire::giop::{
    BadGiop, CODE_SETS, Completed, Content, Context, Ior, Message, SystemException, Target, rewrite,
};

use super::session::Session;
use crate::metered::Metered;
use crate::reason::Reason;

/// A request.
pub(super) struct Call {
    pub(super) session: Rc<Session>,
    /// The client's request ID.
    pub(super) id: u32,
    /// The session's number of the request, which is never reused.
    pub(super) serial: u64,
    pub(super) form: Form,
    pub(super) kind: Ask,
    /// The message as it arrived, with its header: it may have to be sent again.
    pub(super) message: Vec<u8>,
    /// The size of the message.
    pub(super) bytes: usize,
    /// For a fragmented message, the size of the first fragment.
    pub(super) piece: Option<usize>,
    /// The members that did not accept it.
    pub(super) tried: Vec<MemberId>,
    /// Whether it was sent again because a member closed its connection.
    pub(super) resent: bool,
    pub(super) begun: Time,
    /// In a side-car: the meter that counts the request.
    pub(super) metered: Metered,
}

/// The kind of a client's request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// An operation with a reply.
    Request,
    /// An operation without a reply.
    Oneway,
    /// A query for the object's location.
    Locate,
}

impl Call {
    /// Redirects the client.
    pub(super) fn forward(self, to: &Ior) {
        match self.kind {
            Ask::Locate => self.answer(|out, form, id| write::locate_forward(out, form, id, to)),
            _ => self.answer(|out, form, id| write::forward(out, form, id, to)),
        }
    }

    /// Answers that the object is here, or does not exist.
    pub(super) fn located(self, here: bool) {
        self.answer(|out, form, id| write::located(out, form, id, here));
    }

    /// Answers that there is no such object.
    pub(super) fn unknown(self) {
        match self.kind {
            Ask::Locate => self.located(false),
            _ => self.except(&SystemException::OBJECT_NOT_EXIST),
        }
    }

    /// Answers that the operation was not executed, or may not have been.
    pub(super) fn refuse(self, reason: Reason) {
        let session = &self.session;
        let pool = session.listener.pool();
        pool.group.reject(session.core.index, reason);
        let broken = matches!(reason, Reason::ConnectFailed | Reason::ConnectTimeout | Reason::Reset);
        if broken && pool.group.side_car.is_some() {
            drop(pool);
            return self.orphan(reason);
        }
        drop(pool);
        let why = match reason {
            Reason::Reset => SystemException::COMM_FAILURE,
            Reason::AnswerTimeout | Reason::TotalTimeout => TIMEOUT,
            Reason::BadRequest => SystemException::MARSHAL,
            Reason::Exhausted | Reason::Memory => SystemException::NO_RESOURCES,
            // A later attempt may succeed.
            _ => SystemException::TRANSIENT,
        };
        self.except(&why);
    }

    /// Sends a member's reply to this request's client.
    pub(super) fn reply(self, message: &mut [u8], piece: Option<usize>) {
        // The message has a request ID, by which it was found.
        if rewrite::set_id(message, self.id).is_ok() {
            self.session.write(message, piece);
        }
        self.count();
    }

    /// Returns the request for a member, with another ID. `key` maps the requested object key to the
    /// member's; `None` keeps it. Includes the client's code sets if the member has not received them.
    pub(super) fn rewritten<'k>(
        &self,
        id: u32,
        key: impl FnOnce(Option<&[u8]>) -> Option<&'k [u8]>,
        code_sets: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), BadGiop> {
        let message = Message::parse(&self.message)?;
        match &message.content {
            Content::Request(request) => {
                let asked = request.target.key();
                let key = key(asked).or(asked).unwrap_or_default();
                let context = code_sets.map(|data| Context { id: CODE_SETS, data });
                let change = rewrite::Change { id, key, context };
                rewrite::request(&message.header, &self.message, request, &change, out)
            }
            Content::LocateRequest(request) if let Some(key) = key(request.target.key()) => {
                write::locate_request(out, self.form, id, &Target::Key(key));
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
    fn orphan(self, reason: Reason) {
        let view = self.session.listener.pool().view();
        let iiop = view.published.settings.iiop.as_ref();
        let home = iiop.and_then(|iiop| iiop.home.as_ref()).filter(|_| reason != Reason::Reset);
        let asked = match Message::parse(&self.message).map(|message| message.content) {
            Ok(Content::Request(request)) if self.kind == Ask::Request => Some(request),
            _ => None,
        };
        match (home, asked) {
            // The balancer itself sends this request, to find out whether to redirect clients here.
            (Some(_), Some(asked)) if asked.operation == b"_non_existent" => {
                self.except(&SystemException { completed: Completed::No, ..SystemException::COMM_FAILURE });
            }
            (Some(home), Some(asked)) if iiop.is_some_and(|iiop| iiop.is_shared(asked.target.key())) => {
                self.forward(home);
            }
            _ => {
                self.session.outbox.close();
                self.count();
            }
        }
    }

    /// Records the latency, as the request has ended.
    pub(super) fn count(&self) {
        let now = self.session.core.now();
        self.session.listener.pool().tally().latency.record(now.since(self.begun));
    }

    fn except(self, why: &SystemException<'_>) {
        match self.kind {
            Ask::Locate => self.answer(|out, form, id| write::locate_exception(out, form, id, why)),
            _ => self.answer(|out, form, id| write::exception(out, form, id, why)),
        }
    }

    fn answer(self, write: impl FnOnce(&mut Vec<u8>, Form, u32)) {
        if self.kind != Ask::Oneway {
            let mut out = self.session.core.vector();
            write(&mut out, self.form, self.id);
            self.session.outbox.push(&out);
            self.session.core.recycle(out);
        }
        self.count();
    }
}

/// The member takes too long; it may still execute the request.
const TIMEOUT: SystemException<'static> =
    SystemException { type_id: b"IDL:omg.org/CORBA/TIMEOUT:1.0", minor: 0, completed: Completed::Maybe };

impl Drop for Call {
    fn drop(&mut self) {
        self.session.answered(self);
        self.session.core.recycle(std::mem::take(&mut self.message));
    }
}
