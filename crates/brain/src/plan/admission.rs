//! Admission: keeps each member within its concurrency limit (`member/headroom.rs`). Members without load
//! reports also share one limit, which `analyzer/overload.rs` learns. A request that no member can accept
//! waits or is rejected, because it would only slow down the requests in flight.
//!
//! `adaptive` checks the limits as it chooses. For every other strategy the plan checks the member that the
//! strategy chose, and if that member is full the remaining ones, so that a strategy need not know of
//! admission. Admission is usually off for them; then a request costs only the check of one flag.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

use super::{Choice, Plan};
use crate::hash::unit;
use crate::member::last_report::ReportView;
use crate::{Member, MemberId, PickRequest, PickerState, Time, mix};

/// A reason why a member gets nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefusalReason {
    /// Its `max_rate` is used up.
    Rate,
    /// It is back from an ejection, and the one request that it is tried with is in flight.
    Trial,
    /// It has as many requests at once as its limit allows.
    Limit,
    /// Its load is at the `reject` of the strategy.
    Reject,
    /// Its concurrency limit is reached.
    Member,
    /// The concurrency limit of all members without load reports together is reached.
    Group,
}

impl RefusalReason {
    /// Returns its name in status and metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Rate => "max_rate",
            Self::Trial => "trial",
            Self::Limit => "limit",
            Self::Reject => "reject",
            Self::Member => "member_full",
            Self::Group => "group_full",
        }
    }
}

impl Plan {
    /// Sets whether members are kept within their concurrency limits. Without this call the strategy's
    /// default applies.
    pub fn with_admission(self, admission: bool) -> Self {
        Self { admission, enforces_admission: admission && !self.strategy.enforces_limits, ..self }
    }

    /// Sets the latency objective of the clients: a request that no member can accept waits only while an
    /// answer in time is possible ([`DrainRate::wait`](crate::DrainRate)). A short objective does not lower
    /// the members' limits. A member that is never filled answers no faster, and its capacity cannot be
    /// learnt.
    pub fn with_objective(self, objective: Option<Duration>) -> Self {
        Self { objective, ..self }
    }

    /// Returns `true` if members are kept within their concurrency limits.
    pub fn has_admission(&self) -> bool {
        self.admission
    }

    /// Returns `true` if the member at this index has reached its concurrency limit; `false` without
    /// admission.
    pub fn is_at_limit(&self, index: usize, now: Time) -> bool {
        self.admission && self.members.get(index).is_some_and(|member| member.is_at_limit(now))
    }

    /// Returns the reason why a member of the plan gets nothing more at the moment; `None` if it does.
    pub fn refusal_reason(&self, member: &Member, now: Time) -> Option<RefusalReason> {
        if member.is_full() {
            return Some(match () {
                () if member.vitals.is_rate_exhausted() => RefusalReason::Rate,
                () if member.has_trial_in_flight() => RefusalReason::Trial,
                () => RefusalReason::Limit,
            });
        }
        if (self.strategy.refusal_message)(self, member).is_some() {
            return Some(RefusalReason::Reject);
        }
        if self.admission && member.is_at_limit(now) {
            return Some(RefusalReason::Member);
        }
        let limited = member.vitals.limiting_report(now).is_some();
        (self.admission && !limited && self.is_group_at_limit(now)).then_some(RefusalReason::Group)
    }

    /// Returns that reason in a sentence.
    pub fn refusal_message(&self, member: &Member, now: Time) -> Option<String> {
        Some(match self.refusal_reason(member, now)? {
            RefusalReason::Rate => "has reached its max_rate".into(),
            RefusalReason::Trial => {
                "back from its ejection, with the one request in flight that it is tried with".into()
            }
            RefusalReason::Limit => format!("at its limit of {} at once", member.max_in_flight()),
            RefusalReason::Reject => (self.strategy.refusal_message)(self, member)?,
            RefusalReason::Member => {
                let most = member.concurrency_limit(now).unwrap_or_default();
                match member.current_report(now) {
                    Some(view) if member.may_be_outdated(&view, now) => format!(
                        "had {most} requests at its last load report, its concurrency limit; a request may \
                         be tried there if no other member has room and none waits"
                    ),
                    Some(_) => format!("has {most} requests, its concurrency limit by its load reports"),
                    None => format!("has {most} requests from this balancer, its learned concurrency limit"),
                }
            }
            RefusalReason::Group => {
                let most = self.group_limit.load(Relaxed);
                format!("the group has {most} requests from this balancer, its learned concurrency limit")
            }
        })
    }

