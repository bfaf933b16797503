//! Cookie values as clients send them: an accepted value was signed with the key, byte for byte.

use std::sync::LazyLock;

use plimsoll_wire::affinity::{TokenError, TokenSigner, cookies_in_head};

use super::Verdict;
use super::fields::show;

static SIGNER: LazyLock<TokenSigner> = LazyLock::new(|| TokenSigner::new(b"key of the corpus"));
static OTHER: LazyLock<TokenSigner> = LazyLock::new(|| TokenSigner::new(b"another key"));

/// Checks the law; panics if it is broken.
pub(crate) fn check(input: &[u8]) -> Verdict {
    let signer = &*SIGNER;
    // A head that contains the value unchanged returns it, unless the value contains a terminator.
    if !input.iter().any(|byte| b";\r\n".contains(byte)) && input.trim_ascii() == input {
        let head = [b"GET / HTTP/1.1\r\nCookie: a=b; sid=", input, b"; c=d\r\n\r\n"].concat();
        assert_eq!(cookies_in_head(&head, "sid").next(), Some(input), "{}", show(input));
    }
    let _ = cookies_in_head(input, "sid").count();
    match signer.verify(input, 1_900_000_000) {
        Ok(token) => {
            assert_eq!(signer.sign(&token).as_bytes(), input, "{}", show(input));
            for place in 0..input.len() {
                let mut changed = input.to_vec();
                changed[place] ^= 1;
                assert!(signer.verify(&changed, 0).is_err(), "{}", show(&changed));
            }
            assert_eq!(OTHER.verify(input, 0), Err(TokenError::Forged), "{}", show(input));
            Verdict::Accepted
        }
        Err(_) => Verdict::Refused,
    }
}
