//! Tests questions to models with known answers, from the paper or by a formula.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::path::Path;

use plimsoll_lqn::analysis::bottleneck::{Bottleneck, BottleneckKind, find_bottleneck};
use plimsoll_lqn::analysis::capacity::{LoadRange, PerformanceGoal, find_capacity};
use plimsoll_lqn::analysis::improvement::{ModelChange, find_improvements};
use plimsoll_lqn::analysis::parameter::ModelParameter;
use plimsoll_lqn::analysis::{OverallResults, result_lines};
use plimsoll_lqn::{Model, ModelResults, SimulationEffort, SimulationError, read, simulate};

fn model(name: &str) -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(name);
    let text = fs::read_to_string(path).expect("it stands in the repository");
    read(&text, &BTreeMap::new()).expect("a model").model
}

fn solve(model: &Model) -> Result<ModelResults, SimulationError> {
    simulate(model, &SimulationEffort { events: 400_000, precision: 0.01, ..SimulationEffort::default() })
}

fn held_back(model: &Model) -> (Bottleneck, Vec<&str>) {
    let own = find_bottleneck(model, &solve(model).expect("it ends")).expect("something is used");
    let names = own.resources.iter().map(|own| own.name(model)).collect();
    (own, names)
}

/// Returns the model with this number of clones of the forwarding agent, for 24 clients.
fn forwarding(clones: f64) -> Model {
    let mut model = model("paper/forb-c1-n24.lqn");
    let knob = ModelParameter::find(&model, "fagent.threads").expect("it is in the model");
    knob.set(&mut model, clones).expect("a number of threads");
    model
}

/// Figures 10 and 11 of the paper: the single agent is the bottleneck; with eight of them it is their
/// processor.
#[test]
fn the_papers_bottlenecks_are_named() {
    let one = forwarding(1.0);
    let (own, names) = held_back(&one);
    assert_eq!((own.kind, names.as_slice()), (BottleneckKind::Software, ["fagent"].as_slice()));
    assert_eq!(own.next_busiest.unwrap().name(&one), "CPUag");
    assert!((own.strength / (1.0 / 0.528) - 1.0).abs() < 0.03 && own.is_saturated, "{own:?}");
    let eight = forwarding(8.0);
    let (own, names) = held_back(&eight);
    assert_eq!((own.kind, names.as_slice()), (BottleneckKind::Hardware, ["CPUag"].as_slice()));
    // Figure 7: both copies of B are a mild software bottleneck.
    let handles = model("paper/horb-n24.lqn");
    let (own, names) = held_back(&handles);
    assert_eq!((own.kind, names.as_slice()), (BottleneckKind::Software, ["srvB1", "srvB2"].as_slice()));
    assert!((own.strength / (0.944 / 0.735) - 1.0).abs() < 0.03, "{own:?}");
}

#[test]
fn remedies_are_tried_and_the_best_comes_first() {
    let model = forwarding(1.0);
    let found = solve(&model).unwrap();
    let own = find_bottleneck(&model, &found).unwrap();
    let now = OverallResults::of(&model, &found).response;
    let remedies = find_improvements(&model, &own, &solve).unwrap();
    assert!(remedies.windows(2).all(|pair| pair[0].results.response <= pair[1].results.response));
    let fewest = remedies.iter().find_map(|own| match &own.change {
        ModelChange::Threads(_, count) => Some((*count, own)),
        _ => None,
    });
    let (count, own) = fewest.unwrap();
    // With fewer threads the agent is still the bottleneck.
    assert!((2..=8).contains(&count), "{count}");
    assert_eq!(held_back(&forwarding(f64::from(count))).1, ["CPUag"]);
    assert_ne!(held_back(&forwarding(f64::from(count - 1))).1, ["CPUag"]);
    // The paper reports a reduction by about half.
    assert!((0.4..0.55).contains(&(1.0 - own.results.response / now)), "{own:?}");
    // A core has little effect, because threads are the bottleneck.
    let core = remedies.iter().find(|own| matches!(own.change, ModelChange::ExtraCore(_))).unwrap();
    assert!(core.results.response > 0.8 * now && core.results.response < 1.01 * now, "{core:?}");
    let last = remedies.iter().find(|own| matches!(own.change, ModelChange::Unlimited(_))).unwrap();
    assert_eq!(last.next_bottleneck.as_ref().unwrap().kind, BottleneckKind::Hardware);
}

