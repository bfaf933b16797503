//! Tests fits to measurements of known models.

use std::collections::BTreeMap;

use plimsoll_lqn::analysis::parameter::ModelParameter;
use plimsoll_lqn::analysis::result_lines;
use plimsoll_lqn::fit::{FitResult, default_parameters, interpret_records, parse_records};
use plimsoll_lqn::{Model, ModelResults, SimulationEffort, fit, read, simulate, solve};

/// A model with clients, a server with two threads and a disk. The demands differ from the true ones.
const SHOP: &str = "$clients = 10\n$get = 0.02\nP 0\n p users f i\n p core f\n p disk f\n-1\n\
    T 0\n t client r client -1 users z 1 m $clients\n t server n get -1 core m 2\n t store n read -1 disk\n\
    -1\n\
    E 0\n s client 0 -1\n y client get 1 -1\n s get $get -1\n y get read 0.5 -1\n s read 0.3 -1\n-1\n";
const TRUTH: [(&str, f64); 2] = [("get", 0.05), ("read.demand", 0.08)];

/// A model with two consecutive demands of each request on one processor.
const PAIR: &str = "P 0\n p users f i\n p core s\n-1\nT 0\n t client r client -1 users z 1 m 5\n t one i \
    first -1 core\n\
    t other i second -1 core\n-1\nE 0\n s client 0 -1\n y client first 1 -1\n y client second 2 -1\n s first \
    0.1 -1\n\
    s second 0.1 -1\n-1\n";

fn make(text: &str) -> impl Fn(&[(String, f64)]) -> Result<Model, String> {
    move |set| {
        let (numbers, given): (Vec<_>, Vec<_>) =
            set.iter().cloned().partition(|(name, _)| name.contains('.'));
        let mut model =
            read(text, &given.into_iter().collect::<BTreeMap<_, _>>()).map_err(|why| why.to_string())?.model;
        for (name, value) in numbers {
            let knob = ModelParameter::find(&model, &name)?;
            knob.set(&mut model, value).map_err(|why| format!("{name}: {why}"))?;
        }
        Ok(model)
    }
}

fn set(all: &[(&str, f64)]) -> Vec<(String, f64)> {
    all.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

/// Reproducible noise with a standard deviation of 1.
struct Noise(u64);

impl Noise {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as f64 / (1_u64 << 31) as f64
    }

    fn next(&mut self) -> f64 {
        // The sum of twelve uniform numbers.
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }
}

fn value(model: &Model, found: &ModelResults, name: &str) -> (f64, f64) {
    let (whose, metric) = name.rsplit_once('.').expect("a point in it");
    let all = result_lines(model, found);
    let line = all.iter().find(|line| line.name == whose && line.metric == metric).expect("it is there");
    (line.value.mean, line.value.half_width)
}

/// Returns analytic measurements of the true shop with relative noise.
fn measured(seed: u64, noise: f64, intervals: bool) -> String {
    let mut noises = Noise(seed.wrapping_mul(77) + 5);
    for _ in 0..20 {
        noises.next();
    }
    let names = ["client.response", "core.utilization", "disk.utilization"];
    let mut text = "clients".to_owned();
    for name in names {
        text += &if intervals { format!(",{name},{name}.half_width") } else { format!(",{name}") };
    }
    for clients in [1.0, 4.0, 9.0, 20.0] {
        let model = make(SHOP)(&set(&[&[("clients", clients)][..], &TRUTH[..]].concat())).expect("a model");
        let found = solve(&model).0;
        text += &format!("\n{clients}");
        for name in names {
            let (mean, _) = value(&model, &found, name);
            text += &format!(",{}", mean * (1.0 + noise * noises.next()));
            if intervals {
                text += &format!(",{}", 1.96 * noise * mean);
            }
        }
    }
    text
}

fn fitted(text: &str, measured: &str, free: &[(&str, f64)]) -> FitResult {
    let make = make(text);
    let free = set(free);
    let names: Vec<String> = free.iter().map(|(name, _)| name.clone()).collect();
    let observed = interpret_records(&parse_records(measured).expect("measurements"), &make, &names)
        .unwrap_or_else(|why| panic!("{why}"));
    fit(&free, &observed.rows, &make, None).unwrap_or_else(|why| panic!("{why}"))
}

/// Returns the number of true values within their intervals, and the greatest relative half-width.
fn within(found: &FitResult) -> (usize, f64) {
    let each = found.parameters.iter().zip(TRUTH).map(|(own, (name, truth))| {
        assert_eq!(own.name, name);
        let [from, to] = own.interval.unwrap_or_else(|| panic!("{found:?}"));
        (usize::from(from <= truth && truth <= to), (to - from) / 2.0 / own.value)
    });
    each.fold((0, 0.0), |sum, own| (sum.0 + own.0, sum.1.max(own.1)))
}

