//! HTTP/1.1: the same request again and again; an answer of 400 or more is a failure.
//!
//! A member is known by the `x-member` header of its answers, which test members set.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use super::{Answer, Step, Target};
use crate::body::{self, Body};
use crate::record::Fault;

/// Longest head of an answer.
const MAX_HEAD: usize = 64 * 1024;
/// Most headers of an answer.
const MAX_HEADERS: usize = 100;
/// Most members told apart; answers of more count for `other`, so that a server that makes up names does
/// not eat the generator's memory.
const MAX_MEMBERS: usize = 256;

/// Requests for one `http://` URL.
#[derive(Debug)]
pub struct Http {
    address: SocketAddr,
    request: Arc<[u8]>,
    head: bool,
    members: Vec<Arc<str>>,
}

/// Why a URL cannot be a target.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Not `http://`.
    #[error("`{0}`: expected a URL that begins with `http://`")]
    Scheme(String),
    /// Nothing between `http://` and the path, or something that is no host.
    #[error("`{0}`: expected `http://HOST[:PORT][/PATH]` without spaces or credentials")]
    Shape(String),
    /// The host has no address.
    #[error("`{url}`: {why}; check the name")]
    Resolve {
        /// As given.
        url: String,
        /// What the resolver said.
        why: String,
    },
    /// A method or header with bytes that would break the request apart.
    #[error("`{0}` cannot be part of a request head")]
    Field(String),
}

impl Http {
    /// Requests for `url` with `method`, more `headers` and a `body`.
    ///
    /// # Errors
    /// If the URL is not one, its host has no address or a header cannot be sent.
    pub fn new(method: &str, url: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<Self, HttpError> {
        let rest = url.strip_prefix("http://").ok_or_else(|| HttpError::Scheme(url.to_owned()))?;
        let (authority, path) = match rest.find(['/', '?']) {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let path = path.split('#').next().unwrap_or_default();
        let slash = if path.starts_with('/') { "" } else { "/" };
        let printable = url.bytes().all(|byte| byte.is_ascii_graphic());
        if authority.is_empty() || authority.contains('@') || !printable {
            return Err(HttpError::Shape(url.to_owned()));
        }
        let mut request = format!("{method} {slash}{path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            request += &format!("host: {authority}\r\n");
        }
        if !is_token(method) {
            return Err(HttpError::Field(method.to_owned()));
        }
        for (name, value) in headers {
            if !is_token(name) || value.bytes().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
                return Err(HttpError::Field(format!("{name}: {value}")));
            }
            request += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() || matches!(method, "POST" | "PUT" | "PATCH") {
            request += &format!("content-length: {}\r\n", body.len());
        }
        request += "\r\n";
        let mut request = request.into_bytes();
        request.extend_from_slice(body);
        Ok(Self {
            address: resolve(url, authority)?,
            request: request.into(),
            head: method == "HEAD",
            members: Vec::new(),
        })
    }

    /// The shared name of a member.
    fn member(&mut self, name: &[u8]) -> Arc<str> {
        if let Some(known) = self.members.iter().find(|known| known.as_bytes() == name) {
            return known.clone();
        }
        if self.members.len() == MAX_MEMBERS {
            return "other".into();
        }
        let fresh: Arc<str> = String::from_utf8_lossy(name).into();
        self.members.push(fresh.clone());
        fresh
    }

    /// Reads a head from the beginning of `bytes`: the rest of the answer and the length of the head.
    fn head(&mut self, bytes: &[u8]) -> Result<Option<(Rest, usize)>, body::Malformed> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut head = httparse::Response::new(&mut headers);
        let length = match head.parse(bytes) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD => return Ok(None),
            _ => return Err(body::Malformed("the head of an answer")),
        };
        let status = head.code.unwrap_or(0);
        let member = body::values(head.headers, "x-member").next();
        let answer = Answer {
            member: member.map(|name| self.member(name)),
            fault: (status >= 400).then_some(Fault::Status),
            reusable: body::keeps_alive(head.version.unwrap_or(0), head.headers),
        };
        let body = Body::of_answer(status, self.head, head.headers)?;
        Ok(Some((Rest { interim: (100..200).contains(&status), answer, body }, length)))
    }
}

/// What is known of an answer whose head is complete.
#[derive(Debug)]
struct Rest {
    /// Is it a 1xx, which another answer follows?
    interim: bool,
    answer: Answer,
    body: Body,
}

/// Progress of one answer.
#[derive(Debug, Default)]
pub struct HttpState {
    /// The beginning of a head that is not complete.
    partial: Vec<u8>,
    rest: Option<Rest>,
}

