//! A response head. It is parsed the same in whatever pieces it arrives. Another parser reads an accepted
//! head the same way, even after white space before colons is removed. The head for the client parses again,
//! has the same meaning, and contains no fields of this hop.

use plimsoll_wire::http1::{
    self, BodyFraming, HeadError, MAX_FIELDS, MarkedFields, ResponseError, ResponseHead, ResponseRewrite,
};

use super::fields::{Field, Read, of_response, show};
use super::{Verdict, cuts};

/// The maximum length of a head here: small, so that inputs reach the limit.
const MAX_HEAD: usize = 4096;
const HOP: [&str; 4] = ["connection", "keep-alive", "proxy-connection", "upgrade"];

/// The properties of a response that matter to a relay.
#[derive(Debug, PartialEq)]
struct Meaning {
    status: u16,
    keep_alive: bool,
    body: BodyFraming,
    len: usize,
    interim: bool,
}

/// Checks the law; panics if it is broken.
pub(crate) fn check(input: &[u8]) -> Verdict {
    let input = &input[..input.len().min(MAX_HEAD + 64)];
    let mut verdict = Verdict::Refused;
    for to_head in [false, true] {
        let whole = read(input, to_head);
        for cut in cuts(input) {
            if let Some(early) = read(&input[..cut], to_head) {
                assert_eq!(Some(&early), whole.as_ref(), "said after {cut} bytes of {}", show(input));
            }
        }
        let anew = closed_up(input, to_head);
        let closed = anew.as_deref().unwrap_or(input);
        let mut marks = MarkedFields::new();
        verdict = match http1::parse_response(closed, MAX_HEAD, to_head, &mut marks) {
            Err(HeadError::Partial) => Verdict::Partial,
            Err(_) if waits(closed, to_head) => Verdict::Partial,
            Err(_) => Verdict::Refused,
            Ok(response) => {
                let head = &closed[..response.len];
                let second = of_response(&plain_version(head));
                if anew.is_some() {
                    let before =
                        of_response(&plain_version(&input[..response.len + input.len() - closed.len()]));
                    assert_eq!(
                        (&before.start, &before.fields),
                        (&second.start, &second.fields),
                        "{}",
                        show(input)
                    );
                }
                agrees(&response, &second, to_head, head);
                for (close, http10) in [(false, false), (false, true), (true, false), (true, true)] {
                    rewritten(
                        &response,
                        &second,
                        to_head,
                        ResponseRewrite { close, http10, strip_report: close },
                    );
                }
                Verdict::Accepted
            }
        };
    }
    verdict
}

/// Returns the same head with HTTP/1.1 if its version is above: the other parser rejects those.
fn plain_version(head: &[u8]) -> Vec<u8> {
    let mut head = head.to_vec();
    if !head.starts_with(b"HTTP/1.0") {
        head[..8].copy_from_slice(b"HTTP/1.1");
    }
    head
}

/// Returns the head without white space before colons, if that white space makes it invalid.
fn closed_up(input: &[u8], to_head: bool) -> Option<Vec<u8>> {
    match http1::parse_response(input, MAX_HEAD, to_head, &mut MarkedFields::new()) {
        Err(HeadError::Invalid(bad)) => http1::strip_colon_space(input, usize::MAX, bad).ok()?,
        _ => None,
    }
}

/// Returns `true` if a response ends in white space that a colon may follow.
fn waits(input: &[u8], to_head: bool) -> bool {
    match http1::parse_response(input, MAX_HEAD, to_head, &mut MarkedFields::new()) {
        Err(HeadError::Invalid(bad)) => http1::strip_colon_space(input, usize::MAX, bad) == Ok(None),
        _ => false,
    }
}

/// Parses a head; `None` if it is incomplete.
fn read(input: &[u8], to_head: bool) -> Option<Result<Meaning, ResponseError>> {
    let anew = closed_up(input, to_head);
    let input = anew.as_deref().unwrap_or(input);
    match http1::parse_response(input, MAX_HEAD, to_head, &mut MarkedFields::new()) {
        Ok(response) => Some(Ok(meaning(&response))),
        Err(HeadError::Partial) => None,
        Err(_) if waits(input, to_head) => None,
        Err(HeadError::Invalid(bad)) => Some(Err(bad)),
    }
}

