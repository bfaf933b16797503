//! HTTP/1.1: one request, several by weight, or a sequence. An answer of 400 or more is a failure;
//! `plimsoll-reason` marks that of a balancer that sheds load.
//!
//! The `x-member` header of answers, which test members set, names the member.

use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::sync::Arc;

use super::{AnswerProgress, RequestTarget, TargetAnswer, TargetRequest};
use crate::body::{self, BodyDecoder};
use crate::record::FailureKind;
use crate::rng::SplitMix64;

mod request;

pub use request::{HttpError, HttpRequest};

/// The maximum length of an answer's head.
const MAX_HEAD: usize = 64 * 1024;
/// The maximum number of headers of an answer.
const MAX_HEADERS: usize = 100;
/// The maximum number of distinguished members; answers of others count for `other`. A server that invents
/// names thus cannot exhaust the generator's memory.
const MAX_MEMBERS: usize = 256;

/// Requests for one or more `http://` URLs.
#[derive(Debug)]
pub struct HttpTarget {
    /// The addresses of all requests, without duplicates.
    addresses: Vec<SocketAddr>,
    requests: Vec<RoutedRequest>,
    choice: RequestChoice,
    members: Vec<Arc<str>>,
    /// The name for members beyond the maximum.
    overflow_member: Arc<str>,
}

/// A request and its destination.
#[derive(Debug)]
struct RoutedRequest {
    route: usize,
    bytes: Arc<[u8]>,
    is_head: bool,
}

/// The choice of the next request.
#[derive(Debug)]
enum RequestChoice {
    /// A cyclic sequence; the index of the next.
    Sequence(usize),
    /// A random choice; for each request the sum of the weights up to it.
    Weights { cumulative_weights: Vec<f64>, rng: SplitMix64 },
}

impl HttpTarget {
    /// Creates a target that repeats one request; see [`HttpRequest::new`].
    ///
    /// # Errors
    /// Fails if the URL is malformed, its host has no address or a header cannot be sent.
    pub fn new(method: &str, url: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<Self, HttpError> {
        Self::sequence(vec![HttpRequest::new(method, url, headers, body)?])
    }

    /// Creates a target that draws each request with a probability in proportion to its weight.
    ///
    /// # Errors
    /// Fails if there is no request, a weight is negative or no number, or all are zero.
    pub fn mixed(requests: Vec<(f64, HttpRequest)>, seed: u64) -> Result<Self, HttpError> {
        let mut sum = 0.0;
        let mut cumulative_weights = Vec::with_capacity(requests.len());
        for (weight, _) in &requests {
            if !weight.is_finite() || *weight < 0.0 {
                return Err(HttpError::Weight(*weight));
            }
            sum += weight;
            cumulative_weights.push(sum);
        }
        let is_drawable = sum > 0.0 && sum.is_finite();
        if !is_drawable && !requests.is_empty() {
            return Err(HttpError::Weight(sum));
        }
        let requests = requests.into_iter().map(|(_, request)| request).collect();
        Self::with_choice(requests, RequestChoice::Weights { cumulative_weights, rng: SplitMix64::new(seed) })
    }

    /// Creates a target that cycles through the requests, for a replay.
    ///
    /// # Errors
    /// Fails if there is no request.
    pub fn sequence(requests: Vec<HttpRequest>) -> Result<Self, HttpError> {
        Self::with_choice(requests, RequestChoice::Sequence(0))
    }

    fn with_choice(requests: Vec<HttpRequest>, choice: RequestChoice) -> Result<Self, HttpError> {
        if requests.is_empty() {
            return Err(HttpError::None);
        }
        let mut addresses: Vec<SocketAddr> = Vec::new();
        let requests = requests
            .into_iter()
            .map(|request| {
                let existing_route = addresses.iter().position(|address| *address == request.address());
                let route = existing_route.unwrap_or_else(|| {
                    addresses.push(request.address());
                    addresses.len() - 1
                });
                RoutedRequest { route, is_head: request.is_head(), bytes: request.into_bytes() }
            })
            .collect();
        Ok(Self { addresses, requests, choice, members: Vec::new(), overflow_member: "other".into() })
    }

    /// Returns the shared name of a member.
    fn intern_member(&mut self, name: &[u8]) -> Arc<str> {
        if let Some(existing) = self.members.iter().find(|existing| existing.as_bytes() == name) {
            return existing.clone();
        }
        if self.members.len() == MAX_MEMBERS {
            return self.overflow_member.clone();
        }
        let interned: Arc<str> = String::from_utf8_lossy(name).into();
        self.members.push(interned.clone());
        interned
    }

    /// Parses a head at the beginning of `bytes`. Returns the rest of the answer, which is `bare` for a HEAD
    /// request, and the length of the head.
    fn parse_head(
        &mut self,
        is_bodyless: bool,
        bytes: &[u8],
    ) -> Result<Option<(AnswerRest, usize)>, body::MalformedMessage> {
        let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADERS];
        let mut head = httparse::Response::new(&mut []);
        let config = httparse::ParserConfig::default();
        let length = match config.parse_response_with_uninit_headers(&mut head, bytes, &mut headers) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD => return Ok(None),
            _ => return Err(body::MalformedMessage("the head of an answer")),
        };
        let status = head.code.unwrap_or(0);
        let member = body::values(head.headers, "x-member").next();
        let was_shed =
            status == 503 && body::values(head.headers, "plimsoll-reason").any(|reason| reason == b"shed");
        let answer = TargetAnswer {
            member: member.map(|name| self.intern_member(name)),
            failure: (status >= 400).then_some(if was_shed {
                FailureKind::Shed
            } else {
                FailureKind::Status
            }),
            reason: None,
            reusable: body::keeps_alive(head.version.unwrap_or(0), head.headers),
        };
        let body = BodyDecoder::of_response(status, is_bodyless, head.headers)?;
        Ok(Some((AnswerRest { is_interim: (100..200).contains(&status), answer, body }, length)))
    }
}

