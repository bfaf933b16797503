//! Compares the solver with simulations: the errors of its throughputs and response times, and its running
//! time. First the models in `tests/models` with known results, and a sweep of 200 points. Then random
//! changes of each model (clients, threads, demands, cores; from a seed), which are simulated here. Run by
//! `make bench-model`.
//!
//! The first argument is a part of the models' names, or a folder of other models. The second one is the
//! number of changes of each model; 0 simulates the unchanged models, and without it nothing is simulated.

#![expect(clippy::print_stdout, reason = "a program for people")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use plimsoll_lqn::model::{Model, Multiplicity, TaskRole};
use plimsoll_lqn::simulate::simulate_while;
use plimsoll_lqn::{
    ModelResults, SimulationEffort, anchored_sweep, anchors, combine_estimates, is_reliable, read, simulate,
    solve, solved_lines,
};
use serde_json::Value;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models")
}

fn json(name: &str) -> BTreeMap<String, Value> {
    serde_json::from_slice(&fs::read(folder().join(name)).expect("it stands in the repository"))
        .expect("it is JSON")
}

fn models() -> Vec<(String, Model)> {
    let mut all = Vec::new();
    for part in ["own", "paper", "line"] {
        for file in fs::read_dir(folder().join(part)).expect("it stands in the repository").flatten() {
            let name = format!("{part}/{}", file.file_name().to_string_lossy());
            let text = fs::read_to_string(file.path()).unwrap_or_default();
            if let Ok(read) = read(&text, &BTreeMap::new()) {
                all.push((name, read.model));
            }
        }
    }
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

fn models_in(folder: &Path) -> Vec<(String, Model)> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).ok()?;
        Some((path.file_name()?.to_string_lossy().into_owned(), read(&text, &BTreeMap::new()).ok()?.model))
    };
    files.filter_map(|file| read(file.path())).collect()
}

/// The throughput and response time of clients and of requests from outside, by name.
type Numbers = BTreeMap<String, (f64, f64)>;

fn numbers(found: &ModelResults) -> Numbers {
    let clients = found.tasks.iter().filter_map(|task| Some((&task.name, task.throughput, task.response?)));
    let open =
        found.entries.iter().filter_map(|entry| Some((&entry.name, entry.throughput, entry.response?)));
    clients.chain(open).map(|(name, x, r)| (name.clone(), (x.mean, r.mean))).collect()
}

