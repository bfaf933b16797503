//! One exchange under every order of the client's and the member's actions, with short writes.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use plimsoll_brain::Time;

use super::{session_at, stage};
use crate::listener::Listener;
use crate::net::byte_stream::{ByteStream, as_io};
use crate::protocol::http::NextRequest;
use crate::protocol::http::outcome::{CompletedExchange, ExchangeFailure};
use crate::upstream::pool::{AdmissionOutcome, WorkKind};
use crate::upstream::thread_context::ThreadContext;

/// A peer whose socket delivers and accepts bytes only as the test permits.
#[derive(Default)]
struct TestPeer {
    incoming: VecDeque<u8>,
    ended: bool,
    /// The free bytes in its receive buffer.
    room: usize,
    received: Vec<u8>,
}

type SharedPeer = Rc<RefCell<TestPeer>>;

struct PeerStream(SharedPeer);

impl ByteStream for PeerStream {
    fn poll_recv(&mut self, _: &mut Context<'_>, buffer: &mut [u8], _: &mut bool) -> Poll<io::Result<usize>> {
        let mut peer = self.0.borrow_mut();
        if peer.incoming.is_empty() {
            return if peer.ended { Poll::Ready(Ok(0)) } else { Poll::Pending };
        }
        let came = buffer.len().min(peer.incoming.len());
        for (space, byte) in buffer.iter_mut().zip(peer.incoming.drain(..came)) {
            *space = byte;
        }
        Poll::Ready(Ok(came))
    }

    fn poll_send(&mut self, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut peer = self.0.borrow_mut();
        let taken = bytes.len().min(peer.room);
        if taken == 0 {
            return Poll::Pending;
        }
        peer.room -= taken;
        peer.received.extend_from_slice(&bytes[..taken]);
        Poll::Ready(Ok(taken))
    }
}

as_io!(PeerStream);

/// One event outside of the balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PeerEvent {
    /// The next piece of the request arrives.
    RequestArrives,
    /// The next piece of the response arrives.
    ResponseArrives,
    /// The member accepts some bytes of the request.
    MemberReads,
    /// The client accepts some bytes of the response.
    ClientReads,
    MemberEnds,
}

/// Moves to the next order of a multiset; returns `false` after the last (Knuth, TAOCP 7.2.1.2, algorithm L).
fn advance(order: &mut [PeerEvent]) -> bool {
    let Some(rise) = (1..order.len()).rev().find(|at| order[at - 1] < order[*at]) else { return false };
    let Some(other) = (rise..order.len()).rev().find(|at| order[rise - 1] < order[*at]) else { return false };
    order.swap(rise - 1, other);
    order[rise..].reverse();
    true
}

struct ExchangeScenario {
    request: &'static [&'static str],
    answer: &'static [&'static str],
    /// Whether the response leaves the member's connection usable if the whole request was sent.
    reusable: bool,
    /// Whether the member switches protocols.
    switches: bool,
}

const POST: &[&str] =
    &["POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 30\r\n\r\n01234", "567890123456789", "0123456789"];

const SCENES: &[ExchangeScenario] = &[
    ExchangeScenario {
        request: POST,
        answer: &["HTTP/1.1 403 Forbidden\r\nContent-", "Length: 6\r\n\r\nea", "rly."],
        reusable: true,
        switches: false,
    },
    ExchangeScenario {
        request: &[
            "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n14\r\n0123",
            "4567890123456789\r\n",
            "0\r\n\r\n",
        ],
        answer: &["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2", "\r\nok\r\n0\r\n", "\r\n"],
        reusable: true,
        switches: false,
    },
    ExchangeScenario {
        request: POST,
        answer: &["HTTP/1.1 413 No\r\nConnection: close\r\nContent-Length: 2\r\n\r\n", "n", "o"],
        reusable: false,
        switches: false,
    },
    ExchangeScenario {
        request: &[
            "POST / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: y\r\nContent-Length: \
             30\r\n\r\n01234",
            "567890123456789",
            "0123456789",
        ],
        answer: &[
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n",
            "Upgrade: y\r\n\r\n",
            "hello",
        ],
        reusable: false,
        switches: true,
    },
];

