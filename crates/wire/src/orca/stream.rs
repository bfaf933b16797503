//! ORCA out of band: a server that tells its load on a call that stays (`xds.service.orca.v3.OpenRcaService`, gRFC A51), also
//! while it has nothing to answer. The messages that come are those of [`read_message`](super::read_message).

use std::time::Duration;

use crate::xds::{Message, Span, frame};

/// The path of the call.
pub const STREAM: &str = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics";

/// What is asked (`OrcaLoadReportRequest`), but for the names of costs of requests, which are not wanted.
#[derive(Clone, PartialEq, Message)]
struct Question {
    #[prost(message, optional, tag = "1")]
    report_interval: Option<Span>,
}

/// What the call begins with, framed as gRPC does: a report is wanted this often. Servers have a least interval of their own.
pub fn question(interval: Duration) -> Vec<u8> {
    let seconds = i64::try_from(interval.as_secs()).unwrap_or(i64::MAX);
    // Below 10^9, as a span has it.
    let span = Span { seconds, nanos: interval.subsec_nanos() as i32 };
    frame(&Question { report_interval: Some(span) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::orca::{self, Bad, Kind};

    #[test]
    fn a_question_is_as_protobuf_has_it() {
        // Field 1, a message of four bytes: seconds (1) 3, nanos (2) 5.
        assert_eq!(question(Duration::new(3, 5)), b"\0\0\0\0\x06\x0a\x04\x08\x03\x10\x05");
    }

    #[test]
    fn reports_are_read_as_in_headers() {
        let mut told = Vec::new();
        let mut message = vec![9];
        message.extend_from_slice(&0.5_f64.to_le_bytes());
        orca::read_message(&message, |metric| told.push((metric.kind, metric.figure(), metric.value)))
            .unwrap();
        assert_eq!(told, [(Kind::Field, Some("cpu_utilization".to_owned()), 0.5)]);
        assert!(orca::read_message(&message[..5], |_| {}).is_err());
        assert_eq!(orca::read_message(&[0; 9000], |_| {}), Err(Bad("it is too long")));
    }
}
