//! The time and the random bits for the supervision of processes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll_brain::Time;
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{ClockId, clock_gettime};

/// Returns the time since the start of the machine, asleep or not: it goes on where an earlier Supervisor's
/// ended.
pub(super) fn now() -> Time {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = Duration::from_secs(u64::try_from(now.tv_sec).unwrap_or_default());
    Time(0) + seconds + Duration::from_nanos(u64::try_from(now.tv_nsec).unwrap_or_default())
}

/// Returns the wall clock, in milliseconds since 1970.
pub(super) fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// Returns random bits, for pauses.
pub(super) fn random_bits() -> u64 {
    let mut bytes = [0; 8];
    // Without random bits pauses are longest.
    let _ = getrandom(&mut bytes, GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}