fn known(
    name: &str,
    model: &Model,
    exact: &BTreeMap<String, Value>,
    simulated: &BTreeMap<String, Value>,
) -> Option<Numbers> {
    let stem = name.trim_start_matches("own/").trim_end_matches(".lqn");
    let mut all = Numbers::new();
    if let Some(truth) = exact.get(stem) {
        let client = model.tasks.iter().find(|task| task.is_client()).map(|task| task.name.clone());
        let open = model.entries.iter().find(|entry| entry.arrivals > 0.0).map(|entry| entry.name.clone());
        all.insert(client.or(open)?, (truth["X"].as_f64()?, truth["R"].as_f64()?));
        return Some(all);
    }
    let truth = simulated.get(name)?;
    for task in &model.tasks {
        if let (TaskRole::Client { think }, Multiplicity::Finite(clients)) = (task.role, task.copies) {
            let x = truth["task"][&task.name]["X"].as_f64()?;
            let r = match task.entries[..] {
                [only] => truth["entry"][&model.entries[only.0].name]["S"].as_f64()?,
                _ => f64::from(clients) / x - think,
            };
            all.insert(task.name.clone(), (x, r));
        }
    }
    for entry in model.entries.iter().filter(|entry| entry.arrivals > 0.0) {
        let own = &truth["entry"][&entry.name];
        if let (Some(x), Some(r)) = (own["X"].as_f64(), own["open-wait-time"].as_f64()) {
            all.insert(entry.name.clone(), (x, r));
        }
    }
    Some(all)
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

fn changed(model: &Model, draw: &mut Draw) -> Model {
    let mut model = model.clone();
    let mut scale = |copies: &mut Multiplicity, by: &[f64]| {
        if let Multiplicity::Finite(count) = copies {
            *count = ((f64::from(*count) * draw.one(by)).round() as u32).max(1);
        }
    };
    let clients: Vec<bool> = model.tasks.iter().map(|task| task.is_client()).collect();
    for (task, client) in model.tasks.iter_mut().zip(clients) {
        scale(&mut task.copies, if client { &[0.4, 0.7, 1.0, 1.6] } else { &[0.5, 1.0, 1.0, 2.0] });
    }
    for processor in &mut model.processors {
        scale(&mut processor.copies, &[1.0, 1.0, 2.0]);
    }
    for activity in &mut model.activities {
        activity.demand *= draw.one(&[0.6, 1.0, 1.0, 1.5]);
    }
    model
}

#[derive(Default)]
struct Errors {
    throughput: Vec<(f64, String)>,
    response: Vec<(f64, String)>,
    times: Vec<(f64, String)>,
    lost: Vec<String>,
}

impl Errors {
    fn add(&mut self, name: &str, model: &Model, truth: &Numbers) {
        let begun = Instant::now();
        let (found, how) = solve(model);
        let took = begun.elapsed().as_secs_f64() * 1e3;
        self.times.push((took, name.to_owned()));
        if !how.converged {
            self.lost.push(format!("{name} ({} rounds, {:.1e})", how.iterations, how.residual));
        }
        let own = numbers(&found);
        for (who, (x, r)) in truth {
            let (own_x, own_r) = own.get(who).copied().unwrap_or_default();
            let label = format!("{name} {who}");
            self.throughput.push(((own_x / x - 1.0) * 100.0, label.clone()));
            if *r > 0.0 {
                self.response.push(((own_r / r - 1.0) * 100.0, label));
            }
        }
    }

    fn say(&mut self, title: &str) {
        println!("{title}: {} models", self.times.len());
        for (what, errors) in [("throughput", &mut self.throughput), ("response", &mut self.response)] {
            errors.sort_by(|one, other| other.0.abs().total_cmp(&one.0.abs()));
            let count = errors.len().max(1);
            let mean = errors.iter().map(|(off, _)| off.abs()).sum::<f64>() / count as f64;
            let at = |part: f64| {
                errors.get(((count as f64) * (1.0 - part)) as usize).map_or(0.0, |own| own.0.abs())
            };
            println!("  {what:10} mean {mean:.2} %, median {:.2} %, p95 {:.2} %", at(0.5), at(0.95));
            let targets: &[(&str, f64, f64)] = match what {
                "throughput" => &[("mean", mean, 2.5)],
                _ => &[("mean", mean, 3.0), ("p95", at(0.95), 9.0)],
            };
            for (which, found, most) in targets {
                verdict(&format!("{what}, {which}"), *found, *most, "%");
            }
            for (off, name) in errors.iter().take(12) {
                println!("    {off:+7.2} %  {name}");
            }
        }
        self.times.sort_by(|one, other| other.0.total_cmp(&one.0));
        let median = self.times.get(self.times.len() / 2).map_or(0.0, |own| own.0);
        println!("  time       median {median:.3} ms; longest:");
        for (took, name) in self.times.iter().take(3) {
            println!("    {took:7.2} ms {name}");
        }
        verdict("time, median", median, 1.0, "ms");
        verdict("time, worst", self.times.first().map_or(0.0, |own| own.0), 50.0, "ms");
        verdict("not converged", self.lost.len() as f64, 0.0, "");
        println!("  not converged: {} {:?}", self.lost.len(), &self.lost[..self.lost.len().min(10)]);
    }
}

/// Prints a number and whether it meets its target.
fn verdict(what: &str, found: f64, most: f64, unit: &str) {
    let verdict = if found <= most { "met" } else { "MISSED" };
    println!("  target: {what} {found:.3} {unit}, at most {most} {unit}: {verdict}");
}

/// The targets of a sweep of 200 points: its time in seconds on two cores, and the error of its response
/// times in percent.
const SWEEP: (f64, f64) = (1.0, 4.0);

/// Runs the paper's H-ORB with 1 to 200 clients like `plimsoll model sweep`, and prints the time on all cores
/// and the errors relative to simulations.
fn sweep() {
    let text = fs::read_to_string(folder().join("paper/horb-n24.lqn")).expect("it stands in the repository");
    let base = read(&text, &BTreeMap::new()).expect("a test reads it").model;
    let clients = |count: u32| {
        let mut model = base.clone();
        let those = model.tasks.iter_mut().filter(|task| task.is_client());
        those.for_each(|task| task.copies = Multiplicity::Finite(count));
        model
    };
    let points: Vec<Model> = (1..=200).map(clients).collect();
    let along: Vec<usize> = (0..points.len()).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let asked = Cell::new(0);
    let begun = Instant::now();
    let solved = solved_lines(points.len(), std::slice::from_ref(&along), &|places| {
        asked.set(asked.get() + places.len());
        let next = Mutex::new(places.iter().enumerate());
        let found = Mutex::new(Vec::new());
        let work = || {
            while let Some((number, place)) = next.lock().ok().and_then(|mut next| next.next()) {
                let (own, how) = solve(&points[*place]);
                let sure = is_reliable(&points[*place], &how);
                found.lock().expect("nobody panics").push((number, (own, sure)));
            }
        };
        std::thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(work))));
        let mut found = found.into_inner().expect("nobody panics");
        found.sort_by_key(|(number, _)| *number);
        found.into_iter().map(|(_, own)| own).collect()
    });
    let formulas = begun.elapsed();
    let solved: Vec<ModelResults> = solved.into_iter().map(|(own, _)| own).collect();
    let places = anchors(&points.iter().zip(&solved).collect::<Vec<_>>());
    let runs = places.iter().map(|place| {
        let until = Instant::now() + Duration::from_millis(50);
        let run = |seed| {
            let effort = SimulationEffort { seed, events: u64::MAX / 4, precision: 0.001 };
            simulate_while(&points[*place], &effort, &mut || Instant::now() < until)
        };
        let runs: Vec<ModelResults> = std::thread::scope(|scope| {
            let run = &run;
            let all: Vec<_> = (1..=cores as u64).map(|seed| scope.spawn(move || run(seed))).collect();
            all.into_iter().filter_map(|own| own.join().ok()?.ok()).collect()
        });
        (*place, combine_estimates(&points[*place], &runs).findings)
    });
    let runs: Vec<(usize, ModelResults)> = runs.collect();
    let swept = anchored_sweep(&points, &solved, &along, &runs);
    let took = begun.elapsed();
    println!(
        "sweep: 200 points on {cores} cores: {} solved in {:.2} s, {} simulated, {:.2} s in all",
        asked.get(),
        formulas.as_secs_f64(),
        runs.len(),
        took.as_secs_f64()
    );
    let mut off: Vec<f64> = Vec::new();
    for place in (0..200).step_by(8).chain([1, 2, 5, 199]) {
        let effort = SimulationEffort { seed: 3, events: 1_000_000, precision: 0.0 };
        let Ok(truth) = simulate(&points[place], &effort) else { continue };
        let (own, truth) = (numbers(&swept[place]), numbers(&truth));
        off.extend(truth.iter().map(|(who, (_, r))| (own[who].1 / r - 1.0).abs() * 100.0));
    }
    off.sort_by(f64::total_cmp);
    verdict("sweep, time", took.as_secs_f64(), SWEEP.0, "s");
    verdict("sweep, response, p95", off[(off.len() * 95).div_ceil(100) - 1], SWEEP.1, "%");
}

