//! Tests the solver's second phases, which continue after the reply, against simulations.
//!
//! A published set with exact results has no licence and is not included. The models here are of the same
//! kind: a few clients, and servers with one thread each that call one another in either phase. They are
//! difficult on purpose: in a third of them, one client shares a thread with the only other one, and most of
//! the work is in the second phase.
//!
//! Other models are random: one to three layers, one to ten clients, one to four threads, and random or exact
//! numbers of calls. Second phases take from a fifth to three times as long as the first. The target for
//! either set is a mean error of 7 %.

use std::collections::BTreeMap;

use plimsoll_lqn::{Model, SimulationEffort, read, simulate, solve};

fn model(text: &str) -> Model {
    read(text, &BTreeMap::new()).unwrap_or_else(|trouble| panic!("{trouble}\n{text}")).model
}

/// The demands of both phases of a front end and of a store, and the number of the front end's calls in each.
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
                // There are two tasks of clients; the servers have one processor each, or share one.
                let cpu = if apart { "pb" } else { "pa" };
                let text = format!(
                    "P 0 p pc f i p pa f p pb f -1 T 0 t one r one -1 pc z {think} m {clients} t two r two \
                     -1 pc z {think} m 1 \
                     t front n front other -1 pa t store n store -1 {cpu} -1 E 0 \
                     s one 0.1 -1 y one front 1 -1 s two 0.3 -1 y two other 1.5 -1 s front {} {} -1 y front \
                     store {} {} -1 \
                     s other 0.4 0.4 -1 y other store 0.5 0.5 -1 s store {} {} -1 -1",
                    front[0], front[1], asks[0], asks[1], store[0], store[1]
                );
                all.push((format!("{number}, {clients} clients, apart: {apart}"), model(&text)));
            }
        }
    }
    all
}

/// A SplitMix64 generator.
struct Draw(u64);

