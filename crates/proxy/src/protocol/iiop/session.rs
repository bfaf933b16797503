//! One client's connection: its messages are handled in order, and its replies are sent as they arrive.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::Poll;

use plimsoll_wire::giop::write::{self, MessageFormat};
use plimsoll_wire::giop::{
    ByteOrder, CODE_SETS, ExpectedResponse, GiopMessage, GiopVersion, MessageContent, MessageType,
};

use super::call::{CallKind, GiopCall};
use super::connection::GiopConnection;
use super::reassembly::{MessageReassembler, ReadOutcome, WholeMessage};
use super::redirect::{self, RedirectState};
use super::relay;
use super::write_queue::WriteQueue;
use crate::BindingMode;
use crate::listener::Listener;
use crate::net::reason::Reason;
use crate::runtime::timer_wheel::Timer;
use crate::upstream::connect::PeerAddresses;
use crate::upstream::side_car::{AlertState, MeterGuard};
use crate::upstream::thread_context::ThreadContext;

/// The form of messages where nothing received determines it.
const CONTROL_FORMAT: MessageFormat = MessageFormat { version: GiopVersion::V1_0, order: ByteOrder::NATIVE };

/// The number of messages handled before other tasks run.
const YIELD_INTERVAL: u32 = 32;

/// The maximum number of a connection's requests in flight.
const MAX_OPEN_REQUESTS: usize = 256;

/// The connection, as the tasks of its requests share it.
pub(super) struct GiopSession {
    pub(super) core: Rc<ThreadContext>,
    pub(super) listener: Rc<Listener>,
    pub(super) peer: PeerAddresses,
    pub(super) write_queue: WriteQueue,
    /// The maximum size of a message, in bytes.
    max_message: usize,
    /// The number of requests that were read.
    next_serial: Cell<u64>,
    /// The number and the size of the requests that were read and not answered.
    open_requests: Cell<usize>,
    open_bytes: Cell<usize>,
    /// Whether reading is paused until some of them are answered.
    reading_paused: Cell<bool>,
    /// The places of those with a reply, by the client's request ID.
    placements: RefCell<BTreeMap<u32, RequestPlacement>>,
    /// The client's code sets, which it need not repeat.
    code_sets: RefCell<Option<Rc<[u8]>>>,
}

/// The place of a request that the client waits for.
struct RequestPlacement {
    /// The session's number of the request: the client may reuse its ID after cancelling.
    serial: u64,
    connection: Weak<GiopConnection>,
    /// Its ID on that connection.
    id: u32,
}

impl GiopSession {
    /// Creates the session. `most` is the maximum size of a message, in bytes.
    pub(super) fn new(
        core: Rc<ThreadContext>,
        listener: Rc<Listener>,
        peer: PeerAddresses,
        write_queue: WriteQueue,
        max_message: usize,
    ) -> Rc<Self> {
        Rc::new(Self {
            max_message,
            open_bytes: Cell::new(0),
            reading_paused: Cell::new(false),
            core,
            listener,
            peer,
            write_queue,
            next_serial: Cell::new(0),
            open_requests: Cell::new(0),
            placements: RefCell::default(),
            code_sets: RefCell::default(),
        })
    }

    /// Handles messages until the connection ends.
    pub(super) async fn serve(self: &Rc<Self>, mut inbound: MessageReassembler, timer: &Timer) {
        let mut redirect_state = RedirectState::default();
        let mut alert_state = AlertState::begin(self.listener.pool().group.side_car.as_ref());
        let mut handled: u32 = 0;
        loop {
            match self.next_message(&mut inbound, timer).await {
                ReadOutcome::Message(message) => {
                    if !self.handle_message(message, &mut redirect_state, &mut alert_state, timer).await {
                        break;
                    }
                    // A client that pipelines may never let this task wait.
                    handled = handled.wrapping_add(1);
                    if handled.is_multiple_of(YIELD_INTERVAL) {
                        tokio::task::yield_now().await;
                    }
                }
                ReadOutcome::Closed => break,
                ReadOutcome::OutOfMemory => {
                    self.listener.pool().group.record_rejection(self.core.index, Reason::Memory);
                    break;
                }
                ReadOutcome::Invalid(error) => {
                    tracing::debug!("{}: {error}", self.peer.client);
                    self.send_message_error();
                    break;
                }
            }
        }
        // The client no longer waits for the requests at members.
        let placements = std::mem::take(&mut *self.placements.borrow_mut());
        for RequestPlacement { connection, id, .. } in placements.into_values() {
            if let Some(connection) = connection.upgrade() {
                connection.cancel(id);
            }
        }
        self.write_queue.close();
    }

