//! HTTP/1.0 and 1.1, and the content of HTTP/2 streams ([`http2`]). A member is chosen for each request, or
//! for each client connection ([`bound`]).
//!
//! One task per client connection. It reads a head into the core's shared buffer, checks and rewrites it in
//! place, has a member chosen ([`dispatch`]), and relays both bodies as they arrive ([`exchange`]). Between
//! requests, a connection owns no buffer.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use plimsoll_brain::{Time, Urgency};
use plimsoll_wire::http1::{self, Body, Forwarding, Method, Refusal, Unread};

use crate::account::Account;
use crate::bond::Bond;
use crate::connect::Peer;
use crate::core::Core;
use crate::http2::{self, Framed};
use crate::listener::{Listener, Visit};
use crate::memory::Kept;
use crate::metered::{Heed, Metered};
use crate::pool::{View, Work};
use crate::reason::Reason;
use crate::stream::Stream;
use crate::wheel::Timer;
use crate::{Binding, Forwarded, Key, ListenerSettings};

mod affine;
mod away;
mod bound;
mod dispatch;
mod ending;
mod exchange;
mod reply;
mod straight;
#[cfg(test)]
mod tests;

pub(crate) use reply::own_answer;

/// The description of a client for members, made once for all requests of a connection.
pub(crate) struct Client {
    /// The client's address.
    pub(crate) text: Box<str>,
    /// The header lines about the client in the usual case.
    fields: Box<[u8]>,
}

impl Client {
    /// Creates the description. `scheme` is that of the client's connection, `http` or `https`.
    pub(crate) fn new(peer: &Peer, scheme: &str) -> Rc<Self> {
        let text = peer.client.ip().to_canonical().to_string().into_boxed_str();
        let fields = http1::x_forwarded(&text, scheme).into_boxed_slice();
        Rc::new(Self { text, fields })
    }
}

/// A client connection between and during requests.
struct Session<S> {
    core: Rc<Core>,
    listener: Rc<Listener>,
    stream: S,
    /// Whether the task is registered to be woken when the client sends. See [`Stream::poll_recv`].
    watched: bool,
    peer: Peer,
    client: Rc<Client>,
    /// Bytes that follow the current request, or the beginning of a head.
    unread: Vec<u8>,
    /// The memory for `unread`, and for the bytes that an exchange buffers for a side that does not accept
    /// them.
    kept: Kept,
    timer: Timer,
    /// Whether the balancer answered the last request without a member.
    answered_alone: bool,
    /// The number of requests so far.
    served: u32,
    /// The binding to a member, unless one is chosen for each request.
    bond: Option<Rc<RefCell<Bond>>>,
    heed: Heed,
    /// The listener's guard of the connection; `None` for a stream of a connection that has one.
    visit: Option<Visit>,
}

/// A parsed request that may be forwarded.
struct Asked {
    method: Method,
    /// The head for the member, and the part of the body that arrived with it.
    out: Vec<u8>,
    /// The part of the body that is still to come from the client.
    body: Body,
    /// The trailers of that body.
    trailers: http1::Trailers,
    /// Whether any of the body has arrived.
    came: bool,
    /// Whether a part of the body was forwarded that is not in `out`. Then the request cannot be sent again.
    streamed: bool,
    /// Whether another attempt is allowed if this one fails.
    spare: bool,
    keep_alive: bool,
    http10: bool,
    upgrade: bool,
    key: u64,
    begun: Time,
    /// The state in force when the request arrived.
    view: Rc<View>,
    /// The record, if the request is logged or traced.
    account: Option<Box<Account>>,
    /// In a side-car: the meter that counts the request.
    metered: Metered,
    /// A call that is not in HTTP/1.1 text. Then `out` is empty, and `body` only shows whether all of the
    /// body has arrived.
    framed: Option<Box<Framed>>,
    /// Set if the request has waited where waiting work differs in urgency. Contains the urgency, and whether
    /// the request has found a member that has not refused it.
    ranked: Cell<Option<(Urgency, bool)>>,
    waited: Cell<bool>,
}

impl Asked {
    /// Returns `true` if the request can be sent again without loss or harm. A member that refused it did not
    /// process it.
    fn repeatable(&self) -> bool {
        !self.streamed
    }

    /// Returns `true` if no other attempt may follow after a member failed that may have processed the
    /// request.
    fn once(&self) -> bool {
        self.streamed || !self.method.idempotent()
    }

