//! How long an answer may be.

/// How long an answer may be: as long as the datagram that it answers, so that who forges a sender's address sends its
/// owner no more than they sent themselves. Only what was opened and read has one ([`Message`](super::Message)); what
/// fits into [`LEAST`](Self::LEAST) fits into every one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Room(u16);

impl Room {
    /// What every request has room for: a shorter one is refused.
    pub const LEAST: Self = Self(128);

    /// Of a datagram of so many bytes, no more than a header can say.
    pub(super) fn of(len: usize) -> Self {
        Self(u16::try_from(len).unwrap_or(u16::MAX))
    }

    /// Again, by whoever carried the number of [`bytes`](Self::bytes) through a program that does not know this type. Fewer
    /// than [`LEAST`](Self::LEAST) are no room, and count as that.
    pub fn again(bytes: u16) -> Self {
        Self(bytes).max(Self::LEAST)
    }

    /// Bytes.
    pub fn bytes(self) -> usize {
        self.0.into()
    }
}
