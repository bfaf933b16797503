//! A member as the brain knows it: what was configured, what was reported, what is counted live.

use alloc::sync::Arc;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Time;

/// Names a member of one group for as long as it lives; never used again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u32);

/// Why a member may or may not be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Takes its share.
    Up,
    /// Came up lately: takes a growing part of its share.
    SlowStart,
    /// Health checks are configured and none has passed yet: not used.
    Unchecked,
    /// Its health checks fail.
    Down,
    /// Taken out because its traffic fails (outlier detection); comes back by itself.
    Ejected,
    /// An operator lets its work end; gets nothing new.
    Draining,
}

impl State {
    /// May this member be chosen?
    pub fn eligible(self) -> bool {
        matches!(self, Self::Up | Self::SlowStart)
    }
}

/// A load that a monitor reported, in the unit of the group's metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Finite and not negative.
    pub value: f64,
    /// When it was measured.
    pub at: Time,
}

/// One member in a [`Plan`](crate::Plan) or a view of the group.
#[derive(Clone, Debug)]
pub struct Member {
    /// Stable name within the group's life.
    pub id: MemberId,
    /// As configured: `host:port`.
    pub name: Arc<str>,
    /// Where to connect.
    pub address: SocketAddr,
    /// Hash of `name`: the same in every process and on every machine.
    pub seed: u64,
    /// Configured capacity relative to the other members; finite, above 0.
    pub capacity: f64,
    /// `capacity` times the part of its share that slow start allows now; finite, above 0.
    pub weight: f64,
    /// Most requests at once; `u32::MAX` for no limit.
    pub limit: u32,
    /// Why it may or may not be chosen.
    pub state: State,
    /// What its monitor last reported, if it has one.
    pub load: Option<Load>,
    /// What is counted live.
    pub vitals: Arc<Vitals>,
}

impl Member {
    /// Requests (or sessions, or flows) it works on now, seen from this process.
    pub fn in_flight(&self) -> u32 {
        self.vitals.in_flight()
    }

    /// Has it as many requests as its limit allows?
    pub fn full(&self) -> bool {
        self.in_flight() >= self.limit
    }
}

/// Live counts of one member, shared by all cores, on a cache line of its own.
///
/// Shared rather than per core because an exact `least_connections` and a limit on connections need the
/// sum at the moment of the choice.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Vitals {
    in_flight: AtomicU32,
    streak: AtomicU32,
    /// Latency estimate, nanoseconds as f32 bits, above the millisecond it was updated in, modulo 2^32.
    latency: AtomicU64,
}

impl Vitals {
    /// Counts a request in; returns how many are in flight with it.
    pub fn begin(&self) -> u32 {
        self.in_flight.fetch_add(1, Relaxed) + 1
    }

    /// Counts a request out.
    pub fn end(&self) {
        self.in_flight.fetch_sub(1, Relaxed);
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Relaxed)
    }

    /// Failures since the last success.
    pub fn streak(&self) -> u32 {
        self.streak.load(Relaxed)
    }

    /// A request failed; returns the length of the streak of failures with it.
    pub fn failed(&self) -> u32 {
        self.streak.fetch_add(1, Relaxed) + 1
    }

    /// A request succeeded. Writes only if there was a streak to end.
    pub fn succeeded(&self) {
        if self.streak.load(Relaxed) != 0 {
            self.streak.store(0, Relaxed);
        }
    }

    /// Folds one latency into the peak-sensitive moving average: a higher one counts at once, a lower one
    /// with weight 1 - e^(-dt/decay) (Finagle's PeakEwma). Concurrent updates may lose one another: an
    /// estimate tolerates that, a lock on the request path is not worth it.
    pub fn observe(&self, latency: Duration, now: Time, decay: Duration) {
        let fresh = latency.as_nanos() as f32;
        let then = self.decayed(now, decay);
        let kept = match then {
            Some((value, share)) if fresh < value => value * share + fresh * (1.0 - share),
            _ => fresh,
        };
        self.latency.store(u64::from(kept.to_bits()) << 32 | u64::from(stamp(now)), Relaxed);
    }

    /// The latency estimate in nanoseconds, or `None` before the first observation. Without traffic it
    /// decays towards zero, so that a member once slow is tried again.
    pub fn latency(&self, now: Time, decay: Duration) -> Option<f32> {
        self.decayed(now, decay).map(|(value, share)| value * share)
    }

    /// The stored estimate and the share of it that is left after the time since it was stored.
    fn decayed(&self, now: Time, decay: Duration) -> Option<(f32, f32)> {
        let packed = self.latency.load(Relaxed);
        if packed == 0 {
            return None;
        }
        let value = f32::from_bits((packed >> 32) as u32);
        // Cores may disagree on now by a batch of events: an update from the future has age 0.
        let age = (stamp(now).wrapping_sub(packed as u32) as i32).max(0);
        Some((value, libm::expf(-(age as f32) / decay.as_millis().max(1) as f32)))
    }
}

/// Milliseconds, low 32 bits, never 0 so that a stored estimate is never mistaken for none.
fn stamp(now: Time) -> u32 {
    ((now.0 / 1_000_000) as u32) | 1
}