impl Draw {
    fn part(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn one<T: Copy>(&mut self, from: &[T]) -> T {
        from[(self.part() * from.len() as f64) as usize]
    }

    /// Returns a number with a uniform logarithm, rounded to three decimals.
    fn between(&mut self, from: f64, to: f64) -> f64 {
        (1000.0 * from * (to / from).powf(self.part())).round() / 1000.0
    }

    fn is(&mut self, often: f64) -> bool {
        self.part() < often
    }
}

/// Returns a random model: layers of one or two servers each, most of them with second phases, and one or two
/// tasks of clients.
fn drawn(draw: &mut Draw) -> String {
    let shared = draw.is(0.4);
    let layers = draw.one(&[1, 2, 2, 3]);
    let widths: Vec<usize> = (0..layers).map(|_| draw.one(&[1, 1, 2])).collect();
    let count: usize = widths.iter().sum();
    let cores = if shared { count.div_ceil(2) } else { count };
    let mut processors = String::from("P 0 p pc f i");
    for core in 0..cores {
        processors += &format!(" p p{core} {} m {}", draw.one(&["f", "f", "s"]), draw.one(&[1, 1, 2]));
    }
    let (mut tasks, mut entries) = (String::from(" -1 T 0"), String::from(" -1 E 0"));
    for client in 0..draw.one(&[1, 2]) {
        let (many, think) = (draw.one(&[1, 1, 2, 3, 5, 10]), draw.one(&[0.0, 0.5, 2.0, 5.0]));
        let certain = draw.is(0.4);
        tasks += &format!(" t c{client} r c{client} -1 pc z {think} m {many}");
        let order = u8::from(certain);
        entries += &format!(" f c{client} {order} -1 s c{client} {} -1", draw.between(0.1, 2.0));
        for server in 0..widths[0] {
            let calls = if certain { draw.one(&[1.0, 1.0, 2.0]) } else { draw.between(0.4, 2.5) };
            entries += &format!(" y c{client} s{server} {calls} -1");
        }
    }
    let mut server = 0;
    for (layer, width) in widths.iter().enumerate() {
        let (mut left, below) = (*width, widths[..=layer].iter().sum::<usize>());
        while left > 0 {
            tasks += &format!(
                " t s{server} n s{server} -1 p{} m {}",
                server % cores,
                draw.one(&[1, 1, 1, 2, 3, 4])
            );
            let first = draw.between(0.2, 1.0);
            let second = if draw.is(0.2) { 0.0 } else { first * draw.between(0.2, 3.0) };
            let certain = draw.is(0.4);
            let order = u8::from(certain);
            entries += &format!(" s s{server} {first} {second} -1 f s{server} {order} {order} -1");
            for called in below..below + widths.get(layer + 1).copied().unwrap_or_default() {
                let mut calls = if certain {
                    [draw.one(&[0.0, 1.0, 1.0, 2.0]), draw.one(&[0.0, 1.0, 1.0])]
                } else {
                    [draw.between(0.2, 2.0), if draw.is(0.5) { 0.0 } else { draw.between(0.2, 1.5) }]
                };
                if second == 0.0 {
                    calls[1] = 0.0;
                }
                if calls == [0.0; 2] {
                    calls[0] = 1.0;
                }
                entries += &format!(" y s{server} s{called} {} {} -1", calls[0], calls[1]);
            }
            (left, server) = (left - 1, server + 1);
        }
    }
    format!("{processors}{tasks}{entries} -1")
}

/// Prints and returns the mean and the 95th percentile of errors in percent, and prints the greatest ones.
fn summary(what: &str, mut errors: Vec<(f64, String)>) -> [f64; 2] {
    errors.sort_by(|one, other| other.0.abs().total_cmp(&one.0.abs()));
    let mean = errors.iter().map(|(off, _)| off.abs()).sum::<f64>() / errors.len() as f64;
    let p95 = errors[errors.len() / 20].0.abs();
    eprintln!("{} {what}: off by {mean:.2} % in the mean, 95 of 100 by {p95:.2} %; worst:", errors.len());
    errors.iter().take(6).for_each(|(off, name)| eprintln!("  {off:+6.2} %  {name}"));
    [mean, p95]
}

#[test]
fn throughputs_with_second_phases_are_as_close_as_is_said() {
    let mut errors = Vec::new();
    for (name, model) in set() {
        let effort = SimulationEffort { events: 400_000, precision: 0.002, ..SimulationEffort::default() };
        let played = simulate(&model, &effort).expect("it ends");
        let (solved, how) = solve(&model);
        assert!(how.converged, "{name}: {how:?}");
        // Clients and the entries that they call.
        let clients = solved.tasks.iter().zip(&played.tasks).filter(|(own, _)| own.response.is_some());
        let clients = clients.map(|(own, other)| (&own.name, own.throughput, other.throughput));
        let entries = solved.entries.iter().zip(&played.entries).zip(&model.entries);
        let entries = entries.filter(|(_, entry)| !model.tasks[entry.task.0].is_client());
        let entries = entries.map(|((own, other), _)| (&own.name, own.throughput, other.throughput));
        for (who, own, played) in clients.chain(entries) {
            errors.push((100.0 * (own.mean / played.mean - 1.0), format!("{name}: {who}")));
        }
    }
    let several = errors.iter().filter(|own| !own.1.contains(", 1 clients")).cloned().collect::<Vec<_>>();
    assert!(errors.len() == 180 && several.len() == 120);
    let [mean, _] = summary("throughputs", errors);
    let [crowd, _] = summary("throughputs with several clients", several);
    assert!(mean <= 7.0 && crowd <= 7.0, "{mean} %, {crowd} %");
}

#[test]
fn models_with_second_phases_that_nobody_chose_are_solved_as_well() {
    let mut draw = Draw(5);
    let (mut throughputs, mut responses) = (Vec::new(), Vec::new());
    let mut unsettled = Vec::new();
    for number in 0..150 {
        let text = drawn(&mut draw);
        let model = model(&text);
        let effort = SimulationEffort { events: 400_000, precision: 0.004, ..SimulationEffort::default() };
        let played = simulate(&model, &effort).expect("it ends");
        let (solved, how) = solve(&model);
        if !how.converged {
            unsettled.push(format!("{number}: {how:?}\n{text}"));
        }
        for (own, played) in solved.tasks.iter().zip(&played.tasks) {
            let (Some(response), Some(truth)) = (own.response, played.response) else { continue };
            let name = format!("{number}, {}", own.name);
            throughputs.push((100.0 * (own.throughput.mean / played.throughput.mean - 1.0), name.clone()));
            responses.push((100.0 * (response.mean / truth.mean - 1.0), name));
        }
    }
    // One solution oscillates and reports that; its numbers count like the others.
    assert!(responses.len() > 200 && unsettled.len() <= 1, "{unsettled:#?}");
    let [throughput, _] = summary("throughputs of drawn models", throughputs);
    let [response, p95] = summary("response times of drawn models", responses);
    assert!(throughput <= 7.0 && response <= 7.0 && p95 <= 20.0, "{throughput} %, {response} %, {p95} %");
}
