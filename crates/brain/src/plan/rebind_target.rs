//! The choice of a new member for a session that leaves a member under alert.

use super::Plan;
use crate::hash::unit;
use crate::{Member, MemberId, SessionExchange, Time, mix};

impl Plan {
    /// Returns the new member of a session that leaves a member under alert: one with room, not in `tried`,
    /// with a chance in proportion to its deficit. Returns `None` if no member has a deficit; then
    /// [`Plan::choose`] decides.
    pub fn target(&self, chance: u64, tried: &[MemberId], now: Time) -> Option<usize> {
        self.target_by(chance, |member| if self.has_room(member, tried, now) { member.deficit } else { 0.0 })
    }

    /// Returns the new member of a session with a known `load` above 0, in any unit that all members share.
    ///
    /// A member is skipped once its share of the sessions moved so far, by load and including this one, has
    /// arrived ([`MigrationProgress`](crate::MigrationProgress)). So two sessions do not fill the same gap.
    pub fn sized_rebind_target(
        &self,
        load: f32,
        chance: u64,
        tried: &[MemberId],
        now: Time,
    ) -> Option<usize> {
        let lacks = |member: &Member| member.deficit > 0.0 && self.has_room(member, tried, now);
        let add = |(came, lack): (f64, f64), member: &Member| {
            (came + member.vitals.migration.arrived_load(), lack + member.deficit)
        };
        let able = self.members.iter().filter(|member| lacks(member));
        let (came, lack) = able.fold((f64::from(load), 0.0), add);
        self.target_by(chance, |member| {
            if lacks(member) {
                came * (member.deficit / lack) - member.vitals.migration.arrived_load()
            } else {
                0.0
            }
        })
    }

    /// Returns the partner for a session of the member at `place` in [`Plan::members`] that is to be
    /// exchanged.
    ///
    /// A partner is a member for which the exchange helps and to which no other session came for it. The
    /// chance is in proportion to the deficit. If no such member has a deficit, a member with its fair share
    /// is drawn; smaller sessions then move from it to the members with a deficit. Meanwhile it has more than
    /// its share. So its report must be recent, and it must not get much more than the other member has now.
    pub fn exchange_partner(
        &self,
        swap: SessionExchange,
        load: f32,
        chance: u64,
        place: usize,
        now: Time,
    ) -> Option<usize> {
        let own = self.members.get(place)?;
        let most = MOST_AFTER * f64::from(own.shed.load) * own.capacity;
        let helps = |member: &Member| {
            let flow = &member.vitals.migration;
            let told = member.load.filter(|load| now.since(load.at) <= own.shed.period * LATELY);
            let after = told.map(|told| told.value * member.capacity + f64::from(load));
            let may = member.shed.share <= 0.0 && flow.arrived_load() < 0.5 * f64::from(load);
            may && after.is_some_and(|after| after <= most)
                && swap.is_useful_with(flow)
                && self.has_room(member, &[own.id], now)
        };
        let lacks = |member: &Member| if helps(member) { member.deficit } else { 0.0 };
        let has = |member: &Member| if helps(member) { 1.0 } else { 0.0 };
        self.target_by(chance, lacks).or_else(|| self.target_by(chance, has))
    }

    /// Returns `true` if a session that leaves another member may go to this one.
    fn has_room(&self, member: &Member, tried: &[MemberId], now: Time) -> bool {
        let full = member.is_full() || (self.admission && member.is_at_limit(now));
        !full && !tried.contains(&member.id)
    }

    /// Draws a member with a chance in proportion to its pull.
    fn target_by(&self, chance: u64, pulls: impl Fn(&Member) -> f64) -> Option<usize> {
        let (mut best, mut sum, mut bits) = (None, 0.0, chance);
        for (index, member) in self.members.iter().enumerate() {
            let pull = pulls(member);
            if pull > 0.0 {
                sum += pull;
                bits = mix(bits);
                if best.is_none() || unit(bits) * sum < pull {
                    best = Some(index);
                }
            }
        }
        best
    }
}

/// The maximum load of a member after an exchange, as a multiple of the other member's load before it. It is
/// 1.25 if the member has its share, and the other's surplus and a third one's deficit are each half the
/// session.
const MOST_AFTER: f64 = 1.3;

/// The number of report periods after which a report is too old.
const LATELY: u32 = 4;

#[cfg(test)]
mod tests {
    use super::super::tests::members;
    use super::*;
    use core::time::Duration;

    use crate::{ReportedLoad, ShedDecision, StrategyParams, strategy};

    #[test]
    fn targets_follow_deficits() {
        let mut members = members(&[1.0; 4]);
        for (member, deficit) in members.iter_mut().zip([0.0, 1.0, 3.0, 6.0]) {
            member.deficit = deficit;
        }
        members[3].limit = 0;
        let strategy = strategy::find("random").expect("a strategy of this name");
        let plan = Plan::new(strategy, StrategyParams::defaults(strategy), members);
        let mut counts = [0_u32; 4];
        for chance in 0..10_000 {
            counts[plan.target(mix(chance), &[], Time(0)).unwrap()] += 1;
        }
        assert!(counts[0] == 0 && counts[3] == 0 && (2_300..2_700).contains(&counts[1]), "{counts:?}");
        assert_eq!(plan.target(1, &[MemberId(2)], Time(0)), Some(1));
        assert_eq!(plan.target(1, &[MemberId(1), MemberId(2)], Time(0)), None);
        plan.members()[1].vitals.set_concurrency_limit(1);
        plan.members()[1].vitals.begin();
        assert_eq!(plan.target(1, &[MemberId(2)], Time(0)), Some(1), "no limit is in force");
        assert_eq!(plan.with_admission(true).target(1, &[MemberId(2)], Time(0)), None);
    }

