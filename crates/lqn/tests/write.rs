//! Tests that written models are read again to the same ones: the models in `models`, and random ones.

mod laws;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use laws::{described, written};
use plimsoll_lqn::model::{
    Activity, ActivityId, Call, CallOrder, Entry, EntryBody, EntryId, Multiplicity, Processor, ProcessorId,
    RetryPolicy, Routing, RoutingPolicy, Scheduling, Successors, Task, TaskId, TaskRole,
};
use plimsoll_lqn::read::read_results;
use plimsoll_lqn::write::{ResultOrigin, WriteError};
use plimsoll_lqn::{Model, SimulationEffort, read, simulate, write};
use proptest::prelude::*;

/// Returns all models in the repository, by name.
fn models() -> Vec<(String, Model)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    let mut all = Vec::new();
    for part in ["own", "paper", "line"] {
        for file in fs::read_dir(folder.join(part)).expect("a folder") {
            let path = file.expect("a file").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
            if name != "LICENSE" {
                let text = fs::read_to_string(&path).expect("it stands in the repository");
                all.push((name, read(&text, &BTreeMap::new()).expect("a model").model));
            }
        }
    }
    all
}

#[test]
fn every_model_is_the_same_after_writing_and_reading() {
    let mut formats = 0;
    for (name, model) in models() {
        let own = written(&model);
        assert!(own > 0, "{name}");
        formats += own;
        let again = read(&write::lqnx(&model).unwrap(), &BTreeMap::new()).unwrap().model;
        assert_eq!(again.comment, model.comment, "{name}");
    }
    // All in both formats, except two with a `-` in a name.
    assert_eq!(formats, 240);
}

#[test]
fn text_keeps_the_order_and_so_every_drawn_number() {
    for name in ["horb-n24.lqn", "forb-c4-n12.lqn", "tower-19.lqn", "ex-lqn_bpmn.lqnx"] {
        let (_, model) = models().into_iter().find(|(own, _)| own == name).unwrap();
        let again = read(&write::lqn(&model).unwrap(), &BTreeMap::new()).unwrap().model;
        let effort = SimulationEffort { events: 20_000, precision: 0.5, ..SimulationEffort::default() };
        assert_eq!(simulate(&model, &effort), simulate(&again, &effort), "{name}");
    }
}

#[test]
fn results_stand_in_the_document_and_are_read_again() {
    let (_, model) = models().into_iter().find(|(name, _)| name == "horb-n24.lqn").unwrap();
    let found = simulate(
        &model,
        &SimulationEffort { events: 200_000, precision: 0.5, ..SimulationEffort::default() },
    )
    .unwrap();
    let origin = ResultOrigin {
        program: "a <test>",
        is_accurate: true,
        convergence: 0.5,
        iterations: found.batches as u64,
    };
    let text = write::lqxo(&model, &found, &origin).unwrap();
    // The text is still the model.
    assert_eq!(described(&read(&text, &BTreeMap::new()).unwrap().model), described(&model));
    let read = read_results(&text).unwrap();
    let value = |kind: &str, name: &str, metric: &str| {
        let one = read.iter().find(|own| own.kind == kind && own.name == name && own.metric == metric);
        one.unwrap_or_else(|| panic!("no {metric} of {kind} {name}")).mean
    };
    for own in &found.tasks {
        assert_eq!(value("task", &own.name, "throughput"), own.throughput.mean);
        assert_eq!(value("task", &own.name, "busy"), own.busy.mean);
        if let Some(response) = own.response {
            // By Little's law, of clients that were counted while they were active.
            assert!(
                (value("task", &own.name, "response") / response.mean - 1.0).abs() < 0.02,
                "{response:?}"
            );
        }
    }
    for own in &found.processors {
        assert_eq!(value("processor", &own.name, "busy"), own.busy.mean);
    }
    for (entry, own) in model.entries.iter().zip(&found.entries) {
        if !model.tasks[entry.task.0].is_client() {
            assert_eq!(value("entry", &own.name, "throughput"), own.throughput.mean);
            // A phase is counted from its start to its end, an entry until its reply, which is equal for a
            // single phase.
            assert!((value("entry", &own.name, "service") / own.service.mean - 1.0).abs() < 1e-3, "{own:?}");
        }
    }
    assert!(
        text.contains("<result-conf-95 throughput=\"") && text.contains("solver-info=\"a &lt;test>\""),
        "{text}"
    );
    assert!(read_results("<lqn-model/>").unwrap_err().to_string().contains("no results"));
    let wrong = text.replacen("<result-processor utilization=\"", "<result-processor utilization=\"x", 1);
    assert!(read_results(&wrong).unwrap_err().message.contains("is a number"), "{wrong}");
}

