//! The lab and the load generator with a lottery in place of a balancer: daemons beside the members, a pick
//! for each request.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::lottery::Cluster;
use crate::stage::{Folder, Member, Run, free_port};

const SMALL: &str = r#"
title = "Small"
about = "A test."

[members]
count = 2
service = "const:1ms"
dynamic = "const:40ms"
workers = 4

[balancer]
health_interval = "200ms"
slow_start = "0s"

[load]
concurrency = 3
workload = "WORKLOAD"
keep_alive = false

[plan]
repetitions = { full = 1, quick = 1 }
batches = { full = 5, quick = 5 }
warmup = { full = "300ms", quick = "300ms" }
duration = { full = "1500ms", quick = "1500ms" }

[[factor]]
vary = "balancer"
full = LEVELS
quick = LEVELS

[[figure]]
name = "arrivals"
title = "Arrivals"
x = "seconds"
y = "arrivals"

[[claim]]
says = "Nobody is left without a member"
test = { at_most = { metric = "unpicked", value = 0, only = [{ factor = "balancer", among = ["lottery", "lottery:unicast"] }] } }
"#;

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn small(levels: &str, workload: &str) -> String {
    SMALL.replace("LEVELS", levels).replace("WORKLOAD", workload)
}

/// Returns the mean of a metric.
fn mean(point: &Value, metric: &str) -> Option<f64> {
    point["estimates"][metric][0].as_f64()
}

#[test]
fn clients_are_told_by_daemons_who_serves_and_plain_ones_by_a_balancer_that_follows() {
    let folder = Folder::new();
    let levels = r#"["lottery", "lottery:unicast", "lottery:multicast", "lottery:plimsoll"]"#;
    folder.write("lots.toml", small(levels, "all"));
    let run = Run::plimsoll(&["lab", "run", "lots.toml"], folder.path());
    // A closed loop is never late.
    assert_eq!(run.code, Some(0), "{} {}", run.out, run.err);
    let results = folder.join("plimsoll-lab/lots-quick");
    // The log was replayed, and the claim holds whatever the machine does.
    let log = fs::read_to_string(results.join("access.log")).unwrap();
    assert!(log.lines().count() == 20_000 && log.contains("\"GET /cgi-bin/"), "{}", log.len());
    assert_eq!(json(&results.join("claims.json"))["claims"][0]["pass"], true, "{} {}", run.out, run.err);
    let names = ["lottery", "lottery-unicast", "lottery-multicast", "lottery-plimsoll"];
    let names = std::array::from_fn::<_, 4, _>(|level| format!("{:03}-balancer={}", level + 1, names[level]));
    for name in &names {
        let folder = results.join("points").join(name);
        let point = json(&folder.join("point.json"));
        assert_eq!(mean(&point, "success"), Some(1.0), "{name}: {point}");
        // One request in ten takes 40 ms and the others 1 ms: the path tells which requests scripts answer.
        let response = mean(&point, "response").unwrap();
        assert!(response > 0.003, "{name}: {response}");
        // Both members got requests.
        let ticks = point["outcome"]["timelines"][0].as_array().unwrap();
        for member in ["m1", "m2"] {
            let arrived: u64 = ticks.iter().filter_map(|tick| tick["arrived"][member].as_u64()).sum();
            assert!(arrived > 0, "{name}: {member} got nothing");
        }
        // The daemons are real, know the load of their members, and share one key.
        for file in ["d1.toml", "d2.toml"] {
            assert!(point["configurations"][file].is_string(), "{name}: {file}");
        }
        let keys = fs::read_to_string(folder.join("lottery.keys")).unwrap();
        assert!(keys.lines().count() >= 1);
        if name.contains("plimsoll") {
            assert!(fs::read_to_string(folder.join("plimsoll.toml")).unwrap().contains("service = \"lab\""));
            assert_eq!(mean(&point, "pick"), None, "{name}");
            continue;
        }
        assert!(mean(&point, "pick").is_some_and(|pick| pick > 0.0 && pick < response), "{name}: {point}");
        assert!(mean(&point, "daemon_cpu").is_some_and(|cpu| cpu > 0.0), "{name}: {point}");
        let said = &json(&folder.join("status.json"))["daemons"];
        let value = |daemon: &str, name: &str| said[daemon]["values"][name]["value"].as_f64();
        assert!(value("d1", "in_flight").is_some(), "{name}: its member tells it: {said}");
        let answers = |how: &str| value("d1", how).unwrap() + value("d2", how).unwrap();
        // On a busy machine a client repeats an attempt, and a repeated attempt may use the other form.
        let (won, referred) = (answers("lottery_won"), answers("lottery_referred"));
        assert_eq!(won > referred, name.ends_with("cast"), "{name}: {won} {referred}");
        assert!(won + referred > 0.0 && mean(&point, "duplicates").is_some(), "{name}: {point}");
    }
}

