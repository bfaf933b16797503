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
const MAX_SCRIPT: usize = 4 << 20;
/// The bytes that a connection may draw from the memory budget: two rounds of streams, each with its windows,
/// and its tables.
const MAX_MEMORY: usize =
    64 * 1024 + 2 * (MAX_CLIENT_STREAMS as usize + 1) * (STREAM_WINDOW as usize + SEND_BUFFER);

/// The client's end of a connection, which the test holds.
#[derive(Default)]
struct RawClient {
    incoming: VecDeque<u8>,
    ended: bool,
    /// The bytes that it accepts.
    write_capacity: usize,
    received: Vec<u8>,
    reading: Option<Waker>,
    writing: Option<Waker>,
    /// Whether the session has dropped the connection.
    dropped: bool,
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
        self.0.borrow_mut().dropped = true;
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
        let len = buffer.len().min(client.incoming.len());
        for (slot, byte) in buffer.iter_mut().zip(client.incoming.drain(..len)) {
            *slot = byte;
        }
        Poll::Ready(Ok(len))
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut client = self.0.borrow_mut();
        let len = bytes.len().min(client.write_capacity);
        if len == 0 {
            client.writing = Some(cx.waker().clone());
            return Poll::Pending;
        }
        client.write_capacity -= len;
        client.received.extend_from_slice(&bytes[..len]);
        Poll::Ready(Ok(len))
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
fn block(fields: [HeadFields; 2], padding_len: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields.into_iter().flatten() {
        out.extend([0, name.len() as u8]);
        out.extend(name.bytes());
        out.push(value.len() as u8);
        out.extend(value.bytes());
    }
    if padding_len > 0 {
        // 127 and a number in groups of seven bits (section 5.1).
        out.extend(b"\0\x04long\x7f");
        let mut remaining = padding_len;
        while remaining >= 128 {
            out.push(remaining as u8 | 0x80);
            remaining >>= 7;
        }
        out.push(remaining as u8);
        out.resize(out.len() + 127 + padding_len, b'v');
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
    next_stream: u32,
    last_frames: Vec<u8>,
    sent_len: usize,
    /// The streams with a plain request, of which nothing was taken back.
    plain_streams: BTreeSet<u32>,
    /// Whether nothing was sent that could hold back responses or end the connection.
    well_behaved: bool,
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
        2 * (u32::from(number) % (self.next_stream / 2 + 1)) + 1
    }

    /// Takes a step. Returns its frames, the bytes that the client reads, and whether it ends.
    fn step(&mut self) -> (Vec<u8>, usize, bool) {
        let step = STEPS[usize::from(self.take()) % STEPS.len()];
        let (selector, modifier) = (self.take(), self.take());
        let stream = self.stream(modifier >> 2);
        let bytes = match step {
            ScriptStep::Opens => {
                let (head, extra_fields) = HEADS[usize::from(selector) % HEADS.len()];
                let stream = self.next_stream;
                self.next_stream += 2;
                let is_plain = selector == 0 && modifier & END_STREAM != 0 && modifier & 0x80 == 0;
                if is_plain {
                    self.plain_streams.insert(stream);
                } else {
                    self.well_behaved = false;
                }
                let padding_len = if modifier & 0x80 == 0 { 0 } else { usize::from(modifier) * 64 };
                let block = block([head, extra_fields], padding_len);
                let is_whole = modifier & 0x40 == 0;
                let (first_half, rest) = block.split_at(if is_whole { block.len() } else { block.len() / 2 });
                let mut frames = frame(
                    HEADERS,
                    (modifier & END_STREAM) | (u8::from(is_whole) * END_HEADERS),
                    stream,
                    first_half,
                );
                if !is_whole {
                    frames.extend(frame(CONTINUATION, END_HEADERS, stream, rest));
                }
                frames
            }
            ScriptStep::Data => {
                self.well_behaved = false;
                frame(
                    DATA,
                    modifier & (END_STREAM | 8),
                    stream,
                    &vec![selector; usize::from(selector) * usize::from(modifier)],
                )
            }
            ScriptStep::Trailers => {
                self.well_behaved = false;
                let fields: HeadFields = match selector % 4 {
                    0 => &[("x-sum", "7")],
                    1 => &[(":path", "/x")],
                    2 => &[("content-length", "9"), ("host", "evil"), ("x-sum", "7")],
                    _ => &[],
                };
                frame(HEADERS, END_HEADERS | modifier & END_STREAM, stream, &block([fields, &[]], 0))
            }
            ScriptStep::Resets => {
                self.plain_streams.remove(&stream);
                self.well_behaved = false;
                frame(RST_STREAM, 0, stream, &u32::from(selector).to_be_bytes())
            }
            ScriptStep::OpensWindow => {
                self.well_behaved = false;
                let increment = u32::from_be_bytes([selector, modifier, modifier, modifier]);
                frame(WINDOW_UPDATE, 0, if selector & 1 == 0 { 0 } else { stream }, &increment.to_be_bytes())
            }
            ScriptStep::Sets => {
                self.well_behaved = false;
                let value = match modifier % 4 {
                    0 => 0,
                    1 => u32::from(modifier),
                    2 => 16_384,
                    _ => u32::MAX >> (modifier >> 6),
                };
                let setting = [&[0, selector % 10][..], &value.to_be_bytes()].concat();
                frame(SETTINGS, u8::from(selector > 250), 0, if selector > 240 { &[] } else { &setting })
            }
            ScriptStep::Pings => {
                self.pings += 1;
                // More are an attack.
                self.well_behaved &= self.pings < 900;
                frame(PING, selector & 1, 0, &[modifier; 8])
            }
            ScriptStep::Odd => {
                self.well_behaved = false;
                let kind = [PRIORITY, PUSH_PROMISE, GOAWAY, CONTINUATION, 0x10][usize::from(selector) % 5];
                frame(
                    kind,
                    modifier,
                    stream * u32::from(selector >> 7),
                    &vec![selector; usize::from(modifier & 15)],
                )
            }
            ScriptStep::Raw => {
                self.well_behaved = false;
                let (raw, rest) = self.bytes.split_at(self.bytes.len().min(usize::from(selector)));
                self.bytes = rest;
                raw.to_vec()
            }
            ScriptStep::Repeats => {
                self.well_behaved = false;
                self.last_frames
                    .repeat((usize::from(selector) * 8 + 1).min(MAX_SCRIPT / self.last_frames.len().max(1)))
            }
            ScriptStep::Reads => {
                return (Vec::new(), usize::from(selector) * usize::from(modifier) + 1, false);
            }
            ScriptStep::Ends => return (Vec::new(), 0, true),
        };
        self.sent_len += bytes.len();
        if !matches!(step, ScriptStep::Repeats) {
            self.last_frames.clone_from(&bytes);
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
    let (mut received, mut is_first) = (ReceivedStreams::default(), true);
    let (mut reset_streams, mut reset_count) = (BTreeSet::new(), 0);
    while let Some((&[a, b, c, kind, flags, d, e, f, g], rest)) = bytes.split_first_chunk::<9>() {
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        let Some((payload, rest)) = rest.split_at_checked(len) else { break };
        bytes = rest;
        let stream = u32::from_be_bytes([d, e, f, g]);
        assert!(!std::mem::take(&mut is_first) || kind == SETTINGS, "settings come first, not {kind}");
        match kind {
            HEADERS | DATA => {
                assert!(stream % 2 == 1, "a stream of the client");
                assert!(!received.ended.contains(&stream), "stream {stream} goes on after its end");
                assert!(!reset_streams.contains(&stream), "stream {stream} goes on after its reset");
                assert!(kind == HEADERS || received.answered.contains(&stream), "a body without a head");
                received.answered.insert(stream);
                if flags & END_STREAM != 0 {
                    received.ended.insert(stream);
                }
            }
            RST_STREAM => {
                let code = payload.first_chunk().copied().map_or(0, u32::from_be_bytes);
                // Once more for each frame on a closed stream (section 5.1), within their limit.
                reset_streams.insert(stream);
                reset_count += 1;
                received.ended.insert(stream);
                if code == REFUSED_STREAM {
                    received.refused.insert(stream);
                }
            }
            GOAWAY => {
                let code = payload.get(4..).and_then(<[u8]>::first_chunk).copied();
                received.goaway = Some(code.map_or(0, u32::from_be_bytes));
            }
            SETTINGS | PING | WINDOW_UPDATE | CONTINUATION => {}
            other => panic!("a frame of kind {other}"),
        }
    }
    assert!(
        reset_count <= reset_streams.len() + MAX_LOCAL_RESETS,
        "{reset_count} resets of {} streams",
        reset_streams.len()
    );
    received
}

/// Lets the sessions of a core run.
async fn yield_several() {
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
}

/// Panics if the law does not hold. Returns `true` if the connection was valid until the client ended and a
/// request was answered.
async fn check_script(core: &Rc<ThreadContext>, listener: &Rc<Listener>, input: &[u8]) -> bool {
    let initial_refs = Rc::strong_count(listener);
    let (flags, bytes) = input.split_first().unwrap_or((&0, b""));
    let mut script = ClientScript {
        bytes,
        next_stream: 1,
        last_frames: Vec::new(),
        sent_len: 0,
        plain_streams: BTreeSet::new(),
        well_behaved: flags & 1 == 0,
        pings: 0,
        steps: flags & 2 != 0,
    };
    let client = Rc::new(RefCell::new(RawClient::default()));
    if flags & 1 == 0 {
        client.borrow_mut().incoming.extend(PREFACE);
        client.borrow_mut().incoming.extend(frame(SETTINGS, 0, 0, &[]));
    }
    client.borrow_mut().write_capacity = if script.steps { 0 } else { usize::MAX };
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
    while !script.bytes.is_empty() && script.sent_len < MAX_SCRIPT {
        let (frames, capacity, ends_input) = script.step();
        {
            let mut client = client.borrow_mut();
            client.incoming.extend(frames);
            client.write_capacity = client.write_capacity.saturating_add(capacity);
            client.ended |= ends_input;
            client.wake();
        }
        if capacity > 0 || ends_input || script.sent_len.is_multiple_of(3) {
            yield_several().await;
        }
        let client = client.borrow();
        assert!(memory.status().1 <= MAX_MEMORY, "{} bytes are kept", memory.status().1);
        if client.ended || client.dropped {
            break;
        }
    }
    let ended = client.borrow().ended;
    {
        let mut client = client.borrow_mut();
        client.write_capacity = usize::MAX;
        client.wake();
    }
    if script.well_behaved && !ended {
        // bound: the whole of it has one, and turns alone lead to the awaited state.
        loop {
            yield_several().await;
            let received = parse_received(&client.borrow().received);
            assert!(received.goaway.is_none(), "{received:?}");
            if script.plain_streams.is_subset(&received.ended) {
                assert!(script.plain_streams.iter().all(
                    |stream| received.answered.contains(stream) || received.refused.contains(stream)
                ));
                break;
            }
        }
    }
    yield_several().await;
    let received_before = parse_received(&client.borrow().received);
    {
        let mut client = client.borrow_mut();
        client.ended = true;
        client.wake();
    }
    // bound: as above
    while !client.borrow().dropped || Rc::strong_count(listener) > initial_refs || memory.status().1 > 0 {
        yield_several().await;
    }
    let _ = parse_received(&client.borrow().received);
    !ended && received_before.goaway.is_none() && !received_before.answered.is_empty()
}

/// Checks the law on a core that serves one input after the other. Every part of it must end within a minute.
pub(crate) fn check(input: &[u8]) -> bool {
    thread_local! {
        // The thread's owner keeps it to the end.
        static STAGE: &'static H2Fixture = Box::leak(Box::new(H2Fixture::new()));
    }
    STAGE.with(|fixture| {
        let run = check_script(&fixture.core, &fixture.listener, input);
        let bounded = async { tokio::time::timeout(Duration::from_secs(60), run).await };
        fixture.runtime.block_on(bounded).expect("it ends")
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
    fn panic_count() -> u32 {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let default_hook = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                PANICS.set(PANICS.get() + 1);
                default_hook(info);
            }));
        });
        PANICS.get()
    }

