//! Heads between HTTP/2 and the text of HTTP/1.1 (RFC 9113 section 8). The complete text is validated
//! elsewhere, by the rules of HTTP/1.1; this module only converts.

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HOST, TE, TRAILER};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, Version, request, response};
use plimsoll_wire::http1;

use super::fields::{is_hop_by_hop, push_line};
use super::text_reader::TextFraming;
use crate::net::grpc;

/// The reason why a head cannot be converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct HeadError(&'static str);

/// Returns `true` for a message that announces trailers, or whose kind ends with some. Its body is sent in
/// chunks, which have a place for trailers.
fn has_trailers(fields: &HeaderMap) -> bool {
    fields.contains_key(TRAILER) || is_call(fields)
}

/// Returns `true` for a gRPC call.
pub(super) fn is_call(fields: &HeaderMap) -> bool {
    fields.get(CONTENT_TYPE).is_some_and(|kind| grpc::is_call(kind.as_bytes()))
}

/// Returns the host of a request, without its port; `None` if it names none.
pub(super) fn request_host(head: &request::Parts) -> Option<&str> {
    let host_header = || head.headers.get(HOST)?.to_str().ok();
    let authority = head.uri.authority().map(Authority::as_str).or_else(host_header)?;
    match authority.rsplit_once(':') {
        // An address in brackets contains colons.
        Some((host, port)) if !port.ends_with(']') => Some(host),
        _ => Some(authority),
    }
}

