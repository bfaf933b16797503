//! The work of other balancers at a member, and this balancer's part of the member's limits. The slow path
//! writes it (see [`fleet`](crate::fleet)), and choices read it.

use core::sync::atomic::Ordering::Relaxed;

use super::{MOST_TOLD, Vitals};

impl Vitals {
    /// Returns the known requests in flight from other balancers; 0 without other balancers.
    #[inline]
    pub fn others(&self) -> f64 {
        f64::from(f32::from_bits(self.others.load(Relaxed)))
    }

    /// Returns the known requests a second that other balancers begin at the member, and those that wait
    /// there for it.
    pub fn coming(&self) -> (f64, f64) {
        let bits = self.coming.load(Relaxed);
        let number = |bits: u32| f64::from(f32::from_bits(bits));
        (number(bits as u32), number((bits >> 32) as u32))
    }

    /// Sets the requests a second and the waiting requests of other balancers.
    pub(crate) fn expect(&self, rate: f64, waiting: f64) {
        let bits = |number: f64| u64::from((number.clamp(0.0, f64::from(MOST_TOLD)) as f32).to_bits());
        let coming = bits(rate) | bits(waiting) << 32;
        if self.coming.load(Relaxed) != coming {
            self.coming.store(coming, Relaxed);
        }
    }

    /// Sets the requests in flight from other balancers.
    pub(crate) fn accompany(&self, others: f64) {
        let bits = (others.clamp(0.0, f64::from(MOST_TOLD)) as f32).to_bits();
        if self.others.load(Relaxed) != bits {
            self.others.store(bits, Relaxed);
        }
    }

    /// Returns this balancer's part of the member's limit; `None` for all of it.
    #[inline]
    pub fn part(&self) -> Option<u32> {
        self.part.load(Relaxed).checked_sub(1)
    }

    /// Sets this balancer's part of the member's limit; returns `true` if it has grown.
    pub(crate) fn give(&self, part: Option<u32>) -> bool {
        let coded = part.map_or(0, |part| part.saturating_add(1));
        let before = self.part.load(Relaxed);
        if before != coded {
            self.part.store(coded, Relaxed);
        }
        before != 0 && (coded == 0 || coded > before)
    }

    /// Returns this balancer's part of the member's requests a second, above 0, at most 1.
    pub fn portion(&self) -> f64 {
        match f32::from_bits(self.portion.load(Relaxed)) {
            part if part > 0.0 => f64::from(part),
            _ => 1.0,
        }
    }

    /// Sets this balancer's part of the member's requests a second; `None` for all of them.
    pub(crate) fn allot(&self, portion: Option<f64>) {
        self.portion.store(portion.map_or(0, |part| (part.clamp(1e-6, 1.0) as f32).to_bits()), Relaxed);
    }

    /// Resets the member's state to that without other balancers.
    pub(crate) fn alone(&self) {
        self.accompany(0.0);
        self.expect(0.0, 0.0);
        self.give(None);
        self.allot(None);
    }
}