    #[test]
    fn who_changes_places_goes_where_that_helps() {
        let mut members = members(&[1.0; 4]);
        let period = Duration::from_secs(3);
        members[0].shed =
            ShedDecision { share: 0.25, gap: 0.5, load: 200.0, period, ..ShedDecision::default() };
        for (member, load) in members.iter_mut().zip([200.0_f64, 100.0, 100.0, 100.0]) {
            member.deficit = (125.0 - load).max(0.0);
            member.load = Some(ReportedLoad { value: load, at: Time(0), of_host: false });
        }
        let swap = SessionExchange::of(0.5, 100.0, &members[0].shed).expect("as large as the gap");
        let goes = |members: &[Member], now: Time| {
            let random = strategy::find("random").expect("a strategy of this name");
            let plan =
                Plan::new(random, StrategyParams::defaults(random), members.to_vec()).with_admission(true);
            let to = |chance| plan.exchange_partner(swap, 100.0, mix(chance), 0, now);
            let first = to(0);
            assert!((1..100).all(|chance| to(chance) == first), "it depends on chance");
            first
        };
        let soon = Time(0) + period;
        assert_eq!(goes(&members, soon), None, "nobody knows who asks there");
        for (member, size) in members.iter().zip([50.0, 100.0, 50.0, 5.0]) {
            (0..4).for_each(|_| member.vitals.migration.asked(size));
        }
        assert_eq!(goes(&members, soon), Some(2));
        assert_eq!(goes(&members, soon + 4 * period), None, "who knows what it has by now?");
        members[2].load = None;
        assert_eq!(goes(&members, soon), None, "or ever had");
        members[2].load = Some(ReportedLoad { value: 170.0, at: Time(0), of_host: false });
        assert_eq!(goes(&members, soon), None, "it has much already");
        // If no member with a deficit helps, one with its share does.
        members[2].load = Some(ReportedLoad { value: 150.0, at: Time(0), of_host: false });
        members[2].deficit = 0.0;
        assert_eq!(goes(&members, soon), Some(2));
        members[2].shed.share = 0.1;
        assert_eq!(goes(&members, soon), None, "not one that has more");
        members[2].shed.share = 0.0;
        members[2].vitals.migration.record_arrival(60.0);
        assert_eq!(goes(&members, soon), None, "one at a time");
        members[2].vitals.migration.record_report();
        members[2].vitals.migration.begin_plan(false);
        assert_eq!(goes(&members, soon), Some(2));
        members[2].vitals.set_concurrency_limit(1);
        members[2].vitals.begin();
        assert_eq!(goes(&members, soon), None, "it has too much to do");
    }

    #[test]
    fn nobody_fills_a_gap_twice() {
        let with = |deficits: [f64; 4]| {
            let mut members = members(&[1.0; 4]);
            for (member, deficit) in members.iter_mut().zip(deficits) {
                member.deficit = deficit;
            }
            let strategy = strategy::find("random").expect("a strategy of this name");
            Plan::new(strategy, StrategyParams::defaults(strategy), members)
        };
        let go = |plan: &Plan, seed: u64, sessions: u64| {
            let mut counts = [0; 4];
            for session in 0..sessions {
                let place = plan.sized_rebind_target(0.1, mix(seed * 100 + session), &[], Time(0)).unwrap();
                plan.members()[place].vitals.migration.record_arrival(0.1);
                counts[place] += 1;
            }
            for Member { vitals, .. } in plan.members() {
                vitals.migration.record_report();
                vitals.migration.begin_plan(false);
            }
            counts
        };
        let plan = with([1.0, 1.0, 2.0, 0.0]);
        for seed in 0..100 {
            // The shares are rounded, whichever member came first.
            let [one, two, three, none] = go(&plan, seed, 16);
            assert!(
                (3..=5).contains(&one) && (3..=5).contains(&two) && (7..=9).contains(&three) && none == 0
            );
        }
        // A member with almost no deficit gets almost nothing, though no session came there.
        let plan = with([0.98, 0.02, 1e-6, 0.0]);
        let all = (0..100)
            .map(|seed| go(&plan, seed, 5))
            .fold([0; 4], |sum, one| core::array::from_fn(|place| sum[place] + one[place]));
        assert!(all[0] >= 470 && (1..=30).contains(&all[1]) && all[2] == 0, "{all:?}");
        // Sessions of unknown size move as if none had arrived.
        plan.members()[0].vitals.migration.record_arrival(5.0);
        assert!((0..100).filter(|chance| plan.target(mix(*chance), &[], Time(0)) == Some(0)).count() > 90);
    }
}
