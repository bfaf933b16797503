//! Members that die, freeze and flap under load: no repeatable request fails, and the events record the
//! reactions.

use rustix::process::Signal;
use serde_json::Value;

use crate::stage::{Balancer, Load, Member, Process, get, part, until, web};

/// A short ejection, so that an ejected member returns within the test.
const OUTLIER: &str = "[group.outlier]\nejection = \"1s\"\n";

/// A machine that stands still must not cause overload: nothing is rejected for it, and all requests at a
/// member that dies meanwhile may be retried.
const PATIENT: &str = "admission = false\nretry = { budget = 1.0, min_per_second = 1000 }\n";

/// The requests per second: within the capacity of a debug build on a busy machine.
const RATE: f64 = 100.0;

fn start(members: &[Member], rest: &str) -> Balancer {
    let addresses: Vec<_> = members.iter().map(|member| member.address).collect();
    Balancer::start(&web(&addresses, &format!("{PATIENT}{rest}")))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

#[test]
fn a_killed_member_costs_no_request_and_comes_back() {
    let mut members = Member::several(3, &["--service", "exp:2ms", "--workers", "16"]);
    let balancer = start(&members, OUTLIER);
    let victim = members[1].address;
    let mut load = Load::start(balancer.address(), "GET", RATE);
    load.more(50);
    members[1].process.kill();
    until("an ejection", || !balancer.events(victim, "ejected").is_empty());
    load.more(100);
    let event = balancer.events(victim, "ejected").remove(0);
    assert!(event["why"].as_str().unwrap().contains("more often than the others"), "{event}");
    assert!(event["why"].as_str().unwrap().contains(", the last one: "), "{event}");

    members[1].restart();
    let before = number(&balancer.member(victim)["answers"]["2xx"]);
    until("it serves again", || number(&balancer.member(victim)["answers"]["2xx"]) > before + 20);
    assert!(!balancer.events(victim, "readmitted").is_empty());
    assert_eq!(balancer.member(victim)["state"], "up");
    let record = load.stop_unharmed();
    assert!(record.ok > 150);
    assert_eq!(balancer.group("web")["retries_denied"], 0);
}

#[test]
fn a_frozen_member_is_tried_no_more_and_comes_back() {
    let members = Member::several(3, &["--service", "exp:2ms", "--workers", "16"]);
    // Longer than the machine stands still.
    let rest = format!("{OUTLIER}[group.timeouts]\nper_try = \"3s\"\n");
    let balancer = start(&members, &rest);
    let victim = members[2].address;
    let mut load = Load::start(balancer.address(), "GET", RATE);
    load.more(50);
    members[2].process.signal(Signal::STOP);
    until("an ejection", || !balancer.events(victim, "ejected").is_empty());
    let why = balancer.events(victim, "ejected").remove(0)["why"].take();
    // It answers nothing while others do, or its requests time out: whichever the balancer sees first.
    let expected = ["(answer_timeout)", "answers none of"];
    assert!(expected.iter().any(|part| why.as_str().unwrap().contains(part)), "{why}");
    load.more(50);
    members[2].process.signal(Signal::CONT);
    let before = number(&balancer.member(victim)["answers"]["2xx"]);
    until("it serves again", || number(&balancer.member(victim)["answers"]["2xx"]) > before + 20);
    until("all well", || balancer.member(victim)["state"] == "up");
    load.stop_unharmed();
    assert!(number(&balancer.group("web")["retries"]) >= 2, "tried again elsewhere");
    assert!(number(&balancer.member(victim)["answers"]["none"]) >= 2, "they timed out");
}

#[test]
fn a_flapping_member_costs_no_request_and_is_not_ejected_for_ever() {
    let mut members = Member::several(3, &["--service", "exp:2ms", "--workers", "16"]);
    let balancer = start(&members, OUTLIER);
    let victim = members[0].address;
    let mut load = Load::start(balancer.address(), "GET", RATE);
    let begun = std::time::Instant::now();
    for _ in 0..6 {
        load.more(40);
        members[0].process.kill();
        load.more(40);
        members[0].restart();
    }
    // In a row the k-th ejection lasts k seconds, and two never overlap.
    let ejections = balancer.events(victim, "ejected").len();
    // bound: so many fit into the time that has passed
    let seconds = begun.elapsed().as_secs_f64() + 1.0;
    assert!(ejections >= 1 && ejections as f64 <= seconds, "{ejections} ejections in {seconds:.1} s");
    let before = number(&balancer.member(victim)["answers"]["2xx"]);
    until("it serves again", || number(&balancer.member(victim)["answers"]["2xx"]) > before + 20);
    load.stop_unharmed();
    for other in &members[1..] {
        assert!(balancer.events(other.address, "ejected").is_empty(), "those who are well stay in");
    }
}

#[test]
fn wrk_does_not_notice_a_kill() {
    let mut members = Member::several(3, &["--body", "1KiB"]);
    let balancer = start(&members, OUTLIER);
    let (url, program) = (balancer.url("/"), part("wrk").display().to_string());
    // wrk runs until it is interrupted. Its output is collected together with its errors.
    let args = ["-c", "exec \"$0\" \"$@\" >&2", &program, "-t1", "-c32", "-d1h", "--timeout", "60s", &url];
    let mut wrk = Process::start(&part("sh"), &args, balancer.folder().path());
    let victim = members[1].address;
    until("requests", || number(&balancer.member(victim)["requests"]) > 500);
    members[1].process.kill();
    until("an ejection", || !balancer.events(victim, "ejected").is_empty());
    wrk.signal(Signal::INT);
    assert_eq!(wrk.end(), Some(0));
    wrk.line("Requests/sec");
    let said = wrk.lines().join("\n");
    assert!(said.contains("Requests/sec") && !said.contains("Non-2xx") && !said.contains("errors"), "{said}");
}

#[test]
fn a_member_that_fails_by_status_is_taken_out_and_the_others_are_left_in() {
    let good = Member::several(2, &[]);
    let bad = Member::start(&["--fail-rate", "1", "--fail-with", "500"]);
    let addresses = [good[0].address, bad.address, good[1].address];
    let balancer = Balancer::start(&web(&addresses, OUTLIER));
    // One after the other: the failures before the ejection are those that detection needs. A status is an
    // answer: it is passed on and not retried.
    let ask = || usize::from(get(balancer.address(), "/").status == 500);
    let mut failures = 0;
    until("an ejection", || {
        failures += ask();
        !balancer.events(bad.address, "ejected").is_empty()
    });
    assert!((2..=5).contains(&failures), "{failures}");
    // From then on it fails only in trials after a readmission.
    let failures: usize = (0..300).map(|_| ask()).sum();
    let trials = balancer.events(bad.address, "readmitted").len();
    assert!(failures <= trials, "{failures} of 300 in {trials} trials");
    assert!(good.iter().all(|member| balancer.events(member.address, "ejected").is_empty()));
    assert!(balancer.group("web")["retries"] == 0);
}

#[test]
fn when_all_fail_the_last_ones_are_kept_and_the_status_tells() {
    let mut members = Member::several(2, &[]);
    let balancer = start(&members, OUTLIER);
    let mut load = Load::start(balancer.address(), "GET", RATE);
    load.more(50);
    members.iter_mut().for_each(|member| member.process.kill());
    let ejected = |member: &Member| !balancer.events(member.address, "ejected").is_empty();
    until("an ejection", || members.iter().any(ejected));
    load.more(100);
    // One of two may be ejected at a time: half of the group is still used, and answers 502.
    let group = balancer.group("web");
    let states: Vec<&Value> =
        group["members"].as_array().unwrap().iter().map(|member| &member["state"]).collect();
    assert!(states.iter().any(|state| *state != "ejected"), "{states:?}");
    members.iter_mut().for_each(Member::restart);
    until("both serve", || members.iter().all(|member| balancer.member(member.address)["state"] == "up"));
    let served = || {
        members.iter().map(|member| number(&balancer.member(member.address)["answers"]["2xx"])).sum::<u64>()
    };
    let before = served();
    until("requests are served", || served() >= before + 50);
    assert!(load.stop().ok >= 100);
}