    /// Records that a request is about to go to a member.
    pub(super) fn record_waiting(&self, call: &GiopCall) {
        if call.kind != CallKind::Oneway {
            let placement = RequestPlacement { serial: call.serial, connection: Weak::new(), id: 0 };
            self.placements.borrow_mut().insert(call.id, placement);
        }
    }

    /// Returns `true` if a request is still wanted. No reply to a oneway is awaited: its client may have left
    /// legitimately.
    pub(super) fn is_wanted(&self, call: &GiopCall) -> bool {
        call.kind == CallKind::Oneway || (!self.write_queue.is_closed() && self.is_waiting(call))
    }

    fn is_waiting(&self, call: &GiopCall) -> bool {
        self.placements.borrow().get(&call.id).is_some_and(|placement| placement.serial == call.serial)
    }

    /// Records that a request is at a member.
    pub(super) fn record_placement(&self, call: &GiopCall, connection: &Rc<GiopConnection>, id: u32) {
        let placement = RequestPlacement { serial: call.serial, connection: Rc::downgrade(connection), id };
        self.placements.borrow_mut().insert(call.id, placement);
    }

    /// Records that a request was answered, or never will be.
    pub(super) fn record_answered(&self, call: &GiopCall) {
        if self.is_waiting(call) {
            self.placements.borrow_mut().remove(&call.id);
        }
        self.open_requests.set(self.open_requests.get() - 1);
        self.open_bytes.set(self.open_bytes.get() - call.size);
        if self.reading_paused.replace(false) || self.is_ending() {
            self.write_queue.wake_reader();
        }
    }

    /// Writes a reply. Drops a client with many requests that does not read the replies: it delays no other
    /// client.
    pub(super) fn write_reply(&self, reply: &[u8], fragment_len: Option<usize>) {
        self.write_queue.push_fragmented(reply, fragment_len);
        if self.write_queue.queued_len() > 2 * self.max_message {
            self.write_queue.close();
        }
    }

    /// Returns the code sets that the client agreed on with members.
    pub(super) fn code_sets(&self) -> Option<Rc<[u8]>> {
        self.code_sets.borrow().clone()
    }

    fn is_ending(&self) -> bool {
        self.core.stopping.get() || self.listener.is_closed()
    }

    /// Returns the next message. Ends after the idle timeout, or when no more requests are accepted.
    async fn next_message(&self, inbound: &mut MessageReassembler, timer: &Timer) -> ReadOutcome {
        let timeouts = self.listener.settings().timeouts;
        let idle = timeouts.idle;
        timer.set(self.core.now() + idle);
        // The number of bytes when the timer was set for them: of a message, or of replies that the client
        // does not read.
        let mut last_len = 0;
        poll_fn(|cx| {
            let flushed = self.write_queue.poll_flush(cx);
            if flushed == Poll::Ready(false) {
                return Poll::Ready(ReadOutcome::Closed);
            }
            // No requests are read from a client that does not read its replies.
            if flushed.is_pending() && self.write_queue.is_full() {
                if last_len != self.write_queue.queued_len() {
                    last_len = self.write_queue.queued_len();
                    timer.set(self.core.tick() + timeouts.body);
                }
                return if timer.fired() { Poll::Ready(ReadOutcome::Closed) } else { Poll::Pending };
            }
            if self.open_requests.get() >= MAX_OPEN_REQUESTS || self.open_bytes.get() >= self.max_message {
                self.reading_paused.set(true);
                timer.set(self.core.now() + idle);
                return Poll::Pending;
            }
            if let Poll::Ready(outcome) = inbound.poll_next(cx, &self.core, &self.write_queue) {
                self.core.tick();
                return Poll::Ready(outcome);
            }
            if last_len != inbound.buffered_len() {
                last_len = inbound.buffered_len();
                timer.set(self.core.tick() + if last_len > 0 { timeouts.body } else { idle });
            }
            let fired = timer.fired();
            if fired && inbound.has_partial_message() {
                return Poll::Ready(ReadOutcome::Closed);
            }
            if (fired || self.is_ending()) && self.open_requests.get() == 0 && !inbound.has_partial_message()
            {
                // A client whose next request crosses this message knows that it was not begun, and sends it
                // elsewhere.
                self.write_message(write::close);
                return Poll::Ready(ReadOutcome::Closed);
            }
            if fired {
                timer.set(self.core.tick() + idle);
            }
            Poll::Pending
        })
        .await
    }

