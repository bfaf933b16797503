//! Tests the policies of balancers in a model against known results.

use std::collections::BTreeMap;

use plimsoll_lqn::solve::ignored_parts;
use plimsoll_lqn::{ModelResults, SimulationEffort, read, simulate, solve, write};

/// Runs two servers of rate 1 behind an entry with this policy, with this rate of requests from outside.
fn found(pragma: &str, arrivals: f64, shares: [f64; 2]) -> ModelResults {
    let [one, other] = shares;
    let text = format!(
        "{pragma}\nG \"\" 1 1 -1\nP 0\n p pl f i\n p ca f\n p cb f\n-1\n\
         T 0\n t lb i lb -1 pl\n t sa n sa -1 ca\n t sb n sb -1 cb\n-1\n\
         E 0\n a lb {arrivals}\n s lb 0 -1\n F lb sa {one} -1\n F lb sb {other} -1\n s sa 1 -1\n s sb 1 -1\n\
         -1\n"
    );
    let model = read(&text, &BTreeMap::new()).unwrap_or_else(|why| panic!("{why}\n{text}")).model;
    simulate(&model, &SimulationEffort { events: 4_000_000, precision: 0.005, ..SimulationEffort::default() })
        .expect("it ends")
}

fn response(pragma: &str) -> f64 {
    found(pragma, 1.6, [0.5, 0.5]).entries[0].response.expect("of what came from outside").mean
}

#[test]
fn chance_turns_and_the_shorter_queue_take_as_long_as_formulas_say() {
    // Each of two M/M/1 at 80 %: 1 / (1 - 0.8).
    let random = response("#pragma route.lb=random");
    assert!((random / 5.0 - 1.0).abs() < 0.03, "{random}");
    // With round robin each is E2/M/1: its delay has the root of sigma = (1.6 / (1.6 + 1 - sigma))^2.
    let sigma = (0..200).fold(0.5_f64, |sigma, _| (1.6 / (2.6 - sigma)).powi(2));
    let turns = response("#pragma route.lb=round_robin");
    assert!((turns * (1.0 - sigma) - 1.0).abs() < 0.03, "{turns}, not {}", 1.0 / (1.0 - sigma));
    let weighted = response("#pragma route.lb=weighted");
    assert!((weighted / turns - 1.0).abs() < 0.03, "{weighted}");
    // The shorter of two queues is worse than one common queue, 1 / (1 - 0.8^2), and better than round robin.
    let shorter = response("#pragma route.lb=least_loaded");
    assert!(shorter > 1.0 / (1.0 - 0.64) && shorter < 0.9 * turns, "{shorter}");
    // With two targets, the policy compares both.
    let two = response("#pragma route.lb=power_of_two");
    assert!((two / shorter - 1.0).abs() < 0.03, "{two}, {shorter}");
}

#[test]
fn one_is_filled_before_the_next() {
    let model = |threads: &str| {
        let text = format!(
            "#pragma route.lb=first_available\nG \"\" 1 1 -1 P 0 p pl f i p pa f i p pb f i -1 \
             T 0 t lb i lb -1 pl t sa n sa -1 pa {threads} t sb n sb -1 pb i -1 \
             E 0 a lb 3 s lb 0 -1 F lb sa 0.5 -1 F lb sb 0.5 -1 s sa 1 -1 s sb 1 -1 -1"
        );
        read(&text, &BTreeMap::new()).unwrap_or_else(|why| panic!("{why}")).model
    };
    let effort = SimulationEffort { events: 2_000_000, precision: 0.003, ..SimulationEffort::default() };
    // The overflow of two threads follows Erlang's formula B.
    let two = model("m 2");
    let found = simulate(&two, &effort).unwrap();
    let lost = 4.5 / (1.0 + 3.0 + 4.5);
    let over = found.entries[2].throughput.mean / 3.0;
    assert!((over / lost - 1.0).abs() < 0.01, "{over}, not {lost}");
    assert_eq!(found.entries[1].waiting.mean, 0.0);
    assert!(
        ignored_parts(&two).iter().any(|own| own.contains("fills one before")),
        "{:?}",
        ignored_parts(&two)
    );
    // With unlimited threads, no other target is used, and the solver covers it.
    let endless = model("i");
    let (solved, _) = solve(&endless);
    for found in [simulate(&endless, &effort).unwrap(), solved] {
        assert_eq!(found.entries[2].throughput.mean, 0.0);
        assert!((found.entries[1].throughput.mean / 3.0 - 1.0).abs() < 0.01);
    }
    assert!(ignored_parts(&endless).is_empty(), "{:?}", ignored_parts(&endless));
    // All are overloaded: requests go to the first of those with the shortest queue, and no server is idle.
    let text = "#pragma route.lb=first_available\nP 0 p pc f i p pl f i p pa f p pb f -1 T 0 t cl r cl -1 pc \
                m 8 t lb i lb -1 pl \
                t sa n sa -1 pa t sb n sb -1 pb -1 E 0 s cl 0 -1 f cl 1 -1 y cl lb 1 -1 s lb 0 -1 F lb sa \
                0.5 -1 F lb sb 0.5 -1 s sa 1 -1 s sb 1 -1 -1";
    let full = read(text, &BTreeMap::new()).unwrap_or_else(|why| panic!("{why}")).model;
    let found = simulate(&full, &effort).unwrap();
    assert!(found.processors[2..].iter().all(|own| own.busy.mean > 0.99), "{:?}", found.processors);
}

