//! Strategies' explanations of their judgement.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::{
    EffectiveLoad, Member, MemberId, MemberState, PickerState, Plan, ShedDecision, Strategy, StrategyParams,
    Time, Vitals, strategy,
};

fn plan(strategy: &'static Strategy) -> Plan {
    let member = |number: u32| Member {
        id: MemberId(number),
        name: format!("10.0.0.{number}:80").into(),
        address: ([10, 0, 0, number as u8], 80).into(),
        seed: u64::from(number),
        capacity: 1.0,
        weight: f64::from(number),
        limit: u32::MAX,
        state: MemberState::Up,
        load: None,
        effective: None,
        usage: None,
        shed: ShedDecision::default(),
        deficit: 0.0,
        vitals: Arc::new(Vitals::with_in_flight(6)),
    };
    Plan::new(strategy, StrategyParams::defaults(strategy), (1..=3).map(member).collect())
}

fn figures(plan: &Plan, index: usize, now: Time) -> Vec<(&'static str, f64)> {
    plan.explain(&plan.members()[index], now)
}

#[test]
fn every_strategy_names_finite_figures() {
    let now = Time(0) + Duration::from_secs(5);
    for strategy in strategy::ALL.iter().copied().chain([strategy::EXPRESSION]) {
        let plan = plan(strategy);
        for member in plan.members() {
            plan.observe(&mut PickerState::default(), &member.vitals, Duration::from_millis(20), false, now);
            for (name, value) in plan.explain(member, now) {
                assert!(value.is_finite() && value >= 0.0, "{}: {name} = {value}", strategy.name);
            }
        }
    }
}

#[test]
fn the_figures_are_those_it_judges_by() {
    let now = Time(0) + Duration::from_secs(5);
    let find = |name: &str| strategy::find(name).expect("it is there");
    assert_eq!(figures(&plan(find("weighted_round_robin")), 2, now), [("share", 0.5)]);
    assert_eq!(figures(&plan(find("least_connections")), 1, now), [("in_flight_per_weight", 3.0)]);
    assert_eq!(figures(&plan(find("round_robin")), 1, now), []);
    let ewma = plan(find("peak_ewma"));
    assert_eq!(figures(&ewma, 1, now), [], "nothing is known before the first answer");
    ewma.observe(
        &mut PickerState::default(),
        &ewma.members()[1].vitals,
        Duration::from_millis(20),
        false,
        now,
    );
    let [("latency_estimate_seconds", latency), ("cost_seconds", cost)] = figures(&ewma, 1, now)[..] else {
        panic!("{:?}", figures(&ewma, 1, now));
    };
    assert!((latency - 0.02).abs() < 1e-6 && (cost - 0.02 * 4.0).abs() < 1e-6, "{latency} {cost}");
}

#[test]
fn one_at_or_above_reject_says_that_it_gets_nothing() {
    let (now, least_loaded) = (Time(0), strategy::find("least_loaded").expect("it is there"));
    let mut knobs = StrategyParams::defaults(least_loaded);
    // `per_balance_load` and `reject`.
    (knobs.0[2], knobs.0[3]) = (0.25, 1.0);
    let bare = plan(least_loaded);
    let members = bare.members().iter().zip([0.2, 0.5, 3.0]).map(|(member, value)| Member {
        effective: Some(EffectiveLoad { value, begun: member.vitals.begun().wrapping_sub(2) }),
        ..member.clone()
    });
    let plan = Plan::new(least_loaded, knobs, members.collect());
    let refuses = |index: usize| plan.refusal_message(&plan.members()[index], now);
    assert_eq!(refuses(0), None);
    assert_eq!(figures(&plan, 0, now), [("load_with_bindings", 0.7)]);
    let why = refuses(1).expect("two bindings make its load 1");
    assert!(why.contains("its load counts as 1.00") && why.contains("`reject`"), "{why}");
    assert!(refuses(2).is_some());
}
