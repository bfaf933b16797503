//! Tests third phases and priorities against closed forms, simulated and solved.
//!
//! Requests from outside are a Poisson stream, and all demands are exponential. Waiting for one thread with
//! several phases is then given by Pollaczek and Khinchine, and waiting with priorities by Cobham (1954),
//! also with preemption.

use std::collections::BTreeMap;

use plimsoll_lqn::{Model, ModelResults, SimulationEffort, read, simulate, solve};

fn model(text: &str) -> Model {
    read(text, &BTreeMap::new()).unwrap_or_else(|trouble| panic!("{trouble}\n{text}")).model
}

fn response(found: &ModelResults, entry: &str) -> f64 {
    let own = found.entries.iter().find(|own| own.name == entry).expect("it is there");
    own.response.expect("it comes from outside").mean
}

/// Compares each entry's response time, simulated and solved, with the true one; `within` is in percent.
fn assert_responses(name: &str, model: &Model, truth: &[(&str, f64)], within: [f64; 2]) {
    let effort = SimulationEffort { events: 3_000_000, precision: 0.0, ..SimulationEffort::default() };
    let played = simulate(model, &effort).expect("it ends");
    let (solved, how) = solve(model);
    assert!(how.converged, "{name}: {how:?}");
    for (entry, truth) in truth {
        for (what, found, within) in [("simulated", &played, within[0]), ("solved", &solved, within[1])] {
            let found = response(found, entry);
            let off = 100.0 * (found / truth - 1.0);
            eprintln!("{name}, {entry}, {what}: {found:.4}, not {truth:.4}: {off:+.2} %");
            assert!(off.abs() <= within, "{name}: {entry} is {what} as {found}, not {truth}");
        }
    }
}

#[test]
fn a_third_phase_is_waited_for_by_the_next_one_only() {
    let phases = [0.2, 0.5, 0.3];
    for rate in [0.3, 0.7] {
        let text = format!(
            "P 0 p cpu f -1 T 0 t srv n srv -1 cpu -1 E 0 a srv {rate} s srv {} {} {} -1 -1",
            phases[0], phases[1], phases[2]
        );
        let model = model(&text);
        let (mean, variance): (f64, f64) = (phases.iter().sum(), phases.iter().map(|own| own * own).sum());
        let truth = rate * (variance + mean * mean) / 2.0 / (1.0 - rate * mean) + phases[0];
        assert_responses(&format!("three phases, {rate}"), &model, &[("srv", truth)], [2.0, 0.1]);
        // All three phases occupy the thread and the processor.
        let played = simulate(
            &model,
            &SimulationEffort { events: 400_000, precision: 0.0, ..SimulationEffort::default() },
        );
        for found in [played.expect("it ends"), solve(&model).0] {
            for busy in [found.tasks[0].busy.mean, found.processors[0].busy.mean] {
                assert!((busy / (rate * mean) - 1.0).abs() < 0.02, "{busy}, not {}", rate * mean);
            }
        }
    }
}

#[test]
fn a_client_that_comes_back_waits_for_both_later_phases() {
    // One client with a think time returns before the end of the second phase, in the third phase, or later.
    let text = "P 0 p pc f i p cpu f i -1 T 0 t cl r cl -1 pc z 1 t srv n srv -1 cpu -1 \
                E 0 s cl 0 -1 f cl 1 -1 y cl srv 1 -1 s srv 0.2 0.5 0.5 -1 -1";
    let model = model(text);
    // With T exponential of mean 1, and X the sum of two with mean 0.5: E[(X - T)+] = E[X] - 1 + E[exp(-X)].
    let waits = 1.0 - 1.0 + (1.0_f64 / 1.5).powi(2);
    let played = simulate(
        &model,
        &SimulationEffort { events: 2_000_000, precision: 0.0, ..SimulationEffort::default() },
    );
    for (found, within) in [(played.expect("it ends"), 1.0), (solve(&model).0, 1.0)] {
        let response = found.tasks[0].response.expect("a client").mean;
        assert!((100.0 * (response / (0.2 + waits) - 1.0)).abs() < within, "{response}, not {}", 0.2 + waits);
    }
}

#[test]
fn who_goes_first_at_a_processor_waits_as_is_known() {
    for (name, rule, means) in [
        ("head of line, alike", "h", [1.0, 1.0]),
        ("head of line, unlike", "h", [0.5, 2.0]),
        ("preemptive, alike", "p", [1.0, 1.0]),
        ("preemptive, unlike", "p", [0.5, 2.0]),
    ] {
        let rates: [f64; 2] = if means[0] == means[1] { [0.3, 0.4] } else { [0.6, 0.2] };
        let text = format!(
            "P 0 p cpu {rule} -1 T 0 t fast n fast -1 cpu 5 i t slow n slow -1 cpu 1 i -1 \
             E 0 a fast {} s fast {} -1 a slow {} s slow {} -1 -1",
            rates[0], means[0], rates[1], means[1]
        );
        let busy = [rates[0] * means[0], rates[1] * means[1]];
        // The mean remaining service at an arrival: half of the mean square, which is twice the square of the
        // mean.
        let left = [busy[0] * means[0], busy[1] * means[1]];
        let free = [1.0 - busy[0], 1.0 - busy[0] - busy[1]];
        let truth = if rule == "h" {
            let all = left[0] + left[1];
            [means[0] + all / free[0], means[1] + all / (free[0] * free[1])]
        } else {
            [means[0] + left[0] / free[0], means[1] / free[0] + (left[0] + left[1]) / (free[0] * free[1])]
        };
        let truth = [("fast", truth[0]), ("slow", truth[1])];
        assert_responses(name, &model(&text), &truth, [2.5, 0.1]);
    }
}