#[test]
fn loads_that_are_old_are_worse_than_none() {
    let ages = [0.0, 1.0, 10.0, 40.0].map(|age| response(&format!("#pragma route.lb=least_loaded({age})")));
    assert!(ages.is_sorted(), "{ages:?}");
    // All requests go to one of them until the loads are read again.
    assert!(ages[3] > 2.0 * 5.0, "{ages:?}");
}

#[test]
fn weights_are_kept_and_sessions_stay() {
    let found = found("#pragma route.lb=weighted", 1.0, [0.75, 0.25]);
    let (one, other) = (found.entries[1].throughput.mean, found.entries[2].throughput.mean);
    assert!((one / other - 3.0).abs() < 0.001, "{one} {other}");
    let text = "#pragma route.lb=sticky\nG \"\" 1 1 -1 P 0 p pc f i p pl f i p ca f p cb f -1 T 0 t cl r cl \
                -1 pc m 1 t lb i lb -1 pl \
                t sa n sa -1 ca t sb n sb -1 cb -1 E 0 s cl 1 -1 y cl lb 2 -1 s lb 0 -1 F lb sa 0.5 -1 F lb \
                sb 0.5 -1 s sa 1 -1 s sb 1 -1 -1";
    let model = read(text, &BTreeMap::new()).unwrap().model;
    let found =
        simulate(&model, &SimulationEffort { events: 50_000, ..SimulationEffort::default() }).unwrap();
    let used =
        found.entries.iter().filter(|own| own.name.starts_with('s') && own.throughput.mean > 0.0).count();
    assert_eq!(used, 1, "{:?}", found.entries);
}

/// Like the balancer's own strategies, a target with twice the capacity is equally loaded with twice as many
/// requests in flight.
#[test]
fn loads_count_by_weight() {
    let part = |policy: &str, arrivals: f64| {
        let found = found(&format!("#pragma route.lb={policy}"), arrivals, [0.75, 0.25]);
        found.entries[1].throughput.mean / found.entries[0].throughput.mean
    };
    // At a very low load all are idle, and each gets its weight.
    for policy in ["least_loaded", "power_of_two"] {
        let own = part(policy, 0.02);
        assert!((own - 0.75).abs() < 0.015, "{policy}: {own}");
        // At a high load, weights equalize the load per weight, whatever the speed.
        let own = part(policy, 1.2);
        assert!(own > 0.54 && own < 0.75, "{policy}: {own}");
    }
}

/// The maximal age of loads may be a parameter, in both formats.
#[test]
fn an_age_may_be_a_parameter() {
    let rest = "P 0 p pl f i p ca f p cb f -1 T 0 t lb i lb -1 pl t sa n sa -1 ca t sb n sb -1 cb -1 \
                E 0 a lb 1 s lb 0 -1 F lb sa 0.5 -1 F lb sb 0.5 -1 s sa 1 -1 s sb 1 -1 -1";
    let text = format!("$age = 2\n#pragma route.lb=least_loaded($age)\nG \"\" 1 1 -1 {rest}");
    let age = |text: &str, given: &[(&str, f64)]| {
        let given = given.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let model = read(text, &given).unwrap_or_else(|why| panic!("{why}\n{text}")).model;
        model.entries.iter().find_map(|own| own.routing).unwrap().max_age
    };
    assert_eq!((age(&text, &[]), age(&text, &[("age", 7.0)])), (2.0, 7.0));
    let model = read(&text, &BTreeMap::new()).unwrap().model;
    let xml = write::lqnx(&model).unwrap().replace("least_loaded(2)", "least_loaded($age)");
    let xml = xml.replace("<solver-params", "<parameters>$age = 2</parameters><solver-params");
    assert_eq!(age(&xml, &[("age", 3.0)]), 3.0, "{xml}");
    for (wrong, why) in [("$old", "2:15: `$old` has no value"), ("-1", "2:15: the age of loads")] {
        let said = read(&text.replace("($age)", &format!("({wrong})")), &BTreeMap::new()).unwrap_err();
        assert!(said.to_string().starts_with(why), "{said}");
    }
    let toml = "[[group]]\nname = \"web\"\npolicy = \"least_loaded($age)\"\ndemand = 1\nmembers = 2\n\
                [[clients]]\nname = \"people\"\ngroup = \"web\"\nnumber = 10\n";
    let said = read(toml, &BTreeMap::new()).unwrap_err();
    assert!(said.message.contains("--set web.age=2"), "{said}");
}

