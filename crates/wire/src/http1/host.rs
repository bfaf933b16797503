//! Validation of hosts with or without a port, as in Host fields, `:authority` and targets in absolute form.

use core::net::Ipv6Addr;

use super::scan;

/// The class of bytes that are invalid in hosts and ports.
const FORBIDDEN: u8 = 1;
/// The class of bytes that are valid in some positions.
const POSITIONAL: u8 = 2;

/// The class of each byte in a host: 0 for those that are valid anywhere in a name.
const KINDS: [u8; 256] = kinds();

const fn kinds() -> [u8; 256] {
    // Unreserved characters and sub-delims (RFC 3986 section 3.2.2), but no comma: in a field it separates
    // values.
    let name_bytes = scan::letters_digits_and(b"-._~!$&'()*+;=");
    let mut kinds = [FORBIDDEN; 256];
    let mut byte = 0;
    while byte < 256 {
        if name_bytes[byte] {
            kinds[byte] = 0;
        }
        byte += 1;
    }
    let mut delimiters = [b':', b'[', b']', b'%'].as_slice();
    while let [byte, rest @ ..] = delimiters {
        kinds[*byte as usize] = POSITIONAL;
        delimiters = rest;
    }
    kinds
}

/// Returns `true` for a host with an optional port, as RFC 3986 section 3.2 defines them. The host may not be
/// empty where a port follows, nor in an HTTP URI (RFC 9110 section 4.2.1). Callers decide whether an empty
/// text is valid.
#[inline]
pub fn is_host(text: &[u8]) -> bool {
    // Most consist of a short name and a short port.
    let digits = text.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let name = match text[..text.len() - digits] {
        [ref name @ .., b':'] => name,
        _ => text,
    };
    let (chunks, rest) = name.as_chunks::<4>();
    let seen = chunks.iter().fold(0, |seen_kinds, chunk| {
        chunk.iter().fold(seen_kinds, |seen_kinds, byte| seen_kinds | KINDS[usize::from(*byte)])
    });
    let kinds = rest.iter().fold(seen, |seen_kinds, byte| seen_kinds | KINDS[usize::from(*byte)]);
    match kinds {
        0 => !name.is_empty(),
        POSITIONAL => is_valid_authority(text),
        _ => false,
    }
}

/// Validates a text with colons, brackets or percent signs.
fn is_valid_authority(text: &[u8]) -> bool {
    let port = match text {
        [b'[', literal @ ..] => {
            let Some(end) = literal.iter().position(|byte| *byte == b']') else { return false };
            if !is_literal(&literal[..end]) {
                return false;
            }
            &literal[end + 1..]
        }
        _ => {
            let end = text.iter().position(|byte| *byte == b':').unwrap_or(text.len());
            if !is_name(&text[..end]) {
                return false;
            }
            &text[end..]
        }
    };
    match port {
        [] => true,
        [b':', digits @ ..] => digits.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

/// Returns `true` for an address of IPv6, or of a future version.
fn is_literal(text: &[u8]) -> bool {
    match text {
        [b'v' | b'V', future @ ..] => {
            let Some(dot) = future.iter().position(|byte| *byte == b'.') else { return false };
            let (version, address) = (&future[..dot], &future[dot + 1..]);
            let is_allowed = |byte: &u8| KINDS[usize::from(*byte)] == 0 || *byte == b':';
            let is_hex_version = !version.is_empty() && version.iter().all(u8::is_ascii_hexdigit);
            is_hex_version && !address.is_empty() && address.iter().all(is_allowed)
        }
        _ => core::str::from_utf8(text).is_ok_and(|text| text.parse::<Ipv6Addr>().is_ok()),
    }
}

/// Returns `true` for a name or an IPv4 address.
fn is_name(mut text: &[u8]) -> bool {
    if text.is_empty() {
        return false;
    }
    loop {
        text = match text {
            [] => return true,
            [b'%', high, low, rest @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => rest,
            [byte, rest @ ..] if KINDS[usize::from(*byte)] == 0 => rest,
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_told_from_what_is_none() {
        for good in [
            "h",
            "a.example",
            "a.example.",
            "h:80",
            "h:",
            "127.0.0.1:8080",
            "[::1]",
            "[::1]:8080",
            "[::ffff:1.2.3.4]",
            "[v1.a:b]",
            "my_host",
            "%65xample.com",
            "a;b+c",
            "xn--nxasmq6b.example:1",
        ] {
            assert!(is_host(good.as_bytes()), "{good}");
        }
        for bad in [
            "",
            ":80",
            ":",
            ":example.com",
            "h:abc",
            "h:80:80",
            "a:b:c",
            "::1",
            "[::1",
            "[::1]x",
            "[::1]:x",
            "]",
            "e]x",
            "[]",
            "[:80",
            "[1.2.3.4]",
            "[h]",
            "[v.a]",
            "[v1.]",
            "[v1.[]",
            "[::1%25eth0]",
            "a%",
            "a%6",
            "a%zz",
            "a,b",
            "a@b",
            "a/b",
            "a b",
            "h:+80",
            "a\u{e9}",
            "a#b",
            "a?b",
            "a\\b",
            "<h>",
            "[[::1]]",
        ] {
            assert!(!is_host(bad.as_bytes()), "{bad}");
        }
    }
}
