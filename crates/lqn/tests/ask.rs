//! Questions to models whose answers are known: from the paper, or by formula.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::path::Path;

use plimsoll_lqn::ask::bottleneck::{Bottleneck, Kind, bottleneck};
use plimsoll_lqn::ask::capacity::{Goal, Range, capacity};
use plimsoll_lqn::ask::knob::Knob;
use plimsoll_lqn::ask::remedy::{Change, remedies};
use plimsoll_lqn::ask::{Whole, lines};
use plimsoll_lqn::{Effort, Findings, Model, Stuck, read, simulate};

fn model(name: &str) -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(name);
    let text = fs::read_to_string(path).expect("it stands in the repository");
    read(&text, &BTreeMap::new()).expect("a model").model
}

fn solve(model: &Model) -> Result<Findings, Stuck> {
    simulate(model, &Effort { events: 400_000, precision: 0.01, ..Effort::default() })
}

fn held_back(model: &Model) -> (Bottleneck, Vec<&str>) {
    let own = bottleneck(model, &solve(model).expect("it ends")).expect("something is used");
    let names = own.of.iter().map(|own| own.name(model)).collect();
    (own, names)
}

/// The model with so many clones of the forwarding agent, for 24 clients.
fn forwarding(clones: f64) -> Model {
    let mut model = model("paper/forb-c1-n24.lqn");
    let knob = Knob::find(&model, "fagent.threads").expect("it is in the model");
    knob.set(&mut model, clones).expect("a number of threads");
    model
}

/// Figures 10 and 11 of the paper: the only agent holds back, with eight of them its processor does.
#[test]
fn the_papers_bottlenecks_are_named() {
    let one = forwarding(1.0);
    let (own, names) = held_back(&one);
    assert_eq!((own.kind, names.as_slice()), (Kind::Software, ["fagent"].as_slice()));
    assert_eq!(own.against.unwrap().name(&one), "CPUag");
    assert!((own.strength / (1.0 / 0.528) - 1.0).abs() < 0.03 && own.limits, "{own:?}");
    let eight = forwarding(8.0);
    let (own, names) = held_back(&eight);
    assert_eq!((own.kind, names.as_slice()), (Kind::Hardware, ["CPUag"].as_slice()));
    // Figure 7: a mild software bottleneck of both copies of B.
    let handles = model("paper/horb-n24.lqn");
    let (own, names) = held_back(&handles);
    assert_eq!((own.kind, names.as_slice()), (Kind::Software, ["srvB1", "srvB2"].as_slice()));
    assert!((own.strength / (0.944 / 0.735) - 1.0).abs() < 0.03, "{own:?}");
}

#[test]
fn remedies_are_tried_and_the_best_comes_first() {
    let model = forwarding(1.0);
    let found = solve(&model).unwrap();
    let own = bottleneck(&model, &found).unwrap();
    let now = Whole::of(&found).response;
    let remedies = remedies(&model, &own, &solve).unwrap();
    assert!(remedies.windows(2).all(|pair| pair[0].whole.response <= pair[1].whole.response));
    let fewest = remedies.iter().find_map(|own| match &own.change {
        Change::Threads(_, count) => Some((*count, own)),
        _ => None,
    });
    let (count, own) = fewest.unwrap();
    // Fewer leave the agent the bottleneck, as many do not.
    assert!((2..=8).contains(&count), "{count}");
    assert_eq!(held_back(&forwarding(f64::from(count))).1, ["CPUag"]);
    assert_ne!(held_back(&forwarding(f64::from(count - 1))).1, ["CPUag"]);
    // The paper's cut of about half.
    assert!((0.4..0.55).contains(&(1.0 - own.whole.response / now)), "{own:?}");
    // A core does little: threads are missing.
    let core = remedies.iter().find(|own| matches!(own.change, Change::Core(_))).unwrap();
    assert!(core.whole.response > 0.8 * now && core.whole.response < 1.01 * now, "{core:?}");
    let last = remedies.iter().find(|own| matches!(own.change, Change::Unbounded(_))).unwrap();
    assert_eq!(last.then.as_ref().unwrap().kind, Kind::Hardware);
}

/// Of one server with Poisson arrivals R = S / (1 - rate S).
#[test]
fn the_largest_load_is_that_of_the_formula() {
    let model = model("own/exact-mm1-50.lqn");
    let entry = model.entries.iter().find(|entry| entry.arrivals > 0.0).unwrap();
    let knob = Knob::find(&model, &format!("{}.arrivals", entry.name)).unwrap();
    let service: f64 = model.activities.iter().map(|own| own.demand).sum();
    let tried = |load: f64| -> Result<_, Infallible> {
        let mut model = model.clone();
        knob.set(&mut model, load).unwrap();
        let found = solve(&model);
        Ok((model, found))
    };
    let range = Range { from: 0.01 / service, to: 100.0 / service, whole: false };
    let goal = |text: String| [Goal::parse(&text).unwrap()];
    let goals = goal(format!("response<{}", 4.0 * service));
    let (best, beyond) = capacity(range, &goals, tried).unwrap();
    let best = best.unwrap().load;
    assert!((best * service / 0.75 - 1.0).abs() < 0.03, "{best}");
    assert!(beyond.unwrap().load <= best * 1.01);
    let goals = goal(format!("response<{}", 0.5 * service));
    let (best, beyond) = capacity(range, &goals, tried).unwrap();
    assert!(best.is_none() && beyond.unwrap().missed.is_some());
    // Nothing is missed before more comes than can be served.
    let goals = goal("throughput>0".to_owned());
    let (best, beyond) = capacity(range, &goals, tried).unwrap();
    assert!(best.unwrap().load * service > 0.9 && beyond.is_some());
}

#[test]
fn numbers_are_found_by_name_and_kept_in_their_range() {
    let mut model = model("paper/horb-n24.lqn");
    for (name, value) in [
        ("client.threads", 3.0),
        ("CPUA1.cores", 2.0),
        ("CPUA1.speed", 0.5),
        ("srvA1.demand", 7.0),
        ("client.think", 5.0),
    ] {
        let knob = Knob::find(&model, name).unwrap();
        knob.set(&mut model, value).unwrap();
        assert_eq!(knob.value(&model), value, "{name}");
    }
    for (name, why) in [
        ("client", "expected NAME.threads"),
        ("nobody.threads", "no task `nobody`"),
        ("client.speed", "no processor `client`"),
        ("srvA1.think", "no reference task"),
        ("client.colour", "expected NAME.threads"),
    ] {
        let said = Knob::find(&model, name).unwrap_err();
        assert!(said.contains(why), "{name}: {said}");
    }
    let knob = Knob::find(&model, "client.threads").unwrap();
    for wrong in [0.0, 1.5, -1.0, f64::NAN, f64::INFINITY, 1e7] {
        assert!(knob.set(&mut model, wrong).is_err(), "{wrong}");
    }
    let found = solve(&model).unwrap();
    let all = lines(&model, &found);
    let busy = all.iter().find(|line| line.name == "CPUA1" && line.metric == "busy").unwrap().value.mean;
    let part =
        all.iter().find(|line| line.name == "CPUA1" && line.metric == "utilization").unwrap().value.mean;
    assert_eq!(part, busy / 2.0);
}