/// The parsed head of an answer, and its body.
#[derive(Debug)]
struct AnswerRest {
    /// Whether it is a 1xx, which another answer follows.
    is_interim: bool,
    answer: TargetAnswer,
    body: BodyDecoder,
}

/// The progress of one answer.
#[derive(Debug, Default)]
pub struct HttpAnswerState {
    /// Whether it answers a HEAD request and so has no body.
    is_bodyless: bool,
    /// The beginning of an incomplete head.
    partial: Vec<u8>,
    rest: Option<AnswerRest>,
}

impl RequestTarget for HttpTarget {
    type State = HttpAnswerState;

    fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    fn next_request(&mut self) -> TargetRequest<HttpAnswerState> {
        let last = self.requests.len() - 1;
        let index = match &mut self.choice {
            RequestChoice::Sequence(next) => {
                std::mem::replace(next, if *next == last { 0 } else { *next + 1 })
            }
            RequestChoice::Weights { cumulative_weights: sums, rng } => {
                // Above 0 and at most the sum: a weight of 0 is never drawn.
                let threshold = rng.uniform() * sums[last];
                sums.partition_point(|sum| *sum < threshold).min(last)
            }
        };
        let request = &self.requests[index];
        let state = HttpAnswerState { is_bodyless: request.is_head, ..HttpAnswerState::default() };
        TargetRequest { route: request.route, bytes: request.bytes.clone(), state }
    }

    fn consume_answer(&mut self, state: &mut HttpAnswerState, bytes: &[u8]) -> AnswerProgress {
        if state.rest.is_some() {
            return consume_body(state, bytes);
        }
        if state.partial.is_empty() {
            return self.parse_answer(state, bytes);
        }
        let mut combined = std::mem::take(&mut state.partial);
        combined.extend_from_slice(bytes);
        self.parse_answer(state, &combined)
    }

    fn connection_ended(&mut self, state: &mut HttpAnswerState) -> Option<TargetAnswer> {
        let answer_rest = state.rest.take()?;
        (answer_rest.body == BodyDecoder::Close)
            .then_some(TargetAnswer { reusable: false, ..answer_rest.answer })
    }
}

impl HttpTarget {
    /// Parses heads from the beginning of `bytes` until one is not a 1xx, then the body.
    fn parse_answer(&mut self, state: &mut HttpAnswerState, mut bytes: &[u8]) -> AnswerProgress {
        loop {
            match self.parse_head(state.is_bodyless, bytes) {
                Err(_) => return AnswerProgress::Malformed,
                Ok(None) => {
                    state.partial = bytes.to_vec();
                    return AnswerProgress::Incomplete;
                }
                Ok(Some((answer_rest, length))) => {
                    bytes = &bytes[length..];
                    // No request asks for another protocol, so no answer would follow a 101; it is skipped
                    // like any 1xx.
                    if !answer_rest.is_interim {
                        state.rest = Some(answer_rest);
                        return consume_body(state, bytes);
                    }
                }
            }
        }
    }
}

