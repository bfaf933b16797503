//! A request head. It is parsed the same in whatever pieces it arrives, and another parser reads an accepted
//! head the same way. The head for the next hop parses again, has the same meaning, and contains no fields of
//! this hop.

use plimsoll_wire::http1::{
    self, BodyFraming, ForwardedStyle, ForwardingOptions, HeadError, MAX_FIELDS, MarkedFields, MethodClass,
    RequestHead, RequestRejection,
};

use super::fields::{Field, Read, of_request, show};
use super::{Verdict, cuts};

/// The maximum length of a head here: small, so that inputs reach the limit.
const MAX_HEAD: usize = 4096;
const HOP: [&str; 6] = ["connection", "keep-alive", "proxy-connection", "te", "upgrade", "http2-settings"];
const FORWARDING: [&str; 4] = ["forwarded", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"];
const UNDERSCORES: [&str; 2] = ["content_length", "transfer_encoding"];

/// All properties of a request that matter to a relay.
#[derive(Debug, PartialEq)]
struct Meaning {
    method_name: Vec<u8>,
    method: MethodClass,
    target: Vec<u8>,
    host: Vec<u8>,
    http10: bool,
    keep_alive: bool,
    expects_continue: bool,
    upgrade: bool,
    body: BodyFraming,
    len: usize,
}

/// Checks the law; panics if it is broken.
pub(crate) fn check(input: &[u8]) -> Verdict {
    let input = &input[..input.len().min(MAX_HEAD + 64)];
    let whole = read(input);
    for cut in cuts(input) {
        if let Some(early) = read(&input[..cut]) {
            assert_eq!(Some(&early), whole.as_ref(), "said after {cut} bytes of {}", show(input));
        }
    }
    let mut marks = MarkedFields::new();
    match http1::request(input, MAX_HEAD, &mut marks) {
        Err(HeadError::Partial) => Verdict::Partial,
        Err(HeadError::Invalid(refusal)) => {
            assert!([400, 414, 417, 431, 501, 505].contains(&refusal.status()));
            Verdict::Refused
        }
        Ok(request) => {
            let head = &input[..request.len];
            let second = of_request(&plain_version(head));
            agrees(&request, &second, head);
            for style in [ForwardedStyle::XForwarded, ForwardedStyle::Rfc7239, ForwardedStyle::Off] {
                for trusted in [false, true] {
                    let client = if trusted { "2001:db8::7" } else { "192.0.2.7" };
                    let plain = &http1::x_forwarded(client, "http");
                    let forwarding = ForwardingOptions { style, trusted, client, plain, scheme: "http" };
                    rewritten(&request, &second, &forwarding);
                }
            }
            Verdict::Accepted
        }
    }
}

/// Returns the same head with HTTP/1.1 if its version is above: the other parser rejects those.
fn plain_version(head: &[u8]) -> Vec<u8> {
    let mut head = head.to_vec();
    let line = head.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or_default();
    let end = head[line..].iter().position(|byte| *byte == b'\r').map_or(0, |end| line + end);
    if end > 0 && matches!(head[end - 1], b'2'..=b'9') {
        head[end - 1] = b'1';
    }
    head
}

/// Parses a head; `None` if it is incomplete.
fn read(input: &[u8]) -> Option<Result<Meaning, RequestRejection>> {
    let mut marks = MarkedFields::new();
    match http1::request(input, MAX_HEAD, &mut marks) {
        Ok(request) => Some(Ok(meaning(&request))),
        Err(HeadError::Partial) => None,
        Err(HeadError::Invalid(refusal)) => Some(Err(refusal)),
    }
}

fn meaning(request: &RequestHead<'_, '_>) -> Meaning {
    Meaning {
        method_name: request.method_name.to_vec(),
        method: request.method,
        target: request.target.to_vec(),
        host: request.host.to_vec(),
        http10: request.http10,
        keep_alive: request.keep_alive,
        expects_continue: request.expects_continue,
        upgrade: request.upgrade,
        body: request.body,
        len: request.len,
    }
}

/// Checks that the other parser sees the same request, without ambiguity.
fn agrees(request: &RequestHead<'_, '_>, second: &Read, head: &[u8]) {
    let shown = show(head);
    assert_eq!(second.len, request.len, "{shown}");
    assert_eq!(second.start.0.as_bytes(), request.method_name, "{shown}");
    assert_eq!(second.minor, u8::from(!request.http10), "{shown}");
    let (hosts, lengths) = (second.values("host"), second.values("content-length"));
    let codings = second.values("transfer-encoding");
    assert!(hosts.len() == 1 || hosts.is_empty() && request.http10, "{shown}");
    assert!(lengths.len() + codings.len() <= 1, "{shown}");
    let length = lengths.first().map(|value| {
        assert!(value.iter().all(u8::is_ascii_digit), "{shown}");
        let digits = String::from_utf8_lossy(value);
        digits.parse::<u64>().unwrap_or_else(|_| panic!("{shown}"))
    });
    let body = match (codings.first(), length) {
        (Some(coding), _) => {
            assert!(coding.eq_ignore_ascii_case(b"chunked") && !request.http10, "{shown}");
            matches!(request.body, BodyFraming::Chunked(_))
        }
        (None, Some(1..)) => Some(request.body) == length.map(BodyFraming::Length),
        (None, Some(0) | None) => request.body == BodyFraming::Done,
    };
    assert!(body, "{shown}");
    let target = second.start.1.as_bytes();
    let origin_form = target == request.target;
    let bare = [&b"/"[..], b"*"].contains(&request.target);
    assert!(origin_form || target.ends_with(request.target) || bare, "{shown}");
    assert!(!target.contains(&b'#'), "{shown}");
    if origin_form {
        assert_eq!(request.host, hosts.first().copied().unwrap_or_default(), "{shown}");
    }
    // Must not panic for any name.
    let _ = (request.field("cookie"), request.field(""), request.cookie("id"), request.cookie(""));
}

/// Checks the head for the next hop.
fn rewritten(request: &RequestHead<'_, '_>, first: &Read, forwarding: &ForwardingOptions<'_>) {
    let mut out = Vec::new();
    request.write(forwarding, &mut out);
    let shown = show(&out);
    let second = of_request(&out);
    // The next hop would reject HTTP/1.1 without a Host.
    let http10 = request.http10 && request.host.is_empty();
    assert_eq!((second.len, second.minor), (out.len(), u8::from(!http10)), "{shown}");
    let mut marks = MarkedFields::new();
    match http1::request(&out, out.len(), &mut marks) {
        Ok(again) => {
            let slash: &[u8] = if request.target.starts_with(b"?") { b"/" } else { b"" };
            let expected = Meaning {
                target: [slash, request.target].concat(),
                http10,
                keep_alive: !http10,
                // The expectation is forwarded, even that of a client that should not send one.
                expects_continue: !http10
                    && !first.values("expect").is_empty()
                    && request.body != BodyFraming::Done,
                len: out.len(),
                ..meaning(request)
            };
            assert_eq!(meaning(&again), expected, "{shown}");
        }
        // The added fields may exceed the limit on fields.
        Err(HeadError::Invalid(RequestRejection::HeadTooLarge)) if second.fields.len() > MAX_FIELDS => {}
        other => panic!("what was written is not read: {other:?}\n{shown}"),
    }
    let absolute = first.start.1.as_bytes() != request.target;
    assert_eq!(second.fields, expected(request, first, forwarding, absolute), "{shown}");
}

/// Returns all fields of the rewritten head, in their order.
fn expected(
    request: &RequestHead<'_, '_>,
    first: &Read,
    forwarding: &ForwardingOptions<'_>,
    absolute: bool,
) -> Vec<Field> {
    let field = |name: &str, value: &[u8]| (name.to_owned(), value.to_vec());
    let mut gone = first.hop_by_hop(&HOP);
    gone.extend(UNDERSCORES.map(str::to_owned));
    if !matches!(forwarding.style, ForwardedStyle::Off) {
        gone.extend(FORWARDING.map(str::to_owned));
    }
    let mut fields = Vec::new();
    if absolute {
        gone.push("host".to_owned());
        fields.push(field("host", request.host));
    }
    fields.extend(first.without(&gone));
    if request.upgrade {
        fields.push(field("connection", b"Upgrade"));
        fields.push(field("upgrade", first.values("upgrade")[0]));
    }
    let earlier = |name: &str| if forwarding.trusted { first.values(name) } else { Vec::new() };
    let list = |name: &str, last: Vec<u8>| {
        let all: Vec<&[u8]> = earlier(name).into_iter().chain([&last[..]]).collect();
        all.join(&b", "[..])
    };
    let client = forwarding.client.as_bytes();
    match forwarding.style {
        ForwardedStyle::Off => {}
        ForwardedStyle::XForwarded => {
            let proto = earlier("x-forwarded-proto").first().copied().unwrap_or(b"http");
            let host = earlier("x-forwarded-host").first().copied().unwrap_or(request.host);
            fields.push(field("x-forwarded-for", &list("x-forwarded-for", client.to_vec())));
            fields.push(field("x-forwarded-proto", proto));
            if !host.is_empty() {
                fields.push(field("x-forwarded-host", host));
            }
        }
        ForwardedStyle::Rfc7239 => {
            let bracketed = client.contains(&b':');
            let client = String::from_utf8_lossy(client);
            let client = if bracketed { format!("for=\"[{client}]\"") } else { format!("for={client}") };
            let host = String::from_utf8_lossy(request.host);
            let host = if host.is_empty() { String::new() } else { format!(";host=\"{host}\"") };
            let last = format!("{client}{host};proto=http");
            fields.push(field("forwarded", &list("forwarded", last.into_bytes())));
        }
    }
    fields
}
