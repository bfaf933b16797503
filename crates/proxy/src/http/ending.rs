//! The outcomes of an exchange, and the decoding of chunked bodies.

use plimsoll_brain::Time;
use plimsoll_wire::http1::{self, Body, Piece};

use crate::account::{DECLINED, STALE};
use crate::reason::Reason;

/// The progress of the response.
pub(super) enum Answer {
    Head,
    Body(Body),
    Done,
    /// Both sides continue in another protocol.
    Tunnel,
}

/// A response was forwarded completely.
pub(super) struct End {
    pub(super) status: u16,
    /// The time of the end; for an upgrade, the time before the tunnel.
    pub(super) at: Time,
    /// Whether the member's connection may be used again.
    pub(super) keep_member: bool,
    /// Whether the client's connection continues.
    pub(super) keep_client: bool,
    /// Whether the member only reported that it has no room, and nothing was sent to the client.
    pub(super) refused: bool,
}

/// The reason why there was no complete response.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The client left. `true` if its response had begun.
    Client(bool),
    /// The client's request is at fault, and no response was sent yet.
    Refused(Reason),
    /// The member failed before a byte of a response was forwarded. `true` if the request cannot have reached
    /// it.
    Member(Reason, bool),
    /// The member did not process this request, and accepts others. No response arrived.
    Declined,
    /// The member was declared down before any of a response arrived. The retry budget has paid for another
    /// attempt.
    Down,
    /// A reused connection was closed before a byte of a response arrived. `true` if the member reported that
    /// it did not process the request.
    Stale(bool),
    /// The client's own timeout expired (gRPC). `true` if its response had begun.
    Expired(bool),
    /// A call whose response had begun was silent on both sides for too long.
    Quiet,
    /// The response broke off after a part of it was forwarded.
    Broken,
}

impl Failure {
    /// Returns the name in spans.
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

/// Appends the content of chunks to `out`, and returns how many bytes of `input` belong to the body.
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
