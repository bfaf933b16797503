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
                let limit = member.concurrency_limit(now).unwrap_or_default();
                match member.current_report(now) {
                    Some(view) if member.may_be_outdated(&view, now) => format!(
                        "had {limit} requests at its last load report, its concurrency limit; a request may \
                         be tried there if no other member has room and none waits"
                    ),
                    Some(_) => format!("has {limit} requests, its concurrency limit by its load reports"),
                    None => format!("has {limit} requests from this balancer, its learned concurrency limit"),
                }
            }
            RefusalReason::Group => {
                let limit = self.group_limit.load(Relaxed);
                format!("the group has {limit} requests from this balancer, its learned concurrency limit")
            }
        })
    }

    /// Returns `true` if members are compared by observation. `adaptive` does so if more members answer
    /// without load reports than with them.
    fn compares_by_observation(&self, now: Time) -> bool {
        let reporting_count =
            self.members.iter().filter(|member| member.current_report(now).is_some()).count();
        let is_silent = |member: &&Member| {
            !member.vitals.last_report.was_ever_received() && member.vitals.mean_latency().is_some()
        };
        reporting_count == 0 || self.members.iter().filter(is_silent).count() > reporting_count
    }

    /// Returns the figures of a member's admission that the strategy does not show, for display.
    pub(super) fn admission_figures(&self, member: &Member, now: Time) -> Vec<(&'static str, f64)> {
        let mut figures = Vec::new();
        if self.enforces_admission {
            let report = member.current_report(now);
            figures.extend(report.map(|report| ("knee", f64::from(report.reading.knee))));
            figures.extend(member.concurrency_limit(now).map(|limit| ("limit", f64::from(limit))));
            figures.extend(report.map(|report| ("queue", member.estimated_queue(&report, now))));
        }
        figures
    }

    /// Returns `true` if the members without load reports have reached their common limit.
    ///
    /// It is never `true` with a strategy that ignores load. There the weakest members would hold nearly all
    /// that the group may have while the others are idle. (In `tests/admission` round robin rejected three
    /// requests in four.)
    pub(crate) fn is_group_at_limit(&self, now: Time) -> bool {
        let group_limit = self.group_limit.load(Relaxed);
        let awaiting = |member: &Member| match member.vitals.limiting_report(now) {
            Some(_) => 0,
            None => member.vitals.awaiting_here(),
        };
        group_limit != 0 && self.strategy.prefers_less_load && self.sampled(awaiting) >= group_limit
    }

    /// Returns `true` if this balancer has almost no requests in flight at the members.
    ///
    /// It then gets hardly any answers, and its last load reports fade into the members' mean load. Where the
    /// mean is high, all members look full until the balancer asks. So it may ask: two requests too many from
    /// each balancer are negligible for the members, which can reject them. (With 200 balancers in front of
    /// 20 members at nine tenths of the capacity, balancers without reports rejected half of all requests,
    /// `tests/adaptive`.)
    pub fn is_nearly_idle(&self) -> bool {
        let mut awaiting_count = 0;
        self.members.iter().all(|member| {
            awaiting_count += member.vitals.awaiting_here();
            awaiting_count < NEARLY_IDLE_LIMIT
        })
    }

    /// Returns `true` if the plan enforces admission and the member must get nothing more.
    pub(super) fn is_barred(&self, member: &Member, request: &PickRequest) -> bool {
        let has_report = member.current_report(request.now).is_some();
        self.is_refused(member, self.is_group_at_limit(request.now), request)
            && !(has_report && self.is_nearly_idle())
    }

    /// Returns `true` if the member must get nothing more, even if this balancer is blind. `crowded`: the
    /// members without load reports have reached their common limit.
    fn is_refused(&self, member: &Member, group_full: bool, request: &PickRequest) -> bool {
        match member.vitals.limiting_report(request.now) {
            Some(_) => member.is_at_limit(request.now),
            None => !request.ignores_learnt_limits && (group_full || member.is_at_limit(request.now)),
        }
    }

    /// Returns the strategy's preference among the remaining members if its first choice is unavailable.
    #[cold]
    pub(super) fn second_best(
        &self,
        picker: &mut PickerState,
        request: &PickRequest,
        tried: &[MemberId],
    ) -> Choice {
        let is_available = |member: &Member| !member.is_full() && !tried.contains(&member.id);
        let (group_full, nearly_idle) = (
            self.enforces_admission && self.is_group_at_limit(request.now),
            self.enforces_admission && self.is_nearly_idle(),
        );
        let is_refused = |member: &Member| {
            self.is_refused(member, group_full, request)
                && !(nearly_idle && member.current_report(request.now).is_some())
        };
        let has_room =
            |member: &Member| is_available(member) && !(self.enforces_admission && is_refused(member));
        let not_on_trial = |member: &Member| has_room(member) && !member.is_on_trial(request.now);
        let candidate = match request.single_attempt {
            true => (self.strategy.second_choice)(self, picker, request, &not_on_trial)
                .or_else(|| (self.strategy.second_choice)(self, picker, request, &has_room)),
            false => (self.strategy.second_choice)(self, picker, request, &has_room),
        };
        match candidate {
            Some(index) => Choice::Member(index),
            None if self.members.iter().all(|member| tried.contains(&member.id)) => Choice::NoMember,
            None if self.members.iter().any(is_available) => self.try_stale_report(request, is_available),
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
    fn try_stale_report(&self, request: &PickRequest, is_available: impl Fn(&Member) -> bool) -> Choice {
        // If most members send no load reports, those that do are under the group's limit, too.
        let group_limited = !self.enforces_admission
            && self.is_group_at_limit(request.now)
            && self.compares_by_observation(request.now);
        if !request.may_try_stale || group_limited {
            return Choice::Shed;
        }
        let may_be_tried = |member: &Member, accepts_report: &dyn Fn(&Member, &ReportView) -> bool| {
            is_available(member)
                && member.current_report(request.now).is_some_and(|view| accepts_report(member, &view))
                && !(request.single_attempt && member.is_on_trial(request.now))
        };
        // In a large group the strategy has not looked at all members.
        let has_room = |member: &Member, _: &ReportView| !member.is_at_limit(request.now);
        let may_have = |member: &Member, view: &ReportView| member.may_be_outdated(view, request.now);
        for accepts_report in [&has_room as &dyn Fn(&Member, &ReportView) -> bool, &may_have] {
            let eligible_members =
                || self.members.iter().enumerate().filter(|(_, member)| may_be_tried(member, accepts_report));
            let drawn_index = unit(mix(request.random_bits)) * eligible_members().count() as f64;
            if let Some((index, _)) = eligible_members().nth(drawn_index as usize) {
                return Choice::Member(index);
            }
        }
        Choice::Shed
    }
}

/// The number of requests from here up to which a member's load report does not bar it.
const NEARLY_IDLE_LIMIT: u32 = 2;

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
        let mut picker = PickerState::default();
        for turn in 0..100 {
            let request = PickRequest {
                turn,
                random_bits: mix(turn),
                key: mix(!turn),
                now: Time(1),
                ..PickRequest::default()
            };
            match plan.choose(&mut picker, &request, &[]) {
                Choice::Member(index) => plan.members()[index].vitals.begin(),
                refusal => return (plan.members().iter().map(Member::in_flight).collect(), refusal),
            };
        }
        panic!("{}: there is no end", plan.strategy().name)
    }

    #[test]
    fn who_says_nothing_gets_no_more_than_was_found_to_be_enough() {
        for strategy in strategy::ALL.iter().filter(|strategy| !strategy.enforces_limits) {
            let plan = plan(strategy, 3);
            for (member, limit) in plan.members().iter().zip([2, 5, 3]) {
                member.vitals.set_concurrency_limit(limit);
            }
            let (in_flight_counts, choice) = fill(&plan);
            assert_eq!((&in_flight_counts[..], choice), (&[2, 5, 3][..], Choice::Shed), "{}", strategy.name);
            assert_eq!(plan.refusal_reason(&plan.members()[0], Time(1)), Some(RefusalReason::Member));
            let message = plan.refusal_message(&plan.members()[0], Time(1)).expect("it is at its ceiling");
            assert_eq!(message, "has 2 requests from this balancer, its learned concurrency limit");
        }
    }

    #[test]
    fn all_together_get_no_more_than_was_found_to_be_enough() {
        for strategy in strategy::ALL.iter().filter(|strategy| strategy.prefers_less_load) {
            let plan = plan(strategy, 4).with_group_limit(Arc::new(AtomicU32::new(7)));
            let (in_flight_counts, choice) = fill(&plan);
            assert_eq!((in_flight_counts.iter().sum(), choice), (7_u32, Choice::Shed), "{}", strategy.name);
            let message = plan.refusal_message(&plan.members()[0], Time(1)).expect("there are enough");
            assert!(message.starts_with("the group has 7 requests from this balancer"), "{message}");
        }
        // The same with one member that sends load reports.
        let adaptive_plan = plan(strategy::find("adaptive").expect("it is there"), 4)
            .with_group_limit(Arc::new(AtomicU32::new(7)));
        let (mut picker, now) = (PickerState::default(), Time(1));
        adaptive_plan.members().iter().for_each(|member| {
            _ = adaptive_plan.observe(&mut picker, &member.vitals, Duration::from_millis(9), false, now)
        });
        let reading = Reading { knee: 9.0, work: 0.1, sojourn: 0.1, ..Default::default() };
        adaptive_plan.record_report(&mut picker, 0, &reading, now);
        (0..7).for_each(|_| _ = adaptive_plan.members()[1].vitals.begin());
        for may_try_stale in [false, true] {
            let request = PickRequest { now, may_try_stale, ..PickRequest::default() };
            assert_eq!(adaptive_plan.choose(&mut picker, &request, &[]), Choice::Shed, "{may_try_stale}");
        }
        for member in &adaptive_plan.members()[1..] {
            assert_eq!(adaptive_plan.refusal_reason(member, now), Some(RefusalReason::Group));
            assert!(
                adaptive_plan
                    .refusal_message(member, now)
                    .is_some_and(|message| message.starts_with("the group has 7 requests"))
            );
        }
        let round_robin_plan = plan(strategy::find("round_robin").expect("it is there"), 4);
        let round_robin_plan = round_robin_plan.with_group_limit(Arc::new(AtomicU32::new(7)));
        round_robin_plan.members().iter().for_each(|member| member.vitals.set_concurrency_limit(5));
        assert_eq!(fill(&round_robin_plan).0, [5; 4], "a weak member would have it all");
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
        let (report_time, before_expiry, after_expiry) = (Time(1), Time(100_000_000), Time(300_000_000));
        for strategy in strategy::ALL {
            let plan = plan(strategy, 2);
            let mut picker = PickerState::default();
            // More than the few requests that a balancer may always send.
            for member in plan.members() {
                (0..3).for_each(|_| _ = member.vitals.begin());
            }
            plan.record_report(&mut picker, 0, &reading(9), report_time);
            plan.record_report(&mut picker, 1, &reading(9), Time(2));
            let mut choose_at = |now, may_try_stale, random_bits| {
                plan.choose(
                    &mut picker,
                    &PickRequest { now, may_try_stale, random_bits, ..PickRequest::default() },
                    &[],
                )
            };
            let name = strategy.name;
            let choices = [
                choose_at(before_expiry, true, 0),
                choose_at(before_expiry, false, 0),
                choose_at(after_expiry, false, 0),
            ];
            assert_eq!(choices, [Choice::Shed; 3], "{name}");
            // Balancers that share their state may know the same of all members.
            let first = (0..100)
                .filter(|random_bits| choose_at(after_expiry, true, *random_bits) == Choice::Member(0))
                .count();
            let second = (0..100)
                .filter(|random_bits| choose_at(after_expiry, true, *random_bits) == Choice::Member(1))
                .count();
            assert!(first + second == 100 && (30..70).contains(&first), "{name}: {first} and {second}");
            let message = plan.refusal_message(&plan.members()[0], after_expiry).unwrap_or_default();
            assert!(message.contains("last load report"), "{name}: {message}");
            // The member reports at once that it is still full.
            plan.record_report(&mut picker, 0, &reading(9), after_expiry);
            let request = PickRequest { now: after_expiry, may_try_stale: true, ..PickRequest::default() };
            assert_eq!(plan.choose(&mut picker, &request, &[]), Choice::Member(1), "{name}");
            assert_eq!(plan.choose(&mut picker, &request, &[MemberId(1)]), Choice::Shed, "{name}");
            plan.members()[1].vitals.begin();
            assert_eq!(plan.choose(&mut picker, &request, &[]), Choice::Shed, "{name}: it is being asked");
            (0..4).for_each(|_| _ = plan.members()[1].vitals.begin());
            plan.record_report(&mut picker, 1, &reading(9), after_expiry);
            let request = PickRequest { now: Time(900_000_000), ..request };
            let choice = plan.choose(&mut picker, &request, &[MemberId(0)]);
            assert_eq!(choice, Choice::Shed, "{name}: as many are there from here");
        }
    }

    #[test]
    fn one_with_room_is_found_among_many_before_one_that_may_have_some() {
        let full_reading = Reading {
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
            let mut picker = PickerState::default();
            for member in plan.members() {
                (0..3).for_each(|_| _ = member.vitals.begin());
            }
            (0..200).for_each(|member| plan.record_report(&mut picker, member, &full_reading, Time(1)));
            plan.record_report(
                &mut picker,
                77,
                &Reading { in_flight: 3, mean_in_flight: 3.0, ..full_reading },
                now,
            );
            for turn in 0..50 {
                let request = PickRequest {
                    turn,
                    random_bits: mix(turn),
                    key: mix(!turn),
                    now,
                    may_try_stale: true,
                    ..PickRequest::default()
                };
                assert_eq!(plan.choose(&mut picker, &request, &[]), Choice::Member(77), "{}", strategy.name);
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
                let has_latency = vitals.mean_latency().is_some();
                assert_eq!(has_latency, admission || strategy.reads_latency, "{}", strategy.name);
                let mut picker = PickerState::default();
                let reading = Reading { knee: 3.0, work: 0.1, sojourn: 0.1, ..Default::default() };
                plan.record_report(&mut picker, 0, &reading, Time(1));
                plan.observe(&mut picker, vitals, millisecond, false, Time(1));
                let has_report = vitals.last_report.view().is_some();
                assert!(has_report || !admission, "{}", strategy.name);
                let has_sojourn = !plan.drain_rate(&picker).sojourn.is_zero();
                assert!(has_sojourn || !admission, "{}: nobody would wait for room", strategy.name);
            }
        }
    }
}
