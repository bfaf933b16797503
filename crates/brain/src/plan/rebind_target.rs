//! The choice of a new member for a session that leaves a member under alert.

use super::Plan;
use crate::hash::unit;
use crate::{Member, MemberId, SessionExchange, Time, mix};

impl Plan {
    /// Returns the new member of a session that leaves a member under alert: one with room, not in `tried`,
    /// with a chance in proportion to its deficit. Returns `None` if no member has a deficit; then
    /// [`Plan::choose`] decides.
    pub fn target(&self, random_bits: u64, tried: &[MemberId], now: Time) -> Option<usize> {
        self.target_by(
            random_bits,
            |member| if self.has_room(member, tried, now) { member.deficit } else { 0.0 },
        )
    }

    /// Returns the new member of a session with a known `load` above 0, in any unit that all members share.
    ///
    /// A member is skipped once its share of the sessions moved so far, by load and including this one, has
    /// arrived ([`MigrationProgress`](crate::MigrationProgress)). So two sessions do not fill the same gap.
    pub fn sized_rebind_target(
        &self,
        load: f32,
        random_bits: u64,
        tried: &[MemberId],
        now: Time,
    ) -> Option<usize> {
        let may_receive = |member: &Member| member.deficit > 0.0 && self.has_room(member, tried, now);
        let add_member = |(arrived, deficit_sum): (f64, f64), member: &Member| {
            (arrived + member.vitals.migration.arrived_load(), deficit_sum + member.deficit)
        };
        let candidates = self.members.iter().filter(|member| may_receive(member));
        let (total_arrived, total_deficit) = candidates.fold((f64::from(load), 0.0), add_member);
        self.target_by(random_bits, |member| {
            if may_receive(member) {
                total_arrived * (member.deficit / total_deficit) - member.vitals.migration.arrived_load()
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
        exchange: SessionExchange,
        load: f32,
        random_bits: u64,
        index: usize,
        now: Time,
    ) -> Option<usize> {
        let source = self.members.get(index)?;
        let max_load = MAX_LOAD_AFTER * f64::from(source.shed.load) * source.capacity;
        let is_suitable = |member: &Member| {
            let migration = &member.vitals.migration;
            let reported =
                member.load.filter(|load| now.since(load.at) <= source.shed.period * LOAD_AGE_PERIODS);
            let load_after = reported.map(|reported| reported.value * member.capacity + f64::from(load));
            let may_receive = member.shed.share <= 0.0 && migration.arrived_load() < 0.5 * f64::from(load);
            may_receive
                && load_after.is_some_and(|load_after| load_after <= max_load)
                && exchange.is_useful_with(migration)
                && self.has_room(member, &[source.id], now)
        };
        let deficit_of = |member: &Member| if is_suitable(member) { member.deficit } else { 0.0 };
        let indicator = |member: &Member| if is_suitable(member) { 1.0 } else { 0.0 };
        self.target_by(random_bits, deficit_of).or_else(|| self.target_by(random_bits, indicator))
    }

    /// Returns `true` if a session that leaves another member may go to this one.
    fn has_room(&self, member: &Member, tried: &[MemberId], now: Time) -> bool {
        let is_full = member.is_full() || (self.admission && member.is_at_limit(now));
        !is_full && !tried.contains(&member.id)
    }

    /// Draws a member with a chance in proportion to its pull.
    fn target_by(&self, random_bits: u64, weight_of: impl Fn(&Member) -> f64) -> Option<usize> {
        let (mut best, mut sum, mut bits) = (None, 0.0, random_bits);
        for (index, member) in self.members.iter().enumerate() {
            let weight = weight_of(member);
            if weight > 0.0 {
                sum += weight;
                bits = mix(bits);
                if best.is_none() || unit(bits) * sum < weight {
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
const MAX_LOAD_AFTER: f64 = 1.3;

/// The number of report periods after which a report is too old.
const LOAD_AGE_PERIODS: u32 = 4;

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
        for random_bits in 0..10_000 {
            counts[plan.target(mix(random_bits), &[], Time(0)).unwrap()] += 1;
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
        let exchange = SessionExchange::of(0.5, 100.0, &members[0].shed).expect("as large as the gap");
        let partner_at = |members: &[Member], now: Time| {
            let random = strategy::find("random").expect("a strategy of this name");
            let plan =
                Plan::new(random, StrategyParams::defaults(random), members.to_vec()).with_admission(true);
            let partner_for = |random_bits| plan.exchange_partner(exchange, 100.0, mix(random_bits), 0, now);
            let first_partner = partner_for(0);
            assert!(
                (1..100).all(|random_bits| partner_for(random_bits) == first_partner),
                "it depends on chance"
            );
            first_partner
        };
        let next_period = Time(0) + period;
        assert_eq!(partner_at(&members, next_period), None, "nobody knows who asks there");
        for (member, size) in members.iter().zip([50.0, 100.0, 50.0, 5.0]) {
            (0..4).for_each(|_| member.vitals.migration.asked(size));
        }
        assert_eq!(partner_at(&members, next_period), Some(2));
        assert_eq!(partner_at(&members, next_period + 4 * period), None, "who knows what it has by now?");
        members[2].load = None;
        assert_eq!(partner_at(&members, next_period), None, "or ever had");
        members[2].load = Some(ReportedLoad { value: 170.0, at: Time(0), of_host: false });
        assert_eq!(partner_at(&members, next_period), None, "it has much already");
        // If no member with a deficit helps, one with its share does.
        members[2].load = Some(ReportedLoad { value: 150.0, at: Time(0), of_host: false });
        members[2].deficit = 0.0;
        assert_eq!(partner_at(&members, next_period), Some(2));
        members[2].shed.share = 0.1;
        assert_eq!(partner_at(&members, next_period), None, "not one that has more");
        members[2].shed.share = 0.0;
        members[2].vitals.migration.record_arrival(60.0);
        assert_eq!(partner_at(&members, next_period), None, "one at a time");
        members[2].vitals.migration.record_report();
        members[2].vitals.migration.begin_plan(false);
        assert_eq!(partner_at(&members, next_period), Some(2));
        members[2].vitals.set_concurrency_limit(1);
        members[2].vitals.begin();
        assert_eq!(partner_at(&members, next_period), None, "it has too much to do");
    }

    #[test]
    fn nobody_fills_a_gap_twice() {
        let plan_with = |deficits: [f64; 4]| {
            let mut members = members(&[1.0; 4]);
            for (member, deficit) in members.iter_mut().zip(deficits) {
                member.deficit = deficit;
            }
            let strategy = strategy::find("random").expect("a strategy of this name");
            Plan::new(strategy, StrategyParams::defaults(strategy), members)
        };
        let distribute = |plan: &Plan, seed: u64, sessions: u64| {
            let mut counts = [0; 4];
            for session in 0..sessions {
                let index = plan.sized_rebind_target(0.1, mix(seed * 100 + session), &[], Time(0)).unwrap();
                plan.members()[index].vitals.migration.record_arrival(0.1);
                counts[index] += 1;
            }
            for Member { vitals, .. } in plan.members() {
                vitals.migration.record_report();
                vitals.migration.begin_plan(false);
            }
            counts
        };
        let plan = plan_with([1.0, 1.0, 2.0, 0.0]);
        for seed in 0..100 {
            // The shares are rounded, whichever member came first.
            let [first, second, third, last] = distribute(&plan, seed, 16);
            assert!(
                (3..=5).contains(&first)
                    && (3..=5).contains(&second)
                    && (7..=9).contains(&third)
                    && last == 0
            );
        }
        // A member with almost no deficit gets almost nothing, though no session came there.
        let plan = plan_with([0.98, 0.02, 1e-6, 0.0]);
        let totals = (0..100)
            .map(|seed| distribute(&plan, seed, 5))
            .fold([0; 4], |sum, counts| core::array::from_fn(|index| sum[index] + counts[index]));
        assert!(totals[0] >= 470 && (1..=30).contains(&totals[1]) && totals[2] == 0, "{totals:?}");
        // Sessions of unknown size move as if none had arrived.
        plan.members()[0].vitals.migration.record_arrival(5.0);
        assert!(
            (0..100).filter(|random_bits| plan.target(mix(*random_bits), &[], Time(0)) == Some(0)).count()
                > 90
        );
    }
}