    /// Handles one message; returns `false` if the connection has to end.
    async fn handle_message(
        self: &Rc<Self>,
        WholeMessage { bytes: message, first_fragment_len: fragment_len }: WholeMessage,
        redirect_state: &mut RedirectState,
        alert_state: &mut AlertState,
        timer: &Timer,
    ) -> bool {
        let Ok(parsed) = GiopMessage::parse(&message) else { return self.send_message_error() };
        let (id, kind, target) = match &parsed.content {
            MessageContent::Request(request) => {
                if let Some(code_sets) = request.contexts.find(CODE_SETS) {
                    // A byte order and two numbers.
                    if code_sets.len() != 12 {
                        return self.send_message_error();
                    }
                    let mut current = self.code_sets.borrow_mut();
                    if current.as_deref() != Some(code_sets) {
                        *current = Some(code_sets.into());
                    }
                }
                let is_oneway = request.expected_response == ExpectedResponse::Oneway;
                (request.id, if is_oneway { CallKind::Oneway } else { CallKind::Request }, &request.target)
            }
            MessageContent::LocateRequest(request) => (request.id, CallKind::Locate, &request.target),
            MessageContent::CancelRequest(id) => {
                self.cancel(*id);
                return true;
            }
            MessageContent::CloseConnection | MessageContent::MessageError => return false,
            // A reply without a request.
            MessageContent::Reply(_) | MessageContent::LocateReply(_) | MessageContent::Fragment(_) => {
                return self.send_message_error();
            }
        };
        debug_assert!(matches!(parsed.header.kind, MessageType::Request | MessageType::LocateRequest));
        let view = self.listener.pool().view();
        let Some(iiop) = &view.published.settings.iiop else { return false };
        let is_known_key = iiop.key.as_deref().is_none_or(|own_key| target.key() == Some(own_key));
        let is_shared = iiop.is_shared(target.key());
        let format = parsed.header.format();
        self.open_requests.set(self.open_requests.get() + 1);
        let serial = self.next_serial.get();
        self.next_serial.set(serial + 1);
        self.open_bytes.set(self.open_bytes.get() + message.len());
        let mut call = GiopCall {
            session: Rc::clone(self),
            id,
            serial,
            format,
            kind,
            size: message.len(),
            message,
            first_fragment_len: fragment_len,
            tried: Vec::new(),
            resent: false,
            started_at: self.core.now(),
            meter: MeterGuard::default(),
        };
        if !is_known_key {
            call.reply_unknown_object();
            return true;
        }
        // Relayed: each request, or only those without a reply.
        let is_relayed =
            self.listener.settings().binding == BindingMode::PerRequest || kind == CallKind::Oneway;
        if !is_relayed {
            redirect::redirect(call, redirect_state, timer).await;
            return true;
        }
        if let Some(side_car) = &self.listener.pool().group.side_car {
            if let Some(home_ior) = iiop.home.as_ref().filter(|_| kind != CallKind::Oneway && is_shared)
                && !alert_state.is_exempt(self.core.now())
                && alert_state.should_leave(|| self.core.random_bits())
            {
                alert_state.record_departure();
                call.reply_forward(home_ior);
                return true;
            }
            if kind != CallKind::Locate {
                let refuse =
                    view.published.settings.side_car.as_ref().is_some_and(|settings| settings.refuse);
                call.meter = MeterGuard::begin(side_car, refuse, self.core.now());
                if !call.meter.rejection_header().is_empty() {
                    call.reply_failure(Reason::Shed);
                    return true;
                }
            }
        }
        if kind == CallKind::Locate && iiop.key.is_some() {
            call.reply_located(true);
            return true;
        }
        if let Some(connection) = relay::begin_relay(call) {
            connection.wait_for_room().await;
        }
        true
    }

    fn cancel(&self, id: u32) {
        let placement = self.placements.borrow_mut().remove(&id);
        if let Some((connection, id)) =
            placement.and_then(|placement| Some((placement.connection.upgrade()?, placement.id)))
        {
            connection.cancel(id);
        }
    }

    /// Reports that a message was invalid; returns `false`, as nothing can follow.
    fn send_message_error(&self) -> bool {
        self.write_message(write::error);
        false
    }

    fn write_message(&self, write: impl FnOnce(&mut Vec<u8>, MessageFormat)) {
        let mut out = Vec::new();
        write(&mut out, CONTROL_FORMAT);
        self.write_queue.push(&out);
    }
}
