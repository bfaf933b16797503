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
    pub(super) fn record_abandoned(&self, patience: Duration) {
        if self.connection.liveness.is_dead(patience, self.core.tick()) {
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
        let mut found = None;
        self.open.borrow_mut().retain(|wire| {
            if wire.is_closed_to_requests() {
                return false;
            }
            let mut sender = wire.sender.clone();
            match sender.poll_ready(&mut cx) {
                // The connection has ended, or accepts no more requests: the member has sent GOAWAY.
                Poll::Ready(Err(_)) => return false,
                Poll::Ready(Ok(()))
                    if wire.streams.get() < sender.current_max_send_streams().min(MAX_UPSTREAM_STREAMS) =>
                {
                    found = Some((Rc::clone(wire), sender));
                }
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
            true
        });
        let (wire, sender) = found?;
        wire.streams.set(wire.streams.get() + 1);
        Some(StreamSlot { core: Rc::clone(core), connection: wire, sender })
    }

    /// Closes the connections without requests since `oldest`.
    pub(crate) fn close_idle(&self, oldest: Time) {
        let kept = |wire: &H2Connection| {
            !wire.is_closed_to_requests() && (wire.streams.get() > 0 || wire.since.get() >= oldest)
        };
        self.open.borrow_mut().retain(|wire| kept(wire));
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
pub(crate) fn existing_stream(core: &Rc<ThreadContext>, trip: &InFlight) -> Option<PeerConnection> {
    Some(stream_to_member(trip.upstream.http2_pool.find_slot(core)?, trip))
}

fn stream_to_member(place: StreamSlot, trip: &InFlight) -> PeerConnection {
    PeerConnection::Other(Box::new(OutboundStream::new(place, trip)))
}

/// Returns a stream on a new connection if no existing one has room. Makes at most one connection: the code
/// that counts attempts and the retry budget decides about more.
///
/// # Errors
/// No connection could be made, or the member ended it before a request could be sent.
pub(crate) async fn reach(
    core: &Rc<ThreadContext>,
    trip: &InFlight,
    timer: &Timer,
    deadline: Time,
    peer: &PeerAddresses,
) -> Result<PeerConnection, Reason> {
    let wires = &trip.upstream.http2_pool;
    loop {
        let coming = wires.pending.borrow().as_ref().map(Rc::clone);
        let Some(coming) = coming else {
            let making = H2ConnectGuard { pool: wires, pending: Rc::default() };
            *wires.pending.borrow_mut() = Some(Rc::clone(&making.pending));
            let made = establish(core, trip, timer, deadline, peer).await.and_then(|wire| {
                wires.open.borrow_mut().push(wire);
                existing_stream(core, trip).ok_or(Reason::Reset)
            });
            // A waiting request may have more time than this one: then it makes an attempt itself.
            if !matches!(made, Err(Reason::TotalTimeout)) {
                making.pending.outcome.set(Some(made.as_ref().map(|_| ()).map_err(|reason| *reason)));
            }
            return made;
        };
        wait(core, trip, timer, deadline, &coming).await?;
        if let Some(stream) = existing_stream(core, trip) {
            return Ok(stream);
        }
    }
}

/// Waits for a connection that another request is making.
async fn wait(
    core: &ThreadContext,
    trip: &InFlight,
    timer: &Timer,
    deadline: Time,
    coming: &PendingConnection,
) -> Result<(), Reason> {
    timer.set(deadline.min(core.now() + trip.settings().timeouts.connect));
    let mut done = std::pin::pin!(coming.done.notified());
    poll_fn(|cx| match done.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(coming.outcome.take().map_or(Ok(()), |outcome| {
            // For the other waiting requests.
            coming.outcome.set(Some(outcome));
            outcome
        })),
        Poll::Pending if timer.fired() => {
            let late = core.tick() >= deadline;
            Poll::Ready(Err(if late { Reason::TotalTimeout } else { Reason::ConnectTimeout }))
        }
        Poll::Pending => Poll::Pending,
    })
    .await
}

/// Makes a connection, and starts the task that drives it.
async fn establish(
    core: &Rc<ThreadContext>,
    trip: &InFlight,
    timer: &Timer,
    deadline: Time,
    peer: &PeerAddresses,
) -> Result<Rc<H2Connection>, Reason> {
    let link = connect::connect_member(core, trip, timer, deadline, peer).await?;
    let secure = link.scheme() == "https";
    link.keepalive();
    let ear = Rc::new(ConnectionLiveness::new(core.now()));
    let met = Box::pin(handshake(link, core, &ear));
    let (sender, connection, outlet) =
        connect::with_connect_timeout(core, trip, timer, deadline, met).await?;
    let tether = Rc::new(DriverSignal::default());
    tokio::task::spawn_local(drive(Rc::clone(core), connection, outlet, Rc::clone(&tether)));
    Ok(Rc::new(H2Connection {
        sender,
        secure,
        streams: Cell::new(0),
        since: Cell::new(core.now()),
        liveness: ear,
        dead: Cell::new(false),
        driver: tether,
    }))
}

/// Drives a connection until it ends. Once it has no users it ends by itself. If the member does not read the
/// last frames, it is dropped after [`LINGER`].
async fn drive(
    core: Rc<ThreadContext>,
    mut connection: H2Driver,
    outlet: BatchFlusher<PeerConnection>,
    tether: Rc<DriverSignal>,
) {
    let mut timer: Option<Timer> = None;
    let ended = poll_fn(|cx| {
        let ended = poll_driver(&mut connection, &outlet, cx);
        if ended.is_ready() {
            return ended;
        }
        match &timer {
            Some(timer) if timer.fired() => {
                outlet.abort();
                return Poll::Ready(Ok(()));
            }
            Some(_) => {}
            None if tether.unused.get() => {
                let last = core.wheel.timer(cx.waker());
                last.set(core.tick() + LINGER);
                timer = Some(last);
            }
            // A task's waker never changes.
            None => {
                let waker = tether.waker.take().unwrap_or_else(|| cx.waker().clone());
                tether.waker.set(Some(waker));
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
    outlet: &BatchFlusher<PeerConnection>,
    cx: &mut Context<'_>,
) -> Poll<Result<(), h2::Error>> {
    let ended = Pin::new(connection).poll(cx);
    outlet.flush(cx);
    ended
}

/// Begins HTTP/2, and waits for the member's settings. Only they show how many streams it accepts, and that
/// it speaks HTTP/2 at all.
async fn handshake(
    link: PeerConnection,
    core: &Rc<ThreadContext>,
    ear: &Rc<ConnectionLiveness>,
) -> io::Result<(SendRequest<Bytes>, H2Driver, BatchFlusher<PeerConnection>)> {
    let (batch, outlet) = new_write_batch(link);
    let link = MonitoredConnection::new(batch, core, ear);
    let begun = Builder::new()
        .enable_push(false)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(MAX_FIELDS)
        .max_send_buffer_size(SEND_BUFFER)
        .max_local_error_reset_streams(Some(MAX_LOCAL_RESETS))
        .initial_max_send_streams(0)
        .handshake(link)
        .await;
    let (sender, mut connection) = begun.map_err(other)?;
    poll_fn(|cx| {
        let ended = poll_driver(&mut connection, &outlet, cx);
        if sender.current_max_send_streams() > 0 {
            return Poll::Ready(Ok::<(), io::Error>(()));
        }
        ready!(ended).map_err(other)?;
        Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()))
    })
    .await?;
    Ok((sender, connection, outlet))
}

fn other(error: h2::Error) -> io::Error {
    if error.is_io() {
        error.into_io().unwrap_or_else(|| io::ErrorKind::Other.into())
    } else {
        io::Error::other(error)
    }
}
