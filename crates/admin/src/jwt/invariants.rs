//! The law of tokens, for any published JWK set and any token. Only keys of the three algorithms are used,
//! and a token is valid only as it was signed, byte for byte. The fuzz target `jwt` runs it on generated
//! bytes; the test below runs it on the committed corpus and on mutations of it.
//!
//! The first line is a JWK set, the second a token.

use super::*;

/// Checks the law; panics if it is broken. Returns `true` if the token is valid.
pub(crate) fn check(input: &[u8]) -> bool {
    let line = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let (set, token) = (&input[..line], input.get(line + 1..).unwrap_or_default());
    let Ok(keys) = keys(set) else { return false };
    assert!(!keys.is_empty());
    let known = [Algorithm::ES256, Algorithm::RS256, Algorithm::EdDSA];
    assert!(keys.iter().all(|key| known.contains(&key.algorithm)));
    let Ok(token) = std::str::from_utf8(token) else { return false };
    let config = JwtSettings {
        issuer: "https://id.example.org".into(),
        audience: vec!["plimsoll".into()],
        keys: KeySet::File("/nonexistent".into()),
    };
    let caller = match verify_with(&keys, &config, token) {
        Ok(caller) => caller,
        Err(TokenError::UnknownKey) => return false,
        Err(TokenError::Invalid(why)) => {
            assert!(!why.contains(char::is_control) && why.len() < 200, "{why}");
            return false;
        }
    };
    assert!(!caller.name.is_empty() && token.len() <= MAX_TOKEN_LENGTH);
    assert!(caller.valid_until.is_some());
    assert_eq!(token.bytes().filter(|byte| *byte == b'.').count(), 2, "{token}");
    for place in (0..token.len()).step_by(7) {
        let mut changed = token.as_bytes().to_vec();
        changed[place] ^= 1;
        let changed = String::from_utf8(changed).expect("tokens are ASCII");
        assert!(verify_with(&keys, &config, &changed).is_err(), "{changed}");
    }
    // With another issuer or audience it is invalid.
    for other in [
        JwtSettings { issuer: "https://evil.example.org".into(), ..config.clone() },
        JwtSettings { audience: vec!["another".into()], ..config },
    ] {
        assert!(verify_with(&keys, &other, token).is_err(), "{token}");
    }
    true
}

#[test]
fn the_corpus_obeys_it_and_what_is_nearly_in_it() {
    crate::near::holds("jwt", b"\n.\"{}[],:_-=AQaez059", 3_000, check);
}
