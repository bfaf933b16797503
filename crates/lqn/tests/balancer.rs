//! Tests the short TOML format for load balancing.

use std::collections::BTreeMap;

use plimsoll_lqn::analysis::parameter::ModelParameter;
use plimsoll_lqn::model::{EntryBody, Multiplicity, RetryPolicy, RoutingPolicy, Scheduling, TaskRole};
use plimsoll_lqn::{Model, SimulationEffort, read, simulate, solve};
use proptest::prelude::*;

mod laws;

const WEB: &str = "# A shop.\n\n[balancer]\nworkers = 2\ndemand = \"50us\"\n\n[[group]]\nname = \"web\"\n\
    policy = \"least_loaded\"\n\
    age = \"0.5s\"\ndemand = \"10ms\"\nthreads = 8\nqueue = 20\ntimeout = \"1s\"\nretries = 1\n\n\
    [[group.member]]\nname = \"one\"\n\
    cores = 2\n\n[[group.member]]\nname = \"two\"\ndemand = 0.02\nweight = 3\nqueue = 5\n\n[[group]]\n\
    name = \"static\"\nmembers = 2\n\
    demand = \"1ms\"\nvariation = 4\n\n[[clients]]\nname = \"people\"\ngroup = \"web\"\nnumber = 50\n\
    think = \"1s\"\n\n\
    [[clients]]\nname = \"robots\"\ngroup = \"static\"\nrate = 100\ntimeout = \"100ms\"\n";

fn model(text: &str) -> Model {
    read(text, &BTreeMap::new()).unwrap_or_else(|why| panic!("{why}\n{text}")).model
}

#[test]
fn a_balancer_becomes_a_model() {
    let model = model(WEB);
    let task =
        |name: &str| model.tasks.iter().find(|own| own.name == name).unwrap_or_else(|| panic!("no {name}"));
    let entry =
        |name: &str| model.entries.iter().find(|own| own.name == name).unwrap_or_else(|| panic!("no {name}"));
    let phase = |name: &str| match &entry(name).body {
        EntryBody::Phases(phases) => &model.activities[phases[0].0],
        EntryBody::Graph(_) => panic!("{name}"),
    };
    assert_eq!(task("people").role, TaskRole::Client { think: 1.0 });
    assert_eq!(task("people").copies, Multiplicity::Finite(50));
    assert_eq!(entry("robots").arrivals, 100.0);
    let one = task("one");
    let cpu = &model.processors[one.processor.0];
    assert_eq!((cpu.scheduling, cpu.copies), (Scheduling::ProcessorSharing, Multiplicity::Finite(2)));
    assert_eq!(
        (one.copies, one.queue_limit, task("two").queue_limit),
        (Multiplicity::Finite(8), Some(20), Some(5))
    );
    assert_eq!((phase("one").demand, phase("two").demand, phase("static_2").variation), (0.01, 0.02, 4.0));
    assert!((phase("web").demand - 5e-5).abs() < 1e-18);
    // Each attempt chooses a member anew.
    assert_eq!(
        phase("web").calls[0].retry_policy,
        Some(RetryPolicy { timeout: 1.0, retries: 1, backoff: 0.0 })
    );
    let choice = entry("web_choice");
    assert_eq!(choice.forwards.iter().map(|(_, share)| *share).collect::<Vec<_>>(), [0.25, 0.75]);
    let routing = choice.routing.unwrap();
    assert_eq!((routing.policy, routing.max_age), (RoutingPolicy::LeastLoaded, 0.5));
    assert_eq!(entry("static").routing.unwrap().policy, RoutingPolicy::Random);
    assert_eq!(phase("robots").calls[0].retry_policy.unwrap().timeout, 0.1);
    // The result is a complete model.
    assert_eq!(laws::written(&model), 2);
    assert!(ModelParameter::find(&model, "people.threads").is_ok());
    let found =
        simulate(&model, &SimulationEffort { events: 200_000, ..SimulationEffort::default() }).unwrap();
    let people = found.tasks.iter().find(|own| own.name == "people").unwrap();
    assert!(people.throughput.mean > 45.0 && people.goodput.is_some(), "{people:?}");
    assert!(solve(&model).1.converged);
}

