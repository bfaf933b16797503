//! HTTP/1.0 and 1.1, and the content of HTTP/2 streams ([`http2`]). A member is chosen for each request, or
//! for each client connection ([`bound_connection`]).
//!
//! One task per client connection. It reads a head into the core's shared buffer, checks and rewrites it in
//! place, has a member chosen ([`dispatch`]), and relays both bodies as they arrive ([`exchange`]). Between
//! requests, a connection owns no buffer.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use plimsoll_wire::http1::{self, ForwardingOptions, HeadError, MethodClass, RequestRejection};

use crate::listener::session_binding::SessionBinding;
use crate::listener::{ConnectionGuard, Listener};
use crate::net::byte_stream::ByteStream;
use crate::net::reason::Reason;
use crate::protocol::http2;
use crate::runtime::memory::MemoryReservation;
use crate::runtime::timer_wheel::Timer;
use crate::upstream::connect::PeerAddresses;
use crate::upstream::pool::PlanView;
use crate::upstream::request_record::RequestRecord;
use crate::upstream::side_car::{AlertState, MeterGuard};
use crate::upstream::thread_context::ThreadContext;
use crate::{BindingMode, ForwardedHeaders, HashKeySource, ListenerSettings};

mod bound_connection;
mod dispatch;
mod exchange;
mod grpc_passthrough;
mod local_reply;
mod outcome;
mod parsed_request;
mod routing;
mod shed_clients;
mod sticky_cookie;
#[cfg(test)]
mod tests;

pub(crate) use local_reply::local_response;
use parsed_request::{ParsedRequest, RequestExtras};
pub use routing::{RequestExplanation, RouteOutcome, explain_request};

/// The description of a client for members, made once for all requests of a connection.
pub(crate) struct ClientDescription {
    /// The client's address.
    pub(crate) text: Box<str>,
    /// The header lines about the client in the usual case.
    fields: Box<[u8]>,
}

impl ClientDescription {
    /// Creates the description. `scheme` is that of the client's connection, `http` or `https`.
    pub(crate) fn new(peer: &PeerAddresses, scheme: &str) -> Rc<Self> {
        let text = peer.client.ip().to_canonical().to_string().into_boxed_str();
        let fields = http1::x_forwarded(&text, scheme).into_boxed_slice();
        Rc::new(Self { text, fields })
    }
}

/// A client connection between and during requests.
struct HttpSession<S> {
    core: Rc<ThreadContext>,
    /// The listener of the connection; while a request is handled, the alternate for its route's group.
    listener: Rc<Listener>,
    stream: S,
    /// Whether the task is registered to be woken when the client sends. See [`ByteStream::poll_recv`].
    watched: bool,
    peer: PeerAddresses,
    client: Rc<ClientDescription>,
    /// Bytes that follow the current request, or the beginning of a head.
    unread: Vec<u8>,
    /// The memory for `unread`, and for the bytes that an exchange buffers for a side that does not accept
    /// them.
    memory_reservation: MemoryReservation,
    timer: Timer,
    /// Whether the balancer answered the last request without a member.
    answered_locally: bool,
    /// The number of requests so far.
    served_requests: u32,
    /// The binding to a member, unless one is chosen for each request.
    binding: Option<Rc<RefCell<SessionBinding>>>,
    alert_state: AlertState,
    /// The listener's guard of the connection; `None` for a stream of a connection that has one.
    connection_guard: Option<ConnectionGuard>,
}

enum NextRequest {
    Request(ParsedRequest),
    /// The client speaks HTTP/2: the bytes are in `unread`.
    Http2,
    Refused(Reason),
    /// The client speaks another protocol.
    NotHttp,
    /// The client is done or idle for too long, or the balancer stops.
    Closed,
}

/// The reason why a connection has no next request. Smaller than [`NextRequest`], which no connection should
/// keep.
enum SessionEnd {
    /// The connection continues in HTTP/2.
    Http2,
    Refused(Reason),
    /// The client would not understand a response.
    NotHttp,
    Closed,
}

