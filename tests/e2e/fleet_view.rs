//! Knowledge of one balancer that counts at the others: its requests in flight at a member, failures,
//! ejections, received load reports, and load reports in answers. Each test compares the fleet with a
//! separate balancer of the same group.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::binding::report;
use crate::fleet::Fleet;
use crate::stage::{Balancer, Member, Script, Wire, found, get, until, web};

/// Starts a balancer of the same group outside of the fleet.
fn alone(members: &[SocketAddr], rest: &str) -> Balancer {
    Balancer::start(&web(members, rest))
}

/// A member that holds all requests until it may answer.
struct Holding {
    script: Script,
    now: Arc<AtomicUsize>,
    answers: Arc<AtomicBool>,
}

impl Holding {
    fn start() -> Self {
        let (now, answers) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (count, may) = (Arc::clone(&now), Arc::clone(&answers));
        let script = Script::start(move |wire| {
            while wire.head()?.is_some() {
                count.fetch_add(1, SeqCst);
                while !may.load(SeqCst) {
                    // sleeps: polls
                    thread::sleep(Duration::from_millis(5));
                }
                count.fetch_sub(1, SeqCst);
                wire.try_send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?;
            }
            std::io::Result::Ok(())
        });
        Self { script, now, answers }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.answers.store(true, SeqCst);
    }
}

fn address(one: &Holding) -> SocketAddr {
    one.script.address
}

/// Sends requests to a balancer that do not end, each after the one before has reached a member.
#[track_caller]
fn hold(balancer: &Balancer, members: &[Holding; 2], requests: usize) -> Vec<Wire> {
    let with_members = || members.iter().map(|one| one.now.load(SeqCst)).sum::<usize>();
    let begin = |_| {
        let before = with_members();
        let mut client = Wire::connect(balancer.address());
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        until("it is with a member", || with_members() > before);
        client
    };
    (0..requests).map(begin).collect()
}

/// Returns the requests that a balancer has in flight at each member.
fn in_flight(balancer: &Balancer, members: &[Holding; 2]) -> [u64; 2] {
    members.each_ref().map(|one| balancer.member(address(one))["in_flight"].as_u64().unwrap())
}

fn requests(balancer: &Balancer, member: SocketAddr) -> u64 {
    balancer.member(member)["requests"].as_u64().unwrap()
}

/// Returns a figure that the strategy uses for a member.
fn figure(balancer: &Balancer, member: SocketAddr, name: &str) -> Option<f64> {
    let explained = balancer.run(&["explain", "group", "web", "-o", "json"]).json();
    let member =
        explained["members"].as_array().unwrap().iter().find(|one| one["name"] == member.to_string());
    let figures = member.unwrap()["figures"].as_array().unwrap();
    figures.iter().find(|figure| figure["name"] == name)?["value"].as_f64()
}

/// Starts a member that always gives this answer.
fn saying(status: &str, fields: &str) -> Script {
    Script::answering(format!("HTTP/1.1 {status}\r\n{fields}Content-Length: 0\r\n\r\n"))
}