#[test]
fn demands_are_found_within_their_intervals() {
    for intervals in [true, false] {
        let (mut inside, mut of) = (0, 0);
        for seed in 0..30 {
            let found =
                fitted(SHOP, &measured(seed, 0.02, intervals), &[("get", 0.02), ("read.demand", 0.3)]);
            assert!(found.converged && found.doubts.is_empty(), "{found:?}");
            let (own, widest) = within(&found);
            assert!(widest < 0.08, "{found:?}");
            (inside, of) = (inside + own, of + 2);
            if !intervals {
                assert!((0.005..0.04).contains(&found.error.unwrap()), "{found:?}");
            }
        }
        // At least 95 % are expected; of 60, fewer than 52 occur by chance once in a thousand times.
        assert!((52..=60).contains(&inside), "{inside} of {of}, intervals {intervals}");
    }
}

#[test]
fn demands_are_found_of_a_system_that_is_simulated() {
    let make = make(SHOP);
    let free = set(&[("get", 0.02), ("read.demand", 0.3)]);
    let names: Vec<String> = free.iter().map(|(name, _)| name.clone()).collect();
    let run = |model: &Model, seed: u64| {
        simulate(model, &SimulationEffort { seed, events: 60_000, precision: 0.001 }).expect("it ends")
    };
    let mut inside = 0;
    for seed in 0..10_u64 {
        let mut text =
            "clients,client.response,client.response.half_width,disk.utilization,disk.utilization.half_width"
                .to_owned();
        for clients in [2.0, 8.0, 20.0] {
            let model = make(&set(&[&[("clients", clients)][..], &TRUTH[..]].concat())).unwrap();
            let found = run(&model, 100 + 3 * seed + clients as u64);
            let (response, half) = value(&model, &found, "client.response");
            let (used, width) = value(&model, &found, "disk.utilization");
            text += &format!("\n{clients},{response},{half},{used},{width}");
        }
        let observed = interpret_records(&parse_records(&text).unwrap(), &make, &names).unwrap();
        let chance = |model: &Model, row: usize| Some(run(model, 5_000 + 7 * seed + row as u64));
        let found = fit(&free, &observed.rows, &make, Some(&chance)).unwrap();
        assert_eq!(found.simulated, 3, "{found:?}");
        let (own, widest) = within(&found);
        assert!(widest < 0.2, "{found:?}");
        inside += own;
    }
    assert!(inside >= 17, "{inside} of 20");
}

#[test]
fn what_cannot_be_told_apart_is_named_with_what_would_tell() {
    // The true values are 0.05 and 0.1; the response times at five loads depend on 0.05 + 2 x 0.1.
    let truth = set(&[("first.demand", 0.05), ("second.demand", 0.1)]);
    let measure = |more: bool| {
        let mut text = "client.threads,client.response,client.response.half_width,core.utilization,\
            core.utilization.half_width"
            .to_owned();
        text += if more { ",one.throughput,first.service\n" } else { "\n" };
        for clients in [1.0, 3.0, 6.0, 12.0] {
            let all = [set(&[("client.threads", clients)]), truth.clone()].concat();
            let model = make(PAIR)(&all).unwrap();
            let found = solve(&model).0;
            let number = |name: &str| value(&model, &found, name).0;
            let (response, used) = (number("client.response"), number("core.utilization"));
            text += &format!("{clients},{response},{},{used},{}", 0.02 * response, 0.02 * used);
            let first = found.entries.iter().find(|own| own.name == "first").unwrap();
            text += &if more {
                format!(",{},{}\n", number("one.throughput"), first.service.mean)
            } else {
                "\n".to_owned()
            };
        }
        text
    };
    let free = [("first.demand", 0.1), ("second.demand", 0.1)];
    let found = fitted(PAIR, &measure(false), &free);
    assert_eq!(found.doubts.len(), 1, "{found:?}");
    let doubt = &found.doubts[0];
    let names: Vec<&str> = doubt.together.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.contains(&"first.demand") && names.contains(&"second.demand"), "{doubt:?}");
    // One increases and the other decreases, so that the sum is unchanged.
    assert!((doubt.together[0].1 - 1.0) * (doubt.together[1].1 - 1.0) < 0.0, "{doubt:?}");
    // Each on its own is hardly determined.
    for own in &found.parameters {
        assert!(own.interval.is_none_or(|[from, to]| to > 3.0 * from), "{found:?}");
    }
    let whole = found.parameters[0].value + 2.0 * found.parameters[1].value;
    assert!((whole / 0.25 - 1.0).abs() < 0.01, "{found:?}");
    assert!(doubt.measure.iter().any(|hint| hint.metric == "service" && hint.change > 0.02), "{doubt:?}");
    // With this measurement they are determined.
    let found = fitted(PAIR, &measure(true), &free);
    assert!(found.doubts.is_empty(), "{found:?}");
    assert!((found.parameters[0].value / 0.05 - 1.0).abs() < 0.02, "{found:?}");
    assert!((found.parameters[1].value / 0.1 - 1.0).abs() < 0.02, "{found:?}");
}