/// Serves one client connection until it ends.
///
/// - `unread`: bytes that were already read from it.
/// - `bond`: its own binding ([`bound_connection`]), or that of the HTTP/2 connection of which it is a
///   stream.
/// - `client`: the HTTP/2 connection's description of the client, for such a stream.
/// - `visit`: the listener's guard, unless it is such a stream.
pub(crate) fn serve<S: ByteStream + 'static>(
    core: Rc<ThreadContext>,
    listener: Rc<Listener>,
    (stream, peer, unread): (S, PeerAddresses, Vec<u8>),
    binding: Option<Rc<RefCell<SessionBinding>>>,
    client: Option<Rc<ClientDescription>>,
    connection_guard: Option<ConnectionGuard>,
) -> impl Future<Output = ()> + use<S> {
    let client = client.unwrap_or_else(|| ClientDescription::new(&peer, stream.scheme()));
    let alert_state = AlertState::begin(listener.pool().group.side_car.as_ref());
    let timer = core.wheel.timer_without_task();
    let (watched, answered_locally, memory_reservation) = (false, false, MemoryReservation::default());
    let mut session = HttpSession {
        core,
        listener,
        stream,
        watched,
        peer,
        client,
        unread,
        memory_reservation,
        timer,
        answered_locally,
        served_requests: 0,
        binding,
        alert_state,
        connection_guard,
    };
    // The session is all that the future keeps while the connection is idle. An `async` function would also
    // keep its arguments and what is moved out of them.
    async move {
        poll_fn(|cx: &mut Context<'_>| {
            session.timer.set_waker(cx.waker());
            Poll::Ready(())
        })
        .await;
        let session_end = loop {
            // A request is large: it stays in place until it is answered.
            let next = async {
                let core = Rc::clone(&session.core);
                session.next_request(&core).await
            };
            let keep_alive = match &mut next.await {
                NextRequest::Request(request) => session.handle_request(request).await,
                NextRequest::Http2 if session.served_requests == 0 => break SessionEnd::Http2,
                // The HTTP/2 preface is not valid after a request.
                NextRequest::Http2 => break SessionEnd::Refused(Reason::Version),
                NextRequest::NotHttp if session.served_requests == 0 => break SessionEnd::NotHttp,
                NextRequest::NotHttp => break SessionEnd::Refused(Reason::BadRequest),
                NextRequest::Refused(reason) => break SessionEnd::Refused(*reason),
                NextRequest::Closed => break SessionEnd::Closed,
            };
            if !keep_alive {
                return;
            }
            // A client that pipelines may never let this task wait, above all if the balancer answers itself.
            session.served_requests = session.served_requests.wrapping_add(1);
            if session.answered_locally || session.served_requests.is_multiple_of(YIELD_INTERVAL) {
                tokio::task::yield_now().await;
            }
        };
        match session_end {
            SessionEnd::Http2 => {
                let HttpSession { core, listener, stream, peer, unread, connection_guard, .. } = session;
                http2::serve_connection(core, listener, stream, peer, unread, connection_guard);
            }
            SessionEnd::Refused(reason) => session.reject_invalid(reason).await,
            SessionEnd::NotHttp => session.close_without_response(Reason::BadRequest).await,
            SessionEnd::Closed => session.stream.part(),
        }
    }
}

/// Creates the binding of a client connection, if this listener binds its clients. With cookies, it stays
/// empty.
pub(crate) fn new_binding(listener: &Listener) -> Option<Rc<RefCell<SessionBinding>>> {
    let settings = listener.settings();
    (settings.binding != BindingMode::PerRequest || settings.affinity.is_some()).then(Rc::default)
}

impl<S: ByteStream> HttpSession<S> {
    /// Reads the next request head.
    async fn next_request(&mut self, core: &ThreadContext) -> NextRequest {
        let settings = self.listener.settings();
        self.timer.set(
            core.now() + if self.unread.is_empty() { settings.timeouts.idle } else { settings.timeouts.head },
        );
        let mut has_new_bytes = !self.unread.is_empty();
        let mut shutdown_seen = false;
        poll_fn(|cx| self.poll_next(core, cx, &settings, &mut has_new_bytes, &mut shutdown_seen)).await
    }

    fn poll_next(
        &mut self,
        core: &ThreadContext,
        cx: &mut Context<'_>,
        settings: &ListenerSettings,
        has_new_bytes: &mut bool,
        shutdown_seen: &mut bool,
    ) -> Poll<NextRequest> {
        if self.timer.fired() {
            return Poll::Ready(match self.unread.is_empty() {
                true => NextRequest::Closed,
                false => NextRequest::Refused(Reason::ClientTimeout),
            });
        }
        if let Some((call, ended)) = self.stream.http2_request().and_then(|client| client.take_call()) {
            return Poll::Ready(NextRequest::Request(self.begin_passthrough(cx, call, ended)));
        }
        core.with_buffers(|buffer, _| {
            let mut filled = self.unread.len();
            if filled > 0 {
                buffer[..filled].copy_from_slice(&self.unread);
            }
            loop {
                if std::mem::take(has_new_bytes) {
                    match self.parse_head(core, &buffer[..filled], settings) {
                        Ok(Some(request)) => {
                            self.memory_reservation.clear();
                            return Poll::Ready(NextRequest::Request(request));
                        }
                        Ok(None) => {}
                        Err(_) if http2::is_preface(&buffer[..filled]) => {
                            self.unread.clear();
                            self.unread.extend_from_slice(&buffer[..filled]);
                            return Poll::Ready(NextRequest::Http2);
                        }
                        Err(_) if http1::is_foreign_protocol(&buffer[..filled]) => {
                            return Poll::Ready(NextRequest::NotHttp);
                        }
                        Err(rejection) => {
                            return Poll::Ready(NextRequest::Refused(rejection_reason(rejection)));
                        }
                    }
                }
                match self.stream.poll_recv(cx, &mut buffer[filled..], &mut self.watched) {
                    Poll::Ready(Ok(received)) if received > 0 => {
                        filled += received;
                        *has_new_bytes = true;
                    }
                    Poll::Ready(_) => return Poll::Ready(NextRequest::Closed),
                    Poll::Pending => break,
                }
            }
            if filled > self.unread.len() {
                if self.unread.is_empty() {
                    self.timer.set(core.tick() + settings.timeouts.head);
                }
                self.unread.clear();
                self.unread.extend_from_slice(&buffer[..filled]);
                if !self.memory_reservation.set(&core.limits.memory, self.unread.capacity()) {
                    return Poll::Ready(NextRequest::Refused(Reason::Memory));
                }
            }
            if self.is_last_request() && self.unread.is_empty() && !std::mem::replace(shutdown_seen, true) {
                self.timer.set(core.idle_deadline());
            }
            Poll::Pending
        })
    }