#[test]
fn what_one_holds_at_a_member_the_other_sends_elsewhere_until_it_dies() {
    const REST: &str = "strategy = \"least_connections\"\n";
    let members = [Holding::start(), Holding::start()];
    let addresses = members.each_ref().map(address);
    let mut fleet = Fleet::start(2, &addresses, "", REST);
    let other = alone(&addresses, REST);
    // The first balancer holds all its requests at one member and may not use the other. Drains are not
    // shared.
    let drained = fleet.one(0).run(&["drain", &addresses[1].to_string()]);
    assert_eq!(drained.code, Some(0), "{}", drained.err);
    let _held = hold(fleet.one(0), &members, 8);
    assert_eq!(in_flight(fleet.one(0), &members), [8, 0]);
    let elsewhere =
        |member: usize| fleet.one(1).member(addresses[member])["in_flight_elsewhere"].as_f64().unwrap();
    // The reported value falls back to the mean of the last half second until that has followed.
    let knows = || {
        let mut less = Instant::now();
        until("the second one knows that they stay", || {
            if elsewhere(0) < 7.0 {
                less = Instant::now();
            }
            less.elapsed() > Duration::from_secs(1)
        });
    };
    knows();
    assert!(elsewhere(1) < 0.5, "{}", elsewhere(1));
    let series = format!("plimsoll_member_in_flight_elsewhere{{group=\"web\",member=\"{}\"}}", addresses[0]);
    until("it is among the metrics", || fleet.one(1).metric(&series) >= 7.0);
    // The second balancer has sent nothing yet. Three of its own count twice, as there are two balancers, and
    // are less than those eight. If the first one is silent for a second, where the machine stood still, it
    // no longer counts; then these are given up and begin again.
    let own = found("all three at the other member", || {
        let own = hold(fleet.one(1), &members, 3);
        if in_flight(fleet.one(1), &members) == [0, 3] {
            return Some(own);
        }
        drop(own);
        until("they are given up", || in_flight(fleet.one(1), &members) == [0, 0]);
        knows();
        None
    });
    // A balancer that does not know of those eight spreads its own.
    let _apart = hold(&other, &members, 4);
    assert_eq!(in_flight(&other, &members), [2, 2]);
    // The requests of the dead balancer are forgotten: the next ones of the second go where it has none
    // itself, until both members have equally many.
    fleet.kill(0);
    until("what the dead one had is forgotten", || {
        fleet.one(1).member(addresses[0])["in_flight_elsewhere"] == 0.0
    });
    let more = hold(fleet.one(1), &members, 3);
    assert_eq!(in_flight(fleet.one(1), &members), [3, 3]);
    members.iter().for_each(|one| one.answers.store(true, SeqCst));
    for mut client in own.into_iter().chain(more) {
        assert_eq!(client.answer().unwrap().status, 200);
    }
}

#[test]
fn one_that_another_has_ejected_is_asked_nothing() {
    let (bad, good) = (saying("500 No", ""), saying("200 OK", ""));
    let members = [bad.address, good.address];
    // The ejection outlasts the test.
    let rest =
        "strategy = \"round_robin\"\noutlier = { consecutive = 3, ejection = \"5m\", false_alarm = 0.0 }\n";
    let fleet = Fleet::start(2, &members, "", rest);
    let other = alone(&members, rest);
    until("it is ejected by the first one", || {
        get(fleet.one(0).address(), "/");
        fleet.one(0).member(bad.address)["state"] == "ejected"
    });
    until("it is out at the second one", || fleet.one(1).member(bad.address)["state"] == "ejected");
    for _ in 0..20 {
        assert_eq!(get(fleet.one(1).address(), "/").status, 200);
    }
    fleet.one(1).counted(&members, 20);
    assert_eq!((requests(fleet.one(1), bad.address), requests(fleet.one(1), good.address)), (0, 20));
    // A balancer outside of the fleet needs its own failures.
    assert_eq!(other.member(bad.address)["state"], "up");
    assert!((0..20).any(|_| get(other.address(), "/").status == 500));
}

#[test]
fn of_a_member_that_another_suspects_the_first_failure_is_enough() {
    let (bad, good) = (saying("500 No", ""), saying("200 OK", ""));
    let members = [bad.address, good.address];
    let fleet = Fleet::start(2, &members, "", "");
    let other = alone(&members, "");
    let fails_once = |balancer: &Balancer| {
        let before = balancer.member(bad.address)["failures"].as_u64();
        until("it fails", || get(balancer.address(), "/").status == 500);
        until("that is counted", || balancer.member(bad.address)["failures"].as_u64() > before);
    };
    let suspicion = |balancer: &Balancer| figure(balancer, bad.address, "suspicion").unwrap();
    assert_eq!((suspicion(fleet.one(0)), suspicion(fleet.one(1))), (0.0, 0.0));
    // One failure may be chance: the member is suspected, and not ejected.
    fails_once(fleet.one(0));
    assert_eq!(fleet.one(0).member(bad.address)["state"], "up");
    let own = suspicion(fleet.one(0));
    assert!(own > 0.0);
    until("the second one suspects it, too", || suspicion(fleet.one(1)) > 0.0);
    // A report counts less than an observation, and ejects no member.
    assert!(suspicion(fleet.one(1)) < own);
    assert_eq!(
        (requests(fleet.one(1), bad.address), &fleet.one(1).member(bad.address)["state"]),
        (0, &"up".into())
    );
    fails_once(fleet.one(1));
    until("it is ejected", || !fleet.one(1).events(bad.address, "ejected").is_empty());
    let event = fleet.one(1).events(bad.address, "ejected").remove(0);
    assert!(event["why"].as_str().unwrap().contains("fails far more often than the others"), "{event}");
    assert_eq!(fleet.one(1).member(bad.address)["failures"], 1, "one request was enough");
    // Alone it takes one more failure.
    fails_once(&other);
    assert!(other.events(bad.address, "ejected").is_empty());
    fails_once(&other);
    until("it is ejected", || !other.events(bad.address, "ejected").is_empty());
}

