//! RFS/2, the datagrams of the lottery: a client asks for a service, the daemons beside the servers agree on who serves
//! it, one answers. `docs/rfs2.md` is the specification, byte for byte; the rules that the bytes serve are in the brain.
//!
//! A datagram is a header, the fixed fields of its kind, options, and a trailer with a tag that only who has the key
//! can make. [`Keys::open`] checks the tag before anything else of it is believed, [`Opened::message`] reads what was
//! opened, [`Encode::encode`] writes and seals it. What is said is said in the brain's words ([`Message`]), but for the
//! [`Gossip`] of who is there, of which the brain knows nothing. An answer is never longer than what it answers, whoever
//! forged the sender's address.

mod address;
mod answer;
mod bytes;
mod commit;
mod drum;
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

pub use gossip::Gossip;
pub use header::{HEADER, Kind, LONGEST, LONGEST_REPORT, MAGIC, TRAILER, VERSION, service_id};
pub use keys::{BadKeys, Key, Keys, MOST_KEYS, Opened, Role, SECRET};
pub use message::{Encode, LEAST_ROOM};
pub use option::CRITICAL;
pub use plimsoll_brain::lottery::{
    Answer, Commit, Drum, Fetch, Further, Hearsay, Listed, Look, Message, Mode, Offer, Place, Report,
    Request, Share, Standing, Status, Table,
};
pub use replay::{Recent, Replay, Seen};
pub use request::MOST_INFO;

/// Why a datagram is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// So many bytes are no datagram of this protocol: nothing of them was read.
    #[error("a datagram of {0} bytes is too short or too long")]
    Size(usize),
    /// It is sealed with a key that is not valid here, perhaps not yet or no longer.
    #[error("no key {0}")]
    UnknownKey(u32),
    /// Its tag is not what the key makes of it: it was changed, or made without the key.
    #[error("the tag is wrong")]
    Forged,
    /// It is sealed with a key for clients, who may not say that.
    #[error("sealed with a key for clients, who may not say that")]
    Misused,
    /// It was made with the key, and is wrong all the same.
    #[error("bad RFS: {0}")]
    Malformed(&'static str),
}

/// Why something cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unwritable {
    /// It would be longer than a datagram of its kind, or than what it answers.
    #[error("{kind} of {len} bytes, where {most} are the most")]
    TooLong {
        /// Of the datagram.
        kind: Kind,
        /// Bytes that it would have.
        len: usize,
        /// Bytes that it may have.
        most: usize,
    },
    /// A list has more entries than its count can say, or than a receiver accepts.
    #[error("{count} {what}, where {most} are the most")]
    TooMany {
        /// Of what there are too many.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        most: usize,
    },
    /// Two fields contradict one another.
    #[error("{0}")]
    Contradiction(&'static str),
}

#[cfg(test)]
mod tests;