/// The solver splits requests like the simulation, for each policy.
#[test]
fn policies_split_requests_in_formulas_as_they_do_when_played() {
    for policy in ["random", "round_robin", "weighted", "sticky", "least_loaded", "power_of_two"] {
        // The second target is twice as fast and has a weight of a quarter.
        let text = format!(
            "#pragma route.lb={policy}\nP 0\n p pc f i\n p pl f i\n p ca f\n p cb f R 2\n-1\n\
             T 0\n t cl r cl -1 pc m 400 z 1000\n t lb i lb -1 pl\n t sa n sa -1 ca\n t sb n sb -1 cb\n-1\n\
             E 0\n s cl 0 -1\n y cl lb 1 -1\n s lb 0 -1\n F lb sa 0.75 -1\n F lb sb 0.25 -1\n s sa 1 -1\n s \
             sb 1 -1\n-1\n"
        );
        let model = read(&text, &BTreeMap::new()).unwrap().model;
        let (solved, how) = solve(&model);
        assert!(how.converged, "{policy}");
        let played = simulate(
            &model,
            &SimulationEffort { events: 1_000_000, precision: 0.005, ..SimulationEffort::default() },
        )
        .unwrap();
        let part = |found: &ModelResults| found.entries[2].throughput.mean / found.entries[1].throughput.mean;
        let by_loads = matches!(policy, "least_loaded" | "power_of_two");
        let said = ignored_parts(&model);
        match policy {
            "round_robin" | "weighted" => {
                assert_eq!(said, ["that the turns of `lb` come more evenly than chance"]);
            }
            _ if by_loads => assert!(said.len() == 1 && said[0].contains("not alike"), "{policy}: {said:?}"),
            _ => assert!(said.is_empty(), "{policy}: {said:?}"),
        }
        if !by_loads {
            let (one, other) = (part(&solved), part(&played));
            // Of 400 sessions a quarter is 100, with a standard deviation of 9.
            let room = if policy == "sticky" { 0.09 } else { 0.02 };
            assert!((one - other).abs() < room, "{policy}: {one} {other}");
            let wanted = if policy == "round_robin" { 0.5 } else { 0.75 };
            assert!((one - wanted).abs() < 1e-6, "{policy}: {one}");
        }
    }
}

/// Unequal targets get requests by their capacity if all are busy: the lesser of their threads and cores.
#[test]
fn targets_that_are_not_alike_get_what_they_can_do() {
    let cores = |one: &str, other: &str| format!(" p ca f {one}\n p cb f {other}\n");
    for (processors, threads, capacity) in [
        // One is three times as fast.
        (cores("", "R 3"), ["i", "i"], 4.0),
        // Each has four cores, of which one target uses a single one.
        (cores("m 4", "m 4"), ["m 1", "m 4"], 5.0),
        // Unlimited threads, on a single core and on four.
        (cores("m 1", "m 4"), ["i", "i"], 5.0),
    ] {
        let [one, other] = threads;
        let text = format!(
            "#pragma route.lb=least_loaded\nP 0\n p pc f i\n p pl f i\n{processors}-1\n\
             T 0\n t cl r cl -1 pc m 60 z 5\n t lb i lb -1 pl\n t sa n sa -1 ca {one}\n t sb n sb -1 cb \
             {other}\n-1\n\
             E 0\n s cl 0 -1\n f cl 1 -1\n y cl lb 1 -1\n s lb 0 -1\n F lb sa 0.5 -1\n F lb sb 0.5 -1\n s sa \
             1 -1\n s sb 1 -1\n-1\n"
        );
        let model = read(&text, &BTreeMap::new()).unwrap_or_else(|why| panic!("{why}\n{text}")).model;
        let (solved, how) = solve(&model);
        let played = simulate(
            &model,
            &SimulationEffort { events: 2_000_000, precision: 0.005, ..SimulationEffort::default() },
        )
        .unwrap();
        assert!(how.converged && ignored_parts(&model).len() == 1, "{:?}", ignored_parts(&model));
        let numbers = |found: &ModelResults| {
            [&found.entries[2], &found.entries[3]]
                .map(|own| own.throughput.mean)
                .into_iter()
                .chain([found.tasks[0].throughput.mean, found.tasks[0].response.unwrap().mean])
                .collect::<Vec<f64>>()
        };
        let (solved, played) = (numbers(&solved), numbers(&played));
        for (one, other) in solved.iter().zip(&played) {
            assert!((one / other - 1.0).abs() < 0.05, "{threads:?}: {solved:?} {played:?}");
        }
        assert!(played[2] > 0.97 * capacity, "{threads:?}: {played:?}");
    }
}