#[test]
fn what_a_format_cannot_say_is_refused_by_name() {
    let (_, mut model) = models().into_iter().find(|(name, _)| name == "horb-n24.lqn").unwrap();
    model.activities[0].order = CallOrder::List;
    assert_eq!(write::lqn(&model), Err(WriteError::ListOrder(model.activities[0].name.clone())));
    assert_eq!(written(&model), 1);
    model.activities[0].order = CallOrder::Stochastic;
    model.tasks[0].name = "the client".to_owned();
    assert_eq!(write::lqn(&model), Err(WriteError::InvalidName("the client".to_owned())));
    assert_eq!(written(&model), 1);
}

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % bound.max(1) as u64) as usize
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Returns a number from 0 to 2, with all its digits.
    fn number(&mut self) -> f64 {
        self.below(2_000_000_007) as f64 / 1e9
    }

    fn copies(&mut self) -> Multiplicity {
        match self.below(5) {
            0 => Multiplicity::Infinite,
            1 | 2 => Multiplicity::Finite(1),
            count => Multiplicity::Finite(count as u32 * 7),
        }
    }
}

/// Creates a model with a few layers: calls lead to later tasks, so that no task waits for itself.
fn made(chance: &mut Chance) -> Model {
    let mut model = Model { comment: "made <by> \"chance\" & so\ton".to_owned(), ..Model::default() };
    for place in 0..1 + chance.below(4) {
        use Scheduling::{Fcfs, HeadOfLine, Preemptive, ProcessorSharing, Random};
        model.processors.push(Processor {
            name: format!("cpu{place}"),
            scheduling: chance.one(&[Fcfs, HeadOfLine, Preemptive, Random, ProcessorSharing]),
            copies: chance.copies(),
            speed: chance.one(&[1.0, 1.0, 0.3, 2.5]),
            replicas: 1,
        });
    }
    let tasks = 2 + chance.below(5);
    for place in 0..tasks {
        let think = if chance.below(2) == 0 { 0.0 } else { chance.number() };
        let role = if place == 0 {
            TaskRole::Client { think }
        } else {
            TaskRole::Server { queue: chance.one(&[Scheduling::Fcfs, Scheduling::HeadOfLine]) }
        };
        let copies =
            if place == 0 { Multiplicity::Finite(1 + chance.below(30) as u32) } else { chance.copies() };
        let mut entries = Vec::new();
        for number in 0..1 + chance.below(3) {
            entries.push(EntryId(model.entries.len()));
            model.entries.push(Entry {
                name: format!("e{place}_{number}"),
                task: TaskId(place),
                arrivals: if place > 0 && chance.below(4) == 0 { chance.number() } else { 0.0 },
                priority: chance.one(&[0, 0, 0, 2]),
                forwards: Vec::new(),
                routing: None,
                body: EntryBody::Phases(Vec::new()),
            });
        }
        let processor = ProcessorId(chance.below(model.processors.len()));
        let priority = chance.below(3) as i32;
        let limited = !matches!(role, TaskRole::Client { .. })
            && copies != Multiplicity::Infinite
            && chance.below(4) == 0;
        let queue_limit = limited.then(|| chance.below(30) as u32);
        let name = format!("t{place}");
        model.tasks.push(Task {
            name,
            role,
            processor,
            copies,
            replicas: 1,
            fan_out: Vec::new(),
            priority,
            queue_limit,
            entries,
        });
    }
    for place in 0..tasks {
        behave(&mut model, place, chance);
    }
    replicate(&mut model, chance);
    model
}

/// Replicates all tasks, clients alone or all but clients, with matching fan-outs.
fn replicate(model: &mut Model, chance: &mut Chance) {
    let (many, who) = (2 + chance.below(3) as u32, chance.below(5));
    for (place, task) in model.tasks.iter_mut().enumerate() {
        let replicated = match who {
            0 => true,
            1 => place == 0,
            2 => place > 0,
            _ => false,
        };
        task.replicas = if replicated { many } else { 1 };
    }
    for place in 0..model.processors.len() {
        let all =
            model.tasks.iter().filter(|task| task.processor.0 == place).all(|task| task.replicas == many);
        model.processors[place].replicas = if all && chance.below(2) == 0 { many } else { 1 };
    }
    let mut asked: Vec<(usize, usize)> = Vec::new();
    for own in &model.activities {
        asked.extend(own.calls.iter().map(|call| (own.task.0, model.entries[call.entry.0].task.0)));
    }
    let forwards = |from: usize, to: usize| {
        let own = model.entries.iter().filter(|own| own.task.0 == from);
        own.flat_map(|own| &own.forwards).any(|(entry, _)| model.entries[entry.0].task.0 == to)
    };
    asked.retain(|(from, to)| !forwards(*from, *to));
    asked.sort_unstable();
    asked.dedup();
    for (from, to) in asked {
        let fan_out = match (model.tasks[from].replicas, model.tasks[to].replicas) {
            (1, there) => there,
            (_, 1) => 1,
            (_, there) => 1 + chance.below(there as usize) as u32,
        };
        if fan_out != 1 {
            model.tasks[from].fan_out.push((TaskId(to), fan_out));
        }
    }
}

