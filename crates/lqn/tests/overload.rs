//! Tests overloaded models: the caller gets an error or infinite times.

use std::collections::BTreeMap;
use std::convert::Infallible;

use plimsoll_lqn::analysis::OverallResults;
use plimsoll_lqn::analysis::bottleneck::find_bottleneck;
use plimsoll_lqn::analysis::capacity::{LoadRange, PerformanceGoal, find_capacity};
use plimsoll_lqn::analysis::improvement::{ModelChange, find_improvements};
use plimsoll_lqn::solve::overloaded_entry;
use plimsoll_lqn::{Model, ModelResults, SimulationEffort, SimulationError, read, simulate};

/// Returns a model with one thread on one core, with a demand of one second per request.
fn model(arrivals: f64) -> Model {
    let text = format!("P 0\n p c f\n-1\nT 0\n t a n ae -1 c\n-1\nE 0\n a ae {arrivals}\n s ae 1 -1\n-1\n");
    read(&text, &BTreeMap::new()).expect("a model").model
}

fn play(model: &Model) -> Result<ModelResults, SimulationError> {
    simulate(model, &SimulationEffort { events: 50_000, precision: 0.01, ..SimulationEffort::default() })
}

#[test]
fn formulas_know_what_is_too_much() {
    assert_eq!(overloaded_entry(&model(0.97)), None);
    assert_eq!(overloaded_entry(&model(1.02)).as_deref(), Some("ae"));
    let mut limited = model(1.02);
    limited.tasks[0].queue_limit = Some(3);
    assert_eq!(overloaded_entry(&limited), None, "the rest is turned away");
}

#[test]
fn no_load_above_what_can_be_served_keeps_a_goal() {
    let range = LoadRange { from: 0.1, to: 100.0, is_whole: false };
    // A higher load makes this goal easier to meet.
    let goal = PerformanceGoal::parse("response>0.5").unwrap();
    let found = find_capacity(range, &[goal], |load| {
        let model = model(load);
        let found = play(&model);
        Ok::<_, Infallible>((model, found))
    });
    let (good, bad) = found.unwrap();
    let (good, bad) = (good.unwrap().load, bad.unwrap().load);
    assert!(good < 1.0 && bad <= 1.01, "{good} {bad}");
}

#[test]
fn remedies_that_are_none_have_no_times() {
    let model = model(1.7);
    let found = play(&model).unwrap();
    let own = find_bottleneck(&model, &found).unwrap();
    assert_eq!(OverallResults::of(&model, &found).infinite_if_overloaded(&model).response, f64::INFINITY);
    // Half the demand is 0.85 of the capacity; an unlimited number of cores helps one thread as little as one
    // more.
    let all = find_improvements(&model, &own, &play).unwrap();
    assert!(matches!(all[0].change, ModelChange::HalfDemand(_)), "{all:?}");
    assert!(all.iter().any(|remedy| remedy.results.response == f64::INFINITY));
    assert!(all[0].results.response.is_finite(), "the best comes first: {all:?}");
}
