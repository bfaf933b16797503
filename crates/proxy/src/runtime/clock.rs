//! The clock of the brain's time.

use nix::time::{ClockId, clock_gettime};
use plimsoll_brain::Time;

/// Counts nanoseconds since the process began to carry traffic, or since the first process in a chain of
/// handoffs did. The same on every thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start_nanos: u64,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { start_nanos: monotonic() }
    }

    /// Creates a clock with the same start as that of another process ([`Clock::start_nanos`]); it starts now
    /// if that is in the future.
    pub(crate) fn with_start(start_nanos: u64) -> Self {
        Self { start_nanos: start_nanos.min(monotonic()) }
    }

    /// Returns the start on the system's monotonic clock, in nanoseconds.
    pub(crate) fn start_nanos(self) -> u64 {
        self.start_nanos
    }

    pub(crate) fn now(self) -> Time {
        Time(monotonic() - self.start_nanos)
    }

    /// Returns the time on the system's monotonic clock, in nanoseconds.
    pub(crate) fn monotonic(self, time: Time) -> u64 {
        self.start_nanos.saturating_add(time.0)
    }
}

/// Returns the processor seconds used by all threads of this process.
pub(crate) fn processor_seconds() -> f64 {
    // As old as the monotonic clock; without it, the cost of requests would be unknown.
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)
        .map_or(0.0, |time| time.tv_sec() as f64 + time.tv_nsec() as f64 / 1e9)
}

fn monotonic() -> u64 {
    #[cfg(test)]
    if let Some(frozen_nanos) = held::now() {
        return frozen_nanos;
    }
    // Linux has had this clock since 2.5, so the call cannot fail. It counts from boot: never negative.
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

/// A clock that a test stops, for its thread.
#[cfg(test)]
pub(crate) mod held {
    use std::cell::Cell;
    use std::time::Duration;

    thread_local! {
        static FROZEN_NANOS: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Releases the clock when dropped.
    #[must_use]
    pub(crate) struct ClockFreeze;

    impl Drop for ClockFreeze {
        fn drop(&mut self) {
            FROZEN_NANOS.set(None);
        }
    }

    /// Stops the clock of this thread: it proceeds only by [`advance`].
    pub(crate) fn hold() -> ClockFreeze {
        FROZEN_NANOS.set(Some(super::monotonic()));
        ClockFreeze
    }

    /// Lets this much time pass at once.
    pub(crate) fn advance(duration: Duration) {
        FROZEN_NANOS.set(FROZEN_NANOS.get().map(|now| now + duration.as_nanos() as u64));
    }

    pub(crate) fn now() -> Option<u64> {
        FROZEN_NANOS.get()
    }
}
