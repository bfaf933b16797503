//! ORCA out of band: a server reports its load on a long-lived call (`xds.service.orca.v3.OpenRcaService`,
//! gRFC A51), even while it sends no responses. [`read_message`](super::read_message) reads the messages of
//! the stream.

use std::time::Duration;

use crate::xds::{Message, ProtobufDuration, encode_frame};

/// The path of the call.
pub const STREAM_PATH: &str = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics";

/// The request (`OrcaLoadReportRequest`) without the names of request costs, which are not needed.
#[derive(Clone, PartialEq, Message)]
struct OrcaStreamRequest {
    #[prost(message, optional, tag = "1")]
    report_interval: Option<ProtobufDuration>,
}

/// Returns the first message of the call in gRPC framing. It requests reports at this interval; servers may
/// enforce a minimum.
pub fn stream_request(interval: Duration) -> Vec<u8> {
    let seconds = i64::try_from(interval.as_secs()).unwrap_or(i64::MAX);
    // Below 10^9, as `ProtobufDuration` requires.
    let report_interval = ProtobufDuration { seconds, nanos: interval.subsec_nanos() as i32 };
    encode_frame(&OrcaStreamRequest { report_interval: Some(report_interval) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::orca::{self, MetricKind, OrcaError};

    #[test]
    fn a_question_is_as_protobuf_has_it() {
        // Field 1, a message of four bytes: seconds (1) 3, nanos (2) 5.
        assert_eq!(stream_request(Duration::new(3, 5)), b"\0\0\0\0\x06\x0a\x04\x08\x03\x10\x05");
    }

    #[test]
    fn reports_are_read_as_in_headers() {
        let mut metrics = Vec::new();
        let mut message = vec![9];
        message.extend_from_slice(&0.5_f64.to_le_bytes());
        orca::read_message(&message, |metric| metrics.push((metric.kind, metric.figure(), metric.value)))
            .unwrap();
        assert_eq!(metrics, [(MetricKind::Field, Some("cpu_utilization".to_owned()), 0.5)]);
        assert!(orca::read_message(&message[..5], |_| {}).is_err());
        assert_eq!(orca::read_message(&[0; 9000], |_| {}), Err(OrcaError("it is too long")));
    }
}
