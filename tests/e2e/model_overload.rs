//! Models with more load than capacity: every command reports that, and none computes times.

use serde_json::Value;

use crate::stage::{Folder, Run};

#[test]
fn overload_is_said_and_has_no_times() {
    let folder = Folder::new();
    let text =
        |rate: f64| format!("P 0\np c f\n-1\nT 0\nt a n ae -1 c\n-1\nE 0\na ae {rate}\ns ae 1 -1\n-1\n");
    folder.write("some.lqn", text(0.5));
    folder.write("more.lqn", text(1.2));
    let told = "more comes";
    let sweep = |method: &str| {
        let args =
            ["model", "sweep", "some.lqn", "--set", "ae.arrivals=0.5,1.2", "--method", method, "-o", "json"];
        let run = Run::plimsoll(&args, folder.path());
        assert_eq!(run.code, Some(0), "{}", run.err);
        assert!(run.err.contains("1 of 2 points cannot be solved") && run.err.contains(told), "{}", run.err);
        let json: Value = serde_json::from_str(&run.out).unwrap();
        assert!(json["points"][0]["lines"].is_array(), "{json}");
        assert!(json["points"][1]["error"].as_str().is_some_and(|why| why.contains(told)), "{json}");
    };
    for method in ["solve", "simulate", "plan"] {
        sweep(method);
    }
    let all = ["model", "sweep", "some.lqn", "--set", "ae.arrivals=1.1,1.2"];
    assert_eq!(Run::plimsoll(&all, folder.path()).code, Some(1), "no point has an answer");
    for command in ["solve", "simulate", "plan", "bottleneck"] {
        let run = Run::plimsoll(&["model", command, "more.lqn", "-o", "json"], folder.path());
        assert!(run.code == Some(1) && run.err.contains(told), "{command}: {:?} {}", run.code, run.err);
        let run = Run::plimsoll(&["model", command, "some.lqn"], folder.path());
        assert_eq!(run.code, Some(0), "{command}: {}", run.err);
    }
    let run = Run::plimsoll(&["model", "bottleneck", "more.lqn", "-o", "json"], folder.path());
    assert!(run.json()["now"]["response"].is_null(), "{}", run.out);
    let goal = ["model", "capacity", "some.lqn", "--goal", "response>0.5", "-o", "json"];
    let run = Run::plimsoll(&goal, folder.path());
    let load = run.json()["load"].as_f64().or_else(|| run.json()["capacity"].as_f64());
    assert!(load.is_none_or(|load| load <= 1.0), "{}", run.out);
    assert!(run.out.contains("ae"), "{}", run.out);
}

#[test]
fn a_file_that_is_no_text_is_refused_with_its_place() {
    let folder = Folder::new();
    std::fs::write(folder.join("m.lqn"), b"P 0\n p \xff f\n").unwrap();
    let run = Run::plimsoll(&["model", "solve", "m.lqn"], folder.path());
    assert!(run.code == Some(2) && run.err.contains("m.lqn: 2:4: this is no UTF-8 text"), "{}", run.err);
}
