//! One client's connection: its messages are handled in order, and its replies are sent as they arrive.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::Poll;

use plimsoll_wire::giop::write::{self, Form};
use plimsoll_wire::giop::{CODE_SETS, Content, Kind, Message, Order, Version, Wanted};

use super::call::{Ask, Call};
use super::inbound::{Came, Inbound, Whole};
use super::line::Line;
use super::outbox::Outbox;
use super::redirect::{self, Bound};
use super::relay;
use crate::Binding;
use crate::connect::Peer;
use crate::core::Core;
use crate::listener::Listener;
use crate::metered::{Heed, Metered};
use crate::reason::Reason;
use crate::wheel::Timer;

/// The form of messages where nothing received determines it.
const PLAIN: Form = Form { version: Version::V1_0, order: Order::NATIVE };

/// The number of messages handled before other tasks run.
const STREAK: u32 = 32;

/// The maximum number of a connection's requests in flight.
const OPEN: usize = 256;

/// The connection, as the tasks of its requests share it.
pub(super) struct Session {
    pub(super) core: Rc<Core>,
    pub(super) listener: Rc<Listener>,
    pub(super) peer: Peer,
    pub(super) outbox: Outbox,
    /// The maximum size of a message, in bytes.
    most: usize,
    /// The number of requests that were read.
    read: Cell<u64>,
    /// The number and the size of the requests that were read and not answered.
    open: Cell<usize>,
    bytes: Cell<usize>,
    /// Whether reading is paused until some of them are answered.
    laden: Cell<bool>,
    /// The places of those with a reply, by the client's request ID.
    placed: RefCell<BTreeMap<u32, Place>>,
    /// The client's code sets, which it need not repeat.
    code_sets: RefCell<Option<Rc<[u8]>>>,
}

/// The place of a request that the client waits for.
struct Place {
    /// The session's number of the request: the client may reuse its ID after cancelling.
    serial: u64,
    line: Weak<Line>,
    /// Its ID on that connection.
    id: u32,
}

impl Session {
    /// Creates the session. `most` is the maximum size of a message, in bytes.
    pub(super) fn new(
        core: Rc<Core>,
        listener: Rc<Listener>,
        peer: Peer,
        outbox: Outbox,
        most: usize,
    ) -> Rc<Self> {
        Rc::new(Self {
            most,
            bytes: Cell::new(0),
            laden: Cell::new(false),
            core,
            listener,
            peer,
            outbox,
            read: Cell::new(0),
            open: Cell::new(0),
            placed: RefCell::default(),
            code_sets: RefCell::default(),
        })
    }

    /// Handles messages until the connection ends.
    pub(super) async fn serve(self: &Rc<Self>, mut inbound: Inbound, timer: &Timer) {
        let mut bound = Bound::default();
        let mut heed = Heed::begin(self.listener.pool().group.side_car.as_ref());
        let mut taken: u32 = 0;
        loop {
            match self.next(&mut inbound, timer).await {
                Came::Message(whole) => {
                    if !self.take(whole, &mut bound, &mut heed, timer).await {
                        break;
                    }
                    // A client that pipelines may never let this task wait.
                    taken = taken.wrapping_add(1);
                    if taken.is_multiple_of(STREAK) {
                        tokio::task::yield_now().await;
                    }
                }
                Came::End => break,
                Came::Full => {
                    self.listener.pool().group.reject(self.core.index, Reason::Memory);
                    break;
                }
                Came::Bad(bad) => {
                    tracing::debug!("{}: {bad}", self.peer.client);
                    self.protest();
                    break;
                }
            }
        }
        // The client no longer waits for the requests at members.
        let placed = std::mem::take(&mut *self.placed.borrow_mut());
        for Place { line, id, .. } in placed.into_values() {
            if let Some(line) = line.upgrade() {
                line.cancel(id);
            }
        }
        self.outbox.close();
    }

