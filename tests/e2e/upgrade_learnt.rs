//! The state learnt of members outlives `plimsoll upgrade`: all figures by which strategies judge them are
//! the same at once afterwards. The first requests of the new process are balanced by them. A new balancer
//! must learn them from requests.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::binding::{bound, report, round};
use crate::stage::{Balancer, Load, Member, Script, Wire, get, listening, throughout, until, web};
use crate::upgrade::Line;

/// The figures by which the strategy judges a member.
type Figures = BTreeMap<String, f64>;

#[track_caller]
fn figures(balancer: &Balancer, member: SocketAddr) -> Figures {
    let explained = balancer.run(&["explain", "group", "web", "-o", "json"]).json();
    let member =
        explained["members"].as_array().unwrap().iter().find(|one| one["name"] == member.to_string());
    let figures = member.unwrap()["figures"].as_array().unwrap().iter();
    figures.map(|one| (one["name"].as_str().unwrap().to_owned(), one["value"].as_f64().unwrap())).collect()
}

/// Returns several figures of a member.
#[track_caller]
fn these<const COUNT: usize>(balancer: &Balancer, member: SocketAddr, names: [&str; COUNT]) -> [f64; COUNT] {
    let figures = figures(balancer, member);
    names.map(|name| *figures.get(name).unwrap_or_else(|| panic!("no {name} in {figures:?}")))
}

fn requests(balancer: &Balancer, member: SocketAddr) -> u64 {
    balancer.member(member)["requests"].as_u64().unwrap()
}

/// Sends requests one after the other, each on a connection of its own; counts those of each member.
#[track_caller]
fn asked<const COUNT: usize>(
    balancer: &Balancer,
    members: [SocketAddr; COUNT],
    times: usize,
) -> [u64; COUNT] {
    let all = || members.map(|member| requests(balancer, member));
    let before = all();
    for _ in 0..times {
        assert_eq!(get(balancer.address(), "/").status, 200);
    }
    let sum = |counts: [u64; COUNT]| counts.iter().sum::<u64>();
    until("all are counted", || sum(all()) >= sum(before) + times as u64);
    let after = all();
    std::array::from_fn(|at| after[at] - before[at])
}

/// The time for which a member's report counts.
const REPORT_EXPIRY: Duration = Duration::from_secs(10);

/// Sends a load at which the balancer learns the costs of both members, the first of which is slower.
#[track_caller]
fn learn_costs(line: &Line, members: [SocketAddr; 2]) {
    let idle = || members.iter().all(|member| line.balancer.member(*member)["in_flight"] == 0);
    // The last answers of the fast member may come from a moment at which the machine stood still. Then the
    // slow one looks better, rightly, and the load is repeated.
    until("the costs of both are known", || {
        let mut load = Load::start(line.balancer.address(), "GET", 200.0);
        load.more(450);
        // Requests may be rejected at this load, which is not tested.
        drop(load.stop());
        until("nothing is in flight", idle);
        let costs = members.map(|member| figures(&line.balancer, member).get("cost_ms").copied());
        matches!(costs, [Some(slow), Some(fast)] if slow > 4.0 * fast)
    });
}

