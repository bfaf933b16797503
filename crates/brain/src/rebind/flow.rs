//! How decisions about a member's sessions are carried out, by all of this process who hold them.
//!
//! A part of the sessions is to go, and each is asked by itself. Drawn for each, what goes scatters around that part: of two sessions, of
//! which one is to go, both go in one case of four, and none in another. So they take turns: with a share of a third every third goes, and
//! which is the first is drawn (systematic sampling). Each goes as likely as it is to, whoever else is asked and in whatever order;
//! and as it is load that is to go, those of about the same size take turns, within a factor of eight.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use super::Shed;
use crate::hash::unit;
use crate::mix;

/// Beside each member.
#[derive(Debug, Default)]
pub struct Flow {
    /// A decision, above, and for each class of sizes how near the next turn is, in parts of 256: a byte each.
    turns: AtomicU64,
    /// Load that came with sessions since the member's last report, f32 bits.
    came: AtomicU32,
    /// Did it report since plans last said what it lacks?
    reported: AtomicBool,
    /// How often a session told how large it is, above, up to [`MANY`], and the mean of that, f32 bits.
    usual: AtomicU64,
}

impl Flow {
    /// Does a session go that is so large a `part` of what all have here? With a probability of [`Shed::share`], drawn from `chance`, if
    /// nothing is known of the others.
    pub(super) fn goes(&self, shed: Shed, part: f32, chance: u64) -> bool {
        let shift = 8 * CLASSES.iter().filter(|least| part < **least).count();
        // In the mean it is exactly the share.
        let step = (f64::from(shed.share) * 256.0 + unit(chance)) as u32;
        let mut goes = false;
        let take = |turns: u64| {
            let behind = shed.epoch.wrapping_sub((turns >> 32) as u32);
            let turns = if behind == 0 { turns as u32 } else { mix(chance) as u32 };
            let near = (turns >> shift & 0xff) + step;
            goes = near > 0xff;
            let turns = turns & !(0xff << shift) | (near & 0xff) << shift;
            // Who asks by a plan that others know to be old changes nothing for them.
            (behind <= u32::MAX / 2).then_some(u64::from(shed.epoch) << 32 | u64::from(turns))
        };
        let _ = self.turns.fetch_update(Relaxed, Relaxed, take);
        goes
    }

    /// A session came that is so much load, in any unit that is the same for all members.
    pub fn comes(&self, load: f32) {
        let add = |came| Some((f32::from_bits(came) + load).to_bits());
        let _ = self.came.fetch_update(Relaxed, Relaxed, add);
    }

    /// How much that is of all.
    pub(crate) fn came(&self) -> f64 {
        f64::from(f32::from_bits(self.came.load(Relaxed)))
    }

    /// A session that asks here is so large, in a unit that is the same for all members. To be told with one request of many: it is a mean
    /// over requests, so that sessions that ask for nothing are none.
    pub fn asked(&self, size: f32) {
        let add = |usual: u64| {
            // A plain mean at first, then a moving one.
            let (told, mean) = ((usual >> 32).min(MANY - 1) + 1, f32::from_bits(usual as u32));
            let next = mean + (size - mean) / told as f32;
            (size > 0.0 && next.is_finite()).then(|| told << 32 | u64::from(next.to_bits()))
        };
        let _ = self.usual.fetch_update(Relaxed, Relaxed, add);
    }

    /// How large those are, in the mean of what was told lately; `None` while that was little.
    pub(super) fn usual(&self) -> Option<f32> {
        let usual = self.usual.load(Relaxed);
        (usual >> 32 >= SOME).then(|| f32::from_bits(usual as u32))
    }

    /// The member reported: what came is in its load, and by the next plan in what it lacks.
    pub(crate) fn report(&self) {
        self.reported.store(true, Relaxed);
    }

    /// There is a new plan. Where nobody is under alert (`calm`) nobody is asked, and how large sessions are grows old.
    pub(crate) fn renew(&self, calm: bool) {
        if calm {
            self.usual.store(0, Relaxed);
        }
        if self.reported.swap(false, Relaxed) {
            self.came.store(0, Relaxed);
        }
    }

    /// Decisions are numbered from the first again.
    pub(crate) fn begin_anew(&self) {
        self.turns.store(0, Relaxed);
    }
}

/// Least parts of the largest sessions, and of those after them: four classes, with the smallest.
const CLASSES: [f32; 3] = [1.0 / 8.0, 1.0 / 64.0, 1.0 / 512.0];

/// As often as this it has to be told how large sessions are, to say something; and what was told last is at least one part in so many.
const SOME: u64 = 4;
const MANY: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_counts_until_a_plan_knows_of_it() {
        let flow = Flow::default();
        flow.comes(1.0);
        flow.renew(false);
        assert_eq!(flow.came(), 1.0, "a plan without a report");
        flow.report();
        flow.comes(0.5);
        assert_eq!(flow.came(), 1.5, "a report that no plan knows");
        flow.renew(false);
        assert_eq!(flow.came(), 0.0);
    }

    #[test]
    fn what_is_usual_is_what_asks() {
        let flow = Flow::default();
        assert_eq!(flow.usual(), None);
        [70.0, 130.0, 80.0].into_iter().for_each(|size| flow.asked(size));
        assert_eq!(flow.usual(), None, "little");
        flow.asked(120.0);
        assert_eq!(flow.usual(), Some(100.0));
        (0..40).for_each(|_| flow.asked(50.0));
        assert!((50.0..51.0).contains(&flow.usual().unwrap()));
        [f32::NAN, f32::INFINITY, -1.0, 0.0].into_iter().for_each(|nonsense| flow.asked(nonsense));
        flow.renew(false);
        assert!((50.0..51.0).contains(&flow.usual().unwrap()));
        flow.renew(true);
        assert_eq!(flow.usual(), None);
    }

    #[test]
    fn turns_are_taken_by_decisions_that_are_numbered_from_the_first_again() {
        let shed = |epoch| Shed { share: 0.5, epoch, ..Shed::default() };
        for seed in 0..100 {
            let flow = Flow::default();
            flow.goes(shed(9), 0.5, mix(seed));
            flow.begin_anew();
            let [first, second] = [1, 2].map(|session| flow.goes(shed(1), 0.5, mix(seed * 10 + session)));
            assert_ne!(first, second, "{seed}");
        }
    }
}
