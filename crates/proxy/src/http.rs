//! HTTP/1.0 and 1.1, and what a stream of HTTP/2 says ([`http2`]): a choice per request, or per client connection ([`bound`]).
//!
//! One task per client connection. It reads a head into the core's shared buffer, judges and rewrites it in
//! place, has a member chosen ([`dispatch`]), and relays both bodies as they come ([`exchange`]). Between
//! requests a connection owns no buffer.

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

/// A client as members are told of it, made once for all requests of a connection.
pub(crate) struct Client {
    /// Its address.
    pub(crate) text: Box<str>,
    /// What the members are told of it in the usual case.
    fields: Box<[u8]>,
}

impl Client {
    /// `scheme`: that of its connection, `http` or `https`.
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
    /// Is the task registered to be woken when the client sends? See [`Stream::poll_recv`].
    watched: bool,
    peer: Peer,
    client: Rc<Client>,
    /// Bytes that came after the request being worked on, or the beginning of a head.
    unread: Vec<u8>,
    /// Of `unread`, and of what an exchange keeps for a side that does not accept it.
    kept: Kept,
    timer: Timer,
    /// Was the last request answered without a member?
    answered_alone: bool,
    /// Requests so far.
    served: u32,
    /// Its member, unless one is chosen for each request.
    bond: Option<Rc<RefCell<Bond>>>,
    heed: Heed,
    /// As its listener counts it, unless it is a stream of a connection that is.
    visit: Option<Visit>,
}

/// A request whose head was read and may be passed on.
struct Asked {
    method: Method,
    /// The head for the member, and the part of the body that came with it.
    out: Vec<u8>,
    /// What of the body is still to come from the client.
    body: Body,
    /// The trailers of that body.
    trailers: http1::Trailers,
    /// Has any of the body come?
    came: bool,
    /// Has any of the body been passed on that is not in `out`? Then it cannot be sent again.
    streamed: bool,
    /// May it be tried again if this try fails?
    spare: bool,
    keep_alive: bool,
    http10: bool,
    upgrade: bool,
    key: u64,
    begun: Time,
    /// What was in force when it came.
    view: Rc<View>,
    /// If it is to be told of.
    account: Option<Box<Account>>,
    /// In a side-car: the meter that it is counted by.
    metered: Metered,
    /// A call that is not told as text: then nothing of it is in `out`, and `body` only says whether all of it has come.
    framed: Option<Box<Framed>>,
    /// If it has waited where it is asked how urgent one is: that, and has it found a member, which has not refused it?
    ranked: Cell<Option<(Urgency, bool)>>,
    waited: Cell<bool>,
}

impl Asked {
    /// Can it be sent again, none of it being lost and no harm being done? A member that refused it did nothing.
    fn repeatable(&self) -> bool {
        !self.streamed
    }

    /// If a member fails it after it may have done something, is that its end?
    fn once(&self) -> bool {
        self.streamed || !self.method.idempotent()
    }

    /// As a member is asked for. What is still to come of a body may be more than is kept to be sent again.
    fn work(&self) -> Work {
        Work::Request { once: self.once(), again: self.repeatable() && self.body.done(), binds: false }
    }
}

enum Next {
    Request(Asked),
    /// The client speaks HTTP/2: what came is in `unread`.
    Second,
    Refused(Reason),
    /// The client speaks something else.
    Foreign,
    /// The client is done, or idle for too long, or we are.
    Closed,
}

/// Why a connection has no next request. Smaller than [`Next`], which no connection is to keep.
enum Last {
    /// It goes on in HTTP/2.
    Second,
    Refused(Reason),
    /// The client would not understand an answer.
    Foreign,
    Closed,
}

