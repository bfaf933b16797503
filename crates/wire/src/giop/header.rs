//! The twelve bytes at the beginning of every message: `GIOP`, version, flags, kind, and the length of the
//! rest.

use super::{ByteOrder, GiopError};

/// The length of a message's header, in bytes.
pub const HEADER_LEN: usize = 12;

const MAGIC: &[u8; 4] = b"GIOP";
const MORE_FRAGMENTS: u8 = 2;

/// A version of the protocol. A reply has that of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GiopVersion {
    /// 1.0: no fragments.
    V1_0,
    /// 1.1: fragments, one message at a time.
    V1_1,
    /// 1.2: fragments with the ID of their request, bodies aligned to 8.
    V1_2,
}

impl GiopVersion {
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
pub enum MessageType {
    Request = 0,
    Reply = 1,
    CancelRequest = 2,
    LocateRequest = 3,
    LocateReply = 4,
    CloseConnection = 5,
    MessageError = 6,
    Fragment = 7,
}

impl MessageType {
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
    fn can_be_fragmented(self, version: GiopVersion) -> bool {
        match self {
            Self::Request | Self::Reply | Self::Fragment => version >= GiopVersion::V1_1,
            Self::LocateRequest | Self::LocateReply => version >= GiopVersion::V1_2,
            Self::CancelRequest | Self::CloseConnection | Self::MessageError => false,
        }
    }
}

/// A message's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GiopHeader {
    /// The version of the message.
    pub version: GiopVersion,
    /// The byte order of the numbers that follow.
    pub order: ByteOrder,
    /// Whether fragments of the same message follow.
    pub more_fragments: bool,
    /// The message's kind.
    pub kind: MessageType,
    /// The number of bytes after the header.
    pub size: u32,
}

impl GiopHeader {
    /// Parses a header at the beginning of `input`; `None` if it is incomplete. Other input is rejected at
    /// its first byte that differs.
    ///
    /// # Errors
    /// It is not GIOP, not of version 1.0 to 1.2, of an unknown kind, or a fragment of a kind that is never
    /// fragmented.
    pub fn parse(input: &[u8]) -> Result<Option<Self>, GiopError> {
        if input.iter().zip(MAGIC).any(|(byte, expected)| byte != expected) {
            return Err(GiopError::Malformed("the connection does not carry GIOP"));
        }
        let version = match (input.get(4), input.get(5)) {
            (None, _) | (Some(1), None) => return Ok(None),
            (Some(1), Some(minor @ 0..=2)) => GiopVersion::up_to(*minor),
            _ => return Err(GiopError::Malformed("only GIOP 1.0, 1.1 and 1.2 are spoken here")),
        };
        let Some(header) = input.first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let (flags, kind) = (header[6], usize::from(header[7]));
        let order = if flags & 1 == 0 { ByteOrder::Big } else { ByteOrder::Little };
        // 1.0 has a boolean in the place of the later versions' flags.
        if version == GiopVersion::V1_0 && flags > 1 {
            return Err(GiopError::Malformed("the byte order of a GIOP 1.0 message is neither 0 nor 1"));
        }
        let kind =
            *MessageType::ALL.get(kind).ok_or(GiopError::Malformed("a message is of no known kind"))?;
        let more_fragments = flags & MORE_FRAGMENTS != 0;
        if (more_fragments || kind == MessageType::Fragment) && !kind.can_be_fragmented(version) {
            return Err(GiopError::Malformed("a message of its version and kind does not come in fragments"));
        }
        let size = [header[8], header[9], header[10], header[11]];
        let size = match order {
            ByteOrder::Big => u32::from_be_bytes(size),
            ByteOrder::Little => u32::from_le_bytes(size),
        };
        Ok(Some(Self { version, order, more_fragments, kind, size }))
    }

    /// Appends the header.
    pub fn write(&self, out: &mut Vec<u8>) {
        let flags = self.order.flag() | if self.more_fragments { MORE_FRAGMENTS } else { 0 };
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&[1, self.version.minor(), flags, self.kind as u8]);
        out.extend_from_slice(&match self.order {
            ByteOrder::Big => self.size.to_be_bytes(),
            ByteOrder::Little => self.size.to_le_bytes(),
        });
    }

    /// Returns the length of the whole message with its header, in bytes.
    pub fn message_len(&self) -> usize {
        HEADER_LEN + self.size as usize
    }
}
