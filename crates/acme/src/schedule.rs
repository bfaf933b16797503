//! The times of renewals and retries. Pure functions: times and random numbers are arguments.
//!
//! Without renewal information, a certificate is renewed when a third of its lifetime is left, as Let's
//! Encrypt recommends. A random part of up to a twentieth of the lifetime is subtracted, so that certificates
//! obtained together are not renewed together. If the authority gives a window (ARI, RFC 9773, section 4.2),
//! the renewal is at a uniformly random point in it, drawn once per certificate.

use std::time::{Duration, SystemTime};

/// The first delay after a failure. Doubled each time, it allows five attempts in the first hour, which is
/// Let's Encrypt's limit.
const FIRST_BACKOFF: Duration = Duration::from_secs(120);
/// The longest delay, unless the authority asks for a longer one.
const MAX_BACKOFF: Duration = Duration::from_secs(6 * 3600);
/// The longest `Retry-After` that is honoured: one request per day harms no authority.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 3600);
/// The least and the greatest interval between two requests for renewal information (RFC 9773, section
/// 4.3.2).
const ARI_INTERVALS: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(24 * 3600));

/// The validity period of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValidityPeriod {
    pub(crate) from: SystemTime,
    pub(crate) until: SystemTime,
}

impl ValidityPeriod {
    pub(crate) fn length(self) -> Duration {
        self.until.duration_since(self.from).unwrap_or_default()
    }

    /// Returns the time of renewal without advice of the authority:
    /// `until - length / 3 - chance * length / 20`, where `chance` is from 0 to 1.
    pub(crate) fn renewal(self, fraction: f64) -> SystemTime {
        let length = self.length();
        self.until - length / 3 - length.mul_f64(fraction.clamp(0.0, 1.0) / 20.0)
    }

    /// Returns the time of renewal in the authority's window. It is never later than a quarter of the
    /// lifetime before the end, so that a failure can be retried.
    pub(crate) fn renewal_in_window(self, window: (SystemTime, SystemTime), fraction: f64) -> SystemTime {
        let (start, end) = window;
        let width = end.duration_since(start).unwrap_or_default();
        let point = start + width.mul_f64(fraction.clamp(0.0, 1.0));
        point.min(self.until - self.length() / 4)
    }

    /// Returns the earliest time at which a certificate that was just obtained may be renewed, whatever the
    /// authority advises. It prevents a loop with an authority that issues only certificates that are already
    /// due.
    pub(crate) fn earliest_renewal(self, obtained_at: SystemTime) -> SystemTime {
        obtained_at + (self.length() / 10).min(Duration::from_secs(3600))
    }
}

/// Returns the delay after `failures` failed attempts in a row, 1 or more. `told` is the authority's
/// `Retry-After`. `life` is that of the certificate to be renewed, whose tenth bounds the delay.
pub(crate) fn retry_delay(
    failures: u32,
    retry_after: Option<Duration>,
    validity: Option<ValidityPeriod>,
    fraction: f64,
) -> Duration {
    let backoff = FIRST_BACKOFF.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(MAX_BACKOFF);
    let max_delay = validity.map_or(MAX_BACKOFF, |period| (period.length() / 10).max(Duration::from_secs(1)));
    let jittered = backoff.min(max_delay).mul_f64(0.9 + 0.2 * fraction.clamp(0.0, 1.0));
    jittered.max(retry_after.unwrap_or_default().min(MAX_RETRY_AFTER))
}

/// Returns the interval until the next request for renewal information: the authority's, within
/// [`ARI_INTERVALS`], and at most a tenth of the certificate's lifetime (but at least the minimum).
pub(crate) fn ari_interval(retry_after: Option<Duration>, validity: ValidityPeriod) -> Duration {
    let (min_interval, max_interval) = ARI_INTERVALS;
    retry_after
        .unwrap_or(Duration::from_secs(6 * 3600))
        .clamp(min_interval, max_interval)
        .min((validity.length() / 10).max(min_interval))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn period(length: Duration) -> ValidityPeriod {
        ValidityPeriod { from: UNIX_EPOCH + 1000 * DAY, until: UNIX_EPOCH + 1000 * DAY + length }
    }

    #[test]
    fn a_third_is_left_or_a_little_more() {
        let validity = period(90 * DAY);
        assert_eq!(validity.renewal(0.0), validity.from + 60 * DAY);
        let earliest = validity.renewal(1.0);
        assert!(earliest >= validity.from + 55 * DAY && earliest < validity.from + 56 * DAY, "{earliest:?}");
    }

    #[test]
    fn a_window_is_heeded_but_not_to_its_last_moment() {
        let validity = period(6 * DAY);
        let window = (validity.from + 3 * DAY, validity.from + 5 * DAY);
        assert_eq!(validity.renewal_in_window(window, 0.0), validity.from + 3 * DAY);
        assert_eq!(validity.renewal_in_window(window, 0.5), validity.from + 4 * DAY);
        assert_eq!(
            validity.renewal_in_window((window.0, validity.until), 1.0),
            validity.from + 6 * DAY * 3 / 4
        );
        // A revoked certificate: its window is in the past.
        assert!(validity.renewal_in_window((UNIX_EPOCH, UNIX_EPOCH + DAY), 0.3) < validity.from);
        // An empty window.
        assert_eq!(validity.renewal_in_window((window.0, window.0), 0.7), window.0);
        assert_eq!(validity.earliest_renewal(validity.from), validity.from + Duration::from_secs(3600));
    }

    #[test]
    fn pauses_grow_and_heed_what_is_told() {
        let pauses = [1, 2, 3, 4, 5, 20].map(|failures| retry_delay(failures, None, None, 0.5).as_secs());
        assert_eq!(pauses, [120, 240, 480, 960, 1920, 21_600]);
        assert_eq!(retry_delay(1, Some(Duration::from_secs(3600)), None, 0.5).as_secs(), 3600);
        assert_eq!(retry_delay(1, Some(30 * DAY), None, 0.5), DAY);
        // A certificate with a lifetime of 15 seconds.
        let short_lived = Some(period(Duration::from_secs(15)));
        assert_eq!(retry_delay(9, None, short_lived, 0.5), Duration::from_millis(1500));
        for fraction in [0.0, 1.0] {
            let pause = retry_delay(1, None, None, fraction).as_secs();
            assert!((108..=132).contains(&pause), "{pause}");
        }
    }

    #[test]
    fn looks_are_neither_too_often_nor_too_rare() {
        let interval_seconds = |retry_seconds: Option<u64>, days: u32| {
            ari_interval(retry_seconds.map(Duration::from_secs), period(days * DAY)).as_secs()
        };
        assert_eq!(interval_seconds(None, 90), 6 * 3600);
        assert_eq!(interval_seconds(Some(1), 90), 60);
        assert_eq!(interval_seconds(Some(1_000_000), 90), 86_400);
        assert_eq!(interval_seconds(Some(86_400), 6), 51_840);
    }
}
