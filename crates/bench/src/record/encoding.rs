//! Latencies outside of a run: as text that any HdrHistogram library reads, and step by step.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2DeflateSerializer};

use super::LatencyHistogram;

/// A step of the distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PercentileStep {
    /// The maximum latency of the share `quantile` of the requests.
    pub value: Duration,
    /// The share, from 0 to 1.
    pub quantile: f64,
    /// The number of requests up to this step.
    pub count: u64,
}

impl LatencyHistogram {
    /// Encodes the histogram in HdrHistogram's own form (V2, compressed, Base64), in microseconds.
    pub fn encode(&self) -> String {
        let mut bytes = Vec::new();
        V2DeflateSerializer::new()
            .serialize(&self.0, &mut bytes)
            .expect("a histogram of these bounds fits, and writing to memory does not fail");
        STANDARD.encode(bytes)
    }

    /// Decodes the output of [`encode`](Self::encode) or another HdrHistogram library, in microseconds.
    ///
    /// # Errors
    /// Fails if the text is malformed.
    pub fn decode(text: &str) -> Result<Self, String> {
        let bytes = STANDARD.decode(text).map_err(|error| format!("a histogram is not Base64: {error}"))?;
        let histogram: Histogram<u64> = Deserializer::new()
            .deserialize(&mut bytes.as_slice())
            .map_err(|error| format!("a histogram cannot be read: {error}"))?;
        let mut decoded = Self::new();
        for step in histogram.iter_recorded() {
            decoded.0.saturating_record_n(step.value_iterated_to(), step.count_at_value());
        }
        Ok(decoded)
    }

    /// Returns the distribution in ascending order, with `steps` steps for every halving of the distance to
    /// 1.
    pub fn percentiles(&self, steps: u32) -> impl Iterator<Item = PercentileStep> {
        let mut count = 0;
        self.0.iter_quantiles(steps).map(move |step| {
            count += step.count_since_last_iteration();
            PercentileStep {
                value: Duration::from_micros(step.value_iterated_to()),
                quantile: step.quantile_iterated_to(),
                count,
            }
        })
    }

    /// Returns the standard deviation; zero if empty.
    pub fn deviation(&self) -> Duration {
        Duration::from_nanos((self.0.stdev() * 1e3) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_saved_is_read_back() {
        let mut latencies = LatencyHistogram::new();
        (1..=5000).for_each(|n| latencies.record(Duration::from_micros(n * n)));
        let decoded = LatencyHistogram::decode(&latencies.encode()).unwrap();
        assert_eq!(decoded.count(), 5000);
        for q in [0.0, 0.5, 0.99, 0.999, 1.0] {
            assert_eq!(decoded.quantile(q), latencies.quantile(q), "{q}");
        }
        assert_eq!(LatencyHistogram::decode(&LatencyHistogram::new().encode()).unwrap().count(), 0);
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "x", "AAAA", "HISTFAAAAAAAAA=="] {
            assert!(LatencyHistogram::decode(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_steps_go_up_to_the_last_request() {
        let mut latencies = LatencyHistogram::new();
        (1..=1000).for_each(|n| latencies.record(Duration::from_millis(n)));
        let steps: Vec<PercentileStep> = latencies.percentiles(5).collect();
        assert!(
            steps
                .windows(2)
                .all(|pair| pair[0].quantile <= pair[1].quantile && pair[0].count <= pair[1].count)
        );
        assert_eq!(steps.last().map(|step| (step.quantile, step.count)), Some((1.0, 1000)));
    }
}
