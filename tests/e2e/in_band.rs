//! Members report their load with each answer: the tests show what the balancer does with it, and what
//! clients see of it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::stage::{Balancer, Script, get, until, web};

const IDLE: &str = "TEXT named_metrics.rif=1, named_metrics.knee=4.00, named_metrics.work=0.010000, \
                    named_metrics.mean=1.00, named_metrics.sojourn=0.010000, named_metrics.slot=1";
const FULL: &str = "TEXT named_metrics.rif=9, named_metrics.knee=1.00, named_metrics.work=0.010000, \
                    named_metrics.mean=9.00, named_metrics.sojourn=0.090000, named_metrics.full=1";

/// Returns a member that answers with this status, report and body.
fn saying(status: &str, report: &str, body: &str) -> Script {
    let length = body.len();
    Script::answering(format!(
        "HTTP/1.1 {status}\r\nEndpoint-Load-Metrics: {report}\r\nContent-Length: {length}\r\n\r\n{body}"
    ))
}

/// Returns a figure of the strategy for a member.
fn figure(balancer: &Balancer, member: usize, name: &str) -> Option<f64> {
    let explained = balancer.run(&["explain", "group", "web", "-o", "json"]).json();
    let figures = explained["members"][member]["figures"].clone();
    let found = match &figures {
        Value::Array(list) => {
            list.iter().find(|figure| figure["name"] == name).map(|figure| &figure["value"])
        }
        Value::Object(map) => map.get(name),
        _ => None,
    };
    found.and_then(Value::as_f64)
}

#[test]
fn what_a_member_says_is_used_and_kept_from_clients() {
    let member = saying("200 OK", IDLE, "hello");
    let balancer = Balancer::start(&web(&[member.address], ""));
    let answer = get(balancer.address(), "/");
    assert_eq!((answer.status, answer.field("endpoint-load-metrics")), (200, None));
    until("it is known", || figure(&balancer, 0, "knee") == Some(4.0));
    assert_eq!(figure(&balancer, 0, "work_ms").map(f64::round), Some(10.0));
    let series =
        |name: &str| format!("plimsoll_member_{name}{{group=\"web\",member=\"{}\"}}", member.address);
    assert_eq!((balancer.metric(&series("knee")), balancer.metric(&series("limit"))), (4.0, 8.0));

    let passing = Balancer::start(&web(&[member.address], "load_report_header = \"pass\"\n"));
    assert_eq!(get(passing.address(), "/").field("endpoint-load-metrics"), Some(IDLE));
}

#[test]
fn a_member_without_room_is_no_failure_and_another_is_asked() {
    let (full, free) = (saying("503 Busy", FULL, "no room"), saying("200 OK", IDLE, "served"));
    let balancer = Balancer::start(&web(&[full.address, free.address], ""));
    for _ in 0..50 {
        let answer = get(balancer.address(), "/");
        assert_eq!((answer.status, &answer.body[..]), (200, &b"served"[..]));
    }
    assert!(full.accepted() > 0, "it was asked");
    let status = balancer.member(full.address);
    assert_eq!((&status["failures"], &status["state"]), (&0.into(), &"up".into()));
    assert_eq!(balancer.group("web")["retries"], 0, "no retry that the budget is for");
}

#[test]
fn where_nobody_has_room_a_request_is_shed() {
    let full = [saying("503 Busy", FULL, ""), saying("503 Busy", FULL, "")];
    let balancer = Balancer::start(&web(&[full[0].address, full[1].address], ""));
    let answer = get(balancer.address(), "/");
    assert_eq!((answer.status, answer.field("plimsoll-reason")), (503, Some("shed")));
    assert!(answer.field("retry-after").is_some());
    assert_eq!(balancer.group("web")["rejected"]["shed"], 1);
}

/// A request takes at least 20 ms at the member, which has no room for requests that ask for room.
#[test]
fn who_finds_no_room_waits_for_as_long_as_there_is_time() {
    let (served, full) = (
        format!("HTTP/1.1 200 OK\r\nEndpoint-Load-Metrics: {IDLE}\r\nContent-Length: 0\r\n\r\n"),
        format!("HTTP/1.1 503 Busy\r\nEndpoint-Load-Metrics: {FULL}\r\nContent-Length: 0\r\n\r\n"),
    );
    let member = Script::start(move |wire| {
        while let Some(head) = wire.head()? {
            wire.body(&head, false)?;
            if head.contains("/full") {
                wire.try_send(full.as_bytes())?;
            } else {
                // sleeps: the member's service time
                sleep(Duration::from_millis(20));
                wire.try_send(served.as_bytes())?;
            }
        }
        std::io::Result::Ok(())
    });
    let waited = |objective: &str| {
        let balancer = Balancer::start(&format!("threads = 1\n{}", web(&[member.address], objective)));
        assert_eq!(get(balancer.address(), "/").status, 200);
        let begun = Instant::now();
        let answer = get(balancer.address(), "/full");
        assert_eq!((answer.status, answer.field("plimsoll-reason")), (503, Some("shed")));
        (begun.elapsed(), balancer.metric("plimsoll_queue_wait_seconds_count{group=\"web\"}"))
    };
    assert_eq!(waited("").1, 1.0);
    let (patient, waits) = waited("objective = \"2s\"\n");
    assert!(waits == 1.0 && patient >= Duration::from_secs(1), "{patient:?}");
    assert_eq!(waited("objective = \"20ms\"\n").1, 0.0, "it would be too late");
}

