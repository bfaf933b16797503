//! A client's HTTP/2 connection: its streams become requests, and it ends without losing any.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ::http::{Request, request};
use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason as Code, RecvStream};
use plimsoll_brain::Time;

use super::abuse_guard::{AbuseGuard, AbuseMonitor};
use super::early_reject::reject_early;
use super::grpc_passthrough::{self, ForwardedFields, PassthroughHead};
use super::inbound::InboundStream;
use super::text_reader::{TextFraming, TextReader};
use super::write_batch::{BatchFlusher, WriteBatch, new_write_batch};
use super::{
    CONNECTION_WINDOW, LINGER, MAX_CLIENT_STREAMS, MAX_EARLY_RESETS, MAX_LOCAL_RESETS, SEND_BUFFER,
    STREAM_WINDOW, heads, websocket,
};
use crate::HashKeySource;
use crate::listener::session_binding::SessionBinding;
use crate::listener::{ConnectionGuard, Listener};
use crate::net::byte_stream::ByteStream;
use crate::net::connection::PeerConnection;
use crate::net::reason::Reason;
use crate::net::tls::SniContext;
use crate::protocol::http::{self, ClientDescription};
use crate::runtime::memory::MemoryReservation;
use crate::runtime::timer_wheel::Timer;
use crate::upstream::connect::PeerAddresses;
use crate::upstream::side_car::AlertState;
use crate::upstream::thread_context::ThreadContext;

/// Returns `true` if these bytes are the beginning of HTTP/2 (RFC 9113 section 3.4), which may be incomplete.
pub(crate) fn is_preface(bytes: &[u8]) -> bool {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let len = bytes.len().min(PREFACE.len());
    // As many bytes as a parser of HTTP/1.1 needs to detect the difference.
    len >= 14 && bytes[..len] == PREFACE[..len]
}

/// The bytes that a connection without streams keeps: tables of header compression and buffers of frames.
const CONNECTION_MEMORY: usize = 32 * 1024;
/// The bytes of a stream that may be in transit here, of its request and its response.
const STREAM_MEMORY: usize = STREAM_WINDOW as usize + SEND_BUFFER;
/// The time for which a connection without streams keeps their budget, so that a sequence of requests draws
/// nothing.
const IDLE_MEMORY_RELEASE: Duration = Duration::from_secs(1);

/// The state that a connection's streams share.
struct ConnectionShared {
    scheme: &'static str,
    abuse_monitor: Rc<AbuseMonitor>,
    streams: Cell<usize>,
    client: Rc<ClientDescription>,
    forwarded_fields: ForwardedFields,
    /// Whether the connection should end once the requests in flight have ended.
    draining: Cell<bool>,
    /// In a side-car: whether an alert is the reason.
    shedding: Cell<bool>,
    /// The waker of the connection's task.
    waker: RefCell<Option<Waker>>,
}

impl ConnectionShared {
    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

/// The connection's guard of one stream.
pub(super) struct StreamGuard(Rc<ConnectionShared>);

impl StreamGuard {
    fn enter(shared: &Rc<ConnectionShared>) -> Rc<Self> {
        shared.streams.set(shared.streams.get() + 1);
        Rc::new(Self(Rc::clone(shared)))
    }

    pub(super) fn scheme(&self) -> &'static str {
        self.0.scheme
    }

    /// Lets the connection end after this stream.
    pub(super) fn drain_connection(&self) {
        self.0.draining.set(true);
        self.0.wake();
    }

    /// Returns `true` if the connection ends because of an alert.
    pub(super) fn is_shedding(&self) -> bool {
        self.0.shedding.get()
    }

    pub(super) fn record_response(&self) {
        self.0.abuse_monitor.record_response();
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        let remaining = self.0.streams.get() - 1;
        self.0.streams.set(remaining);
        if remaining == 0 {
            self.0.wake();
        }
    }
}