    /// Returns the description for the choice of a member. The rest of a body may exceed what is kept for
    /// another attempt.
    fn work(&self) -> Work {
        Work::Request { once: self.once(), again: self.repeatable() && self.body.done(), binds: false }
    }
}

enum Next {
    Request(Asked),
    /// The client speaks HTTP/2: the bytes are in `unread`.
    Second,
    Refused(Reason),
    /// The client speaks another protocol.
    Foreign,
    /// The client is done or idle for too long, or the balancer stops.
    Closed,
}

/// The reason why a connection has no next request. Smaller than [`Next`], which no connection should keep.
enum Last {
    /// The connection continues in HTTP/2.
    Second,
    Refused(Reason),
    /// The client would not understand a response.
    Foreign,
    Closed,
}

/// Serves one client connection until it ends.
///
/// - `unread`: bytes that were already read from it.
/// - `bond`: its own binding ([`bond`]), or that of the HTTP/2 connection of which it is a stream.
/// - `client`: the HTTP/2 connection's description of the client, for such a stream.
/// - `visit`: the listener's guard, unless it is such a stream.
pub(crate) fn serve<S: Stream + 'static>(
    core: Rc<Core>,
    listener: Rc<Listener>,
    (stream, peer, unread): (S, Peer, Vec<u8>),
    bond: Option<Rc<RefCell<Bond>>>,
    client: Option<Rc<Client>>,
    visit: Option<Visit>,
) -> impl Future<Output = ()> + use<S> {
    let client = client.unwrap_or_else(|| Client::new(&peer, stream.scheme()));
    let heed = Heed::begin(listener.pool().group.side_car.as_ref());
    let timer = core.wheel.timer_of_nobody();
    let (watched, answered_alone, kept) = (false, false, Kept::default());
    let mut session = Session {
        core,
        listener,
        stream,
        watched,
        peer,
        client,
        unread,
        kept,
        timer,
        answered_alone,
        served: 0,
        bond,
        heed,
        visit,
    };
    // The session is all that the future keeps while the connection is idle. An `async` function would also
    // keep its arguments and what is moved out of them.
    async move {
        poll_fn(|cx: &mut Context<'_>| {
            session.timer.wakes(cx.waker());
            Poll::Ready(())
        })
        .await;
        let last = loop {
            // A request is large: it stays in place until it is answered.
            let next = async {
                let core = Rc::clone(&session.core);
                session.next(&core).await
            };
            let goes_on = match &mut next.await {
                Next::Request(asked) => session.answer(asked).await,
                Next::Second if session.served == 0 => break Last::Second,
                // The HTTP/2 preface is not valid after a request.
                Next::Second => break Last::Refused(Reason::Version),
                Next::Foreign if session.served == 0 => break Last::Foreign,
                Next::Foreign => break Last::Refused(Reason::BadRequest),
                Next::Refused(reason) => break Last::Refused(*reason),
                Next::Closed => break Last::Closed,
            };
            if !goes_on {
                return;
            }
            // A client that pipelines may never let this task wait, above all if the balancer answers itself.
            session.served = session.served.wrapping_add(1);
            if session.answered_alone || session.served.is_multiple_of(STREAK) {
                tokio::task::yield_now().await;
            }
        };
        match last {
            Last::Second => {
                let Session { core, listener, stream, peer, unread, visit, .. } = session;
                http2::begin(core, listener, stream, peer, unread, visit);
            }
            Last::Refused(reason) => session.refuse(reason).await,
            Last::Foreign => session.hang_up(Reason::BadRequest).await,
            Last::Closed => session.stream.part(),
        }
    }
}

/// Creates the binding of a client connection, if this listener binds its clients. With cookies, it stays
/// empty.
pub(crate) fn bond(listener: &Listener) -> Option<Rc<RefCell<Bond>>> {
    let settings = listener.settings();
    (settings.binding != Binding::PerRequest || settings.affinity.is_some()).then(Rc::default)
}

impl<S: Stream> Session<S> {
    /// Reads the next request head.
    async fn next(&mut self, core: &Core) -> Next {
        let settings = self.listener.settings();
        self.timer.set(
            core.now() + if self.unread.is_empty() { settings.timeouts.idle } else { settings.timeouts.head },
        );
        let mut fresh = !self.unread.is_empty();
        let mut parting = false;
        poll_fn(|cx| self.poll_next(core, cx, &settings, &mut fresh, &mut parting)).await
    }