fn meaning(response: &ResponseHead<'_, '_>) -> Meaning {
    let ResponseHead { status, keep_alive, body, len, .. } = *response;
    Meaning { status, keep_alive, body, len, interim: response.is_interim() }
}

/// Checks that the other parser sees the same response, without ambiguity.
fn agrees(response: &ResponseHead<'_, '_>, second: &Read, to_head: bool, head: &[u8]) {
    let shown = show(head);
    assert_eq!(second.len, response.len, "{shown}");
    assert_eq!(second.start.0, response.status.to_string(), "{shown}");
    let (mut lengths, codings) = (second.values("content-length"), second.values("transfer-encoding"));
    lengths.dedup();
    assert!(lengths.len() + codings.len() <= 1, "{shown}");
    let bodiless = to_head || matches!(response.status, 100..=199 | 204 | 304);
    let body = match (codings.first(), lengths.first()) {
        _ if bodiless => response.body == BodyFraming::Done,
        (Some(coding), _) => {
            assert!(coding.eq_ignore_ascii_case(b"chunked"), "{shown}");
            matches!(response.body, BodyFraming::Chunked(_))
        }
        (None, Some(length)) => {
            assert!(length.iter().all(u8::is_ascii_digit), "{shown}");
            match String::from_utf8_lossy(length).parse::<u64>() {
                Ok(0) => response.body == BodyFraming::Done,
                Ok(length) => response.body == BodyFraming::Length(length),
                Err(_) => false,
            }
        }
        (None, None) => response.body == BodyFraming::UntilClose,
    };
    assert!(body, "{shown}");
    assert!(!(response.body == BodyFraming::UntilClose && response.keep_alive), "{shown}");
    // Chunks in HTTP/1.0 are a mistake: the bytes after them are not trusted (RFC 9112 section 6.1).
    assert!(second.minor == 1 || codings.is_empty() || !response.keep_alive, "{shown}");
}

/// Checks the head for the client.
fn rewritten(response: &ResponseHead<'_, '_>, first: &Read, to_head: bool, rewrite: ResponseRewrite) {
    let mut out = Vec::new();
    response.write(rewrite, b"", &mut out);
    let shown = format!("{rewrite:?}\n{}", show(&out));
    let second = of_response(&out);
    assert_eq!((second.len, second.minor), (out.len(), 1), "{shown}");
    let mut marks = MarkedFields::new();
    let again = match http1::parse_response(&out, out.len(), to_head, &mut marks) {
        Ok(again) => meaning(&again),
        // The added fields may exceed the limit on fields.
        Err(_) if second.fields.len() > MAX_FIELDS => return,
        other => panic!("what was written is not read: {other:?}\n{shown}"),
    };
    assert!(second.values("content-length").len() <= 1, "{shown}");
    let body = match response.body {
        BodyFraming::Chunked(_) if rewrite.http10 => BodyFraming::UntilClose,
        body => body,
    };
    assert_eq!((again.status, again.body, again.len), (response.status, body, out.len()), "{shown}");
    assert!(!rewrite.close || !again.keep_alive || response.status < 200, "{shown}");
    assert_eq!(second.fields, expected(response, first, rewrite), "{shown}");
}

/// Returns all fields of the rewritten head, in their order.
fn expected(response: &ResponseHead<'_, '_>, first: &Read, rewrite: ResponseRewrite) -> Vec<Field> {
    let field = |name: &str, value: &[u8]| (name.to_owned(), value.to_vec());
    let mut gone = first.hop_by_hop(&HOP);
    // A response without a body has no length fields (RFC 9110 section 8.6, RFC 9112 section 6.1).
    let never = matches!(response.status, 100..=199 | 204);
    if never {
        gone.push("content-length".to_owned());
    }
    if never || rewrite.http10 {
        gone.push("transfer-encoding".to_owned());
    }
    let mut fields = first.without(&gone);
    let mut lengths = 0;
    fields.retain(|(name, _)| {
        lengths += usize::from(name == "content-length");
        name != "content-length" || lengths == 1
    });
    let upgrades = first.values("upgrade");
    if response.status == 101 && !upgrades.is_empty() {
        fields.push(field("connection", b"Upgrade"));
        fields.push(field("upgrade", upgrades[0]));
    } else if response.is_interim() {
    } else if rewrite.close {
        fields.push(field("connection", b"close"));
    } else if rewrite.http10 {
        fields.push(field("connection", b"keep-alive"));
    }
    fields
}
