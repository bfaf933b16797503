//! A connection to a member that the requests of many clients share.
//!
//! Clients choose their request IDs freely. So each request gets an ID of this connection on the way to the
//! member, and its reply gets the old one back; replies arrive in any order. Clients that agreed on different
//! code sets do not share a connection, as code sets are sent once per connection. The first request on each
//! carries the agreement, whether its client repeated it or not.
//!
//! A member that sends CloseConnection has not begun the requests that it has not answered (CORBA 3.3,
//! 9.7.3). These are sent again, once, to a newly chosen member. A member that just closes may have begun
//! them. Then the client has to decide: it gets COMM_FAILURE with COMPLETED_MAYBE.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use plimsoll_brain::{MemberId, Time};
use plimsoll_wire::giop::write::{self, MessageFormat};
use plimsoll_wire::giop::{GiopMessage, GiopVersion, MessageContent};

use super::call::{CallKind, GiopCall};
use super::reassembly::{MessageReassembler, ReadOutcome, WholeMessage};
use super::relay;
use super::write_queue::WriteQueue;
use crate::net::reason::Reason;
use crate::net::socket::ReactorSocket;
use crate::upstream::failure_cause::FailureCause;
use crate::upstream::in_flight::InFlight;
use crate::upstream::thread_context::ThreadContext;

/// The common properties of clients whose requests share a connection.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct SharingKey {
    pub(super) version: GiopVersion,
    /// The agreed code sets: the data of the service context.
    pub(super) code_sets: Option<Rc<[u8]>>,
}

/// One connection.
pub(super) struct GiopConnection {
    member: MemberId,
    sharing_key: SharingKey,
    write_queue: WriteQueue,
    /// The requests by their ID on this connection.
    calls: RefCell<BTreeMap<u32, PendingCall>>,
    next_id: Cell<u32>,
    /// Whether the agreement on code sets was sent.
    code_sets_sent: Cell<bool>,
    /// Whether the connection accepts no more requests.
    closing: Cell<bool>,
    quiet_since: Cell<Time>,
}

struct PendingCall {
    call: GiopCall,
    in_flight: InFlight,
    /// The deadline of the member's reply; `Time(u64::MAX)` for none.
    deadline: Time,
}

/// The group's settings for connections.
#[derive(Clone, Copy)]
pub(super) struct ConnectionLimits {
    /// The time without requests after which a connection is closed.
    pub(super) idle: Duration,
    /// The time after which a connection is dropped if the member reads none of the bytes for it.
    pub(super) write_stall: Duration,
    /// The maximum size of a message, in bytes.
    pub(super) max_message: usize,
}

/// The way in which a connection ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionEnd {
    /// The member announced that it has not begun the unanswered requests.
    Announced,
    /// The member announced nothing.
    Unannounced,
    /// The memory budget of this process is used up, for which the member is not to blame.
    OutOfMemory,
}

impl GiopConnection {
    pub(super) fn new(member: MemberId, sharing_key: SharingKey, socket: ReactorSocket, now: Time) -> Self {
        Self {
            member,
            sharing_key,
            write_queue: WriteQueue::new(socket),
            calls: RefCell::default(),
            next_id: Cell::new(1),
            code_sets_sent: Cell::new(false),
            closing: Cell::new(false),
            quiet_since: Cell::new(now),
        }
    }

    pub(super) fn member(&self) -> MemberId {
        self.member
    }

    /// Returns `true` if the connection accepts requests with these properties for this member.
    pub(super) fn accepts(&self, member: MemberId, sharing_key: &SharingKey) -> bool {
        let is_open = !self.closing.get() && !self.write_queue.is_closed();
        is_open && self.member == member && self.sharing_key == *sharing_key
    }

    /// Returns the number of requests in flight. Oneways count only by the bytes that the member has not read
    /// yet.
    pub(super) fn in_flight_count(&self) -> usize {
        self.calls.borrow().len() + usize::from(self.write_queue.is_full())
    }

    /// Closes the connection once no request is in flight.
    pub(super) fn close_when_idle(&self) {
        self.closing.set(true);
        self.write_queue.wake_reader();
    }

    /// Closes the connection: nothing more is sent.
    pub(super) fn abort(&self) {
        self.closing.set(true);
        self.write_queue.close();
    }

