//! RFS/2, the datagrams of the lottery: a client asks for a service, the daemons beside the servers agree on
//! the one that answers. `docs/rfs2.md` specifies the bytes; the rules of the protocol are in the brain.
//!
//! A datagram is a header, the fixed fields of its kind, options, and a trailer with a tag that only holders
//! of the key can create. [`KeyRing::open`] verifies the tag before any other part is used.
//! [`OpenedDatagram::message`] decodes an opened datagram; [`EncodeDatagram::encode`] encodes and seals one.
//! Messages are the brain's types ([`LotteryMessage`]), except [`GossipDatagram`] about membership, which the
//! brain does not know. A response is never longer than its request, so that a forged sender address yields
//! no amplification.

mod address;
mod answer;
mod byte_reader;
mod candidates;
mod commit;
mod frame;
mod gossip;
mod header;
mod keys;
mod message;
mod option;
mod replay;
mod report;
mod request;
mod table;

pub use gossip::GossipDatagram;
pub use header::{
    DatagramKind, HEADER_LEN, MAGIC, MAX_DATAGRAM_LEN, MAX_REPORT_LEN, TRAILER_LEN, VERSION, service_id,
};
pub use keys::{DatagramKey, KeyFileError, KeyRing, KeyRole, MAX_KEYS, OpenedDatagram, SECRET_LEN};
pub use message::{EncodeDatagram, MIN_ROOM};
pub use option::CRITICAL;
pub use plimsoll_brain::lottery::{
    AnswerCommit, AnswerMode, AnswerStatus, CandidateEntry, CandidateQuery, CandidateSet, FallbackMember,
    LotteryAnswer, LotteryMessage, LotteryRequest, NodeDescription, NodeReport, NodeState, RelayedReport,
    ServiceOffer, ServiceState, TableFetch, TablePart,
};
pub use replay::{GossipReplayFilter, ReplayVerdict, ReportReplayFilter};
pub use request::MAX_INFO;

/// The reason why a datagram is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatagramDecodeError {
    /// No datagram of this protocol has this length; its bytes were not read.
    #[error("a datagram of {0} bytes is too short or too long")]
    Size(usize),
    /// The datagram is sealed with a key that is not valid here, perhaps not yet or no longer.
    #[error("no key {0}")]
    UnknownKey(u32),
    /// The tag does not match the key: the datagram was changed, or created without the key.
    #[error("the tag is wrong")]
    Forged,
    /// The datagram is sealed with a key for clients, which does not permit this kind.
    #[error("sealed with a key for clients, who may not say that")]
    NotPermitted,
    /// The tag is valid, but the datagram is malformed.
    #[error("bad RFS: {0}")]
    Malformed(&'static str),
}

/// The reason why a message cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatagramEncodeError {
    /// The datagram would exceed the limit of its kind, or the length of the request that it answers.
    #[error("{kind} of {len} bytes, where {most} are the most")]
    TooLong {
        /// The kind of the datagram.
        kind: DatagramKind,
        /// The required length, in bytes.
        len: usize,
        /// The maximum length, in bytes.
        most: usize,
    },
    /// A list has more entries than its count can represent, or than a receiver accepts.
    #[error("{count} {what}, where {most} are the most")]
    TooMany {
        /// The name of the list's entries.
        what: &'static str,
        /// The number of entries.
        count: usize,
        /// The maximum number of entries.
        most: usize,
    },
    /// Two fields contradict each other.
    #[error("{0}")]
    Contradiction(&'static str),
}

#[cfg(test)]
mod tests;