    /// Parses and rewrites the head at the beginning of `input`, if it is complete.
    fn parse_head(
        &mut self,
        core: &ThreadContext,
        input: &[u8],
        settings: &ListenerSettings,
    ) -> Result<Option<ParsedRequest>, RequestRejection> {
        // Lives longer than the request, which may refer to it.
        let new_target = OnceCell::new();
        let mut marks = core.marked_fields.borrow_mut();
        // Not moved out: it is large.
        let mut parse_result = http1::request(input, settings.max_head, &mut marks);
        let request = match &mut parse_result {
            Ok(request) => request,
            Err(HeadError::Partial) => return Ok(None),
            Err(HeadError::Invalid(rejection)) => return Err(*rejection),
        };
        // An upgrade that is not allowed continues as an ordinary request.
        request.upgrade = request.upgrades_to(|name| settings.upgrades_to(name));
        let trusted = trusts_forwarded(settings, &self.peer);
        // Not those of the settings: these may be older than the request.
        let received_target = request.target;
        let route = match self.listener.has_routes() {
            false => None,
            true => self.select_route(request, &new_target, trusted)?,
        };
        let started_at = core.tick();
        let mut out = core.take_vector();
        request.write(
            &ForwardingOptions {
                style: forwarded_style(settings),
                trusted,
                client: &self.client.text,
                plain: &self.client.fields,
                scheme: self.stream.scheme(),
            },
            &mut out,
        );
        let mut record = RequestRecord::begin(core, request, &mut out);
        if let Some(record) = &mut record {
            // The log has what the client sent.
            record.set_target(received_target);
        }
        let (mut body, mut trailers) = (request.body, request.trailers());
        let rest = &input[request.len..];
        let mut unparsed = rest;
        let mut body_started = false;
        if !rest.is_empty() {
            let forwarded = trailers.pass(&mut body, rest, &mut out, |_, _| true);
            let forwarded = forwarded.map_err(|error| RequestRejection::Malformed(error.0))?;
            if forwarded.unchanged {
                out.extend_from_slice(&rest[..forwarded.consumed]);
            }
            unparsed = &rest[forwarded.consumed..];
            body_started = forwarded.consumed > 0;
        }
        let view = self.listener.view();
        let parsed_request = ParsedRequest {
            method: request.method,
            outgoing: out,
            body,
            trailers,
            body_started,
            streamed: false,
            retry_allowed: false,
            keep_alive: request.keep_alive,
            http10: request.http10,
            upgrade: request.upgrade,
            key: self.key(request, &view),
            started_at,
            view,
            extras: RequestExtras::new(record, route),
            meter: MeterGuard::default(),
            passthrough_call: None,
            wait_urgency: Cell::default(),
            waited: Cell::default(),
        };
        self.unread.clear();
        if !unparsed.is_empty() {
            self.unread.extend_from_slice(unparsed);
        }
        Ok(Some(parsed_request))
    }

    /// Returns `true` if this request is the last of its connection, because the process stops or the
    /// listener is closed.
    fn is_last_request(&self) -> bool {
        self.core.stopping.get() || self.listener.is_closed()
    }

    /// Returns the key for the choice of a member, if the strategy reads it.
    fn key(&self, request: &http1::RequestHead<'_, '_>, view: &PlanView) -> u64 {
        if !view.published.plan.strategy().reads_key {
            return 0;
        }
        let client = || crate::settings::hash_key::client_key(self.peer.client.ip());
        match &view.published.settings.key {
            HashKeySource::Client => client(),
            HashKeySource::Path => {
                plimsoll_brain::hash(request.target.split(|byte| *byte == b'?').next().unwrap_or_default())
            }
            HashKeySource::Header(name) => request.field(name).map_or_else(client, plimsoll_brain::hash),
            HashKeySource::Cookie(name) => request.cookie(name).map_or_else(client, plimsoll_brain::hash),
        }
    }

