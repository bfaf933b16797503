//! The law of an HTTP/2 listener, for any frames of a raw client in any order, however they are cut and
//! however little it reads:
//!
//! - No session panics.
//! - Buffered bytes are bounded and returned.
//! - No stream continues after its end.
//! - A plain request is answered.
//! - The connection ends when the client does.
//!
//! The fuzz target `http2` checks it on generated scripts; the test below, on the committed corpus and on
//! scripts close to it.
//!
//! A script is a list of steps of three bytes: the [`ScriptStep`], and its two parameters. The first byte of
//! all has two flags. With its last bit, no preface is sent. With the bit before it, the client grants
//! windows for responses only in steps.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::runtime::{Builder, LocalOptions, LocalRuntime};

use super::frame_parser::{CONTINUATION, DATA, HEADERS, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE};
use super::{MAX_CLIENT_STREAMS, MAX_LOCAL_RESETS, SEND_BUFFER, STREAM_WINDOW};
use crate::listener::Listener;
use crate::net::byte_stream::{ByteStream, as_io};
use crate::runtime::clock::Clock;
use crate::runtime::resource_limits::ResourceLimits;
use crate::test_util::{LOOPBACK, listener, pool_with_member};
use crate::upstream::connect::PeerAddresses;
use crate::upstream::thread_context::ThreadContext;
use crate::worker;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const PRIORITY: u8 = 2;
const PUSH_PROMISE: u8 = 5;
const GOAWAY: u8 = 7;
/// An error code of RFC 9113, section 7.
const REFUSED_STREAM: u32 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// The maximum size of the frames of a script, in bytes.
const LONGEST: usize = 4 << 20;
/// The bytes that a connection may draw from the memory budget: two rounds of streams, each with its windows,
/// and its tables.
const MOST_KEPT: usize =
    64 * 1024 + 2 * (MAX_CLIENT_STREAMS as usize + 1) * (STREAM_WINDOW as usize + SEND_BUFFER);

/// The client's end of a connection, which the test holds.
#[derive(Default)]
struct RawClient {
    incoming: VecDeque<u8>,
    ended: bool,
    /// The bytes that it accepts.
    room: usize,
    received: Vec<u8>,
    reading: Option<Waker>,
    writing: Option<Waker>,
    /// Whether the session has dropped the connection.
    over: bool,
}

impl RawClient {
    fn wake(&mut self) {
        for waker in [self.reading.take(), self.writing.take()].into_iter().flatten() {
            waker.wake();
        }
    }
}

/// The session's end.
struct RawClientStream(Rc<RefCell<RawClient>>);

impl Drop for RawClientStream {
    fn drop(&mut self) {
        self.0.borrow_mut().over = true;
    }
}

impl ByteStream for RawClientStream {
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        _: &mut bool,
    ) -> Poll<io::Result<usize>> {
        let mut client = self.0.borrow_mut();
        if client.incoming.is_empty() && !client.ended {
            client.reading = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let came = buffer.len().min(client.incoming.len());
        for (space, byte) in buffer.iter_mut().zip(client.incoming.drain(..came)) {
            *space = byte;
        }
        Poll::Ready(Ok(came))
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut client = self.0.borrow_mut();
        let taken = bytes.len().min(client.room);
        if taken == 0 {
            client.writing = Some(cx.waker().clone());
            return Poll::Pending;
        }
        client.room -= taken;
        client.received.extend_from_slice(&bytes[..taken]);
        Poll::Ready(Ok(taken))
    }
}

as_io!(RawClientStream);

/// One action of the client.
#[derive(Clone, Copy, Debug)]
enum ScriptStep {
    /// Opens a new stream, with one of the [`HEADS`].
    Opens,
    /// Sends DATA on a stream.
    Data,
    /// Sends trailers, or a second head, on a stream.
    Trailers,
    Resets,
    OpensWindow,
    Sets,
    Pings,
    /// Sends a frame of any kind with any flags.
    Odd,
    /// Sends the following bytes, their number being a parameter, unchanged.
    Raw,
    /// Sends the last frame again, many times.
    Repeats,
    /// Accepts some bytes, and lets the session run.
    Reads,
    /// Sends nothing more.
    Ends,
}

