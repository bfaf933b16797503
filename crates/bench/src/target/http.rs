//! HTTP/1.1: one request, several by weight, or a sequence. An answer of 400 or more is a failure;
//! `plimsoll-reason` marks that of a balancer that sheds load.
//!
//! The `x-member` header of answers, which test members set, names the member.

use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::sync::Arc;

use super::{Answer, Ask, Step, Target};
use crate::body::{self, Body};
use crate::chance::Chance;
use crate::record::Fault;

mod request;

pub use request::{HttpError, Request};

/// The maximum length of an answer's head.
const MAX_HEAD: usize = 64 * 1024;
/// The maximum number of headers of an answer.
const MAX_HEADERS: usize = 100;
/// The maximum number of distinguished members; answers of others count for `other`. A server that invents
/// names thus cannot exhaust the generator's memory.
const MAX_MEMBERS: usize = 256;

/// Requests for one or more `http://` URLs.
#[derive(Debug)]
pub struct Http {
    /// The addresses of all requests, without duplicates.
    addresses: Vec<SocketAddr>,
    requests: Vec<Routed>,
    choice: Choice,
    members: Vec<Arc<str>>,
    /// The name for members beyond the maximum.
    other: Arc<str>,
}

/// A request and its destination.
#[derive(Debug)]
struct Routed {
    route: usize,
    bytes: Arc<[u8]>,
    head: bool,
}

/// The choice of the next request.
#[derive(Debug)]
enum Choice {
    /// A cyclic sequence; the index of the next.
    Sequence(usize),
    /// A random choice; for each request the sum of the weights up to it.
    Weights { sums: Vec<f64>, chance: Chance },
}

impl Http {
    /// Creates a target that repeats one request; see [`Request::new`].
    ///
    /// # Errors
    /// Fails if the URL is malformed, its host has no address or a header cannot be sent.
    pub fn new(method: &str, url: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<Self, HttpError> {
        Self::sequence(vec![Request::new(method, url, headers, body)?])
    }

    /// Creates a target that draws each request with a probability in proportion to its weight.
    ///
    /// # Errors
    /// Fails if there is no request, a weight is negative or no number, or all are zero.
    pub fn mixed(requests: Vec<(f64, Request)>, seed: u64) -> Result<Self, HttpError> {
        let mut sum = 0.0;
        let mut sums = Vec::with_capacity(requests.len());
        for (weight, _) in &requests {
            if !weight.is_finite() || *weight < 0.0 {
                return Err(HttpError::Weight(*weight));
            }
            sum += weight;
            sums.push(sum);
        }
        let drawable = sum > 0.0 && sum.is_finite();
        if !drawable && !requests.is_empty() {
            return Err(HttpError::Weight(sum));
        }
        let requests = requests.into_iter().map(|(_, request)| request).collect();
        Self::of(requests, Choice::Weights { sums, chance: Chance::new(seed) })
    }

    /// Creates a target that cycles through the requests, for a replay.
    ///
    /// # Errors
    /// Fails if there is no request.
    pub fn sequence(requests: Vec<Request>) -> Result<Self, HttpError> {
        Self::of(requests, Choice::Sequence(0))
    }

    fn of(requests: Vec<Request>, choice: Choice) -> Result<Self, HttpError> {
        if requests.is_empty() {
            return Err(HttpError::None);
        }
        let mut addresses: Vec<SocketAddr> = Vec::new();
        let requests = requests
            .into_iter()
            .map(|request| {
                let known = addresses.iter().position(|address| *address == request.address());
                let route = known.unwrap_or_else(|| {
                    addresses.push(request.address());
                    addresses.len() - 1
                });
                Routed { route, head: request.is_head(), bytes: request.into_bytes() }
            })
            .collect();
        Ok(Self { addresses, requests, choice, members: Vec::new(), other: "other".into() })
    }

    /// Returns the shared name of a member.
    fn member(&mut self, name: &[u8]) -> Arc<str> {
        if let Some(known) = self.members.iter().find(|known| known.as_bytes() == name) {
            return known.clone();
        }
        if self.members.len() == MAX_MEMBERS {
            return self.other.clone();
        }
        let fresh: Arc<str> = String::from_utf8_lossy(name).into();
        self.members.push(fresh.clone());
        fresh
    }

    /// Parses a head at the beginning of `bytes`. Returns the rest of the answer, which is `bare` for a HEAD
    /// request, and the length of the head.
    fn head(&mut self, bare: bool, bytes: &[u8]) -> Result<Option<(Rest, usize)>, body::Malformed> {
        let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADERS];
        let mut head = httparse::Response::new(&mut []);
        let config = httparse::ParserConfig::default();
        let length = match config.parse_response_with_uninit_headers(&mut head, bytes, &mut headers) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD => return Ok(None),
            _ => return Err(body::Malformed("the head of an answer")),
        };
        let status = head.code.unwrap_or(0);
        let member = body::values(head.headers, "x-member").next();
        let shed = status == 503 && body::values(head.headers, "plimsoll-reason").any(|why| why == b"shed");
        let answer = Answer {
            member: member.map(|name| self.member(name)),
            fault: (status >= 400).then_some(if shed { Fault::Shed } else { Fault::Status }),
            reason: None,
            reusable: body::keeps_alive(head.version.unwrap_or(0), head.headers),
        };
        let body = Body::of_answer(status, bare, head.headers)?;
        Ok(Some((Rest { interim: (100..200).contains(&status), answer, body }, length)))
    }
}

