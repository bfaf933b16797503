//! Tests invalid texts and degenerate models: they are refused with a position or read, without panics and
//! endless loops.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use plimsoll_lqn::{SimulationEffort, read, simulate, solve};
use proptest::prelude::*;

fn text(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(name))
        .expect("it stands in the repository")
}

fn trouble(text: &str) -> String {
    read(text, &BTreeMap::new()).map(|_| ()).expect_err(text).to_string()
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let small = "G \"small\" 1e-6 50 -1\nP 0\n  p cpu f\n  p pc f i\n-1\n\
                 T 0\n  t cl r cl -1 pc m 3\n  t srv n srv -1 cpu\n-1\n\
                 E 0\n  s cl 0 -1\n  y cl srv 1 -1\n  s srv 2 -1\n-1\n";
    assert!(read(small, &BTreeMap::new()).is_ok());
    for (from, to, why) in [
        ("p cpu f", "p cpu x", "3:9: no scheduling `x`"),
        ("-1 cpu", "-1 gpu", "8:18: no processor `gpu`"),
        ("y cl srv", "y cl svr", "12:8: no entry `svr`"),
        ("s srv 2", "s srv $d", "`$d` has no value"),
        ("p cpu f", "p cpu f r 0", "of replicas there is a whole number from 1"),
        ("-1 pc m 3", "-1 pc m 0", "there cannot be 0 of it"),
        ("s srv 2 -1", "s srv 2 -1\n  y srv cl 1 -1", "14:9: `cl` is a reference task and is called"),
        ("s srv 2 -1", "s srv 2 -1\n  z srv cl 1 -1", "14:9: `cl` is a reference task and is called"),
        ("s srv 2 -1", "s srv 2 -1\n  F srv cl 1 -1", "14:9: `cl` is a reference task and is called"),
        ("t cl r", "t cl n", "nothing ever happens"),
        ("T 0", "S 0", "no section `S`"),
        ("s srv 2 -1", "s srv 2 -1\n  f srv 1 -1\n  y srv srv 1 -1", "`srv` waits for itself"),
        ("s cl 0 -1", "s cl 0 -1\n  f cl 1 -1\n  y cl srv 1.5 -1", "exactly 1.5 times"),
    ] {
        let wrong = small.replace(from, to);
        let said = trouble(&wrong);
        assert!(said.contains(why), "{from} -> {to}: {said}");
    }
    let said = trouble("<lqn-model>\n <processor name=\"p\" scheduling=\"odd\"/>\n</lqn-model>");
    assert!(said.starts_with("2:") && said.contains("scheduling `odd`"), "{said}");
    assert!(trouble("<lqn-model><processor").contains("no XML"));
    let given = BTreeMap::from([("clients".to_owned(), 3.0)]);
    let said = read(small, &given).unwrap_err().to_string();
    assert!(said.contains("no parameter `$clients`"), "{said}");
}

#[test]
fn a_parameter_has_several_values_and_can_be_given_another() {
    let text = "$n = [1, 2, 4]\n$d = $n * 2\nG \"\" 1 1 -1\nP 0 p pc f i p cpu f -1\n\
                T 0 t cl r cl -1 pc m $n t srv n srv -1 cpu -1\nE 0 s cl 0 -1 y cl srv 1 -1 s srv $d -1 -1";
    let model = |given: &[(&str, f64)]| {
        let given = given.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        read(text, &given).unwrap()
    };
    let own = model(&[]);
    assert_eq!(own.parameters, [("n".to_owned(), vec![1.0, 2.0, 4.0]), ("d".to_owned(), vec![2.0])]);
    let other = model(&[("n", 3.0)]);
    assert_eq!(format!("{:?}", other.model.tasks[0].copies), "Finite(3)");
    assert_eq!(other.model.activities.iter().map(|own| own.demand).sum::<f64>(), 6.0);
}

#[test]
fn what_cannot_be_simulated_says_so() {
    let still = "G \"\" 1 1 -1 P 0 p pc f i -1 T 0 t cl r cl -1 pc m 1 -1 E 0 s cl 0 -1 -1";
    let model = read(still, &BTreeMap::new()).unwrap().model;
    let said = simulate(&model, &SimulationEffort::default()).unwrap_err().to_string();
    assert!(said.contains("takes no time"), "{said}");
    let flood = "G \"\" 1 1 -1 P 0 p cpu f -1 T 0 t srv n srv -1 cpu -1 E 0 a srv 10 s srv 1 -1 -1";
    let model = read(flood, &BTreeMap::new()).unwrap().model;
    let said = simulate(&model, &SimulationEffort { precision: 0.001, ..SimulationEffort::default() })
        .unwrap_err()
        .to_string();
    assert!(said.contains("more comes than can be served"), "{said}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_text_that_was_damaged_is_read_or_refused(
        which in 0..4_usize,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..6),
    ) {
        let name = [
            "own/tower-03.lqn",
            "paper/forb-c4-n12.lqn",
            "line/ex-example.lqnx",
            "line/ex-lqn_bpmn.lqnx",
        ][which];
        let mut bytes = text(name).into_bytes();
        for (place, byte, how) in damage {
            let place = place.index(bytes.len());
            match how {
                0 => bytes[place] = byte,
                1 => drop(bytes.remove(place)),
                _ => bytes.truncate(place.max(10)),
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        if let Ok(read) = read(&text, &BTreeMap::new()) {
            // Any model that is read can be solved and simulated.
            let (found, _) = solve(&read.model);
            prop_assert!(found.tasks.iter().all(|task| task.throughput.mean.is_finite()));
            let effort = SimulationEffort { events: 2_000, precision: 0.5, ..SimulationEffort::default() };
            let _ = simulate(&read.model, &effort);
        }
    }
}