#[test]
fn who_only_asks_whom_to_go_to_goes_there_alone_and_members_may_share_a_processor() {
    let text = "[balancer]\ndemand = 0.001\n[[group]]\nname = \"web\"\nasks = 0.5\ndemand = 0.01\n\
                [[group.member]]\nname = \"one\"\n\
                [[group]]\nname = \"api\"\ndemand = 0.02\n[[group.member]]\nname = \"two\"\n\
                processor = \"one\"\n\
                [[clients]]\nname = \"people\"\ngroup = \"web\"\nrate = 10\n[[clients]]\nname = \"robots\"\n\
                group = \"api\"\nrate = 5\n";
    let model = model(text);
    let (found, end) = solve(&model);
    assert!(end.converged);
    let busy = |name: &str| found.processors.iter().find(|own| own.name == name).unwrap().busy.mean;
    // Half of the ten requests of the first clients and all five of the others pass through the balancer.
    assert!((busy("balancer_cpu") - 0.01).abs() < 1e-6, "{}", busy("balancer_cpu"));
    assert!((busy("one_cpu") - 0.2).abs() < 1e-6, "{}", busy("one_cpu"));
    assert!(model.processors.iter().all(|own| own.name != "two_cpu"));
}

/// Notes on a model use its author's names: groups, members by their number, clients.
#[test]
fn what_formulas_leave_out_is_said_without_names_that_nobody_wrote() {
    let text = WEB.replace(
        "members = 2\n",
        "members = 2\nthreads = 4\nqueue = 3\ntimeout = \"1s\"\npolicy = \"round_robin\"\n",
    );
    let said = solve::ignored_parts(&model(&text));
    assert_eq!(
        said,
        [
            "that the loads by which `web` goes are 0.5 old",
            "that what `web` sends to whom changes with the load, as those are not alike to whom it forwards",
            "that the turns of `static` come more evenly than chance",
            "the limit of the queue of `one`",
            "the limit of the queue of `two`",
            "the limit of the queue of member 1 of `static`",
            "the limit of the queue of member 2 of `static`",
            "the patience of the calls from `web` to its members",
            "the patience of the calls from `static` to its members",
            "the patience of the calls from `robots` to `static`",
        ]
    );
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    for (from, to, why) in [
        ("workers = 2", "workers = 0", "4:11: there cannot be 0 workers"),
        ("workers = 2", "worker = 2", "4:1: unknown field `worker`"),
        ("\"50us\"", "\"50 parsecs\"", "5:10: invalid value: string \"50 parsecs\", expected a time"),
        ("\"50us\"", "-1", "5:10: invalid value"),
        ("[balancer]", "[balancer", "3:10: "),
        ("policy = \"least_loaded\"", "policy = \"best\"", "9:10: no policy `best`; there are random"),
        ("policy = \"least_loaded\"", "policy = \"random\"", "10:7: `random` looks at no loads"),
        ("name = \"web\"", "name = \"w-b\"", "8:8: `w-b` is no name"),
        ("threads = 8\n", "", "nothing waits for a thread of `one`"),
        ("timeout = \"1s\"", "timeout = 0", "14:11: a timeout is a time above 0"),
        ("retries = 1", "retries = 1.5", "15:11: retries are a whole number"),
        ("name = \"two\"", "name = \"one\"", "22:8: there are two of"),
        ("group = \"web\"", "group = \"wbe\"", "no group `wbe`; there are web, static"),
        ("rate = 100", "rate = 100\nthink = 1", "does not think"),
        ("rate = 100\n", "", "has either a number"),
        ("members = 2\n", "", "has either `members`"),
        ("demand = \"1ms\"\n", "", "`static_1` needs a demand"),
        ("weight = 3", "weight = 0", "24:10: a weight is above 0"),
        ("weight = 3", "processor = \"three\"", "no member `three` before this one"),
        ("weight = 3", "processor = \"one\"\nspeed = 2", "`cores` and `speed` are those of the member"),
        ("retries = 1\n", "retries = 1\nasks = 0.1\n", "waits for no member"),
    ] {
        assert!(WEB.contains(from), "{from}");
        let text = WEB.replacen(from, to, 1);
        let said = read(&text, &BTreeMap::new()).map(|_| ()).expect_err(&text).to_string();
        assert!(said.contains(why), "{from} -> {to}: {said}");
    }
    let said = |text: &str| read(text, &BTreeMap::new()).map(|_| ()).unwrap_err().to_string();
    assert!(said("[balancer]\nworkers = 1\n").contains("there is no group"));
    let nobody = "[[group]]\nname = \"web\"\nmembers = 1\ndemand = 1\n";
    assert!(said(nobody).contains("nobody asks"), "{}", said(nobody));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_text_that_was_damaged_is_read_or_refused(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..2_u8), 1..5),
    ) {
        let mut bytes = WEB.as_bytes().to_vec();
        for (place, byte, how) in damage {
            let place = place.index(bytes.len());
            if how == 0 {
                bytes[place] = byte;
            } else {
                bytes.remove(place);
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        match read(&text, &BTreeMap::new()) {
            Ok(read) => {
                laws::written(&read.model);
                prop_assert!(solve(&read.model).0.tasks.iter().all(|task| task.throughput.mean.is_finite()));
            }
            Err(why) => prop_assert!(why.line >= 1 && why.column >= 1),
        }
    }
}
