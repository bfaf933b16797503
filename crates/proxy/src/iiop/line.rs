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
use plimsoll_wire::giop::write::{self, Form};
use plimsoll_wire::giop::{Content, Message, Version};

use super::call::{Ask, Call};
use super::inbound::{Came, Inbound, Whole};
use super::outbox::Outbox;
use super::relay;
use crate::blame::Blame;
use crate::core::Core;
use crate::reason::Reason;
use crate::socket::Socket;
use crate::trip::Trip;

/// The common properties of clients whose requests share a connection.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Manner {
    pub(super) version: Version,
    /// The agreed code sets: the data of the service context.
    pub(super) code_sets: Option<Rc<[u8]>>,
}

/// One connection.
pub(super) struct Line {
    member: MemberId,
    manner: Manner,
    outbox: Outbox,
    /// The requests by their ID on this connection.
    calls: RefCell<BTreeMap<u32, Placed>>,
    next: Cell<u32>,
    /// Whether the agreement on code sets was sent.
    agreed: Cell<bool>,
    /// Whether the connection accepts no more requests.
    closing: Cell<bool>,
    quiet_since: Cell<Time>,
}

struct Placed {
    call: Call,
    trip: Trip,
    /// The deadline of the member's reply; `Time(u64::MAX)` for none.
    due: Time,
}

/// The group's settings for connections.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    /// The time without requests after which a connection is closed.
    pub(super) idle: Duration,
    /// The time after which a connection is dropped if the member reads none of the bytes for it.
    pub(super) deaf: Duration,
    /// The maximum size of a message, in bytes.
    pub(super) most: usize,
}

/// The way in which a connection ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The member announced that it has not begun the unanswered requests.
    Said,
    /// The member announced nothing.
    Broke,
    /// The memory budget of this process is used up, for which the member is not to blame.
    Full,
}

impl Line {
    pub(super) fn new(member: MemberId, manner: Manner, socket: Socket, now: Time) -> Self {
        Self {
            member,
            manner,
            outbox: Outbox::new(socket),
            calls: RefCell::default(),
            next: Cell::new(1),
            agreed: Cell::new(false),
            closing: Cell::new(false),
            quiet_since: Cell::new(now),
        }
    }

    pub(super) fn member(&self) -> MemberId {
        self.member
    }

    /// Returns `true` if the connection accepts requests with these properties for this member.
    pub(super) fn serves(&self, member: MemberId, manner: &Manner) -> bool {
        let open = !self.closing.get() && !self.outbox.closed();
        open && self.member == member && self.manner == *manner
    }

    /// Returns the number of requests in flight. Oneways count only by the bytes that the member has not read
    /// yet.
    pub(super) fn busy(&self) -> usize {
        self.calls.borrow().len() + usize::from(self.outbox.full())
    }

    /// Closes the connection once no request is in flight.
    pub(super) fn close(&self) {
        self.closing.set(true);
        self.outbox.wake();
    }

    /// Closes the connection: nothing more is sent.
    pub(super) fn shut(&self) {
        self.closing.set(true);
        self.outbox.close();
    }

    /// Sends a request, and keeps it for its reply, if there will be one.
    pub(super) fn send(self: &Rc<Self>, call: Call, trip: Trip, now: Time) {
        let id = self.next.get();
        self.next.set(id.wrapping_add(1));
        let fresh = !self.agreed.replace(true);
        let code_sets = self.manner.code_sets.as_deref().filter(|_| fresh);
        let core = Rc::clone(&call.session.core);
        let mut bytes = core.vector();
        let view = Rc::clone(trip.view());
        let iiop = view.published.settings.iiop.as_ref();
        let key = |asked: Option<&[u8]>| iiop.and_then(|iiop| iiop.key_at(trip.name(), asked));
        if call.rewritten(id, key, code_sets, &mut bytes).is_err() {
            trip.abandoned();
            return call.refuse(Reason::BadRequest);
        }
        trip.stripe().bytes_out.add(bytes.len() as u64);
        self.outbox.push_as(&bytes, call.piece);
        self.quiet_since.set(now);
        core.recycle(bytes);
        if call.kind == Ask::Oneway {
            call.count();
            trip.over(now);
            return;
        }
        let patience = trip.settings().timeouts.per_try;
        let due = if patience.is_zero() { NEVER } else { now + patience };
        call.session.placed(&call, self, id);
        self.calls.borrow_mut().insert(id, Placed { call, trip, due });
        if due != NEVER {
            self.outbox.wake();
        }
    }

    /// Notifies the member that this reply is no longer awaited.
    pub(super) fn cancel(&self, id: u32) {
        let placed = self.calls.borrow_mut().remove(&id);
        let Some(Placed { call, trip, .. }) = placed else { return };
        self.forget(&call, id);
        let now = call.session.core.now();
        trip.stripe().left.add(1);
        trip.left(now);
    }

    /// Before GIOP 1.2, omniORB would take a CancelRequest for the end of the connection, with other clients'
    /// requests. Members need not be notified.
    fn forget(&self, call: &Call, id: u32) {
        if self.manner.version < Version::V1_2 {
            return;
        }
        let mut out = Vec::new();
        write::cancel(&mut out, Form { version: self.manner.version, order: call.form.order }, id);
        self.outbox.push(&out);
    }

