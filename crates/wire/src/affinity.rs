//! Session affinity cookies: a signed value that leads a client back to its member and cannot be forged.
//!
//! A value is 84 hexadecimal digits for these 42 bytes, with numbers in big-endian order:
//!
//! | bytes | field |
//! | --- | --- |
//! | 1 | format version, 1 |
//! | 8 | the session, a random number |
//! | 8 | the member: the first bytes of HMAC-SHA-256 of its group and name |
//! | 4 | expiry, seconds since 1970; 0 for never |
//! | 4 | time of the session's last move, seconds since 1970; 0 for never |
//! | 1 | moves counted by the rebind back-off |
//! | 16 | tag: HMAC-SHA-256 of all preceding bytes, truncated to 128 bits (RFC 2104) |
//!
//! The value reveals neither names nor addresses, nor which of two clusters with different keys has the
//! member. A changed value does not verify and counts as no cookie. All balancers with the same key accept
//! each other's cookies.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// An opaque identifier of a member, which does not reveal its name.
pub type MemberTag = [u8; 8];

/// The contents of a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AffinityToken {
    /// The session, so that every random draw for it has the same result whenever it is made.
    pub session: u64,
    /// The session's member.
    pub member: MemberTag,
    /// The cookie's expiry, seconds since 1970; 0 for never.
    pub expires: u32,
    /// The time of the session's last move, seconds since 1970; 0 for never.
    pub moved: u32,
    /// The number of moves counted by the rebind back-off since its last reset.
    pub moves: u8,
}

/// The reason why a cookie is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// The value does not have this format.
    Malformed,
    /// The value was signed with another key, or was changed.
    Forged,
    /// The cookie has expired.
    Expired,
}

/// Signs and verifies cookie values.
#[derive(Clone)]
pub struct TokenSigner {
    /// The HMAC state after the key block, computed once.
    keyed: Hmac<Sha256>,
    /// A fingerprint that distinguishes keys without revealing them.
    fingerprint: [u8; 8],
}

const VERSION: u8 = 1;
const TAG_LEN: usize = 16;
const SIGNED_LEN: usize = 26;
const TOKEN_LEN: usize = SIGNED_LEN + TAG_LEN;
/// The length of the key block of HMAC, in bytes: the block size of SHA-256.
const BLOCK_LEN: usize = 64;

impl TokenSigner {
    /// Creates a signer from a secret of any length. A secret of less than 32 random bytes is easier to
    /// guess.
    pub fn new(secret: &[u8]) -> Self {
        // RFC 2104 hashes long keys and pads them with zeros; this does so for keys of any length.
        let mut block = [0; BLOCK_LEN];
        block[..32].copy_from_slice(&Sha256::digest(secret));
        let keyed: Hmac<Sha256> = Hmac::new(&block.into());
        let fingerprint = truncated_mac(keyed.clone().chain_update(b"print"));
        Self { keyed, fingerprint }
    }

    /// Returns the identifier of a member in cookies.
    pub fn member(&self, group: &str, name: &str) -> MemberTag {
        // Group names contain no zero byte, so distinct members have distinct inputs.
        let sections = [b"member\0", group.as_bytes(), b"\0", name.as_bytes()];
        truncated_mac(sections.iter().fold(self.keyed.clone(), |mac, section| mac.chain_update(section)))
    }

    /// Returns the value of a cookie.
    pub fn sign(&self, token: &AffinityToken) -> String {
        let mut bytes = [0; TOKEN_LEN];
        bytes[0] = VERSION;
        bytes[1..9].copy_from_slice(&token.session.to_be_bytes());
        bytes[9..17].copy_from_slice(&token.member);
        bytes[17..21].copy_from_slice(&token.expires.to_be_bytes());
        bytes[21..25].copy_from_slice(&token.moved.to_be_bytes());
        bytes[25] = token.moves;
        let tag = self.keyed.clone().chain_update(&bytes[..SIGNED_LEN]).finalize().into_bytes();
        bytes[SIGNED_LEN..].copy_from_slice(&tag[..TAG_LEN]);
        let mut text = String::with_capacity(2 * TOKEN_LEN);
        for byte in bytes {
            text.extend([byte >> 4, byte & 15].map(|digit| char::from(DIGITS[usize::from(digit)])));
        }
        text
    }

    /// Reads the value of a cookie at `now`, seconds since 1970.
    ///
    /// # Errors
    /// Returns the reason why the cookie is rejected.
    pub fn verify(&self, value: &[u8], now: u32) -> Result<AffinityToken, TokenError> {
        let bytes = decode_hex(value).ok_or(TokenError::Malformed)?;
        let (signed_bytes, tag) = bytes.split_at(SIGNED_LEN);
        if bytes[0] != VERSION {
            return Err(TokenError::Malformed);
        }
        self.keyed
            .clone()
            .chain_update(signed_bytes)
            .verify_truncated_left(tag)
            .map_err(|_| TokenError::Forged)?;
        let number = |offset: usize| {
            u32::from_be_bytes([bytes[offset], bytes[offset + 1], bytes[offset + 2], bytes[offset + 3]])
        };
        let token = AffinityToken {
            session: u64::from(number(1)) << 32 | u64::from(number(5)),
            member: [bytes[9], bytes[10], bytes[11], bytes[12], bytes[13], bytes[14], bytes[15], bytes[16]],
            expires: number(17),
            moved: number(21),
            moves: bytes[25],
        };
        if token.expires != 0 && token.expires <= now { Err(TokenError::Expired) } else { Ok(token) }
    }
}

/// Compares signers by key.
impl PartialEq for TokenSigner {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}

