//! A pool of HTTP/2 connections to one member, each shared by many requests.
//!
//! A request uses the newest connection with a free stream. The member limits the number of concurrent
//! streams, and this pool opens no more than [`MAX_UPSTREAM_STREAMS`]. If no stream is free, another
//! connection is made; all requests that need one meanwhile wait for it.
//!
//! A connection without requests for `pool_idle` is closed. A dead connection gets no new requests
//! ([`ConnectionLiveness`]); no pings are sent. A connection that gets no more requests ends once its last
//! frames were sent; a member that does not read them has [`LINGER`] for it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use plimsoll_brain::Time;
use tokio::sync::Notify;

use super::liveness::{ConnectionLiveness, MAX_LOCAL_RESETS, MonitoredConnection};
use super::outbound::OutboundStream;
use super::write_batch::{BatchFlusher, new_write_batch};
use super::{CONNECTION_WINDOW, LINGER, SEND_BUFFER, STREAM_WINDOW};
use crate::net::byte_stream::ByteStream as _;
use crate::net::connection::PeerConnection;
use crate::net::reason::Reason;
use crate::runtime::timer_wheel::Timer;
use crate::upstream::connect::{self, PeerAddresses};
use crate::upstream::in_flight::InFlight;
use crate::upstream::thread_context::ThreadContext;

/// The maximum number of streams on one connection, whatever the member permits: a lost packet delays all of
/// them.
pub(super) const MAX_UPSTREAM_STREAMS: usize = 250;
/// The maximum size of a response's fields, in bytes.
const MAX_FIELDS: u32 = 64 * 1024;

/// One core's connections to one member.
#[derive(Default)]
pub(crate) struct H2Pool {
    open: RefCell<Vec<Rc<H2Connection>>>,
    /// The connection attempt in progress.
    pending: RefCell<Option<Rc<PendingConnection>>>,
}

/// A connection.
struct H2Connection {
    sender: SendRequest<Bytes>,
    secure: bool,
    streams: Cell<usize>,
    /// The time since which there are no streams.
    since: Cell<Time>,
    liveness: Rc<ConnectionLiveness>,
    /// Whether the connection is considered dead.
    dead: Cell<bool>,
    driver: Rc<DriverSignal>,
}

/// The link between a connection's task and its users.
#[derive(Default)]
struct DriverSignal {
    /// Whether no user is left.
    unused: Cell<bool>,
    /// The waker of the connection's task.
    waker: Cell<Option<Waker>>,
}

impl Drop for H2Connection {
    fn drop(&mut self) {
        self.driver.unused.set(true);
        if let Some(waker) = self.driver.waker.take() {
            waker.wake();
        }
    }
}

impl H2Connection {
    /// Returns `true` if the connection gets no more requests.
    fn is_closed_to_requests(&self) -> bool {
        self.dead.get() || self.liveness.error_budget.is_spent()
    }
}

/// A connection attempt in progress.
#[derive(Default)]
struct PendingConnection {
    done: Notify,
    /// The result; `None` during the attempt, or if its request abandoned it.
    outcome: Cell<Option<Result<(), Reason>>>,
}

/// A slot for one stream on a connection.
pub(super) struct StreamSlot {
    core: Rc<ThreadContext>,
    connection: Rc<H2Connection>,
    sender: SendRequest<Bytes>,
}

impl StreamSlot {
    pub(super) fn sender(&mut self) -> &mut SendRequest<Bytes> {
        &mut self.sender
    }

    /// Returns `true` for TLS.
    pub(super) fn is_secure(&self) -> bool {
        self.connection.secure
    }

    /// Records that the request was sent.
    pub(super) fn record_request(&self) {
        self.connection.liveness.record_request(self.core.now());
    }

    /// Records that the response is no longer awaited. `patience` is the maximum time without any bytes from
    /// a member.
    pub(super) fn record_abandoned(&self, silence_limit: Duration) {
        if self.connection.liveness.is_dead(silence_limit, self.core.tick()) {
            self.connection.dead.set(true);
        }
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.connection.streams.set(self.connection.streams.get() - 1);
        self.connection.since.set(self.core.now());
    }
}

