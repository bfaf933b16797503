//! Connections of HTTP/2 to one member, each shared by many requests.
//!
//! A request goes to the connection that was made last among those that have room: the member says how many streams it takes at
//! once, and we open no more than [`MOST`]. If none has room another is made; whoever wants one meanwhile waits for the same.
//! Connections that nothing was asked on for `pool_idle` are closed, and one on which nothing is heard any more gets no new
//! requests ([`Ear`]); no pings are sent. One that nothing will be asked on any more ends when what there is to say of that was
//! said; a member that takes nothing has [`LINGER`] for it.

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

/// Most streams on one connection, however many the member takes: what is lost on the way holds up all of them.
pub(super) const MOST: usize = 250;
/// Most bytes of an answer's fields.
const MAX_FIELDS: u32 = 64 * 1024;

/// One core's connections to one member.
#[derive(Default)]
pub(crate) struct Wires {
    open: RefCell<Vec<Rc<Wire>>>,
    /// The one that is being made.
    coming: RefCell<Option<Rc<Coming>>>,
}

/// A connection.
struct Wire {
    sender: SendRequest<Bytes>,
    secure: bool,
    streams: Cell<usize>,
    /// Since when there are none.
    since: Cell<Time>,
    ear: Rc<Ear>,
    /// Is it taken for dead?
    dead: Cell<bool>,
    tether: Rc<Tether>,
}

/// What ties a connection to those who ask on it.
#[derive(Default)]
struct Tether {
    /// Is there nobody any more who could ask?
    loose: Cell<bool>,
    /// That of the connection's task.
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
    /// Is nothing new to be asked on it?
    fn over(&self) -> bool {
        self.dead.get() || self.ear.wear.worn()
    }
}

/// A connection that is being made.
#[derive(Default)]
struct Coming {
    done: Notify,
    /// How it ended; `None` while it is made, or if whoever made it gave up.
    outcome: Cell<Option<Result<(), Reason>>>,
}

/// One stream's place on a connection.
pub(super) struct Place {
    core: Rc<Core>,
    wire: Rc<Wire>,
    sender: SendRequest<Bytes>,
}

impl Place {
    pub(super) fn sender(&mut self) -> &mut SendRequest<Bytes> {
        &mut self.sender
    }

    /// By TLS?
    pub(super) fn secure(&self) -> bool {
        self.wire.secure
    }

    /// The request was sent.
    pub(super) fn asked(&self) {
        self.wire.ear.ask(self.core.now());
    }

    /// The answer is not waited for any longer. `patience`: for how long nothing may be heard of a member.
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
    /// A place on a connection that is there.
    fn place(&self, core: &Rc<Core>) -> Option<Place> {
        let mut cx = Context::from_waker(Waker::noop());
        let mut found = None;
        self.open.borrow_mut().retain(|wire| {
            if wire.over() {
                return false;
            }
            let mut sender = wire.sender.clone();
            match sender.poll_ready(&mut cx) {
                // It has ended, or takes nothing new: the member said that it goes.
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

    /// Closes those that nothing was asked on since `oldest`.
    pub(crate) fn sweep(&self, oldest: Time) {
        let kept = |wire: &Wire| !wire.over() && (wire.streams.get() > 0 || wire.since.get() >= oldest);
        self.open.borrow_mut().retain(|wire| kept(wire));
    }

    /// Takes nothing new on those that are there: they end with what is under way on them.
    pub(crate) fn clear(&self) {
        self.open.borrow_mut().clear();
    }
}

/// Forgets what is being made, and tells those who wait how it ended.
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

/// A stream to the member of a trip on a connection that is there.
#[inline(never)]
pub(crate) fn at_hand(core: &Rc<Core>, trip: &Trip) -> Option<Link> {
    Some(outbound(trip.upstream.wires.place(core)?, trip))
}

fn outbound(place: Place, trip: &Trip) -> Link {
    Link::Other(Box::new(Outbound::new(place, trip)))
}

/// The same where none of those that are there will do. Makes at most one connection: whether to try again is decided where
/// attempts and the retry budget are counted.
///
/// # Errors
/// No connection came about, or the member ended it before anything could be asked on it.
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
            // Whoever waits may have more time than this request had: then it tries itself.
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

/// Waits for a connection that another request has asked for.
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
            // For the others that wait.
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

/// Makes a connection, and has it driven until it ends.
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

/// Drives a connection until it ends. Once nothing can be asked on it any more it ends by itself, unless the member does not take what is
/// said last: then it is given up after [`LINGER`].
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
            // A task's waker is the same for as long as it lives.
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

/// Drives a connection as far as it goes.
fn turn(
    connection: &mut Connection,
    outlet: &Outlet<Link>,
    cx: &mut Context<'_>,
) -> Poll<Result<(), h2::Error>> {
    let ended = Pin::new(connection).poll(cx);
    outlet.flush(cx);
    ended
}

/// Begins HTTP/2, and waits for the member's settings: only then it is known how much it takes, and that it speaks HTTP/2 at all.
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