    /// Sends a request, and keeps it for its reply, if there will be one.
    pub(super) fn send(self: &Rc<Self>, call: GiopCall, in_flight: InFlight, now: Time) {
        let id = self.next_id.get();
        self.next_id.set(id.wrapping_add(1));
        let is_first = !self.code_sets_sent.replace(true);
        let code_sets = self.sharing_key.code_sets.as_deref().filter(|_| is_first);
        let core = Rc::clone(&call.session.core);
        let mut bytes = core.take_vector();
        let view = Rc::clone(in_flight.view());
        let iiop = view.published.settings.iiop.as_ref();
        let key =
            |requested_key: Option<&[u8]>| iiop.and_then(|iiop| iiop.key_at(in_flight.name(), requested_key));
        if call.rewrite_for_member(id, key, code_sets, &mut bytes).is_err() {
            in_flight.abandon();
            return call.reply_failure(Reason::BadRequest);
        }
        in_flight.counters().bytes_out.add(bytes.len() as u64);
        self.write_queue.push_fragmented(&bytes, call.first_fragment_len);
        self.quiet_since.set(now);
        core.recycle(bytes);
        if call.kind == CallKind::Oneway {
            call.record_latency();
            in_flight.finish_neutral(now);
            return;
        }
        let timeout = in_flight.settings().timeouts.per_try;
        let deadline = if timeout.is_zero() { NEVER } else { now + timeout };
        call.session.record_placement(&call, self, id);
        self.calls.borrow_mut().insert(id, PendingCall { call, in_flight, deadline });
        if deadline != NEVER {
            self.write_queue.wake_reader();
        }
    }

    /// Notifies the member that this reply is no longer awaited.
    pub(super) fn cancel(&self, id: u32) {
        let pending_call = self.calls.borrow_mut().remove(&id);
        let Some(PendingCall { call, in_flight, .. }) = pending_call else { return };
        self.send_cancel(&call, id);
        let now = call.session.core.now();
        in_flight.counters().client_left.add(1);
        in_flight.client_left(now);
    }

    /// Before GIOP 1.2, omniORB would take a CancelRequest for the end of the connection, with other clients'
    /// requests. Members need not be notified.
    fn send_cancel(&self, call: &GiopCall, id: u32) {
        if self.sharing_key.version < GiopVersion::V1_2 {
            return;
        }
        let mut out = Vec::new();
        write::cancel(
            &mut out,
            MessageFormat { version: self.sharing_key.version, order: call.format.order },
            id,
        );
        self.write_queue.push(&out);
    }

    /// Waits until more may be sent.
    pub(super) async fn wait_for_room(&self) {
        self.write_queue.wait_for_room().await;
    }

    /// Reads replies until the connection ends.
    pub(super) async fn read_replies(
        &self,
        core: &Rc<ThreadContext>,
        settings: &ConnectionLimits,
    ) -> ConnectionEnd {
        let timer = poll_fn(|cx: &mut Context<'_>| Poll::Ready(core.wheel.timer(cx.waker()))).await;
        let mut inbound = MessageReassembler::new(Vec::new(), settings.max_message);
        // The bytes waiting for the member, and the time since which none were read.
        let mut last_progress = (0, core.now());
        loop {
            let outcome = poll_fn(|cx| {
                if let Poll::Ready(false) = self.write_queue.poll_flush(cx) {
                    return Poll::Ready(ReadOutcome::Closed);
                }
                if let Poll::Ready(outcome) = inbound.poll_next(cx, core, &self.write_queue) {
                    return Poll::Ready(outcome);
                }
                if timer.fired() {
                    self.expire_overdue(core.tick());
                }
                let sent = self.write_queue.sent_len();
                if self.write_queue.queued_len() == 0 || sent != last_progress.0 {
                    last_progress = (sent, core.now());
                } else if core.now() >= last_progress.1 + settings.write_stall {
                    return Poll::Ready(ReadOutcome::Closed);
                }
                let idle = self.is_idle();
                if idle && (self.closing.get() || core.now() >= self.quiet_since.get() + settings.idle) {
                    return Poll::Ready(ReadOutcome::Closed);
                }
                timer.set(self.next_timeout(settings, last_progress.1));
                Poll::Pending
            })
            .await;
            let now = core.tick();
            match outcome {
                ReadOutcome::Message(mut message) => match self.handle_message(&mut message, now) {
                    Some(end) => return end,
                    None => core.recycle(message.bytes),
                },
                ReadOutcome::Closed | ReadOutcome::Invalid(_) => return ConnectionEnd::Unannounced,
                ReadOutcome::OutOfMemory => return ConnectionEnd::OutOfMemory,
            }
        }
    }

    /// Returns `true` if nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.calls.borrow().is_empty() && self.write_queue.queued_len() == 0
    }

