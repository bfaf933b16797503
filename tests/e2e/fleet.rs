//! Several real balancers in front of the same members, which act as one.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::stage::{Balancer, Folder, Load, Member, Script, found, get, until, web};
use crate::upgrade::{not_upgraded, number, upgraded};

/// Balancers that know one another, and the folder of their key.
pub(crate) struct Fleet {
    folder: Folder,
    balancers: Vec<Option<Balancer>>,
    first: SocketAddr,
}

impl Fleet {
    /// So many with the same group `web`; `fleet` are more keys of `[fleet]`, `rest` more of the group.
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

    /// kill -9.
    pub(crate) fn kill(&mut self, number: usize) {
        self.balancers[number].take().unwrap().process.kill();
    }

    /// How many others one sees.
    fn up(&self, number: usize) -> usize {
        let run = self.one(number).run(&["fleet", "-o", "json"]);
        let json: Value = serde_json::from_str(&run.out).unwrap_or_default();
        let others = json["fleet"]["balancers"].as_array().cloned().unwrap_or_default();
        others.iter().filter(|one| one["state"] == "up" && one["name"] != "").count()
    }
}

/// A member that answers after so long, and counts how many requests it has at once.
struct Counting {
    script: Script,
    now: Arc<AtomicUsize>,
    checks: Arc<AtomicU64>,
    well: Arc<AtomicUsize>,
}