/// One server with Poisson arrivals has R = S / (1 - rate S).
#[test]
fn the_largest_load_is_that_of_the_formula() {
    let model = model("own/exact-mm1-50.lqn");
    let entry = model.entries.iter().find(|entry| entry.arrivals > 0.0).unwrap();
    let knob = ModelParameter::find(&model, &format!("{}.arrivals", entry.name)).unwrap();
    let service: f64 = model.activities.iter().map(|own| own.demand).sum();
    let tried = |load: f64| -> Result<_, Infallible> {
        let mut model = model.clone();
        knob.set(&mut model, load).unwrap();
        let found = solve(&model);
        Ok((model, found))
    };
    let range = LoadRange { from: 0.01 / service, to: 100.0 / service, is_whole: false };
    let goal = |text: String| [PerformanceGoal::parse(&text).unwrap()];
    let goals = goal(format!("response<{}", 4.0 * service));
    let (best, beyond) = find_capacity(range, &goals, tried).unwrap();
    let best = best.unwrap().load;
    assert!((best * service / 0.75 - 1.0).abs() < 0.03, "{best}");
    assert!(beyond.unwrap().load <= best * 1.01);
    let goals = goal(format!("response<{}", 0.5 * service));
    let (best, beyond) = find_capacity(range, &goals, tried).unwrap();
    assert!(best.is_none() && beyond.unwrap().failure.is_some());
    // The goal is met up to the overload.
    let goals = goal("throughput>0".to_owned());
    let (best, beyond) = find_capacity(range, &goals, tried).unwrap();
    assert!(best.unwrap().load * service > 0.9 && beyond.is_some());
}

/// The parameters of balancers are found by name, in their ranges, also by the short names.
#[test]
fn numbers_of_calls_and_policies_are_found_too() {
    let text = "#pragma route.lb=least_loaded(2)\n#pragma call.cl.lb=retries(1)\n\
                P 0 p pc f i p ca f p cb f -1 \
                T 0 t cl r cl -1 pc m 9 z 1 t lb i lb -1 pc t sa n sa -1 ca m 2 t sb n sb -1 cb t st n st -1 \
                cb -1 \
                E 0 s cl 0 -1 y cl lb 2 -1 s lb 0 -1 F lb sa 0.5 -1 F lb sb 0.5 -1 s sa 0.1 0.2 -1 s sb 0.1 \
                0.3 -1 y sb st 1 2 -1 s st 0.1 -1 -1";
    let mut model = read(text, &BTreeMap::new()).unwrap_or_else(|why| panic!("{why}")).model;
    for (name, before, value) in [
        ("lb.age", 2.0, 0.5),
        ("cl.lb.calls", 2.0, 3.5),
        ("cl.calls", 3.5, 1.0),
        ("cl.lb.timeout", f64::INFINITY, 0.25),
        ("sb.2.st.calls", 2.0, 0.5),
        ("sb.1.st.timeout", f64::INFINITY, 4.0),
        ("sa.queue", f64::INFINITY, 7.0),
        ("sb.2.demand", 0.3, 0.6),
        ("lb.sb.weight", 1.0, 3.0),
    ] {
        let knob = ModelParameter::find(&model, name).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert_eq!(knob.value(&model), before, "{name}");
        knob.set(&mut model, value).unwrap();
        assert!((knob.value(&model) - value).abs() < 1e-12, "{name}: {}", knob.value(&model));
    }
    let shares: Vec<f64> = model.entries[1].forwards.iter().map(|(_, part)| *part).collect();
    assert_eq!(shares, [0.25, 0.75]);
    let patience = model.activities[0].calls[0].retry_policy.unwrap();
    assert_eq!((patience.timeout, patience.retries), (0.25, 1));
    for (name, why) in [
        ("sb.st.calls", "more than one call"),
        ("cl.st.calls", "no call FROM.TO `cl.st`; there are cl.lb"),
        ("sa.age", "no entry with a policy `sa`; there are lb"),
        ("lb.weight", "there are lb.sa, lb.sb"),
        ("cl.queue", "is a reference task"),
    ] {
        let said = ModelParameter::find(&model, name).unwrap_err();
        assert!(said.contains(why), "{name}: {said}");
    }
    for (name, wrong) in
        [("lb.age", -1.0), ("lb.sa.weight", 0.0), ("cl.timeout", 0.0), ("sa.queue", 0.5), ("lb.queue", 1.0)]
    {
        let knob = ModelParameter::find(&model, name).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert!(knob.set(&mut model, wrong).is_err(), "{name}");
    }
    let toml = "[[group]]\nname = \"web\"\npolicy = \"least_loaded\"\nage = 1\ndemand = 0.01\nmembers = 3\n\
                threads = 4\ntimeout = 1\n\
                [[clients]]\nname = \"people\"\ngroup = \"web\"\nnumber = 10\n";
    let mut model = read(toml, &BTreeMap::new()).unwrap().model;
    for (name, before) in
        [("web.age", 1.0), ("web.timeout", 1.0), ("web.web_2.weight", 1.0), ("web_1.queue", f64::INFINITY)]
    {
        let knob = ModelParameter::find(&model, name).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert!((knob.value(&model) - before).abs() < 1e-12 || knob.value(&model) == before, "{name}");
        knob.set(&mut model, 2.0).unwrap();
    }
    let routed = model.entries.iter().find(|own| own.routing.is_some()).unwrap();
    assert_eq!(routed.routing.unwrap().max_age, 2.0);
    assert!((routed.forwards[1].1 - 0.5).abs() < 1e-12 && (routed.forwards[0].1 - 0.25).abs() < 1e-12);
}