    fn poll_next(
        &mut self,
        core: &Core,
        cx: &mut Context<'_>,
        settings: &ListenerSettings,
        fresh: &mut bool,
        parting: &mut bool,
    ) -> Poll<Next> {
        if self.timer.fired() {
            return Poll::Ready(match self.unread.is_empty() {
                true => Next::Closed,
                false => Next::Refused(Reason::ClientTimeout),
            });
        }
        if let Some((framed, ended)) = self.stream.asking().and_then(|client| client.framed()) {
            return Poll::Ready(Next::Request(self.begin_framed(cx, framed, ended)));
        }
        core.lend(|buffer, _| {
            let mut filled = self.unread.len();
            if filled > 0 {
                buffer[..filled].copy_from_slice(&self.unread);
            }
            loop {
                if std::mem::take(fresh) {
                    match self.begin(core, &buffer[..filled], settings) {
                        Ok(Some(asked)) => {
                            self.kept.clear();
                            return Poll::Ready(Next::Request(asked));
                        }
                        Ok(None) => {}
                        Err(_) if http2::begins(&buffer[..filled]) => {
                            self.unread.clear();
                            self.unread.extend_from_slice(&buffer[..filled]);
                            return Poll::Ready(Next::Second);
                        }
                        Err(_) if http1::foreign(&buffer[..filled]) => return Poll::Ready(Next::Foreign),
                        Err(refusal) => return Poll::Ready(Next::Refused(reason(refusal))),
                    }
                }
                match self.stream.poll_recv(cx, &mut buffer[filled..], &mut self.watched) {
                    Poll::Ready(Ok(came)) if came > 0 => {
                        filled += came;
                        *fresh = true;
                    }
                    Poll::Ready(_) => return Poll::Ready(Next::Closed),
                    Poll::Pending => break,
                }
            }
            if filled > self.unread.len() {
                if self.unread.is_empty() {
                    self.timer.set(core.tick() + settings.timeouts.head);
                }
                self.unread.clear();
                self.unread.extend_from_slice(&buffer[..filled]);
                if !self.kept.set(&core.census.memory, self.unread.capacity()) {
                    return Poll::Ready(Next::Refused(Reason::Memory));
                }
            }
            if self.ending() && self.unread.is_empty() && !std::mem::replace(parting, true) {
                self.timer.set(core.parting());
            }
            Poll::Pending
        })
    }

    /// Parses and rewrites the head at the beginning of `input`, if it is complete.
    fn begin(
        &mut self,
        core: &Core,
        input: &[u8],
        settings: &ListenerSettings,
    ) -> Result<Option<Asked>, Refusal> {
        let mut marks = core.marks.borrow_mut();
        // Not moved out: it is large.
        let mut read = http1::request(input, settings.max_head, &mut marks);
        let request = match &mut read {
            Ok(request) => request,
            Err(Unread::Partial) => return Ok(None),
            Err(Unread::Bad(refusal)) => return Err(*refusal),
        };
        // An upgrade that is not allowed continues as an ordinary request.
        request.upgrade = request.upgrades_to(|name| settings.upgrades_to(name));
        let begun = core.tick();
        let style = match settings.forwarded {
            Forwarded::XForwarded => http1::Forwarded::XForwarded,
            Forwarded::Rfc7239 => http1::Forwarded::Rfc7239,
            Forwarded::Off => http1::Forwarded::Off,
        };
        let trusted = trusted(settings, &self.peer);
        let mut out = core.vector();
        request.write(
            &Forwarding {
                style,
                trusted,
                client: &self.client.text,
                plain: &self.client.fields,
                scheme: self.stream.scheme(),
            },
            &mut out,
        );
        let account = Account::begin(core, request, &mut out);
        let (mut body, mut trailers) = (request.body, request.trailers());
        let rest = &input[request.len..];
        let mut ahead = rest;
        let mut came = false;
        if !rest.is_empty() {
            let passed = trailers.pass(&mut body, rest, &mut out, |_, _| true);
            let passed = passed.map_err(|bad| Refusal::Malformed(bad.0))?;
            if passed.as_is {
                out.extend_from_slice(&rest[..passed.taken]);
            }
            ahead = &rest[passed.taken..];
            came = passed.taken > 0;
        }
        let view = self.listener.view();
        let asked = Asked {
            method: request.method,
            out,
            body,
            trailers,
            came,
            streamed: false,
            spare: false,
            keep_alive: request.keep_alive,
            http10: request.http10,
            upgrade: request.upgrade,
            key: self.key(request, &view),
            begun,
            view,
            account,
            metered: Metered::default(),
            framed: None,
            ranked: Cell::default(),
            waited: Cell::default(),
        };
        self.unread.clear();
        if !ahead.is_empty() {
            self.unread.extend_from_slice(ahead);
        }
        Ok(Some(asked))
    }