impl H2Pool {
    /// Returns a slot on an existing connection.
    fn find_slot(&self, core: &Rc<ThreadContext>) -> Option<StreamSlot> {
        let mut cx = Context::from_waker(Waker::noop());
        let mut available = None;
        self.open.borrow_mut().retain(|connection| {
            if connection.is_closed_to_requests() {
                return false;
            }
            let mut sender = connection.sender.clone();
            match sender.poll_ready(&mut cx) {
                // The connection has ended, or accepts no more requests: the member has sent GOAWAY.
                Poll::Ready(Err(_)) => return false,
                Poll::Ready(Ok(()))
                    if connection.streams.get()
                        < sender.current_max_send_streams().min(MAX_UPSTREAM_STREAMS) =>
                {
                    available = Some((Rc::clone(connection), sender));
                }
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
            true
        });
        let (connection, sender) = available?;
        connection.streams.set(connection.streams.get() + 1);
        Some(StreamSlot { core: Rc::clone(core), connection, sender })
    }

    /// Closes the connections without requests since `oldest`.
    pub(crate) fn close_idle(&self, unused_since: Time) {
        let should_keep = |connection: &H2Connection| {
            !connection.is_closed_to_requests()
                && (connection.streams.get() > 0 || connection.since.get() >= unused_since)
        };
        self.open.borrow_mut().retain(|connection| should_keep(connection));
    }

    /// Sends no more requests on the existing connections: each ends with its requests in flight.
    pub(crate) fn retire_all(&self) {
        self.open.borrow_mut().clear();
    }
}

/// Clears the attempt on drop, and notifies the requests that wait for its result.
struct H2ConnectGuard<'a> {
    pool: &'a H2Pool,
    pending: Rc<PendingConnection>,
}

impl Drop for H2ConnectGuard<'_> {
    fn drop(&mut self) {
        self.pool.pending.take();
        self.pending.done.notify_waiters();
    }
}

/// Returns a stream to the member of the request in flight on an existing connection.
#[inline(never)]
pub(crate) fn existing_stream(core: &Rc<ThreadContext>, in_flight: &InFlight) -> Option<PeerConnection> {
    Some(stream_to_member(in_flight.upstream.http2_pool.find_slot(core)?, in_flight))
}

fn stream_to_member(slot: StreamSlot, in_flight: &InFlight) -> PeerConnection {
    PeerConnection::Other(Box::new(OutboundStream::new(slot, in_flight)))
}

/// Returns a stream on a new connection if no existing one has room. Makes at most one connection: the code
/// that counts attempts and the retry budget decides about more.
///
/// # Errors
/// No connection could be made, or the member ended it before a request could be sent.
pub(crate) async fn reach(
    core: &Rc<ThreadContext>,
    in_flight: &InFlight,
    timer: &Timer,
    deadline: Time,
    peer: &PeerAddresses,
) -> Result<PeerConnection, Reason> {
    let pool = &in_flight.upstream.http2_pool;
    loop {
        let pending = pool.pending.borrow().as_ref().map(Rc::clone);
        let Some(pending) = pending else {
            let connect_guard = H2ConnectGuard { pool, pending: Rc::default() };
            *pool.pending.borrow_mut() = Some(Rc::clone(&connect_guard.pending));
            let result = establish(core, in_flight, timer, deadline, peer).await.and_then(|connection| {
                pool.open.borrow_mut().push(connection);
                existing_stream(core, in_flight).ok_or(Reason::Reset)
            });
            // A waiting request may have more time than this one: then it makes an attempt itself.
            if !matches!(result, Err(Reason::TotalTimeout)) {
                connect_guard
                    .pending
                    .outcome
                    .set(Some(result.as_ref().map(|_| ()).map_err(|reason| *reason)));
            }
            return result;
        };
        wait(core, in_flight, timer, deadline, &pending).await?;
        if let Some(stream) = existing_stream(core, in_flight) {
            return Ok(stream);
        }
    }
}

/// Waits for a connection that another request is making.
async fn wait(
    core: &ThreadContext,
    in_flight: &InFlight,
    timer: &Timer,
    deadline: Time,
    pending: &PendingConnection,
) -> Result<(), Reason> {
    timer.set(deadline.min(core.now() + in_flight.settings().timeouts.connect));
    let mut done = std::pin::pin!(pending.done.notified());
    poll_fn(|cx| match done.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(pending.outcome.take().map_or(Ok(()), |outcome| {
            // For the other waiting requests.
            pending.outcome.set(Some(outcome));
            outcome
        })),
        Poll::Pending if timer.fired() => {
            let is_late = core.tick() >= deadline;
            Poll::Ready(Err(if is_late { Reason::TotalTimeout } else { Reason::ConnectTimeout }))
        }
        Poll::Pending => Poll::Pending,
    })
    .await
}

