//! Events per second of processor time on the paper's H-ORB (24 clients) and on each model of a folder given:
//! `make bench-model`.

#![expect(clippy::print_stdout, reason = "a program for people")]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use plimsoll_lqn::{Effort, read, simulate};

/// Events per second of one core, on H-ORB.
const TARGET: f64 = 15e6;

fn main() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    for name in ["paper/horb-n24.lqn", "paper/forb-c8-n24.lqn", "own/lb-00.lqn", "own/exact-mm1-90.lqn"] {
        let text = std::fs::read_to_string(models.join(name)).expect("it stands in the repository");
        let model = read(&text, &BTreeMap::new()).expect("a test reads it").model;
        let effort = Effort { events: 8_000_000, precision: 0.0, ..Effort::default() };
        let mut best = 0.0_f64;
        for _ in 0..5 {
            let begun = Instant::now();
            let found = simulate(&model, &effort).expect("a test simulates it");
            best = best.max(found.events as f64 / begun.elapsed().as_secs_f64());
        }
        // The target is one for the paper's model.
        let verdict = match name {
            "paper/horb-n24.lqn" if best >= TARGET => ", target 15.00 or more: met",
            "paper/horb-n24.lqn" => ", target 15.00 or more: MISSED",
            _ => "",
        };
        println!("{name:24} {:6.2} million events/s{verdict}", best / 1e6);
    }
}