const STEPS: [ScriptStep; 12] = [
    ScriptStep::Opens,
    ScriptStep::Data,
    ScriptStep::Trailers,
    ScriptStep::Resets,
    ScriptStep::OpensWindow,
    ScriptStep::Sets,
    ScriptStep::Pings,
    ScriptStep::Odd,
    ScriptStep::Raw,
    ScriptStep::Repeats,
    ScriptStep::Reads,
    ScriptStep::Ends,
];

type HeadFields = &'static [(&'static str, &'static str)];

const GET: HeadFields = &[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "h")];
const POST: HeadFields = &[(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "h")];

/// Heads of requests; the first one is valid.
const HEADS: [(HeadFields, HeadFields); 14] = [
    (GET, &[]),
    (POST, &[("content-length", "3")]),
    (POST, &[("trailer", "x")]),
    (POST, &[("content-type", "application/grpc"), ("te", "trailers"), ("grpc-timeout", "1S")]),
    (
        &[(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "http"), (":path", "/")],
        &[("sec-websocket-version", "13")],
    ),
    (&[(":method", "GET"), (":scheme", "http"), (":authority", "h")], &[]),
    (GET, &[("X-Upper", "1")]),
    (GET, &[("connection", "close"), ("transfer-encoding", "chunked")]),
    (GET, &[("host", "other")]),
    (POST, &[("content-length", "18446744073709551616")]),
    (&[(":method", "GET"), (":scheme", "http"), (":path", "/a#b"), (":authority", "h")], &[]),
    (GET, &[("x", "1"), (":path", "/again")]),
    (GET, &[("expect", "100-continue"), ("cookie", "a=b"), ("cookie", "c=d")]),
    (&[], &[]),
];

/// Returns a head as HPACK encodes it without any table (RFC 7541 section 6.2.2).
fn block(fields: [HeadFields; 2], long: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields.into_iter().flatten() {
        out.extend([0, name.len() as u8]);
        out.extend(name.bytes());
        out.push(value.len() as u8);
        out.extend(value.bytes());
    }
    if long > 0 {
        // 127 and a number in groups of seven bits (section 5.1).
        out.extend(b"\0\x04long\x7f");
        let mut left = long;
        while left >= 128 {
            out.push(left as u8 | 0x80);
            left >>= 7;
        }
        out.push(left as u8);
        out.resize(out.len() + 127 + long, b'v');
    }
    out
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The steps of a client, and a record of those that it has taken.
struct ClientScript<'b> {
    bytes: &'b [u8],
    /// The stream that it opens next.
    next: u32,
    last: Vec<u8>,
    sent: usize,
    /// The streams with a plain request, of which nothing was taken back.
    plain: BTreeSet<u32>,
    /// Whether nothing was sent that could hold back responses or end the connection.
    calm: bool,
    pings: u32,
    steps: bool,
}

