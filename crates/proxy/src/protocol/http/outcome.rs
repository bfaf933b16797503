//! The outcomes of an exchange, and the decoding of chunked bodies.

use plimsoll_brain::Time;
use plimsoll_wire::http1::{self, BodyFraming, ChunkPiece};

use crate::net::reason::Reason;
use crate::upstream::request_record::{DECLINED, STALE};

/// The progress of the response.
pub(super) enum ResponseProgress {
    Head,
    Body(BodyFraming),
    Done,
    /// Both sides continue in another protocol.
    Tunnel,
}

/// A response was forwarded completely.
pub(super) struct CompletedExchange {
    pub(super) status: u16,
    /// The time of the end; for an upgrade, the time before the tunnel.
    pub(super) ended_at: Time,
    /// Whether the member's connection may be used again.
    pub(super) keep_member: bool,
    /// Whether the client's connection continues.
    pub(super) keep_client: bool,
    /// Whether the member only reported that it has no room, and nothing was sent to the client.
    pub(super) member_refused: bool,
}

/// The reason why there was no complete response.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ExchangeFailure {
    /// The client left. `true` if its response had begun.
    ClientLeft(bool),
    /// The client's request is at fault, and no response was sent yet.
    RequestRejected(Reason),
    /// The member failed before a byte of a response was forwarded. `true` if the request cannot have reached
    /// it.
    MemberFailed(Reason, bool),
    /// The member did not process this request, and accepts others. No response arrived.
    Declined,
    /// The member was declared down before any of a response arrived. The retry budget has paid for another
    /// attempt.
    MemberDown,
    /// A reused connection was closed before a byte of a response arrived. `true` if the member reported that
    /// it did not process the request.
    StaleConnection(bool),
    /// The client's own timeout expired (gRPC). `true` if its response had begun.
    ClientDeadline(bool),
    /// A call whose response had begun was silent on both sides for too long.
    IdleTimeout,
    /// The response broke off after a part of it was forwarded.
    ResponseTruncated,
}

impl ExchangeFailure {
    /// Returns the name in spans.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::ClientLeft(_) => "client_left",
            Self::RequestRejected(reason) | Self::MemberFailed(reason, _) => reason.label(),
            Self::MemberDown => Reason::AnswerTimeout.label(),
            Self::Declined => DECLINED,
            Self::StaleConnection(_) => STALE,
            Self::ClientDeadline(_) => Reason::TotalTimeout.label(),
            Self::IdleTimeout => Reason::ClientTimeout.label(),
            Self::ResponseTruncated => "broken_off",
        }
    }
}

/// Appends the content of chunks to `out`, and returns how many bytes of `input` belong to the body.
pub(super) fn decode_chunks(
    body: &mut BodyFraming,
    input: &[u8],
    out: &mut Vec<u8>,
) -> Result<usize, http1::BodyError> {
    let BodyFraming::Chunked(chunked) = body else { return body.feed(input) };
    let mut consumed = 0;
    while consumed < input.len() && !chunked.is_done() {
        let piece = chunked.next_piece(&input[consumed..])?;
        if let ChunkPiece::Content(len) = piece {
            out.extend_from_slice(&input[consumed..consumed + len]);
        }
        consumed += piece.len();
    }
    if chunked.is_done() {
        *body = BodyFraming::Done;
    }
    Ok(consumed)
}
