//! Tests the errors of the solver over all models in `models` with known results, and that it solves the
//! others. `cargo test -p plimsoll-lqn --test accuracy -- --nocapture` prints the errors.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_lqn::combined::SolvedPoint;
use plimsoll_lqn::model::{Model, Multiplicity, TaskRole};
use plimsoll_lqn::{
    ModelResults, SimulationEffort, anchored_sweep, anchors, combine_estimates, is_reliable, read, simulate,
    solve, solved_lines,
};
use serde_json::Value;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models")
}

fn table(name: &str) -> BTreeMap<String, Value> {
    let bytes = fs::read(folder().join(name)).expect("it stands in the repository");
    serde_json::from_slice(&bytes).expect("it is JSON")
}

fn models() -> Vec<(String, Model)> {
    let mut all = Vec::new();
    for part in ["own", "paper", "line"] {
        let files = fs::read_dir(folder().join(part)).expect("it stands in the repository");
        for file in files.flatten() {
            let name = format!("{part}/{}", file.file_name().to_string_lossy());
            if name.ends_with("LICENSE") {
                continue;
            }
            let text = fs::read_to_string(file.path()).expect("it can be read");
            let read = read(&text, &BTreeMap::new()).unwrap_or_else(|trouble| panic!("{name}:{trouble}"));
            all.push((name, read.model));
        }
    }
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

/// The throughput and response time of clients and of requests from outside, by name.
type Numbers = BTreeMap<String, [f64; 2]>;

fn numbers(found: &ModelResults) -> Numbers {
    let clients = found.tasks.iter().filter_map(|task| Some((&task.name, task.throughput, task.response?)));
    let open =
        found.entries.iter().filter_map(|entry| Some((&entry.name, entry.throughput, entry.response?)));
    clients.chain(open).map(|(name, x, r)| (name.clone(), [x.mean, r.mean])).collect()
}

/// Returns the known results of a model: exact ones, or those of other tools' long simulations.
fn known(
    name: &str,
    model: &Model,
    exact: &BTreeMap<String, Value>,
    simulated: &BTreeMap<String, Value>,
) -> Numbers {
    let stem = name.trim_start_matches("own/").trim_end_matches(".lqn");
    let number = |value: &Value| value.as_f64().expect("a number");
    let mut all = Numbers::new();
    if let Some(truth) = exact.get(stem) {
        let client = model.tasks.iter().find(|task| task.is_client()).map(|task| &task.name);
        let open = model.entries.iter().find(|entry| entry.arrivals > 0.0).map(|entry| &entry.name);
        let who = client.or(open).expect("somebody asks");
        all.insert(who.clone(), [number(&truth["X"]), number(&truth["R"])]);
        return all;
    }
    let Some(truth) = simulated.get(name) else { return all };
    for task in &model.tasks {
        if let (TaskRole::Client { think }, Multiplicity::Finite(clients)) = (task.role, task.copies) {
            let x = number(&truth["task"][&task.name]["X"]);
            let r = match task.entries[..] {
                [only] => number(&truth["entry"][&model.entries[only.0].name]["S"]),
                _ => f64::from(clients) / x - think,
            };
            all.insert(task.name.clone(), [x, r]);
        }
    }
    for entry in model.entries.iter().filter(|entry| entry.arrivals > 0.0) {
        let own = &truth["entry"][&entry.name];
        all.insert(entry.name.clone(), [number(&own["X"]), number(&own["open-wait-time"])]);
    }
    all
}

/// Errors in percent with their names, the greatest first.
struct Errors(Vec<(f64, String)>);

impl Errors {
    fn new(mut all: Vec<(f64, String)>) -> Self {
        all.sort_by(|one, other| other.0.abs().total_cmp(&one.0.abs()));
        Self(all)
    }

    fn mean(&self) -> f64 {
        self.0.iter().map(|own| own.0.abs()).sum::<f64>() / self.0.len() as f64
    }

    /// Returns the 95th percentile.
    fn p95(&self) -> f64 {
        self.0[self.0.len() / 20].0.abs()
    }

    fn worst(&self) -> f64 {
        self.0[0].0.abs()
    }

    fn say(&self, what: &str) {
        eprintln!(
            "{what}: {} numbers, mean {:.2} %, p95 {:.2} %; worst:",
            self.0.len(),
            self.mean(),
            self.p95()
        );
        for (off, name) in self.0.iter().take(6) {
            eprintln!("  {off:+7.2} %  {name}");
        }
    }
}

fn off(found: f64, truth: f64) -> f64 {
    100.0 * (found / truth - 1.0)
}

#[test]
fn the_solver_is_as_close_as_is_said() {
    let (exact, simulated) = (table("exact.json"), table("simulated.json"));
    let (mut throughputs, mut responses) = (Vec::new(), Vec::new());
    let (mut rates, mut exactly) = (Vec::new(), Vec::new());
    for (name, model) in models() {
        let found = numbers(&solve(&model).0);
        for (who, [x, r]) in known(&name, &model, &exact, &simulated) {
            let own = found[&who];
            let label = format!("{name} {who}");
            throughputs.push((off(own[0], x), label.clone()));
            responses.push((off(own[1], r), label.clone()));
            if name.contains("exact") {
                rates.push((off(own[0], x), label.clone()));
                exactly.push((off(own[1], r), label));
            }
        }
    }
    let [throughputs, responses, rates, exactly] = [throughputs, responses, rates, exactly].map(Errors::new);
    throughputs.say("throughput");
    responses.say("response time");
    rates.say("throughput, exactly known");
    exactly.say("response time, exactly known");
    assert!(throughputs.mean() <= 2.5 && responses.mean() <= 3.0 && responses.p95() <= 9.0);
    assert!(rates.0.len() == 12 && rates.worst() <= 1.0);
    assert!(exactly.0.len() == 12 && exactly.worst() <= 1.0);
}

/// A SplitMix64 generator.
struct Draw(u64);

impl Draw {
    fn one<T: Copy>(&mut self, from: &[T]) -> T {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        from[((mixed ^ (mixed >> 31)) % from.len() as u64) as usize]
    }
}

/// Changes clients, threads, cores and demands at random, like `examples/solver.rs`.
fn changed(model: &Model, draw: &mut Draw) -> Model {
    let mut model = model.clone();
    let mut scale = |copies: &mut Multiplicity, by: &[f64]| {
        if let Multiplicity::Finite(count) = copies {
            *count = ((f64::from(*count) * draw.one(by)).round() as u32).max(1);
        }
    };
    for task in &mut model.tasks {
        let by: &[f64] = if task.is_client() { &[0.4, 0.7, 1.0, 1.6] } else { &[0.5, 1.0, 1.0, 2.0] };
        scale(&mut task.copies, by);
    }
    for processor in &mut model.processors {
        scale(&mut processor.copies, &[1.0, 1.0, 2.0]);
    }
    for activity in &mut model.activities {
        activity.demand *= draw.one(&[0.6, 1.0, 1.0, 1.5]);
    }
    model
}

/// Models to which nothing was fitted have the same bounds: each model is changed once and simulated.
#[test]
fn the_solver_is_as_close_on_models_that_it_has_not_seen() {
    let (mut throughputs, mut responses) = (Vec::new(), Vec::new());
    let mut draw = Draw(7);
    for (name, model) in models() {
        let model = changed(&model, &mut draw);
        let effort = SimulationEffort { events: 600_000, precision: 0.004, ..SimulationEffort::default() };
        let Ok(run) = simulate(&model, &effort) else { continue };
        let (found, how) = solve(&model);
        assert!(how.converged, "{name}: {how:?}");
        let found = numbers(&found);
        for (who, [x, r]) in numbers(&run) {
            let own = found[&who];
            throughputs.push((off(own[0], x), format!("{name} {who}")));
            if r > 0.0 {
                responses.push((off(own[1], r), format!("{name} {who}")));
            }
        }
    }
    let [throughputs, responses] = [throughputs, responses].map(Errors::new);
    throughputs.say("throughput, changed");
    responses.say("response time, changed");
    assert!(throughputs.0.len() > 150 && throughputs.mean() <= 2.5);
    assert!(responses.mean() <= 3.0 && responses.p95() <= 9.0);
}

#[test]
fn every_model_has_a_solution_that_holds_together() {
    for (name, model) in models() {
        let (found, how) = solve(&model);
        assert!(how.converged, "{name}: {how:?}");
        for (task, own) in model.tasks.iter().zip(&found.tasks) {
            if let Multiplicity::Finite(count) = task.copies {
                assert!(
                    own.busy.mean <= f64::from(count) * (1.0 + 1e-9),
                    "{name}: {} is {:?}",
                    own.name,
                    own.busy
                );
            }
            if let (TaskRole::Client { think }, Multiplicity::Finite(count), Some(response)) =
                (task.role, task.copies, own.response)
            {
                let there = own.throughput.mean * (think + response.mean);
                assert!(
                    (there / f64::from(count) - 1.0).abs() < 1e-6,
                    "{name}: {there} of {count} {}",
                    own.name
                );
            }
        }
        for (processor, own) in model.processors.iter().zip(&found.processors) {
            if let Multiplicity::Finite(count) = processor.copies {
                assert!(
                    own.busy.mean <= f64::from(count) * (1.0 + 1e-9),
                    "{name}: {} is {:?}",
                    own.name,
                    own.busy
                );
            }
        }
    }
}

#[test]
fn a_plan_is_closer_than_either() {
    let (exact, simulated) = (table("exact.json"), table("simulated.json"));
    let (mut alone, mut planned) = (Vec::new(), Vec::new());
    for (name, model) in models() {
        let truth = known(&name, &model, &exact, &simulated);
        if truth.is_empty() {
            continue;
        }
        // Models share names and so random streams: each gets seeds of its own.
        let first = 11 + 2 * planned.len() as u64;
        let runs: Vec<ModelResults> = [first, first + 1]
            .map(|seed| {
                simulate(&model, &SimulationEffort { seed, events: 100_000, precision: 0.0 }).unwrap()
            })
            .into();
        let (run, plan) = (numbers(&runs[0]), numbers(&combine_estimates(&model, &runs).findings));
        for (who, [_, r]) in truth {
            alone.push((off(run[&who][1], r), format!("{name} {who}")));
            planned.push((off(plan[&who][1], r), format!("{name} {who}")));
        }
    }
    let [alone, planned] = [alone, planned].map(Errors::new);
    alone.say("response time, one short simulation");
    planned.say("response time, planned from two of them");
    assert!(planned.mean() < 0.75 * alone.mean() && planned.mean() <= 1.5 && planned.p95() <= 5.0);
}

#[test]
fn a_sweep_is_right_at_points_that_were_not_simulated() {
    let (_, base) = models().into_iter().find(|(name, _)| name == "paper/horb-n24.lqn").unwrap();
    let points: Vec<Model> = (1..=16)
        .map(|step| {
            let mut model = base.clone();
            for task in model.tasks.iter_mut().filter(|task| task.is_client()) {
                task.copies = Multiplicity::Finite(3 * step);
            }
            model
        })
        .collect();
    let run = |model: &Model, seed| {
        simulate(model, &SimulationEffort { seed, events: 2_000_000, precision: 0.0 }).unwrap()
    };
    let anchors = [0, 7, 15].map(|place: usize| (place, run(&points[place], 1)));
    let solved: Vec<ModelResults> = points.iter().map(|model| solve(model).0).collect();
    let along: Vec<usize> = (0..points.len()).collect();
    let swept = anchored_sweep(&points, &solved, &along, &anchors);
    let mut errors = Vec::new();
    for (model, found) in points.iter().zip(&swept) {
        for (who, [_, r]) in numbers(&run(model, 2)) {
            errors.push((off(numbers(found)[&who][1], r), format!("{who} {:?}", model.tasks[0].copies)));
        }
    }
    let errors = Errors::new(errors);
    errors.say("response time, swept from three simulations");
    assert!(errors.p95() <= 4.0 && errors.mean() <= 2.0);
}

/// Returns the analytic results of points along lines, and the number of points solved.
fn lines(points: &[Model], lines: &[Vec<usize>]) -> (Vec<SolvedPoint>, usize) {
    let asked = Cell::new(0);
    let solved = solved_lines(points.len(), lines, &|places| {
        asked.set(asked.get() + places.len());
        let one = |place: &usize| {
            let (found, how) = solve(&points[*place]);
            (found, is_reliable(&points[*place], &how))
        };
        places.iter().map(one).collect()
    });
    (solved, asked.get())
}

#[test]
fn what_is_not_solved_of_a_sweep_lies_on_the_line_between() {
    let (_, base) = models().into_iter().find(|(name, _)| name == "paper/horb-n24.lqn").unwrap();
    let with = |clients: u32, speed: f64| {
        let mut model = base.clone();
        model.tasks[0].copies = Multiplicity::Finite(clients);
        model.processors.iter_mut().filter(|own| own.name == "CPUB1").for_each(|own| own.speed = speed);
        model
    };
    // A line of clients, then three lines with different speeds of a server.
    let one: Vec<Model> = (1..=120).map(|clients| with(clients, 1.0)).collect();
    let many: Vec<Model> =
        (1..=60).flat_map(|clients| [0.5, 1.0, 2.0].map(|speed| with(clients, speed))).collect();
    // The longer a line, the smaller the share of solved points.
    for (points, count, part) in [(one, 1, 0.5), (many, 3, 0.75)] {
        let along = (0..count).map(|line| (line..points.len()).step_by(count).collect());
        let (solved, asked) = lines(&points, &along.collect::<Vec<_>>());
        assert_eq!(solved.len(), points.len());
        assert!(
            asked as f64 <= part * points.len() as f64 && solved.iter().all(|(_, sure)| *sure),
            "{asked}"
        );
        let mut most = 0.0_f64;
        for (model, (own, _)) in points.iter().zip(&solved) {
            let exact = numbers(&solve(model).0);
            for (who, [x, r]) in numbers(own) {
                most = most.max(off(x, exact[&who][0]).abs()).max(off(r, exact[&who][1]).abs());
            }
        }
        eprintln!("{asked} of {} points solved, the others off by {most:.3} % at most", points.len());
        assert!(most < 0.4, "{most}");
    }
    // Without lines every point is solved.
    let few: Vec<Model> = (1..=5).map(|clients| with(clients, 1.0)).collect();
    assert_eq!(lines(&few, &[]).1, 5);
}

/// Runs a sweep like the `sweep` command by default: 200 points, from 1/50 of the clients to four times as
/// many, of which five are simulated within the budget.
#[test]
fn two_hundred_points_are_right_by_the_simulation_of_five() {
    let (mut alone, mut errors) = (Vec::new(), Vec::new());
    let names = [
        "paper/horb-n24.lqn",
        "paper/forb-c4-n12.lqn",
        "own/tower-08.lqn",
        "own/tower-10.lqn",
        "own/lb-25.lqn",
    ];
    for (name, base) in models().into_iter().filter(|(name, _)| names.contains(&name.as_str())) {
        let clients = |step: u32| {
            let mut model = base.clone();
            for task in model.tasks.iter_mut().filter(|task| task.is_client()) {
                if let Multiplicity::Finite(count) = &mut task.copies {
                    *count = (*count * step).div_ceil(50);
                }
            }
            model
        };
        let points: Vec<Model> = (1..=200).map(clients).collect();
        let places: Vec<usize> = (0..points.len()).collect();
        let (solved, asked) = lines(&points, &[places]);
        eprintln!("{name}: {asked} points solved");
        assert!(solved.iter().all(|(_, sure)| *sure), "{name}");
        let solved: Vec<ModelResults> = solved.into_iter().map(|(found, _)| found).collect();
        let run = |place: usize, seed, events| {
            simulate(&points[place], &SimulationEffort { seed, events, precision: 0.0 }).unwrap()
        };
        let along: Vec<usize> = (0..points.len()).collect();
        let places = anchors(&points.iter().zip(&solved).collect::<Vec<_>>());
        let runs: Vec<(usize, ModelResults)> = places
            .iter()
            .map(|place| {
                let runs = [1, 2].map(|seed| run(*place, seed, 500_000));
                (*place, combine_estimates(&points[*place], &runs).findings)
            })
            .collect();
        eprintln!("{name}: {places:?}");
        let swept = anchored_sweep(&points, &solved, &along, &runs);
        for place in [4, 14, 29, 49, 74, 99, 149, 189] {
            for (who, [_, r]) in numbers(&run(place, 3, 600_000)) {
                let label = format!("{name} {who} at {}", place + 1);
                alone.push((off(numbers(&solved[place])[&who][1], r), label.clone()));
                errors.push((off(numbers(&swept[place])[&who][1], r), label));
            }
        }
    }
    let [alone, errors] = [alone, errors].map(Errors::new);
    alone.say("response time, 200 points solved");
    errors.say("response time, 200 points swept from five simulations");
    assert!(errors.0.len() >= 40 && errors.p95() <= 4.0 && errors.mean() < alone.mean());
}

/// Tests features that are rare in the repository's models, relative to a simulation.
#[test]
fn rare_things_are_solved_too() {
    let shop = |scheduling: &str| {
        format!(
            "P 0 p pc f i p cpu {scheduling} -1 T 0 t rich r rich -1 pc z 8 m 4 t poor r poor -1 pc z 8 m 6 \
             t fast n fast -1 cpu 5 i t slow n slow -1 cpu 1 i -1 \
             E 0 s rich 0 -1 y rich fast 1 -1 s poor 0 -1 y poor slow 1 -1 s fast 1 -1 s slow 1 -1 -1"
        )
    };
    let fork = "P 0 p pc f i p one f p two f p app f -1 T 0 t cl r cl -1 pc z 10 m 5 t app n app -1 app m 3 \
                t left n left -1 one t right n right -1 two -1 \
                E 0 s cl 0 -1 y cl app 1 -1 A app begin s left 1 -1 s right 0.7 -1 -1 \
                A app s begin 0.2 s a 0.1 s b 0.1 s end 0.3 y a left 1 y b right 1 \
                : begin -> a & b ; a & b -> end ; end[app] -1";
    let sent = "P 0 p pc f i p cpu f p log f -1 T 0 t cl r cl -1 pc z 5 m 8 t srv n srv -1 cpu t log n log \
                -1 log -1 \
                E 0 s cl 0 -1 y cl srv 1 -1 s srv 0.5 -1 z srv log 1 -1 s log 0.6 -1 -1";
    for (name, text, within) in [
        ("preemptive", shop("p"), 6.0),
        ("head of line", shop("h"), 10.0),
        ("fork and join", fork.to_owned(), 8.0),
        ("not waited for", sent.to_owned(), 3.0),
    ] {
        let text = format!("G \"\" 1 1 -1 {text}");
        let model = read(&text, &BTreeMap::new()).unwrap_or_else(|trouble| panic!("{name}: {trouble}")).model;
        let (found, how) = solve(&model);
        assert!(how.converged, "{name}: {how:?}");
        let run = simulate(
            &model,
            &SimulationEffort { events: 400_000, precision: 0.0, ..SimulationEffort::default() },
        )
        .unwrap();
        let found = numbers(&found);
        for (who, [_, r]) in numbers(&run) {
            let off = off(found[&who][1], r);
            eprintln!("{name} {who}: {off:+.2} % of {r}");
            assert!(off.abs() <= within, "{name}: {who} is {} instead of {r}", found[&who][1]);
        }
    }
}
