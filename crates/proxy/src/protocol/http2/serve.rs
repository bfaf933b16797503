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
    const LINE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let most = bytes.len().min(LINE.len());
    // As many bytes as a parser of HTTP/1.1 needs to detect the difference.
    most >= 14 && bytes[..most] == LINE[..most]
}

/// The bytes that a connection without streams keeps: tables of header compression and buffers of frames.
const CONNECTION: usize = 32 * 1024;
/// The bytes of a stream that may be in transit here, of its request and its response.
const STREAM: usize = STREAM_WINDOW as usize + SEND_BUFFER;
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
    fn enter(hub: &Rc<ConnectionShared>) -> Rc<Self> {
        hub.streams.set(hub.streams.get() + 1);
        Rc::new(Self(Rc::clone(hub)))
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
        let left = self.0.streams.get() - 1;
        self.0.streams.set(left);
        if left == 0 {
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
    visit: Option<ConnectionGuard>,
) {
    let sessions = Rc::clone(&core.sessions);
    sessions.spawn(async move {
        let _visit = visit;
        let timer = poll_fn(|cx: &mut Context<'_>| Poll::Ready(core.wheel.timer(cx.waker()))).await;
        let (scheme, origin) = (stream.scheme(), stream.origin());
        stream.keepalive();
        let watch = AbuseMonitor::new(&core);
        let (stream, outlet) = new_write_batch(stream);
        let governed = AbuseGuard::new(stream, unread, Rc::clone(&watch));
        let Some(connection) = handshake(&core, &listener, &timer, governed, &outlet).await else { return };
        let mut kept = MemoryReservation::default();
        if !kept.set(&core.limits.memory, CONNECTION) {
            listener.pool().group.record_rejection(core.index, Reason::Memory);
            return;
        }
        let waker = RefCell::default();
        let client = ClientDescription::new(&peer, scheme);
        let forwards = ForwardedFields::new(&client.text, scheme);
        let (streams, leave, shed) = (Cell::new(0), Cell::new(false), Cell::new(false));
        let hub = Rc::new(ConnectionShared {
            scheme,
            abuse_monitor: watch,
            streams,
            client,
            forwarded_fields: forwards,
            draining: leave,
            shedding: shed,
            waker,
        });
        // Sessions are connections, not streams.
        let bond = http::new_binding(&listener);
        let heed = AlertState::begin(listener.pool().group.side_car.as_ref());
        let mut serving = H2ServerConnection {
            alert_state: heed,
            idle_from: core.now(),
            core,
            listener,
            timer,
            peer,
            sni: origin,
            binding: bond,
            shared: hub,
            connection,
            flusher: outlet,
            memory_reservation: kept,
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
    outlet: &BatchFlusher<S>,
) -> Option<Connection<AbuseGuard<WriteBatch<S>>, Bytes>> {
    let settings = listener.settings();
    timer.set(core.tick() + settings.timeouts.head);
    let begun = Builder::new()
        .max_concurrent_streams(MAX_CLIENT_STREAMS)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(u32::try_from(settings.max_head).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(MAX_EARLY_RESETS)
        .max_local_error_reset_streams(Some(MAX_LOCAL_RESETS))
        .enable_connect_protocol()
        .handshake(stream);
    let mut begun = Box::pin(begun);
    let mut parting = false;
    let met = poll_fn(|cx| {
        let met = begun.as_mut().poll(cx);
        outlet.flush(cx);
        match met {
            Poll::Ready(met) => Poll::Ready(met.map_err(|_| Some(Reason::BadRequest))),
            Poll::Pending if timer.fired() => Poll::Ready(Err((!parting).then_some(Reason::ClientTimeout))),
            Poll::Pending => {
                if core.stopping.get() && !std::mem::replace(&mut parting, true) {
                    timer.set(core.idle_deadline());
                }
                Poll::Pending
            }
        }
    });
    match met.await {
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
                    if self.final_deadline.is_some_and(|last| self.core.now() >= last) {
                        return Poll::Ready(());
                    }
                }
            }
        }
    }

    /// Sends the buffered bytes, and records the time since which the client accepts none.
    fn send(&self, cx: &mut Context<'_>) {
        let moved = self.flusher.flush(cx) > 0;
        let stuck = &self.shared.abuse_monitor.blocked_since;
        let since = stuck.get().filter(|_| !moved);
        stuck.set(self.flusher.has_unsent().then(|| since.unwrap_or_else(|| self.core.now())));
    }

    /// Decides whether the connection should end, and when to check again, as nothing more has arrived.
    /// Returns `true` if it is to be polled again.
    fn update_lifecycle(&mut self) -> bool {
        let now = self.core.tick();
        let settings = self.listener.settings();
        let watch = &self.shared.abuse_monitor;
        // Bytes that the socket has not accepted belong to some response; the time limit for that is below.
        let busy = self.shared.streams.get() > 0 || watch.blocked_since.get().is_some();
        if busy {
            (self.idle_from, self.drained_since) = (now, None);
            let needs = CONNECTION + self.shared.streams.get() * STREAM;
            if self.memory_reservation.bytes() >= 2 * needs {
                // One remaining stream does not hold the budget of an earlier burst. A decrease cannot fail.
                let _ = self.memory_reservation.set(&self.core.limits.memory, needs);
            }
        } else if now >= self.idle_from + IDLE_MEMORY_RELEASE {
            // A decrease cannot fail.
            let _ = self.memory_reservation.set(&self.core.limits.memory, CONNECTION);
        }
        let ending = self.core.stopping.get() || self.listener.is_closed();
        if ending && self.awaiting_first_request {
            self.first_request_deadline.get_or_insert_with(|| self.core.idle_deadline());
        }
        let awaited = self.first_request_deadline.filter(|until| self.awaiting_first_request && now < *until);
        let idle = self.idle_from + settings.timeouts.idle;
        let leaves = self.shared.draining.get() || watch.is_error_budget_spent();
        if !self.goaway_sent
            && self.final_deadline.is_none()
            && ((ending && awaited.is_none()) || leaves || (!busy && now >= idle))
        {
            // A first GOAWAY announces the end; after the client's acknowledgement, a second one names the
            // last stream that is served. Requests that the client sends in between are served, too.
            self.goaway_sent = true;
            self.connection.graceful_shutdown();
            return true;
        }
        if watch.closing.get() {
            self.final_deadline.get_or_insert(now + LINGER);
        }
        if self.goaway_sent && !busy {
            self.drained_since.get_or_insert(now);
        }
        // A client that still reads the bytes in transit sends a WINDOW_UPDATE at times; closing earlier
        // would lose them.
        let parted = self.drained_since.map(|since| {
            let grace = if ending { self.core.idle_grace.get() } else { LINGER };
            (since.max(watch.last_received()) + grace).min(since + settings.timeouts.body.max(grace))
        });
        // A client that does not accept the responses to its requests.
        let stuck = watch.blocked_since.get().map(|since| since + settings.timeouts.body);
        let over = [self.final_deadline, parted, stuck].into_iter().flatten().min();
        if over.is_some_and(|over| now >= over) {
            self.final_deadline = Some(now);
            return true;
        }
        let calm = (!busy && self.memory_reservation.bytes() > CONNECTION)
            .then(|| self.idle_from + IDLE_MEMORY_RELEASE);
        let idle = (!busy && !self.goaway_sent).then_some(awaited.map_or(idle, |awaited| awaited.min(idle)));
        // With streams in flight, the client may stop reading without a further call of this: checked at
        // times.
        let look = busy.then_some(now + settings.timeouts.body);
        self.timer.set([over, idle, look, calm].into_iter().flatten().min().unwrap_or(Time(u64::MAX)));
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
        // Logged or traced requests are read as text.
        if self.core.is_recording.get() {
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
        let refused = |respond, reason| {
            reject_early(&self.core, &self.listener, &self.peer, &head, respond, reason);
        };
        if let Some(origin) = &self.sni
            && heads::request_host(&head).is_some_and(|host| origin.is_misdirected(host))
        {
            return refused(respond, Reason::Misdirected);
        }
        let straight = self.passthrough_head(&head);
        let mut text = Vec::with_capacity(if straight.is_some() { 0 } else { 512 });
        let told = match websocket::connect_protocol(&head) {
            None if straight.is_some() => {
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
            Some(_) => return refused(respond, Reason::NotImplemented),
        };
        let Ok(framing) = told else { return refused(respond, Reason::BadRequest) };
        if self.shared.streams.get() >= 2 * MAX_CLIENT_STREAMS as usize {
            // Streams that the client has reset, and that a member still processes, count as well.
            return respond.send_reset(Code::REFUSED_STREAM);
        }
        let core = &self.core;
        if !self
            .memory_reservation
            .grow(&core.limits.memory, CONNECTION + (self.shared.streams.get() + 1) * STREAM)
        {
            return refused(respond, Reason::Memory);
        }
        if self.alert_state.should_leave(|| core.random_bits()) {
            self.shared.draining.set(true);
            self.shared.shedding.set(true);
        }
        let guest = StreamGuard::enter(&self.shared);
        let request = TextReader::new(text, framing, body);
        let mut inbound = InboundStream::new(guest, &head, request, respond);
        if let Some(found) = straight {
            let style = self.listener.settings().forwarded;
            inbound = inbound.with_passthrough(grpc_passthrough::into_passthrough_call(
                head,
                found,
                style,
                &self.shared.forwarded_fields,
            ));
        }
        let link = PeerConnection::Other(Box::new(inbound));
        let (core, listener) = (Rc::clone(&self.core), Rc::clone(&self.listener));
        let bond = match &self.binding {
            // Each request comes with its own cookie.
            Some(_) if listener.settings().affinity.is_some() => http::new_binding(&listener),
            bond => bond.clone(),
        };
        let client = Some(Rc::clone(&self.shared.client));
        let served = http::serve(core, listener, (link, self.peer, Vec::new()), bond, client, None);
        self.core.sessions.spawn(served);
    }
}