    /// Returns the time of the next timeout; `stuck` is the time since which the member has read nothing.
    fn next_timeout(&self, settings: &ConnectionLimits, stalled_since: Time) -> Time {
        let deadline = self.calls.borrow().values().map(|pending_call| pending_call.deadline).min();
        match (deadline, self.write_queue.queued_len() > 0) {
            (deadline, true) => deadline.unwrap_or(NEVER).min(stalled_since + settings.write_stall),
            (Some(deadline), false) => deadline,
            (None, false) => self.quiet_since.get() + settings.idle,
        }
    }

    /// Handles one message of the member; returns `Some` if it was the last.
    fn handle_message(
        &self,
        WholeMessage { bytes: message, first_fragment_len: fragment_len }: &mut WholeMessage,
        now: Time,
    ) -> Option<ConnectionEnd> {
        let id = match GiopMessage::parse(message).map(|message| message.content) {
            Ok(MessageContent::Reply(reply)) => reply.id,
            Ok(MessageContent::LocateReply(reply)) => reply.id,
            Ok(MessageContent::CloseConnection) => return Some(ConnectionEnd::Announced),
            // Requests of a server to its client (bidirectional GIOP) were never negotiated.
            _ => return Some(ConnectionEnd::Unannounced),
        };
        // The reply to a cancelled or expired request is dropped.
        let pending_call = self.calls.borrow_mut().remove(&id);
        let PendingCall { call, in_flight, .. } = pending_call?;
        self.quiet_since.set(now);
        in_flight.counters().bytes_in.add(message.len() as u64);
        relay::handle_reply(call, in_flight, message, *fragment_len, now);
        None
    }

    /// Answers in place of a member that takes too long.
    fn expire_overdue(&self, now: Time) {
        let find_overdue = |calls: &BTreeMap<u32, PendingCall>| {
            calls.iter().find(|(_, pending_call)| pending_call.deadline <= now).map(|(id, _)| *id)
        };
        loop {
            let Some(id) = find_overdue(&self.calls.borrow()) else { return };
            let pending_call = self.calls.borrow_mut().remove(&id);
            let Some(PendingCall { call, in_flight, .. }) = pending_call else { return };
            self.send_cancel(&call, id);
            in_flight.finish_failure(FailureCause::Reason(Reason::AnswerTimeout), now);
            call.reply_failure(Reason::AnswerTimeout);
        }
    }

    /// Handles the unanswered requests of a connection that has ended.
    pub(super) fn fail_unanswered(&self, core: &Rc<ThreadContext>, end: ConnectionEnd) {
        let now = core.tick();
        let unanswered = std::mem::take(&mut *self.calls.borrow_mut());
        for PendingCall { mut call, in_flight, .. } in unanswered.into_values() {
            if end == ConnectionEnd::Announced && !std::mem::replace(&mut call.resent, true) {
                in_flight.abandon();
                tokio::task::spawn_local(relay::relay(call, None));
            } else if end == ConnectionEnd::OutOfMemory {
                in_flight.abandon();
                call.reply_failure(Reason::Memory);
            } else {
                in_flight.finish_failure(FailureCause::Reason(Reason::Reset), now);
                call.reply_failure(Reason::Reset);
            }
        }
    }
}

impl ConnectionLimits {
    pub(super) fn from_in_flight(in_flight: &InFlight) -> Self {
        let settings = in_flight.settings();
        let write_stall = settings.timeouts.idle;
        Self {
            idle: settings.pool_idle,
            write_stall,
            max_message: settings.iiop.as_ref().map_or(0, |iiop| iiop.max_message),
        }
    }
}

const NEVER: Time = Time(u64::MAX);
