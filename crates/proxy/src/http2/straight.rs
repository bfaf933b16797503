//! Which calls of gRPC go straight from a client's stream to a member's, and what is changed of their heads on the way.
//!
//! A call goes straight if nothing but what every call has is to be done with it: what is to be judged (two hosts, an odd path, a head
//! that may be too large) or needs the text of HTTP/1.1 (sessions, side-cars, `Forwarded`) goes the other way, where there is one rule for
//! all versions ([`plimsoll_wire::http1`]). So nothing is let through here that would be refused there.

use std::cell::RefCell;

use http::header::{CONTENT_LENGTH, TE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, request};
use plimsoll_wire::{http1, orca};

use super::fields::{is_hop, trim};
use super::pieces::{Framed, field_len};
use crate::{Forwarded, grpc};

/// Fields of a call that goes straight; text has a few more lines.
const FIELDS: usize = http1::MAX_FIELDS - 8;

static FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
static FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
static FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// What members are told of a client, made once for all calls of a connection.
pub(super) struct Forwards {
    client: HeaderValue,
    scheme: HeaderValue,
    /// The host that was asked for last.
    host: RefCell<HeaderValue>,
}

impl Forwards {
    /// `client`: its address; `scheme`: `http` or `https`.
    pub(super) fn new(client: &str, scheme: &'static str) -> Self {
        // An address has no characters that a field may not have.
        let client = HeaderValue::from_str(client).unwrap_or(HeaderValue::from_static(""));
        let scheme = HeaderValue::from_static(scheme);
        Self { client, scheme, host: RefCell::new(HeaderValue::from_static("")) }
    }

    fn host(&self, authority: &str) -> Option<HeaderValue> {
        let mut host = self.host.borrow_mut();
        if host.as_bytes() != authority.as_bytes() {
            *host = HeaderValue::from_str(authority).ok()?;
        }
        Some(host.clone())
    }
}

/// What was found in the head of a call that goes straight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Bytes of the head, as those of its text would be.
    len: usize,
    content_length: bool,
    te: bool,
    /// Does the client say itself for whom it asks?
    forwarded: bool,
}

/// May this request go straight, by its head? `max_head`: bytes that a head may have; `trusted`: is the client believed when it says
/// for whom it asks?
pub(super) fn goes(head: &request::Parts, max_head: usize, style: Forwarded, trusted: bool) -> Option<Found> {
    let fields = &head.headers;
    let plain = match style {
        Forwarded::Off => true,
        Forwarded::XForwarded => !trusted,
        Forwarded::Rfc7239 => false,
    };
    if !plain || head.method != Method::POST || fields.len() > FIELDS {
        return None;
    }
    let authority = head.uri.authority()?.as_str();
    let path = head.uri.path_and_query()?.as_str();
    if !path.starts_with('/') || !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return None;
    }
    if !http1::is_host(authority.as_bytes()) {
        return None;
    }
    let mut found = Found { len: path.len() + authority.len() + 32, ..Found::default() };
    let (mut cookies, mut kinds, mut call) = (0, 0, false);
    for (name, value) in fields {
        found.len += field_len((name, value));
        match name.as_str() {
            "te" => found.te = true,
            "content-length" => found.content_length = true,
            "content-type" => (kinds, call) = (kinds + 1, grpc::is_call(value.as_bytes())),
            "cookie" => cookies += 1,
            "host" | "expect" => return None,
            "x-forwarded-for" | "x-forwarded-proto" | "x-forwarded-host" | "forwarded" => {
                found.forwarded = true;
            }
            other if is_hop(other) || http1::disguised(other.as_bytes()) => return None,
            _ => {}
        }
    }
    // Where it is near the limit its text says on which side.
    (call && kinds == 1 && cookies < 2 && found.len <= max_head / 2).then_some(found)
}

/// Makes of a head what members are to get.
pub(super) fn ask(mut head: request::Parts, found: Found, style: Forwarded, whom: &Forwards) -> Framed {
    let fields = &mut head.headers;
    trim(fields);
    if found.content_length {
        // The end of the stream says it, and trailers may come.
        fields.remove(CONTENT_LENGTH);
    }
    if !found.te {
        // Whatever the client said: trailers get through here.
        fields.insert(TE, HeaderValue::from_static("trailers"));
    }
    if style == Forwarded::XForwarded {
        if found.forwarded {
            fields.remove("forwarded");
        }
        fields.insert(FORWARDED_FOR.clone(), whom.client.clone());
        fields.insert(FORWARDED_PROTO.clone(), whom.scheme.clone());
        match head.uri.authority().and_then(|authority| whom.host(authority.as_str())) {
            Some(host) => _ = fields.insert(FORWARDED_HOST.clone(), host),
            None => _ = fields.remove(&FORWARDED_HOST),
        }
    }
    Framed::new(head, found.len)
}

