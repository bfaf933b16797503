//! How an exchange ends, and a body whose chunks are taken apart.

use plimsoll_brain::Time;
use plimsoll_wire::http1::{self, Body, Piece};

use crate::account::{DECLINED, STALE};
use crate::reason::Reason;

/// How far the answer is.
pub(super) enum Answer {
    Head,
    Body(Body),
    Done,
    /// Both sides go on in another protocol.
    Tunnel,
}

/// An answer was passed on whole.
pub(super) struct End {
    pub(super) status: u16,
    /// When: of an upgrade, before what came after it.
    pub(super) at: Time,
    /// May the member's connection be used again?
    pub(super) keep_member: bool,
    /// Does the client's connection go on?
    pub(super) keep_client: bool,
    /// The member only said that it has no room, and the client was told nothing.
    pub(super) refused: bool,
}

/// Why there was no whole answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The client went away. `true`: its answer had begun.
    Client(bool),
    /// The client's request is at fault, and nothing was answered yet.
    Refused(Reason),
    /// The member failed before a byte of an answer was passed on. `true`: the request cannot have reached it.
    Member(Reason, bool),
    /// The member did nothing with this request, and takes others. Nothing of an answer came.
    Declined,
    /// The member was declared down while nothing of an answer had come. The retry budget has paid for another try.
    Down,
    /// A connection used before was closed before a byte of an answer came. `true`: the member said that it did nothing.
    Stale(bool),
    /// The client's own patience came to its end (gRPC). `true`: its answer had begun.
    Expired(bool),
    /// Nothing was said for long on either side of a call whose answer had begun.
    Quiet,
    /// The answer broke off after a part of it was passed on.
    Broken,
}

impl Failure {
    /// As in spans.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Client(_) => "client_left",
            Self::Refused(reason) | Self::Member(reason, _) => reason.label(),
            Self::Down => Reason::AnswerTimeout.label(),
            Self::Declined => DECLINED,
            Self::Stale(_) => STALE,
            Self::Expired(_) => Reason::TotalTimeout.label(),
            Self::Quiet => Reason::ClientTimeout.label(),
            Self::Broken => "broken_off",
        }
    }
}

/// Appends the content of chunks to `out`; how much of `input` belongs to the body.
pub(super) fn unchunk(body: &mut Body, input: &[u8], out: &mut Vec<u8>) -> Result<usize, http1::BadBody> {
    let Body::Chunked(chunked) = body else { return body.feed(input) };
    let mut taken = 0;
    while taken < input.len() && !chunked.done() {
        let piece = chunked.step(&input[taken..])?;
        if let Piece::Content(len) = piece {
            out.extend_from_slice(&input[taken..taken + len]);
        }
        taken += piece.len();
    }
    if chunked.done() {
        *body = Body::Done;
    }
    Ok(taken)
}
