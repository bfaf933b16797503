//! Several real balancers in front of the same members that form a fleet.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::stage::{Balancer, Folder, Load, Member, PATIENCE, Script, Wire, found, get, until, web};
use crate::upgrade::{not_upgraded, number, upgraded};

/// Balancers of one fleet, and the folder of their key.
pub(crate) struct Fleet {
    folder: Folder,
    balancers: Vec<Option<Balancer>>,
    first: SocketAddr,
}

impl Fleet {
    /// Starts `count` balancers with the same group `web`; `fleet` are further keys of `[fleet]`, `rest` of
    /// the group.
    #[track_caller]
    pub(crate) fn start(count: usize, members: &[SocketAddr], fleet: &str, rest: &str) -> Self {
        let folder = Folder::new();
        folder.write("fleet.keys", format!("1 {}\n", "5a".repeat(32)));
        let mut all = Self { folder, balancers: Vec::new(), first: ([127, 0, 0, 1], 0).into() };
        for _ in 0..count {
            all.join(members, fleet, rest);
        }
        until("all see one another", || (0..count).all(|one| all.up(one) == count - 1));
        all
    }

    #[track_caller]
    fn join(&mut self, members: &[SocketAddr], fleet: &str, rest: &str) {
        let seeds = match self.first.port() {
            0 => String::new(),
            _ => format!("seeds = [\"{}\"]\n", self.first),
        };
        let key = self.folder.join("fleet.keys");
        let name = self.balancers.len() + 1;
        let table = format!(
            "[fleet]\nname = \"lb{name}\"\nlisten = \"127.0.0.1:0\"\nkey_file = \"{}\"\n{seeds}{fleet}\n",
            key.display()
        );
        let balancer = Balancer::start(&(table + &web(members, rest)));
        let line = balancer.process.line("listening fleet ");
        let address = line.split("listening fleet ").nth(1).unwrap().split(": ").next().unwrap();
        if self.first.port() == 0 {
            self.first = address.parse().unwrap();
        }
        self.balancers.push(Some(balancer));
    }

    pub(crate) fn one(&self, number: usize) -> &Balancer {
        self.balancers[number].as_ref().unwrap()
    }

    /// Kills a balancer with SIGKILL.
    pub(crate) fn kill(&mut self, number: usize) {
        self.balancers[number].take().unwrap().process.kill();
    }

    /// Returns the others, as one balancer sees them.
    fn others(&self, number: usize) -> Vec<Value> {
        let run = self.one(number).run(&["fleet", "-o", "json"]);
        let json: Value = serde_json::from_str(&run.out).unwrap_or_default();
        json["fleet"]["balancers"].as_array().cloned().unwrap_or_default()
    }

    /// Returns the number of others that one balancer sees.
    fn up(&self, number: usize) -> usize {
        self.others(number).iter().filter(|one| one["state"] == "up" && one["name"] != "").count()
    }

    /// Returns the number of reports that one balancer has received from others.
    fn reports(&self, number: usize) -> u64 {
        self.others(number).iter().filter_map(|one| one["reports"].as_u64()).sum()
    }
}

/// Repeats an attempt until no balancer was declared lost. A balancer that stands still for half a second is
/// rightly declared lost: one of five attempts must succeed. `Err` is the observed events.
#[track_caller]
fn unless_lost(attempt: impl FnMut() -> Result<(), String>) {
    let said: Vec<String> =
        std::iter::repeat_with(attempt).take(5).map_while(|outcome| outcome.err()).collect();
    assert!(said.len() < 5, "{said:#?}");
}

/// A member that answers after a delay and counts its concurrent requests.
struct Counting {
    script: Script,
    now: Arc<AtomicUsize>,
    served: Arc<AtomicU64>,
    checks: Arc<AtomicU64>,
    well: Arc<AtomicUsize>,
}

