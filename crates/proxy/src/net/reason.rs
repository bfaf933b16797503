//! The reasons for the balancer's own responses: the `plimsoll-reason` header and the label of the metric.

/// A reason; the number is its index in the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    BadRequest,
    HeadTooLarge,
    NotImplemented,
    Version,
    ClientTimeout,
    NoMember,
    QueueFull,
    QueueTimeout,
    ConnectFailed,
    ConnectTimeout,
    Reset,
    BadAnswer,
    AnswerTimeout,
    TotalTimeout,
    /// The process has no more file descriptors or local ports.
    Exhausted,
    /// Another request would only slow down those in flight.
    Shed,
    /// The TLS handshake failed, so there was no request.
    Handshake,
    /// The request came on a connection for another host.
    Misdirected,
    TargetTooLong,
    /// The request has an unknown expectation.
    Expectation,
    /// The memory for peers has reached its budget.
    Memory,
    /// No route of the listener takes the request.
    NoRoute,
    /// The path can be read in two ways that take different routes.
    AmbiguousPath,
}

/// The number of reasons.
pub(crate) const REASONS: usize = ALL.len();

/// All reasons, in the order of their numbers.
pub(crate) const ALL: [Reason; 23] = [
    Reason::BadRequest,
    Reason::HeadTooLarge,
    Reason::NotImplemented,
    Reason::Version,
    Reason::ClientTimeout,
    Reason::NoMember,
    Reason::QueueFull,
    Reason::QueueTimeout,
    Reason::ConnectFailed,
    Reason::ConnectTimeout,
    Reason::Reset,
    Reason::BadAnswer,
    Reason::AnswerTimeout,
    Reason::TotalTimeout,
    Reason::Exhausted,
    Reason::Shed,
    Reason::Handshake,
    Reason::Misdirected,
    Reason::TargetTooLong,
    Reason::Expectation,
    Reason::Memory,
    Reason::NoRoute,
    Reason::AmbiguousPath,
];

impl Reason {
    /// Returns the name in the header, the metric and the log.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::BadRequest => "bad_request",
            Self::HeadTooLarge => "head_too_large",
            Self::NotImplemented => "not_implemented",
            Self::Version => "version",
            Self::ClientTimeout => "client_timeout",
            Self::NoMember => "no_member",
            Self::QueueFull => "queue_full",
            Self::QueueTimeout => "queue_timeout",
            Self::ConnectFailed => "connect_failed",
            Self::ConnectTimeout => "connect_timeout",
            Self::Reset => "reset",
            Self::BadAnswer => "bad_answer",
            Self::AnswerTimeout => "answer_timeout",
            Self::TotalTimeout => "total_timeout",
            Self::Exhausted => "exhausted",
            Self::Shed => "shed",
            Self::Handshake => "handshake",
            Self::Misdirected => "misdirected",
            Self::TargetTooLong => "target_too_long",
            Self::Expectation => "expectation",
            Self::Memory => "memory",
            Self::NoRoute => "no_route",
            Self::AmbiguousPath => "ambiguous_path",
        }
    }

    /// Returns the description for people, in the body of the response.
    pub(crate) fn sentence(self) -> &'static str {
        match self {
            Self::BadRequest => "the request is malformed",
            Self::HeadTooLarge => "the request head is too large",
            Self::NotImplemented => "the request asks for something that is not relayed",
            Self::Version => "only HTTP/1.0 and HTTP/1.1 are spoken here",
            Self::ClientTimeout => "the request took too long to arrive",
            Self::NoMember => "no member of the group can be used",
            Self::QueueFull => "every member is at its limit and the queue is full",
            Self::QueueTimeout => "every member was at its limit for too long",
            Self::ConnectFailed => "no connection to a member could be made",
            Self::ConnectTimeout => "a member took too long to accept a connection",
            Self::Reset => "a member closed the connection before it answered",
            Self::BadAnswer => "a member's answer was malformed",
            Self::AnswerTimeout => "a member took too long to answer",
            Self::TotalTimeout => "the request took too long",
            Self::Exhausted => "the balancer has no file descriptor or local port left",
            Self::Shed => "every member works on as many requests as it can, or is too loaded for more",
            Self::Handshake => "no TLS came about",
            Self::Misdirected => "the connection is for another host: make one for this",
            Self::TargetTooLong => "the request target is too long",
            Self::Expectation => "the request expects something other than 100-continue",
            Self::Memory => "the balancer keeps as many bytes for its clients as it may (max_memory)",
            Self::NoRoute => "no route takes this request",
            Self::AmbiguousPath => "servers read the path of the request in different ways",
        }
    }

    /// Returns the status line for the reason.
    pub(crate) fn status(self) -> (u16, &'static str) {
        match self {
            Self::BadRequest | Self::Handshake | Self::AmbiguousPath => (400, "Bad Request"),
            Self::NoRoute => (404, "Not Found"),
            Self::TargetTooLong => (414, "URI Too Long"),
            Self::Expectation => (417, "Expectation Failed"),
            Self::HeadTooLarge => (431, "Request Header Fields Too Large"),
            Self::NotImplemented => (501, "Not Implemented"),
            Self::Version => (505, "HTTP Version Not Supported"),
            Self::ClientTimeout => (408, "Request Timeout"),
            Self::Misdirected => (421, "Misdirected Request"),
            Self::NoMember
            | Self::QueueFull
            | Self::QueueTimeout
            | Self::Exhausted
            | Self::Shed
            | Self::Memory => (503, "Service Unavailable"),
            Self::ConnectFailed | Self::Reset | Self::BadAnswer => (502, "Bad Gateway"),
            Self::ConnectTimeout | Self::AnswerTimeout | Self::TotalTimeout => (504, "Gateway Timeout"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_places() {
        assert!(ALL.iter().enumerate().all(|(index, reason)| *reason as usize == index));
    }
}
