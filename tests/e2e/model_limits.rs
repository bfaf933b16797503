//! The warnings of commands for models: what they leave out, and what they have not seen.

use serde_json::Value;

use crate::stage::{Folder, Run};

/// Clients with little patience before a short queue; formulas know neither.
const LIMITS: &str = "$clients = 20\n#pragma queue.srv=2\n#pragma call.cl.srv=timeout(1) retries(1)\nP 0\n p \
    pc f i\n p cpu f\n-1\n\
    T 0\n t cl r cl -1 pc m $clients z 5\n t srv n srv -1 cpu\n-1\nE 0\n s cl 0 -1\n y cl srv 1 -1\n s srv \
    0.3 -1\n-1\n";

const SAID: &str = "warning: solved as if it were not there: the limit of the queue of `srv`";

fn json(run: &Run) -> Value {
    serde_json::from_str(&run.out).unwrap_or_else(|why| panic!("{why}: {}{}", run.out, run.err))
}

#[test]
fn every_command_says_what_formulas_leave_out() {
    let folder = Folder::new();
    folder.write("limits.lqn", LIMITS);
    let run = |arguments: &[&str]| {
        let all = [&["model", arguments[0], "limits.lqn", "-o", "json"], &arguments[1..]].concat();
        Run::plimsoll(&all, folder.path())
    };
    for arguments in [
        &["solve"][..],
        &["plan", "--budget", "10ms"],
        &["sweep", "--set", "clients=2,4", "--method", "solve"],
        &["capacity", "--goal", "response<2", "--method", "solve"],
        &["bottleneck", "--method", "solve"],
        &["compare", "--events", "50000"],
    ] {
        let run = run(arguments);
        assert_eq!(run.code, Some(0), "{arguments:?}: {}", run.err);
        assert_eq!(run.err.matches(SAID).count(), 1, "{arguments:?}: {}", run.err);
        let left_out = json(&run)["left_out"].take();
        assert_eq!(left_out.as_array().map(Vec::len), Some(2), "{arguments:?}: {left_out}");
        assert_eq!(left_out[0], "the limit of the queue of `srv`", "{arguments:?}: {left_out}");
    }
    // A simulation leaves nothing out.
    for arguments in [
        &["sweep", "--set", "clients=2,4", "--events", "50000"][..],
        &["capacity", "--goal", "response<2", "--to", "4", "--events", "50000"],
        &["bottleneck", "--events", "50000"],
    ] {
        let run = run(arguments);
        assert!(
            run.code == Some(0) && !run.err.contains("as if it were not there"),
            "{arguments:?}: {}",
            run.err
        );
        assert_eq!(json(&run)["left_out"], Value::Array(Vec::new()), "{arguments:?}");
    }
}

#[test]
fn a_plan_that_comes_to_no_end_has_failed() {
    let folder = Folder::new();
    folder.write(
        "flood.lqn",
        "P 0\n p cpu f\n-1\nT 0\n t srv n srv -1 cpu\n-1\nE 0\n a srv 100\n s srv 1 -1\n-1\n",
    );
    let run = Run::plimsoll(&["model", "plan", "flood.lqn", "--budget", "10ms"], folder.path());
    assert!(
        run.code == Some(1) && run.err.contains("error: more comes from outside than can be served"),
        "{}",
        run.err
    );
    // The rounds take no time.
    folder.write("still.lqn", "P 0\n p pc f i\n-1\nT 0\n t cl r cl -1 pc\n-1\nE 0\n s cl 0 -1\n-1\n");
    let run = Run::plimsoll(&["model", "plan", "still.lqn", "-o", "json"], folder.path());
    assert!(
        run.code == Some(1) && run.err.contains("more and more is done and takes no time"),
        "{}",
        run.err
    );
    assert!(json(&run)["stuck"].as_str().unwrap().contains("takes no time"), "{}", run.out);
}

#[test]
fn a_client_that_finished_nothing_is_named() {
    let folder = Folder::new();
    let text = "P 0\n p pc f i\n p cpu f\n p slow f i\n-1\nT 0\n t cl r cl -1 pc m 3\n t once r once -1 \
                slow\n t srv n srv -1 cpu\n-1\n\
                E 0\n s cl 1 -1\n y cl srv 1 -1\n s once 100000000 -1\n s srv 1 -1\n-1\n";
    folder.write("rare.lqn", text);
    let simulate = ["model", "simulate", "rare.lqn", "--events", "50000"];
    let run = Run::plimsoll(&simulate, folder.path());
    assert!(
        run.code == Some(1) && run.err.contains("warning: nothing of `once` came to an end"),
        "{}",
        run.err
    );
    let run = Run::plimsoll(&[&simulate[..], &["-o", "json"]].concat(), folder.path());
    let findings = &json(&run)["findings"];
    assert_eq!((&findings["precise"], &findings["unseen"][0]), (&false.into(), &"once".into()), "{findings}");
    assert_eq!(findings["tasks"][1]["response"], Value::Null, "{findings}");
    let sweep = ["model", "sweep", "rare.lqn", "--set", "cl.threads=2,3", "--events", "50000"];
    // Formulas know what takes that long.
    let run = Run::plimsoll(&sweep, folder.path());
    assert!(run.code == Some(0) && !run.err.contains("nothing came to an end"), "{}", run.err);
    let played = ["--method", "simulate"];
    let run = Run::plimsoll(&[&sweep[..], &played].concat(), folder.path());
    assert!(run.err.contains("warning: at 2 of 2 points nothing came to an end"), "{}", run.err);
    let goal = ["model", "capacity", "rare.lqn", "--goal", "response<9", "--load", "cl.threads"];
    let run = Run::plimsoll(&[&goal[..], &["--events", "50000"], &played].concat(), folder.path());
    assert!(run.code == Some(1) && run.err.contains("nothing of once came to an end"), "{}", run.err);
}

/// A sweep writes the interval beside each value that it simulated, and a fit reads them.
#[test]
fn a_sweep_writes_the_intervals_of_all_its_numbers() {
    let folder = Folder::new();
    folder.write("limits.lqn", LIMITS.replace("#pragma", "# pragma"));
    let sweep = ["model", "sweep", "limits.lqn", "--set", "clients=2,9", "--events", "60000", "-o", "csv"];
    let run = Run::plimsoll(&sweep, folder.path());
    assert_eq!(run.code, Some(0), "{}", run.err);
    let head: Vec<&str> = run.out.lines().next().unwrap().split(',').collect();
    for name in ["task.cl.response", "task.srv.utilization", "entry.srv.waiting", "processor.cpu.busy"] {
        let place = head.iter().position(|own| *own == format!("{name}.half_width"));
        let place = place.unwrap_or_else(|| panic!("no half of {name} in {head:?}"));
        for row in run.out.lines().skip(1) {
            assert!(row.split(',').nth(place).unwrap().parse::<f64>().unwrap() > 0.0, "{name}: {row}");
        }
    }
    assert!(!run.out.contains("p95.half_width"), "{head:?}");
    folder.write("measured.csv", &run.out);
    let fit = ["model", "fit", "limits.lqn", "--measured", "measured.csv", "--method", "solve", "-o", "json"];
    let run = Run::plimsoll(&fit, folder.path());
    assert_eq!(run.code, Some(0), "{}", run.err);
    let own = json(&run)["fit"]["parameters"][0].take();
    assert_eq!(own["name"], "srv.demand", "{own}");
    assert!((own["value"].as_f64().unwrap() / 0.3 - 1.0).abs() < 0.05, "{own}");
}
