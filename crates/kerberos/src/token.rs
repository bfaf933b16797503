//! Encodes and decodes tokens, and formats the library's errors as one line.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use libgssapi::error::Error;

/// The longest token in bytes. It has room for the authorization data of a directory, and fits into a request
/// head.
const MAX_TOKEN_LEN: usize = 48 * 1024;

pub(crate) fn decode_token(text: &str) -> Result<Vec<u8>, String> {
    if text.len() > MAX_TOKEN_LEN / 3 * 4 {
        return Err("the ticket is too long".into());
    }
    match BASE64_STANDARD.decode(text) {
        Ok(token) if !token.is_empty() => Ok(token),
        _ => Err("what follows Negotiate is not a ticket in base64".into()),
    }
}

pub(crate) fn encode_token(token: &[u8]) -> String {
    BASE64_STANDARD.encode(token)
}

/// Formats an error. The library's text has two parts, of which the first often states only that there was an
/// error.
pub(crate) fn error_text(error: &Error) -> String {
    let message = error.to_string();
    let minor_text =
        message.strip_prefix("Unspecified GSS failure.  Minor code may provide more information");
    let trimmed = match minor_text {
        Some(minor) => minor.trim().trim_start_matches('(').trim_end_matches(')'),
        None => message.trim().trim_end_matches("(Success)").trim_end_matches("(Unknown error)").trim(),
    };
    if trimmed.is_empty() { "the library does not say why".into() } else { trimmed.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_token_is_refused() {
        assert_eq!(decode_token("YQ=="), Ok(b"a".to_vec()));
        for text in ["", "YQ", "Y Q==", "YQ==, Bearer x", "é", "-_=="] {
            assert!(decode_token(text).unwrap_err().contains("base64"), "{text}");
        }
        assert!(decode_token(&"A".repeat(100_000)).unwrap_err().contains("too long"));
        assert_eq!(encode_token(b"a"), "YQ==");
    }
}
