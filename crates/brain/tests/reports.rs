//! The effects of load reports on a plan, as scenarios.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::{
    Analyzer, Choice, Event, EventKind, GroupSpec, LoadAlert, MemberId, MemberSpec, PickRequest, PickerState,
    Plan, ReportedLoad, ShedDecision, StrategyParams, Time, UsageReport, WhenAllDown, mix, strategy,
};

const A: MemberId = MemberId(0);
const B: MemberId = MemberId(1);
const C: MemberId = MemberId(2);

fn at(seconds: f64) -> Time {
    Time(0) + Duration::from_secs_f64(seconds)
}

fn spec(strategy: &str, capacities: &[f64]) -> GroupSpec {
    let strategy = strategy::find(strategy).expect("a strategy of this name");
    let member = |(index, capacity): (usize, &f64)| MemberSpec {
        name: Arc::from(["a", "b", "c", "d"][index]),
        address: "10.0.0.1:80".parse().expect("an address"),
        capacity: *capacity,
        limit: u32::MAX,
        leaving: false,
        checked: false,
    };
    GroupSpec {
        name: Arc::from("web"),
        strategy,
        params: StrategyParams::defaults(strategy),
        members: capacities.iter().enumerate().map(member).collect(),
        health: None,
        outlier: None,
        slow_start: Duration::ZERO,
        when_all_down: WhenAllDown::Reject,
        admission: None,
        objective: None,
        aperture: None,
    }
}

struct Group {
    analyzer: Analyzer,
    plan: Plan,
    plans: u32,
    events: Vec<Event>,
}

impl Group {
    fn new(strategy: &str, capacities: &[f64]) -> Self {
        let mut analyzer = Analyzer::new(spec(strategy, capacities), at(0.0));
        analyzer.set_on_demand(true, at(0.0));
        let plan = analyzer.plan(at(0.0)).expect("the first call gives a plan");
        Self { analyzer, plan, plans: 1, events: Vec::new() }
    }

    /// Advances the time as a shell does: wakes the analyzer at its timeouts, takes plans and events.
    fn until(&mut self, seconds: f64) {
        loop {
            let end = at(seconds);
            let now = self.analyzer.poll_timeout().map_or(end, |due| due.min(end));
            self.analyzer.handle_timeout(now);
            if let Some(plan) = self.analyzer.plan(now) {
                self.plan = plan;
                self.plans += 1;
            }
            self.events.extend(std::iter::from_fn(|| self.analyzer.poll_event()));
            if now >= at(seconds) {
                return;
            }
        }
    }

    fn load(&mut self, seconds: f64, member: MemberId, value: f64) {
        assert!(self.analyzer.handle_load(member, ReportedLoad { value, at: at(seconds), of_host: false }));
        self.until(seconds);
    }

    fn usage(&mut self, seconds: f64, member: MemberId, rps: f64, utilization: f64) {
        let usage = UsageReport { rps, utilization, eps: 0.0, at: at(seconds) };
        assert!(self.analyzer.handle_usage(member, usage, at(seconds)));
        self.until(seconds);
    }

    fn effective(&self, member: usize) -> Option<f64> {
        self.plan.members()[member].effective.map(|effective| effective.value)
    }

    /// Returns how often each member is chosen in 600 turns.
    fn turns(&self) -> Vec<u32> {
        let mut counts = vec![0; self.plan.members().len()];
        for turn in 0..600 {
            let ask = PickRequest { turn, random_bits: mix(turn), ..PickRequest::default() };
            let Choice::Member(index) = self.plan.choose(&mut PickerState::default(), &ask, &[]) else {
                panic!("nobody")
            };
            counts[index] += 1;
        }
        counts
    }
}