/// Makes a connection, and starts the task that drives it.
async fn establish(
    core: &Rc<ThreadContext>,
    in_flight: &InFlight,
    timer: &Timer,
    deadline: Time,
    peer: &PeerAddresses,
) -> Result<Rc<H2Connection>, Reason> {
    let stream = connect::connect_member(core, in_flight, timer, deadline, peer).await?;
    let secure = stream.scheme() == "https";
    stream.keepalive();
    let liveness = Rc::new(ConnectionLiveness::new(core.now()));
    let handshake_future = Box::pin(handshake(stream, core, &liveness));
    let (sender, connection, flusher) =
        connect::with_connect_timeout(core, in_flight, timer, deadline, handshake_future).await?;
    let driver_signal = Rc::new(DriverSignal::default());
    tokio::task::spawn_local(drive(Rc::clone(core), connection, flusher, Rc::clone(&driver_signal)));
    Ok(Rc::new(H2Connection {
        sender,
        secure,
        streams: Cell::new(0),
        since: Cell::new(core.now()),
        liveness,
        dead: Cell::new(false),
        driver: driver_signal,
    }))
}

/// Drives a connection until it ends. Once it has no users it ends by itself. If the member does not read the
/// last frames, it is dropped after [`LINGER`].
async fn drive(
    core: Rc<ThreadContext>,
    mut connection: H2Driver,
    flusher: BatchFlusher<PeerConnection>,
    driver_signal: Rc<DriverSignal>,
) {
    let mut timer: Option<Timer> = None;
    let ended = poll_fn(|cx| {
        let ended = poll_driver(&mut connection, &flusher, cx);
        if ended.is_ready() {
            return ended;
        }
        match &timer {
            Some(timer) if timer.fired() => {
                flusher.abort();
                return Poll::Ready(Ok(()));
            }
            Some(_) => {}
            None if driver_signal.unused.get() => {
                let linger_timer = core.wheel.timer(cx.waker());
                linger_timer.set(core.tick() + LINGER);
                timer = Some(linger_timer);
            }
            // A task's waker never changes.
            None => {
                let waker = driver_signal.waker.take().unwrap_or_else(|| cx.waker().clone());
                driver_signal.waker.set(Some(waker));
            }
        }
        Poll::Pending
    });
    if let Err(error) = ended.await {
        tracing::debug!("a member's connection ended: {error}");
    }
}

type H2Driver = h2::client::Connection<MonitoredConnection, Bytes>;

/// Drives a connection as far as possible.
fn poll_driver(
    connection: &mut H2Driver,
    flusher: &BatchFlusher<PeerConnection>,
    cx: &mut Context<'_>,
) -> Poll<Result<(), h2::Error>> {
    let ended = Pin::new(connection).poll(cx);
    flusher.flush(cx);
    ended
}

/// Begins HTTP/2, and waits for the member's settings. Only they show how many streams it accepts, and that
/// it speaks HTTP/2 at all.
async fn handshake(
    stream: PeerConnection,
    core: &Rc<ThreadContext>,
    liveness: &Rc<ConnectionLiveness>,
) -> io::Result<(SendRequest<Bytes>, H2Driver, BatchFlusher<PeerConnection>)> {
    let (batched, flusher) = new_write_batch(stream);
    let monitored = MonitoredConnection::new(batched, core, liveness);
    let handshake_result = Builder::new()
        .enable_push(false)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(MAX_FIELDS)
        .max_send_buffer_size(SEND_BUFFER)
        .max_local_error_reset_streams(Some(MAX_LOCAL_RESETS))
        .initial_max_send_streams(0)
        .handshake(monitored)
        .await;
    let (sender, mut connection) = handshake_result.map_err(to_io_error)?;
    poll_fn(|cx| {
        let ended = poll_driver(&mut connection, &flusher, cx);
        if sender.current_max_send_streams() > 0 {
            return Poll::Ready(Ok::<(), io::Error>(()));
        }
        ready!(ended).map_err(to_io_error)?;
        Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()))
    })
    .await?;
    Ok((sender, connection, flusher))
}

fn to_io_error(error: h2::Error) -> io::Error {
    if error.is_io() {
        error.into_io().unwrap_or_else(|| io::ErrorKind::Other.into())
    } else {
        io::Error::other(error)
    }
}