    /// Returns `true` if this request is the last of its connection, because the process stops or the
    /// listener is closed.
    fn ending(&self) -> bool {
        self.core.stopping.get() || self.listener.closed()
    }

    /// Returns the key for the choice of a member, if the strategy reads it.
    fn key(&self, request: &http1::Request<'_, '_>, view: &View) -> u64 {
        if !view.published.plan.strategy().reads_key {
            return 0;
        }
        let client = || crate::key::of_client(self.peer.client.ip());
        match &view.published.settings.key {
            Key::Client => client(),
            Key::Path => {
                plimsoll_brain::hash(request.target.split(|byte| *byte == b'?').next().unwrap_or_default())
            }
            Key::Header(name) => request.field(name).map_or_else(client, plimsoll_brain::hash),
            Key::Cookie(name) => request.cookie(name).map_or_else(client, plimsoll_brain::hash),
        }
    }

    /// Writes all of `bytes`; returns `false` if the client does not accept them in time.
    async fn send(&mut self, bytes: &[u8]) -> bool {
        let patience = self.listener.settings().timeouts.body;
        self.timer.set(self.core.now() + patience);
        let mut sent = 0;
        poll_fn(|cx| {
            while sent < bytes.len() {
                if self.timer.fired() {
                    return Poll::Ready(false);
                }
                match ready!(Pin::new(&mut self.stream).poll_write(cx, &bytes[sent..])) {
                    Ok(more) if more > 0 => sent += more,
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
        let begun = self.core.now();
        // A stream of HTTP/2 can end without a loss: this only spares the client an upload that is discarded.
        let mut last = begun + if self.stream.shared() { http2::LINGER } else { LINGER };
        self.timer.set(last.min(begun + SILENCE));
        let (mut shut, mut parting) = (false, false);
        poll_fn(|cx| {
            if !shut {
                shut = true;
                // A socket's shutdown does not block; one that fails changes nothing.
                let _ = Pin::new(&mut self.stream).poll_shutdown(cx);
            }
            let core = Rc::clone(&self.core);
            if self.ending() && !std::mem::replace(&mut parting, true) {
                // A process that stops waits for this connection no longer than for others.
                last = last.min(core.parting());
                self.timer.set(last.min(core.now() + SILENCE));
            }
            core.lend(|buffer, _| {
                for _ in 0..STREAK {
                    match self.stream.poll_recv(cx, buffer, &mut self.watched) {
                        Poll::Ready(Ok(came)) if came > 0 => {}
                        Poll::Ready(_) => return Poll::Ready(()),
                        Poll::Pending if self.timer.fired() => return Poll::Ready(()),
                        Poll::Pending => return Poll::Pending,
                    }
                    let now = core.tick();
                    if now >= last {
                        return Poll::Ready(());
                    }
                    self.timer.set(last.min(now + SILENCE));
                }
                // A client that sends without end lets other tasks run.
                cx.waker().wake_by_ref();
                Poll::Pending
            })
        })
        .await;
    }
}

/// Returns `true` if the client's statements about the original client are trusted.
#[inline]
pub(crate) fn trusted(settings: &ListenerSettings, peer: &Peer) -> bool {
    !settings.trusted.is_empty() && {
        let client = peer.client.ip().to_canonical();
        settings.trusted.iter().any(|net| net.contains(&client))
    }
}

/// The number of requests of one connection before other tasks run.
const STREAK: u32 = 16;
/// The maximum time for which a client may continue to send after its connection was closed.
const LINGER: Duration = Duration::from_secs(30);
/// The maximum time of silence meanwhile.
const SILENCE: Duration = Duration::from_secs(5);

fn reason(refusal: Refusal) -> Reason {
    match refusal {
        Refusal::Malformed(_) => Reason::BadRequest,
        Refusal::TargetTooLong => Reason::TargetTooLong,
        Refusal::Expectation => Reason::Expectation,
        Refusal::HeadTooLarge => Reason::HeadTooLarge,
        Refusal::NotImplemented(_) => Reason::NotImplemented,
        Refusal::Version => Reason::Version,
    }
}
