//! Time as the brain counts it.

use plimsoll_brain::Time;
use rustix::time::{ClockId, clock_gettime};

/// Counts nanoseconds since the process began to carry traffic; the same on every thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    begin: u64,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { begin: monotonic() }
    }

    pub(crate) fn now(self) -> Time {
        Time(monotonic() - self.begin)
    }

    /// The same moment on the system's monotonic clock, in nanoseconds.
    pub(crate) fn monotonic(self, time: Time) -> u64 {
        self.begin.saturating_add(time.0)
    }
}

fn monotonic() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // The monotonic clock counts from boot: never negative.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