    /// Returns `true` if members are compared by observation. `adaptive` does so if more members answer
    /// without load reports than with them.
    fn compares_by_observation(&self, now: Time) -> bool {
        let spoke = self.members.iter().filter(|member| member.current_report(now).is_some()).count();
        let mute = |member: &&Member| {
            !member.vitals.last_report.was_ever_received() && member.vitals.mean_latency().is_some()
        };
        spoke == 0 || self.members.iter().filter(mute).count() > spoke
    }

    /// Returns the figures of a member's admission that the strategy does not show, for display.
    pub(super) fn admission_figures(&self, member: &Member, now: Time) -> Vec<(&'static str, f64)> {
        let mut figures = Vec::new();
        if self.enforces_admission {
            let said = member.current_report(now);
            figures.extend(said.map(|said| ("knee", f64::from(said.reading.knee))));
            figures.extend(member.concurrency_limit(now).map(|most| ("limit", f64::from(most))));
            figures.extend(said.map(|said| ("queue", member.estimated_queue(&said, now))));
        }
        figures
    }

    /// Returns `true` if the members without load reports have reached their common limit.
    ///
    /// It is never `true` with a strategy that ignores load. There the weakest members would hold nearly all
    /// that the group may have while the others are idle. (In `tests/admission` round robin rejected three
    /// requests in four.)
    pub(crate) fn is_group_at_limit(&self, now: Time) -> bool {
        let most = self.group_limit.load(Relaxed);
        let awaiting = |member: &Member| match member.vitals.limiting_report(now) {
            Some(_) => 0,
            None => member.vitals.awaiting_here(),
        };
        most != 0 && self.strategy.prefers_less_load && self.sampled(awaiting) >= most
    }

    /// Returns `true` if this balancer has almost no requests in flight at the members.
    ///
    /// It then gets hardly any answers, and its last load reports fade into the members' mean load. Where the
    /// mean is high, all members look full until the balancer asks. So it may ask: two requests too many from
    /// each balancer are negligible for the members, which can reject them. (With 200 balancers in front of
    /// 20 members at nine tenths of the capacity, balancers without reports rejected half of all requests,
    /// `tests/adaptive`.)
    pub fn is_nearly_idle(&self) -> bool {
        let mut seen = 0;
        self.members.iter().all(|member| {
            seen += member.vitals.awaiting_here();
            seen < FEW
        })
    }

    /// Returns `true` if the plan enforces admission and the member must get nothing more.
    pub(super) fn is_barred(&self, member: &Member, ask: &PickRequest) -> bool {
        let speaks = member.current_report(ask.now).is_some();
        self.bars(member, self.is_group_at_limit(ask.now), ask) && !(speaks && self.is_nearly_idle())
    }

    /// Returns `true` if the member must get nothing more, even if this balancer is blind. `crowded`: the
    /// members without load reports have reached their common limit.
    fn bars(&self, member: &Member, crowded: bool, ask: &PickRequest) -> bool {
        match member.vitals.limiting_report(ask.now) {
            Some(_) => member.is_at_limit(ask.now),
            None => !ask.ignores_learnt_limits && (crowded || member.is_at_limit(ask.now)),
        }
    }

