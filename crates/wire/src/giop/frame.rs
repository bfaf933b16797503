//! Messages in a stream of bytes: the end of the first one, and the number of bytes that are still missing.

use super::{GiopError, GiopHeader, HEADER_LEN};

/// The beginning of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextMessage {
    /// The first message is incomplete. If its header is complete, kind and length are known, and the body
    /// can be forwarded while it arrives.
    Partial {
        /// The message's header, if it is complete.
        header: Option<GiopHeader>,
        /// The minimum number of missing bytes, of the message or of its header. Never 0.
        missing: usize,
    },
    /// The first message is complete.
    Whole {
        /// The message's header.
        header: GiopHeader,
        /// The message's length with its header; the next one follows.
        len: usize,
    },
}

/// Finds the first message of `input`. A message longer than `limit` bytes with its header is rejected as
/// soon as its header is complete.
///
/// # Errors
/// The input does not begin with a message, or the message is too long.
pub fn next_message(input: &[u8], limit: usize) -> Result<NextMessage, GiopError> {
    let Some(header) = GiopHeader::parse(input)? else {
        return Ok(NextMessage::Partial { header: None, missing: HEADER_LEN - input.len() });
    };
    let len = header.message_len();
    if len > limit {
        return Err(GiopError::Malformed("a message is longer than allowed"));
    }
    Ok(match len.checked_sub(input.len()) {
        None | Some(0) => NextMessage::Whole { header, len },
        Some(missing) => NextMessage::Partial { header: Some(header), missing },
    })
}