    #[test]
    fn the_corpus_obeys_it_and_what_is_nearly_in_it() {
        panic_count();
        crate::near::holds(
            "http2",
            &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0x41, 0x81, 0xff],
            300,
            |input| {
                let useful = check(input);
                assert_eq!(panic_count(), 0, "a session panicked");
                useful
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
            let client =
                Rc::new(RefCell::new(RawClient { write_capacity: usize::MAX, ..RawClient::default() }));
            client.borrow_mut().incoming.extend([PREFACE, &frame(SETTINGS, 0, 0, &[]), &bytes].concat());
            let stream = RawClientStream(Rc::clone(&client));
            let fixture = H2Fixture::new();
            fixture.runtime.block_on(async {
                let peer = PeerAddresses { client: LOOPBACK, local: LOOPBACK };
                let (core, listener) = (Rc::clone(&fixture.core), Rc::clone(&fixture.listener));
                super::super::serve_connection(core, listener, stream, peer, Vec::new(), None);
                let closed = async {
                    while !client.borrow().dropped {
                        yield_several().await;
                    }
                };
                tokio::time::timeout(Duration::from_secs(60), closed).await.expect(name);
            });
            let code = parse_received(&client.borrow().received).goaway;
            assert!(code.is_some_and(|code| code != 0), "{name}: {code:?}");
        }
    }
}