/// Appends a request's head as text. `ended` is `true` if it has no body.
///
/// # Errors
/// It names two hosts.
pub(super) fn request_text(
    head: &request::Parts,
    ended: bool,
    out: &mut Vec<u8>,
) -> Result<TextFraming, HeadError> {
    let fields = &head.headers;
    let authority = head.uri.authority().map(Authority::as_str);
    let host = host_field(head)?;
    let target = match head.uri.path_and_query() {
        Some(path) if head.method != Method::CONNECT => path.as_str(),
        _ => authority.unwrap_or_default(),
    };
    out.extend_from_slice(head.method.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    if let Some(host) = host {
        push_line(b"Host", host, out);
    }
    let length = fields.contains_key(CONTENT_LENGTH);
    let framing = match () {
        () if ended => TextFraming::Empty,
        () if length && !has_trailers(fields) => TextFraming::Length,
        () => TextFraming::Chunks,
    };
    request_fields(fields, |name| *name == CONTENT_LENGTH && framing == TextFraming::Chunks, out);
    match framing {
        TextFraming::Chunks => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        // Requests that usually have a body state that they have none (RFC 9110 section 8.6).
        TextFraming::Empty
            if !length && [Method::POST, Method::PUT, Method::PATCH].contains(&head.method) =>
        {
            out.extend_from_slice(b"Content-Length: 0\r\n");
        }
        TextFraming::Empty | TextFraming::Length => {}
    }
    out.extend_from_slice(b"\r\n");
    Ok(framing)
}

/// Returns the host of a request, as in a Host field; `None` if it names none.
///
/// # Errors
/// It names two hosts.
pub(super) fn host_field(head: &request::Parts) -> Result<Option<&[u8]>, HeadError> {
    let mut hosts = head.headers.get_all(HOST).iter();
    let host_header = hosts.next().map(HeaderValue::as_bytes);
    if hosts.next().is_some() {
        return Err(HeadError("more than one Host"));
    }
    match (head.uri.authority().map(|authority| authority.as_str().as_bytes()), host_header) {
        (Some(authority), Some(host)) if !authority.eq_ignore_ascii_case(host) => {
            Err(HeadError("Host and :authority are not the same"))
        }
        (authority, host) => Ok(authority.or(host)),
    }
}

/// Appends a request's fields except for Host, those of one hop of HTTP/1.1, and those to be left out.
pub(super) fn request_fields(fields: &HeaderMap, left_out: impl Fn(&HeaderName) -> bool, out: &mut Vec<u8>) {
    for (name, value) in fields {
        let skipped =
            [HOST, COOKIE].contains(name) || left_out(name) || is_hop_by_hop(name.as_str().as_bytes());
        if !skipped {
            push_line(name.as_str().as_bytes(), value.as_bytes(), out);
        }
    }
    // Cookies may come in several fields (section 8.2.3).
    let cookies: Vec<&[u8]> = fields.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if !cookies.is_empty() {
        push_line(b"cookie", &cookies.join(&b"; "[..]), out);
    }
}

/// Appends a response's head as text. `ended` is `true` if it has no body; `to_head`, if it answers HEAD.
pub(super) fn response_text(
    head: &response::Parts,
    ended: bool,
    to_head: bool,
    out: &mut Vec<u8>,
) -> TextFraming {
    let fields = &head.headers;
    let has_no_body = head.status.is_informational()
        || [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&head.status);
    let length = fields.contains_key(CONTENT_LENGTH);
    let framing = match () {
        () if ended || has_no_body || to_head => TextFraming::Empty,
        () if length && !has_trailers(fields) => TextFraming::Length,
        () => TextFraming::Chunks,
    };
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(head.status.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(head.status.canonical_reason().unwrap_or_default().as_bytes());
    out.extend_from_slice(b"\r\n");
    for (name, value) in fields {
        let skipped = (*name == CONTENT_LENGTH && framing == TextFraming::Chunks)
            || is_hop_by_hop(name.as_str().as_bytes());
        if !skipped {
            push_line(name.as_str().as_bytes(), value.as_bytes(), out);
        }
    }
    match framing {
        TextFraming::Chunks => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        TextFraming::Empty if !length && !has_no_body && !to_head => {
            out.extend_from_slice(b"Content-Length: 0\r\n")
        }
        TextFraming::Empty | TextFraming::Length => {}
    }
    out.extend_from_slice(b"\r\n");
    framing
}

/// Converts a request's head from text. `host` is the host of a request that names none.
///
/// # Errors
/// It has no form in HTTP/2.
pub(super) fn request_head(
    head: &http1::RequestHead<'_, '_>,
    secure: bool,
    host: &str,
) -> Result<http::Request<()>, HeadError> {
    const BAD: HeadError = HeadError("the request has no form in HTTP/2");
    let authority = if head.host.is_empty() { host.as_bytes() } else { head.host };
    let uri = Uri::builder()
        .scheme(if secure { Scheme::HTTPS } else { Scheme::HTTP })
        .authority(Authority::try_from(authority).map_err(|_| BAD)?)
        .path_and_query(path_and_query(head.target).ok_or(BAD)?)
        .build()
        .map_err(|_| BAD)?;
    let mut request = http::Request::new(());
    *request.method_mut() = Method::from_bytes(head.method_name).map_err(|_| BAD)?;
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_2;
    let fields = request.headers_mut();
    copy(head.fields().filter(|(name, _)| !name.eq_ignore_ascii_case(b"host")), fields)?;
    // Whatever the client sent: this balancer forwards trailers.
    fields.insert(TE, HeaderValue::from_static("trailers"));
    Ok(request)
}

/// Converts a target into a path of HTTP/2. Bytes that are not allowed in a URI, and that `http` does not
/// accept, are percent-encoded (RFC 3986 section 2.1), as a browser does. Returns `None` for a target with a
/// fragment, which members would read in different ways.
fn path_and_query(target: &[u8]) -> Option<PathAndQuery> {
    if target.contains(&b'#') {
        return None;
    }
    if let Ok(path) = PathAndQuery::try_from(target) {
        return Some(path);
    }
    let mut encoded = Vec::with_capacity(target.len() + 16);
    let mut query = false;
    for byte in target {
        match byte {
            b'<' => encoded.extend_from_slice(b"%3C"),
            b'>' => encoded.extend_from_slice(b"%3E"),
            b'`' if !query => encoded.extend_from_slice(b"%60"),
            b'"' if query => encoded.extend_from_slice(b"%22"),
            byte => encoded.push(*byte),
        }
        query |= *byte == b'?';
    }
    PathAndQuery::try_from(encoded).ok()
}

/// Converts a response's head from text.
///
/// # Errors
/// It has no form in HTTP/2.
pub(super) fn response_head(head: &http1::ResponseHead<'_, '_>) -> Result<http::Response<()>, HeadError> {
    let mut response = http::Response::new(());
    *response.status_mut() =
        StatusCode::from_u16(head.status).map_err(|_| HeadError("the status has no form in HTTP/2"))?;
    *response.version_mut() = Version::HTTP_2;
    copy(head.fields(), response.headers_mut())?;
    if is_call(response.headers()) {
        response.headers_mut().remove(CONTENT_LENGTH);
    }
    Ok(response)
}

fn copy<'b>(
    fields: impl Iterator<Item = (&'b [u8], &'b [u8])>,
    out: &mut HeaderMap,
) -> Result<(), HeadError> {
    const BAD: HeadError = HeadError("a field has no form in HTTP/2");
    for (name, value) in fields.filter(|(name, _)| !is_hop_by_hop(name)) {
        let name = HeaderName::from_bytes(name).map_err(|_| BAD)?;
        let value = HeaderValue::from_bytes(value).map_err(|_| BAD)?;
        out.try_append(name, value).map_err(|_| HeadError("too many fields"))?;
    }
    Ok(())
}

#[cfg(any(test, fuzzing))]
pub(crate) mod invariants;

#[cfg(test)]
mod tests {
    use plimsoll_wire::http1::{BodyFraming, MarkedFields};

    use super::*;

    fn rendered(head: request::Builder, ended: bool) -> Result<(TextFraming, String), HeadError> {
        let (parts, ()) = head.body(()).expect("a head").into_parts();
        let mut out = Vec::new();
        let framing = request_text(&parts, ended, &mut out)?;
        Ok((framing, String::from_utf8(out).expect("text")))
    }

    #[test]
    fn a_request_is_told_with_one_host_and_one_cookie() {
        let head = http::Request::get("https://web.example:8443/a?b=c")
            .header("host", "WEB.example:8443")
            .header("cookie", "a=1")
            .header("x-y", "z")
            .header("cookie", "b=2")
            .header("te", "trailers");
        let (framing, text) = rendered(head, true).expect("told");
        assert_eq!(framing, TextFraming::Empty);
        assert_eq!(
            text,
            "GET /a?b=c HTTP/1.1\r\nHost: web.example:8443\r\nx-y: z\r\ncookie: a=1; b=2\r\n\r\n"
        );
    }

    #[test]
    fn a_host_is_named_with_a_port_or_without() {
        let host_of = |head: request::Builder| {
            let (parts, ()) = head.body(()).expect("a head").into_parts();
            request_host(&parts).map(str::to_owned)
        };
        for (uri, expected) in [
            ("https://a.b:8443/", "a.b"),
            ("https://a.b/", "a.b"),
            ("https://[::1]/", "[::1]"),
            ("https://[::1]:80/", "[::1]"),
        ] {
            assert_eq!(host_of(http::Request::get(uri)).as_deref(), Some(expected), "{uri}");
        }
        assert_eq!(host_of(http::Request::get("/").header("host", "c:1")).as_deref(), Some("c"));
        assert_eq!(host_of(http::Request::get("/")), None);
    }

    #[test]
    fn a_body_has_a_length_or_comes_in_chunks() {
        let post = || http::Request::post("http://h/");
        assert_eq!(rendered(post(), true).expect("told").0, TextFraming::Empty);
        assert!(rendered(post(), true).expect("told").1.ends_with("Content-Length: 0\r\n\r\n"));
        assert!(rendered(post(), false).expect("told").1.ends_with("Transfer-Encoding: chunked\r\n\r\n"));
        let (framing, text) = rendered(post().header("content-length", "3"), false).expect("told");
        assert_eq!((framing, text.contains("content-length: 3\r\n")), (TextFraming::Length, true));
        let call = post().header("content-length", "3").header("content-type", "application/grpc");
        let (framing, text) = rendered(call, false).expect("told");
        assert_eq!((framing, text.contains("content-length")), (TextFraming::Chunks, false));
    }

    #[test]
    fn two_hosts_are_refused() {
        let head = http::Request::get("http://one/").header("host", "other");
        assert!(rendered(head, true).is_err());
        let head = http::Request::get("http://one/").header("host", "one").header("host", "one");
        assert!(rendered(head, true).is_err());
    }

    #[test]
    fn a_request_comes_back_from_its_text() {
        let text = b"POST /p?q HTTP/1.1\r\nHost: h:1\r\nConnection: Upgrade\r\nUpgrade: x\r\nA-b: c\r\n\
                     Transfer-Encoding: chunked\r\n\r\n";
        let mut marks = MarkedFields::new();
        let parsed = http1::request(text, 4096, &mut marks).expect("good");
        let head = request_head(&parsed, true, "m").expect("told");
        assert_eq!((head.method(), head.uri().to_string().as_str()), (&Method::POST, "https://h:1/p?q"));
        let names: Vec<&str> = head.headers().keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["a-b", "te"]);
    }

    #[test]
    fn targets_that_are_no_uri_are_told_by_codes() {
        for (target, expected) in [
            ("/a/b?c=d", Some("/a/b?c=d")),
            ("*", Some("*")),
            ("/<b>`x`?<\"q\">`", Some("/%3Cb%3E%60x%60?%3C%22q%22%3E`")),
            ("/{\"a\":[1|2]}^\\~%zz", Some("/{\"a\":[1|2]}^\\~%zz")),
            ("/a#b", None),
            ("/a?b#<", None),
        ] {
            assert_eq!(
                path_and_query(target.as_bytes()).as_ref().map(PathAndQuery::as_str),
                expected,
                "{target}"
            );
        }
        // Every character of a target has a form, except for the fragment's.
        for byte in b'!'..=b'~' {
            for target in [[b'/', byte].to_vec(), [b"/?", &[byte][..]].concat()] {
                assert_eq!(path_and_query(&target).is_some(), byte != b'#', "{}", target.escape_ascii());
            }
        }
    }

    #[test]
    fn an_answer_comes_and_goes() {
        let (parts, ()) =
            http::Response::builder().status(200).header("x", "y").body(()).expect("a head").into_parts();
        let mut out = Vec::new();
        assert_eq!(response_text(&parts, false, false, &mut out), TextFraming::Chunks);
        let mut marks = MarkedFields::new();
        let parsed = http1::parse_response(&out, 4096, false, &mut marks).expect("good");
        assert!(matches!(parsed.body, BodyFraming::Chunked(_)));
        let head = response_head(&parsed).expect("told");
        assert_eq!((head.status().as_u16(), head.headers().len()), (200, 1));
        for (ended, to_head, expected) in [(true, false, true), (true, true, false)] {
            let mut out = Vec::new();
            assert_eq!(response_text(&parts, ended, to_head, &mut out), TextFraming::Empty);
            assert_eq!(out.ends_with(b"Content-Length: 0\r\n\r\n"), expected);
        }
    }
}
