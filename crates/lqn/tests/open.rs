//! Tests all models in `models`: they are read, and their simulation gives the results of other tools, or the
//! exact ones.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_lqn::{Model, ModelResults, SimulationEffort, read, simulate};
use serde_json::Value;

/// The number of runs of each model with an exact result.
const SEEDS: u64 = 12;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models")
}

fn model(name: &str) -> Model {
    let text = fs::read_to_string(folder().join(name)).expect("it stands in the repository");
    read(&text, &BTreeMap::new()).unwrap_or_else(|trouble| panic!("{name}:{trouble}")).model
}

fn table(name: &str) -> BTreeMap<String, Value> {
    serde_json::from_slice(&fs::read(folder().join(name)).expect("it stands in the repository"))
        .expect("it stands in the repository")
}

fn simulated(name: &str, events: u64) -> ModelResults {
    let effort = SimulationEffort { events, precision: 0.0, ..SimulationEffort::default() };
    simulate(&model(name), &effort).unwrap_or_else(|stuck| panic!("{name}: {stuck}"))
}

#[test]
fn every_model_is_read() {
    let mut count = 0;
    for part in ["own", "paper", "line"] {
        for file in fs::read_dir(folder().join(part)).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            if name == "LICENSE" {
                continue;
            }
            let model = model(&format!("{part}/{name}"));
            assert!(!model.tasks.is_empty() && !model.activities.is_empty(), "{name}");
            count += 1;
        }
    }
    assert_eq!(count, 121);
}

#[test]
fn what_is_known_exactly_is_found() {
    let (mut within, mut all) = (0, 0);
    let mut drawn: BTreeMap<(String, &str), (f64, f64, f64)> = BTreeMap::new();
    for (name, exact) in table("exact.json") {
        let model = model(&format!("own/{name}.lqn"));
        let truth = |what: &str| exact[what].as_f64().unwrap();
        for seed in 1..=SEEDS {
            let effort = SimulationEffort { seed, events: 300_000, precision: 0.0 };
            let found = simulate(&model, &effort).unwrap_or_else(|stuck| panic!("{name}: {stuck}"));
            let client = found.tasks.iter().find(|task| task.response.is_some());
            let open = found.entries.iter().find(|entry| entry.response.is_some());
            let (throughput, response) = match (client, open) {
                (Some(client), _) => (client.throughput, client.response.unwrap()),
                (None, Some(open)) => (open.throughput, open.response.unwrap()),
                (None, None) => panic!("{name}: neither clients nor arrivals"),
            };
            for (what, found) in [("X", throughput), ("R", response)] {
                let off = found.mean - truth(what);
                all += 1;
                within += usize::from(off.abs() <= found.half_width);
                let (sum, squares, _) =
                    drawn.entry((name.clone(), what)).or_insert_with(|| (0.0, 0.0, truth(what)));
                *sum += found.mean;
                *squares += found.half_width.powi(2);
            }
        }
    }
    // The mean of a model's runs is more accurate, and unbiased.
    let seeds = SEEDS as f64;
    for ((name, what), (sum, squares, truth)) in &drawn {
        let (mean, half) = (sum / seeds, squares.sqrt() / seeds);
        let off = (mean - truth).abs();
        assert!(off <= 2.0 * half + 0.003 * truth, "{name}: {what} is {mean} ± {half}, not {truth}");
    }
    let part = within as f64 / all as f64;
    eprintln!("{within} of {all} are within their 95 % interval: {:.1} %", 100.0 * part);
    assert!((0.9..=0.99).contains(&part), "{within} of {all} are within their 95 % interval");
}

/// Throughputs and utilizations match the table of other tools' simulations.
#[test]
fn what_others_simulated_is_found() {
    let mut worst = Vec::new();
    for (name, others) in table("simulated.json") {
        let model = model(&name);
        let found = simulated(&name, 1_000_000);
        for (task, found) in model.tasks.iter().zip(&found.tasks) {
            let other = &others["task"][&task.name];
            // A task that is never called has none.
            let Some(truth) = other["X"].as_f64().filter(|truth| *truth > 0.0) else { continue };
            let uncertain = other["ciX"].as_f64().unwrap_or(0.0);
            let (mean, half) = (found.throughput.mean, found.throughput.half_width);
            let off = (mean - truth).abs();
            worst.push((off / truth, format!("{name} {}: {mean} ± {half}, not {truth}", task.name)));
            assert!(
                off <= 1.5 * half + 2.0 * uncertain + 0.012 * truth,
                "{name}: throughput of {} is {mean} ± {half}, not {truth} ± {uncertain}",
                task.name
            );
        }
        for (processor, found) in model.processors.iter().zip(&found.processors) {
            let Some(truth) = others["proc"][&processor.name].as_f64() else { continue };
            let off = (found.busy.mean - truth).abs();
            assert!(
                off <= 1.5 * found.busy.half_width + 0.02 * truth + 1e-6,
                "{name}: {} has {} cores in use, not {truth}",
                processor.name,
                found.busy.mean
            );
        }
    }
    worst.sort_by(|one, other| other.0.total_cmp(&one.0));
    let mean = worst.iter().map(|(off, _)| off).sum::<f64>() / worst.len() as f64;
    assert!(mean < 0.01, "off by {:.2} % in the mean; worst: {:#?}", 100.0 * mean, &worst[..5]);
}

#[test]
fn a_seed_gives_the_same_numbers_and_another_others() {
    let model = model("paper/horb-n24.lqn");
    let run = |seed| simulate(&model, &SimulationEffort { seed, events: 50_000, precision: 0.0 }).unwrap();
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
