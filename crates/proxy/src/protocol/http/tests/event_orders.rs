//! One exchange under every order of the client's and the member's actions, with short writes.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use plimsoll_brain::Time;

use super::{session_at, test_context};
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
    write_capacity: usize,
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
        let len = buffer.len().min(peer.incoming.len());
        for (slot, byte) in buffer.iter_mut().zip(peer.incoming.drain(..len)) {
            *slot = byte;
        }
        Poll::Ready(Ok(len))
    }

    fn poll_send(&mut self, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut peer = self.0.borrow_mut();
        let len = bytes.len().min(peer.write_capacity);
        if len == 0 {
            return Poll::Pending;
        }
        peer.write_capacity -= len;
        peer.received.extend_from_slice(&bytes[..len]);
        Poll::Ready(Ok(len))
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
    let Some(pivot) = (1..order.len()).rev().find(|index| order[index - 1] < order[*index]) else {
        return false;
    };
    let Some(successor) = (pivot..order.len()).rev().find(|index| order[pivot - 1] < order[*index]) else {
        return false;
    };
    order.swap(pivot - 1, successor);
    order[pivot..].reverse();
    true
}

struct ExchangeScenario {
    request: &'static [&'static str],
    response: &'static [&'static str],
    /// Whether the response leaves the member's connection usable if the whole request was sent.
    reusable: bool,
    /// Whether the member switches protocols.
    switches: bool,
}

const POST: &[&str] =
    &["POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 30\r\n\r\n01234", "567890123456789", "0123456789"];

const SCENARIOS: &[ExchangeScenario] = &[
    ExchangeScenario {
        request: POST,
        response: &["HTTP/1.1 403 Forbidden\r\nContent-", "Length: 6\r\n\r\nea", "rly."],
        reusable: true,
        switches: false,
    },
    ExchangeScenario {
        request: &[
            "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n14\r\n0123",
            "4567890123456789\r\n",
            "0\r\n\r\n",
        ],
        response: &["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2", "\r\nok\r\n0\r\n", "\r\n"],
        reusable: true,
        switches: false,
    },
    ExchangeScenario {
        request: POST,
        response: &["HTTP/1.1 413 No\r\nConnection: close\r\nContent-Length: 2\r\n\r\n", "n", "o"],
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
        response: &[
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
    context: &(Rc<ThreadContext>, Rc<Listener>),
    scenario: &ExchangeScenario,
    order: &[PeerEvent],
) -> (Option<Result<CompletedExchange, ExchangeFailure>>, SharedPeer, SharedPeer) {
    let (client, member) = (SharedPeer::default(), SharedPeer::default());
    // The head is there: without it there is no exchange.
    client.borrow_mut().incoming.extend(scenario.request[0].bytes());
    let (core, listener) = context;
    let mut session = session_at(Rc::clone(core), Rc::clone(listener), PeerStream(Rc::clone(&client)));
    let mut cx = Context::from_waker(Waker::noop());
    let Poll::Ready(NextRequest::Request(mut request)) = pin!(session.next_request(core)).poll(&mut cx)
    else {
        panic!("the head is whole")
    };
    let pool = session.listener.pool();
    let AdmissionOutcome::Admitted(in_flight) = pool.admit(0, 0, Time(0), &[], WorkKind::Session) else {
        panic!("no member")
    };
    let mut stream = PeerStream(Rc::clone(&member));
    let mut result = None;
    {
        let mut exchange =
            pin!(session.exchange(&mut request, &mut stream, &in_flight, Time(u64::MAX), false));
        let (mut request_parts, mut response_parts) =
            (scenario.request[1..].iter(), scenario.response.iter());
        for event in order {
            match event {
                PeerEvent::RequestArrives => {
                    client.borrow_mut().incoming.extend(request_parts.next().expect("a piece").bytes())
                }
                PeerEvent::ResponseArrives => {
                    member.borrow_mut().incoming.extend(response_parts.next().expect("a piece").bytes())
                }
                PeerEvent::MemberReads => member.borrow_mut().write_capacity += 60,
                PeerEvent::ClientReads => client.borrow_mut().write_capacity += 200,
                PeerEvent::MemberEnds => member.borrow_mut().ended = true,
            }
            // Twice: a future may be woken without a reason.
            for _ in 0..2 {
                if result.is_none()
                    && let Poll::Ready(ended) = exchange.as_mut().poll(&mut cx)
                {
                    result = Some(ended);
                }
            }
        }
    }
    (result, client, member)
}

/// A connection returns to the pool only if the member has received all of this request and nothing of
/// another, and owes no response.
#[test]
fn a_pooled_connection_carries_no_unsent_byte_and_owes_no_answer() {
    use PeerEvent::{ClientReads, MemberEnds, MemberReads, RequestArrives, ResponseArrives};
    let context = test_context();
    let (mut pooled, mut early, mut tunnels) = (0, 0, 0);
    for scenario in SCENARIOS {
        let (request, response) = (scenario.request.concat(), scenario.response.concat());
        for member_ends in [false, true] {
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
            order.extend(member_ends.then_some(MemberEnds));
            order.sort_unstable();
            loop {
                let (result, client, member) = run(&context, scenario, &order);
                let (client, member) = (client.borrow(), member.borrow());
                let client_received = String::from_utf8_lossy(&client.received);
                let member_received = String::from_utf8_lossy(&member.received);
                // Heads are rewritten; the bytes after them are not.
                let (expected_body, sent_body) = (body(&request), body(&member_received));
                assert!(
                    expected_body.starts_with(sent_body),
                    "{order:?}: the member got other bytes: {member_received:?}"
                );
                let complete = expected_body == sent_body;
                match result {
                    Some(Ok(end)) if end.keep_member => {
                        pooled += 1;
                        assert!(
                            complete,
                            "{order:?}: pooled while a part of the request is unsent: {member_received:?}"
                        );
                        assert!(
                            scenario.reusable,
                            "{order:?}: pooled, but the member is not to be asked again"
                        );
                        assert_eq!(body(&client_received), body(&response), "{order:?}: the answer is whole");
                        assert!(member.incoming.is_empty(), "{order:?}: pooled with an answer unread");
                    }
                    Some(Ok(_)) => early += u32::from(!complete),
                    Some(Err(_)) | None => {}
                }
                if scenario.switches && client_received.ends_with("hello") {
                    tunnels += 1;
                    assert!(
                        complete,
                        "{order:?}: a tunnel before the member has the request: {member_received:?}"
                    );
                }
                if !advance(&mut order) {
                    break;
                }
            }
        }
    }
    let summary = format!("{pooled} pooled, {early} answered early, {tunnels} tunnels");
    assert!(pooled > 1000 && early > 1000 && tunnels > 1000, "{summary}");
}

/// Returns the part after a head; empty if there is no head.
fn body(message: &str) -> &str {
    message.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}