#[test]
fn a_report_that_ages_becomes_the_mean_and_then_nothing() {
    let mut group = Group::new("least_loaded", &[1.0; 3]);
    for second in 0..40 {
        let second = f64::from(second);
        if second < 10.0 {
            group.load(second, A, 1.0);
        }
        group.load(second, B, 5.0);
        group.load(second, C, 7.0);
    }
    // Its report of 1 is ten seconds old; it counts less from two seconds on, and not at all after ten.
    assert_eq!(group.effective(0), None);
    assert_eq!((group.effective(1), group.effective(2)), (Some(5.0), Some(7.0)));
    assert!(group.plan.members()[0].load.is_some_and(|load| load.value == 1.0), "for people to see");

    let mut group = Group::new("least_loaded", &[1.0; 3]);
    for second in 0..15 {
        let second = f64::from(second);
        if second < 10.0 {
            group.load(second, A, 1.0);
        }
        group.load(second, B, 5.0);
        group.load(second, C, 7.0);
    }
    let half = group.effective(0).expect("five seconds old");
    assert!((3.0..5.5).contains(&half), "{half} is on the way from 1 to the mean of the others");
    // After a new report nothing of that is left.
    group.load(15.0, A, 2.0);
    assert_eq!(group.effective(0), Some(2.0));
}

#[test]
fn when_all_fall_silent_shares_are_static() {
    let mut group = Group::new("least_loaded", &[1.0, 2.0, 3.0]);
    for second in 0..5 {
        for (member, load) in [(A, 0.1), (B, 0.5), (C, 0.9)] {
            group.load(f64::from(second), member, load);
        }
    }
    assert_eq!(group.turns(), [600, 0, 0]);
    group.until(100.0);
    let turns = group.turns();
    for (turns, share) in turns.iter().zip([100, 200, 300]) {
        assert!(turns.abs_diff(share) < 50, "{turns:?}");
    }
    assert_eq!(group.analyzer.poll_timeout(), None, "there is nothing left to wait for");
}

#[test]
fn a_member_in_slow_start_is_not_flooded() {
    let mut group = Group::new("least_loaded", &[1.0; 4]);
    let slow = GroupSpec { slow_start: Duration::from_secs(100), ..spec("least_loaded", &[1.0; 4]) };
    group.analyzer.update(slow, at(0.0));
    group.analyzer.drain("a", at(1.0)).unwrap();
    group.analyzer.undrain("a", at(2.0)).unwrap();
    for second in 2..20 {
        for (member, load) in [(A, 0.0), (B, 0.5), (C, 0.6), (MemberId(3), 0.7)] {
            group.load(f64::from(second), member, load);
        }
    }
    // A quarter of its share so far.
    let turns = group.turns();
    assert!((20..80).contains(&turns[0]) && turns[1] == 600 - turns[0], "{turns:?}");
    for (member, load) in [(A, 0.0), (B, 0.5), (C, 0.6), (MemberId(3), 0.7)] {
        group.load(103.0, member, load);
    }
    group.until(104.0);
    assert_eq!(group.turns(), [600, 0, 0, 0]);
}

#[test]
fn a_flood_of_reports_makes_few_plans() {
    let mut group = Group::new("least_loaded", &[1.0; 3]);
    for report in 0..10_000 {
        group.load(f64::from(report) / 10_000.0, A, f64::from(report % 7));
    }
    assert!((8..=12).contains(&group.plans), "{} plans in a second", group.plans);
    // Reports make no new plan for a strategy that reads none.
    let mut group = Group::new("least_connections", &[1.0; 3]);
    for report in 0..1_000 {
        group.load(f64::from(report) / 100.0, A, 1.0);
    }
    assert_eq!(group.plans, 1);
}

#[test]
fn weights_by_report_begin_late_and_end() {
    let mut group = Group::new("weighted_round_robin", &[1.0, 1.0, 2.0]);
    assert_eq!(group.turns(), [150, 150, 300]);
    group.usage(1.0, A, 100.0, 0.5);
    group.usage(1.5, B, 100.0, 0.25);
    assert_eq!(group.turns(), [150, 150, 300], "the first ten seconds say nothing");
    group.until(11.6);
    // 200, 400, and the mean of the two for the one without a report.
    let turns = group.turns();
    assert!(
        turns[0].abs_diff(133) <= 1 && turns[1].abs_diff(267) <= 1 && turns[2].abs_diff(200) <= 1,
        "{turns:?}"
    );
    group.usage(12.0, A, 100.0, 0.25);
    group.until(13.1);
    assert_eq!(group.turns(), [200, 200, 200]);
    // A report of no work is ignored, and invalid numbers are rejected.
    group.usage(14.0, A, 0.0, 0.9);
    for bad in [f64::NAN, -1.0, f64::INFINITY] {
        let usage = UsageReport { rps: bad, utilization: 1.0, eps: 0.0, at: at(14.0) };
        assert!(!group.analyzer.handle_usage(A, usage, at(14.0)));
    }
    group.until(100.0);
    assert_eq!(group.turns(), [200, 200, 200]);
    // Three minutes after the last report the configured weights hold.
    group.until(193.0);
    assert_eq!(group.turns(), [150, 150, 300]);
    assert_eq!(group.analyzer.poll_timeout(), None);
}