/// The parsed head of an answer, and its body.
#[derive(Debug)]
struct Rest {
    /// Whether it is a 1xx, which another answer follows.
    interim: bool,
    answer: Answer,
    body: Body,
}

/// The progress of one answer.
#[derive(Debug, Default)]
pub struct HttpState {
    /// Whether it answers a HEAD request and so has no body.
    bare: bool,
    /// The beginning of an incomplete head.
    partial: Vec<u8>,
    rest: Option<Rest>,
}

impl Target for Http {
    type State = HttpState;

    fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    fn request(&mut self) -> Ask<HttpState> {
        let last = self.requests.len() - 1;
        let index = match &mut self.choice {
            Choice::Sequence(next) => std::mem::replace(next, if *next == last { 0 } else { *next + 1 }),
            Choice::Weights { sums, chance } => {
                // Above 0 and at most the sum: a weight of 0 is never drawn.
                let drawn = chance.unit() * sums[last];
                sums.partition_point(|sum| *sum < drawn).min(last)
            }
        };
        let request = &self.requests[index];
        let state = HttpState { bare: request.head, ..HttpState::default() };
        Ask { route: request.route, bytes: request.bytes.clone(), state }
    }

    fn answer(&mut self, state: &mut HttpState, bytes: &[u8]) -> Step {
        if state.rest.is_some() {
            return eat(state, bytes);
        }
        if state.partial.is_empty() {
            return self.start(state, bytes);
        }
        let mut together = std::mem::take(&mut state.partial);
        together.extend_from_slice(bytes);
        self.start(state, &together)
    }

    fn end(&mut self, state: &mut HttpState) -> Option<Answer> {
        let rest = state.rest.take()?;
        (rest.body == Body::Close).then_some(Answer { reusable: false, ..rest.answer })
    }
}

impl Http {
    /// Parses heads from the beginning of `bytes` until one is not a 1xx, then the body.
    fn start(&mut self, state: &mut HttpState, mut bytes: &[u8]) -> Step {
        loop {
            match self.head(state.bare, bytes) {
                Err(_) => return Step::Malformed,
                Ok(None) => {
                    state.partial = bytes.to_vec();
                    return Step::More;
                }
                Ok(Some((rest, length))) => {
                    bytes = &bytes[length..];
                    // No request asks for another protocol, so no answer would follow a 101; it is skipped
                    // like any 1xx.
                    if !rest.interim {
                        state.rest = Some(rest);
                        return eat(state, bytes);
                    }
                }
            }
        }
    }
}

