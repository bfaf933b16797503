//! The work of other balancers at a member, and this balancer's part of the member's limits. The slow path
//! writes it (see [`fleet`](crate::fleet)), and choices read it.

use core::sync::atomic::Ordering::Relaxed;

use super::{MAX_DIRECT, Vitals};

impl Vitals {
    /// Returns the known requests in flight from other balancers; 0 without other balancers.
    #[inline]
    pub fn peer_in_flight(&self) -> f64 {
        f64::from(f32::from_bits(self.peer_in_flight.load(Relaxed)))
    }

    /// Returns the known requests a second that other balancers begin at the member, and those that wait
    /// there for it.
    pub fn peer_rate_and_waiting(&self) -> (f64, f64) {
        let bits = self.peer_rate_and_waiting.load(Relaxed);
        let decode = |bits: u32| f64::from(f32::from_bits(bits));
        (decode(bits as u32), decode((bits >> 32) as u32))
    }

    /// Sets the requests a second and the waiting requests of other balancers.
    pub(crate) fn set_peer_rate(&self, rate: f64, waiting: f64) {
        let encode = |number: f64| u64::from((number.clamp(0.0, f64::from(MAX_DIRECT)) as f32).to_bits());
        let packed = encode(rate) | encode(waiting) << 32;
        if self.peer_rate_and_waiting.load(Relaxed) != packed {
            self.peer_rate_and_waiting.store(packed, Relaxed);
        }
    }

    /// Sets the requests in flight from other balancers.
    pub(crate) fn set_peer_in_flight(&self, peer_in_flight: f64) {
        let bits = (peer_in_flight.clamp(0.0, f64::from(MAX_DIRECT)) as f32).to_bits();
        if self.peer_in_flight.load(Relaxed) != bits {
            self.peer_in_flight.store(bits, Relaxed);
        }
    }

    /// Returns this balancer's part of the member's limit; `None` for all of it.
    #[inline]
    pub fn part(&self) -> Option<u32> {
        self.limit_part.load(Relaxed).checked_sub(1)
    }

    /// Sets this balancer's part of the member's limit; returns `true` if it has grown.
    pub(crate) fn set_limit_part(&self, part: Option<u32>) -> bool {
        let encoded = part.map_or(0, |part| part.saturating_add(1));
        let previous = self.limit_part.load(Relaxed);
        if previous != encoded {
            self.limit_part.store(encoded, Relaxed);
        }
        previous != 0 && (encoded == 0 || encoded > previous)
    }

    /// Returns this balancer's part of the member's requests a second, above 0, at most 1.
    pub fn rate_share(&self) -> f64 {
        match f32::from_bits(self.rate_share.load(Relaxed)) {
            share if share > 0.0 => f64::from(share),
            _ => 1.0,
        }
    }

    /// Sets this balancer's part of the member's requests a second; `None` for all of them.
    pub(crate) fn set_rate_share(&self, share: Option<f64>) {
        self.rate_share.store(share.map_or(0, |share| (share.clamp(1e-6, 1.0) as f32).to_bits()), Relaxed);
    }

    /// Resets the member's state to that without other balancers.
    pub(crate) fn clear_peers(&self) {
        self.set_peer_in_flight(0.0);
        self.set_peer_rate(0.0, 0.0);
        self.set_limit_part(None);
        self.set_rate_share(None);
    }
}