/// The parameters of random choices, loops and priorities are found, too.
#[test]
fn numbers_of_ways_and_ranks_are_found_too() {
    let text = "P 0 p pc f i p ca h p cb f -1 \
                T 0 t cl r cl -1 pc m 9 z 1 t lb i lb -1 pc t sa h sa -1 ca 3 t sb n sb -1 cb t ga n ga -1 \
                ca -1 \
                E 0 s cl 0 -1 y cl lb 2 -1 y cl ga 1 -1 s lb 0 -1 F lb sa 0.6 -1 F lb sb 0.3 -1 s sa 0.1 -1 \
                c sa 0.5 -1 s sb 0.1 -1 \
                A ga begin -1 A ga s begin 0.1 s hit 0.1 s miss 0.1 s again 0.1 s done 0.1 \
                : begin -> (0.8) hit + (0.2) miss ; miss -> 3 * again , done ; hit[ga] ; done[ga] -1";
    let mut model = read(text, &BTreeMap::new()).unwrap_or_else(|why| panic!("{why}")).model;
    for (name, before, value) in [
        ("sa.variation", 0.5, 2.0),
        ("begin.variation", 1.0, 0.0),
        ("lb.sa.probability", 0.6, 0.3),
        ("begin.hit.probability", 0.8, 0.5),
        ("miss.again.turns", 3.0, 1.5),
        ("sa.priority", 3.0, -2.0),
    ] {
        let knob = ModelParameter::find(&model, name).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert_eq!(knob.value(&model), before, "{name}");
        knob.set(&mut model, value).unwrap();
        assert_eq!(knob.value(&model), value, "{name}");
    }
    let value = |model: &Model, name: &str| ModelParameter::find(model, name).unwrap().value(model);
    // The others share the rest of the sum: the balancer itself replies to a tenth of the requests.
    assert!((value(&model, "lb.sb.probability") - 0.6).abs() < 1e-12);
    assert!((value(&model, "begin.miss.probability") - 0.5).abs() < 1e-12);
    assert!(simulate(&model, &SimulationEffort { events: 20_000, ..SimulationEffort::default() }).is_ok());
    ModelParameter::find(&model, "begin.hit.probability").unwrap().set(&mut model, 1.0).unwrap();
    assert_eq!(value(&model, "begin.miss.probability"), 0.0);
    for (name, wrong) in [
        ("lb.sa.probability", 1.5),
        ("begin.hit.probability", -0.5),
        ("sa.priority", 0.5),
        ("sa.variation", -1.0),
        ("miss.again.turns", 2e6),
    ] {
        let knob = ModelParameter::find(&model, name).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert!(knob.set(&mut model, wrong).is_err(), "{name}");
    }
    for (name, why) in [
        ("lb.cl.probability", "there are lb.sa, lb.sb, begin.hit, begin.miss"),
        ("begin.hit.turns", "there are miss.again"),
        ("nobody.priority", "no task or entry `nobody`"),
    ] {
        let said = ModelParameter::find(&model, name).unwrap_err();
        assert!(said.contains(why), "{name}: {said}");
    }
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
        let knob = ModelParameter::find(&model, name).unwrap();
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
        let said = ModelParameter::find(&model, name).unwrap_err();
        assert!(said.contains(why), "{name}: {said}");
    }
    let knob = ModelParameter::find(&model, "client.threads").unwrap();
    for wrong in [0.0, 1.5, -1.0, f64::NAN, f64::INFINITY, 1e7] {
        assert!(knob.set(&mut model, wrong).is_err(), "{wrong}");
    }
    let found = solve(&model).unwrap();
    let all = result_lines(&model, &found);
    let busy = all.iter().find(|line| line.name == "CPUA1" && line.metric == "busy").unwrap().value.mean;
    let part =
        all.iter().find(|line| line.name == "CPUA1" && line.metric == "utilization").unwrap().value.mean;
    assert_eq!(part, busy / 2.0);
}