/// What is to be known of an answer's head.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Judged {
    /// Bytes of it, as those of its text would be.
    pub(crate) len: usize,
    /// The first ORCA report.
    pub(crate) report: Option<HeaderValue>,
}

/// Judges the head of an answer to a call, by the rules for all answers, and takes from it what stays behind. `strip`: are reports of
/// load for us alone?
///
/// # Errors
/// It is too large, or says two things.
pub(crate) fn answer(answer: &mut Response<()>, max_head: usize, strip: bool) -> Result<Judged, ()> {
    let fields = answer.headers_mut();
    let mut judged = Judged { len: 16, report: None };
    let (mut lengths, mut hops, mut call) = (0, false, false);
    for (name, value) in &*fields {
        judged.len += field_len((name, value));
        match name.as_str() {
            "content-length" => lengths += 1,
            "content-type" => call = call || grpc::is_call(value.as_bytes()),
            name if name == orca::HEADER => _ = judged.report.get_or_insert_with(|| value.clone()),
            name => hops |= is_hop(name),
        }
    }
    if judged.len > max_head || fields.len() > http1::MAX_FIELDS {
        return Err(());
    }
    trim(fields);
    if lengths > 0 {
        settle_length(fields, call)?;
    }
    if hops {
        remove(fields, is_hop);
    }
    if strip && judged.report.is_some() {
        fields.remove(orca::HEADER);
    }
    Ok(judged)
}

/// One length is enough (RFC 9110 section 8.6), and none is needed where trailers follow.
fn settle_length(fields: &mut HeaderMap, call: bool) -> Result<(), ()> {
    if call {
        fields.remove(CONTENT_LENGTH);
        return Ok(());
    }
    let mut lengths = fields.get_all(CONTENT_LENGTH).iter();
    let Some(first) = lengths.next().cloned() else { return Ok(()) };
    if lengths.any(|other| *other != first) {
        return Err(());
    }
    fields.insert(CONTENT_LENGTH, first);
    Ok(())
}