/// Runs a scene in one order; returns the outcome, and both peers afterwards.
fn run(
    stage: &(Rc<ThreadContext>, Rc<Listener>),
    scene: &ExchangeScenario,
    order: &[PeerEvent],
) -> (Option<Result<CompletedExchange, ExchangeFailure>>, SharedPeer, SharedPeer) {
    let (client, member) = (SharedPeer::default(), SharedPeer::default());
    // The head is there: without it there is no exchange.
    client.borrow_mut().incoming.extend(scene.request[0].bytes());
    let (core, listener) = stage;
    let mut session = session_at(Rc::clone(core), Rc::clone(listener), PeerStream(Rc::clone(&client)));
    let mut cx = Context::from_waker(Waker::noop());
    let Poll::Ready(NextRequest::Request(mut asked)) = pin!(session.next(core)).poll(&mut cx) else {
        panic!("the head is whole")
    };
    let pool = session.listener.pool();
    let AdmissionOutcome::Admitted(trip) = pool.admit(0, 0, Time(0), &[], WorkKind::Session) else {
        panic!("no member")
    };
    let mut stream = PeerStream(Rc::clone(&member));
    let mut end = None;
    {
        let mut exchange = pin!(session.exchange(&mut asked, &mut stream, &trip, Time(u64::MAX), false));
        let (mut asks, mut answers) = (scene.request[1..].iter(), scene.answer.iter());
        for event in order {
            match event {
                PeerEvent::RequestArrives => {
                    client.borrow_mut().incoming.extend(asks.next().expect("a piece").bytes())
                }
                PeerEvent::ResponseArrives => {
                    member.borrow_mut().incoming.extend(answers.next().expect("a piece").bytes())
                }
                PeerEvent::MemberReads => member.borrow_mut().room += 60,
                PeerEvent::ClientReads => client.borrow_mut().room += 200,
                PeerEvent::MemberEnds => member.borrow_mut().ended = true,
            }
            // Twice: a future may be woken without a reason.
            for _ in 0..2 {
                if end.is_none()
                    && let Poll::Ready(ended) = exchange.as_mut().poll(&mut cx)
                {
                    end = Some(ended);
                }
            }
        }
    }
    (end, client, member)
}

/// A connection returns to the pool only if the member has received all of this request and nothing of
/// another, and owes no response.
#[test]
fn a_pooled_connection_carries_no_unsent_byte_and_owes_no_answer() {
    use PeerEvent::{ClientReads, MemberEnds, MemberReads, RequestArrives, ResponseArrives};
    let stage = stage();
    let (mut pooled, mut early, mut tunnels) = (0, 0, 0);
    for scene in SCENES {
        let (request, answer) = (scene.request.concat(), scene.answer.concat());
        for ends in [false, true] {
            let mut order = vec![
                RequestArrives,
                RequestArrives,
                ResponseArrives,
                ResponseArrives,
                ResponseArrives,
                MemberReads,
                MemberReads,
                ClientReads,
            ];
            order.extend(ends.then_some(MemberEnds));
            order.sort_unstable();
            loop {
                let (end, client, member) = run(&stage, scene, &order);
                let (client, member) = (client.borrow(), member.borrow());
                let told = String::from_utf8_lossy(&client.received);
                let sent = String::from_utf8_lossy(&member.received);
                // Heads are rewritten; the bytes after them are not.
                let (asked, passed) = (body(&request), body(&sent));
                assert!(asked.starts_with(passed), "{order:?}: the member got other bytes: {sent:?}");
                let whole = asked == passed;
                match end {
                    Some(Ok(end)) if end.keep_member => {
                        pooled += 1;
                        assert!(whole, "{order:?}: pooled while a part of the request is unsent: {sent:?}");
                        assert!(scene.reusable, "{order:?}: pooled, but the member is not to be asked again");
                        assert_eq!(body(&told), body(&answer), "{order:?}: the answer is whole");
                        assert!(member.incoming.is_empty(), "{order:?}: pooled with an answer unread");
                    }
                    Some(Ok(_)) => early += u32::from(!whole),
                    Some(Err(_)) | None => {}
                }
                if scene.switches && told.ends_with("hello") {
                    tunnels += 1;
                    assert!(whole, "{order:?}: a tunnel before the member has the request: {sent:?}");
                }
                if !advance(&mut order) {
                    break;
                }
            }
        }
    }
    let seen = format!("{pooled} pooled, {early} answered early, {tunnels} tunnels");
    assert!(pooled > 1000 && early > 1000 && tunnels > 1000, "{seen}");
}

/// Returns the part after a head; empty if there is no head.
fn body(message: &str) -> &str {
    message.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}
