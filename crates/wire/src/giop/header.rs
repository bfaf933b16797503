//! The twelve bytes at the beginning of every message: `GIOP`, version, flags, kind, and the length of the
//! rest.

use super::{BadGiop, Order};

/// The length of a message's header, in bytes.
pub const HEADER: usize = 12;

const MAGIC: &[u8; 4] = b"GIOP";
const MORE: u8 = 2;

/// A version of the protocol. A reply has that of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// 1.0: no fragments.
    V1_0,
    /// 1.1: fragments, one message at a time.
    V1_1,
    /// 1.2: fragments with the ID of their request, bodies aligned to 8.
    V1_2,
}

impl Version {
    /// All versions, oldest first.
    pub const ALL: [Self; 3] = [Self::V1_0, Self::V1_1, Self::V1_2];

    /// Returns the minor version.
    pub fn minor(self) -> u8 {
        self as u8
    }

    /// Returns the newest supported version that is not newer than 1.`minor`.
    pub fn up_to(minor: u8) -> Self {
        Self::ALL[usize::from(minor).min(2)]
    }
}

/// The kind of a message.
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

    /// Returns `true` if messages of this kind may have more fragments.
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
    /// The version of the message.
    pub version: Version,
    /// The byte order of the numbers that follow.
    pub order: Order,
    /// Whether fragments of the same message follow.
    pub more: bool,
    /// The message's kind.
    pub kind: Kind,
    /// The number of bytes after the header.
    pub size: u32,
}

impl Header {
    /// Parses a header at the beginning of `input`; `None` if it is incomplete. Other input is rejected at
    /// its first byte that differs.
    ///
    /// # Errors
    /// It is not GIOP, not of version 1.0 to 1.2, of an unknown kind, or a fragment of a kind that is never
    /// fragmented.
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
        // 1.0 has a boolean in the place of the later versions' flags.
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

    /// Appends the header.
    pub fn write(&self, out: &mut Vec<u8>) {
        let flags = self.order.flag() | if self.more { MORE } else { 0 };
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&[1, self.version.minor(), flags, self.kind as u8]);
        out.extend_from_slice(&match self.order {
            Order::Big => self.size.to_be_bytes(),
            Order::Little => self.size.to_le_bytes(),
        });
    }

    /// Returns the length of the whole message with its header, in bytes.
    pub fn total(&self) -> usize {
        HEADER + self.size as usize
    }
}
