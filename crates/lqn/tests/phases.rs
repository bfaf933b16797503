//! Second phases, which go on after the caller was answered: what formulas make of them, beside simulations.
//!
//! The set that others publish with exact answers has no licence and does not stand here. These are of the same kind: a few
//! clients, servers that have one thread each and call one another in either phase. They are hard on purpose: in a third of them one
//! client shares a thread with the only other one, and most of the work is in the second phase.
//!
//! The target is a mean of 7 %. Formulas miss it here: 9.9 %, and 7.7 % where there are several clients. The bounds below keep that
//! from growing.

use std::collections::BTreeMap;

use plimsoll_lqn::{Effort, Model, read, simulate, solve};

fn model(text: &str) -> Model {
    read(text, &BTreeMap::new()).unwrap_or_else(|trouble| panic!("{trouble}\n{text}")).model
}

/// Work of the first and the second phase of a front end and of a store, and how often the front end asks in each.
type Works = ([f64; 2], [f64; 2], [f64; 2]);

fn set() -> Vec<(String, Model)> {
    let works: [Works; 6] = [
        ([1.0, 1.0], [1.0, 0.0], [1.0, 0.0]),
        ([1.0, 1.0], [0.5, 0.5], [1.0, 1.0]),
        ([0.2, 1.0], [0.5, 1.0], [0.5, 0.5]),
        ([1.0, 0.2], [0.3, 0.6], [2.0, 0.0]),
        ([0.1, 0.5], [0.2, 1.5], [0.0, 2.0]),
        ([0.5, 2.0], [0.1, 0.3], [1.0, 3.0]),
    ];
    let mut all = Vec::new();
    for (number, (front, store, asks)) in works.into_iter().enumerate() {
        for (clients, think) in [(1, 0.5), (2, 1.0), (5, 4.0)] {
            for apart in [true, false] {
                // Two tasks of clients; each server on its own processor, or both on one.
                let cpu = if apart { "pb" } else { "pa" };
                let text = format!(
                    "P 0 p pc f i p pa f p pb f -1 T 0 t one r one -1 pc z {think} m {clients} t two r two -1 pc z {think} m 1 \
                     t front n front other -1 pa t store n store -1 {cpu} -1 E 0 \
                     s one 0.1 -1 y one front 1 -1 s two 0.3 -1 y two other 1.5 -1 s front {} {} -1 y front store {} {} -1 \
                     s other 0.4 0.4 -1 y other store 0.5 0.5 -1 s store {} {} -1 -1",
                    front[0], front[1], asks[0], asks[1], store[0], store[1]
                );
                all.push((format!("{number}, {clients} clients, apart: {apart}"), model(&text)));
            }
        }
    }
    all
}

#[test]
fn throughputs_with_second_phases_are_as_close_as_is_said() {
    let mut errors = Vec::new();
    for (name, model) in set() {
        let effort = Effort { events: 400_000, precision: 0.002, ..Effort::default() };
        let played = simulate(&model, &effort).expect("it ends");
        let (solved, how) = solve(&model);
        assert!(how.converged, "{name}: {how:?}");
        // Clients and what they ask for.
        let clients = solved.tasks.iter().zip(&played.tasks).filter(|(own, _)| own.response.is_some());
        let clients = clients.map(|(own, other)| (&own.name, own.throughput, other.throughput));
        let entries = solved.entries.iter().zip(&played.entries).zip(&model.entries);
        let entries = entries.filter(|(_, entry)| !model.tasks[entry.task.0].is_client());
        let entries = entries.map(|((own, other), _)| (&own.name, own.throughput, other.throughput));
        for (who, own, played) in clients.chain(entries) {
            errors.push((100.0 * (own.mean / played.mean - 1.0), format!("{name}: {who}")));
        }
    }
    errors.sort_by(|one, other| other.0.abs().total_cmp(&one.0.abs()));
    let mean = errors.iter().map(|(off, _)| off.abs()).sum::<f64>() / errors.len() as f64;
    let p95 = errors[errors.len() / 20].0.abs();
    eprintln!(
        "{} throughputs, off by {mean:.2} % in the mean, 95 of 100 by {p95:.2} %; worst:",
        errors.len()
    );
    errors.iter().take(6).for_each(|(off, name)| eprintln!("  {off:+6.2} %  {name}"));
    let several: Vec<f64> =
        errors.iter().filter(|own| !own.1.contains(", 1 clients")).map(|own| own.0.abs()).collect();
    let crowd = several.iter().sum::<f64>() / several.len() as f64;
    eprintln!("of several clients: {crowd:.2} %");
    assert!(errors.len() == 180 && mean <= 10.5, "{mean} %");
    assert!(several.len() == 120 && crowd <= 8.2, "{crowd} %");
}
