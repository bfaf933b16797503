//! The law of the heads that a peer of HTTP/2 sends: a request's text is read as one request and nothing
//! behind it, by the same method, target, host and fields and with the body that was told; an answer
//! likewise; and both come back from their text. The fuzz target `http2_heads` tries it on invented bytes,
//! the test below on the committed corpus and on what is nearly in it.
//!
//! The first line is a method, a path and an authority, or a status; the lines behind it are fields. The
//! first byte says in its last bit whether the head is the whole message.

use http::HeaderName;
use plimsoll_wire::http1::{Body, Marks};

use super::*;

const LONGEST: usize = 16 * 1024;

/// Panics if the law does not hold. Returns whether the relay of HTTP/1.1 takes it.
pub(crate) fn check(input: &[u8]) -> bool {
    let Some((flags, text)) = input.split_first() else { return false };
    let mut lines = text.split(|byte| *byte == b'\n');
    let Some(first) = lines.next() else { return false };
    let mut fields = HeaderMap::new();
    for line in lines {
        // As HPACK has them: a name and a value of any bytes that h2 lets through.
        let at = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let value = line.get(at + 1..).unwrap_or_default();
        match (HeaderName::from_lowercase(&line[..at]), HeaderValue::from_bytes(value)) {
            (Ok(name), Ok(value)) => drop(fields.append(name, value)),
            _ => return false,
        }
    }
    let ended = flags & 1 == 1;
    match StatusCode::from_bytes(first) {
        Ok(status) => answer(status, fields, ended),
        Err(_) => request(first, fields, ended),
    }
}

/// Tells whether h2 resets the stream: it ends with its head, which says that there is more.
fn broken(fields: &HeaderMap, ended: bool) -> bool {
    ended && fields.get(CONTENT_LENGTH).is_some_and(|length| length != "0")
}

fn request(first: &[u8], fields: HeaderMap, ended: bool) -> bool {
    if broken(&fields, ended) {
        return false;
    }
    let mut words = first.split(|byte| *byte == b' ');
    let (method, path, authority) = (words.next(), words.next(), words.next());
    let uri = Uri::builder().scheme(Scheme::HTTPS).path_and_query(path.unwrap_or_default());
    let uri = uri.authority(authority.unwrap_or_default()).build();
    let (Ok(method), Ok(uri)) = (Method::from_bytes(method.unwrap_or_default()), uri) else { return false };
    let (mut parts, ()) = http::Request::new(()).into_parts();
    (parts.method, parts.uri, parts.headers) = (method, uri, fields);
    let mut text = Vec::new();
    let Ok(framing) = request_text(&parts, ended, &mut text) else { return false };
    let shown = text.escape_ascii().to_string();
    let mut marks = Marks::new();
    let read = match http1::request(&text, LONGEST, &mut marks) {
        Ok(read) => read,
        Err(http1::Unread::Partial) => panic!("a head without an end: {shown}"),
        Err(http1::Unread::Bad(_)) => return false,
    };
    assert_eq!(read.len, text.len(), "something stands behind the head: {shown}");
    assert_eq!(read.method_name, parts.method.as_str().as_bytes(), "{shown}");
    let target = parts.uri.path_and_query().map(PathAndQuery::as_str).unwrap_or_default();
    assert!(parts.method == Method::CONNECT || read.target == target.as_bytes(), "{shown}");
    assert!(!read.target.contains(&b'#'), "{shown}");
    match framing {
        Framing::Empty => assert_eq!(read.body, Body::Done, "{shown}"),
        Framing::Length => assert!(matches!(read.body, Body::Length(_) | Body::Done), "{shown}"),
        Framing::Chunks => assert!(matches!(read.body, Body::Chunked(_)), "{shown}"),
    }
    assert!(!read.http10 && read.keep_alive && !read.upgrade, "{shown}");
    for (name, value) in read.fields() {
        let mut sent = parts.headers.get_all(HeaderName::from_bytes(name).expect("a name")).iter();
        let own = [&b"host"[..], b"cookie", b"content-length", b"transfer-encoding"];
        let own = own.iter().any(|own| name.eq_ignore_ascii_case(own));
        let told = sent.any(|one| one.as_bytes().trim_ascii() == value);
        assert!(own || told, "{shown}");
        assert!(!hop(name) || name.eq_ignore_ascii_case(b"transfer-encoding"), "{shown}");
    }
    if let Ok(again) = request_head(&read, true, "m") {
        let told = again.uri().path_and_query().map(PathAndQuery::as_str);
        assert_eq!((again.method(), told), (&parts.method, Some(target)), "{shown}");
        assert!(again.headers().keys().all(|name| !hop(name.as_str().as_bytes()) || name == TE), "{shown}");
        assert!(!again.headers().contains_key(HOST), "{shown}");
    }
    true
}

fn answer(status: StatusCode, fields: HeaderMap, ended: bool) -> bool {
    let (mut parts, ()) = http::Response::new(()).into_parts();
    (parts.status, parts.headers) = (status, fields);
    let mut taken = false;
    let bare = [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&status);
    for to_head in [false, true] {
        if broken(&parts.headers, ended) && !bare && !to_head {
            continue;
        }
        let mut text = Vec::new();
        let framing = answer_text(&parts, ended, to_head, &mut text);
        let shown = text.escape_ascii().to_string();
        let mut marks = Marks::new();
        let read = match http1::response(&text, LONGEST, to_head, &mut marks) {
            Ok(read) => read,
            Err(http1::Unread::Partial) => panic!("a head without an end: {shown}"),
            Err(http1::Unread::Bad(_)) => continue,
        };
        assert_eq!((read.len, read.status), (text.len(), status.as_u16()), "{shown}");
        match framing {
            Framing::Empty => assert_eq!(read.body, Body::Done, "{shown}"),
            Framing::Length => assert!(matches!(read.body, Body::Length(_) | Body::Done), "{shown}"),
            Framing::Chunks => assert!(matches!(read.body, Body::Chunked(_)), "{shown}"),
        }
        if let Ok(again) = answer_head(&read) {
            assert_eq!(again.status(), status, "{shown}");
            assert!(again.headers().keys().all(|name| !hop(name.as_str().as_bytes())), "{shown}");
        }
        taken = true;
    }
    taken
}

#[test]
fn the_corpus_obeys_it_and_what_is_nearly_in_it() {
    crate::near::holds("http2_heads", b"\n\r\0\t :;,#/?@[]09azAZ\x7f\x80\xff", 10_000, check);
}
