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
fn the_guides_model_is_solved_and_planned() {
    let folder = Folder::new();
    folder.write("shop.lqn", shop());
    let json = |command: &str, more: &[&str]| -> Value {
        let arguments = [&["model", command, "shop.lqn", "-o", "json"][..], more].concat();
        let run = Run::plimsoll(&arguments, folder.path());
        assert_eq!(run.code, Some(0), "{}", run.err);
        serde_json::from_str(&run.out).unwrap()
    };
    let response = |json: &Value| json["findings"]["tasks"][0]["response"]["mean"].as_f64().unwrap();
    let simulated = response(&json("simulate", &[]));
    let solved = json("solve", &[]);
    assert_eq!(solved["convergence"]["converged"], true);
    assert!((response(&solved) / simulated - 1.0).abs() < 0.07, "{solved} {simulated}");
    let planned = json("plan", &["--budget", "20ms"]);
    assert!((response(&planned) / simulated - 1.0).abs() < 0.07, "{planned} {simulated}");
    let part = planned["simulated_parts"][0].as_f64().unwrap();
    assert!(part > 0.1 && part <= 1.0, "{planned}");
    let table = Run::plimsoll(&["model", "plan", "shop.lqn"], folder.path());
    assert!(table.out.contains("SOURCES") && table.out.contains("client response"), "{}", table.out);
    let csv = Run::plimsoll(&["model", "solve", "shop.lqn", "-o", "csv"], folder.path());
    assert!(csv.out.starts_with("kind,name,metric,mean,half_width\ntask,client,throughput,"), "{}", csv.out);
    assert!(csv.err.contains("converged in"), "{}", csv.err);
    let many = json("solve", &["--set", "clients=200"]);
    // The server's two threads are what is full, and not fuller.
    let busy = many["findings"]["tasks"][1]["busy"]["mean"].as_f64().unwrap();
    assert!(busy > 1.9 && busy <= 2.0 + 1e-9, "{many}");
    let flood = shop().replace("  t client r client -1 users z 1 m $clients\n", "").replace(
        "  s client 0 -1\n  y client get 1 -1            # one call, whose answer is waited for\n",
        "  a get 100\n",
    );
    folder.write("flood.lqn", flood);
    let run = Run::plimsoll(&["model", "solve", "flood.lqn"], folder.path());
    assert!(run.code == Some(1) && run.err.contains("more comes from outside"), "{} {:?}", run.err, run.code);
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
