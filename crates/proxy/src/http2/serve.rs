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

use super::batch::{Batch, Outlet, batch};
use super::govern::{Governed, Watch};
use super::inbound::Inbound;
use super::reader::{Framing, Reader};
use super::refuse::refuse;
use super::straight::{self, Forwards, Found};
use super::{
    CONNECTION_WINDOW, LINGER, RESET_BY_US, RESET_EARLY, SEND_BUFFER, STREAM_WINDOW, STREAMS, heads,
    websocket,
};
use crate::Key;
use crate::bond::Bond;
use crate::connect::Peer;
use crate::core::Core;
use crate::http::{self, Client};
use crate::link::Link;
use crate::listener::{Listener, Visit};
use crate::memory::Kept;
use crate::metered::Heed;
use crate::reason::Reason;
use crate::stream::Stream;
use crate::tls::Origin;
use crate::wheel::Timer;

/// Returns `true` if these bytes are the beginning of HTTP/2 (RFC 9113 section 3.4), which may be incomplete.
pub(crate) fn begins(bytes: &[u8]) -> bool {
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
const CALM: Duration = Duration::from_secs(1);

/// The state that a connection's streams share.
struct Hub {
    scheme: &'static str,
    watch: Rc<Watch>,
    streams: Cell<usize>,
    client: Rc<Client>,
    forwards: Forwards,
    /// Whether the connection should end once the requests in flight have ended.
    leave: Cell<bool>,
    /// In a side-car: whether an alert is the reason.
    shed: Cell<bool>,
    /// The waker of the connection's task.
    waker: RefCell<Option<Waker>>,
}

impl Hub {
    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

/// The connection's guard of one stream.
pub(super) struct Guest(Rc<Hub>);

impl Guest {
    fn enter(hub: &Rc<Hub>) -> Rc<Self> {
        hub.streams.set(hub.streams.get() + 1);
        Rc::new(Self(Rc::clone(hub)))
    }

    pub(super) fn scheme(&self) -> &'static str {
        self.0.scheme
    }

    /// Lets the connection end after this stream.
    pub(super) fn leave(&self) {
        self.0.leave.set(true);
        self.0.wake();
    }

    /// Returns `true` if the connection ends because of an alert.
    pub(super) fn shed(&self) -> bool {
        self.0.shed.get()
    }

    pub(super) fn answered(&self) {
        self.0.watch.answered();
    }
}

impl Drop for Guest {
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
pub(crate) fn begin<S: Stream + 'static>(
    core: Rc<Core>,
    listener: Rc<Listener>,
    stream: S,
    peer: Peer,
    unread: Vec<u8>,
    visit: Option<Visit>,
) {
    let sessions = Rc::clone(&core.sessions);
    sessions.spawn(async move {
        let _visit = visit;
        let timer = poll_fn(|cx: &mut Context<'_>| Poll::Ready(core.wheel.timer(cx.waker()))).await;
        let (scheme, origin) = (stream.scheme(), stream.origin());
        stream.keepalive();
        let watch = Watch::new(&core);
        let (stream, outlet) = batch(stream);
        let governed = Governed::new(stream, unread, Rc::clone(&watch));
        let Some(connection) = meet(&core, &listener, &timer, governed, &outlet).await else { return };
        let mut kept = Kept::default();
        if !kept.set(&core.census.memory, CONNECTION) {
            listener.pool().group.reject(core.index, Reason::Memory);
            return;
        }
        let waker = RefCell::default();
        let client = Client::new(&peer, scheme);
        let forwards = Forwards::new(&client.text, scheme);
        let (streams, leave, shed) = (Cell::new(0), Cell::new(false), Cell::new(false));
        let hub = Rc::new(Hub { scheme, watch, streams, client, forwards, leave, shed, waker });
        // Sessions are connections, not streams.
        let bond = http::bond(&listener);
        let heed = Heed::begin(listener.pool().group.side_car.as_ref());
        let mut serving = Serving {
            heed,
            idle_from: core.now(),
            core,
            listener,
            timer,
            peer,
            origin,
            bond,
            hub,
            connection,
            outlet,
            kept,
            fresh: true,
            awaited: None,
            parting: false,
            parted: None,
            last: None,
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
async fn meet<S: Stream>(
    core: &Rc<Core>,
    listener: &Listener,
    timer: &Timer,
    stream: Governed<Batch<S>>,
    outlet: &Outlet<S>,
) -> Option<Connection<Governed<Batch<S>>, Bytes>> {
    let settings = listener.settings();
    timer.set(core.tick() + settings.timeouts.head);
    let begun = Builder::new()
        .max_concurrent_streams(STREAMS)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(u32::try_from(settings.max_head).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(RESET_EARLY)
        .max_local_error_reset_streams(Some(RESET_BY_US))
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
                    timer.set(core.parting());
                }
                Poll::Pending
            }
        }
    });
    match met.await {
        Ok(connection) => Some(connection),
        Err(reason) => {
            if let Some(reason) = reason {
                listener.pool().group.reject(core.index, reason);
            }
            None
        }
    }
}

struct Serving<S> {
    core: Rc<Core>,
    listener: Rc<Listener>,
    timer: Timer,
    peer: Peer,
    /// The server name of the connection (TLS).
    origin: Option<Arc<Origin>>,
    bond: Option<Rc<RefCell<Bond>>>,
    /// In a side-car: whether the connection should leave because the server is overloaded.
    heed: Heed,
    hub: Rc<Hub>,
    connection: Connection<Governed<Batch<S>>, Bytes>,
    outlet: Outlet<S>,
    /// The memory for the streams' bytes in transit.
    kept: Kept,
    /// The time since which the connection has no streams, if it has none.
    idle_from: Time,
    /// Whether no request has arrived yet.
    fresh: bool,
    /// The time until which a stopping process waits for the first request, so that a client which has just
    /// connected gets a response and not only a GOAWAY.
    awaited: Option<Time>,
    /// Whether the client was notified that this connection accepts no more requests.
    parting: bool,
    /// The time since which such a connection has no streams.
    parted: Option<Time>,
    /// The time at which the connection ends, whatever is in flight.
    last: Option<Time>,
}

impl<S: Stream> Serving<S> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.hub.waker.borrow().as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *self.hub.waker.borrow_mut() = Some(cx.waker().clone());
        }
        loop {
            match self.connection.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, respond)))) => self.begin(request, respond),
                Poll::Ready(Some(Err(error))) => {
                    tracing::debug!("{}: HTTP/2 ended: {error}", self.listener.door.address);
                    return Poll::Ready(());
                }
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => {
                    self.send(cx);
                    if self.hub.watch.exceeded.get() && self.last.is_none() {
                        self.last = Some(self.core.tick() + LINGER);
                        self.connection.abrupt_shutdown(Code::ENHANCE_YOUR_CALM);
                        continue;
                    }
                    if !self.settle() {
                        return Poll::Pending;
                    }
                    if self.last.is_some_and(|last| self.core.now() >= last) {
                        return Poll::Ready(());
                    }
                }
            }
        }
    }

    /// Sends the buffered bytes, and records the time since which the client accepts none.
    fn send(&self, cx: &mut Context<'_>) {
        let moved = self.outlet.flush(cx) > 0;
        let stuck = &self.hub.watch.stuck;
        let since = stuck.get().filter(|_| !moved);
        stuck.set(self.outlet.holds().then(|| since.unwrap_or_else(|| self.core.now())));
    }

    /// Decides whether the connection should end, and when to check again, as nothing more has arrived.
    /// Returns `true` if it is to be polled again.
    fn settle(&mut self) -> bool {
        let now = self.core.tick();
        let settings = self.listener.settings();
        let watch = &self.hub.watch;
        // Bytes that the socket has not accepted belong to some response; the time limit for that is below.
        let busy = self.hub.streams.get() > 0 || watch.stuck.get().is_some();
        if busy {
            (self.idle_from, self.parted) = (now, None);
            let needs = CONNECTION + self.hub.streams.get() * STREAM;
            if self.kept.bytes() >= 2 * needs {
                // One remaining stream does not hold the budget of an earlier burst. A decrease cannot fail.
                let _ = self.kept.set(&self.core.census.memory, needs);
            }
        } else if now >= self.idle_from + CALM {
            // A decrease cannot fail.
            let _ = self.kept.set(&self.core.census.memory, CONNECTION);
        }
        let ending = self.core.stopping.get() || self.listener.closed();
        if ending && self.fresh {
            self.awaited.get_or_insert_with(|| self.core.parting());
        }
        let awaited = self.awaited.filter(|until| self.fresh && now < *until);
        let idle = self.idle_from + settings.timeouts.idle;
        let leaves = self.hub.leave.get() || watch.worn();
        if !self.parting
            && self.last.is_none()
            && ((ending && awaited.is_none()) || leaves || (!busy && now >= idle))
        {
            // A first GOAWAY announces the end; after the client's acknowledgement, a second one names the
            // last stream that is served. Requests that the client sends in between are served, too.
            self.parting = true;
            self.connection.graceful_shutdown();
            return true;
        }
        if watch.closing.get() {
            self.last.get_or_insert(now + LINGER);
        }
        if self.parting && !busy {
            self.parted.get_or_insert(now);
        }
        // A client that still reads the bytes in transit sends a WINDOW_UPDATE at times; closing earlier
        // would lose them.
        let parted = self.parted.map(|since| {
            let grace = if ending { self.core.parting.get() } else { LINGER };
            (since.max(watch.heard()) + grace).min(since + settings.timeouts.body.max(grace))
        });
        // A client that does not accept the responses to its requests.
        let stuck = watch.stuck.get().map(|since| since + settings.timeouts.body);
        let over = [self.last, parted, stuck].into_iter().flatten().min();
        if over.is_some_and(|over| now >= over) {
            self.last = Some(now);
            return true;
        }
        let calm = (!busy && self.kept.bytes() > CONNECTION).then(|| self.idle_from + CALM);
        let idle = (!busy && !self.parting).then_some(awaited.map_or(idle, |awaited| awaited.min(idle)));
        // With streams in flight, the client may stop reading without a further call of this: checked at
        // times.
        let look = busy.then_some(now + settings.timeouts.body);
        self.timer.set([over, idle, look, calm].into_iter().flatten().min().unwrap_or(Time(u64::MAX)));
        false
    }

    /// Returns `true` if the group's members speak HTTP/2.
    fn to_second(&self) -> bool {
        self.listener.pool().view().published.settings.http2
    }

    /// Returns the changes to a call's head if it may pass through without conversion to text.
    fn goes_straight(&self, head: &request::Parts) -> Option<Found> {
        let pool = self.listener.pool();
        let published = &pool.view().published;
        let keyed = published.plan.strategy().reads_key && published.settings.key != Key::Client;
        if !published.settings.http2 || self.bond.is_some() || pool.group.side_car.is_some() || keyed {
            return None;
        }
        // Logged or traced requests are read as text.
        if self.core.noting.get() {
            return None;
        }
        let settings = self.listener.settings();
        let trusted = http::trusted(&settings, &self.peer);
        straight::goes(head, settings.max_head, settings.forwarded, trusted)
    }

    /// Starts a task that gets a request answered.
    fn begin(&mut self, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
        self.fresh = false;
        let (head, body) = request.into_parts();
        let refused = |respond, reason| {
            refuse(&self.core, &self.listener, &self.peer, &head, respond, reason);
        };
        if let Some(origin) = &self.origin
            && heads::host(&head).is_some_and(|host| origin.misdirects(host))
        {
            return refused(respond, Reason::Misdirected);
        }
        let straight = self.goes_straight(&head);
        let mut text = Vec::with_capacity(if straight.is_some() { 0 } else { 512 });
        let told = match websocket::protocol(&head) {
            None if straight.is_some() => {
                Ok(if body.is_end_stream() { Framing::Empty } else { Framing::Chunks })
            }
            None => heads::request_text(&head, body.is_end_stream(), &mut text),
            Some(_)
                if websocket::is_asked(&head)
                    && !self.to_second()
                    && self.listener.settings().upgrades_to(b"websocket") =>
            {
                let nonce = [self.core.chance().to_be_bytes(), self.core.chance().to_be_bytes()];
                // The bytes are forwarded unchanged.
                websocket::request_text(&head, nonce.as_flattened().try_into().unwrap_or_default(), &mut text)
                    .map(|()| Framing::Length)
            }
            Some(_) => return refused(respond, Reason::NotImplemented),
        };
        let Ok(framing) = told else { return refused(respond, Reason::BadRequest) };
        if self.hub.streams.get() >= 2 * STREAMS as usize {
            // Streams that the client has reset, and that a member still processes, count as well.
            return respond.send_reset(Code::REFUSED_STREAM);
        }
        let core = &self.core;
        if !self.kept.grow(&core.census.memory, CONNECTION + (self.hub.streams.get() + 1) * STREAM) {
            return refused(respond, Reason::Memory);
        }
        if self.heed.goes(|| core.chance()) {
            self.hub.leave.set(true);
            self.hub.shed.set(true);
        }
        let guest = Guest::enter(&self.hub);
        let request = Reader::new(text, framing, body);
        let mut inbound = Inbound::new(guest, &head, request, respond);
        if let Some(found) = straight {
            let style = self.listener.settings().forwarded;
            inbound = inbound.straight(straight::ask(head, found, style, &self.hub.forwards));
        }
        let link = Link::Other(Box::new(inbound));
        let (core, listener) = (Rc::clone(&self.core), Rc::clone(&self.listener));
        let bond = match &self.bond {
            // Each request comes with its own cookie.
            Some(_) if listener.settings().affinity.is_some() => http::bond(&listener),
            bond => bond.clone(),
        };
        let client = Some(Rc::clone(&self.hub.client));
        let served = http::serve(core, listener, (link, self.peer, Vec::new()), bond, client, None);
        self.core.sessions.spawn(served);
    }
}
