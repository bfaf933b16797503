//! Measures the simulator: events per second of processor time on the paper's H-ORB (24 clients) and on other
//! models. Also measures the time for 88,000 client cycles of H-ORB, for which lqsim needs 0.60 s. Run by
//! `make bench-model`.

#![expect(clippy::print_stdout, reason = "a program for people")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Instant;

use plimsoll_lqn::{SimulationEffort, read, simulate};

/// The target of events per second of one core, on H-ORB.
const TARGET: f64 = 15e6;
/// The number of client cycles, and the target of their time in seconds: a sixth of lqsim's.
const ROUNDS: f64 = 88_000.0;
const MOST: f64 = 0.10;

/// Returns the processor time of this thread in seconds, which depends less on other processes than the
/// elapsed time. Returns the elapsed time if the system does not provide it.
fn processor_time() -> f64 {
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let told = told.and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok());
    told.map_or_else(|| BEGUN.elapsed().as_secs_f64(), |nanoseconds| nanoseconds / 1e9)
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

fn main() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    for name in ["paper/horb-n24.lqn", "paper/forb-c8-n24.lqn", "own/lb-00.lqn", "own/exact-mm1-90.lqn"] {
        let text = std::fs::read_to_string(models.join(name)).expect("it stands in the repository");
        let model = read(&text, &BTreeMap::new()).expect("a test reads it").model;
        let effort = SimulationEffort { events: 8_000_000, precision: 0.0, ..SimulationEffort::default() };
        let (mut best, mut each) = (0.0_f64, 0.0);
        for _ in 0..5 {
            let begun = processor_time();
            let found = simulate(&model, &effort).expect("a test simulates it");
            best = best.max(found.events as f64 / (processor_time() - begun));
            let rounds: f64 =
                found.tasks.iter().filter(|own| own.response.is_some()).map(|own| own.throughput.mean).sum();
            each = found.events as f64 / (rounds * (found.time + found.warm_up));
        }
        println!("{name:24} {:6.2} million events/s", best / 1e6);
        // The targets are for the paper's model.
        if name == "paper/horb-n24.lqn" {
            let took = ROUNDS * each / best;
            println!("  target: 15 million events/s or more: {}", verdict(best >= TARGET));
            println!("  88,000 rounds of its clients, {each:.1} events each: {took:.3} s (lqsim 0.60 s)");
            println!("  target: {MOST:.2} s at most: {}", verdict(took <= MOST));
        }
    }
}
