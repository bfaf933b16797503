//! A pool of HTTP/2 connections to one member, each shared by many requests.
//!
//! A request uses the newest connection with a free stream. The member limits the number of concurrent
//! streams, and this pool opens no more than [`MOST`]. If no stream is free, another connection is made; all
//! requests that need one meanwhile wait for it.
//!
//! A connection without requests for `pool_idle` is closed. A dead connection gets no new requests ([`Ear`]);
//! no pings are sent. A connection that gets no more requests ends once its last frames were sent; a member
//! that does not read them has [`LINGER`] for it.

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

use super::batch::{Outlet, batch};
use super::ear::{Ear, Heard, RESET_BY_US};
use super::outbound::Outbound;
use super::{CONNECTION_WINDOW, LINGER, SEND_BUFFER, STREAM_WINDOW};
use crate::connect::{self, Peer};
use crate::core::Core;
use crate::link::Link;
use crate::reason::Reason;
use crate::stream::Stream as _;
use crate::trip::Trip;
use crate::wheel::Timer;

/// The maximum number of streams on one connection, whatever the member permits: a lost packet delays all of
/// them.
pub(super) const MOST: usize = 250;
/// The maximum size of a response's fields, in bytes.
const MAX_FIELDS: u32 = 64 * 1024;

/// One core's connections to one member.
#[derive(Default)]
pub(crate) struct Wires {
    open: RefCell<Vec<Rc<Wire>>>,
    /// The connection attempt in progress.
    coming: RefCell<Option<Rc<Coming>>>,
}

/// A connection.
struct Wire {
    sender: SendRequest<Bytes>,
    secure: bool,
    streams: Cell<usize>,
    /// The time since which there are no streams.
    since: Cell<Time>,
    ear: Rc<Ear>,
    /// Whether the connection is considered dead.
    dead: Cell<bool>,
    tether: Rc<Tether>,
}

/// The link between a connection's task and its users.
#[derive(Default)]
struct Tether {
    /// Whether no user is left.
    loose: Cell<bool>,
    /// The waker of the connection's task.
    waker: Cell<Option<Waker>>,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.tether.loose.set(true);
        if let Some(waker) = self.tether.waker.take() {
            waker.wake();
        }
    }
}

impl Wire {
    /// Returns `true` if the connection gets no more requests.
    fn over(&self) -> bool {
        self.dead.get() || self.ear.wear.worn()
    }
}

/// A connection attempt in progress.
#[derive(Default)]
struct Coming {
    done: Notify,
    /// The result; `None` during the attempt, or if its request abandoned it.
    outcome: Cell<Option<Result<(), Reason>>>,
}

/// A slot for one stream on a connection.
pub(super) struct Place {
    core: Rc<Core>,
    wire: Rc<Wire>,
    sender: SendRequest<Bytes>,
}

impl Place {
    pub(super) fn sender(&mut self) -> &mut SendRequest<Bytes> {
        &mut self.sender
    }

    /// Returns `true` for TLS.
    pub(super) fn secure(&self) -> bool {
        self.wire.secure
    }

    /// Records that the request was sent.
    pub(super) fn asked(&self) {
        self.wire.ear.ask(self.core.now());
    }

    /// Records that the response is no longer awaited. `patience` is the maximum time without any bytes from
    /// a member.
    pub(super) fn gave_up(&self, patience: Duration) {
        if self.wire.ear.in_vain(patience, self.core.tick()) {
            self.wire.dead.set(true);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.wire.streams.set(self.wire.streams.get() - 1);
        self.wire.since.set(self.core.now());
    }
}

impl Wires {
    /// Returns a slot on an existing connection.
    fn place(&self, core: &Rc<Core>) -> Option<Place> {
        let mut cx = Context::from_waker(Waker::noop());
        let mut found = None;
        self.open.borrow_mut().retain(|wire| {
            if wire.over() {
                return false;
            }
            let mut sender = wire.sender.clone();
            match sender.poll_ready(&mut cx) {
                // The connection has ended, or accepts no more requests: the member has sent GOAWAY.
                Poll::Ready(Err(_)) => return false,
                Poll::Ready(Ok(())) if wire.streams.get() < sender.current_max_send_streams().min(MOST) => {
                    found = Some((Rc::clone(wire), sender));
                }
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
            true
        });
        let (wire, sender) = found?;
        wire.streams.set(wire.streams.get() + 1);
        Some(Place { core: Rc::clone(core), wire, sender })
    }

    /// Closes the connections without requests since `oldest`.
    pub(crate) fn sweep(&self, oldest: Time) {
        let kept = |wire: &Wire| !wire.over() && (wire.streams.get() > 0 || wire.since.get() >= oldest);
        self.open.borrow_mut().retain(|wire| kept(wire));
    }

    /// Sends no more requests on the existing connections: each ends with its requests in flight.
    pub(crate) fn clear(&self) {
        self.open.borrow_mut().clear();
    }
}

/// Clears the attempt on drop, and notifies the requests that wait for its result.
struct Making<'a> {
    wires: &'a Wires,
    coming: Rc<Coming>,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.wires.coming.take();
        self.coming.done.notify_waiters();
    }
}

