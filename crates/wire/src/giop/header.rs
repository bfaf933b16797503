//! The twelve bytes that every message begins with: `GIOP`, version, flags, kind, and how many bytes follow.

use super::{BadGiop, Order};

/// Bytes of a message's header.
pub const HEADER: usize = 12;

const MAGIC: &[u8; 4] = b"GIOP";
const MORE: u8 = 2;

/// A version of the protocol. A reply has that of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// 1.0 of 1996: no fragments.
    V1_0,
    /// 1.1: fragments, one message at a time.
    V1_1,
    /// 1.2: fragments that name their request, bodies aligned to 8.
    V1_2,
}

impl Version {
    /// All of them, oldest first.
    pub const ALL: [Self; 3] = [Self::V1_0, Self::V1_1, Self::V1_2];

    /// What follows "1.".
    pub fn minor(self) -> u8 {
        self as u8
    }

    /// The newest that is not newer than 1.`minor`.
    pub fn up_to(minor: u8) -> Self {
        Self::ALL[usize::from(minor).min(2)]
    }
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are the standard's")]
pub enum Kind {
    Request = 0,
    Reply = 1,
    CancelRequest = 2,
    LocateRequest = 3,
    LocateReply = 4,
    CloseConnection = 5,
    MessageError = 6,
    Fragment = 7,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Request,
        Self::Reply,
        Self::CancelRequest,
        Self::LocateRequest,
        Self::LocateReply,
        Self::CloseConnection,
        Self::MessageError,
        Self::Fragment,
    ];

    /// Whether more fragments of such a message may follow.
    fn comes_in_pieces(self, version: Version) -> bool {
        match self {
            Self::Request | Self::Reply | Self::Fragment => version >= Version::V1_1,
            Self::LocateRequest | Self::LocateReply => version >= Version::V1_2,
            Self::CancelRequest | Self::CloseConnection | Self::MessageError => false,
        }
    }
}

/// A message's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The version it is written in.
    pub version: Version,
    /// The order of the bytes of the numbers that follow.
    pub order: Order,
    /// Whether fragments of the same message follow.
    pub more: bool,
    /// What it is.
    pub kind: Kind,
    /// Bytes that follow the header.
    pub size: u32,
}

impl Header {
    /// Reads a header from the beginning of `input`; `None` if it is not all there yet. What cannot become one is
    /// refused at its first byte that differs.
    ///
    /// # Errors
    /// It is not GIOP, not of version 1.0 to 1.2, of no known kind, or in pieces though its kind never is.
    pub fn parse(input: &[u8]) -> Result<Option<Self>, BadGiop> {
        if input.iter().zip(MAGIC).any(|(byte, wanted)| byte != wanted) {
            return Err(BadGiop::Malformed("the connection does not carry GIOP"));
        }
        let version = match (input.get(4), input.get(5)) {
            (None, _) | (Some(1), None) => return Ok(None),
            (Some(1), Some(minor @ 0..=2)) => Version::up_to(*minor),
            _ => return Err(BadGiop::Malformed("only GIOP 1.0, 1.1 and 1.2 are spoken here")),
        };
        let Some(header) = input.first_chunk::<HEADER>() else { return Ok(None) };
        let (flags, kind) = (header[6], usize::from(header[7]));
        let order = if flags & 1 == 0 { Order::Big } else { Order::Little };
        // 1.0 has a boolean where later versions have flags.
        if version == Version::V1_0 && flags > 1 {
            return Err(BadGiop::Malformed("the byte order of a GIOP 1.0 message is neither 0 nor 1"));
        }
        let kind = *Kind::ALL.get(kind).ok_or(BadGiop::Malformed("a message is of no known kind"))?;
        let more = flags & MORE != 0;
        if (more || kind == Kind::Fragment) && !kind.comes_in_pieces(version) {
            return Err(BadGiop::Malformed("a message of its version and kind does not come in fragments"));
        }
        let size = [header[8], header[9], header[10], header[11]];
        let size = match order {
            Order::Big => u32::from_be_bytes(size),
            Order::Little => u32::from_le_bytes(size),
        };
        Ok(Some(Self { version, order, more, kind, size }))
    }

    /// Appends it.
    pub fn write(&self, out: &mut Vec<u8>) {
        let flags = self.order.flag() | if self.more { MORE } else { 0 };
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&[1, self.version.minor(), flags, self.kind as u8]);
        out.extend_from_slice(&match self.order {
            Order::Big => self.size.to_be_bytes(),
            Order::Little => self.size.to_le_bytes(),
        });
    }

    /// Bytes of the whole message, the header's included.
    pub fn total(&self) -> usize {
        HEADER + self.size as usize
    }
}
