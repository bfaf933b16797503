//! Tokens as text, and what the library has to say as one line.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use libgssapi::error::Error;

/// Longest token, bytes: with all that a directory may put into a ticket it fits the head of a request.
const LONGEST: usize = 48 * 1024;

pub(crate) fn read(text: &str) -> Result<Vec<u8>, String> {
    if text.len() > LONGEST / 3 * 4 {
        return Err("the ticket is too long".into());
    }
    match BASE64_STANDARD.decode(text) {
        Ok(token) if !token.is_empty() => Ok(token),
        _ => Err("what follows Negotiate is not a ticket in base64".into()),
    }
}

pub(crate) fn write(token: &[u8]) -> String {
    BASE64_STANDARD.encode(token)
}

/// What went wrong. The library says it in two parts, of which the first is often only that it did.
pub(crate) fn why(error: &Error) -> String {
    let said = error.to_string();
    let vague = said.strip_prefix("Unspecified GSS failure.  Minor code may provide more information");
    let said = match vague {
        Some(minor) => minor.trim().trim_start_matches('(').trim_end_matches(')'),
        None => said.trim().trim_end_matches("(Success)").trim_end_matches("(Unknown error)").trim(),
    };
    if said.is_empty() { "the library does not say why".into() } else { said.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_token_is_refused() {
        assert_eq!(read("YQ=="), Ok(b"a".to_vec()));
        for text in ["", "YQ", "Y Q==", "YQ==, Bearer x", "é", "-_=="] {
            assert!(read(text).unwrap_err().contains("base64"), "{text}");
        }
        assert!(read(&"A".repeat(100_000)).unwrap_err().contains("too long"));
        assert_eq!(write(b"a"), "YQ==");
    }
}
