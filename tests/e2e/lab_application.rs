//! The lab's application from end to end: cycles of calls through real balancers, beside a model of them.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::stage::{Folder, Run};

const TEXT: &str = r#"
title = "Cycles"
about = "A test."

[members]
count = 4
workers = 1
service = "none"

[balancer]
health = "off"
threads = 1

[load]
concurrency = 4

[application]
architecture = "forward"
demand = "4ms"
delay = "5ms"
length = "4800"
clones = 2
agent = "8ms"
locate = "500us"
receive = "1ms"
send = "2ms"
client = "500us"

[model]
name = "f-orb"
set = { clients = "concurrency", clones = "clones", sa = "demand", delay = "delay", agent = 8, locate = 0.5, receive = 1, send = 2 }
metrics = { response = ["client.response"], agent = ["fagent.utilization"], cpu_agent = ["CPUag.utilization"], cpu_b = ["CPUB1.utilization", "CPUB2.utilization"] }

[plan]
repetitions = { full = 1, quick = 1 }
batches = { full = 5, quick = 5 }
warmup = { full = "0", quick = "200ms" }
duration = { full = "9s", quick = "3s" }

[[factor]]
vary = "protocol"
full = ["http", "iiop"]
quick = ["http", "iiop"]

[[factor]]
vary = "concurrency"
full = [4]
quick = [4]

[[figure]]
name = "response"
title = "Response time"
x = "concurrency"
y = "response"
series = "protocol"

[[claim]]
says = "No cycle fails"
test = { at_least = { metric = "success", value = 1 } }

[[claim]]
says = "The clones hold the model back, by what is simulated"
test = { bottleneck = { kind = "software", of = ["fagent"] } }

[[claim]]
says = "It says a response time, by formulas"
column = "model"
test = { at_least = { metric = "response", value = 0.05 } }

[[claim]]
required = false
says = "It is not far off"
test = { model_error = { by = "simulated", worst = 0.5 } }
"#;

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Runs the experiment and returns the records of its points.
fn points(folder: &Folder, name: &str, text: &str) -> Vec<Value> {
    folder.write(&format!("{name}.toml"), text);
    let run = Run::plimsoll(&["lab", "run", &format!("{name}.toml")], folder.path());
    assert_eq!(run.code, Some(0), "{} {}", run.out, run.err);
    let results = folder.join(&format!("plimsoll-lab/{name}-quick"));
    let page = fs::read_to_string(results.join("report.html")).unwrap();
    assert!(page.contains("Measured and modelled") && page.contains("http (simulated)"), "{page}");
    let mut folders: Vec<_> =
        fs::read_dir(results.join("points")).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders.iter().map(|point| json(&point.join("point.json"))).collect()
}

#[test]
fn cycles_are_forwarded_by_clones_and_stand_beside_a_model() {
    let folder = Folder::new();
    let text = TEXT.replace("concurrency = 4\n\n[app", "\n[app");
    let points = points(&folder, "forward", &text);
    assert_eq!(points.len(), 2);
    for point in &points {
        let of = |metric: &str| {
            point["estimates"][metric][0].as_f64().unwrap_or_else(|| panic!("{metric}: {point}"))
        };
        // Every cycle has four delays, with work in between.
        assert!(of("response") > 0.04, "{point}");
        for metric in ["agent", "server_a", "server_b", "cpu_a", "cpu_b", "cpu_agent"] {
            // A machine that stands still within the window makes a share of it too large.
            assert!(of(metric) > 0.01, "{metric}: {point}");
        }
        let simulated = &point["predicted"]["simulated"];
        assert!(simulated["values"]["response"][0].as_f64().unwrap() > 0.04, "{point}");
        assert_eq!(simulated["bottleneck"]["of"][0], "fagent", "{point}");
    }
}

#[test]
fn handles_are_had_from_the_redirecting_locator_and_over_http_by_loads_of_an_age() {
    let folder = Folder::new();
    let text = TEXT.replace("concurrency = 4\n\n[app", "\n[app");
    let text = text.replace("architecture = \"forward\"", "architecture = \"handle\"\noverhead = \"2ms\"");
    let text = text.replace("name = \"f-orb\"", "name = \"h-orb\"").replace("clones = \"clones\", ", "");
    let text = text.replace(", locate = 0.5, receive = 1, send = 2", ", overhead = 2");
    let text = text
        .replace("agent = [\"fagent.utilization\"], ", "")
        .replace("agent = 8", "agent = 8, client = 0.5");
    let text =
        text.replace("kind = \"software\", of = [\"fagent\"]", "kind = \"hardware\", of = [\"CPUag\"]");
    // This test does not depend on whether the agent saturates.
    let text = text
        .replace("\n[[claim]]\nsays = \"The clones", "\n[[claim]]\nrequired = false\nsays = \"The clones");
    let located = points(&folder, "handle", &text);
    assert_eq!(located.len(), 2);
    for point in &located {
        assert!(point["estimates"]["pick"][0].as_f64().unwrap() > 0.0, "{point}");
        assert!(point["configurations"]["plimsoll.toml"].is_string(), "{point}");
        assert!(point["configurations"]["balancer-2/plimsoll.toml"].is_string(), "{point}");
    }
    let aged = text.replace(
        "full = [\"http\", \"iiop\"]\nquick = [\"http\", \"iiop\"]",
        "full = [0, 0.5]\nquick = [0, 0.5]",
    );
    let aged = aged
        .replace("vary = \"protocol\"", "vary = \"age\"")
        .replace("series = \"protocol\"", "series = \"age\"");
    folder.write("age.toml", aged);
    let run = Run::plimsoll(&["lab", "run", "age.toml"], folder.path());
    assert_eq!(run.code, Some(0), "{} {}", run.out, run.err);
    let found = fs::read_dir(folder.join("plimsoll-lab/age-quick/points")).unwrap();
    let files: Vec<String> =
        found.map(|entry| fs::read_to_string(entry.unwrap().path().join("plimsoll.toml")).unwrap()).collect();
    let asks = |text: &&String| text.contains("least_loaded") && text.contains("interval = \"500000us\"");
    assert_eq!(files.iter().filter(asks).count(), 1, "{files:?}");
}

#[test]
fn what_cannot_go_with_an_application_is_said() {
    let folder = Folder::new();
    for (from, to, why) in [
        ("count = 4", "count = 3", "has 4 members"),
        (
            "vary = \"protocol\"\nfull = [\"http\", \"iiop\"]\nquick = [\"http\", \"iiop\"]",
            "vary = \"clones\"\nfull = [0]\nquick = [0]",
            "from 1 to 1000",
        ),
        ("name = \"f-orb\"", "name = \"g-orb\"", "no model `g-orb`"),
        ("clones = \"clones\"", "klones = \"clones\"", "klones"),
    ] {
        let text = TEXT.replace("concurrency = 4\n\n[app", "\n[app");
        let text = text.replace(from, to);
        let named = if text.contains("vary = \"clones\"") { "clones" } else { "protocol" };
        folder.write("wrong.toml", text.replace("series = \"protocol\"", &format!("series = \"{named}\"")));
        let run = Run::plimsoll(&["lab", "run", "wrong.toml"], folder.path());
        assert!(run.code == Some(2) && run.err.contains(why), "{why}: {:?} {}", run.code, run.err);
    }
}