/// Serves one client connection until it ends, in a session of its own, so that the caller's state is not
/// kept that long. `unread` are bytes that were already read from it.
pub(crate) fn serve_connection<S: ByteStream + 'static>(
    core: Rc<ThreadContext>,
    listener: Rc<Listener>,
    stream: S,
    peer: PeerAddresses,
    unread: Vec<u8>,
    connection_guard: Option<ConnectionGuard>,
) {
    let sessions = Rc::clone(&core.sessions);
    sessions.spawn(async move {
        let _connection_guard = connection_guard;
        let timer = poll_fn(|cx: &mut Context<'_>| Poll::Ready(core.wheel.timer(cx.waker()))).await;
        let (scheme, origin) = (stream.scheme(), stream.origin());
        stream.keepalive();
        let monitor = AbuseMonitor::new(&core);
        let (stream, flusher) = new_write_batch(stream);
        let guarded_stream = AbuseGuard::new(stream, unread, Rc::clone(&monitor));
        let Some(connection) = handshake(&core, &listener, &timer, guarded_stream, &flusher).await else {
            return;
        };
        let mut memory_reservation = MemoryReservation::default();
        if !memory_reservation.set(&core.limits.memory, CONNECTION_MEMORY) {
            listener.pool().group.record_rejection(core.index, Reason::Memory);
            return;
        }
        let waker = RefCell::default();
        let client = ClientDescription::new(&peer, scheme);
        let forwarded_fields = ForwardedFields::new(&client.text, scheme);
        let (streams, draining, shedding) = (Cell::new(0), Cell::new(false), Cell::new(false));
        let shared = Rc::new(ConnectionShared {
            scheme,
            abuse_monitor: monitor,
            streams,
            client,
            forwarded_fields,
            draining,
            shedding,
            waker,
        });
        // Sessions are connections, not streams.
        let binding = http::new_binding(&listener);
        let alert_state = AlertState::begin(listener.pool().group.side_car.as_ref());
        let mut serving = H2ServerConnection {
            alert_state,
            idle_from: core.now(),
            core,
            listener,
            timer,
            peer,
            sni: origin,
            binding,
            shared,
            connection,
            flusher,
            memory_reservation,
            awaiting_first_request: true,
            first_request_deadline: None,
            goaway_sent: false,
            drained_since: None,
            final_deadline: None,
        };
        poll_fn(|cx| {
            let ended = serving.poll(cx);
            serving.send(cx);
            ended
        })
        .await;
    });
}

/// Exchanges settings.
async fn handshake<S: ByteStream>(
    core: &Rc<ThreadContext>,
    listener: &Listener,
    timer: &Timer,
    stream: AbuseGuard<WriteBatch<S>>,
    flusher: &BatchFlusher<S>,
) -> Option<Connection<AbuseGuard<WriteBatch<S>>, Bytes>> {
    let settings = listener.settings();
    timer.set(core.tick() + settings.timeouts.head);
    let handshake_future = Builder::new()
        .max_concurrent_streams(MAX_CLIENT_STREAMS)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(u32::try_from(settings.max_head).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(MAX_EARLY_RESETS)
        .max_local_error_reset_streams(Some(MAX_LOCAL_RESETS))
        .enable_connect_protocol()
        .handshake(stream);
    let mut handshake_future = Box::pin(handshake_future);
    let mut shutdown_seen = false;
    let outcome = poll_fn(|cx| {
        let poll = handshake_future.as_mut().poll(cx);
        flusher.flush(cx);
        match poll {
            Poll::Ready(result) => Poll::Ready(result.map_err(|_| Some(Reason::BadRequest))),
            Poll::Pending if timer.fired() => {
                Poll::Ready(Err((!shutdown_seen).then_some(Reason::ClientTimeout)))
            }
            Poll::Pending => {
                if core.stopping.get() && !std::mem::replace(&mut shutdown_seen, true) {
                    timer.set(core.idle_deadline());
                }
                Poll::Pending
            }
        }
    });
    match outcome.await {
        Ok(connection) => Some(connection),
        Err(reason) => {
            if let Some(reason) = reason {
                listener.pool().group.record_rejection(core.index, reason);
            }
            None
        }
    }
}

struct H2ServerConnection<S> {
    core: Rc<ThreadContext>,
    listener: Rc<Listener>,
    timer: Timer,
    peer: PeerAddresses,
    /// The server name of the connection (TLS).
    sni: Option<Arc<SniContext>>,
    binding: Option<Rc<RefCell<SessionBinding>>>,
    /// In a side-car: whether the connection should leave because the server is overloaded.
    alert_state: AlertState,
    shared: Rc<ConnectionShared>,
    connection: Connection<AbuseGuard<WriteBatch<S>>, Bytes>,
    flusher: BatchFlusher<S>,
    /// The memory for the streams' bytes in transit.
    memory_reservation: MemoryReservation,
    /// The time since which the connection has no streams, if it has none.
    idle_from: Time,
    /// Whether no request has arrived yet.
    awaiting_first_request: bool,
    /// The time until which a stopping process waits for the first request, so that a client which has just
    /// connected gets a response and not only a GOAWAY.
    first_request_deadline: Option<Time>,
    /// Whether the client was notified that this connection accepts no more requests.
    goaway_sent: bool,
    /// The time since which such a connection has no streams.
    drained_since: Option<Time>,
    /// The time at which the connection ends, whatever is in flight.
    final_deadline: Option<Time>,
}

impl<S: ByteStream> H2ServerConnection<S> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.shared.waker.borrow().as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *self.shared.waker.borrow_mut() = Some(cx.waker().clone());
        }
        loop {
            match self.connection.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, respond)))) => self.begin_request(request, respond),
                Poll::Ready(Some(Err(error))) => {
                    tracing::debug!("{}: HTTP/2 ended: {error}", self.listener.shared.address);
                    return Poll::Ready(());
                }
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => {
                    self.send(cx);
                    if self.shared.abuse_monitor.exceeded.get() && self.final_deadline.is_none() {
                        self.final_deadline = Some(self.core.tick() + LINGER);
                        self.connection.abrupt_shutdown(Code::ENHANCE_YOUR_CALM);
                        continue;
                    }
                    if !self.update_lifecycle() {
                        return Poll::Pending;
                    }
                    if self.final_deadline.is_some_and(|deadline| self.core.now() >= deadline) {
                        return Poll::Ready(());
                    }
                }
            }
        }
    }

    /// Sends the buffered bytes, and records the time since which the client accepts none.
    fn send(&self, cx: &mut Context<'_>) {
        let wrote = self.flusher.flush(cx) > 0;
        let blocked_since = &self.shared.abuse_monitor.blocked_since;
        let previous = blocked_since.get().filter(|_| !wrote);
        blocked_since.set(self.flusher.has_unsent().then(|| previous.unwrap_or_else(|| self.core.now())));
    }

    /// Decides whether the connection should end, and when to check again, as nothing more has arrived.
    /// Returns `true` if it is to be polled again.
    fn update_lifecycle(&mut self) -> bool {
        let now = self.core.tick();
        let settings = self.listener.settings();
        let monitor = &self.shared.abuse_monitor;
        // Bytes that the socket has not accepted belong to some response; the time limit for that is below.
        let busy = self.shared.streams.get() > 0 || monitor.blocked_since.get().is_some();
        if busy {
            (self.idle_from, self.drained_since) = (now, None);
            let needed = CONNECTION_MEMORY + self.shared.streams.get() * STREAM_MEMORY;
            if self.memory_reservation.bytes() >= 2 * needed {
                // One remaining stream does not hold the budget of an earlier burst. A decrease cannot fail.
                let _ = self.memory_reservation.set(&self.core.limits.memory, needed);
            }
        } else if now >= self.idle_from + IDLE_MEMORY_RELEASE {
            // A decrease cannot fail.
            let _ = self.memory_reservation.set(&self.core.limits.memory, CONNECTION_MEMORY);
        }
        let ending = self.core.stopping.get() || self.listener.is_closed();
        if ending && self.awaiting_first_request {
            self.first_request_deadline.get_or_insert_with(|| self.core.idle_deadline());
        }
        let first_request_until =
            self.first_request_deadline.filter(|deadline| self.awaiting_first_request && now < *deadline);
        let idle_deadline = self.idle_from + settings.timeouts.idle;
        let should_drain = self.shared.draining.get() || monitor.is_error_budget_spent();
        if !self.goaway_sent
            && self.final_deadline.is_none()
            && ((ending && first_request_until.is_none()) || should_drain || (!busy && now >= idle_deadline))
        {
            // A first GOAWAY announces the end; after the client's acknowledgement, a second one names the
            // last stream that is served. Requests that the client sends in between are served, too.
            self.goaway_sent = true;
            self.connection.graceful_shutdown();
            return true;
        }
        if monitor.closing.get() {
            self.final_deadline.get_or_insert(now + LINGER);
        }
        if self.goaway_sent && !busy {
            self.drained_since.get_or_insert(now);
        }
        // A client that still reads the bytes in transit sends a WINDOW_UPDATE at times; closing earlier
        // would lose them.
        let drained_deadline = self.drained_since.map(|drained_since| {
            let grace = if ending { self.core.idle_grace.get() } else { LINGER };
            (drained_since.max(monitor.last_received()) + grace)
                .min(drained_since + settings.timeouts.body.max(grace))
        });
        // A client that does not accept the responses to its requests.
        let stall_deadline =
            monitor.blocked_since.get().map(|blocked_since| blocked_since + settings.timeouts.body);
        let next_deadline =
            [self.final_deadline, drained_deadline, stall_deadline].into_iter().flatten().min();
        if next_deadline.is_some_and(|deadline| now >= deadline) {
            self.final_deadline = Some(now);
            return true;
        }
        let memory_release_at = (!busy && self.memory_reservation.bytes() > CONNECTION_MEMORY)
            .then(|| self.idle_from + IDLE_MEMORY_RELEASE);
        let idle_check_at = (!busy && !self.goaway_sent)
            .then_some(first_request_until.map_or(idle_deadline, |until| until.min(idle_deadline)));
        // With streams in flight, the client may stop reading without a further call of this: checked at
        // times.
        let recheck_at = busy.then_some(now + settings.timeouts.body);
        self.timer.set(
            [next_deadline, idle_check_at, recheck_at, memory_release_at]
                .into_iter()
                .flatten()
                .min()
                .unwrap_or(Time(u64::MAX)),
        );
        false
    }

    /// Returns `true` if the group's members speak HTTP/2.
    fn has_http2_members(&self) -> bool {
        self.listener.pool().view().published.settings.http2
    }

    /// Returns the changes to a call's head if it may pass through without conversion to text.
    fn passthrough_head(&self, head: &request::Parts) -> Option<PassthroughHead> {
        let pool = self.listener.pool();
        let published = &pool.view().published;
        let keyed = published.plan.strategy().reads_key && published.settings.key != HashKeySource::Client;
        if !published.settings.http2 || self.binding.is_some() || pool.group.side_car.is_some() || keyed {
            return None;
        }
        // Logged, traced and routed requests are read as text.
        if self.core.is_recording.get() || self.listener.has_routes() {
            return None;
        }
        let settings = self.listener.settings();
        let trusted = http::trusts_forwarded(&settings, &self.peer);
        grpc_passthrough::passthrough_head(head, settings.max_head, settings.forwarded, trusted)
    }

    /// Starts a task that gets a request answered.
    fn begin_request(&mut self, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
        self.awaiting_first_request = false;
        let (head, body) = request.into_parts();
        let reject = |respond, reason| {
            reject_early(&self.core, &self.listener, &self.peer, &head, respond, reason);
        };
        if let Some(origin) = &self.sni
            && heads::request_host(&head).is_some_and(|host| origin.is_misdirected(host))
        {
            return reject(respond, Reason::Misdirected);
        }
        let passthrough = self.passthrough_head(&head);
        let mut text = Vec::with_capacity(if passthrough.is_some() { 0 } else { 512 });
        let framing_result = match websocket::connect_protocol(&head) {
            None if passthrough.is_some() => {
                Ok(if body.is_end_stream() { TextFraming::Empty } else { TextFraming::Chunks })
            }
            None => heads::request_text(&head, body.is_end_stream(), &mut text),
            Some(_)
                if websocket::is_websocket(&head)
                    && !self.has_http2_members()
                    && self.listener.settings().upgrades_to(b"websocket") =>
            {
                let nonce = [self.core.random_bits().to_be_bytes(), self.core.random_bits().to_be_bytes()];
                // The bytes are forwarded unchanged.
                websocket::request_text(&head, nonce.as_flattened().try_into().unwrap_or_default(), &mut text)
                    .map(|()| TextFraming::Length)
            }
            Some(_) => return reject(respond, Reason::NotImplemented),
        };
        let Ok(framing) = framing_result else { return reject(respond, Reason::BadRequest) };
        if self.shared.streams.get() >= 2 * MAX_CLIENT_STREAMS as usize {
            // Streams that the client has reset, and that a member still processes, count as well.
            return respond.send_reset(Code::REFUSED_STREAM);
        }
        let core = &self.core;
        if !self
            .memory_reservation
            .grow(&core.limits.memory, CONNECTION_MEMORY + (self.shared.streams.get() + 1) * STREAM_MEMORY)
        {
            return reject(respond, Reason::Memory);
        }
        if self.alert_state.should_leave(|| core.random_bits()) {
            self.shared.draining.set(true);
            self.shared.shedding.set(true);
        }
        let guard = StreamGuard::enter(&self.shared);
        let request = TextReader::new(text, framing, body);
        let mut inbound = InboundStream::new(guard, &head, request, respond);
        if let Some(head_info) = passthrough {
            let style = self.listener.settings().forwarded;
            inbound = inbound.with_passthrough(grpc_passthrough::into_passthrough_call(
                head,
                head_info,
                style,
                &self.shared.forwarded_fields,
            ));
        }
        let connection = PeerConnection::Other(Box::new(inbound));
        let (core, listener) = (Rc::clone(&self.core), Rc::clone(&self.listener));
        let binding = match &self.binding {
            // Each request comes with its own cookie.
            Some(_) if listener.settings().affinity.is_some() => http::new_binding(&listener),
            binding => binding.clone(),
        };
        let client = Some(Rc::clone(&self.shared.client));
        let session = http::serve(core, listener, (connection, self.peer, Vec::new()), binding, client, None);
        self.core.sessions.spawn(session);
    }
}