/// Consumes bytes of the body.
fn consume_body(state: &mut HttpAnswerState, mut bytes: &[u8]) -> AnswerProgress {
    let Some(answer_rest) = &mut state.rest else { return AnswerProgress::Malformed };
    loop {
        match answer_rest.body.decode(bytes) {
            Err(_) => return AnswerProgress::Malformed,
            Ok(decoded) if decoded.done => {
                let has_surplus = decoded.consumed < bytes.len();
                let answer = answer_rest.answer.clone();
                state.rest = None;
                // Surplus bytes belong to no request.
                return AnswerProgress::Complete(TargetAnswer {
                    reusable: answer.reusable && !has_surplus,
                    ..answer
                });
            }
            Ok(decoded) => {
                bytes = &bytes[decoded.consumed..];
                if bytes.is_empty() {
                    return AnswerProgress::Incomplete;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get() -> HttpTarget {
        HttpTarget::new("GET", "http://127.0.0.1:9/", &[], b"").unwrap()
    }

    /// Feeds an answer in pieces of `size` bytes.
    fn feed(target: &mut HttpTarget, text: &str, size: usize) -> (AnswerProgress, Option<TargetAnswer>) {
        let mut state = target.next_request().state;
        for piece in text.as_bytes().chunks(size) {
            match target.consume_answer(&mut state, piece) {
                AnswerProgress::Incomplete => {}
                progress => return (progress, None),
            }
        }
        (AnswerProgress::Incomplete, target.connection_ended(&mut state))
    }

    #[test]
    fn weights_come_out_and_zero_is_never_drawn() {
        let request =
            |path: &str| HttpRequest::new("GET", &format!("http://127.0.0.1:9/{path}"), &[], b"").unwrap();
        let requests = vec![(0.0, request("never")), (3.0, request("a")), (1.0, request("b"))];
        let mut target = HttpTarget::mixed(requests, 7).unwrap();
        assert_eq!(target.addresses().len(), 1);
        let n = 40_000;
        let (mut a, mut b) = (0, 0);
        for _ in 0..n {
            let bytes = target.next_request().bytes;
            a += u32::from(bytes.starts_with(b"GET /a "));
            b += u32::from(bytes.starts_with(b"GET /b "));
        }
        assert_eq!(a + b, n);
        assert!((f64::from(a) / f64::from(n) - 0.75).abs() < 0.01, "{a}");
        for weight in [-1.0, f64::NAN, f64::INFINITY, 0.0] {
            assert!(HttpTarget::mixed(vec![(weight, request("a"))], 7).is_err(), "{weight}");
        }
        assert!(HttpTarget::mixed(Vec::new(), 7).is_err());
    }

    #[test]
    fn a_sequence_keeps_its_order_and_its_routes() {
        let request = |port: u16, method| {
            HttpRequest::new(method, &format!("http://127.0.0.1:{port}/"), &[], b"").unwrap()
        };
        let mut target =
            HttpTarget::sequence(vec![request(9, "GET"), request(8, "HEAD"), request(9, "POST")]).unwrap();
        assert_eq!(target.addresses().len(), 2);
        let seen: Vec<_> = (0..4)
            .map(|_| target.next_request())
            .map(|target_request| {
                (target_request.route, target_request.state.is_bodyless, target_request.bytes[0])
            })
            .collect();
        assert_eq!(seen, [(0, false, b'G'), (1, true, b'H'), (0, false, b'P'), (0, false, b'G')]);
        assert!(HttpTarget::sequence(Vec::new()).is_err());
    }

    #[test]
    fn answers_in_any_pieces() {
        let success =
            |reusable| TargetAnswer { member: Some("m1".into()), failure: None, reason: None, reusable };
        let cases = [
            ("HTTP/1.1 200 OK\r\nx-member: m1\r\ncontent-length: 3\r\n\r\nabc", success(true)),
            ("HTTP/1.1 204 No Content\r\nX-Member: m1\r\n\r\n", success(true)),
            (
                "HTTP/1.1 200 OK\r\nx-member: m1\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
                success(true),
            ),
            (
                "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nx-member: m1\r\ncontent-length: \
                 0\r\n\r\n",
                success(true),
            ),
            ("HTTP/1.0 200 OK\r\nx-member: m1\r\ncontent-length: 0\r\n\r\n", success(false)),
            (
                "HTTP/1.1 200 OK\r\nx-member: m1\r\nconnection: close\r\ncontent-length: 1\r\n\r\na",
                success(false),
            ),
            (
                "HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n",
                TargetAnswer {
                    member: None,
                    failure: Some(FailureKind::Status),
                    reason: None,
                    reusable: true,
                },
            ),
            (
                "HTTP/1.1 503 No\r\nplimsoll-reason: exhausted\r\ncontent-length: 0\r\n\r\n",
                TargetAnswer {
                    member: None,
                    failure: Some(FailureKind::Status),
                    reason: None,
                    reusable: true,
                },
            ),
            (
                "HTTP/1.1 503 No\r\nplimsoll-reason: shed\r\ncontent-length: 0\r\n\r\n",
                TargetAnswer { member: None, failure: Some(FailureKind::Shed), reason: None, reusable: true },
            ),
        ];
        for (text, answer) in cases {
            for size in 1..=text.len() {
                let outcome = feed(&mut get(), text, size);
                assert_eq!(outcome, (AnswerProgress::Complete(answer.clone()), None), "{text:?} by {size}");
            }
        }
    }

    #[test]
    fn an_answer_may_end_with_the_connection() {
        let text = "HTTP/1.1 200 OK\r\n\r\nabc";
        let (progress, answer) = feed(&mut get(), text, 5);
        assert_eq!(
            (progress, answer.map(|answer| answer.reusable)),
            (AnswerProgress::Incomplete, Some(false))
        );
        assert_eq!(
            feed(&mut get(), "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", 5),
            (AnswerProgress::Incomplete, None)
        );
        assert_eq!(feed(&mut get(), "HTTP/1.1 200", 5), (AnswerProgress::Incomplete, None));
    }

    #[test]
    fn surplus_bytes_spoil_the_connection_and_nonsense_the_answer() {
        let surplus = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nab";
        assert!(matches!(
            feed(&mut get(), surplus, 99),
            (AnswerProgress::Complete(TargetAnswer { reusable: false, .. }), _)
        ));
        for text in ["nonsense\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n"] {
            assert_eq!(feed(&mut get(), text, 99).0, AnswerProgress::Malformed, "{text}");
        }
        let endless = format!("HTTP/1.1 200 OK\r\na: {}", "x".repeat(MAX_HEAD));
        assert_eq!(feed(&mut get(), &endless, 1000).0, AnswerProgress::Malformed);
    }

    #[test]
    fn head_answers_have_no_body() {
        let mut target = HttpTarget::new("HEAD", "http://127.0.0.1/", &[], b"").unwrap();
        let text = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n";
        assert!(matches!(
            feed(&mut target, text, 7).0,
            AnswerProgress::Complete(TargetAnswer { reusable: true, .. })
        ));
    }

    #[test]
    fn made_up_members_do_not_grow_without_bound() {
        let mut target = get();
        for n in 0..2 * MAX_MEMBERS {
            target.intern_member(format!("m{n}").as_bytes());
        }
        assert_eq!(target.members.len(), MAX_MEMBERS);
        assert_eq!(&*target.intern_member(b"m999"), "other");
        assert_eq!(&*target.intern_member(b"m0"), "m0");
    }

    proptest::proptest! {
        #[test]
        fn no_answer_panics_and_pieces_do_not_matter(
            pieces in proptest::collection::vec(proptest::sample::select(vec![
                "HTTP/1.1 200 \
                 OK\r\n", "HTTP/1.0 503 x\r\n", "HTTP/1.1 100 c\r\n", "HTTP/1.1 204 n\r\n", "x-member: m\r\n",
                "content-length: 4\r\n", "content-length: \
                 18446744073709551615\r\n", "transfer-encoding: chunked\r\n",
                "connection: close\r\n", "\r\n", "\n", "4\r\nabcd\r\n", "0\r\n\r\n", "abcd", "\0", "é",
            ]), 0..9),
            size in 1usize..9,
        ) {
            let text = pieces.concat();
            let unsplit = feed(&mut get(), &text, text.len().max(1));
            let split = feed(&mut get(), &text, size);
            // Surplus in a later piece cannot spoil the connection.
            let ignore_reusable = |(step, end): (AnswerProgress, Option<TargetAnswer>)| match step {
                AnswerProgress::Complete(answer) => {
                    (AnswerProgress::Complete(TargetAnswer { reusable: false, ..answer }), end)
                }
                step => (step, end),
            };
            proptest::prop_assert_eq!(ignore_reusable(unsplit), ignore_reusable(split));
        }
    }
}
