//! Messages in a stream of bytes: the end of the first one, and the number of bytes that are still missing.

use super::{BadGiop, HEADER, Header};

/// The beginning of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The first message is incomplete. If its header is complete, kind and length are known, and the body
    /// can be forwarded while it arrives.
    Partial {
        /// The message's header, if it is complete.
        header: Option<Header>,
        /// The minimum number of missing bytes, of the message or of its header. Never 0.
        missing: usize,
    },
    /// The first message is complete.
    Whole {
        /// The message's header.
        header: Header,
        /// The message's length with its header; the next one follows.
        len: usize,
    },
}

/// Finds the first message of `input`. A message longer than `limit` bytes with its header is rejected as
/// soon as its header is complete.
///
/// # Errors
/// The input does not begin with a message, or the message is too long.
pub fn cut(input: &[u8], limit: usize) -> Result<Cut, BadGiop> {
    let Some(header) = Header::parse(input)? else {
        return Ok(Cut::Partial { header: None, missing: HEADER - input.len() });
    };
    let len = header.total();
    if len > limit {
        return Err(BadGiop::Malformed("a message is longer than allowed"));
    }
    Ok(match len.checked_sub(input.len()) {
        None | Some(0) => Cut::Whole { header, len },
        Some(missing) => Cut::Partial { header: Some(header), missing },
    })
}
