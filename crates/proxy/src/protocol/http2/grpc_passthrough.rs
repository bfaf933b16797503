//! Selects the gRPC calls that pass through from a client's stream to a member's, and the changes to their
//! heads.
//!
//! A call passes through if it needs no special handling. All others go through the text of HTTP/1.1, with
//! one set of rules for all versions ([`plimsoll_wire::http1`]). These are calls that may have to be rejected
//! (two hosts, an odd path, a head that may be too large), and those that need the text (sessions, side-cars,
//! `Forwarded`). So nothing passes through that would be rejected there.

use std::cell::RefCell;

use http::header::{CONTENT_LENGTH, TE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, request};
use plimsoll_wire::{http1, orca};

use super::body_frames::{PassthroughCall, field_len};
use super::fields::{is_hop_by_hop_lowercase, trim_values};
use crate::ForwardedHeaders;
use crate::net::grpc;

/// The maximum number of fields of a call that passes through; text has a few more lines.
const MAX_PASSTHROUGH_FIELDS: usize = http1::MAX_FIELDS - 8;

static FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
static FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
static FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// The header fields about a client, made once for all calls of a connection.
pub(super) struct ForwardedFields {
    client: HeaderValue,
    scheme: HeaderValue,
    /// The host of the last request.
    host: RefCell<HeaderValue>,
}