/// Sends loads of three members with a little noise, a report a second; C is twice the others from `step` on.
fn step(group: &mut Group, from: u32, to: u32, step: u32) {
    for second in from..to {
        for (member, base) in [(A, 0.5), (B, 0.5), (C, if second < step { 0.5 } else { 1.0 })] {
            let noise = (mix(u64::from(second * 3 + member.0)) % 1_000) as f64 / 1_000.0 - 0.5;
            group.load(f64::from(second) + f64::from(member.0) / 3.0, member, base * (1.0 + 0.02 * noise));
        }
    }
}

#[test]
fn a_surplus_is_an_alert_with_its_reasons() {
    let mut group = Group::new("rendezvous", &[1.0; 3]);
    step(&mut group, 0, 30, 30);
    assert!(group.events.is_empty(), "noise is no surplus: {:?}", group.events);
    assert_eq!(group.analyzer.alerts().count(), 0);
    step(&mut group, 30, 33, 30);
    let [event] = &group.events[..] else { panic!("{:?}", group.events) };
    assert_eq!((event.kind, event.member.as_deref()), (EventKind::AlertRaised, Some("c")));
    let input = |name: &str| event.inputs.iter().find(|(known, _)| known == name).expect("an input").1;
    assert!(input("load") > input("fair") + 2.0 * input("noise"), "{event:?}");
    assert!(event.why.contains("too much"), "{}", event.why);
    let alert: LoadAlert = group.analyzer.alerts().next().expect("an alert").clone();
    assert!(alert.member == C && alert.since < at(32.0));
    // Its sessions are to move to the two others, whose deficit is its surplus.
    let [a, b, c] = group.plan.members() else { panic!("three members") };
    assert!(c.shed == alert.shed && c.shed.share > 0.05 && c.shed.epoch > 0 && c.deficit == 0.0, "{c:?}");
    assert!((c.shed.period.as_secs_f64() - 1.0).abs() < 0.1);
    assert!(a.shed.share == 0.0 && a.deficit > 0.0 && b.deficit > 0.0);
    assert!(
        (0..50).all(|chance| group.plan.target(mix(chance), &[C], Time(0)).is_some_and(|target| target < 2))
    );
    // The step is over.
    let raised = group.events.len();
    step(&mut group, 33, 60, 90);
    assert_eq!(group.analyzer.alerts().count(), 0);
    assert_eq!(group.events[raised].kind, EventKind::AlertCleared);
    assert_eq!(group.plan.members()[2].shed.share, 0.0);
}

#[test]
fn sessions_stay_until_whoever_is_told_has_answered() {
    let mut group = Group::new("rendezvous", &[1.0; 3]);
    group.analyzer.set_drain_hook(true);
    step(&mut group, 0, 36, 30);
    let kinds: Vec<EventKind> = group.events.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::AlertRaised]);
    let alert = group.analyzer.alert(C).expect("an alert").clone();
    let number = alert.held.expect("it is held");
    assert!(alert.shed.share > 0.05, "{alert:?}");
    assert!(group.plan.members().iter().all(|member| member.shed == ShedDecision::default()));
    assert_eq!(group.analyzer.status(at(36.0))[2].1.alert_share, 0.0);
    assert!(!group.analyzer.release_alert(A, number, at(36.0)));
    assert!(group.analyzer.release_alert(C, number, at(36.0)));
    group.until(36.1);
    let shed = group.plan.members()[2].shed;
    assert!(shed.share > 0.05 && shed.epoch > number, "{shed:?}");
    assert_eq!(group.analyzer.status(at(36.1))[2].1.alert_share, f64::from(shed.share));
}