    /// Returns the strategy's preference among the remaining members if its first choice is unavailable.
    #[cold]
    pub(super) fn second_best(
        &self,
        hand: &mut PickerState,
        ask: &PickRequest,
        tried: &[MemberId],
    ) -> Choice {
        let below = |member: &Member| !member.is_full() && !tried.contains(&member.id);
        let (crowded, blind) = (
            self.enforces_admission && self.is_group_at_limit(ask.now),
            self.enforces_admission && self.is_nearly_idle(),
        );
        let bars = |member: &Member| {
            self.bars(member, crowded, ask) && !(blind && member.current_report(ask.now).is_some())
        };
        let left = |member: &Member| below(member) && !(self.enforces_admission && bars(member));
        let seasoned = |member: &Member| left(member) && !member.is_on_trial(ask.now);
        let found = match ask.single_attempt {
            true => (self.strategy.second_choice)(self, hand, ask, &seasoned)
                .or_else(|| (self.strategy.second_choice)(self, hand, ask, &left)),
            false => (self.strategy.second_choice)(self, hand, ask, &left),
        };
        match found {
            Some(index) => Choice::Member(index),
            None if self.members.iter().all(|member| tried.contains(&member.id)) => Choice::NoMember,
            None if self.members.iter().any(below) => self.try_stale_report(ask, below),
            None => Choice::Full,
        }
    }

    /// Tries a member whose last load report is so old, in requests of its own, that it may have room again.
    ///
    /// With many balancers and few members, each balancer seldom gets an answer of a member. Its report fades
    /// into the mean, which near the capacity is about the limit. All members then look full, and nothing
    /// informs a waiting client. (At nine tenths of the capacity of 20 members, 60 balancers rejected 0.7 %
    /// of all requests for that. With 200 balancers it was 1.2 %, `tests/adaptive`.) The draw is random,
    /// because balancers that share their state may know the same of all members.
    fn try_stale_report(&self, ask: &PickRequest, below: impl Fn(&Member) -> bool) -> Choice {
        // If most members send no load reports, those that do are under the group's limit, too.
        let limited = !self.enforces_admission
            && self.is_group_at_limit(ask.now)
            && self.compares_by_observation(ask.now);
        if !ask.may_try_stale || limited {
            return Choice::Shed;
        }
        let speaks = |member: &Member, may: &dyn Fn(&Member, &ReportView) -> bool| {
            below(member)
                && member.current_report(ask.now).is_some_and(|view| may(member, &view))
                && !(ask.single_attempt && member.is_on_trial(ask.now))
        };
        // In a large group the strategy has not looked at all members.
        let has_room = |member: &Member, _: &ReportView| !member.is_at_limit(ask.now);
        let may_have = |member: &Member, view: &ReportView| member.may_be_outdated(view, ask.now);
        for may in [&has_room as &dyn Fn(&Member, &ReportView) -> bool, &may_have] {
            let those = || self.members.iter().enumerate().filter(|(_, member)| speaks(member, may));
            let drawn = unit(mix(ask.random_bits)) * those().count() as f64;
            if let Some((index, _)) = those().nth(drawn as usize) {
                return Choice::Member(index);
            }
        }
        Choice::Shed
    }
}

