//! Header fields between the two versions: those of a single HTTP/1.1 hop, and trailers as text.

use http::{HeaderMap, HeaderName, HeaderValue};
use plimsoll_wire::http1::{is_trailer_field, trailer_fields};
use plimsoll_wire::orca;

/// Returns `true` if a field, in lower case or not, belongs to one hop of HTTP/1.1 and is not allowed in
/// HTTP/2 (RFC 9113 section 8.2.2).
pub(super) fn is_hop_by_hop(name: &[u8]) -> bool {
    const HOP: [&[u8]; 7] = [
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"transfer-encoding",
        b"upgrade",
        b"te",
        b"http2-settings",
    ];
    HOP.iter().any(|hop| name.eq_ignore_ascii_case(hop))
}

/// Returns the same for a name as in HTTP/2, in lower case.
pub(super) fn is_hop_by_hop_lowercase(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "transfer-encoding"
            | "upgrade"
            | "te"
            | "http2-settings"
    )
}

/// Appends `name: value` as a line. White space around a value is not allowed in HTTP/2 (RFC 9113 section
/// 8.2.1) and has no meaning in HTTP/1.
pub(super) fn push_line(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value.trim_ascii());
    out.extend_from_slice(b"\r\n");
}

/// Appends the end of a chunked body: the last chunk, trailers, the empty line.
pub(super) fn push_chunks_end(trailers: Option<&HeaderMap>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers.into_iter().flatten() {
        if is_trailer_field(name.as_str().as_bytes()) {
            push_line(name.as_str().as_bytes(), value.as_bytes(), out);
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Returns the trailers of a chunked body, whose section was checked before. Leaves out lines that are no
/// valid field of HTTP/2.
pub(super) fn parse_trailers(section: &[u8]) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    for (name, value) in trailer_fields(section) {
        if let (true, Ok(name), Ok(value)) =
            (is_trailer_field(name), HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
        {
            // As many as the limit on trailers permits: far fewer than a map can hold.
            let _ = trailers.try_append(name, value);
        }
    }
    trailers
}

/// Removes white space from both ends of values, where HTTP/2 does not allow it (RFC 9113 section 8.2.1).
pub(super) fn trim_values(fields: &mut HeaderMap) {
    let is_padded = |value: &HeaderValue| matches!(value.as_bytes(), [b' ' | b'\t', ..] | [.., b' ' | b'\t']);
    for value in fields.values_mut().filter(|value| is_padded(value)) {
        // A part of a valid value is valid.
        if let Ok(trimmed) = HeaderValue::from_bytes(value.as_bytes().trim_ascii()) {
            *value = trimmed;
        }
    }
}

/// Returns the load report in trailers (ORCA), as the value of [`orca::HEADER`]; with `strip` it is removed
/// from them.
pub(super) fn take_report(trailers: &mut HeaderMap, strip: bool) -> Option<Vec<u8>> {
    if !has_report(trailers) {
        return None;
    }
    let binary = take_binary_report(trailers, strip);
    let text = match strip {
        true => trailers.remove(orca::HEADER),
        false => trailers.get(orca::HEADER).cloned(),
    };
    binary.or_else(|| text.map(|value| value.as_bytes().to_vec()))
}

/// Returns the load report in binary form, for which gRPC has a separate name.
pub(super) fn take_binary_report(fields: &mut HeaderMap, strip: bool) -> Option<Vec<u8>> {
    if !has_report(fields) {
        return None;
    }
    let value = match strip {
        true => fields.remove(orca::HEADER_BIN),
        false => fields.get(orca::HEADER_BIN).cloned(),
    };
    value.map(|value| [b"BIN ", value.as_bytes()].concat())
}

/// Returns `true` if there is a load report in either form. Most responses have none, and two lookups cost
/// more than one pass over all names.
fn has_report(fields: &HeaderMap) -> bool {
    fields.keys().any(|name| name.as_str().starts_with(orca::HEADER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailers_come_back_as_they_went() {
        let mut sent = HeaderMap::new();
        sent.append("grpc-status", HeaderValue::from_static("14"));
        sent.append("grpc-message", HeaderValue::from_static("a:b %0A"));
        sent.append("x", HeaderValue::from_static("1"));
        sent.append("x", HeaderValue::from_static("2"));
        let mut text = Vec::new();
        push_chunks_end(Some(&sent), &mut text);
        let section = text.strip_prefix(b"0\r\n").expect("the last chunk");
        assert_eq!(parse_trailers(section), sent);
        let mut empty = Vec::new();
        push_chunks_end(None, &mut empty);
        assert_eq!(empty, b"0\r\n\r\n");
        assert!(parse_trailers(&empty).is_empty());
    }

    #[test]
    fn what_frames_a_message_is_no_trailer() {
        let text =
            b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\nHost: x\r\nCookie: y\r\nOk: 1\r\n\r\n";
        let trailers = parse_trailers(text);
        assert_eq!(trailers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["ok"]);
        let sent = ["host", "authorization", "x-forwarded-for", "ok"].map(HeaderName::from_static);
        let sent = HeaderMap::from_iter(sent.map(|name| (name, HeaderValue::from_static("1"))));
        let mut text = Vec::new();
        push_chunks_end(Some(&sent), &mut text);
        assert_eq!(text, b"0\r\nok: 1\r\n\r\n");
    }

    #[test]
    fn white_space_around_values_stays_behind() {
        let mut fields = HeaderMap::new();
        for value in [" a", "b\t", " \t c d ", "e", "", "  "] {
            fields.append("x", HeaderValue::from_str(value).expect("a value"));
        }
        trim_values(&mut fields);
        let values: Vec<&[u8]> = fields.get_all("x").iter().map(HeaderValue::as_bytes).collect();
        assert_eq!(values, [&b"a"[..], b"b", b"c d", b"e", b"", b""]);
        let mut text = Vec::new();
        push_line(b"x", b" \ta ", &mut text);
        assert_eq!(text, b"x: a\r\n");
    }

    #[test]
    fn names_in_lower_case_are_judged_alike() {
        for name in [
            "connection",
            "keep-alive",
            "proxy-connection",
            "transfer-encoding",
            "upgrade",
            "te",
            "http2-settings",
            "grpc-status",
            "tea",
            "x",
        ] {
            assert_eq!(is_hop_by_hop_lowercase(name), is_hop_by_hop(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn reports_are_found_in_trailers() {
        let trailers = || {
            let mut trailers = HeaderMap::new();
            trailers.append("grpc-status", HeaderValue::from_static("0"));
            trailers.append(orca::HEADER, HeaderValue::from_static("TEXT eps=1"));
            trailers
        };
        let mut fields = trailers();
        assert_eq!(take_report(&mut fields, false).as_deref(), Some(&b"TEXT eps=1"[..]));
        assert_eq!(fields, trailers());
        fields.append(orca::HEADER_BIN, HeaderValue::from_static("CTMzMzMzM9M/"));
        assert_eq!(take_report(&mut fields, true).as_deref(), Some(&b"BIN CTMzMzMzM9M/"[..]));
        assert_eq!(fields.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["grpc-status"]);
        assert_eq!(take_report(&mut fields, true), None);
    }
}