#[test]
fn loads_that_one_is_told_count_at_the_other_until_they_are_old() {
    let members = Member::several(2, &[]);
    let [busy, idle] = [0, 1].map(|at: usize| members[at].address);
    let rest = "strategy = \"least_loaded\"\n[group.monitor]\nsource = \"push\"\nmetric = \"load\"\n";
    let mut fleet = Fleet::start(2, &[busy, idle], "", rest);
    let other = alone(&[busy, idle], rest);
    let tell = |balancer: &Balancer| {
        report(balancer, busy, 0.9);
        report(balancer, idle, 0.1);
    };
    let load = |member: SocketAddr| fleet.one(1).member(member)["load"]["value"].as_f64();
    // Loads travel between balancers as numbers of four bytes.
    let near = |said: Option<f64>, value: f64| said.is_some_and(|said| (said - value).abs() < 1e-6);
    until("the second one knows them", || {
        tell(fleet.one(0));
        near(load(busy), 0.9) && near(load(idle), 0.1)
    });
    // The plan follows a moment later.
    until("twenty in a row go to the one that is idle", || {
        tell(fleet.one(0));
        let before = requests(fleet.one(1), busy);
        (0..20).for_each(|_| drop(get(fleet.one(1).address(), "/")));
        requests(fleet.one(1), busy) == before
    });
    // A balancer without reports gives each member its share.
    assert_eq!(other.member(busy)["load"], Value::Null);
    (0..40).for_each(|_| drop(get(other.address(), "/")));
    assert!(requests(&other, busy) > 0 && requests(&other, idle) > 0);
    // The second balancer receives no reports any more: its data expires, and each member gets its share.
    fleet.kill(0);
    let before = requests(fleet.one(1), busy);
    until("the other one serves again", || {
        get(fleet.one(1).address(), "/");
        requests(fleet.one(1), busy) >= before + 5
    });
}

/// A balancer that is silent for a second, where the machine stands still, no longer counts, and first
/// requests exist only once: one of five fleets must succeed.
#[test]
fn what_members_say_to_one_decides_the_first_requests_of_the_other() {
    assert!((0..5).any(|_| what_members_say_decides()), "the full one was asked each time");
}

/// Returns `true` if all requests go to the idle member.
fn what_members_say_decides() -> bool {
    let says = |numbers: &str| saying("200 OK", &format!("Endpoint-Load-Metrics: TEXT {numbers}\r\n"));
    let full = says(
        "named_metrics.rif=9, named_metrics.knee=1.00, named_metrics.work=0.010000, named_metrics.mean=9.00, \
         named_metrics.sojourn=0.090000",
    );
    let idle = says(
        "named_metrics.rif=1, named_metrics.knee=4.00, named_metrics.work=0.010000, named_metrics.mean=1.00, \
         named_metrics.sojourn=0.010000",
    );
    let members = [full.address, idle.address];
    let fleet = Fleet::start(2, &members, "", "");
    let other = alone(&members, "");
    let knees = |balancer: &Balancer| members.map(|member| figure(balancer, member, "knee"));
    until("both have spoken to the first one, and the second one knows", || {
        get(fleet.one(0).address(), "/");
        knees(fleet.one(1)) == [Some(1.0), Some(4.0)]
    });
    assert_eq!((requests(fleet.one(1), full.address), requests(fleet.one(1), idle.address)), (0, 0));
    for _ in 0..20 {
        assert_eq!(get(fleet.one(1).address(), "/").status, 200);
    }
    fleet.one(1).counted(&members, 20);
    let decided = (requests(fleet.one(1), full.address), requests(fleet.one(1), idle.address)) == (0, 20);
    // A balancer without reports learns from its own requests.
    assert_eq!(knees(&other), [None, None]);
    for _ in 0..20 {
        assert_eq!(get(other.address(), "/").status, 200);
    }
    assert!(requests(&other, full.address) > 0);
    decided
}