/// Omits the secret.
impl fmt::Debug for TokenSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenSigner").finish_non_exhaustive()
    }
}

fn truncated_mac(mac: Hmac<Sha256>) -> [u8; 8] {
    let mut truncated = [0; 8];
    truncated.copy_from_slice(&mac.finalize().into_bytes()[..8]);
    truncated
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Accepts lower-case digits only, so that each token has exactly one value.
fn decode_hex(text: &[u8]) -> Option<[u8; TOKEN_LEN]> {
    let text: &[u8; 2 * TOKEN_LEN] = text.try_into().ok()?;
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; TOKEN_LEN];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// Returns the values of all cookies with this name in a head. `head` begins with a request line and has been
/// validated; bytes after its empty line are ignored. Clients send several where they received them for
/// several paths or domains.
pub fn cookies_in_head<'h>(head: &'h [u8], name: &str) -> impl Iterator<Item = &'h [u8]> {
    let lines =
        head.split(|byte| *byte == b'\n').skip(1).map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let values = lines.take_while(|line| !line.is_empty()).filter_map(|line| {
        let (field, value) = line.split_at(line.iter().position(|byte| *byte == b':')?);
        field.eq_ignore_ascii_case(b"cookie").then(|| value.get(1..))?
    });
    let pairs = values.flat_map(|value| value.split(|byte| *byte == b';')).map(<[u8]>::trim_ascii);
    pairs.filter_map(move |pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: u32 = 1_900_000_000;

    fn token() -> impl Strategy<Value = AffinityToken> {
        let expires = prop_oneof![Just(0), NOW + 1..=u32::MAX];
        (any::<u64>(), any::<[u8; 8]>(), expires, any::<u32>(), any::<u8>()).prop_map(
            |(session, member, expires, moved, moves)| AffinityToken {
                session,
                member,
                expires,
                moved,
                moves,
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_signed_is_read_by_the_same_key_alone(
            token in token(), at in 0..84_usize, other in any::<Vec<u8>>(),
        ) {
            let signer = TokenSigner::new(b"a secret");
            let value = signer.sign(&token);
            prop_assert_eq!(signer.verify(value.as_bytes(), NOW), Ok(token));
            prop_assert_eq!(TokenSigner::new(b"a secret").verify(value.as_bytes(), NOW), Ok(token));
            let another = TokenSigner::new(b"another");
            prop_assert_eq!(another.verify(value.as_bytes(), NOW), Err(TokenError::Forged));
            let truncated = &value.as_bytes()[..at];
            prop_assert_eq!(signer.verify(truncated, NOW), Err(TokenError::Malformed), "truncated");
            prop_assert_eq!(signer.verify(format!("{value}0").as_bytes(), NOW), Err(TokenError::Malformed));
            let mut forged = value.clone().into_bytes();
            forged[at] = if forged[at] == b'0' { b'1' } else { b'0' };
            // The version is checked before the tag.
            let why = if at < 2 { TokenError::Malformed } else { TokenError::Forged };
            prop_assert_eq!(signer.verify(&forged, NOW), Err(why));
            prop_assert!(signer.verify(&other, NOW).is_err());
            if token.expires != 0 {
                prop_assert_eq!(signer.verify(value.as_bytes(), token.expires), Err(TokenError::Expired));
                prop_assert_eq!(signer.verify(value.as_bytes(), token.expires - 1), Ok(token));
            } else {
                prop_assert_eq!(signer.verify(value.as_bytes(), u32::MAX), Ok(token));
            }
        }
    }

    #[test]
    fn members_are_told_apart_and_not_told() {
        let signer = TokenSigner::new(&[7; 32]);
        let tag = signer.member("web", "10.0.0.1:80");
        assert_eq!(tag, signer.member("web", "10.0.0.1:80"));
        assert_ne!(tag, signer.member("web", "10.0.0.2:80"));
        assert_ne!(tag, signer.member("api", "10.0.0.1:80"));
        assert_ne!(tag, TokenSigner::new(&[8; 32]).member("web", "10.0.0.1:80"));
        assert!(signer == TokenSigner::new(&[7; 32]) && signer != TokenSigner::new(&[8; 32]));
        assert!(!format!("{signer:?}").contains("7, 7"), "{signer:?}");
        let token = AffinityToken { session: 1, member: tag, expires: 0, moved: 0, moves: 0 };
        assert!(signer.sign(&token).to_uppercase().len() == 84 && !signer.sign(&token).contains("10.0.0.1"));
        assert_eq!(
            signer.verify(signer.sign(&token).to_uppercase().as_bytes(), NOW),
            Err(TokenError::Malformed)
        );
    }

    #[test]
    fn a_cookie_is_found_among_others_and_not_behind_the_head() {
        let head = b"GET /?sid=0 HTTP/1.1\r\nHost: a\r\nCookie: a=1; sid=two; sid=3\r\ncookie:b=4\r\n\
                     X-Cookie: b=9\r\n\r\nCookie: c=5\r\n";
        let first_value = |name: &str| cookies_in_head(head, name).next();
        assert_eq!(cookies_in_head(head, "sid").collect::<Vec<_>>(), [&b"two"[..], b"3"]);
        assert_eq!((first_value("a"), first_value("b")), (Some(&b"1"[..]), Some(&b"4"[..])));
        assert_eq!(
            (first_value("c"), first_value("id"), first_value("si"), first_value("")),
            (None, None, None, None)
        );
        assert_eq!(cookies_in_head(b"GET / HTTP/1.1\r\nCookie\r\nCookie: sid\r\n\r\n", "sid").count(), 0);
        assert_eq!(cookies_in_head(b"", "sid").count(), 0);
    }
}