impl Target for Http {
    type State = HttpState;

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn request(&mut self) -> Arc<[u8]> {
        self.request.clone()
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
    /// Reads heads from the beginning of `bytes` until one is not a 1xx, then the body.
    fn start(&mut self, state: &mut HttpState, mut bytes: &[u8]) -> Step {
        loop {
            match self.head(bytes) {
                Err(_) => return Step::Malformed,
                Ok(None) => {
                    state.partial = bytes.to_vec();
                    return Step::More;
                }
                Ok(Some((rest, length))) => {
                    bytes = &bytes[length..];
                    // No request asks for another protocol: 101 would never be followed by an answer.
                    if !rest.interim {
                        state.rest = Some(rest);
                        return eat(state, bytes);
                    }
                }
            }
        }
    }
}

/// Takes bytes of the body.
fn eat(state: &mut HttpState, mut bytes: &[u8]) -> Step {
    let Some(rest) = &mut state.rest else { return Step::Malformed };
    loop {
        match rest.body.eat(bytes) {
            Err(_) => return Step::Malformed,
            Ok(piece) if piece.done => {
                let surplus = piece.used < bytes.len();
                let answer = rest.answer.clone();
                state.rest = None;
                // Bytes that nobody asked for: whose answer would they be?
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

fn resolve(url: &str, authority: &str) -> Result<SocketAddr, HttpError> {
    let fail = |why: String| HttpError::Resolve { url: url.to_owned(), why };
    let has_port =
        authority.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'));
    let resolved = if has_port {
        authority.to_socket_addrs()
    } else {
        (authority.trim_start_matches('[').trim_end_matches(']'), 80).to_socket_addrs()
    };
    let mut addresses = resolved.map_err(|error| fail(error.to_string()))?;
    addresses.next().ok_or_else(|| fail("the host has no address".to_owned()))
}

/// Is it a token of RFC 9110?
fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get() -> Http {
        Http::new("GET", "http://127.0.0.1:9/", &[], b"").unwrap()
    }

    /// Feeds an answer in pieces of `size` bytes.
    fn feed(target: &mut Http, text: &str, size: usize) -> (Step, Option<Answer>) {
        let mut state = HttpState::default();
        for piece in text.as_bytes().chunks(size) {
            match target.answer(&mut state, piece) {
                Step::More => {}
                step => return (step, None),
            }
        }
        (Step::More, target.end(&mut state))
    }

    #[test]
    fn requests_are_written_as_asked() {
        let text = |target: &mut Http| String::from_utf8(target.request().to_vec()).unwrap();
        let mut target = Http::new("GET", "http://127.0.0.1:8080/a?b=1#c", &[("x-a", "1")], b"").unwrap();
        assert_eq!(text(&mut target), "GET /a?b=1 HTTP/1.1\r\nhost: 127.0.0.1:8080\r\nx-a: 1\r\n\r\n");
        assert_eq!(target.address(), "127.0.0.1:8080".parse().unwrap());
        let mut target = Http::new("POST", "http://[::1]?q", &[("Host", "h")], b"abc").unwrap();
        assert_eq!(text(&mut target), "POST /?q HTTP/1.1\r\nHost: h\r\ncontent-length: 3\r\n\r\nabc");
        assert_eq!(target.address(), "[::1]:80".parse().unwrap());
    }

    #[test]
    fn urls_and_headers_that_cannot_be_sent_are_refused() {
        for url in
            ["https://a/", "a/b", "http://", "http:///x", "http://a b/", "http://u@h/", "http://127.0.0.1:x/"]
        {
            assert!(Http::new("GET", url, &[], b"").is_err(), "{url}");
        }
        let field =
            |method, headers: &[(&str, &str)]| Http::new(method, "http://127.0.0.1/", headers, b"").is_err();
        assert!(field("GE T", &[]) && field("GET", &[("a:", "b")]) && field("GET", &[("a", "b\r\nc: d")]));
    }

    #[test]
    fn answers_in_any_pieces() {
        let ok = |reusable| Answer { member: Some("m1".into()), fault: None, reusable };
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
                Answer { member: None, fault: Some(Fault::Status), reusable: true },
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
            // Surplus that has not been seen yet cannot spoil the connection.
            let blind = |(step, end): (Step, Option<Answer>)| match step {
                Step::Done(answer) => (Step::Done(Answer { reusable: false, ..answer }), end),
                step => (step, end),
            };
            proptest::prop_assert_eq!(blind(whole), blind(split));
        }
    }
}
