//! Tests the diagrams of all models in `models`: everything is drawn, and nothing overlaps.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use plimsoll_lqn::Model;
use plimsoll_lqn::draw::Diagram;
use plimsoll_lqn::read;

fn model(name: &str) -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(name);
    let text = fs::read_to_string(path).expect("it stands in the repository");
    read(&text, &BTreeMap::new()).expect("a model").model
}

#[test]
fn every_model_is_drawn_with_all_that_is_in_it() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    for part in ["own", "paper", "line"] {
        for file in fs::read_dir(folder.join(part)).unwrap() {
            let name = format!("{part}/{}", file.unwrap().file_name().into_string().unwrap());
            if name.ends_with("LICENSE") {
                continue;
            }
            let model = model(&name);
            let picture = Diagram::of(&model);
            let svg = picture.svg();
            let document = roxmltree::Document::parse(&svg).unwrap_or_else(|why| panic!("{name}: {why}"));
            let texts: Vec<&str> = document.descendants().filter_map(|node| node.text()).collect();
            let terminal = picture.text();
            let tasks = model.tasks.iter().map(|own| &own.name);
            let entries = model.entries.iter().map(|own| &own.name);
            let processors = model.processors.iter().enumerate();
            let used =
                processors.filter(|(place, _)| model.tasks.iter().any(|task| task.processor.0 == *place));
            for own in tasks.chain(entries).chain(used.map(|(_, own)| &own.name)) {
                assert!(texts.contains(&own.as_str()), "{name}: {own}");
                assert!(terminal.contains(own.as_str()), "{name}: {own}");
            }
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{name}");
            apart(&name, &document);
        }
    }
}

/// Checks that the outlines of tasks in each row do not overlap.
fn apart(name: &str, document: &roxmltree::Document<'_>) {
    let mut rows: BTreeMap<i64, Vec<(f64, f64)>> = BTreeMap::new();
    for node in document.descendants() {
        let Some(path) = node.attribute("d") else { continue };
        if !matches!(node.attribute("class"), Some("task" | "task client")) {
            continue;
        }
        // The path is M left top H right L right bottom H left Z; the second outline of a stack is slightly
        // higher.
        let numbers: Vec<f64> = path
            .split(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-'))
            .filter_map(|text| text.parse().ok())
            .collect();
        rows.entry((numbers[1] * 10.0) as i64).or_default().push((numbers[5], numbers[2]));
    }
    for row in rows.values_mut() {
        row.sort_by(|one, other| one.0.total_cmp(&other.0));
        for pair in row.windows(2) {
            assert!(pair[0].1 <= pair[1].0 + 1.0, "{name}: {pair:?}");
        }
    }
}

#[test]
fn layers_calls_and_means_are_those_of_the_model() {
    let picture = Diagram::of(&model("paper/forb-c4-n12.lqn"));
    let layer = |name: &str| {
        picture.layers.iter().position(|layer| layer.iter().any(|task| task.name == name)).unwrap()
    };
    assert_eq!(layer("client"), 0);
    assert!(
        layer("client") < layer("fagent")
            && layer("fagent") < layer("dagent")
            && layer("fagent") < layer("srvA1")
    );
    assert!(layer("srvA1") < layer("net3") && layer("sel") < layer("psA1"));
    let text = picture.text();
    for line in [
        "▱ client {12} clients",
        "○ CPUag {1}",
        "▱ fagent {4}",
        "→ dagent (1)  → net2 (1)  → selA (1)  ⇢ srvA1 (0.5)  ⇢ srvA2 (0.5)",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    // Activities are listed with their calls.
    let text = Diagram::of(&model("line/ex-lqn_bpmn.lqnx")).text();
    assert!(text.contains("→ R1A_Synch_A1_Entry (A1_Empty 1)"), "{text}");
}
