//! DNS cookies (RFC 7873) in the format of RFC 9018: with a cookie, a client proves that it receives packets
//! at its address.
//!
//! The secret is drawn once per process. A cookie of another process is invalid here, and its client gets a
//! new one.

use std::net::IpAddr;

use plimsoll_brain::lottery;

/// The version number of RFC 9018, and three reserved bytes.
const VERSION: [u8; 4] = [1, 0, 0, 0];
/// The lifetime of a cookie, and the age after which its client gets a new one, in seconds.
const MAX_AGE: u32 = 3600;
const REFRESH_AGE: u32 = 1800;
/// The tolerance for a clock that was set back, in seconds.
const CLOCK_TOLERANCE: u32 = 300;

/// A server cookie of this process.
pub(super) type ServerCookie = [u8; 16];

/// The content of a query's cookie option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CookieOption<'a> {
    /// The client's part, and the server's part as the client received it; may be empty.
    Cookie(&'a [u8; 8], &'a [u8]),
    /// The option is malformed.
    Malformed,
}

impl<'a> CookieOption<'a> {
    /// Parses an option: 8 bytes of the client, followed by nothing or by 8 to 32 bytes of the server (RFC
    /// 7873 section 4).
    pub(super) fn parse(option: &'a [u8]) -> Self {
        match option.split_first_chunk::<8>() {
            Some((client, server)) if matches!(server.len(), 0 | 8..=32) => Self::Cookie(client, server),
            _ => Self::Malformed,
        }
    }
}

/// Returns the server cookie for a client at a time in seconds since 1970, and whether the presented cookie
/// is valid.
pub(super) fn verify_cookie(
    secret: &lottery::SipHashKey,
    client: IpAddr,
    client_cookie: &[u8; 8],
    presented: &[u8],
    now: u32,
) -> (ServerCookie, bool) {
    let presented: Option<&ServerCookie> = presented.try_into().ok();
    let age = presented.and_then(|presented| {
        let [_, _, _, _, a, b, c, d, ..] = *presented;
        let issued_at = u32::from_be_bytes([a, b, c, d]);
        // Compared as in RFC 1982: the number wraps around after 136 years.
        let age = now.wrapping_sub(issued_at);
        let age = if age > u32::MAX - CLOCK_TOLERANCE { 0 } else { age };
        (age <= MAX_AGE && cookie(secret, client, client_cookie, issued_at) == *presented).then_some(age)
    });
    match (presented, age) {
        (Some(presented), Some(..REFRESH_AGE)) => (*presented, true),
        (_, age) => (cookie(secret, client, client_cookie, now), age.is_some()),
    }
}

fn cookie(
    secret: &lottery::SipHashKey,
    client: IpAddr,
    client_cookie: &[u8; 8],
    issued_at: u32,
) -> ServerCookie {
    let mut input = [&client_cookie[..], &VERSION, &issued_at.to_be_bytes()].concat();
    match client.to_canonical() {
        IpAddr::V4(client) => input.extend(client.octets()),
        IpAddr::V6(client) => input.extend(client.octets()),
    }
    let mut cookie = [0; 16];
    cookie[..4].copy_from_slice(&VERSION);
    cookie[4..8].copy_from_slice(&issued_at.to_be_bytes());
    cookie[8..].copy_from_slice(&secret.hash(&input).to_le_bytes());
    cookie
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<const N: usize>(hex: &str) -> [u8; N] {
        let digits: Vec<u8> = hex.chars().map(|digit| digit.to_digit(16).unwrap() as u8).collect();
        let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        bytes.try_into().unwrap()
    }

    #[test]
    fn they_are_those_of_the_rfc() {
        // RFC 9018, appendix A.1 and A.2.
        let secret = lottery::SipHashKey::new(bytes("e5e973e5a6b2a43f48e7dc849e37bfcf"));
        let (client, client_cookie) = ("198.51.100.100".parse().unwrap(), bytes("2464c4abcf10c957"));
        let (issued, verified) = verify_cookie(&secret, client, &client_cookie, &[], 1_559_731_985);
        assert_eq!((issued, verified), (bytes("010000005cf79f111f8130c3eee29480"), false));
        let mapped = "::ffff:198.51.100.100".parse().unwrap();
        assert_eq!(verify_cookie(&secret, mapped, &client_cookie, &[], 1_559_731_985).0, issued);
    }

    #[test]
    fn a_cookie_is_good_for_its_client_and_its_time() {
        let secret = lottery::SipHashKey::new([7; 16]);
        let (client, client_cookie) = ("192.0.2.1".parse().unwrap(), [9; 8]);
        let (issued, _) = verify_cookie(&secret, client, &client_cookie, &[], 10_000);
        let verify = |client: &str, client_cookie: &[u8; 8], presented: &[u8], now| {
            verify_cookie(&secret, client.parse().unwrap(), client_cookie, presented, now)
        };
        for now in [9_700, 10_000, 11_799] {
            assert_eq!(verify("192.0.2.1", &client_cookie, &issued, now), (issued, true), "{now}");
        }
        let (renewed, accepted) = verify("192.0.2.1", &client_cookie, &issued, 13_600);
        assert!(accepted && renewed != issued, "whoever has an old one gets a young one");
        for (client, client_cookie, now) in
            [("192.0.2.1", [9; 8], 13_601), ("192.0.2.1", [9; 8], 9_600), ("192.0.2.2", [9; 8], 10_000)]
        {
            assert!(!verify(client, &client_cookie, &issued, now).1, "{client} at {now}");
        }
        assert!(!verify("192.0.2.1", &[8; 8], &issued, 10_000).1, "of another client");
        let mut forged = issued;
        forged[15] ^= 1;
        assert!(
            !verify("192.0.2.1", &client_cookie, &forged, 10_000).1
                && !verify("192.0.2.1", &client_cookie, &issued[..8], 10_000).1
        );
    }

    #[test]
    fn what_is_no_cookie_is_malformed() {
        for len in 0..50 {
            let option = vec![0; len];
            let malformed = CookieOption::parse(&option) == CookieOption::Malformed;
            assert_eq!(malformed, !matches!(len, 8 | 16..=40), "{len} bytes");
        }
    }
}