impl ForwardedFields {
    /// Creates the fields. `client` is the client's address, and `scheme` is `http` or `https`.
    pub(super) fn new(client: &str, scheme: &'static str) -> Self {
        // All characters of an address are valid in a field.
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

/// The relevant properties of a head that passes through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PassthroughHead {
    /// The size of the head in bytes, as that of its text would be.
    len: usize,
    content_length: bool,
    te: bool,
    /// Whether the client names the original client.
    names_original_client: bool,
}

/// Returns the properties of a request's head if it may pass through. `max_head` is the maximum size of a
/// head in bytes. `trusted` is `true` if the client's statements about the original client are trusted.
pub(super) fn passthrough_head(
    head: &request::Parts,
    max_head: usize,
    style: ForwardedHeaders,
    trusted: bool,
) -> Option<PassthroughHead> {
    let fields = &head.headers;
    let is_plain = match style {
        ForwardedHeaders::Off => true,
        ForwardedHeaders::XForwarded => !trusted,
        ForwardedHeaders::Rfc7239 => false,
    };
    if !is_plain || head.method != Method::POST || fields.len() > MAX_PASSTHROUGH_FIELDS {
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
    let mut head_info =
        PassthroughHead { len: path.len() + authority.len() + 32, ..PassthroughHead::default() };
    let (mut cookies, mut content_types, mut is_grpc) = (0, 0, false);
    for (name, value) in fields {
        head_info.len += field_len((name, value));
        match name.as_str() {
            "te" => head_info.te = true,
            "content-length" => head_info.content_length = true,
            "content-type" => (content_types, is_grpc) = (content_types + 1, grpc::is_call(value.as_bytes())),
            "cookie" => cookies += 1,
            "host" | "expect" => return None,
            "x-forwarded-for" | "x-forwarded-proto" | "x-forwarded-host" | "forwarded" => {
                head_info.names_original_client = true;
            }
            field if is_hop_by_hop_lowercase(field) || http1::is_disguised_field(field.as_bytes()) => {
                return None;
            }
            _ => {}
        }
    }
    // Near the limit, the text decides.
    (is_grpc && content_types == 1 && cookies < 2 && head_info.len <= max_head / 2).then_some(head_info)
}

/// Converts a head into that for members.
pub(super) fn into_passthrough_call(
    mut head: request::Parts,
    head_info: PassthroughHead,
    style: ForwardedHeaders,
    forwarded: &ForwardedFields,
) -> PassthroughCall {
    let fields = &mut head.headers;
    trim_values(fields);
    if head_info.content_length {
        // The end of the stream marks the end of the body, and trailers may follow.
        fields.remove(CONTENT_LENGTH);
    }
    if !head_info.te {
        // Whatever the client sent: this balancer forwards trailers.
        fields.insert(TE, HeaderValue::from_static("trailers"));
    }
    if style == ForwardedHeaders::XForwarded {
        if head_info.names_original_client {
            fields.remove("forwarded");
        }
        fields.insert(FORWARDED_FOR.clone(), forwarded.client.clone());
        fields.insert(FORWARDED_PROTO.clone(), forwarded.scheme.clone());
        match head.uri.authority().and_then(|authority| forwarded.host(authority.as_str())) {
            Some(host) => _ = fields.insert(FORWARDED_HOST.clone(), host),
            None => _ = fields.remove(&FORWARDED_HOST),
        }
    }
    PassthroughCall::new(head, head_info.len)
}

/// The relevant properties of a response's head.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CheckedResponse {
    /// The size of the head in bytes, as that of its text would be.
    pub(crate) len: usize,
    /// The first ORCA report.
    pub(crate) report: Option<HeaderValue>,
}

/// Checks the head of a response to a call by the rules for all responses, and removes fields that are not
/// forwarded. `strip` is `true` if load reports are for the balancer only.
///
/// # Errors
/// The head is too large, or contradictory.
pub(crate) fn answer(
    response: &mut Response<()>,
    max_head: usize,
    strip: bool,
) -> Result<CheckedResponse, ()> {
    let fields = response.headers_mut();
    let mut checked = CheckedResponse { len: 16, report: None };
    let (mut lengths, mut has_hop_by_hop, mut is_grpc) = (0, false, false);
    for (name, value) in &*fields {
        checked.len += field_len((name, value));
        match name.as_str() {
            "content-length" => lengths += 1,
            "content-type" => is_grpc = is_grpc || grpc::is_call(value.as_bytes()),
            name if name == orca::HEADER => _ = checked.report.get_or_insert_with(|| value.clone()),
            name => has_hop_by_hop |= is_hop_by_hop_lowercase(name),
        }
    }
    if checked.len > max_head || fields.len() > http1::MAX_FIELDS {
        return Err(());
    }
    trim_values(fields);
    if lengths > 0 {
        normalize_content_length(fields, is_grpc)?;
    }
    if has_hop_by_hop {
        remove_fields(fields, is_hop_by_hop_lowercase);
    }
    if strip && checked.report.is_some() {
        fields.remove(orca::HEADER);
    }
    Ok(checked)
}

/// Reduces several equal lengths to one (RFC 9110 section 8.6), or to none where trailers follow.
fn normalize_content_length(fields: &mut HeaderMap, is_grpc: bool) -> Result<(), ()> {
    if is_grpc {
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

/// Removes the fields with these names.
pub(super) fn remove_fields(fields: &mut HeaderMap, predicate: impl Fn(&str) -> bool) {
    let names: Vec<HeaderName> = fields.keys().filter(|name| predicate(name.as_str())).cloned().collect();
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

    fn checked_head(head: request::Builder) -> Option<PassthroughHead> {
        passthrough_head(&parts(head), 8192, ForwardedHeaders::XForwarded, false)
    }

    #[test]
    fn calls_without_anything_odd_go_straight() {
        assert!(checked_head(call()).is_some());
        assert!(checked_head(call().header("cookie", "a=b").header("content-length", "7")).is_some());
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
            (0..MAX_PASSTHROUGH_FIELDS).fold(call(), |head, number| head.header(format!("x-{number}"), "")),
        ];
        for builder in odd {
            let shown = format!("{builder:?}");
            assert_eq!(checked_head(builder), None, "{shown}");
        }
    }

    #[test]
    fn what_members_are_told_of_clients_decides_too() {
        let passes = |style, trusted| passthrough_head(&parts(call()), 8192, style, trusted).is_some();
        assert!(
            passes(ForwardedHeaders::XForwarded, false)
                && passes(ForwardedHeaders::Off, false)
                && passes(ForwardedHeaders::Off, true)
        );
        assert!(!passes(ForwardedHeaders::XForwarded, true) && !passes(ForwardedHeaders::Rfc7239, false));
    }

    fn forwarded_fields(head: request::Builder, style: ForwardedHeaders) -> Vec<(String, String)> {
        let forwarded = ForwardedFields::new("192.0.2.1", "https");
        let head = parts(head);
        let head_info = passthrough_head(&head, 8192, style, false).expect("it goes straight");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let fields = into_passthrough_call(head, head_info, style, &forwarded).head.headers;
        let mut fields: Vec<_> =
            fields.iter().map(|(name, value)| (name.to_string(), text(value.as_bytes()))).collect();
        fields.sort();
        fields
    }

    #[test]
    fn a_member_is_told_who_the_client_is() {
        let spoofed = call()
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
            forwarded_fields(spoofed, ForwardedHeaders::XForwarded),
            pairs(&[
                ("content-type", "application/grpc+proto"),
                ("te", "trailers"),
                ("x", "y"),
                ("x-forwarded-for", "192.0.2.1"),
                ("x-forwarded-host", "h.example:80"),
                ("x-forwarded-proto", "https"),
            ])
        );
        // As text, where these fields are handled.
        assert_eq!(checked_head(call().header("x_forwarded_for", "10.0.0.1")), None);
        let untouched = call().header("x-forwarded-for", "10.0.0.1").header("te", "trailers");
        assert_eq!(
            forwarded_fields(untouched, ForwardedHeaders::Off),
            pairs(&[
                ("content-type", "application/grpc+proto"),
                ("te", "trailers"),
                ("x-forwarded-for", "10.0.0.1"),
            ])
        );
    }

    #[test]
    fn the_host_is_that_of_each_call() {
        let forwarded = ForwardedFields::new("::1", "http");
        for host in ["a", "b", "b", "a"] {
            assert_eq!(forwarded.host(host).expect("a value"), host);
        }
    }

    fn check(fields: &[(&str, &str)], max: usize, strip: bool) -> Result<(CheckedResponse, Vec<String>), ()> {
        let head = fields.iter().fold(Response::builder(), |head, (name, value)| head.header(*name, *value));
        let mut head = head.body(()).expect("a head");
        let checked = answer(&mut head, max, strip)?;
        Ok((checked, head.headers().keys().map(ToString::to_string).collect()))
    }

    #[test]
    fn answers_are_judged_by_the_rules_for_all() {
        const CALL: (&str, &str) = ("content-type", "application/grpc");
        let names = |fields: &[(&str, &str)]| check(fields, 8192, false).map(|(_, names)| names);
        assert_eq!(names(&[CALL, ("content-length", "3"), ("te", "x")]), Ok(vec!["content-type".to_owned()]));
        assert_eq!(
            names(&[("content-length", "3"), ("content-length", "3")]),
            Ok(vec!["content-length".to_owned()])
        );
        assert_eq!(names(&[("content-length", "3"), ("content-length", "03")]), Err(()));
        assert!(check(&[("x", "y")], 24, false).is_ok());
        assert!(check(&[("x", "y")], 21, false).is_err(), "too large");
        let many: Vec<(String, &str)> =
            (0..=http1::MAX_FIELDS).map(|number| (format!("x{number}"), "")).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        assert!(check(&many[1..], 8192, false).is_ok() && check(&many, 8192, false).is_err());
    }

    #[test]
    fn reports_are_heard_and_may_stay_behind() {
        let fields = [(orca::HEADER, "TEXT eps=1"), (orca::HEADER, "TEXT eps=2"), ("x", "y")];
        for (strip, expected) in [(false, vec![orca::HEADER, "x"]), (true, vec!["x"])] {
            let (checked, names) = check(&fields, 8192, strip).expect("good");
            assert_eq!(checked.report.as_ref().map(HeaderValue::as_bytes), Some(&b"TEXT eps=1"[..]));
            assert_eq!(names, expected);
        }
    }
}