/// If one of two demands is nearly 0, the best fit is often 0. The interval of the other one must include the
/// possible value of the first.
#[test]
fn a_demand_that_slides_towards_nothing_leaves_the_others_as_wide_as_they_are() {
    let truth = [("first.demand", 0.1), ("second.demand", 0.003)];
    let names = ["client.response", "first.service"];
    let (mut inside, mut nothing) = ([0, 0], 0);
    for seed in 0..40 {
        let mut noises = Noise(seed * 91 + 7);
        for _ in 0..20 {
            noises.next();
        }
        let mut text = "client.threads".to_owned();
        names.iter().for_each(|name| text += &format!(",{name},{name}.half_width"));
        for clients in [1.0, 3.0, 6.0, 12.0] {
            let model = make(PAIR)(&set(&[&[("client.threads", clients)][..], &truth[..]].concat())).unwrap();
            let found = solve(&model).0;
            text += &format!("\n{clients}");
            for (name, noise) in names.into_iter().zip([0.02, 0.2]) {
                let (mean, _) = value(&model, &found, name);
                text += &format!(",{},{}", mean * (1.0 + noise * noises.next()), 1.96 * noise * mean);
            }
        }
        let found = fitted(PAIR, &text, &[("first.demand", 0.05), ("second.demand", 0.05)]);
        for ((own, (_, truth)), inside) in found.parameters.iter().zip(truth).zip(&mut inside) {
            let [from, to] = own.interval.unwrap_or_else(|| panic!("{found:?}"));
            *inside += usize::from(from <= truth && truth <= to);
            assert!(to < 0.2, "{found:?}");
        }
        nothing += usize::from(found.parameters[1].interval.is_some_and(|[from, _]| from == 0.0));
    }
    // Of 40, fewer than 34 occur by chance four times in a thousand.
    assert!(inside.iter().all(|inside| *inside >= 34), "{inside:?} of 40");
    assert!(nothing >= 30, "{nothing} of 40 could be nothing");
}

#[test]
fn what_makes_no_difference_is_named() {
    let text = PAIR.replace("y client second 2", "y client second 0.000001");
    let mut measured = "client.threads,client.response\n".to_owned();
    for clients in [1.0, 4.0, 9.0] {
        let model = make(&text)(&set(&[("client.threads", clients)])).unwrap();
        measured += &format!("{clients},{}\n", value(&model, &solve(&model).0, "client.response").0);
    }
    let free = [("first.demand", 0.1), ("second.demand", 0.1)];
    let found = fitted(&text, &measured, &free);
    assert_eq!(found.doubts.len(), 1, "{found:?}");
    assert_eq!(found.doubts[0].together.len(), 1);
    assert_eq!(found.doubts[0].together[0].0, "second.demand");
    assert!(found.parameters[0].interval.is_some() && found.parameters[1].interval.is_none(), "{found:?}");
}

#[test]
fn a_search_comes_from_afar_and_out_of_overload() {
    let open = "P 0\n p core f\n-1\nT 0\n t web n page -1 core\n-1\nE 0\n a page 5\n s page 4 -1\n-1\n";
    // M/M/1: 1 / (1 / D - rate), D = 0.1.
    let found = fitted(open, "page.arrivals,page.response\n2,0.125\n5,0.2\n8,0.5\n", &[("page.demand", 4.0)]);
    assert!((found.parameters[0].value / 0.1 - 1.0).abs() < 0.01, "{found:?}");
    assert!(found.starts >= 1 && found.converged, "{found:?}");
}

#[test]
fn demands_are_free_where_nobody_says_and_parameters_of_them_stay_one() {
    let make_shop = make(SHOP);
    let parameters = read(SHOP, &BTreeMap::new()).unwrap().parameters;
    assert_eq!(default_parameters(&parameters, &make_shop).unwrap(), ["get", "read.demand"]);
    assert_eq!(default_parameters(&[], &make(PAIR)).unwrap(), ["first.demand", "second.demand"]);
}