impl ClientScript<'_> {
    fn take(&mut self) -> u8 {
        let Some((first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        *first
    }

    /// Returns one of the streams so far, or the next one.
    fn stream(&self, number: u8) -> u32 {
        2 * (u32::from(number) % (self.next / 2 + 1)) + 1
    }

    /// Takes a step. Returns its frames, the bytes that the client reads, and whether it ends.
    fn step(&mut self) -> (Vec<u8>, usize, bool) {
        let step = STEPS[usize::from(self.take()) % STEPS.len()];
        let (one, two) = (self.take(), self.take());
        let stream = self.stream(two >> 2);
        let bytes = match step {
            ScriptStep::Opens => {
                let (head, more) = HEADS[usize::from(one) % HEADS.len()];
                let stream = self.next;
                self.next += 2;
                let plain = one == 0 && two & END_STREAM != 0 && two & 0x80 == 0;
                if plain {
                    self.plain.insert(stream);
                } else {
                    self.calm = false;
                }
                let long = if two & 0x80 == 0 { 0 } else { usize::from(two) * 64 };
                let block = block([head, more], long);
                let whole = two & 0x40 == 0;
                let (begin, rest) = block.split_at(if whole { block.len() } else { block.len() / 2 });
                let mut all =
                    frame(HEADERS, (two & END_STREAM) | (u8::from(whole) * END_HEADERS), stream, begin);
                if !whole {
                    all.extend(frame(CONTINUATION, END_HEADERS, stream, rest));
                }
                all
            }
            ScriptStep::Data => {
                self.calm = false;
                frame(DATA, two & (END_STREAM | 8), stream, &vec![one; usize::from(one) * usize::from(two)])
            }
            ScriptStep::Trailers => {
                self.calm = false;
                let fields: HeadFields = match one % 4 {
                    0 => &[("x-sum", "7")],
                    1 => &[(":path", "/x")],
                    2 => &[("content-length", "9"), ("host", "evil"), ("x-sum", "7")],
                    _ => &[],
                };
                frame(HEADERS, END_HEADERS | two & END_STREAM, stream, &block([fields, &[]], 0))
            }
            ScriptStep::Resets => {
                self.plain.remove(&stream);
                self.calm = false;
                frame(RST_STREAM, 0, stream, &u32::from(one).to_be_bytes())
            }
            ScriptStep::OpensWindow => {
                self.calm = false;
                let by = u32::from_be_bytes([one, two, two, two]);
                frame(WINDOW_UPDATE, 0, if one & 1 == 0 { 0 } else { stream }, &by.to_be_bytes())
            }
            ScriptStep::Sets => {
                self.calm = false;
                let value = match two % 4 {
                    0 => 0,
                    1 => u32::from(two),
                    2 => 16_384,
                    _ => u32::MAX >> (two >> 6),
                };
                let setting = [&[0, one % 10][..], &value.to_be_bytes()].concat();
                frame(SETTINGS, u8::from(one > 250), 0, if one > 240 { &[] } else { &setting })
            }
            ScriptStep::Pings => {
                self.pings += 1;
                // More are an attack.
                self.calm &= self.pings < 900;
                frame(PING, one & 1, 0, &[two; 8])
            }
            ScriptStep::Odd => {
                self.calm = false;
                let kind = [PRIORITY, PUSH_PROMISE, GOAWAY, CONTINUATION, 0x10][usize::from(one) % 5];
                frame(kind, two, stream * u32::from(one >> 7), &vec![one; usize::from(two & 15)])
            }
            ScriptStep::Raw => {
                self.calm = false;
                let (raw, rest) = self.bytes.split_at(self.bytes.len().min(usize::from(one)));
                self.bytes = rest;
                raw.to_vec()
            }
            ScriptStep::Repeats => {
                self.calm = false;
                self.last.repeat((usize::from(one) * 8 + 1).min(LONGEST / self.last.len().max(1)))
            }
            ScriptStep::Reads => return (Vec::new(), usize::from(one) * usize::from(two) + 1, false),
            ScriptStep::Ends => return (Vec::new(), 0, true),
        };
        self.sent += bytes.len();
        if !matches!(step, ScriptStep::Repeats) {
            self.last.clone_from(&bytes);
        }
        (bytes, 0, false)
    }
}

/// A client's streams by their responses.
#[derive(Debug, Default)]
struct ReceivedStreams {
    /// The streams that were answered, and those that have ended.
    answered: BTreeSet<u32>,
    ended: BTreeSet<u32>,
    /// The streams that were refused because there were too many.
    refused: BTreeSet<u32>,
    /// The code of the last GOAWAY.
    goaway: Option<u32>,
}

/// Parses the frames that were sent to the client. Panics if a client could not expect them.
fn parse_received(mut bytes: &[u8]) -> ReceivedStreams {
    let (mut got, mut first) = (ReceivedStreams::default(), true);
    let (mut reset, mut resets) = (BTreeSet::new(), 0);
    while let Some((&[a, b, c, kind, flags, d, e, f, g], rest)) = bytes.split_first_chunk::<9>() {
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        let Some((payload, rest)) = rest.split_at_checked(len) else { break };
        bytes = rest;
        let stream = u32::from_be_bytes([d, e, f, g]);
        assert!(!std::mem::take(&mut first) || kind == SETTINGS, "settings come first, not {kind}");
        match kind {
            HEADERS | DATA => {
                assert!(stream % 2 == 1, "a stream of the client");
                assert!(!got.ended.contains(&stream), "stream {stream} goes on after its end");
                assert!(!reset.contains(&stream), "stream {stream} goes on after its reset");
                assert!(kind == HEADERS || got.answered.contains(&stream), "a body without a head");
                got.answered.insert(stream);
                if flags & END_STREAM != 0 {
                    got.ended.insert(stream);
                }
            }
            RST_STREAM => {
                let code = payload.first_chunk().copied().map_or(0, u32::from_be_bytes);
                // Once more for each frame on a closed stream (section 5.1), within their limit.
                reset.insert(stream);
                resets += 1;
                got.ended.insert(stream);
                if code == REFUSED_STREAM {
                    got.refused.insert(stream);
                }
            }
            GOAWAY => {
                let code = payload.get(4..).and_then(<[u8]>::first_chunk).copied();
                got.goaway = Some(code.map_or(0, u32::from_be_bytes));
            }
            SETTINGS | PING | WINDOW_UPDATE | CONTINUATION => {}
            other => panic!("a frame of kind {other}"),
        }
    }
    assert!(resets <= reset.len() + MAX_LOCAL_RESETS, "{resets} resets of {} streams", reset.len());
    got
}

/// Lets the sessions of a core run.
async fn turns() {
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
}

/// Panics if the law does not hold. Returns `true` if the connection was valid until the client ended and a
/// request was answered.
async fn check_script(core: &Rc<ThreadContext>, listener: &Rc<Listener>, input: &[u8]) -> bool {
    let sessions = Rc::strong_count(listener);
    let (flags, bytes) = input.split_first().unwrap_or((&0, b""));
    let mut script = ClientScript {
        bytes,
        next: 1,
        last: Vec::new(),
        sent: 0,
        plain: BTreeSet::new(),
        calm: flags & 1 == 0,
        pings: 0,
        steps: flags & 2 != 0,
    };
    let client = Rc::new(RefCell::new(RawClient::default()));
    if flags & 1 == 0 {
        client.borrow_mut().incoming.extend(PREFACE);
        client.borrow_mut().incoming.extend(frame(SETTINGS, 0, 0, &[]));
    }
    client.borrow_mut().room = if script.steps { 0 } else { usize::MAX };
    let peer = PeerAddresses { client: LOOPBACK, local: LOOPBACK };
    super::serve_connection(
        Rc::clone(core),
        Rc::clone(listener),
        RawClientStream(Rc::clone(&client)),
        peer,
        Vec::new(),
        None,
    );
    let memory = &core.limits.memory;
    while !script.bytes.is_empty() && script.sent < LONGEST {
        let (sent, room, ends) = script.step();
        {
            let mut client = client.borrow_mut();
            client.incoming.extend(sent);
            client.room = client.room.saturating_add(room);
            client.ended |= ends;
            client.wake();
        }
        if room > 0 || ends || script.sent.is_multiple_of(3) {
            turns().await;
        }
        let client = client.borrow();
        assert!(memory.status().1 <= MOST_KEPT, "{} bytes are kept", memory.status().1);
        if client.ended || client.over {
            break;
        }
    }
    let ended = client.borrow().ended;
    {
        let mut client = client.borrow_mut();
        client.room = usize::MAX;
        client.wake();
    }
    if script.calm && !ended {
        // bound: the whole of it has one, and turns alone lead to the awaited state.
        loop {
            turns().await;
            let got = parse_received(&client.borrow().received);
            assert!(got.goaway.is_none(), "{got:?}");
            if script.plain.is_subset(&got.ended) {
                assert!(
                    script.plain.iter().all(|one| got.answered.contains(one) || got.refused.contains(one))
                );
                break;
            }
        }
    }
    turns().await;
    let before = parse_received(&client.borrow().received);
    {
        let mut client = client.borrow_mut();
        client.ended = true;
        client.wake();
    }
    // bound: as above
    while !client.borrow().over || Rc::strong_count(listener) > sessions || memory.status().1 > 0 {
        turns().await;
    }
    let _ = parse_received(&client.borrow().received);
    !ended && before.goaway.is_none() && !before.answered.is_empty()
}

/// Checks the law on a core that serves one input after the other. Every part of it must end within a minute.
pub(crate) fn check(input: &[u8]) -> bool {
    thread_local! {
        // The thread's owner keeps it to the end.
        static STAGE: &'static H2Fixture = Box::leak(Box::new(H2Fixture::new()));
    }
    STAGE.with(|stage| {
        let obeys = check_script(&stage.core, &stage.listener, input);
        let within = async { tokio::time::timeout(Duration::from_secs(60), obeys).await };
        stage.runtime.block_on(within).expect("it ends")
    })
}

struct H2Fixture {
    runtime: LocalRuntime,
    core: Rc<ThreadContext>,
    listener: Rc<Listener>,
}

impl H2Fixture {
    /// Creates a listener for a group without members, which answers every request.
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
        let runtime = runtime.expect("a runtime");
        let (core, listener) = runtime.block_on(async {
            let core = worker::start_context(0, Clock::start(), ResourceLimits::new(10, 100, 1 << 30))
                .expect("a core");
            let (pool, _) = pool_with_member(&core, None, "round_robin", None);
            let listener = listener(&core, pool);
            (core, listener)
        });
        Self { runtime, core, listener }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::panic;
    use std::sync::Once;

    use super::*;

    thread_local! {
        static PANICS: Cell<u32> = const { Cell::new(0) };
    }

    /// Returns the number of panics on this thread: a session's panic does not end other sessions.
    fn counted() -> u32 {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                PANICS.set(PANICS.get() + 1);
                before(info);
            }));
        });
        PANICS.get()
    }

    #[test]
    fn the_corpus_obeys_it_and_what_is_nearly_in_it() {
        counted();
        crate::near::holds(
            "http2",
            &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0x41, 0x81, 0xff],
            300,
            |input| {
                let of_use = check(input);
                assert_eq!(counted(), 0, "a session panicked");
                of_use
            },
        );
    }

    /// A client that stays and sends nothing more is left by the session, whatever rule of HTTP/2 it broke.
    #[test]
    fn a_connection_ends_after_an_error_though_its_client_stays() {
        for (name, bytes) in [
            ("DATA on stream 0", frame(DATA, 0, 0, b"x")),
            ("a stream of the server", frame(HEADERS, 5, 2, &block(HEADS[0].into(), 0))),
            ("HPACK that is none", frame(HEADERS, 5, 1, &[0xff; 9])),
            (
                "a window beyond its bound",
                frame(WINDOW_UPDATE, 0, 0, &0x7fff_ffff_u32.to_be_bytes()).repeat(2),
            ),
            ("a frame beyond its bound", frame(DATA, 0, 1, &[0; 20_000])),
            (
                "a head that goes on elsewhere",
                [frame(HEADERS, 1, 1, &[]), frame(CONTINUATION, 4, 3, &[])].concat(),
            ),
            ("pings without end", frame(PING, 0, 0, &[7; 8]).repeat(2_000)),
        ] {
            let client = Rc::new(RefCell::new(RawClient { room: usize::MAX, ..RawClient::default() }));
            client.borrow_mut().incoming.extend([PREFACE, &frame(SETTINGS, 0, 0, &[]), &bytes].concat());
            let wire = RawClientStream(Rc::clone(&client));
            let stage = H2Fixture::new();
            stage.runtime.block_on(async {
                let peer = PeerAddresses { client: LOOPBACK, local: LOOPBACK };
                let (core, listener) = (Rc::clone(&stage.core), Rc::clone(&stage.listener));
                super::super::serve_connection(core, listener, wire, peer, Vec::new(), None);
                let over = async {
                    while !client.borrow().over {
                        turns().await;
                    }
                };
                tokio::time::timeout(Duration::from_secs(60), over).await.expect(name);
            });
            let code = parse_received(&client.borrow().received).goaway;
            assert!(code.is_some_and(|code| code != 0), "{name}: {code:?}");
        }
    }
}
