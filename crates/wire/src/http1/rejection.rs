//! The reasons for rejecting a head.

/// The reason why no head was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadError<E> {
    /// The input ends before the head does.
    Partial,
    /// The head is malformed, or must not be forwarded.
    Invalid(E),
}

/// A rejected request, with the status of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestRejection {
    /// 400: the request is malformed, or ambiguous.
    #[error("{0}")]
    Malformed(&'static str),
    /// 414: the request line exceeds the maximum length of a head.
    #[error("the request target is too long")]
    TargetTooLong,
    /// 417: the request expects something other than `100-continue`.
    #[error("Expect is not 100-continue")]
    Expectation,
    /// 431: the head exceeds its maximum length or number of fields.
    #[error("the request head is too large")]
    HeadTooLarge,
    /// 501: a method or transfer coding that the relay does not support.
    #[error("{0}")]
    NotImplemented(&'static str),
    /// 505: a major version other than 1.
    #[error("only HTTP/1.0 and HTTP/1.1 are spoken here")]
    Version,
}

impl RequestRejection {
    /// Returns the status of the response.
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
