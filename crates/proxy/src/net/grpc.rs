//! The parts of gRPC that concern a balancer (the specification "gRPC over HTTP2"): the timeout of a call,
//! its status, and rejections that clients understand.

use std::fmt::Write as _;
use std::time::Duration;

use crate::net::reason::Reason;

/// A client's call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GrpcCall {
    /// The client's timeout; `None` without one.
    pub(crate) timeout: Option<Duration>,
    /// The status that the member returned (`grpc-status`), once known.
    pub(crate) status: Option<u32>,
}

/// The delay before a client tries again that was rejected for lack of room.
const PUSHBACK: Duration = Duration::from_secs(1);

impl GrpcCall {
    /// Returns `true` if the member failed. These codes correspond to HTTP's 5xx: UNKNOWN (2),
    /// RESOURCE_EXHAUSTED (8), INTERNAL (13) and UNAVAILABLE (14). All others concern the call, not the
    /// member.
    pub(crate) fn is_member_failure(&self) -> bool {
        matches!(self.status, Some(2 | 8 | 13 | 14))
    }

    /// Returns `true` if the client's own timeout has expired, this long after the call began.
    pub(crate) fn is_expired(&self, elapsed: Duration) -> bool {
        self.timeout.is_some_and(|timeout| elapsed >= timeout)
    }
}

/// Returns `true` if this `content-type` is that of a call.
pub(crate) fn is_call(content_type: &[u8]) -> bool {
    const NAME: &[u8] = b"application/grpc";
    let Some((name, rest)) = content_type.split_at_checked(NAME.len()) else { return false };
    name.eq_ignore_ascii_case(NAME) && matches!(rest.first(), None | Some(b'+' | b';' | b' '))
}

/// Parses the value of `grpc-timeout`: at most eight digits and a unit. Returns `None` if it is invalid.
pub(crate) fn timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let amount = digits.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    Some(match unit {
        b'H' => Duration::from_secs(amount * 3600),
        b'M' => Duration::from_secs(amount * 60),
        b'S' => Duration::from_secs(amount),
        b'm' => Duration::from_millis(amount),
        b'u' => Duration::from_micros(amount),
        b'n' => Duration::from_nanos(amount),
        _ => return None,
    })
}

/// Returns the gRPC status code for a reason.
fn status_code(reason: Reason) -> u32 {
    match reason {
        // DEADLINE_EXCEEDED: the call may have been executed.
        Reason::TotalTimeout | Reason::AnswerTimeout | Reason::ClientTimeout => 4,
        // UNKNOWN, the mapping of HTTP's 421.
        Reason::Misdirected => 2,
        // UNIMPLEMENTED; also the mapping of HTTP's 404.
        Reason::NotImplemented | Reason::NoRoute => 12,
        // INTERNAL, the mapping of HTTP's 400.
        Reason::BadRequest
        | Reason::TargetTooLong
        | Reason::Expectation
        | Reason::HeadTooLarge
        | Reason::Version
        | Reason::AmbiguousPath
        | Reason::Handshake => 13,
        // UNAVAILABLE
        Reason::NoMember
        | Reason::QueueFull
        | Reason::QueueTimeout
        | Reason::ConnectFailed
        | Reason::ConnectTimeout
        | Reason::Reset
        | Reason::BadAnswer
        | Reason::Exhausted
        | Reason::Memory
        | Reason::Shed => 14,
    }
}

/// Returns `true` if the reason is a lack of room, which immediate retries make worse.
fn is_lack_of_room(reason: Reason) -> bool {
    matches!(reason, Reason::Shed | Reason::QueueFull | Reason::QueueTimeout)
}

/// Returns the response to a call that no member answered: a head alone, with the status ("Trailers-Only").
/// `more` are complete header lines.
pub(crate) fn rejection(reason: Reason, header_lines: &[u8]) -> Vec<u8> {
    let mut head = String::with_capacity(256);
    // Writing to a string cannot fail.
    let _ = write!(
        head,
        "HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\nContent-Length: 0\r\ngrpc-status: {}\r\n\
         grpc-message: plimsoll: {}\r\nplimsoll-reason: {}\r\n",
        status_code(reason),
        reason.sentence(),
        reason.label(),
    );
    if is_lack_of_room(reason) {
        let _ = write!(head, "grpc-retry-pushback-ms: {}\r\n", PUSHBACK.as_millis());
    }
    let mut response = head.into_bytes();
    response.extend_from_slice(header_lines);
    response.extend_from_slice(b"\r\n");
    response
}

/// Returns the trailers of a response that was begun and cannot be completed. `late` is `true` if the
/// client's own timeout has expired, so that the member is not to blame.
pub(crate) fn abort_trailers(timed_out: bool) -> [(&'static str, &'static str); 2] {
    match timed_out {
        // DEADLINE_EXCEEDED
        true => [("grpc-status", "4"), ("grpc-message", "plimsoll: the request took too long")],
        // UNAVAILABLE
        false => [("grpc-status", "14"), ("grpc-message", "plimsoll: a member broke off its answer")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_known_by_their_type() {
        for grpc_type in
            ["application/grpc", "application/grpc+proto", "Application/GRPC;x", "application/grpc ;x"]
        {
            assert!(is_call(grpc_type.as_bytes()), "{grpc_type}");
        }
        for other_type in ["application/grpc-web", "application/grpcx", "text/plain", "", "application/grp"] {
            assert!(!is_call(other_type.as_bytes()), "{other_type}");
        }
    }

    #[test]
    fn timeouts_are_eight_digits_and_a_unit() {
        for (text, duration) in [
            ("2H", Duration::from_secs(7200)),
            ("3M", Duration::from_secs(180)),
            ("99999999S", Duration::from_secs(99_999_999)),
            ("250m", Duration::from_millis(250)),
            ("7u", Duration::from_micros(7)),
            ("0n", Duration::ZERO),
        ] {
            assert_eq!(timeout(text.as_bytes()), Some(duration), "{text}");
        }
        for invalid in ["", "S", "5", "123456789S", "1.5S", "-1S", "5s", "5 S"] {
            assert_eq!(timeout(invalid.as_bytes()), None, "{invalid}");
        }
    }

    #[test]
    fn members_are_blamed_for_what_http_has_5xx_for() {
        let failure_codes =
            (0..=16).filter(|code| GrpcCall { status: Some(*code), timeout: None }.is_member_failure());
        assert_eq!(failure_codes.collect::<Vec<_>>(), [2, 8, 13, 14]);
        assert!(!GrpcCall::default().is_member_failure());
    }

    #[test]
    fn every_reason_has_an_answer_that_can_be_read() {
        for reason in crate::net::reason::ALL {
            let text = String::from_utf8(rejection(reason, b"a: b\r\n")).expect("text");
            assert!(text.ends_with("\r\na: b\r\n\r\n") && text.contains("\r\ngrpc-status: "), "{text}");
            let has_pushback = text.contains("\r\ngrpc-retry-pushback-ms: 1000\r\n");
            assert_eq!(
                has_pushback,
                reason.label() == "shed" || reason.label().starts_with("queue"),
                "{text}"
            );
        }
        assert_eq!((status_code(Reason::Shed), status_code(Reason::TotalTimeout)), (14, 4));
    }
}
