//! A connection to a member that the requests of many clients share.
//!
//! Clients number their requests as they please, so each gets a number of this connection's own on the way to the member
//! and its old one back on the way to the client; replies come in any order. What is said once for each connection (the
//! code sets that client and server agreed on) keeps connections apart: clients that agreed on others do not share
//! one, and the first request on each carries the agreement whether or not its client said it again.
//!
//! A member that says CloseConnection has not begun what it has not answered (CORBA 3.3, 9.7.3): that is sent again, once,
//! to whoever is chosen. One that just goes away may have: that is the client's to decide, and it is told
//! COMM_FAILURE with COMPLETED_MAYBE.

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

/// What clients whose requests share a connection have in common.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Manner {
    pub(super) version: Version,
    /// The code sets agreed on: the data of the service context.
    pub(super) code_sets: Option<Rc<[u8]>>,
}

/// One connection.
pub(super) struct Line {
    member: MemberId,
    manner: Manner,
    outbox: Outbox,
    /// By its number here.
    calls: RefCell<BTreeMap<u32, Placed>>,
    next: Cell<u32>,
    /// Has the agreement on code sets been sent?
    agreed: Cell<bool>,
    /// Takes no more.
    closing: Cell<bool>,
    quiet_since: Cell<Time>,
}

struct Placed {
    call: Call,
    trip: Trip,
    /// When the member has taken too long; `Time(u64::MAX)` for never.
    due: Time,
}

/// What a connection needs to know of its group.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    /// A connection is ended when nothing was asked for so long.
    pub(super) idle: Duration,
    /// It is given up when the member has read nothing for so long of what is there for it.
    pub(super) deaf: Duration,
    /// Most bytes of a message.
    pub(super) most: usize,
}

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The member said that it has not begun what it has not answered.
    Said,
    /// It did not.
    Broke,
    /// The memory budget of this process is used up, which is no fault of the member.
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

    /// Does it take requests of this kind for this member?
    pub(super) fn serves(&self, member: MemberId, manner: &Manner) -> bool {
        let open = !self.closing.get() && !self.outbox.closed();
        open && self.member == member && self.manner == *manner
    }

    /// How much is under way. Oneways leave no trace but what the member has not read yet.
    pub(super) fn busy(&self) -> usize {
        self.calls.borrow().len() + usize::from(self.outbox.full())
    }

    /// Ends it when nothing is under way any more.
    pub(super) fn close(&self) {
        self.closing.set(true);
        self.outbox.wake();
    }

    /// Nothing more is sent.
    pub(super) fn shut(&self) {
        self.closing.set(true);
        self.outbox.close();
    }

    /// Sends a request, and keeps it until its reply comes if there is to be one.
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

    /// Tells the member that nobody waits for this reply any more.
    pub(super) fn cancel(&self, id: u32) {
        let placed = self.calls.borrow_mut().remove(&id);
        let Some(Placed { call, trip, .. }) = placed else { return };
        self.forget(&call, id);
        let now = call.session.core.now();
        trip.stripe().left.add(1);
        trip.left(now);
    }

    /// Before GIOP 1.2 omniORB takes this for the end of the connection, and other clients' requests with it; nobody has
    /// to be told.
    fn forget(&self, call: &Call, id: u32) {
        if self.manner.version < Version::V1_2 {
            return;
        }
        let mut out = Vec::new();
        write::cancel(&mut out, Form { version: self.manner.version, order: call.form.order }, id);
        self.outbox.push(&out);
    }

    /// Resolves when more may be sent.
    pub(super) async fn room(&self) {
        self.outbox.room().await;
    }

    /// Reads replies until the connection ends.
    pub(super) async fn read(&self, core: &Rc<Core>, settings: &Settings) -> End {
        let timer = poll_fn(|cx: &mut Context<'_>| Poll::Ready(core.wheel.timer(cx.waker()))).await;
        let mut inbound = Inbound::new(Vec::new(), settings.most);
        // What was there for the member, and since when it is so much.
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

    /// Is nothing under way?
    pub(super) fn idle(&self) -> bool {
        self.calls.borrow().is_empty() && self.outbox.kept() == 0
    }

    /// When there is something to do next though nothing comes; `stuck` is since when the member has read nothing.
    fn wakes(&self, settings: &Settings, stuck: Time) -> Time {
        let due = self.calls.borrow().values().map(|placed| placed.due).min();
        match (due, self.outbox.kept() > 0) {
            (due, true) => due.unwrap_or(NEVER).min(stuck + settings.deaf),
            (Some(due), false) => due,
            (None, false) => self.quiet_since.get() + settings.idle,
        }
    }

    /// Takes in one message of the member's; `Some` if it was the last.
    fn take(&self, Whole { bytes: message, piece }: &mut Whole, now: Time) -> Option<End> {
        let id = match Message::parse(message).map(|message| message.content) {
            Ok(Content::Reply(reply)) => reply.id,
            Ok(Content::LocateReply(reply)) => reply.id,
            Ok(Content::CloseConnection) => return Some(End::Said),
            // Requests of a server to its client (bidirectional GIOP) were never agreed to.
            _ => return Some(End::Broke),
        };
        // One that was cancelled, or came too late, is nobody's.
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

    /// The connection is over: what becomes of the requests that were not answered.
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
