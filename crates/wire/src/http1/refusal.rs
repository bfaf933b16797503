//! Why a head is not passed on.

/// The reason for which no head was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread<E> {
    /// The bytes at hand end before the head does.
    Partial,
    /// It is malformed, or may not be passed on.
    Bad(E),
}

/// A request that must not be passed on, with the status that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// 400: it is malformed, or could be read in two ways.
    #[error("{0}")]
    Malformed(&'static str),
    /// 414: the request line is longer than a head may be.
    #[error("the request target is too long")]
    TargetTooLong,
    /// 417: it expects something other than `100-continue`.
    #[error("Expect is not 100-continue")]
    Expectation,
    /// 431: the head is longer than allowed or has too many fields.
    #[error("the request head is too large")]
    HeadTooLarge,
    /// 501: a method or transfer coding that is not relayed.
    #[error("{0}")]
    NotImplemented(&'static str),
    /// 505: a major version other than 1.
    #[error("only HTTP/1.0 and HTTP/1.1 are spoken here")]
    Version,
}

impl Refusal {
    /// The status to answer with.
    pub fn status(self) -> u16 {
        match self {
            Self::Malformed(_) => 400,
            Self::TargetTooLong => 414,
            Self::Expectation => 417,
            Self::HeadTooLarge => 431,
            Self::NotImplemented(_) => 501,
            Self::Version => 505,
        }
    }
}
