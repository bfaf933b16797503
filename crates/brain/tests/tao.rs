//! The faults of TAO's load balancer, as tests that they do not recur.
//!
//! In each test the code of TAO (its LoadBalancing service) decides differently from what its papers mean.
//! The test describes the rule of that code, and computes it where that makes it plain.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::{
    Analyzer, Choice, EventKind, GroupSpec, MemberId, MemberSpec, PickRequest, PickerState, Plan,
    ReportedLoad, StrategyParams, Time, WhenAllDown, mix, strategy,
};

/// The reports of a group, 3 s apart.
struct Group {
    analyzer: Analyzer,
    plan: Plan,
    /// The rounds of reports.
    round: u32,
    kinds: Vec<EventKind>,
}

impl Group {
    fn new(name: &str, members: usize, set: &[(&str, f64)]) -> Self {
        let strategy = strategy::find(name).expect("a strategy of this name");
        let mut knobs = StrategyParams::defaults(strategy);
        for (name, value) in set {
            let index = strategy.params.iter().position(|knob| knob.name == *name);
            knobs.0[index.expect("a knob of this name")] = *value;
        }
        let member = |index: usize| MemberSpec {
            name: Arc::from(format!("10.0.0.{index}:80")),
            address: "10.0.0.1:80".parse().expect("an address"),
            capacity: 1.0,
            limit: u32::MAX,
            leaving: false,
            checked: false,
        };
        let spec = GroupSpec {
            name: Arc::from("web"),
            strategy,
            params: knobs,
            members: (0..members).map(member).collect(),
            health: None,
            outlier: None,
            slow_start: Duration::ZERO,
            when_all_down: WhenAllDown::Reject,
            admission: None,
            objective: None,
            aperture: None,
        };
        let mut analyzer = Analyzer::new(spec, Time(0));
        analyzer.set_on_demand(true, Time(0));
        let plan = analyzer.plan(Time(0)).expect("the first call gives a plan");
        Self { analyzer, plan, round: 0, kinds: Vec::new() }
    }

    /// Reports for every member; those with a negative load do not report.
    fn report(&mut self, loads: &[f64]) -> &mut Self {
        self.round += 1;
        let now = Time(0) + Duration::from_secs(3) * self.round;
        for (member, value) in (0..).map(MemberId).zip(loads) {
            assert_eq!(
                self.analyzer.handle_load(member, ReportedLoad { value: *value, at: now, of_host: false }),
                *value >= 0.0
            );
        }
        self.analyzer.handle_timeout(now);
        if let Some(plan) = self.analyzer.plan(now) {
            self.plan = plan;
        }
        self.kinds = std::iter::from_fn(|| self.analyzer.poll_event()).map(|event| event.kind).collect();
        self
    }

    /// Reports the same twice: the second time each member is judged with all the others known.
    fn settle(&mut self, loads: &[f64]) -> &mut Self {
        self.report(loads).report(loads)
    }

    fn choice(&self, turn: u64) -> Choice {
        self.plan.choose(
            &mut PickerState::default(),
            &PickRequest { turn, random_bits: mix(turn), ..PickRequest::default() },
            &[],
        )
    }

    /// Returns how often each is chosen for 1000 sessions that are bound and end.
    fn choices(&self) -> Vec<u32> {
        let mut counts = vec![0; self.plan.members().len()];
        for turn in 0..1_000 {
            if let Choice::Member(index) = self.choice(turn) {
                counts[index] += 1;
            }
        }
        counts
    }

    fn effective(&self, member: usize) -> f64 {
        self.plan.members()[member].effective.expect("it reported").value
    }

    /// Returns the members under alert.
    fn alerts(&self) -> Vec<u32> {
        self.analyzer.alerts().map(|alert| alert.member.0).collect()
    }
}

/// Checks dampening per report. TAO applies the recurrence at every look at a load, so that with many
/// selections between two reports nothing of the past is left.
#[test]
fn dampening_is_once_for_each_report() {
    let mut group = Group::new("least_loaded", 2, &[("dampening", 0.9)]);
    group.report(&[100.0, 50.0]).report(&[0.0, 50.0]);
    let mut tao = 100.0;
    (0..10).for_each(|_| tao = 0.9 * tao + 0.1 * 0.0);
    assert!(tao < 50.0, "ten selections later TAO chooses the first");
    for _ in 0..3 {
        assert_eq!(group.choices(), [0, 1_000]);
        assert!((group.effective(0) - 90.0).abs() < 1e-9);
    }
    for _ in 0..6 {
        group.report(&[0.0, 50.0]);
    }
    assert_eq!(group.choices(), [1_000, 0], "0.9^7 of 100 are below 50");
}

/// Checks that dampening has a memory. In TAO the memory is only made if dampening is set when the strategy
/// is built, which it never is. The past is always 0, and dampening just makes loads smaller.
#[test]
fn dampening_remembers() {
    let mut group = Group::new("least_loaded", 2, &[("dampening", 0.1), ("critical", 35_000.0)]);
    for _ in 0..4 {
        group.report(&[36_000.0, 0.0]);
    }
    let tao = 0.1 * 0.0 + 0.9 * 36_000.0;
    assert!(tao < 35_000.0, "TAO sees no reason for an alert");
    assert_eq!(group.effective(0), 36_000.0);
    assert_eq!(group.alerts(), [0]);
}

