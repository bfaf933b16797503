//! Time as the brain counts it.

use nix::time::{ClockId, clock_gettime};
use plimsoll_brain::Time;

/// Counts nanoseconds since the process began to carry traffic, or the first of those that handed it over to one another; the same on every thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    begin: u64,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { begin: monotonic() }
    }

    /// One that counts from the same moment as that of another process, [`Clock::begin`]; from now if that is still to come.
    pub(crate) fn since(begin: u64) -> Self {
        Self { begin: begin.min(monotonic()) }
    }

    /// The moment it counts from, on the system's monotonic clock, in nanoseconds.
    pub(crate) fn begin(self) -> u64 {
        self.begin
    }

    pub(crate) fn now(self) -> Time {
        Time(monotonic() - self.begin)
    }

    /// The same moment on the system's monotonic clock, in nanoseconds.
    pub(crate) fn monotonic(self, time: Time) -> u64 {
        self.begin.saturating_add(time.0)
    }
}

/// Processor seconds that all threads of this process have used.
pub(crate) fn processor_seconds() -> f64 {
    // As old as the other; if it were not there, nothing would be known of what requests cost.
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)
        .map_or(0.0, |time| time.tv_sec() as f64 + time.tv_nsec() as f64 / 1e9)
}

fn monotonic() -> u64 {
    #[cfg(test)]
    if let Some(held) = held::now() {
        return held;
    }
    // Linux has had this clock since 2.5: the call has no way to fail. It counts from boot: never negative.
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

/// A clock that a test holds, for its thread.
#[cfg(test)]
pub(crate) mod held {
    use std::cell::Cell;
    use std::time::Duration;

    thread_local! {
        static HELD: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Lets the clock go when it is dropped.
    #[must_use]
    pub(crate) struct Hold;

    impl Drop for Hold {
        fn drop(&mut self) {
            HELD.set(None);
        }
    }

    /// Holds the clock of this thread: it goes on only as it is [advanced](advance).
    pub(crate) fn hold() -> Hold {
        HELD.set(Some(super::monotonic()));
        Hold
    }

    /// Has so much time pass at once.
    pub(crate) fn advance(by: Duration) {
        HELD.set(HELD.get().map(|now| now + by.as_nanos() as u64));
    }

    pub(super) fn now() -> Option<u64> {
        HELD.get()
    }
}