/// Creates the bodies of a task's entries: activities of graphs first, in the order of the parsers.
fn behave(model: &mut Model, place: usize, chance: &mut Chance) {
    let entries = model.tasks[place].entries.clone();
    let later: Vec<EntryId> =
        (0..model.entries.len()).map(EntryId).filter(|id| model.entries[id.0].task.0 > place).collect();
    let graphs: Vec<bool> = entries.iter().map(|_| chance.below(3) == 0).collect();
    let mut joins = 0;
    for (entry, _) in entries.iter().zip(&graphs).filter(|(_, graph)| **graph) {
        let name = model.entries[entry.0].name.clone();
        let first = model.activities.len();
        for letter in ["a", "b", "c", "d"] {
            let own = activity(format!("{name}_{letter}"), place, &later, chance);
            model.activities.push(own);
        }
        let [a, b, c, d] = [0, 1, 2, 3].map(|more| ActivityId(first + more));
        let to = |id| Successors::Or(vec![(1.0, id)]);
        let (next_a, next_b, next_c) = match chance.below(5) {
            0 => (to(b), to(c), to(d)),
            1 => (Successors::Or(vec![(0.25, b), (0.75, c)]), to(d), to(d)),
            2 => {
                let wanted = 1 + chance.below(2) as u32;
                let join = Successors::Join { join: joins, wanted, branches: 2, then: Box::new(to(d)) };
                joins += 1;
                (Successors::And(vec![b, c]), join.clone(), join)
            }
            3 => (
                Successors::Loop { bodies: vec![(chance.number(), b), (2.0, c)], exit: Some(d) },
                Successors::End,
                Successors::End,
            ),
            _ => (Successors::Or(vec![(0.1, b), (0.2, c), (0.7, d)]), Successors::End, to(d)),
        };
        (
            model.activities[a.0].successors,
            model.activities[b.0].successors,
            model.activities[c.0].successors,
        ) = (next_a, next_b, next_c);
        if place > 0 {
            model.activities[chance.one(&[b, d]).0].replies.push(*entry);
        }
        model.entries[entry.0].body = EntryBody::Graph(a);
    }
    for (entry, _) in entries.iter().zip(&graphs).filter(|(_, graph)| !**graph) {
        let name = model.entries[entry.0].name.clone();
        let mut phases = Vec::new();
        let count = 1 + chance.below(3);
        for number in 1..=count {
            let mut own = activity(format!("{name}_{number}"), place, &later, chance);
            if number == count {
                // A last phase without work would not exist.
                own.demand += 0.5;
            }
            phases.push(ActivityId(model.activities.len()));
            model.activities.push(own);
        }
        model.entries[entry.0].body = EntryBody::Phases(phases);
    }
    if place > 0 && !later.is_empty() {
        for entry in entries {
            if chance.below(3) == 0 {
                let (one, other) = (chance.one(&later), chance.one(&later));
                model.entries[entry.0].forwards = vec![(one, 0.3), (other, chance.number() / 3.0)];
                if chance.below(2) == 0 {
                    let (_, policy) = chance.one(&RoutingPolicy::ALL);
                    let age = if policy.uses_loads() { chance.number() } else { 0.0 };
                    model.entries[entry.0].routing = Some(Routing { policy, max_age: age });
                    model.entries[entry.0].forwards[1].1 = 0.7;
                }
            }
        }
    }
}

fn activity(name: String, place: usize, later: &[EntryId], chance: &mut Chance) -> Activity {
    let order = chance.one(&[
        CallOrder::Stochastic,
        CallOrder::Stochastic,
        CallOrder::Deterministic,
        CallOrder::List,
    ]);
    let mut calls = Vec::new();
    if !later.is_empty() {
        for _ in 0..chance.below(4) {
            let count =
                1.0 + if order == CallOrder::Stochastic { chance.number() } else { chance.below(3) as f64 };
            let waits = chance.below(4) > 0;
            let patience = (waits && chance.below(4) == 0).then(|| RetryPolicy {
                timeout: if chance.below(3) == 0 { f64::INFINITY } else { chance.number() },
                retries: chance.below(4) as u32,
                backoff: chance.one(&[0.0, 0.25]),
            });
            calls.push(Call { entry: chance.one(later), count, waits, retry_policy: patience });
        }
    }
    Activity {
        name,
        task: TaskId(place),
        demand: chance.number(),
        variation: chance.one(&[1.0, 1.0, 0.0, 0.25, 4.0]),
        think: chance.one(&[0.0, 0.0, 0.125]),
        order,
        calls,
        replies: Vec::new(),
        successors: Successors::End,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_model_made_by_chance_is_the_same_after_writing_and_reading(seed: u64) {
        let model = made(&mut Chance(seed));
        prop_assert!(written(&model) >= 1);
    }
}
