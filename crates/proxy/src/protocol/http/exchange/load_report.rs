//! Load reports in a member's response, and their effect on the request.

use http::HeaderMap;
use plimsoll_wire::load_report::{LoadReport, NotProcessed};
use plimsoll_wire::orca;

use super::Exchange;
use crate::net::byte_stream::ByteStream;
use crate::net::reason::Reason;
use crate::protocol::http::outcome::ExchangeFailure;

impl<S: ByteStream, M: ByteStream> Exchange<'_, S, M> {
    /// Records a load report, already parsed (`said`) or not. With a 503, it may show that the member has no
    /// room; with any failure, that its server is away. A gRPC call fails with a 200 whose head is all of it
    /// ("Trailers-Only") and contains [`UNAVAILABLE`]: `unavailable`.
    pub(super) fn record_report(
        &mut self,
        status: u16,
        unavailable: impl FnOnce() -> bool,
        report: &[u8],
        parsed_report: Option<LoadReport>,
    ) -> Result<(), ExchangeFailure> {
        let Some(not_processed) =
            self.in_flight.record_report(report, parsed_report, self.session.core.now())
        else {
            return Ok(());
        };
        let call_failed = || self.session.stream.call().is_some() && unavailable();
        match not_processed {
            NotProcessed::Full => self.refused = status == 503 || call_failed(),
            NotProcessed::Away if status >= 500 || call_failed() => {
                return Err(ExchangeFailure::MemberFailed(Reason::ConnectFailed, true));
            }
            NotProcessed::Away => {}
        }
        Ok(())
    }
}

/// Load reports in the trailers of an HTTP/1.1 response whose head announces them (`Trailer:
/// endpoint-load-metrics`).
pub(super) struct TrailingReport {
    announced: bool,
    /// Whether reports are for the balancer only.
    strip: bool,
    /// The value of the first report.
    pub(super) report: Option<Vec<u8>>,
}

impl TrailingReport {
    pub(super) fn new(announced: bool, strip: bool) -> Self {
        Self { announced, strip, report: None }
    }

    /// Keeps a load report. Returns `true` if the field is forwarded.
    pub(super) fn filter_field(&mut self, name: &[u8], value: &[u8]) -> bool {
        if !self.announced || !name.eq_ignore_ascii_case(orca::HEADER.as_bytes()) {
            return true;
        }
        self.report.get_or_insert_with(|| value.to_vec());
        !self.strip
    }
}

/// The status code by which side-cars reject calls, as a header value.
const UNAVAILABLE: &str = "14";

/// Returns `true` if a response head in HTTP/1.1 text, which is all of the response, reports a call that
/// failed with this code.
pub(super) fn is_unavailable(head: &[u8], trailers_only: bool) -> bool {
    let matches_unavailable = |line: &[u8]| {
        let (name, value) = line.trim_ascii().split_at_checked(STATUS.len())?;
        let value = value.trim_ascii_start().strip_prefix(b":")?.trim_ascii();
        Some(name.eq_ignore_ascii_case(STATUS.as_bytes()) && value == UNAVAILABLE.as_bytes())
    };
    trailers_only && head.split(|byte| *byte == b'\n').any(|line| matches_unavailable(line) == Some(true))
}

/// Returns `true` if fields report such a failure.
pub(super) fn is_unavailable_status(fields: &HeaderMap, trailers_only: bool) -> bool {
    trailers_only && fields.get(STATUS).is_some_and(|value| value == UNAVAILABLE)
}

/// The field with the status of a call (gRPC over HTTP/2).
const STATUS: &str = "grpc-status";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_was_announced_is_heard_and_may_stay_behind() {
        for (announced, strip, forwarded, recorded) in
            [(true, true, false, true), (true, false, true, true), (false, true, true, false)]
        {
            let mut trailing = TrailingReport::new(announced, strip);
            assert!(trailing.filter_field(b"X", b"y"));
            assert_eq!(trailing.filter_field(b"Endpoint-Load-Metrics", b"TEXT eps=1"), forwarded);
            assert_eq!(trailing.filter_field(b"endpoint-load-metrics", b"TEXT eps=2"), forwarded);
            assert_eq!(trailing.report.as_deref(), recorded.then_some(&b"TEXT eps=1"[..]));
        }
    }

    #[test]
    fn only_a_head_that_says_so_is_a_failed_call() {
        for (line, expected) in [
            ("grpc-status: 14", true),
            ("Grpc-Status:14 ", true),
            ("grpc-status: 0", false),
            ("grpc-status: 140", false),
            ("grpc-status-x: 14", false),
            ("x: grpc-status: 14", false),
        ] {
            let head = format!("HTTP/1.1 200 OK\r\na: b\r\n{line}\r\n\r\n");
            assert_eq!(is_unavailable(head.as_bytes(), true), expected, "{line}");
            assert!(!is_unavailable(head.as_bytes(), false), "{line}");
        }
    }
}