/// Consumes bytes of the body.
fn eat(state: &mut HttpState, mut bytes: &[u8]) -> Step {
    let Some(rest) = &mut state.rest else { return Step::Malformed };
    loop {
        match rest.body.eat(bytes) {
            Err(_) => return Step::Malformed,
            Ok(piece) if piece.done => {
                let surplus = piece.used < bytes.len();
                let answer = rest.answer.clone();
                state.rest = None;
                // Surplus bytes belong to no request.
                return Step::Done(Answer { reusable: answer.reusable && !surplus, ..answer });
            }
            Ok(piece) => {
                bytes = &bytes[piece.used..];
                if bytes.is_empty() {
                    return Step::More;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get() -> Http {
        Http::new("GET", "http://127.0.0.1:9/", &[], b"").unwrap()
    }

    /// Feeds an answer in pieces of `size` bytes.
    fn feed(target: &mut Http, text: &str, size: usize) -> (Step, Option<Answer>) {
        let mut state = target.request().state;
        for piece in text.as_bytes().chunks(size) {
            match target.answer(&mut state, piece) {
                Step::More => {}
                step => return (step, None),
            }
        }
        (Step::More, target.end(&mut state))
    }

    #[test]
    fn weights_come_out_and_zero_is_never_drawn() {
        let request =
            |path: &str| Request::new("GET", &format!("http://127.0.0.1:9/{path}"), &[], b"").unwrap();
        let requests = vec![(0.0, request("never")), (3.0, request("a")), (1.0, request("b"))];
        let mut target = Http::mixed(requests, 7).unwrap();
        assert_eq!(target.addresses().len(), 1);
        let n = 40_000;
        let (mut a, mut b) = (0, 0);
        for _ in 0..n {
            let bytes = target.request().bytes;
            a += u32::from(bytes.starts_with(b"GET /a "));
            b += u32::from(bytes.starts_with(b"GET /b "));
        }
        assert_eq!(a + b, n);
        assert!((f64::from(a) / f64::from(n) - 0.75).abs() < 0.01, "{a}");
        for wrong in [-1.0, f64::NAN, f64::INFINITY, 0.0] {
            assert!(Http::mixed(vec![(wrong, request("a"))], 7).is_err(), "{wrong}");
        }
        assert!(Http::mixed(Vec::new(), 7).is_err());
    }

    #[test]
    fn a_sequence_keeps_its_order_and_its_routes() {
        let request =
            |port: u16, method| Request::new(method, &format!("http://127.0.0.1:{port}/"), &[], b"").unwrap();
        let mut target =
            Http::sequence(vec![request(9, "GET"), request(8, "HEAD"), request(9, "POST")]).unwrap();
        assert_eq!(target.addresses().len(), 2);
        let seen: Vec<_> =
            (0..4).map(|_| target.request()).map(|ask| (ask.route, ask.state.bare, ask.bytes[0])).collect();
        assert_eq!(seen, [(0, false, b'G'), (1, true, b'H'), (0, false, b'P'), (0, false, b'G')]);
        assert!(Http::sequence(Vec::new()).is_err());
    }

    #[test]
    fn answers_in_any_pieces() {
        let ok = |reusable| Answer { member: Some("m1".into()), fault: None, reason: None, reusable };
        let whole = [
            ("HTTP/1.1 200 OK\r\nx-member: m1\r\ncontent-length: 3\r\n\r\nabc", ok(true)),
            ("HTTP/1.1 204 No Content\r\nX-Member: m1\r\n\r\n", ok(true)),
            (
                "HTTP/1.1 200 OK\r\nx-member: m1\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
                ok(true),
            ),
            (
                "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nx-member: m1\r\ncontent-length: 0\r\n\r\n",
                ok(true),
            ),
            ("HTTP/1.0 200 OK\r\nx-member: m1\r\ncontent-length: 0\r\n\r\n", ok(false)),
            ("HTTP/1.1 200 OK\r\nx-member: m1\r\nconnection: close\r\ncontent-length: 1\r\n\r\na", ok(false)),
            (
                "HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n",
                Answer { member: None, fault: Some(Fault::Status), reason: None, reusable: true },
            ),
            (
                "HTTP/1.1 503 No\r\nplimsoll-reason: exhausted\r\ncontent-length: 0\r\n\r\n",
                Answer { member: None, fault: Some(Fault::Status), reason: None, reusable: true },
            ),
            (
                "HTTP/1.1 503 No\r\nplimsoll-reason: shed\r\ncontent-length: 0\r\n\r\n",
                Answer { member: None, fault: Some(Fault::Shed), reason: None, reusable: true },
            ),
        ];
        for (text, answer) in whole {
            for size in 1..=text.len() {
                let got = feed(&mut get(), text, size);
                assert_eq!(got, (Step::Done(answer.clone()), None), "{text:?} by {size}");
            }
        }
    }

    #[test]
    fn an_answer_may_end_with_the_connection() {
        let text = "HTTP/1.1 200 OK\r\n\r\nabc";
        let (step, answer) = feed(&mut get(), text, 5);
        assert_eq!((step, answer.map(|answer| answer.reusable)), (Step::More, Some(false)));
        assert_eq!(
            feed(&mut get(), "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", 5),
            (Step::More, None)
        );
        assert_eq!(feed(&mut get(), "HTTP/1.1 200", 5), (Step::More, None));
    }

    #[test]
    fn surplus_bytes_spoil_the_connection_and_nonsense_the_answer() {
        let surplus = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nab";
        assert!(matches!(feed(&mut get(), surplus, 99), (Step::Done(Answer { reusable: false, .. }), _)));
        for text in ["nonsense\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n"] {
            assert_eq!(feed(&mut get(), text, 99).0, Step::Malformed, "{text}");
        }
        let endless = format!("HTTP/1.1 200 OK\r\na: {}", "x".repeat(MAX_HEAD));
        assert_eq!(feed(&mut get(), &endless, 1000).0, Step::Malformed);
    }

    #[test]
    fn head_answers_have_no_body() {
        let mut target = Http::new("HEAD", "http://127.0.0.1/", &[], b"").unwrap();
        let text = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n";
        assert!(matches!(feed(&mut target, text, 7).0, Step::Done(Answer { reusable: true, .. })));
    }

    #[test]
    fn made_up_members_do_not_grow_without_bound() {
        let mut target = get();
        for n in 0..2 * MAX_MEMBERS {
            target.member(format!("m{n}").as_bytes());
        }
        assert_eq!(target.members.len(), MAX_MEMBERS);
        assert_eq!(&*target.member(b"m999"), "other");
        assert_eq!(&*target.member(b"m0"), "m0");
    }

    proptest::proptest! {
        #[test]
        fn no_answer_panics_and_pieces_do_not_matter(
            pieces in proptest::collection::vec(proptest::sample::select(vec![
                "HTTP/1.1 200 OK\r\n", "HTTP/1.0 503 x\r\n", "HTTP/1.1 100 c\r\n", "HTTP/1.1 204 n\r\n", "x-member: m\r\n",
                "content-length: 4\r\n", "content-length: 18446744073709551615\r\n", "transfer-encoding: chunked\r\n",
                "connection: close\r\n", "\r\n", "\n", "4\r\nabcd\r\n", "0\r\n\r\n", "abcd", "\0", "é",
            ]), 0..9),
            size in 1usize..9,
        ) {
            let text = pieces.concat();
            let whole = feed(&mut get(), &text, text.len().max(1));
            let split = feed(&mut get(), &text, size);
            // Surplus in a later piece cannot spoil the connection.
            let blind = |(step, end): (Step, Option<Answer>)| match step {
                Step::Done(answer) => (Step::Done(Answer { reusable: false, ..answer }), end),
                step => (step, end),
            };
            proptest::prop_assert_eq!(blind(whole), blind(split));
        }
    }
}