    /// Records that a request is about to go to a member.
    pub(super) fn waits(&self, call: &Call) {
        if call.kind != Ask::Oneway {
            let place = Place { serial: call.serial, line: Weak::new(), id: 0 };
            self.placed.borrow_mut().insert(call.id, place);
        }
    }

    /// Returns `true` if a request is still wanted. No reply to a oneway is awaited: its client may have left
    /// legitimately.
    pub(super) fn wants(&self, call: &Call) -> bool {
        call.kind == Ask::Oneway || (!self.outbox.closed() && self.has(call))
    }

    fn has(&self, call: &Call) -> bool {
        self.placed.borrow().get(&call.id).is_some_and(|place| place.serial == call.serial)
    }

    /// Records that a request is at a member.
    pub(super) fn placed(&self, call: &Call, line: &Rc<Line>, id: u32) {
        let place = Place { serial: call.serial, line: Rc::downgrade(line), id };
        self.placed.borrow_mut().insert(call.id, place);
    }

    /// Records that a request was answered, or never will be.
    pub(super) fn answered(&self, call: &Call) {
        if self.has(call) {
            self.placed.borrow_mut().remove(&call.id);
        }
        self.open.set(self.open.get() - 1);
        self.bytes.set(self.bytes.get() - call.bytes);
        if self.laden.replace(false) || self.ending() {
            self.outbox.wake();
        }
    }

    /// Writes a reply. Drops a client with many requests that does not read the replies: it delays no other
    /// client.
    pub(super) fn write(&self, reply: &[u8], piece: Option<usize>) {
        self.outbox.push_as(reply, piece);
        if self.outbox.kept() > 2 * self.most {
            self.outbox.close();
        }
    }

    /// Returns the code sets that the client agreed on with members.
    pub(super) fn code_sets(&self) -> Option<Rc<[u8]>> {
        self.code_sets.borrow().clone()
    }

    fn ending(&self) -> bool {
        self.core.stopping.get() || self.listener.closed()
    }

    /// Returns the next message. Ends after the idle timeout, or when no more requests are accepted.
    async fn next(&self, inbound: &mut Inbound, timer: &Timer) -> Came {
        let timeouts = self.listener.settings().timeouts;
        let idle = timeouts.idle;
        timer.set(self.core.now() + idle);
        // The number of bytes when the timer was set for them: of a message, or of replies that the client
        // does not read.
        let mut stuck = 0;
        poll_fn(|cx| {
            let flushed = self.outbox.poll_flush(cx);
            if flushed == Poll::Ready(false) {
                return Poll::Ready(Came::End);
            }
            // No requests are read from a client that does not read its replies.
            if flushed.is_pending() && self.outbox.full() {
                if stuck != self.outbox.kept() {
                    stuck = self.outbox.kept();
                    timer.set(self.core.tick() + timeouts.body);
                }
                return if timer.fired() { Poll::Ready(Came::End) } else { Poll::Pending };
            }
            if self.open.get() >= OPEN || self.bytes.get() >= self.most {
                self.laden.set(true);
                timer.set(self.core.now() + idle);
                return Poll::Pending;
            }
            if let Poll::Ready(came) = inbound.poll_next(cx, &self.core, &self.outbox) {
                self.core.tick();
                return Poll::Ready(came);
            }
            if stuck != inbound.held() {
                stuck = inbound.held();
                timer.set(self.core.tick() + if stuck > 0 { timeouts.body } else { idle });
            }
            let fired = timer.fired();
            if fired && inbound.begun() {
                return Poll::Ready(Came::End);
            }
            if (fired || self.ending()) && self.open.get() == 0 && !inbound.begun() {
                // A client whose next request crosses this message knows that it was not begun, and sends it
                // elsewhere.
                self.say(write::close);
                return Poll::Ready(Came::End);
            }
            if fired {
                timer.set(self.core.tick() + idle);
            }
            Poll::Pending
        })
        .await
    }