impl Counting {
    fn start(takes: Duration) -> Self {
        let (now, checks) = (Arc::<AtomicUsize>::default(), Arc::<AtomicU64>::default());
        let (well, served) = (Arc::new(AtomicUsize::new(1)), Arc::<AtomicU64>::default());
        let done = Arc::clone(&served);
        let (count, checked, is_well) = (Arc::clone(&now), Arc::clone(&checks), Arc::clone(&well));
        let script = Script::start(move |wire| {
            while let Some(head) = wire.head()? {
                let check = head.starts_with("GET /healthz ");
                if check {
                    checked.fetch_add(1, SeqCst);
                } else {
                    count.fetch_add(1, SeqCst);
                    // sleeps: the member's service time
                    std::thread::sleep(takes);
                    count.fetch_sub(1, SeqCst);
                    done.fetch_add(1, SeqCst);
                }
                let status = if check && is_well.load(SeqCst) == 0 { "503 No" } else { "200 OK" };
                wire.try_send(format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\nok").as_bytes())?;
            }
            std::io::Result::Ok(())
        });
        Self { script, now, served, checks, well }
    }
}

#[test]
fn an_ejection_that_one_sees_is_known_to_all() {
    let bad = Script::answering("HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n");
    let good = Member::several(2, &[]);
    let members = [bad.address, good[0].address, good[1].address];
    // The ejection outlasts the test: the others learn of it, however slow they are.
    let rest =
        "strategy = \"round_robin\"\noutlier = { consecutive = 3, ejection = \"5m\", false_alarm = 0.0 }\n";
    let fleet = Fleet::start(3, &members, "", rest);
    let first = fleet.one(0);
    until("it is ejected where its requests failed", || {
        get(first.address(), "/");
        first.member(bad.address)["state"] == "ejected"
    });
    // These two have received no requests.
    for number in [1, 2] {
        let event = found("it is ejected at the others", || {
            fleet.one(number).events(bad.address, "ejected").into_iter().next()
        });
        assert!(event["why"].as_str().unwrap().contains("balancer lb1 has ejected it"), "{event}");
        assert_eq!(fleet.one(number).member(bad.address)["requests"], 0);
    }
}

#[test]
fn what_one_has_in_flight_counts_at_the_others_until_it_dies() {
    let slow = Counting::start(Duration::from_secs(600));
    let fast = Member::start(&[]);
    let members = [slow.script.address, fast.address];
    let mut fleet = Fleet::start(2, &members, "", "strategy = \"least_connections\"\n");
    // Requests at the slow member stay there; all others go to the fast one.
    let mut held = Vec::new();
    until("something is stuck", || {
        let mut client = TcpStream::connect(fleet.one(0).address()).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        held.push(client);
        slow.now.load(SeqCst) > 0
    });
    let elsewhere = |number: usize| {
        fleet.one(number).member(slow.script.address)["in_flight_elsewhere"].as_f64().unwrap()
    };
    // A report of one is immediate; the value falls back to the mean of the last half second until that has
    // followed.
    let mut less = Instant::now();
    until("the other knows that it stays", || {
        if elsewhere(1) < 0.7 {
            less = Instant::now();
        }
        less.elapsed() > Duration::from_secs(1)
    });
    assert_eq!(elsewhere(0), 0.0, "its own is nobody else's");
    // So it sends nothing there, once its own request before is over. Reports that are a second old, because
    // the machine stood still, do not count, and neither does a request at such a time. By chance twenty in a
    // row go to the fast one once in a million times.
    let sent = |member: SocketAddr| number_of(&fleet.one(1).member(member)["requests"]);
    let to_the_fast_one = || {
        until("the one before is over", || fleet.one(1).member(fast.address)["in_flight"] == 0);
        let known = elsewhere(1) >= 0.7;
        let (fast_before, slow_before) = (sent(fast.address), sent(slow.script.address));
        let mut client = Wire::connect(fleet.one(1).address());
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        until("it is sent to one of them", || {
            sent(fast.address) > fast_before || sent(slow.script.address) > slow_before
        });
        let chosen = sent(slow.script.address) == slow_before && client.answer().unwrap().status == 200;
        (known && elsewhere(1) >= 0.7).then_some(chosen)
    };
    let mut row = 0;
    until("twenty in a row go to the fast one", || {
        row = to_the_fast_one().map_or(row, |chosen| if chosen { row + 1 } else { 0 });
        row == 20
    });
    fleet.kill(0);
    let other = fleet.one(1);
    until("what it had is gone with it", || {
        other.member(slow.script.address)["in_flight_elsewhere"].as_f64() == Some(0.0)
    });
    // A silent balancer stops counting a moment before it is declared lost.
    until("it is said to be lost", || {
        let events = other.run(&["events", "-o", "json"]).out;
        events.contains("\"balancer_joined\"") && events.contains("balancer lb1 is lost")
    });
    let shown = other.run(&["fleet"]);
    assert!(shown.code == Some(1) && shown.out.contains("lost"), "{}{}", shown.out, shown.err);
    assert_eq!(other.metric("plimsoll_fleet_refused_total"), 0.0);
}

fn number_of(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

#[test]
fn one_that_stops_says_so() {
    unless_lost(stops_and_says_so);
}

fn stops_and_says_so() -> Result<(), String> {
    let member = Member::start(&[]);
    let mut fleet = Fleet::start(2, &[member.address], "", "");
    let first = fleet.balancers[0].take().unwrap();
    let run = first.run(&["stop"]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    let other = fleet.one(1);
    let events = found("it has left, or is lost", || {
        let events = other.run(&["events", "-o", "json"]).out;
        ["balancer_left", "balancer_lost"].iter().any(|kind| events.contains(kind)).then_some(events)
    });
    if events.contains("balancer_lost") {
        return Err(events);
    }
    let shown = other.run(&["fleet"]);
    assert!(shown.code == Some(0) && !shown.out.contains("lb1"), "{}", shown.out);
    Ok(())
}

#[test]
fn a_limit_holds_for_all_together_and_follows_demand() {
    const LIMIT: usize = 20;
    let member = Counting::start(Duration::from_millis(100));
    let rest = format!(
        "strategy = \"least_connections\"\nmax_connections = {LIMIT}\nqueue = 1000\nqueue_timeout = \
         \"1h\"\noutlier = false\n"
    );
    let fleet = Fleet::start(3, &[member.script.address], "", &rest);
    let part =
        |one: usize| fleet.one(one).member(member.script.address)["part"].as_u64().unwrap_or(99) as usize;
    // The maximum number of concurrent requests while it serves two hundred more.
    let observe = || {
        let (before, mut most) = (member.served.load(SeqCst), 0);
        until("two hundred requests", || {
            for _ in 0..10 {
                most = most.max(member.now.load(SeqCst));
                // sleeps: looks again
                std::thread::sleep(Duration::from_millis(1));
            }
            member.served.load(SeqCst) >= before + 200
        });
        most
    };
    let busy = || until("most of the limit is used", || member.now.load(SeqCst) >= LIMIT * 8 / 10);
    // It can serve 200 requests a second, and the load is higher.
    let mut first = Load::start(fleet.one(0).address(), "GET", 300.0);
    until("who asks has it", || part(0) >= LIMIT * 8 / 10 && (1..3).all(|one| part(one) <= 2));
    busy();
    first.more(1);
    let most = observe();
    assert!(most <= LIMIT, "{most}");
    let others: Vec<Load> =
        [1, 2].iter().map(|one| Load::start(fleet.one(*one).address(), "GET", 300.0)).collect();
    until("all have some of it", || (0..3).all(|one| part(one) >= 3));
    busy();
    // Separate balancers would each send as many as the limit, three times as many in all. A balancer that is
    // silent for a second, where the machine stands still, has no part in the others' quota. The total may
    // then exceed the limit for a while.
    until("the limit holds for all together", || observe() <= LIMIT * 11 / 10);
    // The parts are read one after the other while they change; `tests/fleet_limits` tests their sum at one
    // moment.
    until("parts that come to the limit", || {
        let parts: usize = (0..3).map(part).sum();
        (LIMIT * 9 / 10..=LIMIT * 11 / 10).contains(&parts)
    });
    drop((first.stop(), others.into_iter().map(Load::stop).collect::<Vec<_>>()));
}

#[test]
fn members_are_checked_by_one_balancer_and_not_by_all() {
    const INTERVAL: Duration = Duration::from_millis(200);
    let member = Counting::start(Duration::ZERO);
    let rest = "[group.health]\nhttp = \"/healthz\"\ninterval = \"200ms\"\ntimeout = \"30s\"\nfall = 2\n";
    let fleet = Fleet::start(3, &[member.script.address], "", rest);
    let state = |one: usize| fleet.one(one).member(member.script.address)["state"].clone();
    until("it is up everywhere", || (0..3).all(|one| state(one) == "up"));
    let checks = || member.checks.load(SeqCst);
    let rate = || {
        let (before, begun) = (checks(), Instant::now());
        until("twenty checks", || checks() >= before + 20);
        // bound: a slow machine makes it less
        (checks() - before) as f64 / (begun.elapsed().as_secs_f64() / INTERVAL.as_secs_f64())
    };
    // At first each balancer checks by itself. Three independent balancers would always check three times per
    // interval.
    until("checks are shared", || rate() < 1.5);
    member.well.store(0, SeqCst);
    until("all know that it is down", || (0..3).all(|one| state(one) == "down"));
    for one in 0..3 {
        let events = fleet.one(one).events(member.script.address, "down");
        let seen = events.iter().any(|event| event["why"].as_str().unwrap().contains("503"));
        assert!(seen, "each has seen it itself: {events:?}");
    }
    member.well.store(1, SeqCst);
    until("all know that it is up", || (0..3).all(|one| state(one) == "up"));
}

#[test]
fn whoever_checked_may_die_and_others_check() {
    let member = Counting::start(Duration::ZERO);
    let rest = "[group.health]\nhttp = \"/healthz\"\ninterval = \"200ms\"\ntimeout = \"30s\"\n";
    let mut fleet = Fleet::start(2, &[member.script.address], "", rest);
    until("it is up", || (0..2).all(|one| fleet.one(one).member(member.script.address)["state"] == "up"));
    fleet.kill(0);
    let checks = || member.checks.load(SeqCst);
    let before = checks();
    until("it is checked", || checks() >= before + 10);
    member.well.store(0, SeqCst);
    until("it is down", || fleet.one(1).member(member.script.address)["state"] == "down");
}

#[test]
fn a_key_that_is_not_theirs_keeps_one_out() {
    let member = Member::start(&[]);
    let mut fleet = Fleet::start(2, &[member.address], "", "");
    fleet.folder.write("fleet.keys", format!("1 {}\n", "5b".repeat(32)));
    fleet.join(&[member.address], "", "");
    until("the others refuse what it says", || fleet.one(0).metric("plimsoll_fleet_refused_total") > 0.0);
    until("the two see one another and not the third", || (fleet.up(0), fleet.up(2)) == (1, 0));
    // Without a key it does not start.
    fleet.folder.write("fleet.keys", "1 abc\n");
    let text = format!(
        "[fleet]\nlisten = \"127.0.0.1:0\"\nkey_file = \"{}\"\n{}",
        fleet.folder.join("fleet.keys").display(),
        web(&[member.address], "")
    );
    fleet.folder.write("plimsoll.toml", text);
    let run = crate::stage::Run::plimsoll(&["up"], fleet.folder.path());
    assert_eq!(run.code, Some(2), "{}", run.err);
    assert!(
        run.err.contains("plimsoll.toml:3:12") && run.err.contains("64 hexadecimal digits"),
        "{}",
        run.err
    );
}

#[test]
fn an_upgrade_of_one_is_no_news_to_the_others() {
    unless_lost(upgraded_without_news);
}

fn upgraded_without_news() -> Result<(), String> {
    let slow = Counting::start(Duration::from_secs(600));
    let mut fleet = Fleet::start(2, &[slow.script.address], "", "");
    let mut held = TcpStream::connect(fleet.one(0).address()).unwrap();
    held.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    let elsewhere =
        || fleet.one(1).member(slow.script.address)["in_flight_elsewhere"].as_f64().unwrap().round();
    until("the other knows of it", || elsewhere() == 1.0);
    let told = |number: usize| {
        let all = fleet.one(number).run(&["events", "-o", "json"]).out;
        let kinds = ["balancer_joined", "balancer_silent", "balancer_lost", "balancer_left"];
        kinds.map(|kind| all.matches(&format!("\"{kind}\"")).count())
    };
    // Enough reports arrive in both directions to detect a loss several times: ten a second when there is
    // nothing to report.
    let nothing_happens = || {
        let reports = || [0, 1].map(|number| fleet.reports(number));
        let before = reports();
        let end = Instant::now() + PATIENCE;
        while reports().iter().zip(before).any(|(now, before)| *now < before + 30) {
            if Instant::now() >= end {
                return Err(format!("reports do not come: {before:?}, {:?}", reports()));
            }
            let seen = [(fleet.up(0), told(0)), (fleet.up(1), told(1))];
            if seen.iter().any(|(up, told)| (*up, *told) != (1, [1, 0, 0, 0])) {
                return Err(format!("others up, and joined, silent, lost, left: {seen:?}"));
            }
        }
        assert_eq!(fleet.one(1).metric("plimsoll_fleet_refused_total"), 0.0);
        // In either process.
        match elsewhere() {
            1.0 => Ok(()),
            other => Err(format!("{other} in flight elsewhere")),
        }
    };
    let _heir = upgraded(fleet.one(0));
    nothing_happens()?;
    not_upgraded(fleet.one(0));
    nothing_happens()?;
    drop(held);
    until("what the process before had has ended", || elsewhere() == 0.0);
    assert_eq!(fleet.balancers[0].as_mut().unwrap().process.end(), Some(0));
    // A balancer that dies is still noticed.
    let heir = upgraded(fleet.one(0));
    kill_process(number(heir.0), Signal::KILL).unwrap();
    until("it is lost", || told_by(fleet.one(1), "balancer_lost"));
    Ok(())
}

fn told_by(balancer: &Balancer, kind: &str) -> bool {
    balancer.run(&["events", "-o", "json"]).out.contains(&format!("\"{kind}\""))
}