#[test]
fn who_is_out_of_use_is_under_no_alert() {
    let mut group = Group::new("rendezvous", &[1.0; 3]);
    step(&mut group, 0, 33, 30);
    assert_eq!(group.analyzer.alerts().count(), 1);
    group.analyzer.drain("c", at(33.0)).unwrap();
    group.until(33.0);
    assert_eq!(group.analyzer.alerts().count(), 0);
    assert_eq!(group.events.last().map(|event| event.kind), Some(EventKind::AlertCleared));
    // Its reports meanwhile have no effect.
    step(&mut group, 34, 50, 30);
    assert_eq!(group.analyzer.alerts().count(), 0);
}

#[test]
fn without_on_demand_binding_there_are_no_alerts() {
    let mut group = Group::new("rendezvous", &[1.0; 3]);
    step(&mut group, 0, 33, 30);
    group.analyzer.set_on_demand(false, at(33.0));
    group.until(33.0);
    assert_eq!(group.events.last().map(|event| event.kind), Some(EventKind::AlertCleared));
    let before = group.events.len();
    step(&mut group, 33, 60, 30);
    assert_eq!((group.events.len(), group.analyzer.alerts().count()), (before, 0));
    assert!(group.plan.members().iter().all(|member| member.shed.share == 0.0 && member.deficit == 0.0));
}

/// Checks that a member with an absurd load gives its own sessions away and hides no other's surplus.
#[test]
fn a_liar_harms_only_itself() {
    for lie in [1e6, f64::MAX] {
        let mut group = Group::new("rendezvous", &[1.0; 4]);
        for second in 0_u32..40 {
            let now = f64::from(second);
            let noise = |member: u64| (mix(u64::from(second) * 4 + member) % 1_000) as f64 / 1e5;
            group.load(now, A, 0.5 + noise(0));
            group.load(now + 0.25, B, 0.5 + noise(1));
            group.load(now + 0.5, C, 2.0 + noise(2));
            group.load(now + 0.75, MemberId(3), lie);
        }
        let under: Vec<MemberId> = group.analyzer.alerts().map(|alert| alert.member).collect();
        assert!(under.contains(&C) && under.contains(&MemberId(3)), "{lie}: {under:?}");
        assert!(!under.contains(&A) && !under.contains(&B), "{lie}: {under:?}");
        assert!(group.plan.members().iter().all(|member| member.deficit.is_finite()));
    }
}

/// Checks that a group on a shared host follows the others' part of a host's load slowly, and a member's own
/// load in full.
#[test]
fn what_is_told_of_a_member_is_not_told_apart() {
    for of_host in [false, true] {
        let mut group = Group::new("least_loaded", &[1.0; 2]);
        group.analyzer.set_host_share(A, (0.2, 2));
        group.load(0.0, B, 1.0);
        let tell = |group: &mut Group, value: f64, second: f64| {
            group.analyzer.handle_load(A, ReportedLoad { value, at: at(second), of_host });
            group.until(second + 0.5);
        };
        tell(&mut group, 1.0, 0.0);
        tell(&mut group, 8.0, 1.0);
        // 1.6 of its own and, of 0.8 and 6.4 by others, a quarter of the way.
        let expected = if of_host { 1.6 + 0.8 + 5.6 / 4.0 } else { 8.0 };
        let counted = group.effective(0).expect("it counts");
        assert!((counted - expected).abs() < 1e-9, "{counted}, not {expected}");
        // After a long silence earlier reports do not count for the others' present part.
        tell(&mut group, 2.0, 60.0);
        assert_eq!(group.effective(0), Some(2.0));
    }
}

#[test]
fn loads_by_another_metric_begin_anew() {
    let mut group = Group::new("rendezvous", &[1.0; 3]);
    step(&mut group, 0, 33, 30);
    assert!(group.analyzer.alerts().count() > 0);
    group.analyzer.forget_loads(at(33.0));
    group.until(34.0);
    assert_eq!(group.analyzer.alerts().count(), 0);
    assert!(group.plan.members().iter().all(|member| member.effective.is_none() && member.load.is_none()));
    assert_eq!(group.analyzer.current_loads(at(34.0)).count(), 0);
    group.load(35.0, A, 700.0);
    assert_eq!(group.analyzer.current_loads(at(35.0)).collect::<Vec<_>>(), [(A, 700.0)]);
}
