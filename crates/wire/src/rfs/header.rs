//! The sixteen bytes at the beginning of every datagram: magic, version, kind, flags, length, and the ID of a
//! request.

use std::fmt;

use plimsoll_brain::lottery::LotteryMessage;

use super::DatagramDecodeError;
use super::byte_reader::ByteReader;

/// Returns the number of a named service: the first four bytes of the name's SHA-256, in big-endian order.
pub fn service_id(name: &str) -> u32 {
    use sha2::Digest as _;
    let [a, b, c, d, ..] = sha2::Sha256::digest(name.as_bytes()).0;
    u32::from_be_bytes([a, b, c, d])
}

/// The magic number at the beginning of every datagram: `RF`.
pub const MAGIC: u16 = 0x5246;
/// The supported version of the protocol.
pub const VERSION: u8 = 1;
/// The length of a header, in bytes.
pub const HEADER_LEN: usize = 16;
/// The length of a trailer, in bytes: the key's ID and the tag.
pub const TRAILER_LEN: usize = 20;
/// The maximum length of a datagram other than a REPORT: it fits through tunnels and the minimum MTU of IPv6.
pub const MAX_DATAGRAM_LEN: usize = 1200;
/// The maximum length of a REPORT, which stays in the local network.
pub const MAX_REPORT_LEN: usize = 1400;

/// The offset of the length in a header.
pub(super) const LENGTH_OFFSET: usize = 6;
/// The flags that a receiver must know to understand the rest. No flag is defined yet.
const CRITICAL_FLAGS: u16 = 0xff00;

/// The kind of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DatagramKind {
    /// A client asks for a server.
    Request = 1,
    /// The server for a request.
    Answer = 2,
    /// A daemon reports the requests that it has answered.
    Commit = 3,
    /// A daemon reports its state.
    Report = 4,
    /// Requests a part of the membership table.
    Fetch = 5,
    /// A part of the membership table.
    Table = 6,
    /// Membership information between daemons.
    Gossip = 7,
    /// Requests a part of the candidates of a service.
    Look = 8,
    /// A part of the candidates of a service.
    Drum = 9,
}

impl DatagramKind {
    /// All kinds, by number.
    pub const ALL: [Self; 9] = [
        Self::Request,
        Self::Answer,
        Self::Commit,
        Self::Report,
        Self::Fetch,
        Self::Table,
        Self::Gossip,
        Self::Look,
        Self::Drum,
    ];

    /// Returns the kind of a message's datagram.
    pub fn of_message(message: &LotteryMessage) -> Self {
        match message {
            LotteryMessage::Request(_) => Self::Request,
            LotteryMessage::Answer(_) => Self::Answer,
            LotteryMessage::Commit(_) => Self::Commit,
            LotteryMessage::Report(_) => Self::Report,
            LotteryMessage::Fetch(_) => Self::Fetch,
            LotteryMessage::Table(_) => Self::Table,
            LotteryMessage::CandidateQuery(_) => Self::Look,
            LotteryMessage::CandidateSet(_) => Self::Drum,
        }
    }

    /// Returns the kind's name, in lower case.
    pub fn label(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Answer => "answer",
            Self::Commit => "commit",
            Self::Report => "report",
            Self::Fetch => "fetch",
            Self::Table => "table",
            Self::Gossip => "gossip",
            Self::Look => "look",
            Self::Drum => "drum",
        }
    }

    /// Returns the maximum length of this kind, in bytes.
    pub fn max_len(self) -> usize {
        if self == Self::Report { MAX_REPORT_LEN } else { MAX_DATAGRAM_LEN }
    }

    /// Returns the minimum length, in bytes: a request has room for its response.
    pub(super) fn min_len(self) -> usize {
        match self {
            Self::Request => super::MIN_ROOM.into(),
            Self::Fetch | Self::Look => MAX_DATAGRAM_LEN,
            _ => HEADER_LEN + TRAILER_LEN,
        }
    }
}

impl fmt::Display for DatagramKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// The validated fields of a header.
#[derive(Clone, Copy, Debug)]
pub(super) struct DatagramHeader {
    pub(super) kind: DatagramKind,
    pub(super) id: u64,
}

impl DatagramHeader {
    /// Reads the header of a datagram of `total` bytes.
    pub(super) fn read(reader: &mut ByteReader<'_>, total: usize) -> Result<Self, DatagramDecodeError> {
        if reader.u16()? != MAGIC {
            return Err(DatagramDecodeError::Malformed("it does not begin with RF"));
        }
        if reader.u8()? != VERSION {
            return Err(DatagramDecodeError::Malformed("only version 1 is spoken here"));
        }
        let number = reader.u8()?;
        let kind = DatagramKind::ALL.into_iter().find(|kind| *kind as u8 == number);
        let kind = kind.ok_or(DatagramDecodeError::Malformed("it is of no known kind"))?;
        if reader.u16()? & CRITICAL_FLAGS != 0 {
            return Err(DatagramDecodeError::Malformed("a critical flag is unknown"));
        }
        if usize::from(reader.u16()?) != total {
            return Err(DatagramDecodeError::Malformed("it is not as long as it says"));
        }
        if total > kind.max_len() {
            return Err(DatagramDecodeError::Malformed("it is longer than its kind may be"));
        }
        if total < kind.min_len() {
            return Err(DatagramDecodeError::Malformed("it leaves too little room for its answer"));
        }
        let id = reader.u64()?;
        // The ID would have no meaning, and two different datagrams would have the same contents.
        if matches!(kind, DatagramKind::Commit | DatagramKind::Report | DatagramKind::Gossip) && id != 0 {
            return Err(DatagramDecodeError::Malformed("it has an id, though its kind has none"));
        }
        Ok(Self { kind, id })
    }
}
