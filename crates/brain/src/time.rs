//! The only notion of time inside the brain.

use core::ops::{Add, Sub};
use core::time::Duration;

use serde::{Deserialize, Serialize};

/// Nanoseconds since a moment that the shell fixed when it started; monotonic, never wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Time(pub u64);

impl Time {
    /// Returns the time since `earlier`; zero if `earlier` lies ahead.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the nanoseconds since `earlier`. It does not use a [`Duration`], which would be split and
    /// joined again.
    pub(crate) fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the seconds since `earlier`.
    pub(crate) fn seconds_since(self, earlier: Self) -> f64 {
        // By way of i64, whose conversion processors support; no time is that old.
        self.nanos_since(earlier) as i64 as f64 * 1e-9
    }
}

impl Add<Duration> for Time {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Time {
    type Output = Self;
    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Returns the nanoseconds of a span, as exactly as means of latencies need. It does not use u128, whose
/// conversion no processor supports.
pub(crate) fn nanos(duration: Duration) -> f32 {
    duration.as_secs() as f32 * 1e9 + duration.subsec_nanos() as f32
}