    /// Handles one message; returns `false` if the connection has to end.
    async fn take(
        self: &Rc<Self>,
        Whole { bytes: message, piece }: Whole,
        bound: &mut Bound,
        heed: &mut Heed,
        timer: &Timer,
    ) -> bool {
        let Ok(read) = Message::parse(&message) else { return self.protest() };
        let (id, kind, target) = match &read.content {
            Content::Request(request) => {
                if let Some(code_sets) = request.contexts.find(CODE_SETS) {
                    // A byte order and two numbers.
                    if code_sets.len() != 12 {
                        return self.protest();
                    }
                    let mut known = self.code_sets.borrow_mut();
                    if known.as_deref() != Some(code_sets) {
                        *known = Some(code_sets.into());
                    }
                }
                let oneway = request.wanted == Wanted::Nothing;
                (request.id, if oneway { Ask::Oneway } else { Ask::Request }, &request.target)
            }
            Content::LocateRequest(request) => (request.id, Ask::Locate, &request.target),
            Content::CancelRequest(id) => {
                self.cancel(*id);
                return true;
            }
            Content::CloseConnection | Content::MessageError => return false,
            // A reply without a request.
            Content::Reply(_) | Content::LocateReply(_) | Content::Fragment(_) => return self.protest(),
        };
        debug_assert!(matches!(read.header.kind, Kind::Request | Kind::LocateRequest));
        let view = self.listener.pool().view();
        let Some(iiop) = &view.published.settings.iiop else { return false };
        let known = iiop.key.as_deref().is_none_or(|own| target.key() == Some(own));
        let shared = iiop.is_shared(target.key());
        let form = read.header.form();
        self.open.set(self.open.get() + 1);
        let serial = self.read.get();
        self.read.set(serial + 1);
        self.bytes.set(self.bytes.get() + message.len());
        let mut call = Call {
            session: Rc::clone(self),
            id,
            serial,
            form,
            kind,
            bytes: message.len(),
            message,
            piece,
            tried: Vec::new(),
            resent: false,
            begun: self.core.now(),
            metered: Metered::default(),
        };
        if !known {
            call.unknown();
            return true;
        }
        // Relayed: each request, or only those without a reply.
        let relayed = self.listener.settings().binding == Binding::PerRequest || kind == Ask::Oneway;
        if !relayed {
            redirect::redirect(call, bound, timer).await;
            return true;
        }
        if let Some(side_car) = &self.listener.pool().group.side_car {
            if let Some(home) = iiop.home.as_ref().filter(|_| kind != Ask::Oneway && shared)
                && !heed.rests(self.core.now())
                && heed.goes(|| self.core.chance())
            {
                heed.left();
                call.forward(home);
                return true;
            }
            if kind != Ask::Locate {
                let refuse =
                    view.published.settings.side_car.as_ref().is_some_and(|settings| settings.refuse);
                call.metered = Metered::begin(side_car, refuse, self.core.now());
                if !call.metered.refusal().is_empty() {
                    call.refuse(Reason::Shed);
                    return true;
                }
            }
        }
        if kind == Ask::Locate && iiop.key.is_some() {
            call.located(true);
            return true;
        }
        if let Some(line) = relay::begin(call) {
            line.room().await;
        }
        true
    }

    fn cancel(&self, id: u32) {
        let placed = self.placed.borrow_mut().remove(&id);
        if let Some((line, id)) = placed.and_then(|place| Some((place.line.upgrade()?, place.id))) {
            line.cancel(id);
        }
    }

    /// Reports that a message was invalid; returns `false`, as nothing can follow.
    fn protest(&self) -> bool {
        self.say(write::error);
        false
    }

    fn say(&self, write: impl FnOnce(&mut Vec<u8>, Form)) {
        let mut out = Vec::new();
        write(&mut out, PLAIN);
        self.outbox.push(&out);
    }
}