#[test]
fn what_is_wrong_with_measurements_is_said_with_its_place() {
    let said = |measured: &str| {
        let make = make(SHOP);
        let records = parse_records(measured).unwrap();
        interpret_records(&records, &make, &["get".to_owned()]).map(|_| ()).unwrap_err().to_string()
    };
    for (measured, why) in [
        ("clients,client.reponse\n1,2\n", "2:3: `client.reponse` is no parameter of the model"),
        ("clients,cleint.response\n1,2\n", "2:3: `cleint.response` is no parameter"),
        ("clients,client.response\n0.5,2\n", "there cannot be 0.5 of it"),
        ("client.threads,client.response\n1.5,2\n", "2:1: client.threads: there cannot be 1.5 of it"),
        ("get,client.response\n1,2\n", "2:1: `get` is to be found, and is set here"),
        ("clients,client.response\n1,-2\n", "2:3: `client.response` cannot be below 0"),
        (
            "clients,client.response.half_width,client.response\n1,-2,1\n",
            "2:3: half of an interval cannot be below 0",
        ),
        ("clients,x.half_width\n1,2\n", "2:3: no number `x`"),
        ("clients,weight,client.response\n1,0,2\n", "2:3: a weight is above 0"),
        ("clients,core.utilization\n1,0.5\n3,1.2\n", "3:3: `core.utilization` cannot be above 1"),
        ("clients,server.utilization\n1,1.01\n", "2:3: `server.utilization` cannot be above 1"),
        (
            "clients,server.busy\n1,2.5\n",
            "2:3: `server.busy` cannot be above 2: `server` has no more threads here",
        ),
        ("clients,core.cores,core.busy\n1,2,1.5\n9,1,1.5\n", "3:5: `core.busy` cannot be above 1"),
        (
            "clients,client.response,task.client.response\n1,2,3\n",
            "2:5: `task.client.response` is the same number as `client.response`",
        ),
        (
            "kind,name,metric,mean\ntask,client,response,2\ntask,client,response,3\n",
            "3:22: `task.client.response` stands twice among what was measured at one load",
        ),
        ("clients,client.p95\n1,2\n", "2:1: a model is not fitted to percentiles"),
        ("clients\n1\n", "2:1: nothing was measured"),
    ] {
        let found = said(measured);
        assert!(found.contains(why), "{measured:?}: {found}");
    }
    let make = make(SHOP);
    let observed =
        interpret_records(&parse_records("clients,client.response\n3,0.2\n").unwrap(), &make, &[]).unwrap();
    let why = fit(&set(&[("client.demand", 0.0)]), &observed.rows, &make, None).unwrap_err();
    assert!(why.to_string().contains("a search begins above 0"), "{why}");
}

/// The text includes percentiles with intervals, which the solver does not provide.
#[test]
fn what_simulate_writes_is_read() {
    let text = "clients,client.response,client.response.half_width,client.p95,client.p95.half_width\n\
        3,0.2,0.01,1,0.1\n";
    let found = interpret_records(&parse_records(text).unwrap(), &make(SHOP), &[])
        .unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(found.rows[0].measured.len(), 1, "{found:?}");
}

#[test]
fn what_follows_from_others_counts_once() {
    let make = make(SHOP);
    let text = "clients,client.response,client.throughput,client.busy,core.busy,core.utilization,client.p95,\
                server.throughput,disk.busy\n\
                3,0.2,2.5,0.5,0.1,0.1,1,2.5,0\n";
    let found = interpret_records(&parse_records(text).unwrap(), &make, &[]).unwrap();
    let names: Vec<String> =
        found.rows[0].measured.iter().map(|own| format!("{}.{}", own.name, own.metric)).collect();
    assert_eq!(names, ["client.response", "core.utilization"]);
    assert_eq!(found.notes.len(), 3, "{:?}", found.notes);
}

#[test]
fn what_nobody_can_measure_is_refused_at_its_place() {
    let make = make(SHOP);
    let free = ["get".to_owned()];
    let told = |text: &str| {
        let found = interpret_records(&parse_records(text).unwrap(), &make, &free);
        found.map(|own| own.rows.len()).map_err(|why| why.to_string())
    };
    for (value, what) in [("1e308", "large"), ("1e-308", "small"), ("-2e12", "large"), ("9e-13", "small")] {
        for name in ["client.response", "client.response.half_width", "weight", "clients", "client.p99"] {
            let alone = name == "client.response";
            let text = match alone {
                true => format!("{name}\n {value}\n"),
                false => format!("client.response,{name}\n0.5, {value}\n"),
            };
            let why = told(&text).unwrap_err();
            let place = if alone { "2:2: " } else { "2:6: " };
            assert!(why.starts_with(place) && why.contains(&format!("as {what} as that")), "{text}: {why}");
        }
    }
    assert_eq!(told("client.response,client.response.half_width\n1e-12,0\n1e12,1e12\n"), Ok(2));
    // A search cannot begin at such a value either.
    let rows =
        interpret_records(&parse_records("client.response\n0.5\n").unwrap(), &make, &free).unwrap().rows;
    for value in [1e-308, 1e308] {
        let why = fit(&set(&[("get", value)]), &rows, &make, None).unwrap_err().to_string();
        assert!(why.contains("a search begins between 1e-12 and 1e12"), "{why}");
    }
}
