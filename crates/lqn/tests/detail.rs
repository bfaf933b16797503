//! Tests the analytic results of phases, activities and calls against a simulation, and as other tools read
//! them.

use std::collections::BTreeMap;

use plimsoll_lqn::analysis::{ACTIVITY, result_lines};
use plimsoll_lqn::write::{ResultOrigin, lqxo};
use plimsoll_lqn::{Model, ModelResults, SimulationEffort, combine_estimates, read, simulate, solve};

/// A model in which clients call a server with two phases, which calls another one and sends messages to a
/// log. Requests from outside are forwarded to the same server. An application is a graph and continues after
/// its reply.
const TEXT: &str = "G \"\" 1 1 -1 P 0 p pc f i p cpu f m 2 p disk f p box f -1 \
    T 0 t cl r cl -1 pc z 15 m 5 t app n app -1 box m 3 t srv n srv -1 cpu m 2 t lb i lb -1 pc t store n \
    store -1 disk \
    t log n log -1 disk -1 \
    E 0 s cl 0 -1 f cl 1 -1 y cl app 1 -1 A app begin s srv 0.3 0.4 -1 y srv store 0.5 0 -1 z srv log 0 0.5 \
    -1 a lb 0.3 s lb 0 -1 F lb srv 1 -1 \
    s store 0.2 -1 s log 0.25 -1 -1 \
    A app s begin 0.1 s left 0.2 s right 0.3 s join 0 s tail 0.4 y left srv 1 \
    : begin -> (0.5)left + (0.5)right ; left + right -> join ; join[app] -> tail -1";

fn model() -> Model {
    read(TEXT, &BTreeMap::new()).unwrap_or_else(|why| panic!("{why}\n{TEXT}")).model
}

fn played(model: &Model) -> ModelResults {
    simulate(model, &SimulationEffort { events: 1_000_000, precision: 0.0, ..SimulationEffort::default() })
        .expect("it ends")
}

fn text(model: &Model, found: &ModelResults) -> String {
    let origin = ResultOrigin { program: "test", is_accurate: true, convergence: 0.0, iterations: 1 };
    lqxo(model, found, &origin).expect("its names are words")
}

#[test]
fn every_phase_and_activity_takes_as_long_as_it_does_in_a_simulation() {
    let model = model();
    let (solved, how) = solve(&model);
    assert!(how.converged, "{how:?}");
    let played = played(&model);
    assert_eq!(solved.activities.len(), model.activities.len());
    for (own, other) in solved.activities.iter().zip(&played.activities) {
        assert_eq!(own.name, other.name);
        let off = |own: f64, other: f64| (own - other).abs() <= 0.1 * other + 1e-6;
        assert!(off(own.throughput.mean, other.throughput.mean), "{own:?} {other:?}");
        assert!(off(own.service.mean, other.service.mean), "{own:?} {other:?}");
    }
    // A client's only phase is its cycle.
    let client = &solved.activities[model.activities.iter().position(|own| own.name == "cl_1").unwrap()];
    let round = solved.tasks[0].response.unwrap().mean;
    assert!((client.service.mean / round - 1.0).abs() < 1e-6, "{client:?} {round}");
    // As lines, there are only those of entries with several phases or a graph.
    let names: Vec<String> = result_lines(&model, &solved)
        .into_iter()
        .filter(|line| line.kind == ACTIVITY && line.metric == "service")
        .map(|line| line.name)
        .collect();
    assert!(names.contains(&"srv_2".to_owned()) && names.contains(&"tail".to_owned()), "{names:?}");
    assert!(!names.contains(&"store_1".to_owned()), "{names:?}");
}

#[test]
fn calls_wait_each_as_long_as_their_entry_lets_them_in_the_mean() {
    let model = model();
    let (solved, _) = solve(&model);
    // There are two paths to the server: from a graph, and by forwarding.
    let of = |from: &str, to: &str| {
        let found = solved.calls.iter().find(|own| own.from == from && own.to == to);
        found.unwrap_or_else(|| panic!("{from} {to}: {:?}", solved.calls))
    };
    let entry = |name: &str| solved.entries.iter().find(|own| own.name == name).unwrap();
    let (call, forward, server) = (of("left", "srv"), of("lb", "srv"), entry("srv"));
    let [least, most] = [call, forward].map(|own| own.waiting.mean);
    let (least, most) = (least.min(most), least.max(most));
    assert!(least > 0.0 && (least..=most).contains(&server.waiting.mean), "{call:?} {forward:?} {server:?}");
    let log = of("srv_2", "log");
    assert!(
        (log.response.mean / (log.waiting.mean + entry("log").service.mean) - 1.0).abs() < 1e-9,
        "{log:?}"
    );
    let plan = combine_estimates(&model, &[played(&model)]);
    assert_eq!(plan.findings.calls.len(), solved.calls.len());
    assert_eq!(plan.findings.activities.len(), solved.activities.len());
}

