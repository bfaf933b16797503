//! Messages in a stream of bytes: where the first one ends, and how much of it is still to come.

use super::{BadGiop, HEADER, Header};

/// The beginning of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The first message is not all there. Its header may be: then what it is and how long is known, and its body can
    /// be passed on as it comes.
    Partial {
        /// The message's header, if that is all there.
        header: Option<Header>,
        /// Bytes that are missing, at least: of the message, or of its header. Never 0.
        missing: usize,
    },
    /// The first message is all there.
    Whole {
        /// The message's header.
        header: Header,
        /// Bytes it takes, header included; what follows is the next one.
        len: usize,
    },
}

/// Finds the first message of `input`. A message of more than `limit` bytes, its header included, is refused as soon as
/// its header says so.
///
/// # Errors
/// The input begins with what is no message, or with one that is too long.
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
