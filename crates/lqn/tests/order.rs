//! Tests the order of calls whose numbers are exact.

use std::collections::BTreeMap;

use plimsoll_lqn::model::CallOrder;
use plimsoll_lqn::{Model, ModelResults, SimulationEffort, read, simulate};

fn model(text: &str, order: CallOrder) -> Model {
    let mut model = read(text, &BTreeMap::new()).unwrap_or_else(|trouble| panic!("{trouble}\n{text}")).model;
    model.activities[0].order = order;
    model
}

fn run(model: &Model) -> ModelResults {
    simulate(model, &SimulationEffort { events: 60_000, precision: 0.0, ..SimulationEffort::default() })
        .expect("it ends")
}

/// Returns a model with clients and two servers with constant demands.
fn two(clients: u32, pragma: &str) -> String {
    format!(
        "{pragma}\nP 0 p pc f i p pa f p pb f -1 T 0 t cl r cl -1 pc m {clients} t sa n sa -1 pa t sb n sb \
         -1 pb -1 \
         E 0 s cl 0 -1 f cl 1 -1 y cl sa 1 -1 y cl sb 1 -1 s sa 1 -1 c sa 0 -1 s sb 1 -1 c sb 0 -1 -1"
    )
}

#[test]
fn who_goes_by_a_list_meets_nobody_who_is_a_step_ahead() {
    let text = two(2, "");
    // One client is at the first server while the other is at the second, for ever.
    let listed = run(&model(&text, CallOrder::List));
    let response = |found: &ModelResults| found.tasks[0].response.unwrap().mean;
    assert!((response(&listed) - 2.0).abs() < 1e-9, "{:?}", listed.tasks[0]);
    // Without an order they meet.
    let any = run(&model(&text, CallOrder::Deterministic));
    assert!(response(&any) > 2.2, "{:?}", any.tasks[0]);
    assert!((any.entries[1].throughput.mean / any.entries[2].throughput.mean - 1.0).abs() < 0.01);
}

#[test]
fn what_stands_first_in_a_list_is_done_first() {
    // Calls to the first server always time out, and the rest of the cycle is skipped.
    let text = two(1, "#pragma call.cl.sa=timeout(0.25)");
    let mut model = model(&text, CallOrder::List);
    let first = run(&model);
    assert!(
        first.entries[2].throughput.mean == 0.0 && first.entries[1].throughput.mean > 0.9,
        "{:?}",
        first.entries
    );
    model.activities[0].calls.reverse();
    let last = run(&model);
    assert!(last.entries[2].throughput.mean > 0.5, "{:?}", last.entries);
    // Calls are made as often as given, in sequence: three of the first before the second.
    model.activities[0].calls[0].count = 3.0;
    let thrice = run(&model);
    let ratio = thrice.entries[2].throughput.mean / thrice.tasks[0].throughput.mean;
    assert!((ratio - 3.0).abs() < 0.01, "{ratio}");
}