#[test]
fn what_members_said_of_themselves_is_known_to_the_next_process() {
    // At this load each knows its knee: the slow one is the first of the list. A machine that stands still
    // for a moment makes the fast one look slow, but not this slow.
    let slow = Member::start(&["--meter", "--service", "const:200ms", "--workers", "2"]);
    let fast = Member::start(&["--meter", "--service", "const:4ms", "--workers", "4"]);
    let members = [slow.address, fast.address];
    let text = "threads = 2\n".to_owned() + &web(&members, "");
    let mut line = Line::start(&text);
    // These figures do not change while no requests come. A member without a bounded knee has no limit.
    const SAID: [&str; 5] = ["knee", "work_ms", "sojourn_ms", "mean_in_flight", "limit"];
    let said = |line: &Line| {
        members.map(|member| {
            let mut figures = figures(&line.balancer, member);
            figures.retain(|name, _| SAID.contains(&name.as_str()));
            figures
        })
    };
    let rest = |line: &Line| {
        let of = |member| these(&line.balancer, member, ["suspicion", "failing_at_least", "latency_ms"]);
        members.map(of)
    };
    let age =
        |line: &Line| members.map(|member| figures(&line.balancer, member).get("heard_ms_ago").copied());
    // On a machine that stands still for so long that reports expire, the load is repeated.
    until("two upgrades end before reports expire", || {
        learn_costs(&line, members);
        let measured_at = Instant::now();
        let before = (said(&line), rest(&line), age(&line));
        let [Some(of_slow), Some(of_fast)] = before.2 else { return false };
        let oldest = Duration::from_secs_f64(of_slow.max(of_fast) / 1e3);
        let expired = || measured_at.elapsed() + oldest >= REPORT_EXPIRY;
        if expired() {
            return false;
        }
        let [of_slow, of_fast] = before.0.each_ref().map(|said| said["work_ms"]);
        assert!(of_slow > 4.0 * of_fast, "work, ms: {of_slow} {of_fast}");
        // Two upgrades: state that was taken over is passed on, too.
        for _ in 0..2 {
            line.upgrade();
            let after = (said(&line), rest(&line), age(&line));
            if expired() {
                return false;
            }
            assert_eq!((&after.0, after.1), (&before.0, before.1));
            // The reports keep their age.
            let is_older = after.2.iter().zip(before.2).all(|(after, before)| *after > before);
            assert!(is_older, "{after:?} {before:?}");
        }
        // The first request avoids the slow member while the fast one is idle, on any thread.
        let first = asked(&line.balancer, members, 1);
        if expired() {
            return false;
        }
        assert_eq!(first, [0, 1]);
        true
    });
    let new = Balancer::start(&text);
    let [slow, _] = asked(&new, members, 20);
    assert!(slow > 0, "who knows nothing has to ask");
}

#[test]
fn latencies_of_members_that_say_nothing_are_known_to_the_next_process() {
    // A machine that stands still for a moment makes the fast one look slow, but not this slow.
    let slow = Member::start(&["--service", "const:3s"]);
    let fast = Member::start(&["--service", "const:2ms"]);
    let members = [slow.address, fast.address];
    // Observations last longer than the test.
    let text = web(&members, "strategy = { peak_ewma = { decay = 3600 } }\n");
    let mut line = Line::start(&text);
    let latency = |balancer: &Balancer| {
        members.map(|member| figures(balancer, member).get("latency_estimate_seconds").copied())
    };
    let mut gets = 0;
    until("both are known", || {
        get(line.balancer.address(), "/");
        gets += 1;
        latency(&line.balancer).iter().all(Option::is_some)
    });
    // A client has its answer before the request is counted: one that is not yet would count among those of
    // the next process.
    let counted = || members.map(|member| requests(&line.balancer, member)).iter().sum::<u64>();
    until("all are counted", || counted() == gets);
    let before = latency(&line.balancer).map(Option::unwrap);
    assert!(before[0] > 2.0 * before[1], "{before:?}");
    line.upgrade();
    let after = latency(&line.balancer).map(Option::unwrap);
    // The latency decays, by a thousandth in 3.6 s.
    for (after, before) in after.iter().zip(before) {
        assert!(*after <= before * 1.001 && *after > before * 0.95, "{after} {before}");
    }
    assert_eq!(asked(&line.balancer, members, 20), [0, 20]);
    // An unknown member gets one request at least.
    let new = Balancer::start(&text);
    until("it asks the slow one", || asked(&new, members, 5)[0] > 0);
}

/// The number of sessions and of redirected sessions of each member is the sum of both processes.
#[test]
fn bindings_count_on() {
    let (one, other) = (Member::start(&["--name", "one"]), Member::start(&["--name", "other"]));
    let rest = "strategy = \"first_available\"\n[group.monitor]\nmetric = \"load\"\n";
    let text = listening("binding = \"on_demand\"\n", &[one.address, other.address], rest);
    let mut line = Line::start(&text);
    let mut clients: Vec<Wire> = (0..20).map(|_| Wire::connect(line.balancer.address())).collect();
    round(&mut clients);
    let all = |line: &Line| [&one, &other].map(|member| bound(&line.balancer, member.address));
    until("some of them move", || {
        report(&line.balancer, other.address, 0.1);
        report(&line.balancer, one.address, 0.9);
        round(&mut clients);
        all(&line)[0].1 > 0
    });
    let before = all(&line);
    line.upgrade();
    // The sessions of the old process still exist.
    assert_eq!(all(&line), before);
    drop(clients);
    until("they have ended", || all(&line).map(|(bound, _)| bound) == [0, 0]);
    assert_eq!(all(&line).map(|(_, moved)| moved), before.map(|(_, moved)| moved));
    let series = format!("plimsoll_member_moved_total{{group=\"web\",member=\"{}\"}}", one.address);
    assert_eq!(line.balancer.metric(&series), before[0].1 as f64);
}