    /// Writes all of `bytes`; returns `false` if the client accepts none of them for too long.
    async fn send(&mut self, bytes: &[u8]) -> bool {
        let timeout = self.listener.settings().timeouts.body;
        self.timer.set(self.core.now() + timeout);
        let mut sent = 0;
        poll_fn(|cx| {
            while sent < bytes.len() {
                if self.timer.fired() {
                    return Poll::Ready(false);
                }
                match ready!(Pin::new(&mut self.stream).poll_write(cx, &bytes[sent..])) {
                    Ok(written) if written > 0 => {
                        sent += written;
                        self.timer.set(self.core.now() + timeout);
                    }
                    _ => return Poll::Ready(false),
                }
            }
            Poll::Ready(true)
        })
        .await
    }

    /// Closes in such a way that the client can read the response even while it is still sending (RFC 9112
    /// section 9.6). Shuts down the sending side, and reads until the client has closed as well, or is silent
    /// for [`SILENCE`], for at most [`LINGER`]. Closing with unread bytes would reset the connection, and the
    /// response might be lost.
    async fn linger(&mut self) {
        let started_at = self.core.now();
        // A stream of HTTP/2 can end without a loss: this only spares the client an upload that is discarded.
        let mut deadline = started_at + if self.stream.is_multiplexed() { http2::LINGER } else { LINGER };
        self.timer.set(deadline.min(started_at + LINGER_IDLE_TIMEOUT));
        let (mut shutdown_started, mut shutdown_seen) = (false, false);
        poll_fn(|cx| {
            if !shutdown_started {
                shutdown_started = true;
                // A socket's shutdown does not block; one that fails changes nothing.
                let _ = Pin::new(&mut self.stream).poll_shutdown(cx);
            }
            let core = Rc::clone(&self.core);
            if self.is_last_request() && !std::mem::replace(&mut shutdown_seen, true) {
                // A process that stops waits for this connection no longer than for others.
                deadline = deadline.min(core.idle_deadline());
                self.timer.set(deadline.min(core.now() + LINGER_IDLE_TIMEOUT));
            }
            core.with_buffers(|buffer, _| {
                for _ in 0..YIELD_INTERVAL {
                    match self.stream.poll_recv(cx, buffer, &mut self.watched) {
                        Poll::Ready(Ok(received)) if received > 0 => {}
                        Poll::Ready(_) => return Poll::Ready(()),
                        Poll::Pending if self.timer.fired() => return Poll::Ready(()),
                        Poll::Pending => return Poll::Pending,
                    }
                    let now = core.tick();
                    if now >= deadline {
                        return Poll::Ready(());
                    }
                    self.timer.set(deadline.min(now + LINGER_IDLE_TIMEOUT));
                }
                // A client that sends without end lets other tasks run.
                cx.waker().wake_by_ref();
                Poll::Pending
            })
        })
        .await;
    }
}

/// Returns the form of the headers that identify the client.
#[inline]
fn forwarded_style(settings: &ListenerSettings) -> http1::ForwardedStyle {
    match settings.forwarded {
        ForwardedHeaders::XForwarded => http1::ForwardedStyle::XForwarded,
        ForwardedHeaders::Rfc7239 => http1::ForwardedStyle::Rfc7239,
        ForwardedHeaders::Off => http1::ForwardedStyle::Off,
    }
}

/// Returns `true` if the client's statements about the original client are trusted.
#[inline]
pub(crate) fn trusts_forwarded(settings: &ListenerSettings, peer: &PeerAddresses) -> bool {
    !settings.trusted.is_empty() && {
        let client_ip = peer.client.ip().to_canonical();
        settings.trusted.iter().any(|net| net.contains(&client_ip))
    }
}

/// The number of requests of one connection before other tasks run.
const YIELD_INTERVAL: u32 = 16;
/// The maximum time for which a client may continue to send after its connection was closed.
const LINGER: Duration = Duration::from_secs(30);
/// The maximum time of silence meanwhile.
const LINGER_IDLE_TIMEOUT: Duration = Duration::from_secs(5);

fn rejection_reason(rejection: RequestRejection) -> Reason {
    match rejection {
        RequestRejection::Malformed(_) => Reason::BadRequest,
        RequestRejection::TargetTooLong => Reason::TargetTooLong,
        RequestRejection::Expectation => Reason::Expectation,
        RequestRejection::HeadTooLarge => Reason::HeadTooLarge,
        RequestRejection::NotImplemented(_) => Reason::NotImplemented,
        RequestRejection::Version => Reason::Version,
    }
}