/// Requests find no room where one takes at least two seconds, as the member reports, and one is in flight.
#[test]
fn who_would_be_answered_too_late_is_refused_at_once() {
    let (idle, full) = (IDLE.replace("0.010000", "2.000000"), FULL.replace("0.010000", "2.000000"));
    let member = Script::start(move |wire| {
        while let Some(head) = wire.head()? {
            let (status, report) =
                if head.contains("/full") { ("503 Busy", &full) } else { ("200 OK", &idle) };
            wire.try_send(format!(
                "HTTP/1.1 {status}\r\nEndpoint-Load-Metrics: {report}\r\nContent-Length: 0\r\n\r\n"
            ))?;
        }
        std::io::Result::Ok(())
    });
    let told = |total: &str| {
        let rest = format!("objective = \"10s\"\n[group.timeouts]\ntotal = \"{total}\"\n");
        let balancer = Balancer::start(&format!("threads = 1\n{}", web(&[member.address], &rest)));
        assert_eq!(get(balancer.address(), "/").status, 200);
        let answer = get(balancer.address(), "/full");
        let waits = balancer.metric("plimsoll_queue_wait_seconds_count{group=\"web\"}");
        (answer.status, answer.reason().map(str::to_owned), waits)
    };
    assert_eq!(told("1500ms"), (503, Some("shed".to_owned()), 0.0), "it would not be answered in time");
    // With time left a request waits for as long as it could still be forwarded: two seconds, in which no
    // machine stands still.
    assert_eq!(told("4s"), (503, Some("shed".to_owned()), 1.0));
}

#[test]
fn nonsense_harms_nobody() {
    for report in
        ["TEXT named_metrics.rif=NaN", "JSON {", "TEXT named_metrics.knee=1e300, named_metrics.rif=1", ""]
    {
        let member = saying("200 OK", report, "hello");
        let balancer = Balancer::start(&web(&[member.address], ""));
        assert!((0..20).all(|_| get(balancer.address(), "/").status == 200), "{report}");
        assert_eq!(figure(&balancer, 0, "knee"), None, "{report}");
    }
}

#[test]
fn any_number_of_a_report_makes_a_load() {
    let report = "TEXT cpu_utilization=0.25, utilization.queue=0.5, named_metrics.depth=7, rps_fractional=10";
    let member = saying("200 OK", report, "hello");
    let rest = "[group.monitor]\nsource = \"orca\"\nmetric = \"utilization.queue + cpu_utilization\"\n";
    let balancer = Balancer::start(&web(&[member.address], rest));
    let told = |balancer: &Balancer| {
        let explained = balancer.run(&["explain", "group", "web", "-o", "json"]).json();
        explained["members"][0].clone()
    };
    assert_eq!(told(&balancer)["load"], Value::Null);
    assert_eq!(get(balancer.address(), "/").field("endpoint-load-metrics"), None, "clients do not see it");
    until("there is a load", || told(&balancer)["load"]["value"] == 0.75);
    let facts = told(&balancer)["facts"].clone();
    let fact = |name: &str| {
        let facts = facts.as_array().unwrap().iter();
        facts
            .filter(|fact| fact["name"] == name)
            .map(|fact| (fact["value"].clone(), fact["source"].clone()))
            .next()
    };
    assert_eq!(fact("named_metrics.depth"), Some((7.0.into(), "orca".into())), "{facts}");
    assert_eq!(fact("rps_fractional"), Some((10.0.into(), "orca".into())), "{facts}");

    // The balancer was not asked to use reports: nothing is kept.
    let other = Balancer::start(&web(&[member.address], ""));
    assert!((0..50).all(|_| get(other.address(), "/").status == 200));
    assert_eq!(told(&other)["facts"].as_array().map(Vec::len), Some(0));
}

#[test]
fn what_members_say_of_their_work_gives_them_weights() {
    let weak = saying("200 OK", "TEXT rps_fractional=100, cpu_utilization=0.8", "weak");
    let strong =
        saying("200 OK", r#"JSON {"rps_fractional": 100, "application_utilization": 0.2}"#, "strong");
    let rest = "strategy = { weighted_round_robin = { blackout = 0 } }\n";
    let balancer = Balancer::start(&web(&[weak.address, strong.address], rest));
    until("one takes four times as many", || {
        (0..20).for_each(|_| drop(get(balancer.address(), "/")));
        figure(&balancer, 1, "share").is_some_and(|share| (share - 0.8).abs() < 1e-9)
    });
    assert_eq!(
        (figure(&balancer, 0, "utilization"), figure(&balancer, 1, "utilization")),
        (Some(0.8), Some(0.2))
    );
    let strong = (0..100).filter(|_| get(balancer.address(), "/").body == b"strong").count();
    assert!((75..=85).contains(&strong), "{strong}");
}
