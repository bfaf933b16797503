//! Tests the models of Petriu, Amer, Majumdar and Abdull-Fatah (Using analytic models for predicting
//! middleware performance, 2000), with the demands implied by its printed numbers. They are compared with
//! another simulation, and with the paper's findings on bottlenecks and its greatest error.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use plimsoll_lqn::analysis::bottleneck::{BottleneckKind, find_bottleneck};
use plimsoll_lqn::{Model, ModelResults, SimulationEffort, read, simulate, solve};

fn text(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/paper");
    fs::read_to_string(folder.join(name)).expect("it stands in the repository")
}

fn model(text: &str) -> Model {
    read(text, &BTreeMap::new()).unwrap_or_else(|trouble| panic!("{trouble}")).model
}

fn found(text: &str) -> (Model, ModelResults) {
    let model = model(text);
    let effort = SimulationEffort { seed: 1, events: 8_000_000, precision: 0.003 };
    let found = simulate(&model, &effort).expect("it ends");
    (model, found)
}

fn response(found: &ModelResults) -> f64 {
    let client = found.tasks.iter().find_map(|task| task.response);
    client.expect("there are clients").mean
}

fn threads(found: &ModelResults, name: &str) -> f64 {
    found.tasks.iter().find(|task| task.name == name).expect("it is there").busy.mean
}

fn processor(found: &ModelResults, name: &str) -> f64 {
    found.processors.iter().find(|own| own.name == name).expect("it is there").busy.mean
}

#[track_caller]
fn near(what: &str, value: f64, expected: f64) {
    within(what, value, expected, 0.015);
}

#[track_caller]
fn within(what: &str, value: f64, expected: f64, part: f64) {
    let off = value / expected - 1.0;
    assert!(off.abs() <= part, "{what}: {value:.4}, not {expected}: {:+.2} %", off * 100.0);
}

/// Returns the text with a policy by which both services are routed according to the servers' loads.
fn routed(text: &str, policy: &str) -> String {
    format!("#pragma route.net2={policy}\n#pragma route.net3={policy}\n{text}")
}

/// Returns H-ORB with 24 clients and these demands, which include an additional 20 ms.
fn demands(sa: f64, sb: f64) -> String {
    let text = text("horb-s250-n24.lqn");
    let mut lines = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        lines.push(match words[..] {
            ["s", name, _, "-1"] if name.starts_with("srvA") => format!("  s {name} {sa} -1"),
            ["s", name, _, "-1"] if name.starts_with("srvB") => format!("  s {name} {sb} -1"),
            _ => line.to_owned(),
        });
    }
    lines.join("\n")
}

#[test]
fn the_handle_driven_architecture_is_within_a_hundredth_and_a_half() {
    let (_, found) = found(&text("horb-n24.lqn"));
    near("response", response(&found), 572.8);
    for (name, value) in [("srvB1", 0.944), ("srvB2", 0.944), ("srvA1", 0.837), ("srvA2", 0.837)] {
        near(name, threads(&found, name), value);
    }
    for (name, value) in [("CPUB1", 0.735), ("CPUB2", 0.735), ("CPUA1", 0.628), ("CPUA2", 0.628)] {
        near(name, processor(&found, name), value);
    }
}

#[test]
fn a_client_alone_takes_longer_by_as_much_as_was_printed() {
    let alone = |delay: &str| {
        let text = text("horb-n1.lqn");
        let line = |line: &str| match line.trim_start().strip_prefix("s net") {
            Some(rest) => format!("  s net{}", rest.replacen("10 ", delay, 1)),
            None => line.to_owned(),
        };
        response(&found(&text.lines().map(line).collect::<Vec<_>>().join("\n")).1)
    };
    let base = alone("250 ");
    for (delay, more) in [("500 ", 1.968), ("1000 ", 3.904)] {
        near(delay, alone(delay) / base, more);
    }
}

#[test]
fn the_forwarding_architecture_too_and_its_bottleneck_moves_from_software_to_hardware() {
    let cases = [
        ("forb-c1-n24.lqn", 1426.4, 0.0060, 0.528, 0.262, 0.220, BottleneckKind::Software, "fagent"),
        ("forb-c8-n24.lqn", 751.1, 0.0039, 1.0, 0.497, 0.417, BottleneckKind::Hardware, "CPUag"),
    ];
    let mut times = Vec::new();
    for (name, time, half, agent, b, a, kind, of) in cases {
        let (model, found) = found(&text(name));
        // The other simulation has an interval, too, of throughputs and so of all of these values. For one
        // clone, this one gives 1447.6 ± 1.5 ms (48 million events), and a third simulator 1455.
        let near = |what: &str, value: f64, expected: f64| within(what, value, expected, 0.015 + half);
        near(name, response(&found), time);
        near("CPUag", processor(&found, "CPUag"), agent);
        near("CPUB", (processor(&found, "CPUB1") + processor(&found, "CPUB2")) / 2.0, b);
        near("CPUA", (processor(&found, "CPUA1") + processor(&found, "CPUA2")) / 2.0, a);
        for found in [&found, &solve(&model).0] {
            let held = find_bottleneck(&model, found).expect("something is used");
            let names: Vec<&str> = held.resources.iter().map(|own| own.name(&model)).collect();
            assert_eq!((held.kind, &names[..], held.is_saturated), (kind, &[of][..], true), "{name}");
        }
        times.push(response(&found));
    }
    let (_, four) = found(&text("forb-c4-n12.lqn").replace("CPUc m 12", "CPUc m 24"));
    near("four clones", response(&four), 768.0);
    // The reduction is 47.3 % in the other simulation; 1.5 % of either time is one percentage point of it.
    let cut = 1.0 - times[1] / times[0];
    assert!((cut - 0.473).abs() <= 0.012, "{cut}");
}

/// Response times at saturation are increased by unbalanced servers, and not by the convoy effect that the
/// paper assumes.
#[test]
fn loads_that_are_old_raise_a_saturated_response_time_and_constant_work_does_not() {
    let chance = demands(270.0, 395.0);
    let time = response(&found(&chance).1);
    let old = response(&found(&routed(&chance, "least_loaded(12150)")).1);
    let fresh = response(&found(&routed(&chance, "least_loaded(0)")).1);
    // Thirty services of a server B, 405 ms each: the paper's greatest error is a factor of 1.22.
    assert!(old / time >= 1.19, "{old} against {time}");
    assert!(fresh / time <= 1.0, "{fresh} against {time}");
    let constant = chance.lines().map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["s", name, ..] => format!("{line}\n  c {name} 0 -1"),
            _ => line.to_owned(),
        }
    });
    let constant = response(&found(&constant.collect::<Vec<_>>().join("\n")).1);
    assert!(constant / time <= 1.0, "{constant} against {time}");
}
