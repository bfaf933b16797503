//! The execution of decisions about a member's sessions, by all tasks of this process that hold them.
//!
//! A part of the sessions is to move, and each is asked separately. With independent draws the total varies
//! around that part: if one of two sessions is to move, both move in one case of four, and none in another.
//! So they take turns: with a share of a third every third session moves, and the first one is drawn
//! (systematic sampling). Each has the right probability, whichever others are asked and in whatever order.
//! Because load is to move, sessions of about the same size take turns, within a factor of eight.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use super::ShedDecision;
use crate::hash::unit;
use crate::mix;

/// The state beside each member.
#[derive(Debug, Default)]
pub struct MigrationProgress {
    /// The number of a decision, above, and for each class of sizes the progress towards the next turn, in
    /// parts of 256: a byte each.
    class_progress: AtomicU64,
    /// The load that came with sessions since the member's last report, f32 bits.
    arrived_load: AtomicU32,
    /// Whether it reported since the last plan computed its deficit.
    has_report: AtomicBool,
    /// The number of recorded session sizes, above, up to [`MANY`], and their mean, f32 bits.
    mean_size: AtomicU64,
}

impl MigrationProgress {
    /// Returns `true` if a session moves that is this `part` of all sessions here. Without information about
    /// the others its probability is [`ShedDecision::share`], drawn from `chance`.
    pub(super) fn should_move(&self, shed: ShedDecision, process_share: f32, random_bits: u64) -> bool {
        let shift = 8 * SIZE_CLASSES.iter().filter(|lower_bound| process_share < **lower_bound).count();
        // The mean is exactly the share.
        let step = (f64::from(shed.share) * 256.0 + unit(random_bits)) as u32;
        let mut moves = false;
        let advance = |packed: u64| {
            let epoch_lag = shed.epoch.wrapping_sub((packed >> 32) as u32);
            let progress = if epoch_lag == 0 { packed as u32 } else { mix(random_bits) as u32 };
            let advanced = (progress >> shift & 0xff) + step;
            moves = advanced > 0xff;
            let progress = progress & !(0xff << shift) | (advanced & 0xff) << shift;
            // A request by an outdated plan changes nothing for the others.
            (epoch_lag <= u32::MAX / 2).then_some(u64::from(shed.epoch) << 32 | u64::from(progress))
        };
        let _ = self.class_progress.fetch_update(Relaxed, Relaxed, advance);
        moves
    }

    /// Records the arrival of a session with this load, in any unit that all members share.
    pub fn record_arrival(&self, load: f32) {
        let add_load = |load_bits| Some((f32::from_bits(load_bits) + load).to_bits());
        let _ = self.arrived_load.fetch_update(Relaxed, Relaxed, add_load);
    }

    /// Returns the load that arrived with sessions.
    pub(crate) fn arrived_load(&self) -> f64 {
        f64::from(f32::from_bits(self.arrived_load.load(Relaxed)))
    }

    /// Records the size of a session with a request here, in a unit that all members share. It is to be
    /// called for one request of many: the mean is over requests, so that idle sessions do not count.
    pub fn asked(&self, size: f32) {
        let add_size = |packed: u64| {
            // A plain mean at first, then a moving one.
            let (count, mean) = ((packed >> 32).min(MAX_SIZES - 1) + 1, f32::from_bits(packed as u32));
            let new_mean = mean + (size - mean) / count as f32;
            (size > 0.0 && new_mean.is_finite()).then(|| count << 32 | u64::from(new_mean.to_bits()))
        };
        let _ = self.mean_size.fetch_update(Relaxed, Relaxed, add_size);
    }

    /// Returns the mean of the recent sizes; `None` while there are too few.
    pub(super) fn mean_size(&self) -> Option<f32> {
        let packed = self.mean_size.load(Relaxed);
        (packed >> 32 >= MIN_SIZES).then(|| f32::from_bits(packed as u32))
    }

    /// Records a report of the member, whose load contains the arrived sessions. The next plan's deficit
    /// does, too.
    pub(crate) fn record_report(&self) {
        self.has_report.store(true, Relaxed);
    }

    /// Follows a new plan. Without any alert (`calm`) no session is asked, and the recorded sizes become
    /// outdated.
    pub(crate) fn begin_plan(&self, no_alerts: bool) {
        if no_alerts {
            self.mean_size.store(0, Relaxed);
        }
        if self.has_report.swap(false, Relaxed) {
            self.arrived_load.store(0, Relaxed);
        }
    }

    /// Restarts the numbers of decisions.
    pub(crate) fn reset_decisions(&self) {
        self.class_progress.store(0, Relaxed);
    }
}

/// The least parts of the large classes of sessions: four classes with the smallest.
const SIZE_CLASSES: [f32; 3] = [1.0 / 8.0, 1.0 / 64.0, 1.0 / 512.0];

/// The number of sizes from which their mean counts, and the inverse of the least weight of the last one.
const MIN_SIZES: u64 = 4;
const MAX_SIZES: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_counts_until_a_plan_knows_of_it() {
        let progress = MigrationProgress::default();
        progress.record_arrival(1.0);
        progress.begin_plan(false);
        assert_eq!(progress.arrived_load(), 1.0, "a plan without a report");
        progress.record_report();
        progress.record_arrival(0.5);
        assert_eq!(progress.arrived_load(), 1.5, "a report that no plan knows");
        progress.begin_plan(false);
        assert_eq!(progress.arrived_load(), 0.0);
    }

    #[test]
    fn what_is_usual_is_what_asks() {
        let progress = MigrationProgress::default();
        assert_eq!(progress.mean_size(), None);
        [70.0, 130.0, 80.0].into_iter().for_each(|size| progress.asked(size));
        assert_eq!(progress.mean_size(), None, "little");
        progress.asked(120.0);
        assert_eq!(progress.mean_size(), Some(100.0));
        (0..40).for_each(|_| progress.asked(50.0));
        assert!((50.0..51.0).contains(&progress.mean_size().unwrap()));
        [f32::NAN, f32::INFINITY, -1.0, 0.0]
            .into_iter()
            .for_each(|invalid_size| progress.asked(invalid_size));
        progress.begin_plan(false);
        assert!((50.0..51.0).contains(&progress.mean_size().unwrap()));
        progress.begin_plan(true);
        assert_eq!(progress.mean_size(), None);
    }

    #[test]
    fn turns_are_taken_by_decisions_that_are_numbered_from_the_first_again() {
        let shed_with = |epoch| ShedDecision { share: 0.5, epoch, ..ShedDecision::default() };
        for seed in 0..100 {
            let progress = MigrationProgress::default();
            progress.should_move(shed_with(9), 0.5, mix(seed));
            progress.reset_decisions();
            let [first, second] =
                [1, 2].map(|session| progress.should_move(shed_with(1), 0.5, mix(seed * 10 + session)));
            assert_ne!(first, second, "{seed}");
        }
    }
}
