//! The fields that may be in the trailers of a message: one rule for HTTP/1 and HTTP/2, for requests and
//! responses.

/// The length of the longest name in [`HEAD_ONLY`].
const MAX_NAME_LEN: usize = 22;

/// The fields that are valid in a head only (RFC 9110 section 6.5.1), in lower case and sorted. They concern
/// framing, routing, connection options, request modifiers, authentication, cookies, content format, response
/// control, and the identity of the client.
const HEAD_ONLY: [&str; 42] = [
    "age",
    "authentication-info",
    "authorization",
    "cache-control",
    "cf-connecting-ip",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "cookie",
    "date",
    "expect",
    "expires",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "location",
    "max-forwards",
    "pragma",
    "range",
    "realm",
    "retry-after",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "true-client-ip",
    "upgrade",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "x-client-ip",
    "x-forwarded",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-url",
    "x-real-ip",
    "x-rewrite-url",
];

/// The prefixes of such fields.
const HEAD_ONLY_PREFIXES: [&[u8]; 3] = [b"if-", b"proxy-", b"x-forwarded-"];

/// Returns `true` if a field may be in trailers. `name` is in any case. `_` counts as `-`: servers that turn
/// fields into variables (CGI, WSGI) cannot distinguish the two.
pub fn is_trailer_field(name: &[u8]) -> bool {
    let mut normalized = [0; MAX_NAME_LEN];
    let prefix = &name[..name.len().min(MAX_NAME_LEN)];
    for (target, byte) in normalized.iter_mut().zip(prefix) {
        *target = if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    }
    let normalized = &normalized[..prefix.len()];
    !HEAD_ONLY_PREFIXES.iter().any(|reserved_prefix| normalized.starts_with(reserved_prefix))
        && (name.len() > MAX_NAME_LEN
            || HEAD_ONLY.binary_search_by(|reserved| reserved.as_bytes().cmp(normalized)).is_err())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order_and_none_is_longer_than_the_longest() {
        assert!(HEAD_ONLY.is_sorted() && HEAD_ONLY.iter().all(|name| name.len() <= MAX_NAME_LEN));
        assert!(HEAD_ONLY.iter().any(|name| name.len() == MAX_NAME_LEN));
    }

    #[test]
    fn fields_of_heads_do_not_trail_in_any_spelling() {
        for name in HEAD_ONLY {
            let (upper, underscored) = (name.to_ascii_uppercase(), name.replace('-', "_"));
            for name in [name, &upper, &underscored] {
                assert!(!is_trailer_field(name.as_bytes()), "{name}");
            }
        }
        for name in
            ["If-Match", "if_none_match", "Proxy-Authorization", "X-Forwarded-For", "x_forwarded_port"]
        {
            assert!(!is_trailer_field(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn other_fields_trail() {
        let long = "a-name-that-is-longer-than-any";
        for name in
            ["grpc-status", "Grpc-Message", "x-checksum", "Digest", "tea", "hosts", "x", "ETag", "iffy", long]
        {
            assert!(is_trailer_field(name.as_bytes()), "{name}");
        }
    }
}
