//! The relay without sockets: every message cut at every byte gives the same bytes on the other side.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use plimsoll_brain::Time;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::outcome::{CompletedExchange, ExchangeFailure};
use super::{HttpSession, NextRequest};
use crate::listener::Listener;
use crate::net::reason::Reason;
use crate::runtime::clock::Clock;
use crate::runtime::resource_limits::ResourceLimits;
use crate::runtime::timer_fd::TimerFd;
use crate::test_util::{LOOPBACK, listener, pool};
use crate::upstream::connect::PeerAddresses;
use crate::upstream::pool::{AdmissionOutcome, WorkKind};
use crate::upstream::thread_context::ThreadContext;

mod event_orders;

/// A stream that delivers given pieces, each after a pause, and accepts a limited number of bytes at a time.
struct ScriptedStream {
    pieces: Vec<Vec<u8>>,
    next: usize,
    paused: bool,
    /// The behaviour after the last piece.
    end: ScriptEnd,
    /// The bytes that it accepts, and the time that passes, before it delivers anything.
    read_after: usize,
    read_delay: Duration,
    started_at: Instant,
    out: Vec<u8>,
    max_write: usize,
    write_blocked: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum ScriptEnd {
    Silence,
    Eof,
    Reset,
}

impl ScriptedStream {
    fn new(bytes: &[u8], cuts: &[usize], end: ScriptEnd, max_write: usize) -> Self {
        let mut pieces = Vec::new();
        let mut start = 0;
        for cut in cuts.iter().copied().chain([bytes.len()]) {
            let cut = cut.clamp(start, bytes.len());
            if cut > start {
                pieces.push(bytes[start..cut].to_vec());
            }
            start = cut;
        }
        Self {
            pieces,
            next: 0,
            paused: false,
            end,
            read_after: 0,
            read_delay: Duration::ZERO,
            started_at: Instant::now(),
            out: Vec::new(),
            max_write,
            write_blocked: false,
        }
    }
}

impl AsyncRead for ScriptedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // bound: the delay that the test sets
        if self.out.len() < self.read_after || self.started_at.elapsed() < self.read_delay {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.next < self.pieces.len() {
            self.paused = !self.paused;
            if self.paused {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let next = self.next;
            let len = buf.remaining().min(self.pieces[next].len());
            let rest = self.pieces[next].split_off(len);
            buf.put_slice(&self.pieces[next]);
            self.pieces[next] = rest;
            if self.pieces[next].is_empty() {
                self.next += 1;
            }
            return Poll::Ready(Ok(()));
        }
        match self.end {
            ScriptEnd::Silence => Poll::Pending,
            ScriptEnd::Eof => Poll::Ready(Ok(())),
            ScriptEnd::Reset => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        }
    }
}

impl AsyncWrite for ScriptedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write_blocked = !self.write_blocked && self.max_write != usize::MAX;
        if self.write_blocked {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let len = bytes.len().min(self.max_write);
        self.out.extend_from_slice(&bytes[..len]);
        Poll::Ready(Ok(len))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl crate::net::byte_stream::ByteStream for ScriptedStream {}

fn session(client: ScriptedStream) -> HttpSession<ScriptedStream> {
    let (core, listener) = test_context();
    session_at(core, listener, client)
}

/// Returns a core and a listener on it.
fn test_context() -> (Rc<ThreadContext>, Rc<Listener>) {
    let core = ThreadContext::new(0, Clock::start(), ResourceLimits::new(10, 100, 1 << 30)).expect("a core");
    let listener = listener(&core, pool(&core));
    (core, listener)
}

fn session_at<S: crate::net::byte_stream::ByteStream>(
    core: Rc<ThreadContext>,
    listener: Rc<Listener>,
    stream: S,
) -> HttpSession<S> {
    let timer = core.wheel.timer(std::task::Waker::noop());
    let peer = PeerAddresses { client: LOOPBACK, local: LOOPBACK };
    HttpSession {
        core,
        listener,
        stream,
        watched: false,
        peer,
        client: super::ClientDescription::new(&peer, "http"),
        unread: Vec::new(),
        memory_reservation: Default::default(),
        timer,
        answered_locally: false,
        served_requests: 0,
        binding: None,
        alert_state: Default::default(),
        connection_guard: None,
    }
}

/// The bytes that went to the member and to the client, and the outcome.
type RelayResult = (String, String, Result<(u16, bool, bool), ExchangeFailure>);

fn relay(client: ScriptedStream, mut member: ScriptedStream) -> RelayResult {
    let mut session = session(client);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    let (core, wheel) = (Rc::clone(&session.core), Rc::clone(&session.core.wheel));
    let timer_fd = runtime.block_on(async { TimerFd::new(Clock::start()).expect("an alarm") });
    let end = runtime.block_on(async {
        session.timer = poll_fn(|cx| Poll::Ready(wheel.timer(cx.waker()))).await;
        let NextRequest::Request(mut request) = session.next_request(&core).await else {
            panic!("no request")
        };
        let pool = session.listener.pool();
        let AdmissionOutcome::Admitted(in_flight) = pool.admit(0, 0, Time(0), &[], WorkKind::Session) else {
            panic!("no member")
        };
        let exchange = session.exchange(&mut request, &mut member, &in_flight, Time(u64::MAX), false);
        let end = tokio::select! {
            () = Rc::clone(&wheel).drive(timer_fd, async || {}) => unreachable!("the wheel turns for ever"),
            end = tokio::time::timeout(Duration::from_secs(60), exchange) => end.expect("it ends"),
        };
        end.map(|CompletedExchange { status, keep_member, keep_client, .. }| {
            (status, keep_member, keep_client)
        })
    });
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    (text(&member.out), text(&session.stream.out), end)
}

struct RelayCase {
    client: &'static str,
    member: &'static str,
    /// Whether the member closes after its response.
    closes: bool,
    to_member: &'static str,
    to_client: &'static str,
    end: (u16, bool, bool),
}

const CASES: &[RelayCase] = &[
    RelayCase {
        client: "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        member: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        closes: false,
        to_member: "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        to_client: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        end: (200, true, true),
    },
    RelayCase {
        client: "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3;e=1\r\nabc\r\n0\r\nT: \
            1\r\n\r\n",
        member: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: \
            Z\r\n\r\n2\r\nok\r\n1;x\r\n!\r\n0\r\nZ: 9\r\n\r\n",
        closes: false,
        to_member: "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3;e=1\r\nabc\r\n0\r\nT: \
            1\r\n\r\n",
        to_client: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: \
            Z\r\n\r\n2\r\nok\r\n1;x\r\n!\r\n0\r\nZ: 9\r\n\r\n",
        end: (200, true, true),
    },
    RelayCase {
        client: "PUT / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nbody",
        member: "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\nHTTP/1.1 204 No \
            Content\r\nConnection: close\r\n\r\n",
        closes: true,
        to_member: "PUT / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nbody",
        to_client: "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\nHTTP/1.1 204 \
            No Content\r\n\r\n",
        end: (204, false, true),
    },
    RelayCase {
        client: "HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        member: "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n",
        closes: false,
        to_member: "HEAD / HTTP/1.1\r\nHost: x\r\n\r\n",
        to_client: "HTTP/1.1 200 OK\r\nContent-Length: 500\r\nConnection: close\r\n\r\n",
        end: (200, true, false),
    },
    RelayCase {
        client: "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        member: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4;q\r\ndefg\r\n0\r\n\r\n",
        closes: false,
        to_member: "GET / HTTP/1.0\r\n\r\n",
        to_client: "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabcdefg",
        end: (200, true, false),
    },
    // Fields of heads in trailers, and fields that servers pad.
    RelayCase {
        client: "POST / HTTP/1.1\r\nHost: x\r\nConnection: x-hop\r\nTransfer-Encoding: chunked\r\n\r\n\
                 3 ;e\r\nabc\r\n0\r\nHost: y\r\nT: 1\r\nX-Hop: 2\r\nCookie: c\r\n\r\n",
        member: "HTTP/1.2 200 OK\r\nServer : old\r\nTransfer-Encoding: chunked\r\n\r\n\
                 2  \r\nok\r\n0 \r\nContent-Length: 3\r\nZ: 9\r\nSet-Cookie: a=b\r\n\r\n",
        closes: false,
        to_member: "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3;e\r\nabc\r\n0\r\nT: \
            1\r\n\r\n",
        to_client: "HTTP/1.1 200 OK\r\nServer: old\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nZ: \
            9\r\n\r\n",
        end: (200, true, true),
    },
    RelayCase {
        client: "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        member: "HTTP/1.0 200 OK\r\nServer: old\r\n\r\nuntil the end",
        closes: true,
        to_member: "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        to_client: "HTTP/1.1 200 OK\r\nServer: old\r\nConnection: close\r\n\r\nuntil the end",
        end: (200, false, false),
    },
];

#[test]
fn every_cut_gives_the_same_bytes() {
    for case in CASES {
        let expected: RelayResult = (case.to_member.into(), case.to_client.into(), Ok(case.end));
        let member_end = if case.closes { ScriptEnd::Eof } else { ScriptEnd::Silence };
        for max_write in [usize::MAX, 1, 7] {
            let run = |client: &[usize], member: &[usize]| {
                let client =
                    ScriptedStream::new(case.client.as_bytes(), client, ScriptEnd::Silence, max_write);
                let mut member = ScriptedStream::new(case.member.as_bytes(), member, member_end, max_write);
                member.read_after = case.to_member.len();
                relay(client, member)
            };
            for cut in 0..case.client.len() {
                assert_eq!(run(&[cut], &[]), expected, "client cut at {cut}, {max_write} taken");
            }
            for cut in 0..case.member.len() {
                assert_eq!(run(&[], &[cut]), expected, "member cut at {cut}, {max_write} taken");
            }
            let each = |text: &str| (0..text.len()).collect::<Vec<_>>();
            assert_eq!(
                run(&each(case.client), &each(case.member)),
                expected,
                "every byte, {max_write} taken"
            );
        }
    }
}

fn relay_texts(client: &str, client_end: ScriptEnd, member: &str, member_end: ScriptEnd) -> RelayResult {
    relay(
        ScriptedStream::new(client.as_bytes(), &[], client_end, usize::MAX),
        ScriptedStream::new(member.as_bytes(), &[], member_end, usize::MAX),
    )
}

#[test]
fn an_early_answer_ends_an_unfinished_upload() {
    let client = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nbegin";
    let member = "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno";
    let (_, to_client, end) = relay_texts(client, ScriptEnd::Silence, member, ScriptEnd::Silence);
    assert_eq!(to_client, "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno");
    assert_eq!(end, Ok((413, false, false)));
}

#[test]
fn a_client_may_send_for_as_long_as_it_does_after_an_early_answer() {
    let rest = vec![b'x'; 4 << 20];
    let cuts: Vec<usize> = (1..=64).map(|nth| nth << 16).collect();
    let mut session = session(ScriptedStream::new(&rest, &cuts, ScriptEnd::Eof, usize::MAX));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    runtime.block_on(session.linger());
    let script = &session.stream;
    assert_eq!(script.next, script.pieces.len(), "closed with bytes unread the connection is reset");
}

#[test]
fn only_upgrades_that_are_allowed_are_passed_on() {
    let upgrade = |name| {
        let client = format!("GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: {name}\r\n\r\n");
        relay_texts(
            &client,
            ScriptEnd::Silence,
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            ScriptEnd::Silence,
        )
        .0
    };
    assert!(upgrade("WebSocket").ends_with("\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n\r\n"));
    for other in ["TLS/1.0", "foo", "websocket, foo", "HTTP/2.0"] {
        assert_eq!(upgrade(other), "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "{other}");
    }
}

#[test]
fn a_client_that_ends_its_side_has_left() {
    let client = ScriptedStream::new(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", &[], ScriptEnd::Eof, usize::MAX);
    let mut member = ScriptedStream::new(b"HTTP/1.1 200 OK\r\n\r\n", &[], ScriptEnd::Silence, usize::MAX);
    // The client is checked only if the response takes long: longer than the test.
    member.read_delay = Duration::from_secs(3600);
    assert_eq!(relay(client, member).2, Err(ExchangeFailure::ClientLeft(false)));
}

#[test]
fn what_goes_wrong_is_told_apart() {
    let get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    let failure = |client, client_end, member, member_end| {
        relay_texts(client, client_end, member, member_end).2.expect_err("a failure")
    };
    let reset = failure(get, ScriptEnd::Silence, "", ScriptEnd::Eof);
    assert_eq!(reset, ExchangeFailure::MemberFailed(Reason::Reset, false));
    let truncated_head = failure(get, ScriptEnd::Silence, "HTTP/1.1 200 O", ScriptEnd::Eof);
    assert_eq!(truncated_head, ExchangeFailure::MemberFailed(Reason::BadAnswer, false));
    let truncated_body =
        failure(get, ScriptEnd::Silence, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhal", ScriptEnd::Eof);
    assert_eq!(truncated_body, ExchangeFailure::ResponseTruncated);
    let client_reset = failure(get, ScriptEnd::Reset, "", ScriptEnd::Silence);
    assert_eq!(client_reset, ExchangeFailure::ClientLeft(false));
    let unexpected_upgrade =
        failure(get, ScriptEnd::Silence, "HTTP/1.1 101 Surprise\r\n\r\n", ScriptEnd::Silence);
    assert_eq!(unexpected_upgrade, ExchangeFailure::MemberFailed(Reason::BadAnswer, false));
    let chunk = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    let client =
        ScriptedStream::new(format!("{chunk}zz").as_bytes(), &[chunk.len()], ScriptEnd::Silence, usize::MAX);
    let refused = relay(client, ScriptedStream::new(b"", &[], ScriptEnd::Silence, usize::MAX)).2;
    assert_eq!(refused, Err(ExchangeFailure::RequestRejected(Reason::BadRequest)));
}

#[test]
fn bytes_after_the_answer_spoil_the_connection() {
    let (_, to_client, end) = relay_texts(
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        ScriptEnd::Silence,
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n",
        ScriptEnd::Silence,
    );
    assert!(to_client.ends_with("ok"));
    assert_eq!(end, Ok((200, false, true)));
}

#[test]
fn an_upgrade_becomes_a_tunnel() {
    let (to_member, to_client, end) = relay_texts(
        "GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nfrom the client",
        ScriptEnd::Eof,
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nfrom the \
         member",
        ScriptEnd::Eof,
    );
    assert!(to_member.ends_with("\r\n\r\nfrom the client"), "{to_member}");
    assert!(to_client.ends_with("\r\n\r\nfrom the member"), "{to_client}");
    assert_eq!(end, Ok((101, false, false)));
}

#[test]
fn a_member_that_fails_after_an_interim_answer_can_still_be_answered_for() {
    let get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    let early_hints = "HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n";
    let (_, to_client, result) = relay_texts(get, ScriptEnd::Silence, early_hints, ScriptEnd::Eof);
    assert_eq!(to_client, early_hints);
    assert_eq!(result, Err(ExchangeFailure::MemberFailed(Reason::Reset, false)));
}

#[test]
fn interim_answers_without_end_are_no_answer() {
    let get = "GET / HTTP/1.0\r\nHost: x\r\n\r\n";
    let early_hints = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1000);
    let (_, to_client, end) = relay_texts(get, ScriptEnd::Silence, &early_hints, ScriptEnd::Silence);
    assert_eq!((to_client.as_str(), end), ("", Err(ExchangeFailure::MemberFailed(Reason::BadAnswer, false))));
}

/// Returns the size of the result of a function with six arguments.
fn size_of_result<A, B, C, D, E, F, R>(_: impl Fn(A, B, C, D, E, F) -> R) -> usize {
    size_of::<R>()
}

#[test]
fn a_connection_between_requests_is_small() {
    // The allocator has sizes of 1024 and then 1280 bytes. An idle connection costs that, and as much again
    // beside it.
    let size = size_of_result(super::serve::<crate::net::connection::PeerConnection>);
    assert!(size <= 1024, "{size} bytes, {} of a request", size_of::<super::ParsedRequest>());
}