/// Prints all numbers of a model, solved and simulated.
fn beside(model: &Model) {
    let (found, how) = solve(model);
    let effort = SimulationEffort { events: 3_000_000, precision: 0.001, ..SimulationEffort::default() };
    let Ok(run) = simulate(model, &effort) else { return };
    println!("{how:?}");
    let line = |name: &str, pairs: &[(f64, f64)]| {
        let pairs = pairs.iter().map(|(own, run)| {
            format!(
                "{own:10.4} {run:10.4} {:+6.1} %",
                if *run > 0.0 { 100.0 * (own / run - 1.0) } else { 0.0 }
            )
        });
        println!("{name:12} {}", pairs.collect::<Vec<_>>().join("  "));
    };
    println!("throughput, waiting, service: solved and simulated");
    for (own, run) in found.entries.iter().zip(&run.entries) {
        line(
            &own.name,
            &[
                (own.throughput.mean, run.throughput.mean),
                (own.waiting.mean, run.waiting.mean),
                (own.service.mean, run.service.mean),
            ],
        );
    }
    println!("busy: solved and simulated");
    for (own, run) in found.tasks.iter().zip(&run.tasks) {
        line(&own.name, &[(own.busy.mean, run.busy.mean)]);
    }
    for (own, run) in found.processors.iter().zip(&run.processors) {
        line(&own.name, &[(own.busy.mean, run.busy.mean)]);
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let part = arguments.next().unwrap_or_default();
    let changes: Option<usize> = arguments.next().and_then(|text| text.parse().ok());
    let (exact, simulated) = (json("exact.json"), json("simulated.json"));
    let given = Path::new(&part);
    let models: Vec<(String, Model)> = if given.is_dir() {
        models_in(given)
    } else {
        models().into_iter().filter(|(name, _)| name.contains(&part)).collect()
    };
    let mut errors = Errors::default();
    for (name, model) in &models {
        let truth = known(name, model, &exact, &simulated).unwrap_or_default();
        errors.add(name, model, &truth);
    }
    errors.say("known");
    if part.is_empty() {
        sweep();
    }
    if let [(_, model)] = &models[..] {
        return beside(model);
    }
    let Some(changes) = changes else { return };
    let mut errors = Errors::default();
    let mut draw = Draw(7);
    for (name, model) in models.iter().flat_map(|own| std::iter::repeat_n(own, changes.max(1))) {
        let changed = if changes == 0 { model.clone() } else { changed(model, &mut draw) };
        let effort = SimulationEffort { events: 1_000_000, precision: 0.003, ..SimulationEffort::default() };
        if let Ok(found) = simulate(&changed, &effort) {
            errors.add(name, &changed, &numbers(&found));
        }
    }
    errors.say("changed");
}
