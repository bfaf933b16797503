//! Tests common random numbers: the difference of two models has a smaller variance if both are simulated
//! with the same seed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use plimsoll_lqn::model::Multiplicity;
use plimsoll_lqn::{Model, ModelResults, SimulationEffort, read, simulate};

/// The number of pairs of runs for a variance.
const RUNS: u64 = 24;

fn model(text: &str) -> Model {
    read(text, &BTreeMap::new()).unwrap_or_else(|trouble| panic!("{trouble}\n{text}")).model
}

fn of(name: &str) -> Model {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    model(&fs::read_to_string(folder.join(name)).expect("it stands in the repository"))
}

fn place(model: &Model, task: &str) -> usize {
    model.tasks.iter().position(|own| own.name == task).expect("it is there")
}

fn slower(model: &Model, task: &str) -> Model {
    let (mut model, place) = (model.clone(), place(model, task));
    model.activities.iter_mut().filter(|own| own.task.0 == place).for_each(|own| own.demand *= 1.05);
    model
}

fn with_one_more(model: &Model, task: &str) -> Model {
    let (mut model, place) = (model.clone(), place(model, task));
    let Multiplicity::Finite(count) = &mut model.tasks[place].copies else {
        panic!("{task} has as many as it needs")
    };
    *count += 1;
    model
}

fn response(found: &ModelResults) -> f64 {
    let client = found.tasks.iter().find_map(|task| task.response);
    let open = found.entries.iter().find_map(|entry| entry.response);
    client.or(open).expect("somebody asks").mean
}

fn variance(all: &[f64]) -> f64 {
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    all.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / (all.len() - 1) as f64
}

/// Returns the ratio of the variance of the difference of two response times with different seeds to that
/// with equal seeds.
fn gain(one: &Model, other: &Model) -> f64 {
    let run = |model: &Model, seed| {
        let effort = SimulationEffort { seed, events: 40_000, precision: 0.0 };
        response(&simulate(model, &effort).expect("it ends"))
    };
    let first: Vec<f64> = (0..RUNS).map(|seed| run(one, seed)).collect();
    let second: Vec<f64> = (0..2 * RUNS).map(|seed| run(other, seed)).collect();
    let off =
        |second: &[f64]| -> Vec<f64> { first.iter().zip(second).map(|(own, other)| own - other).collect() };
    let (same, apart) = second.split_at(RUNS as usize);
    variance(&off(apart)) / variance(&off(same))
}

#[test]
fn neighbours_are_told_apart_by_the_same_luck() {
    let horb = of("paper/horb-n24.lqn");
    let forb = of("paper/forb-c4-n12.lqn");
    let shapes = of("own/lb-00.lqn");
    let open = of("own/exact-mm1-50.lqn");
    let repair = of("own/exact-repair-4.lqn");
    for (what, one, other) in [
        ("H-ORB, a server 5 % slower", &horb, slower(&horb, "srvB1")),
        ("H-ORB, a client more", &horb, with_one_more(&horb, "client")),
        ("F-ORB, a forwarder 5 % slower", &forb, slower(&forb, "fagent")),
        ("F-ORB, a forwarder more", &forb, with_one_more(&forb, "fagent")),
        ("three classes, a tier 5 % slower", &shapes, slower(&shapes, "db")),
        ("three classes, a client more", &shapes, with_one_more(&shapes, "cl1")),
        ("from outside, a server 5 % slower", &open, slower(&open, "srv")),
        ("a pool of servers, 5 % slower", &repair, slower(&repair, "srv")),
    ] {
        let gain = gain(one, &other);
        eprintln!("{what}: the variance of the difference is {gain:.1} times less");
        assert!(gain >= 3.0, "{what}: the variance of the difference is only {gain:.1} times less");
    }
}

/// The choices of a balancer are alike in both models, too: at random, by loads and by sessions.
#[test]
fn a_balancer_decides_alike() {
    for policy in ["random", "least_loaded", "power_of_two", "least_loaded(0.5)", "sticky"] {
        let text = |demand: f64| {
            format!(
                "#pragma route.lb={policy}\nG \"\" 1 1 -1\nP 0\n p pc f i\n p pl f i\n p ca f\n p cb f\n p \
                 cc f\n-1\n\
                 T 0\n t cl r cl -1 pc z 5 m 12\n t lb i lb -1 pl\n t sa n sa -1 ca\n t sb n sb -1 cb\n t sc \
                 n sc -1 cc\n-1\n\
                 E 0\n s cl 0 -1\n f cl 1 -1\n y cl lb 1 -1\n s lb 0 -1\n F lb sa 0.3 -1\n F lb sb 0.3 -1\n \
                 F lb sc 0.4 -1\n\
                 s sa 1 -1\n s sb 1 -1\n s sc {demand} -1\n-1\n"
            )
        };
        let gain = gain(&model(&text(1.0)), &model(&text(1.05)));
        eprintln!("{policy}: the variance of the difference is {gain:.1} times less");
        assert!(gain >= 3.0, "{policy}: the variance of the difference is only {gain:.1} times less");
    }
}

/// Streams depend on names: the order of a text does not change results, to the last digit.
#[test]
fn the_order_of_a_text_is_no_matter() {
    let text = |processors: [&str; 4], tasks: [&str; 4], entries: [&str; 4]| {
        let [processors, tasks, entries] = [processors, tasks, entries].map(|own| own.join("\n"));
        model(&format!("G \"\" 1 1 -1\nP 0\n{processors}\n-1\nT 0\n{tasks}\n-1\nE 0\n{entries}\n-1\n"))
    };
    let processors = ["p pc f i", "p px f", "p py s 0 m 2", "p pz r"];
    let tasks = [
        "t some r some -1 pc z 3 m 5",
        "t others r others -1 pc z 2 m 4",
        "t front n front -1 px m 3",
        "t store n store -1 pz",
    ];
    let entries = [
        "s some 0.1 -1\ny some front 2 -1",
        "s others 0.2 -1\ny others front 1.5 -1",
        "s front 0.1 0.05 -1\nc front 3 0.5 -1\ny front store 1 0.5 -1",
        "s store 0.05 -1",
    ];
    let back = |of: [&'static str; 4]| {
        let [a, b, c, d] = of;
        [d, c, b, a]
    };
    let effort = SimulationEffort { events: 60_000, precision: 0.0, ..SimulationEffort::default() };
    let one = simulate(&text(processors, tasks, entries), &effort).expect("it ends");
    let other = simulate(&text(back(processors), back(tasks), back(entries)), &effort).expect("it ends");
    let mut turned = other.clone();
    turned.tasks.reverse();
    turned.entries.reverse();
    turned.processors.reverse();
    assert_eq!(
        (&one.tasks, &one.entries, &one.processors),
        (&turned.tasks, &turned.entries, &turned.processors)
    );
    assert_eq!(one.events, other.events);
    let seeded = simulate(&text(processors, tasks, entries), &SimulationEffort { seed: 2, ..effort })
        .expect("it ends");
    assert_ne!(one.tasks, seeded.tasks);
}