impl Counting {
    fn start(takes: Duration) -> Self {
        let (now, checks) = (Arc::<AtomicUsize>::default(), Arc::<AtomicU64>::default());
        let well = Arc::new(AtomicUsize::new(1));
        let (count, checked, is_well) = (Arc::clone(&now), Arc::clone(&checks), Arc::clone(&well));
        let script = Script::start(move |wire| {
            while let Some(head) = wire.head()? {
                let check = head.starts_with("GET /healthz ");
                if check {
                    checked.fetch_add(1, SeqCst);
                } else {
                    count.fetch_add(1, SeqCst);
                    std::thread::sleep(takes);
                    count.fetch_sub(1, SeqCst);
                }
                let status = if check && is_well.load(SeqCst) == 0 { "503 No" } else { "200 OK" };
                wire.try_send(format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\nok").as_bytes())?;
            }
            std::io::Result::Ok(())
        });
        Self { script, now, checks, well }
    }
}

#[test]
fn an_ejection_that_one_sees_is_known_to_all() {
    let bad = Script::answering("HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n");
    let good = Member::several(2, &[]);
    let members = [bad.address, good[0].address, good[1].address];
    let fleet = Fleet::start(3, &members, "", "strategy = \"round_robin\"\n");
    let first = fleet.one(0);
    until("it is ejected where its requests failed", || {
        get(first.address(), "/");
        first.member(bad.address)["state"] == "ejected"
    });
    // Nobody has asked these two anything.
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
    // What goes to the slow one stays there: all others go to the fast one.
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
    // What is told is one at once, and falls back to the mean of the last half second until that has followed.
    let mut less = Instant::now();
    until("the other knows that it stays", || {
        if elsewhere(1) < 0.7 {
            less = Instant::now();
        }
        less.elapsed() > Duration::from_secs(1)
    });
    assert_eq!(elsewhere(0), 0.0, "its own is nobody else's");
    // So it sends there nothing at all, as long as the one before is not in flight at the other any more: that would count twice.
    for _ in 0..20 {
        until("the one before is over", || fleet.one(1).member(fast.address)["in_flight"] == 0);
        get(fleet.one(1).address(), "/");
    }
    assert_eq!(fleet.one(1).member(slow.script.address)["requests"], 0);
    fleet.kill(0);
    let other = fleet.one(1);
    until("what it had is gone with it", || {
        other.member(slow.script.address)["in_flight_elsewhere"].as_f64() == Some(0.0)
    });
    // It may have counted no more because it was silent, a moment before it is taken for lost.
    until("it is said to be lost", || {
        let events = other.run(&["events", "-o", "json"]).out;
        events.contains("\"balancer_joined\"") && events.contains("balancer lb1 is lost")
    });
    let shown = other.run(&["fleet"]);
    assert!(shown.code == Some(1) && shown.out.contains("lost"), "{}{}", shown.out, shown.err);
    assert_eq!(other.metric("plimsoll_fleet_refused_total"), 0.0);
}

#[test]
fn one_that_stops_says_so() {
    let member = Member::start(&[]);
    let mut fleet = Fleet::start(2, &[member.address], "", "");
    let first = fleet.balancers[0].take().unwrap();
    let run = first.run(&["stop"]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    let other = fleet.one(1);
    until("it has left", || {
        let events = other.run(&["events", "-o", "json"]).out;
        assert!(!events.contains("balancer_lost"), "{events}");
        events.contains("balancer_left")
    });
    let shown = other.run(&["fleet"]);
    assert!(shown.code == Some(0) && !shown.out.contains("lb1"), "{}", shown.out);
}

#[test]
fn a_limit_holds_for_all_together_and_follows_demand() {
    const LIMIT: usize = 20;
    let member = Counting::start(Duration::from_millis(100));
    let rest = format!(
        "strategy = \"least_connections\"\nmax_connections = {LIMIT}\nqueue = 1000\nqueue_timeout = \"20s\"\noutlier = false\n"
    );
    let fleet = Fleet::start(3, &[member.script.address], "", &rest);
    let part =
        |one: usize| fleet.one(one).member(member.script.address)["part"].as_u64().unwrap_or(99) as usize;
    // The most that it has at once in two seconds.
    let observe = || {
        let (begun, mut most) = (Instant::now(), 0);
        while begun.elapsed() < Duration::from_secs(2) {
            most = most.max(member.now.load(SeqCst));
            std::thread::sleep(Duration::from_millis(1));
        }
        most
    };
    let busy = || until("most of the limit is used", || member.now.load(SeqCst) >= LIMIT * 8 / 10);
    // It takes 200 requests a second, and is asked for more.
    let mut first = Load::start(fleet.one(0).address(), "GET", 300.0);
    until("who asks has it", || part(0) >= LIMIT * 8 / 10 && (1..3).all(|one| part(one) <= 2));
    busy();
    first.more(1);
    let most = observe();
    assert!(most <= LIMIT * 11 / 10, "{most}");
    let others: Vec<Load> =
        [1, 2].iter().map(|one| Load::start(fleet.one(*one).address(), "GET", 300.0)).collect();
    until("all have some of it", || (0..3).all(|one| part(one) >= 3));
    busy();
    let most = observe();
    assert!(most <= LIMIT * 11 / 10, "{most}");
    // They are asked one after the other, while what each has changes; what they come to at one moment is in `tests/fleet_limits`.
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
    let rest = "[group.health]\nhttp = \"/healthz\"\ninterval = \"200ms\"\ntimeout = \"1s\"\nfall = 2\n";
    let fleet = Fleet::start(3, &[member.script.address], "", rest);
    let state = |one: usize| fleet.one(one).member(member.script.address)["state"].clone();
    until("it is up everywhere", || (0..3).all(|one| state(one) == "up"));
    let checks = || member.checks.load(SeqCst);
    let rate = || {
        let (before, begun) = (checks(), Instant::now());
        until("twenty checks", || checks() >= before + 20);
        (checks() - before) as f64 / (begun.elapsed().as_secs_f64() / INTERVAL.as_secs_f64())
    };
    // In the beginning each has checked by itself. Three balancers that do so always check thrice in an interval.
    until("checks are shared", || rate() < 1.5);
    member.well.store(0, SeqCst);
    until("all know that it is down", || (0..3).all(|one| state(one) == "down"));
    for one in 0..3 {
        let event = fleet.one(one).events(member.script.address, "down").remove(0);
        assert!(event["why"].as_str().unwrap().contains("503"), "each has seen it itself: {event}");
    }
    member.well.store(1, SeqCst);
    until("all know that it is up", || (0..3).all(|one| state(one) == "up"));
}

#[test]
fn whoever_checked_may_die_and_others_check() {
    let member = Counting::start(Duration::ZERO);
    let rest = "[group.health]\nhttp = \"/healthz\"\ninterval = \"200ms\"\n";
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

/// A balancer that the machine lets stand still for half a second is taken for lost, and rightly: of three times, one must do.
#[test]
fn an_upgrade_of_one_is_no_news_to_the_others() {
    let said: Vec<String> = (0..3).map_while(|_| upgraded_without_news().err()).collect();
    assert!(said.len() < 3, "{said:?}");
}

/// `Err`: the news that there were.
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
    // Much longer than it takes to find out that one is dead.
    let nothing_happens = || {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(3) {
            let seen = [(fleet.up(0), told(0)), (fleet.up(1), told(1))];
            if seen.iter().any(|(up, told)| (*up, *told) != (1, [1, 0, 0, 0])) {
                return Err(format!("others up, and joined, silent, lost, left: {seen:?}"));
            }
        }
        assert_eq!(fleet.one(1).metric("plimsoll_fleet_refused_total"), 0.0);
        // Whichever process has it.
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
    // And one that dies is still noticed.
    let heir = upgraded(fleet.one(0));
    kill_process(number(heir.0), Signal::KILL).unwrap();
    until("it is lost", || told_by(fleet.one(1), "balancer_lost"));
    Ok(())
}

fn told_by(balancer: &Balancer, kind: &str) -> bool {
    balancer.run(&["events", "-o", "json"]).out.contains(&format!("\"{kind}\""))
}