/// Loads that agents or members push are known to the next process, with their age.
#[test]
fn loads_that_were_pushed_are_those_of_the_next_process() {
    let (one, other) = (Member::start(&[]), Member::start(&[]));
    let rest = "strategy = \"load_minimum\"\n[group.monitor]\nmetric = \"load\"\n";
    let mut line = Line::start(&web(&[one.address, other.address], rest));
    report(&line.balancer, one.address, 90.0);
    report(&line.balancer, other.address, 10.0);
    let known = |line: &Line| {
        let explained = line.balancer.run(&["explain", "group", "web", "-o", "json"]).json();
        let members = explained["members"].as_array().unwrap().clone();
        members
            .into_iter()
            .map(|member| (member["load"]["value"].as_f64(), member["facts"][0]["value"].as_f64()))
            .collect::<Vec<_>>()
    };
    until("the loads are known", || known(&line) == [(Some(90.0), Some(90.0)), (Some(10.0), Some(10.0))]);
    // The load that the group's strategy computes, and that operators see.
    let of_group = |line: &Line| line.balancer.metric("plimsoll_group_load{group=\"web\"}");
    assert_eq!(of_group(&line), 50.0);
    for _ in 0..2 {
        line.upgrade();
        assert_eq!(known(&line), [(Some(90.0), Some(90.0)), (Some(10.0), Some(10.0))]);
        // The loads apply for ten seconds, as those of members that have reported once, and not for the
        // duration of an upgrade.
        throughout("the load that was told", Duration::from_millis(500), || {
            (of_group(&line) - 50.0).abs() < 5.0
        });
        let explained = line.balancer.run(&["explain", "group", "web", "-o", "json"]).json();
        let age = explained["members"][0]["facts"][0]["age_seconds"].as_f64().unwrap();
        assert!(age > 0.0 && age < 600.0, "{explained}");
    }
}

#[test]
fn weights_out_of_reports_are_known_to_the_next_process() {
    let saying = |report: &str| {
        Script::answering(format!(
            "HTTP/1.1 200 OK\r\nEndpoint-Load-Metrics: {report}\r\nContent-Length: 0\r\n\r\n"
        ))
    };
    let weak = saying("TEXT rps_fractional=100, cpu_utilization=0.8");
    let strong = saying("TEXT rps_fractional=100, cpu_utilization=0.2");
    let members = [weak.address, strong.address];
    // Reports count three seconds after the first of them: a process that begins anew gives each member as
    // many requests until then. One thread has one round.
    let rest = "strategy = { weighted_round_robin = { blackout = 3 } }\n";
    let text = "threads = 1\n".to_owned() + &web(&members, rest);
    let mut line = Line::start(&text);
    const SAID: [&str; 3] = ["share", "requests_per_second", "utilization"];
    let share = |line: &Line| members.map(|member| figures(&line.balancer, member)["share"]);
    assert_eq!(share(&line), [0.5, 0.5]);
    until("reports give weights", || {
        asked(&line.balancer, members, 5);
        share(&line).iter().zip([0.2, 0.8]).all(|(share, wanted): (&f64, f64)| (share - wanted).abs() < 1e-9)
    });
    let said = |line: &Line| members.map(|member| these(&line.balancer, member, SAID));
    let before = said(&line);
    for _ in 0..2 {
        line.upgrade();
        // No member has reported to this process yet.
        assert_eq!(said(&line), before);
    }
    let first = asked(&line.balancer, members, 20);
    assert!(first[1].abs_diff(16) <= 1, "{first:?}");
}