/// Response times with policies that use loads, solved and simulated: open and closed, with one server and
/// several.
#[test]
fn formulas_know_what_looking_at_loads_saves() {
    let (mut worst, mut sum, mut count) = (0.0_f64, 0.0, 0.0);
    for policy in ["least_loaded", "power_of_two"] {
        for (targets, servers, used) in [
            (2, 1, 0.5),
            (2, 1, 0.8),
            (2, 4, 0.9),
            (4, 1, 0.8),
            (4, 2, 0.7),
            (8, 1, 0.9),
            (10, 1, 0.7),
            (10, 4, 0.9),
        ] {
            for closed in [false, true] {
                let [mut lines, mut tasks, mut entries, mut forwards] = [const { String::new() }; 4];
                for one in 10..10 + targets {
                    lines += &format!(" p c{one} f m {servers}\n");
                    tasks += &format!(" t s{one} n s{one} -1 c{one} m {servers}\n");
                    entries += &format!(" s s{one} 1 -1\n");
                    forwards += &format!(" F lb s{one} {} -1\n", 1.0 / f64::from(targets));
                }
                let rate = used * f64::from(targets * servers);
                let (clients, asks) = if closed {
                    let many = (10.0 * rate).round();
                    (
                        format!(" t cl r cl -1 pl z 8.5 m {many}\n"),
                        " s cl 0 -1\n f cl 1 -1\n y cl lb 1 -1\n".to_owned(),
                    )
                } else {
                    (String::new(), format!(" a lb {rate}\n"))
                };
                let text = format!(
                    "#pragma route.lb={policy}\nP 0\n p pl f i\n{lines}-1\nT 0\n{clients} t lb i lb -1 pl\n\
                     {tasks}-1\n\
                     E 0\n{asks} s lb 0 -1\n{forwards}{entries}-1\n"
                );
                let model = read(&text, &BTreeMap::new()).unwrap_or_else(|why| panic!("{why}\n{text}")).model;
                let response = |found: &ModelResults| {
                    let open = found.entries[0].response.map(|own| own.mean);
                    open.or_else(|| found.tasks[0].response.map(|own| own.mean)).expect("somebody asks")
                };
                let (solved, how) = solve(&model);
                assert!(how.converged, "{policy} {targets} {servers} {used} {closed}");
                let played = simulate(
                    &model,
                    &SimulationEffort { events: 2_000_000, precision: 0.01, ..SimulationEffort::default() },
                );
                let off = (response(&solved) / response(&played.unwrap()) - 1.0).abs();
                eprintln!("{policy} {targets} x {servers} at {used}, closed {closed}: off {:.3}", off);
                (worst, sum, count) = (worst.max(off), sum + off, count + 1.0);
            }
        }
    }
    assert!(worst < 0.10 && sum / count < 0.03, "worst {worst}, mean {}", sum / count);
}

#[test]
fn what_is_wrong_with_a_policy_is_said_with_its_place() {
    let text = |pragma: &str| {
        format!(
            "# a model\n  {pragma}\nG \"\" 1 1 -1 P 0 p pc f -1 T 0 t lb n lb -1 pc t sa n sa -1 pc -1 E 0 a \
            lb 0.1 s lb 0 -1 F lb sa 0.5 -1 s sa 1 -1 -1"
        )
    };
    for (pragma, why) in [
        ("#pragma route.lb=best", "2:17: no policy `best`; there are random, round_robin"),
        ("#pragma route.lb=least_loaded(x)", "2:17: the age of loads"),
        ("#pragma route.lb=random(1)", "looks at no loads"),
        ("#pragma route.lc=random", "2:17: no entry `lc`"),
        ("#pragma route.lb=random", "2:17: `lb` forwards 0.5 of its requests"),
    ] {
        let said = read(&text(pragma), &BTreeMap::new()).map(|_| ()).unwrap_err().to_string();
        assert!(said.starts_with(why) || said.contains(why), "{pragma}: {said}");
    }
    // Other tools' pragmas are ignored.
    assert!(read(&text("#pragma multiserver=conway"), &BTreeMap::new()).is_ok());
    let xml =
        "<lqn-model><solver-params><pragma param=\"route.x\" value=\"odd\"/></solver-params></lqn-model>";
    let said = read(xml, &BTreeMap::new()).map(|_| ()).unwrap_err().to_string();
    assert!(said.contains("no policy `odd`"), "{said}");
}
