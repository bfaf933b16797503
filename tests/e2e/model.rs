//! Models from the command line: the guide's example, and what is wrong with one.

use std::fs;

use serde_json::Value;

use crate::stage::{Folder, Run};

/// The example of the guide.
fn shop() -> String {
    let guide =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/model.md")).unwrap();
    let begin = guide.find("```\n$clients").unwrap() + 4;
    guide[begin..].split("```").next().unwrap().to_owned()
}

#[test]
fn the_guides_model_is_simulated() {
    let folder = Folder::new();
    folder.write("shop.lqn", shop());
    let run = Run::plimsoll(&["model", "simulate", "shop.lqn", "-o", "json"], folder.path());
    assert_eq!(run.code, Some(0), "{}", run.err);
    let json: Value = serde_json::from_str(&run.out).unwrap();
    let client = &json["findings"]["tasks"][0];
    let (rate, response) =
        (client["throughput"]["mean"].as_f64().unwrap(), client["response"]["mean"].as_f64().unwrap());
    // Little's law: ten clients are thinking, which takes a second, or waiting.
    assert!((rate * (1.0 + response) - 10.0).abs() < 0.2, "{json}");
    let table = Run::plimsoll(&["model", "simulate", "shop.lqn", "--set", "clients=30"], folder.path());
    assert!(table.out.contains("PROCESSOR") && table.out.contains("core"), "{}", table.out);
    assert!(table.err.contains("events in"), "{}", table.err);
    let csv = Run::plimsoll(&["model", "simulate", "shop.lqn", "-o", "csv"], folder.path());
    assert!(csv.out.starts_with("kind,name,metric,mean,half_width\ntask,client,throughput,"), "{}", csv.out);
}

#[test]
fn what_is_wrong_with_a_model_is_said_with_its_place() {
    let folder = Folder::new();
    folder.write("shop.lqn", shop().replace("y client get", "y client got"));
    let run = Run::plimsoll(&["model", "simulate", "shop.lqn"], folder.path());
    assert_eq!(run.code, Some(2));
    assert!(run.err.starts_with("error: shop.lqn:14:12: no entry `got`"), "{}", run.err);
    let run = Run::plimsoll(&["model", "simulate", "no-such.lqn"], folder.path());
    assert!(run.code == Some(2) && run.err.contains("cannot read no-such.lqn"), "{}", run.err);
    let run = Run::plimsoll(&["status", "-o", "csv"], folder.path());
    assert!(run.code == Some(2) && run.err.contains("table and json only"), "{}", run.err);
}
