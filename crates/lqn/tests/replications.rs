//! Tests the joint evaluation of several runs, and the removal of the initial bias.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::thread;

use plimsoll_lqn::{Model, Replication, SimulationEffort, read, simulate, simulate_on};

fn model(text: &str) -> Model {
    read(text, &BTreeMap::new()).unwrap_or_else(|trouble| panic!("{trouble}\n{text}")).model
}

fn of(name: &str) -> Model {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    model(&fs::read_to_string(folder.join(name)).expect("it stands in the repository"))
}

/// Runs replications on several threads; a free thread takes the next one.
fn on(threads: usize) -> impl Fn(&mut [Replication<'_>]) {
    move |all| {
        let next = Mutex::new(all.iter_mut());
        let work = || {
            loop {
                let Some(one) = next.lock().expect("nobody panics with it").next() else { return };
                one.run_step();
            }
        };
        thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    }
}

#[test]
fn how_many_cores_there_are_makes_no_difference() {
    let model = of("own/lb-00.lqn");
    let effort = SimulationEffort { seed: 5, events: 3_000_000, precision: 0.0 };
    let alone = simulate(&model, &effort).expect("it ends");
    assert_eq!((effort.run_count(), alone.runs), (3, 3));
    for threads in [1, 2, 7] {
        assert_eq!(simulate_on(&model, &effort, &on(threads)).expect("it ends"), alone, "{threads}");
    }
    // In reverse order.
    let back = |all: &mut [Replication<'_>]| all.iter_mut().rev().for_each(Replication::run_step);
    assert_eq!(simulate_on(&model, &effort, &back).expect("it ends"), alone);
    assert_ne!(
        simulate(&model, &SimulationEffort { seed: 6, ..effort }).expect("it ends").tasks,
        alone.tasks
    );
}

/// The intervals of several runs match the spread of their means: 95 % hold the true value.
#[test]
fn several_runs_know_how_sure_they_are() {
    // One server at 80 % with requests from outside; and a pool of clients with one server (M/M/1//4 with Z =
    // 3).
    let open = model("P 0 p cpu f -1 T 0 t srv n srv -1 cpu -1 E 0 a srv 0.8 s srv 1 -1 -1");
    let pool = model(
        "P 0 p pc f i p cpu f -1 T 0 t cl r cl -1 pc z 3 m 4 t srv n srv -1 cpu -1 \
         E 0 s cl 0 -1 f cl 1 -1 y cl srv 1 -1 s srv 1 -1 -1",
    );
    // The weights of the states of the birth-death chain.
    let weights: Vec<f64> =
        (0..=4_i32).map(|there| (0..there).map(|own| f64::from(4 - own) / 3.0).product()).collect();
    let rate = 1.0 - weights[0] / weights.iter().sum::<f64>();
    let (mut within, mut all, mut off) = (0, 0, [0.0_f64; 2]);
    for seed in 1..=40 {
        // In the first round there are two replications with ten batches each, then twenty with one each.
        for events in [2_000_000, 20_000_000] {
            let effort = SimulationEffort { seed, events, precision: 0.9 };
            let [one, other] = [&open, &pool].map(|model| simulate(model, &effort).expect("it ends"));
            assert_eq!((one.runs as u64, one.batches), (events / 1_000_000, 20));
            let response = [one.entries[0].response.unwrap(), other.tasks[0].response.unwrap()];
            for (place, (found, truth)) in response.into_iter().zip([5.0, 4.0 / rate - 3.0]).enumerate() {
                all += 1;
                within += usize::from((found.mean - truth).abs() <= found.half_width);
                off[place] += (found.mean / truth - 1.0) / 80.0;
            }
            if events > 2_000_000 {
                break;
            }
        }
    }
    let part = f64::from(within as u32) / f64::from(all as u32);
    eprintln!("{within} of {all} within their 95 % interval; off by {off:?} in the mean");
    assert!((0.89..=0.99).contains(&part), "{within} of {all}");
    assert!(off.iter().all(|off| off.abs() < 0.003), "{off:?}");
}

/// Twenty thousand clients all think at first, and half of them wait in the end. The transition takes a
/// hundred thousand events, which are not counted.
#[test]
fn what_begins_slowly_is_left_out() {
    let slow = model(
        "P 0 p pc f i p cpu f -1 T 0 t cl r cl -1 pc z 10000 m 20000 t srv n srv -1 cpu -1 \
         E 0 s cl 0 -1 f cl 1 -1 y cl srv 1 -1 s srv 1 -1 -1",
    );
    let quick = of("own/exact-repair-4.lqn");
    let (mut mean, mut least, mut much, mut settled) = (0.0, f64::INFINITY, 0, 0);
    for seed in 1..=12 {
        // The least warm-up is a fifth of 90,000 events, which are 9,000 units of time.
        let effort = SimulationEffort { seed, events: 900_000, precision: 0.05 };
        let found = simulate(&slow, &effort).expect("it ends");
        settled += usize::from(found.settled);
        mean += found.tasks[0].response.unwrap().mean / 12.0;
        least = least.min(found.warm_up);
        // A model that is stationary from the beginning has no longer warm-up.
        let found = simulate(&quick, &effort).expect("it ends");
        much += usize::from(found.warm_up > 1.5 * 0.2 * (found.warm_up + found.time));
    }
    eprintln!(
        "{mean} of 10000, {settled} of 12 settled, {least} not counted; {much} of 12 quick ones warmed up \
        for longer"
    );
    // The server is always busy: N / X - Z.
    assert!((mean / 10_000.0 - 1.0).abs() < 0.02, "{mean}");
    assert!(least > 20_000.0 && settled >= 8, "{least}, {settled}");
    assert!(much <= 4, "{much}");
}

#[test]
fn what_never_settles_is_said() {
    // The arrivals are twice the capacity.
    let model = model("P 0 p cpu f -1 T 0 t srv n srv -1 cpu -1 E 0 a srv 2 s srv 1 -1 -1");
    let found = simulate(&model, &SimulationEffort { events: 200_000, ..SimulationEffort::default() })
        .expect("it ends");
    assert!(!found.settled, "{found:?}");
}