/// Serves one client connection until it ends. `unread` are bytes that were read from it already; `bond`: its own
/// ([`bond`]), or that of the connection of HTTP/2 that it is a stream of; `client`: as that connection knows it, if it is such a stream;
/// `visit`: how the listener counts it, unless it is.
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
    // The session is all that the future keeps while the connection is idle: a function that is `async` itself would keep its arguments
    // as well, and what is moved out of them.
    async move {
        poll_fn(|cx: &mut Context<'_>| {
            session.timer.wakes(cx.waker());
            Poll::Ready(())
        })
        .await;
        let last = loop {
            // A request stays where it is until it is answered: it is large.
            let next = async {
                let core = Rc::clone(&session.core);
                session.next(&core).await
            };
            let goes_on = match &mut next.await {
                Next::Request(asked) => session.answer(asked).await,
                Next::Second if session.served == 0 => break Last::Second,
                // After a request nobody speaks it.
                Next::Second => break Last::Refused(Reason::Version),
                Next::Foreign if session.served == 0 => break Last::Foreign,
                Next::Foreign => break Last::Refused(Reason::BadRequest),
                Next::Refused(reason) => break Last::Refused(*reason),
                Next::Closed => break Last::Closed,
            };
            if !goes_on {
                return;
            }
            // A client that sends ahead may never make this task wait, above all if we answer ourselves.
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

/// What binds a client's connection to a member, if this listener's are to be bound; where clients come by cookies, it stays
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

    /// Reads and rewrites the head at the beginning of `input`, if it is all there.
    fn begin(
        &mut self,
        core: &Core,
        input: &[u8],
        settings: &ListenerSettings,
    ) -> Result<Option<Asked>, Refusal> {
        let mut marks = core.marks.borrow_mut();
        // Not moved out of there: it is large.
        let mut read = http1::request(input, settings.max_head, &mut marks);
        let request = match &mut read {
            Ok(request) => request,
            Err(Unread::Partial) => return Ok(None),
            Err(Unread::Bad(refusal)) => return Err(*refusal),
        };
        // An upgrade that is not allowed goes on as an ordinary request.
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

    /// Is this request the last of its connection, because the process stops or its listener is gone?
    fn ending(&self) -> bool {
        self.core.stopping.get() || self.listener.closed()
    }

    /// What should stick to one member, if the strategy wants to know.
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

    /// Writes all of `bytes`, unless the client does not take them for too long.
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

    /// Closes so that the client can read what was sent, even if it is still sending (RFC 9112 section 9.6):
    /// says that nothing more will come, and reads on until the client has closed, too, or sends nothing for [`SILENCE`], for at most
    /// [`LINGER`]. Closed with bytes unread, the connection would be reset, and the answer might be lost.
    async fn linger(&mut self) {
        let begun = self.core.now();
        // A stream of HTTP/2 can be ended without a loss: its client is only spared an upload that nobody reads.
        let mut last = begun + if self.stream.shared() { http2::LINGER } else { LINGER };
        self.timer.set(last.min(begun + SILENCE));
        let (mut shut, mut parting) = (false, false);
        poll_fn(|cx| {
            if !shut {
                shut = true;
                // A shutdown of a socket does not wait; one that fails changes nothing.
                let _ = Pin::new(&mut self.stream).poll_shutdown(cx);
            }
            let core = Rc::clone(&self.core);
            if self.ending() && !std::mem::replace(&mut parting, true) {
                // A process that stops waits for this no longer than for others.
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
                // One that sends without end leaves others their turn.
                cx.waker().wake_by_ref();
                Poll::Pending
            })
        })
        .await;
    }
}

/// Is this client believed when it says for whom it asks?
#[inline]
pub(crate) fn trusted(settings: &ListenerSettings, peer: &Peer) -> bool {
    !settings.trusted.is_empty() && {
        let client = peer.client.ip().to_canonical();
        settings.trusted.iter().any(|net| net.contains(&client))
    }
}

/// Requests of one connection before others get their turn.
const STREAK: u32 = 16;
/// How long a client may go on sending after its connection was closed for it.
const LINGER: Duration = Duration::from_secs(30);
/// How long it may say nothing meanwhile.
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