/// Checks that tolerance is a band. TAO divides by it inside the recurrence: with dampening d and tolerance t
/// a constant load L counts as (1 - d) L / (t - d).
#[test]
fn tolerance_is_a_band_and_no_divisor() {
    let set = [("tolerance", 2.0), ("dampening", 0.5), ("critical", 80.0)];
    let mut group = Group::new("least_loaded", 3, &set);
    let mut tao = 0.0;
    for _ in 0..20 {
        group.report(&[100.0, 60.0, 40.0]);
        tao = (0.5 * tao + 0.5 * 100.0) / 2.0;
    }
    assert!(tao < 34.0);
    assert_eq!(group.effective(0), 100.0);
    assert_eq!(group.alerts(), [0], "100 is above 80");
    let counts = group.choices();
    assert!(counts[0] == 0, "100 is more than twice 40");
    assert!(counts[1].abs_diff(500) < 60, "60 is as good as 40: {counts:?}");
}

/// Checks rejected members. TAO's search begins with a least load of 0: if the first member is not taken, no
/// later one can be below that.
#[test]
fn a_member_that_is_rejected_hides_nobody() {
    let set = [("reject", 25_000.0), ("critical", 35_000.0)];
    let mut group = Group::new("least_loaded", 3, &set);
    assert_eq!(group.report(&[30_000.0, 20_000.0, 10_000.0]).choices(), [0, 0, 1_000]);
    assert_eq!(group.report(&[25_000.0, 24_999.0, 30_000.0]).choices(), [0, 1_000, 0]);
    assert_eq!(group.report(&[0.0, 30_000.0, 30_000.0]).choices(), [1_000, 0, 0]);
    // All reject: the client waits. A load equal to the threshold is rejected.
    group.report(&[25_000.0, 25_000.0, 1e9]);
    assert!((0..100).all(|turn| group.choice(turn) == Choice::Shed));
    assert_eq!(group.report(&[25_000.0, 3.0, 1e9]).choices(), [0, 1_000, 0]);
}

/// Checks that one member is always open. TAO leaves the alert of a member unchanged while that member is the
/// least loaded so far: all may be under alert, and their clients move between them.
#[test]
fn the_least_loaded_is_not_under_alert() {
    let mut group = Group::new("least_loaded", 2, &[("critical", 10.0)]);
    assert_eq!(group.report(&[20.0, 30.0]).alerts(), [1]);
    assert_eq!(group.kinds, [EventKind::AlertRaised]);
    // For a round the last open one stays so, though it is not the least loaded any more.
    assert_eq!(group.report(&[40.0, 30.0]).alerts(), []);
    assert_eq!(group.report(&[40.0, 30.0]).alerts(), [0]);
    assert_eq!(group.report(&[10.0, 10.0]).alerts(), [], "a load that is the threshold is not above it");
    assert_eq!(group.kinds, [EventKind::AlertCleared]);
    assert_eq!(group.report(&[5.0, 5.0]).alerts(), []);
}

/// Checks loads far above the minimum. TAO's LoadMinimum alerts for 1.4 to 2 times the minimum and does
/// nothing beyond, not even clear.
#[test]
fn twice_the_minimum_and_more_is_too_much() {
    let mut group = Group::new("load_minimum", 3, &[]);
    assert_eq!(group.settle(&[15.0, 10.0, 10.0]).alerts(), [0]);
    for load in [20.0, 30.0, 1e6] {
        let mut group = Group::new("load_minimum", 3, &[]);
        assert_eq!(group.settle(&[10.0, 10.0, load]).alerts(), [2], "{load}");
        assert_eq!(group.settle(&[10.0, 10.0, 12.0]).alerts(), [], "{load}");
    }
    // Above 1.4 times the minimum and yet below the average.
    assert_eq!(group.settle(&[10.0, 16.0, 100.0]).alerts(), [2]);
    // Against an idle member, anything above the average is too much.
    assert_eq!(group.settle(&[9.0, 1.0, 0.0]).alerts(), [0]);
}

/// Checks the same for LoadAverage, at twice the average.
#[test]
fn twice_the_average_and_more_is_too_much() {
    for load in [30.0, 100.0, 1e6] {
        let mut group = Group::new("load_average", 6, &[]);
        let others = [10.0, 10.0, 10.0, 10.0, 10.0];
        let loads: Vec<f64> = others.into_iter().chain([load]).collect();
        let mean = loads.iter().sum::<f64>() / 6.0;
        assert!(load / mean >= 1.8, "{load}");
        assert_eq!(group.settle(&loads).alerts(), [5], "{load}");
        assert_eq!(group.settle(&[10.0; 6]).alerts(), [], "{load}");
    }
    // A quarter more than the average is too much for the strategy that keeps loads together.
    let mut group = Group::new("minimum_dispersion", 4, &[]);
    assert_eq!(group.settle(&[10.0, 10.0, 10.0, 14.5]).alerts(), [3]);
    assert_eq!(group.settle(&[10.0, 10.0, 10.0, 13.0]).alerts(), []);
}

