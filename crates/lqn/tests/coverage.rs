//! Tests the accuracy that a simulation reports: it ends when intervals are as narrow as requested, they hold
//! the true value as often as stated, and percentiles are those of the closed form.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use plimsoll_lqn::{Estimate, Model, SimulationEffort, read, simulate};
use serde_json::Value;

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models")
}

fn model(text: &str) -> Model {
    read(text, &BTreeMap::new()).unwrap_or_else(|trouble| panic!("{trouble}\n{text}")).model
}

/// The number of runs of each model that end by their own rule.
const SEEDS: u64 = 14;

#[test]
fn runs_that_end_by_themselves_are_as_precise_as_they_say_and_hold_the_truth() {
    let exact: BTreeMap<String, Value> =
        serde_json::from_slice(&fs::read(folder().join("exact.json")).unwrap()).unwrap();
    let names = [
        "exact-mm1-50",
        "exact-mg1-det",
        "exact-mg1-c25",
        "exact-mmc-4",
        "exact-repair-1",
        "exact-repair-4",
        "exact-pf-5",
        "exact-mgn-c25",
    ];
    let precision = 0.03;
    let (mut within, mut all, mut events) = (0, 0, 0);
    for name in names {
        let model = model(&fs::read_to_string(folder().join(format!("own/{name}.lqn"))).unwrap());
        let mut own = 0;
        for seed in 1..=SEEDS {
            // Models share names and so random streams.
            let seed = seed + 1000 * all;
            let found = simulate(&model, &SimulationEffort { seed, events: 4_000_000, precision }).unwrap();
            assert!(found.precise && found.settled, "{name}, seed {seed}: {} events", found.events);
            events += found.events;
            let client = found.tasks.iter().find_map(|task| Some((task.throughput, task.response?)));
            let open = found.entries.iter().find_map(|entry| Some((entry.throughput, entry.response?)));
            let (throughput, response): (Estimate, Estimate) = client.or(open).unwrap();
            for (what, estimate) in [("X", throughput), ("R", response)] {
                assert!(estimate.half_width <= precision * estimate.mean, "{name}: {estimate:?}");
                let truth = exact[name][what].as_f64().unwrap();
                let holds = (estimate.mean - truth).abs() <= estimate.half_width;
                within += u64::from(holds);
                own += u64::from(holds);
                all += 1;
            }
        }
        eprintln!("{name}: {own} of {} intervals", 2 * SEEDS);
    }
    let part = within as f64 / all as f64;
    eprintln!("{within} of {all} intervals, {part:.3}; {events} events");
    assert!((0.90..=0.99).contains(&part), "{within} of {all}");
}

#[test]
fn percentiles_of_a_single_server_are_those_of_the_exponential_distribution() {
    for load in [0.5, 0.8] {
        let text = format!("P 0 p cpu f -1 T 0 t srv n srv -1 cpu -1 E 0 a srv {load} s srv 1 -1 -1");
        let found = simulate(
            &model(&text),
            &SimulationEffort { events: 8_000_000, precision: 0.0, ..SimulationEffort::default() },
        );
        let found = found.unwrap().entries[0].percentiles.unwrap();
        // Response times are exponential with mean 1 / (1 - load); buckets are 1.6 % wide.
        for (part, own) in [(0.5_f64, found.p50), (0.95, found.p95), (0.99, found.p99)] {
            let exact = -(1.0 - part).ln() / (1.0 - load);
            assert!((own / exact - 1.0).abs() < 0.03, "{load}, {part}: {own}, not {exact}");
        }
    }
}
