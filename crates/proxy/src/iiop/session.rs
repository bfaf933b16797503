//! One client's connection: its messages are taken one after the other, its replies come as they come.

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

/// What is said where nothing that was read says how.
const PLAIN: Form = Form { version: Version::V1_0, order: Order::NATIVE };

/// Messages taken before others have their turn.
const STREAK: u32 = 32;

/// Requests of a connection that may be under way at once.
const OPEN: usize = 256;

/// The connection, as the tasks see it that have something to do with it.
pub(super) struct Session {
    pub(super) core: Rc<Core>,
    pub(super) listener: Rc<Listener>,
    pub(super) peer: Peer,
    pub(super) outbox: Outbox,
    /// Most bytes of a message.
    most: usize,
    /// How many requests were read.
    read: Cell<u64>,
    /// Requests that were read and not answered, and how long they are.
    open: Cell<usize>,
    bytes: Cell<usize>,
    /// Is nothing read until some of them are answered?
    laden: Cell<bool>,
    /// Those of them that the client waits for, by its number: where.
    placed: RefCell<BTreeMap<u32, Place>>,
    /// What the client said of code sets; it need not say it twice.
    code_sets: RefCell<Option<Rc<[u8]>>>,
}

/// Where a request is that the client waits for.
struct Place {
    /// Which request: the client may use its number again once it has given up this one.
    serial: u64,
    line: Weak<Line>,
    /// Its number there.
    id: u32,
}

impl Session {
    /// `most` are the bytes that a message may have.
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

    /// Takes messages until the connection ends.
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
                    // A client that sends ahead may never make this task wait.
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
        // Nobody waits for what is at members.
        let placed = std::mem::take(&mut *self.placed.borrow_mut());
        for Place { line, id, .. } in placed.into_values() {
            if let Some(line) = line.upgrade() {
                line.cancel(id);
            }
        }
        self.outbox.close();
    }

    /// A request is to go to a member as soon as it can.
    pub(super) fn waits(&self, call: &Call) {
        if call.kind != Ask::Oneway {
            let place = Place { serial: call.serial, line: Weak::new(), id: 0 };
            self.placed.borrow_mut().insert(call.id, place);
        }
    }

    /// Is a request still to be done? Nobody waits for the answer to a oneway: its client may be gone by right.
    pub(super) fn wants(&self, call: &Call) -> bool {
        call.kind == Ask::Oneway || (!self.outbox.closed() && self.has(call))
    }

    fn has(&self, call: &Call) -> bool {
        self.placed.borrow().get(&call.id).is_some_and(|place| place.serial == call.serial)
    }

    /// A request is at a member now.
    pub(super) fn placed(&self, call: &Call, line: &Rc<Line>, id: u32) {
        let place = Place { serial: call.serial, line: Rc::downgrade(line), id };
        self.placed.borrow_mut().insert(call.id, place);
    }

    /// A request was answered, or never will be.
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

    /// Writes a reply. A client that has asked for much and reads none of it is let go: nobody else waits for it.
    pub(super) fn write(&self, reply: &[u8], piece: Option<usize>) {
        self.outbox.push_as(reply, piece);
        if self.outbox.kept() > 2 * self.most {
            self.outbox.close();
        }
    }

    /// What the client agreed on with members.
    pub(super) fn code_sets(&self) -> Option<Rc<[u8]>> {
        self.code_sets.borrow().clone()
    }

    fn ending(&self) -> bool {
        self.core.stopping.get() || self.listener.closed()
    }

    /// The next message. Ends when nothing was asked for too long, or nothing is to be asked any more.
    async fn next(&self, inbound: &mut Inbound, timer: &Timer) -> Came {
        let timeouts = self.listener.settings().timeouts;
        let idle = timeouts.idle;
        timer.set(self.core.now() + idle);
        // What was there when the timer was set for it: of a message, or of replies that the client does not read.
        let mut stuck = 0;
        poll_fn(|cx| {
            let flushed = self.outbox.poll_flush(cx);
            if flushed == Poll::Ready(false) {
                return Poll::Ready(Came::End);
            }
            // Who does not read what it was answered is not asked what else it wants.
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
                // A client whose next request crosses this knows that it was not begun, and asks again elsewhere.
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

    /// Takes one message in; false if the connection is to end.
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
            // An answer to nothing.
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
        // To be relayed: each request, or what cannot be answered.
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

    /// Says that what came was not understood; false, because nothing can be after that.
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