#[test]
fn a_member_that_is_killed_takes_its_daemon_with_it_and_both_come_back() {
    let folder = Folder::new();
    let mut text = small(r#"["lottery"]"#, "static").replace("\"1500ms\"", "\"12s\"");
    text = text.replace("[plan]\n", "[plan]\ntick = { full = \"250ms\", quick = \"250ms\" }\n");
    for (act, at) in [("kill", "1s"), ("start", "4s")] {
        text += &format!(
            "[[fault]]\nact = \"{act}\"\nmember = 1\nat = {{ full = \"{at}\", quick = \"{at}\" }}\n"
        );
    }
    folder.write("dies.toml", text);
    let run = Run::plimsoll(&["lab", "run", "dies.toml"], folder.path());
    assert!(matches!(run.code, Some(0 | 1)) && run.err.contains("1/1"), "{:?} {}", run.code, run.err);
    let point = folder.join("plimsoll-lab/dies-quick/points/001-balancer=lottery");
    let outcome = json(&point.join("point.json"));
    // A client that gets no answer from a daemon asks another. Requests in flight at the server when it died
    // are lost.
    let success = mean(&outcome, "success").unwrap();
    assert!(success > 0.98, "{success}");
    let ticks = outcome["outcome"]["timelines"][0].as_array().unwrap();
    let arrived = |from: f64, to: f64| -> u64 {
        let began = |tick: &Value| tick["at"].as_f64().unwrap() - tick["seconds"].as_f64().unwrap();
        let within = |tick: &&Value| began(tick) >= from && tick["at"].as_f64().unwrap() <= to;
        ticks.iter().filter(within).filter_map(|tick| tick["arrived"]["m1"].as_u64()).sum()
    };
    // The member is killed a second later on any machine, and never started again too soon.
    assert!(arrived(0.0, 1.0) > 0 && arrived(2.0, 3.9) == 0, "{ticks:?}");
    // Clients that found the member dead avoid it for five seconds; checks come five times a second all the
    // same.
    assert!(arrived(9.0, 30.0) > 0, "{ticks:?}");
    let log = fs::read_to_string(point.join("d1.log")).unwrap();
    assert_eq!(log.matches("listening lottery").count(), 2, "{log}");
}

#[test]
fn what_a_lottery_cannot_do_is_said_before_anything_runs() {
    let folder = Folder::new();
    let refused = |text: String, why: &str| {
        folder.write("wrong.toml", text);
        let run = Run::plimsoll(&["lab", "run", "wrong.toml"], folder.path());
        assert!(run.code == Some(2) && run.err.contains(why), "{why}: {:?} {}", run.code, run.err);
    };
    refused(small(r#"["lottery:broadcast"]"#, "all"), "expected `referral`, `multicast`, `unicast`");
    refused(small(r#"["lottery"]"#, "some"), "expected `all` or `static`");
    let body = small(r#"["lottery"]"#, "all").replace("[load]", "[load]\nbody = \"1\"");
    refused(body, "a `workload` has no `body`");
    let add = "[[fault]]\nact = \"add\"\nat = { full = \"1s\", quick = \"1s\" }\n";
    refused(small(r#"["lottery:plimsoll"]"#, "all") + add, "cannot be added");
    let iiop = small(r#"["lottery"]"#, "all").replace("[load]", "[load]\nprotocol = \"iiop\"");
    refused(iiop, "speak http");
}

/// Runs `plimsoll load` with these arguments against the cluster.
fn load(cluster: &Cluster, args: &[&str]) -> Run {
    let daemons = cluster.addresses(&[0]);
    let always = ["load", "http://web/page", "--rate", "200", "--duration", "500ms", "-o", "json"];
    let patient = ["--timeout", "60s", "--connect-timeout", "60s"];
    let pick = ["--pick", "web", "--daemon", &daemons, "--keys", "keys"];
    Run::plimsoll(&[&always[..], &patient, &pick, args].concat(), cluster.folder.path())
}

#[test]
fn load_goes_to_whom_the_lottery_names() {
    let servers = Member::several(2, &[]);
    let services = [0, 1].map(|one: usize| format!("web={}", servers[one].address));
    let cluster = Cluster::start("127.0.0.1", &services.each_ref().map(String::as_str));
    for args in [&[][..], &["--lottery"], &["--no-keepalive"]] {
        let run = load(&cluster, args);
        let out = run.json();
        assert_eq!((&out["ok"], &out["failed"]), (&out["due"], &serde_json::json!({})), "{args:?} {out}");
        let members = out["members"].as_object().unwrap();
        assert_eq!(members.len(), 2, "{args:?}: by chance one in 2^100 gets nothing: {out}");
        let (pick, service) = (&out["pick_seconds"]["mean"], &out["service_seconds"]["mean"]);
        assert!(pick.as_f64().unwrap() > 0.0 && pick.as_f64() < service.as_f64(), "{args:?} {out}");
    }
}

#[test]
fn load_that_nobody_can_be_picked_for_fails() {
    // The server is not there, as its check finds.
    let service = format!("web=127.0.0.1:{},health=tcp", free_port());
    let mut cluster = Cluster::new("127.0.0.1");
    cluster.join(&["--service", &service]);
    let run = load(&cluster, &[]);
    assert_eq!(run.code, Some(3), "{} {}", run.out, run.err);
    let out = run.json();
    assert_eq!((&out["ok"], &out["failed"]["unpicked"]), (&0.into(), &out["due"]), "{out}");
    for (args, why) in [
        (&["load", "http://web/", "--rate", "1", "--pick", "web"][..], "--keys"),
        (
            &[
                "load",
                "http://web/",
                "--rate",
                "1",
                "--pick",
                "web",
                "--keys",
                "none",
                "--daemon",
                "127.0.0.1:1",
            ],
            "none",
        ),
        (
            &["load", "tcp://127.0.0.1:1", "--rate", "1", "--pick", "web", "--keys", "keys"],
            "the target is http://",
        ),
    ] {
        let run = Run::plimsoll(args, cluster.folder.path());
        assert!(run.code == Some(2) && run.err.contains(why), "{args:?}: {:?} {}", run.code, run.err);
    }
}
