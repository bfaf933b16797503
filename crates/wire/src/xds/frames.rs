//! The framing of messages in a gRPC stream ("gRPC over HTTP2"): one byte for compression, four bytes for the
//! length, then the message.

use thiserror::Error;

/// The length of a frame's header, in bytes.
const FRAME_HEADER_LEN: usize = 5;

/// The reason why a stream cannot be read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The message is compressed, though compression was never negotiated.
    #[error("the message is compressed")]
    Compressed,
    /// The message exceeds the maximum length.
    #[error("the message is too long")]
    TooLong,
}

/// Returns a message in a frame.
pub fn encode_frame(message: &impl prost::Message) -> Vec<u8> {
    let length = message.encoded_len();
    let mut bytes = Vec::with_capacity(FRAME_HEADER_LEN + length);
    bytes.push(0);
    // No message that fits into memory here exceeds this length.
    bytes.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend_from_slice(&message.encode_to_vec());
    bytes
}

/// Extracts messages from the received bytes.
#[derive(Debug)]
pub struct FrameDecoder {
    bytes: Vec<u8>,
    /// The number of bytes that have been consumed.
    consumed: usize,
    max_len: usize,
}

impl FrameDecoder {
    /// Creates a reader for messages of at most `max_len` bytes.
    pub fn new(max_len: usize) -> Self {
        Self { bytes: Vec::new(), consumed: 0, max_len }
    }

    /// Appends received bytes. The buffer holds received bytes only; callers drain
    /// [`FrameDecoder::next_message`] before they push more.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.consumed));
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns `true` if all received bytes have been consumed.
    pub fn is_empty(&self) -> bool {
        self.consumed == self.bytes.len()
    }

    /// Returns the next complete message, if there is one.
    ///
    /// # Errors
    /// The stream cannot be read any further.
    pub fn next_message(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        let rest = &self.bytes[self.consumed..];
        let Some(&[compressed, a, b, c, d]) = rest.first_chunk::<FRAME_HEADER_LEN>() else { return Ok(None) };
        if compressed != 0 {
            return Err(FrameError::Compressed);
        }
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if length > self.max_len {
            return Err(FrameError::TooLong);
        }
        let Some(message) = rest.get(FRAME_HEADER_LEN..FRAME_HEADER_LEN + length) else { return Ok(None) };
        self.consumed += FRAME_HEADER_LEN + length;
        Ok(Some(message.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::xds::{DiscoveryRequest, LoadStatsRequest, Message as _, UInt32Value};

    fn messages(pieces: &[&[u8]], max_len: usize) -> Result<Vec<Vec<u8>>, FrameError> {
        let mut decoder = FrameDecoder::new(max_len);
        let mut messages = Vec::new();
        for piece in pieces {
            decoder.push(piece);
            while let Some(message) = decoder.next_message()? {
                messages.push(message);
            }
        }
        Ok(messages)
    }

    #[test]
    fn cuts_do_not_matter() {
        let stream = [
            encode_frame(&UInt32Value { value: 7 }),
            encode_frame(&UInt32Value { value: 0 }),
            encode_frame(&UInt32Value { value: 300 }),
        ]
        .concat();
        let whole = messages(&[&stream], 10).unwrap();
        assert_eq!(whole, [&b"\x08\x07"[..], b"", b"\x08\xac\x02"]);
        for size in 1..stream.len() {
            assert_eq!(messages(&stream.chunks(size).collect::<Vec<_>>(), 10).unwrap(), whole, "{size}");
        }
        assert_eq!(messages(&[&stream], 2), Err(FrameError::TooLong));
        assert_eq!(messages(&[&[1, 0, 0, 0, 0]], 2), Err(FrameError::Compressed));
    }

    proptest! {
        #[test]
        fn no_bytes_are_the_end_of_us(stream in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = messages(&[&stream], 300);
            let _ = DiscoveryRequest::decode(&stream[..]);
            let _ = LoadStatsRequest::decode(&stream[..]);
        }

        /// Input that is almost valid reaches deeper into the decoder than random bytes.
        #[test]
        fn no_change_of_a_report_is_either(at in 0_usize..200, byte in any::<u8>(), cut in 0_usize..200) {
            let mut report = report();
            let index = at % report.len();
            report[index] = byte;
            report.truncate(report.len() - cut % report.len());
            let _ = LoadStatsRequest::decode(&report[..]);
        }
    }

    fn report() -> Vec<u8> {
        use crate::xds::{ClusterStats, Locality, LocalityStats, MetricStats, Node, ProtobufDuration};
        let metric = MetricStats { metric_name: "queue".into(), requests: 3, total: 4.5 };
        let locality = LocalityStats {
            locality: Some(Locality { sub_zone: "10.0.0.1:80".into(), ..Locality::default() }),
            total_successful_requests: 300,
            total_requests_in_progress: 2,
            load_metric_stats: vec![metric],
            ..LocalityStats::default()
        };
        let stats = ClusterStats {
            cluster_name: "web".into(),
            upstream_locality_stats: vec![locality],
            load_report_interval: Some(ProtobufDuration { seconds: 1, nanos: 5 }),
        };
        let node = Node { id: "n".into(), ..Node::default() };
        LoadStatsRequest { node: Some(node), cluster_stats: vec![stats] }.encode_to_vec()
    }
}
