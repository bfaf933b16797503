//! Tests the results of a simulation for objects without any completed request.

use std::collections::BTreeMap;

use plimsoll_lqn::analysis::capacity::{LoadRange, MissedGoal, PerformanceGoal, find_capacity};
use plimsoll_lqn::analysis::result_lines;
use plimsoll_lqn::{Model, SimulationEffort, combine_estimates, read, simulate, solve};

/// Returns a model with busy clients, and one whose cycle is longer than any simulation.
fn model() -> Model {
    let text = "P 0\n p pc f i\n p cpu f\n p slow f i\n-1\nT 0\n t cl r cl -1 pc m 3\n t once r once -1 \
                slow\n t srv n srv -1 cpu\n-1\n\
                E 0\n s cl 1 -1\n y cl srv 1 -1\n s once 100000000 -1\n s srv 1 -1\n-1\n";
    read(text, &BTreeMap::new()).expect("a model").model
}

const EFFORT: SimulationEffort = SimulationEffort { seed: 1, events: 200_000, precision: 0.05 };

#[test]
fn who_finished_nothing_is_not_known_to_take_no_time() {
    let model = model();
    let found = simulate(&model, &EFFORT).unwrap();
    let (seen, unseen) = (&found.tasks[0], &found.tasks[1]);
    assert_eq!(found.unseen, ["once"]);
    assert!(!found.precise && seen.response.is_some() && unseen.response.is_none(), "{found:?}");
    // The rate is below 3 / time, with 95 % confidence.
    let most = unseen.throughput.mean + unseen.throughput.half_width;
    assert!(unseen.throughput.mean == 0.0 && (most * found.time / 3.0 - 1.0).abs() < 0.01, "{unseen:?}");
    let has = |metric: &str| {
        result_lines(&model, &found).iter().any(|own| own.name == "once" && own.metric == metric)
    };
    assert!(!has("response") && has("throughput"));
    // The solver provides the result, and a plan uses it.
    let (solved, _) = solve(&model);
    let both = combine_estimates(&model, &[found.clone(), found]);
    assert_eq!(both.simulated.as_ref().map(|own| own.unseen.clone()), Some(vec!["once".to_owned()]));
    assert_eq!(both.findings.tasks[1].response, solved.tasks[1].response);
    assert!((both.findings.tasks[1].throughput.mean / solved.tasks[1].throughput.mean - 1.0).abs() < 0.2);
    assert!(both.findings.unseen.is_empty());
}

#[test]
fn a_run_in_which_all_was_seen_says_so() {
    let text = "P 0\n p pc f i\n p cpu f\n-1\nT 0\n t cl r cl -1 pc m 3\n t srv n srv -1 cpu\n-1\n\
                E 0\n s cl 1 -1\n y cl srv 1 -1\n s srv 1 -1\n a srv 0.1\n-1\n";
    let found = simulate(&read(text, &BTreeMap::new()).unwrap().model, &EFFORT).unwrap();
    assert!(found.unseen.is_empty() && found.precise, "{found:?}");
}

#[test]
fn a_load_at_which_nothing_is_seen_keeps_no_goal() {
    let goals = [PerformanceGoal::parse("response<1").unwrap()];
    let range = LoadRange { from: 1.0, to: 1.0, is_whole: true };
    let tried = |_| Ok::<_, ()>((model(), simulate(&model(), &EFFORT)));
    let (good, bad) = find_capacity(range, &goals, tried).unwrap();
    assert!(good.is_none());
    assert_eq!(bad.and_then(|own| own.failure), Some(MissedGoal::NoneFinished("once".to_owned())));
}