/// Checks the load per binding. TAO's LoadMinimum takes the default of dampening for that of the load per
/// balance, and adds it at every look.
#[test]
fn a_binding_counts_as_much_as_is_said() {
    for strategy in ["least_loaded", "load_minimum", "minimum_dispersion"] {
        let at_once = |set: &[(&str, f64)], bound: usize| {
            let mut group = Group::new(strategy, 2, set);
            group.report(&[10.0, 20.0]);
            // A look has no effect.
            group.choices();
            (0..bound).for_each(|_| _ = group.plan.members()[0].vitals.begin());
            group.choices()
        };
        let set = [("tolerance", 1.0), ("dampening", 0.9)];
        assert_eq!(at_once(&set, 1_000), [1_000, 0], "{strategy}: none is said");
        let set = [("tolerance", 1.0), ("dampening", 0.9), ("per_balance_load", 0.2)];
        assert_eq!(at_once(&set, 49), [1_000, 0], "{strategy}: 19.8 is below 20");
        assert_eq!(at_once(&set, 51), [0, 1_000], "{strategy}: 20.2 is above 20");
    }
    // The next report contains them.
    let mut group = Group::new("least_loaded", 2, &[("per_balance_load", 5.0)]);
    group.report(&[10.0, 20.0]);
    (0..10).for_each(|_| _ = group.plan.members()[0].vitals.begin());
    assert_eq!(group.choices(), [0, 1_000]);
    assert_eq!(group.report(&[15.0, 20.0]).choices(), [1_000, 0]);
}

/// Checks members without a report. In TAO one is never chosen while another has a report.
#[test]
fn a_member_without_a_report_has_its_share() {
    let mut group = Group::new("least_loaded", 4, &[]);
    let counts = group.report(&[1.0, 9.0, 9.0, -1.0]).choices();
    assert!(counts[3].abs_diff(250) < 60, "its static share: {counts:?}");
    assert_eq!(counts[0], 1_000 - counts[3]);
    assert_eq!(Group::new("least_loaded", 3, &[]).choices().iter().filter(|count| **count > 250).count(), 3);
    // Nor does it get everything while the others reject.
    let mut group = Group::new("least_loaded", 4, &[("reject", 5.0)]);
    let counts = group.report(&[9.0, 9.0, 9.0, -1.0]).choices();
    assert!(counts[..3] == [0; 3] && counts[3].abs_diff(250) < 60, "{counts:?}");
}

/// Checks equal members. TAO tosses a coin between two equal ones, so of three the last gets half.
#[test]
fn of_equal_members_each_has_its_share() {
    let mut group = Group::new("least_loaded", 4, &[]);
    let counts = group.report(&[7.0, 7.0, 7.0, 8.0]).choices();
    assert!(counts[..3].iter().all(|count| count.abs_diff(333) < 60) && counts[3] == 0, "{counts:?}");
}

/// Checks that the quick way, without a load per binding, and the slow one choose alike.
#[test]
fn a_plan_knows_who_is_the_least_loaded() {
    for loads in [[3.0, 1.0, 1.4, -1.0, 9.0], [0.0, 0.0, 7.0, 8.0, 1e300], [9.0, 9.5, 9.9, -1.0, -1.0]] {
        let counts = |per_balance: f64| {
            let set = [("tolerance", 1.5), ("reject", 9.5), ("per_balance_load", per_balance)];
            Group::new("least_loaded", 5, &set).report(&loads).choices()
        };
        // A load so small that it never matters.
        let (quick, slow) = (counts(0.0), counts(1e-12));
        for (quick, slow) in quick.iter().zip(&slow) {
            assert!(quick.abs_diff(*slow) < 70 && (*quick == 0) == (*slow == 0), "{loads:?}: {quick} {slow}");
        }
    }
}

/// Checks that a member without reports is no longer under alert, and that invalid loads are rejected.
#[test]
fn a_monitor_that_dies_or_lies_harms_nobody() {
    let mut group = Group::new("least_loaded", 2, &[("critical", 50.0)]);
    group.report(&[90.0, 10.0]).report(&[90.0, 10.0]);
    assert_eq!(group.alerts(), [0]);
    for bad in [f64::NAN, f64::INFINITY, -1.0] {
        let load = ReportedLoad { value: bad, at: Time(0) + Duration::from_secs(7), of_host: false };
        assert!(!group.analyzer.handle_load(MemberId(0), load));
    }
    // The second reports for ten more periods; the first is dead.
    for _ in 0..11 {
        group.report(&[-1.0, 10.0]);
    }
    assert_eq!((group.alerts(), group.kinds.as_slice()), (vec![], &[EventKind::AlertCleared][..]));
    assert!(group.plan.members()[0].effective.is_none() && group.plan.members()[0].load.is_some());
    let counts = group.choices();
    assert!(counts[0].abs_diff(500) < 60, "it has its share again: {counts:?}");
}