/// Returns a stream to the member of a trip on an existing connection.
#[inline(never)]
pub(crate) fn at_hand(core: &Rc<Core>, trip: &Trip) -> Option<Link> {
    Some(outbound(trip.upstream.wires.place(core)?, trip))
}

fn outbound(place: Place, trip: &Trip) -> Link {
    Link::Other(Box::new(Outbound::new(place, trip)))
}

/// Returns a stream on a new connection if no existing one has room. Makes at most one connection: the code
/// that counts attempts and the retry budget decides about more.
///
/// # Errors
/// No connection could be made, or the member ended it before a request could be sent.
pub(crate) async fn reach(
    core: &Rc<Core>,
    trip: &Trip,
    timer: &Timer,
    deadline: Time,
    peer: &Peer,
) -> Result<Link, Reason> {
    let wires = &trip.upstream.wires;
    loop {
        let coming = wires.coming.borrow().as_ref().map(Rc::clone);
        let Some(coming) = coming else {
            let making = Making { wires, coming: Rc::default() };
            *wires.coming.borrow_mut() = Some(Rc::clone(&making.coming));
            let made = make(core, trip, timer, deadline, peer).await.and_then(|wire| {
                wires.open.borrow_mut().push(wire);
                at_hand(core, trip).ok_or(Reason::Reset)
            });
            // A waiting request may have more time than this one: then it makes an attempt itself.
            if !matches!(made, Err(Reason::TotalTimeout)) {
                making.coming.outcome.set(Some(made.as_ref().map(|_| ()).map_err(|reason| *reason)));
            }
            return made;
        };
        wait(core, trip, timer, deadline, &coming).await?;
        if let Some(stream) = at_hand(core, trip) {
            return Ok(stream);
        }
    }
}

/// Waits for a connection that another request is making.
async fn wait(
    core: &Core,
    trip: &Trip,
    timer: &Timer,
    deadline: Time,
    coming: &Coming,
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
async fn make(
    core: &Rc<Core>,
    trip: &Trip,
    timer: &Timer,
    deadline: Time,
    peer: &Peer,
) -> Result<Rc<Wire>, Reason> {
    let link = connect::link(core, trip, timer, deadline, peer).await?;
    let secure = link.scheme() == "https";
    link.keepalive();
    let ear = Rc::new(Ear::new(core.now()));
    let met = Box::pin(meet(link, core, &ear));
    let (sender, connection, outlet) = connect::patiently(core, trip, timer, deadline, met).await?;
    let tether = Rc::new(Tether::default());
    tokio::task::spawn_local(drive(Rc::clone(core), connection, outlet, Rc::clone(&tether)));
    Ok(Rc::new(Wire {
        sender,
        secure,
        streams: Cell::new(0),
        since: Cell::new(core.now()),
        ear,
        dead: Cell::new(false),
        tether,
    }))
}

/// Drives a connection until it ends. Once it has no users it ends by itself. If the member does not read the
/// last frames, it is dropped after [`LINGER`].
async fn drive(core: Rc<Core>, mut connection: Connection, outlet: Outlet<Link>, tether: Rc<Tether>) {
    let mut timer: Option<Timer> = None;
    let ended = poll_fn(|cx| {
        let ended = turn(&mut connection, &outlet, cx);
        if ended.is_ready() {
            return ended;
        }
        match &timer {
            Some(timer) if timer.fired() => {
                outlet.abort();
                return Poll::Ready(Ok(()));
            }
            Some(_) => {}
            None if tether.loose.get() => {
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

type Connection = h2::client::Connection<Heard, Bytes>;

/// Drives a connection as far as possible.
fn turn(
    connection: &mut Connection,
    outlet: &Outlet<Link>,
    cx: &mut Context<'_>,
) -> Poll<Result<(), h2::Error>> {
    let ended = Pin::new(connection).poll(cx);
    outlet.flush(cx);
    ended
}

/// Begins HTTP/2, and waits for the member's settings. Only they show how many streams it accepts, and that
/// it speaks HTTP/2 at all.
async fn meet(
    link: Link,
    core: &Rc<Core>,
    ear: &Rc<Ear>,
) -> io::Result<(SendRequest<Bytes>, Connection, Outlet<Link>)> {
    let (batch, outlet) = batch(link);
    let link = Heard::new(batch, core, ear);
    let begun = Builder::new()
        .enable_push(false)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(MAX_FIELDS)
        .max_send_buffer_size(SEND_BUFFER)
        .max_local_error_reset_streams(Some(RESET_BY_US))
        .initial_max_send_streams(0)
        .handshake(link)
        .await;
    let (sender, mut connection) = begun.map_err(other)?;
    poll_fn(|cx| {
        let ended = turn(&mut connection, &outlet, cx);
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
