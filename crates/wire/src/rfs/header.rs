//! The sixteen bytes that every datagram begins with: magic, version, kind, flags, length, and the id of a request.

use std::fmt;

use plimsoll_brain::lottery::Message;

use super::Refused;
use super::bytes::Reader;

/// The number of a service that goes by a name: the first four bytes of the name's SHA-256, most significant byte first.
pub fn service_id(name: &str) -> u32 {
    use sha2::Digest as _;
    let [a, b, c, d, ..] = sha2::Sha256::digest(name.as_bytes()).0;
    u32::from_be_bytes([a, b, c, d])
}

/// Begins every datagram: `RF`.
pub const MAGIC: u16 = 0x5246;
/// The version of the datagrams that are read and written here.
pub const VERSION: u8 = 1;
/// Bytes of a header.
pub const HEADER: usize = 16;
/// Bytes of a trailer: the key's id and the tag.
pub const TRAILER: usize = 20;
/// Bytes of the longest datagram but a REPORT: it passes through tunnels and through the least MTU of IPv6.
pub const LONGEST: usize = 1200;
/// Bytes of the longest REPORT, which stays in the local network.
pub const LONGEST_REPORT: usize = 1400;

/// Where the length stands in a header.
pub(super) const LENGTH_AT: usize = 6;
/// Flags that a receiver must know to understand what follows. No flag has a meaning yet.
const CRITICAL_FLAGS: u16 = 0xff00;

/// What a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A client asks who serves it.
    Request = 1,
    /// Who serves it.
    Answer = 2,
    /// A daemon tells the others which requests it has answered.
    Commit = 3,
    /// A daemon tells the others how it is.
    Report = 4,
    /// Asks for a part of the table of members.
    Fetch = 5,
    /// A part of the table of members.
    Table = 6,
    /// Daemons tell one another who is there.
    Gossip = 7,
    /// Asks for a part of who is drawn for a service.
    Look = 8,
    /// A part of who is drawn for a service.
    Drum = 9,
}

impl Kind {
    /// All of them, by number.
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

    /// Of what a datagram says.
    pub fn of(message: &Message) -> Self {
        match message {
            Message::Request(_) => Self::Request,
            Message::Answer(_) => Self::Answer,
            Message::Commit(_) => Self::Commit,
            Message::Report(_) => Self::Report,
            Message::Fetch(_) => Self::Fetch,
            Message::Table(_) => Self::Table,
            Message::Look(_) => Self::Look,
            Message::Drum(_) => Self::Drum,
        }
    }

    /// Its name, in lower case.
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

    /// Bytes of the longest datagram of this kind.
    pub fn longest(self) -> usize {
        if self == Self::Report { LONGEST_REPORT } else { LONGEST }
    }

    /// Bytes of the shortest: what may be answered has room for its answer.
    pub(super) fn shortest(self) -> usize {
        match self {
            Self::Request => super::LEAST_ROOM.into(),
            Self::Fetch | Self::Look => LONGEST,
            _ => HEADER + TRAILER,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// A header that was read: what is left of it when it is right.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) id: u64,
}

impl Header {
    /// Reads the header of a datagram of `total` bytes.
    pub(super) fn read(reader: &mut Reader<'_>, total: usize) -> Result<Self, Refused> {
        if reader.u16()? != MAGIC {
            return Err(Refused::Malformed("it does not begin with RF"));
        }
        if reader.u8()? != VERSION {
            return Err(Refused::Malformed("only version 1 is spoken here"));
        }
        let number = reader.u8()?;
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u8 == number);
        let kind = kind.ok_or(Refused::Malformed("it is of no known kind"))?;
        if reader.u16()? & CRITICAL_FLAGS != 0 {
            return Err(Refused::Malformed("a critical flag is unknown"));
        }
        if usize::from(reader.u16()?) != total {
            return Err(Refused::Malformed("it is not as long as it says"));
        }
        if total > kind.longest() {
            return Err(Refused::Malformed("it is longer than its kind may be"));
        }
        if total < kind.shortest() {
            return Err(Refused::Malformed("it leaves too little room for its answer"));
        }
        let id = reader.u64()?;
        // It would mean nothing, and two datagrams that differ would say the same.
        if matches!(kind, Kind::Commit | Kind::Report | Kind::Gossip) && id != 0 {
            return Err(Refused::Malformed("it has an id, though its kind has none"));
        }
        Ok(Self { kind, id })
    }
}
