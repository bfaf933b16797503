//! Time as the brain counts it.

use std::time::Instant;

use plimsoll_brain::Time;

/// Counts nanoseconds since the process began to carry traffic; the same on every thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(self) -> Time {
        Time(self.0.elapsed().as_nanos() as u64)
    }
}