/// Takes the fields of these names out.
pub(super) fn remove(fields: &mut HeaderMap, which: impl Fn(&str) -> bool) {
    let names: Vec<HeaderName> = fields.keys().filter(|name| which(name.as_str())).cloned().collect();
    for name in names {
        fields.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> request::Builder {
        http::Request::post("http://h.example:80/s/M?q").header("content-type", "application/grpc+proto")
    }

    fn parts(head: request::Builder) -> request::Parts {
        head.body(()).expect("a head").into_parts().0
    }

    fn found(head: request::Builder) -> Option<Found> {
        goes(&parts(head), 8192, Forwarded::XForwarded, false)
    }

    #[test]
    fn calls_without_anything_odd_go_straight() {
        assert!(found(call()).is_some());
        assert!(found(call().header("cookie", "a=b").header("content-length", "7")).is_some());
        let odd = [
            http::Request::post("http://h/p").header("content-type", "text/plain"),
            http::Request::post("http://h/p").header("content-type", "application/grpc-web"),
            http::Request::get("http://h/p").header("content-type", "application/grpc"),
            http::Request::post("/p").header("content-type", "application/grpc"),
            call().header("content-type", "text/plain"),
            call().header("host", "h.example:80"),
            call().header("expect", "100-continue"),
            call().header("cookie", "a=b").header("cookie", "c=d"),
            call().header("http2-settings", "x"),
            call().uri("http://a@b/p"),
            call().header("content_length", "3"),
            call().uri("http://h/p\u{e9}"),
            call().header("x", "y".repeat(4096)),
            (0..FIELDS).fold(call(), |head, number| head.header(format!("x-{number}"), "")),
        ];
        for head in odd {
            let said = format!("{head:?}");
            assert_eq!(found(head), None, "{said}");
        }
    }

    #[test]
    fn what_members_are_told_of_clients_decides_too() {
        let goes = |style, trusted| goes(&parts(call()), 8192, style, trusted).is_some();
        assert!(
            goes(Forwarded::XForwarded, false) && goes(Forwarded::Off, false) && goes(Forwarded::Off, true)
        );
        assert!(!goes(Forwarded::XForwarded, true) && !goes(Forwarded::Rfc7239, false));
    }

    fn told(head: request::Builder, style: Forwarded) -> Vec<(String, String)> {
        let whom = Forwards::new("192.0.2.1", "https");
        let head = parts(head);
        let found = goes(&head, 8192, style, false).expect("it goes straight");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let fields = ask(head, found, style, &whom).head.headers;
        let mut fields: Vec<_> =
            fields.iter().map(|(name, value)| (name.to_string(), text(value.as_bytes()))).collect();
        fields.sort();
        fields
    }

    #[test]
    fn a_member_is_told_who_the_client_is() {
        let lies = call()
            .header("x-forwarded-for", "10.0.0.1")
            .header("x-forwarded-for", "10.0.0.2")
            .header("x-forwarded-host", "other")
            .header("forwarded", "for=10.0.0.1")
            .header("content-length", "5")
            .header("x", " y\t");
        let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
        };
        assert_eq!(
            told(lies, Forwarded::XForwarded),
            pairs(&[
                ("content-type", "application/grpc+proto"),
                ("te", "trailers"),
                ("x", "y"),
                ("x-forwarded-for", "192.0.2.1"),
                ("x-forwarded-host", "h.example:80"),
                ("x-forwarded-proto", "https"),
            ])
        );
        // By way of its text, where that is seen to.
        assert_eq!(found(call().header("x_forwarded_for", "10.0.0.1")), None);
        let kept = call().header("x-forwarded-for", "10.0.0.1").header("te", "trailers");
        assert_eq!(
            told(kept, Forwarded::Off),
            pairs(&[
                ("content-type", "application/grpc+proto"),
                ("te", "trailers"),
                ("x-forwarded-for", "10.0.0.1"),
            ])
        );
    }

    #[test]
    fn the_host_is_that_of_each_call() {
        let whom = Forwards::new("::1", "http");
        for host in ["a", "b", "b", "a"] {
            assert_eq!(whom.host(host).expect("a value"), host);
        }
    }

    fn judge(fields: &[(&str, &str)], max: usize, strip: bool) -> Result<(Judged, Vec<String>), ()> {
        let head = fields.iter().fold(Response::builder(), |head, (name, value)| head.header(*name, *value));
        let mut head = head.body(()).expect("a head");
        let judged = answer(&mut head, max, strip)?;
        Ok((judged, head.headers().keys().map(ToString::to_string).collect()))
    }

    #[test]
    fn answers_are_judged_by_the_rules_for_all() {
        const CALL: (&str, &str) = ("content-type", "application/grpc");
        let names = |fields: &[(&str, &str)]| judge(fields, 8192, false).map(|(_, names)| names);
        assert_eq!(names(&[CALL, ("content-length", "3"), ("te", "x")]), Ok(vec!["content-type".to_owned()]));
        assert_eq!(
            names(&[("content-length", "3"), ("content-length", "3")]),
            Ok(vec!["content-length".to_owned()])
        );
        assert_eq!(names(&[("content-length", "3"), ("content-length", "03")]), Err(()));
        assert!(judge(&[("x", "y")], 24, false).is_ok());
        assert!(judge(&[("x", "y")], 21, false).is_err(), "too large");
        let many: Vec<(String, &str)> =
            (0..=http1::MAX_FIELDS).map(|number| (format!("x{number}"), "")).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        assert!(judge(&many[1..], 8192, false).is_ok() && judge(&many, 8192, false).is_err());
    }

    #[test]
    fn reports_are_heard_and_may_stay_behind() {
        let fields = [(orca::HEADER, "TEXT eps=1"), (orca::HEADER, "TEXT eps=2"), ("x", "y")];
        for (strip, left) in [(false, vec![orca::HEADER, "x"]), (true, vec!["x"])] {
            let (judged, names) = judge(&fields, 8192, strip).expect("good");
            assert_eq!(judged.report.as_ref().map(HeaderValue::as_bytes), Some(&b"TEXT eps=1"[..]));
            assert_eq!(names, left);
        }
    }
}
