//! What a member's other balancers have with it, and this one's part of its limits. The slow path writes it (see
//! [`fleet`](crate::fleet)), choices read it.

use core::sync::atomic::Ordering::Relaxed;

use super::{MOST_TOLD, Vitals};

impl Vitals {
    /// Requests in flight from other balancers, as far as that is known; 0 for a balancer that is alone.
    #[inline]
    pub fn others(&self) -> f64 {
        f64::from(f32::from_bits(self.others.load(Relaxed)))
    }

    /// Requests a second that other balancers begin with it, and requests that wait there for a place with it, as far as that is known.
    pub fn coming(&self) -> (f64, f64) {
        let bits = self.coming.load(Relaxed);
        let number = |bits: u32| f64::from(f32::from_bits(bits));
        (number(bits as u32), number((bits >> 32) as u32))
    }

    /// Sets those.
    pub(crate) fn expect(&self, rate: f64, waiting: f64) {
        let bits = |number: f64| u64::from((number.clamp(0.0, f64::from(MOST_TOLD)) as f32).to_bits());
        let coming = bits(rate) | bits(waiting) << 32;
        if self.coming.load(Relaxed) != coming {
            self.coming.store(coming, Relaxed);
        }
    }

    /// Sets how many requests others have in flight.
    pub(crate) fn accompany(&self, others: f64) {
        let bits = (others.clamp(0.0, f64::from(MOST_TOLD)) as f32).to_bits();
        if self.others.load(Relaxed) != bits {
            self.others.store(bits, Relaxed);
        }
    }

    /// This balancer's part of the member's limit; `None` where it has all of it.
    #[inline]
    pub fn part(&self) -> Option<u32> {
        self.part.load(Relaxed).checked_sub(1)
    }

    /// Sets that; true if it has become more.
    pub(crate) fn give(&self, part: Option<u32>) -> bool {
        let coded = part.map_or(0, |part| part.saturating_add(1));
        let before = self.part.load(Relaxed);
        if before != coded {
            self.part.store(coded, Relaxed);
        }
        before != 0 && (coded == 0 || coded > before)
    }

    /// This balancer's part of the requests that the member is given in a second, above 0, at most 1.
    pub fn portion(&self) -> f64 {
        match f32::from_bits(self.portion.load(Relaxed)) {
            part if part > 0.0 => f64::from(part),
            _ => 1.0,
        }
    }

    /// Sets that; `None` for all of them.
    pub(crate) fn allot(&self, portion: Option<f64>) {
        self.portion.store(portion.map_or(0, |part| (part.clamp(1e-6, 1.0) as f32).to_bits()), Relaxed);
    }

    /// Nobody else is there.
    pub(crate) fn alone(&self) {
        self.accompany(0.0);
        self.expect(0.0, 0.0);
        self.give(None);
        self.allot(None);
    }
}
