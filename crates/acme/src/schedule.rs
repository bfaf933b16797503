//! When a certificate is renewed, and when what failed is tried again. Pure: times and chances are arguments.
//!
//! Without advice of the authority a certificate is renewed when a third of its life is left, as Let's Encrypt recommends, and up
//! to a twentieth of it earlier, so that those that were obtained together do not come back together. An authority that gives a
//! window (ARI, RFC 9773, section 4.2) is heeded: a point in it is chosen, evenly, once for each certificate.

use std::time::{Duration, SystemTime};

/// The first pause after a failure. Doubled each time it makes five tries in the first hour: what Let's Encrypt allows.
const FIRST: Duration = Duration::from_secs(120);
/// The longest.
const LAST: Duration = Duration::from_secs(6 * 3600);
/// However long the authority says: asked once a day nobody is harmed.
const TOLD: Duration = Duration::from_secs(24 * 3600);
/// Between two looks at what the authority advises (RFC 9773, section 4.3.2).
const ADVICE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(24 * 3600));

/// The life of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) from: SystemTime,
    pub(crate) until: SystemTime,
}

impl Life {
    pub(crate) fn length(self) -> Duration {
        self.until.duration_since(self.from).unwrap_or_default()
    }

    /// When to renew it, if nobody advises otherwise; `chance` from 0 to 1.
    pub(crate) fn renewal(self, chance: f64) -> SystemTime {
        let length = self.length();
        self.until - length / 3 - length.mul_f64(chance.clamp(0.0, 1.0) / 20.0)
    }

    /// When to renew it by the window that the authority suggests; not so late that a failure could not be mended.
    pub(crate) fn advised(self, window: (SystemTime, SystemTime), chance: f64) -> SystemTime {
        let (start, end) = window;
        let width = end.duration_since(start).unwrap_or_default();
        let chosen = start + width.mul_f64(chance.clamp(0.0, 1.0));
        chosen.min(self.until - self.length() / 4)
    }

    /// Not before this is a certificate renewed that was just obtained, whatever the authority advises: one that gives out nothing
    /// but what is to be renewed must not be asked in a circle.
    pub(crate) fn soonest(self, obtained: SystemTime) -> SystemTime {
        obtained + (self.length() / 10).min(Duration::from_secs(3600))
    }
}

/// How long to wait after so many failures in a row, 1 or more. `told`: what the authority said of it. `life`: of the certificate
/// that is to be renewed, which may be too short for long pauses.
pub(crate) fn pause(failures: u32, told: Option<Duration>, life: Option<Life>, chance: f64) -> Duration {
    let doubled = FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LAST);
    let bound = life.map_or(LAST, |life| (life.length() / 10).max(Duration::from_secs(1)));
    let own = doubled.min(bound).mul_f64(0.9 + 0.2 * chance.clamp(0.0, 1.0));
    own.max(told.unwrap_or_default().min(TOLD))
}

/// When to look again at what the authority advises: as it says, within bounds; less often than it lives is of no use.
pub(crate) fn look_again(told: Option<Duration>, life: Life) -> Duration {
    let (least, most) = ADVICE;
    told.unwrap_or(Duration::from_secs(6 * 3600)).clamp(least, most).min((life.length() / 10).max(least))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn life(length: Duration) -> Life {
        Life { from: UNIX_EPOCH + 1000 * DAY, until: UNIX_EPOCH + 1000 * DAY + length }
    }

    #[test]
    fn a_third_is_left_or_a_little_more() {
        let life = life(90 * DAY);
        assert_eq!(life.renewal(0.0), life.from + 60 * DAY);
        let early = life.renewal(1.0);
        assert!(early >= life.from + 55 * DAY && early < life.from + 56 * DAY, "{early:?}");
    }

    #[test]
    fn a_window_is_heeded_but_not_to_its_last_moment() {
        let life = life(6 * DAY);
        let window = (life.from + 3 * DAY, life.from + 5 * DAY);
        assert_eq!(life.advised(window, 0.0), life.from + 3 * DAY);
        assert_eq!(life.advised(window, 0.5), life.from + 4 * DAY);
        assert_eq!(life.advised((window.0, life.until), 1.0), life.from + 6 * DAY * 3 / 4);
        // Revoked: a window that is over.
        assert!(life.advised((UNIX_EPOCH, UNIX_EPOCH + DAY), 0.3) < life.from);
        // One that is none.
        assert_eq!(life.advised((window.0, window.0), 0.7), window.0);
        assert_eq!(life.soonest(life.from), life.from + Duration::from_secs(3600));
    }

    #[test]
    fn pauses_grow_and_heed_what_is_told() {
        let pauses = [1, 2, 3, 4, 5, 20].map(|failures| pause(failures, None, None, 0.5).as_secs());
        assert_eq!(pauses, [120, 240, 480, 960, 1920, 21_600]);
        assert_eq!(pause(1, Some(Duration::from_secs(3600)), None, 0.5).as_secs(), 3600);
        assert_eq!(pause(1, Some(30 * DAY), None, 0.5), DAY);
        // Of a certificate for a quarter of a minute.
        let short = Some(life(Duration::from_secs(15)));
        assert_eq!(pause(9, None, short, 0.5), Duration::from_millis(1500));
        for chance in [0.0, 1.0] {
            let pause = pause(1, None, None, chance).as_secs();
            assert!((108..=132).contains(&pause), "{pause}");
        }
    }

    #[test]
    fn looks_are_neither_too_often_nor_too_rare() {
        let look = |told: Option<u64>, days: u32| {
            look_again(told.map(Duration::from_secs), life(days * DAY)).as_secs()
        };
        assert_eq!(look(None, 90), 6 * 3600);
        assert_eq!(look(Some(1), 90), 60);
        assert_eq!(look(Some(1_000_000), 90), 86_400);
        assert_eq!(look(Some(86_400), 6), 51_840);
    }
}