#[test]
fn what_was_solved_stands_in_the_document_like_what_was_simulated() {
    let model = model();
    let (solved, played) = (solve(&model).0, played(&model));
    // Returns all numbers of an attribute, in the order of the text.
    let numbers = |text: &str, element: &str, name: &str| -> Vec<f64> {
        let lines = text.lines().filter(|line| line.trim_start().starts_with(&format!("<{element} ")));
        let value = |line: &str| line.split(&format!(" {name}=\"")).nth(1)?.split('"').next()?.parse().ok();
        lines.filter_map(value).collect()
    };
    let (one, other) = (text(&model, &solved), text(&model, &played));
    for (element, name, count) in [
        ("result-activity", "service-time", 11),
        ("result-activity", "utilization", 11),
        ("result-entry", "utilization", 6),
        ("result-entry", "proc-utilization", 6),
        ("result-entry", "phase2-service-time", 1),
        ("result-task", "proc-utilization", 6),
        ("result-task", "phase1-utilization", 1),
        ("result-task", "phase2-utilization", 1),
    ] {
        let (own, others) = (numbers(&one, element, name), numbers(&other, element, name));
        assert_eq!((own.len(), others.len()), (count, count), "{element} {name}\n{one}\n{other}");
        for (own, other) in own.iter().zip(&others) {
            assert!(
                (own - other).abs() <= 0.1 * other + 1e-6,
                "{element} {name}: {own} {other}\n{one}\n{other}"
            );
        }
    }
    // The solver provides all waiting times; a simulation only those of entries with one source.
    assert_eq!(one.matches("<result-call waiting=").count(), 5, "{one}");
    assert_eq!(other.matches("<result-call waiting=").count(), 3, "{other}");
    for text in [&one, &other] {
        let call = text.split("<asynch-call dest=\"log\"").nth(1).unwrap();
        let waiting: f64 =
            call.split("waiting=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
        // The time until the end of service is more than the demand alone.
        assert!(waiting > 0.25, "{waiting}");
    }
    assert!(one.split("<forwarding ").nth(1).unwrap().contains("<result-call waiting="), "{one}");
    assert_eq!(read(&one, &BTreeMap::new()).unwrap().model.entries.len(), model.entries.len());
}

/// Threads that only hold a request while another task works for it do not change results, whatever their
/// number. They are equivalent to threads that work themselves.
#[test]
fn a_pool_above_what_works_counts_as_one_that_works() {
    let solved = |text: String| {
        let model = read(&text, &BTreeMap::new()).expect("a model").model;
        let (found, how) = solve(&model);
        assert!(how.converged, "{text}");
        found.tasks[0].response.expect("clients").mean
    };
    let clients = "t cl r ce -1 c z 10 m 18";
    let entries = "s ce 0 -1\n f ce 1 -1\n y ce ae 1 -1";
    for threads in [1, 2, 4, 8, 16, 18] {
        let above = solved(format!(
            "P 0\n p c f i\n p d f\n-1\nT 0\n {clients}\n t a n ae -1 c m {threads}\n t b i be -1 d\n-1\n\
             E 0\n {entries}\n s ae 0 -1\n \
             f ae 1 -1\n y ae be 1 -1\n s be 0.4 -1\n-1\n"
        ));
        let itself = solved(format!(
            "P 0\n p c f i\n p d f\n-1\nT 0\n {clients}\n t a n ae -1 d m {threads}\n-1\n\
            E 0\n {entries}\n s ae 0.4 -1\n-1\n"
        ));
        assert!((above / itself - 1.0).abs() < 1e-6, "{threads}: {above} {itself}");
        // The result of mean value analysis, which does not depend on the threads.
        assert!((above / 0.9581 - 1.0).abs() < 0.09, "{threads}: {above}");
    }
}

/// The solver's waiting time is wrong by a third here, as a short simulation shows.
#[test]
fn a_plan_leaves_formulas_that_a_simulation_refutes() {
    let text = "P 0\n p c s 0.01 m 2\n p d f\n-1\nT 0\n t a n ae -1 c m 4\n t b n be -1 d m 2\n-1\n\
                E 0\n a ae 1.5\n s ae 0.4 -1\n \
                f ae 1 -1\n y ae be 1 -1\n s be 0.4 -1\n-1\n";
    let model = read(text, &BTreeMap::new()).expect("a model").model;
    let play = |seed, events| {
        simulate(&model, &SimulationEffort { seed, events, precision: 0.001 }).expect("it ends")
    };
    let truth = play(9, 4_000_000).entries[0].waiting.mean;
    let run = play(1, 300_000);
    let found = combine_estimates(&model, &[run]);
    let (own, formulas) = (found.findings.entries[0].waiting, found.solved.entries[0].waiting.mean);
    assert!((formulas / truth - 1.0).abs() > 0.15, "{formulas} {truth}");
    assert!((own.mean - truth).abs() < 1.5 * own.half_width, "{own:?} {formulas} {truth}");
}