/// The number of requests from here up to which a member's load report does not bar it.
const FEW: u32 = 2;

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use core::sync::atomic::AtomicU32;

    use super::*;
    use crate::meter::Reading;
    use crate::plan::tests::members;
    use crate::{Strategy, StrategyParams, strategy};

    fn plan(strategy: &'static Strategy, count: usize) -> Plan {
        let members = members(&[1.0; 8][..count]);
        Plan::new(strategy, StrategyParams::defaults(strategy), members).with_admission(true)
    }

    /// Chooses until no member has room. Returns the requests of each member and the last outcome.
    fn fill(plan: &Plan) -> (Vec<u32>, Choice) {
        let mut hand = PickerState::default();
        for turn in 0..100 {
            let ask = PickRequest {
                turn,
                random_bits: mix(turn),
                key: mix(!turn),
                now: Time(1),
                ..PickRequest::default()
            };
            match plan.choose(&mut hand, &ask, &[]) {
                Choice::Member(index) => plan.members()[index].vitals.begin(),
                none => return (plan.members().iter().map(Member::in_flight).collect(), none),
            };
        }
        panic!("{}: there is no end", plan.strategy().name)
    }

    #[test]
    fn who_says_nothing_gets_no_more_than_was_found_to_be_enough() {
        for strategy in strategy::ALL.iter().filter(|strategy| !strategy.enforces_limits) {
            let plan = plan(strategy, 3);
            for (member, ceiling) in plan.members().iter().zip([2, 5, 3]) {
                member.vitals.set_concurrency_limit(ceiling);
            }
            let (got, told) = fill(&plan);
            assert_eq!((&got[..], told), (&[2, 5, 3][..], Choice::Shed), "{}", strategy.name);
            assert_eq!(plan.refusal_reason(&plan.members()[0], Time(1)), Some(RefusalReason::Member));
            let why = plan.refusal_message(&plan.members()[0], Time(1)).expect("it is at its ceiling");
            assert_eq!(why, "has 2 requests from this balancer, its learned concurrency limit");
        }
    }

    #[test]
    fn all_together_get_no_more_than_was_found_to_be_enough() {
        for strategy in strategy::ALL.iter().filter(|strategy| strategy.prefers_less_load) {
            let plan = plan(strategy, 4).with_group_limit(Arc::new(AtomicU32::new(7)));
            let (got, told) = fill(&plan);
            assert_eq!((got.iter().sum(), told), (7_u32, Choice::Shed), "{}", strategy.name);
            let why = plan.refusal_message(&plan.members()[0], Time(1)).expect("there are enough");
            assert!(why.starts_with("the group has 7 requests from this balancer"), "{why}");
        }
        // The same with one member that sends load reports.
        let some = plan(strategy::find("adaptive").expect("it is there"), 4)
            .with_group_limit(Arc::new(AtomicU32::new(7)));
        let (mut hand, now) = (PickerState::default(), Time(1));
        some.members().iter().for_each(|member| {
            _ = some.observe(&mut hand, &member.vitals, Duration::from_millis(9), false, now)
        });
        let reading = Reading { knee: 9.0, work: 0.1, sojourn: 0.1, ..Default::default() };
        some.record_report(&mut hand, 0, &reading, now);
        (0..7).for_each(|_| _ = some.members()[1].vitals.begin());
        for venture in [false, true] {
            let ask = PickRequest { now, may_try_stale: venture, ..PickRequest::default() };
            assert_eq!(some.choose(&mut hand, &ask, &[]), Choice::Shed, "{venture}");
        }
        for member in &some.members()[1..] {
            assert_eq!(some.refusal_reason(member, now), Some(RefusalReason::Group));
            assert!(
                some.refusal_message(member, now)
                    .is_some_and(|why| why.starts_with("the group has 7 requests"))
            );
        }
        let even = plan(strategy::find("round_robin").expect("it is there"), 4);
        let even = even.with_group_limit(Arc::new(AtomicU32::new(7)));
        even.members().iter().for_each(|member| member.vitals.set_concurrency_limit(5));
        assert_eq!(fill(&even).0, [5; 4], "a weak member would have it all");
    }

    #[test]
    fn who_was_full_a_while_ago_is_asked_again_where_no_other_has_room() {
        let reading = |in_flight: u32| Reading {
            in_flight,
            knee: 4.0,
            work: 0.1,
            mean_in_flight: 9.0,
            sojourn: 0.1,
            ..Reading::default()
        };
        let (then, soon, late) = (Time(1), Time(100_000_000), Time(300_000_000));
        for strategy in strategy::ALL {
            let plan = plan(strategy, 2);
            let mut hand = PickerState::default();
            // More than the few requests that a balancer may always send.
            for member in plan.members() {
                (0..3).for_each(|_| _ = member.vitals.begin());
            }
            plan.record_report(&mut hand, 0, &reading(9), then);
            plan.record_report(&mut hand, 1, &reading(9), Time(2));
            let mut told = |now, venture, chance| {
                plan.choose(
                    &mut hand,
                    &PickRequest {
                        now,
                        may_try_stale: venture,
                        random_bits: chance,
                        ..PickRequest::default()
                    },
                    &[],
                )
            };
            let name = strategy.name;
            let now = [told(soon, true, 0), told(soon, false, 0), told(late, false, 0)];
            assert_eq!(now, [Choice::Shed; 3], "{name}");
            // Balancers that share their state may know the same of all members.
            let first = (0..100).filter(|chance| told(late, true, *chance) == Choice::Member(0)).count();
            let second = (0..100).filter(|chance| told(late, true, *chance) == Choice::Member(1)).count();
            assert!(first + second == 100 && (30..70).contains(&first), "{name}: {first} and {second}");
            let says = plan.refusal_message(&plan.members()[0], late).unwrap_or_default();
            assert!(says.contains("last load report"), "{name}: {says}");
            // The member reports at once that it is still full.
            plan.record_report(&mut hand, 0, &reading(9), late);
            let ask = PickRequest { now: late, may_try_stale: true, ..PickRequest::default() };
            assert_eq!(plan.choose(&mut hand, &ask, &[]), Choice::Member(1), "{name}");
            assert_eq!(plan.choose(&mut hand, &ask, &[MemberId(1)]), Choice::Shed, "{name}");
            plan.members()[1].vitals.begin();
            assert_eq!(plan.choose(&mut hand, &ask, &[]), Choice::Shed, "{name}: it is being asked");
            (0..4).for_each(|_| _ = plan.members()[1].vitals.begin());
            plan.record_report(&mut hand, 1, &reading(9), late);
            let ask = PickRequest { now: Time(900_000_000), ..ask };
            let told = plan.choose(&mut hand, &ask, &[MemberId(0)]);
            assert_eq!(told, Choice::Shed, "{name}: as many are there from here");
        }
    }

    #[test]
    fn one_with_room_is_found_among_many_before_one_that_may_have_some() {
        let full = Reading {
            in_flight: 9,
            knee: 4.0,
            work: 0.1,
            mean_in_flight: 9.0,
            sojourn: 0.1,
            ..Reading::default()
        };
        let now = Time(300_000_000);
        for strategy in strategy::ALL {
            let members = members(&[1.0; 200]);
            let plan = Plan::new(strategy, StrategyParams::defaults(strategy), members).with_admission(true);
            let mut hand = PickerState::default();
            for member in plan.members() {
                (0..3).for_each(|_| _ = member.vitals.begin());
            }
            (0..200).for_each(|member| plan.record_report(&mut hand, member, &full, Time(1)));
            plan.record_report(&mut hand, 77, &Reading { in_flight: 3, mean_in_flight: 3.0, ..full }, now);
            for turn in 0..50 {
                let ask = PickRequest {
                    turn,
                    random_bits: mix(turn),
                    key: mix(!turn),
                    now,
                    may_try_stale: true,
                    ..PickRequest::default()
                };
                assert_eq!(plan.choose(&mut hand, &ask, &[]), Choice::Member(77), "{}", strategy.name);
            }
        }
    }

    #[test]
    fn a_limit_of_connections_is_told_from_that() {
        for strategy in strategy::ALL {
            let mut members = members(&[1.0; 3]);
            members.iter_mut().for_each(|member| member.limit = 2);
            let plan = Plan::new(strategy, StrategyParams::defaults(strategy), members).with_admission(true);
            assert_eq!(fill(&plan), (Vec::from([2, 2, 2]), Choice::Full), "{}", strategy.name);
            plan.members().iter().for_each(|member| member.vitals.set_concurrency_limit(2));
            assert_eq!(fill(&plan).1, Choice::Full, "{}", strategy.name);
        }
    }

    #[test]
    fn what_limits_are_found_by_is_kept() {
        let millisecond = Duration::from_millis(1);
        for strategy in strategy::ALL {
            for admission in [false, true] {
                let plan = plan(strategy, 1).with_admission(admission);
                let vitals = &plan.members()[0].vitals;
                plan.observe(&mut PickerState::default(), vitals, millisecond, false, Time(1));
                let kept = vitals.mean_latency().is_some();
                assert_eq!(kept, admission || strategy.reads_latency, "{}", strategy.name);
                let mut hand = PickerState::default();
                let reading = Reading { knee: 3.0, work: 0.1, sojourn: 0.1, ..Default::default() };
                plan.record_report(&mut hand, 0, &reading, Time(1));
                plan.observe(&mut hand, vitals, millisecond, false, Time(1));
                let heard = vitals.last_report.view().is_some();
                assert!(heard || !admission, "{}", strategy.name);
                let waits = !plan.drain_rate(&hand).sojourn.is_zero();
                assert!(waits || !admission, "{}: nobody would wait for room", strategy.name);
            }
        }
    }
}