    /// Waits until more may be sent.
    pub(super) async fn room(&self) {
        self.outbox.room().await;
    }

    /// Reads replies until the connection ends.
    pub(super) async fn read(&self, core: &Rc<Core>, settings: &Settings) -> End {
        let timer = poll_fn(|cx: &mut Context<'_>| Poll::Ready(core.wheel.timer(cx.waker()))).await;
        let mut inbound = Inbound::new(Vec::new(), settings.most);
        // The bytes waiting for the member, and the time since which none were read.
        let mut stuck = (0, core.now());
        loop {
            let came = poll_fn(|cx| {
                if let Poll::Ready(false) = self.outbox.poll_flush(cx) {
                    return Poll::Ready(Came::End);
                }
                if let Poll::Ready(came) = inbound.poll_next(cx, core, &self.outbox) {
                    return Poll::Ready(came);
                }
                if timer.fired() {
                    self.overdue(core.tick());
                }
                let sent = self.outbox.sent();
                if self.outbox.kept() == 0 || sent != stuck.0 {
                    stuck = (sent, core.now());
                } else if core.now() >= stuck.1 + settings.deaf {
                    return Poll::Ready(Came::End);
                }
                let idle = self.idle();
                if idle && (self.closing.get() || core.now() >= self.quiet_since.get() + settings.idle) {
                    return Poll::Ready(Came::End);
                }
                timer.set(self.wakes(settings, stuck.1));
                Poll::Pending
            })
            .await;
            let now = core.tick();
            match came {
                Came::Message(mut whole) => match self.take(&mut whole, now) {
                    Some(end) => return end,
                    None => core.recycle(whole.bytes),
                },
                Came::End | Came::Bad(_) => return End::Broke,
                Came::Full => return End::Full,
            }
        }
    }

    /// Returns `true` if nothing is in flight.
    pub(super) fn idle(&self) -> bool {
        self.calls.borrow().is_empty() && self.outbox.kept() == 0
    }

    /// Returns the time of the next timeout; `stuck` is the time since which the member has read nothing.
    fn wakes(&self, settings: &Settings, stuck: Time) -> Time {
        let due = self.calls.borrow().values().map(|placed| placed.due).min();
        match (due, self.outbox.kept() > 0) {
            (due, true) => due.unwrap_or(NEVER).min(stuck + settings.deaf),
            (Some(due), false) => due,
            (None, false) => self.quiet_since.get() + settings.idle,
        }
    }

    /// Handles one message of the member; returns `Some` if it was the last.
    fn take(&self, Whole { bytes: message, piece }: &mut Whole, now: Time) -> Option<End> {
        let id = match Message::parse(message).map(|message| message.content) {
            Ok(Content::Reply(reply)) => reply.id,
            Ok(Content::LocateReply(reply)) => reply.id,
            Ok(Content::CloseConnection) => return Some(End::Said),
            // Requests of a server to its client (bidirectional GIOP) were never negotiated.
            _ => return Some(End::Broke),
        };
        // The reply to a cancelled or expired request is dropped.
        let placed = self.calls.borrow_mut().remove(&id);
        let Placed { call, trip, .. } = placed?;
        self.quiet_since.set(now);
        trip.stripe().bytes_in.add(message.len() as u64);
        relay::answered(call, trip, message, *piece, now);
        None
    }

    /// Answers in place of a member that takes too long.
    fn overdue(&self, now: Time) {
        let late = |calls: &BTreeMap<u32, Placed>| {
            calls.iter().find(|(_, placed)| placed.due <= now).map(|(id, _)| *id)
        };
        loop {
            let Some(id) = late(&self.calls.borrow()) else { return };
            let placed = self.calls.borrow_mut().remove(&id);
            let Some(Placed { call, trip, .. }) = placed else { return };
            self.forget(&call, id);
            trip.failed(Blame::Reason(Reason::AnswerTimeout), now);
            call.refuse(Reason::AnswerTimeout);
        }
    }

    /// Handles the unanswered requests of a connection that has ended.
    pub(super) fn end(&self, core: &Rc<Core>, end: End) {
        let now = core.tick();
        let left = std::mem::take(&mut *self.calls.borrow_mut());
        for Placed { mut call, trip, .. } in left.into_values() {
            if end == End::Said && !std::mem::replace(&mut call.resent, true) {
                trip.abandoned();
                tokio::task::spawn_local(relay::relay(call, None));
            } else if end == End::Full {
                trip.abandoned();
                call.refuse(Reason::Memory);
            } else {
                trip.failed(Blame::Reason(Reason::Reset), now);
                call.refuse(Reason::Reset);
            }
        }
    }
}

impl Settings {
    pub(super) fn of(trip: &Trip) -> Self {
        let settings = trip.settings();
        let deaf = settings.timeouts.idle;
        Self {
            idle: settings.pool_idle,
            deaf,
            most: settings.iiop.as_ref().map_or(0, |iiop| iiop.max_message),
        }
    }
}

const NEVER: Time = Time(u64::MAX);
