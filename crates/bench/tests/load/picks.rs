//! Requests whose members are asked for one by one.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use plimsoll_bench::pace::{Arrival, Pace};
use plimsoll_bench::pick::{Picked, Picker};
use plimsoll_bench::record::{Fault, Record};
use plimsoll_bench::run::{self, Limits};
use plimsoll_bench::target::{Http, Request};

use crate::rig::{MS, OK, nobody, server};

/// Picks by a rule, each after some time.
#[derive(Debug)]
struct Rule {
    members: Vec<Option<SocketAddr>>,
    takes: Duration,
    turn: usize,
    open: VecDeque<(Instant, u64, Option<Picked>)>,
    failed: Arc<Mutex<Vec<u16>>>,
    /// Of how many that were asked for one is given a second member.
    twice: Option<usize>,
    /// Never readable: it says by its times alone when to look.
    quiet: (UnixStream, UnixStream),
}

impl Rule {
    /// Those in turn, but for those that failed.
    fn new(members: &[Option<SocketAddr>], takes: Duration) -> Self {
        let quiet = UnixStream::pair().unwrap();
        let (members, open) = (members.to_vec(), VecDeque::new());
        Self { members, takes, turn: 0, open, failed: Arc::default(), twice: None, quiet }
    }
}

impl Picker for Rule {
    fn ask(&mut self, tag: u64) -> bool {
        let failed = self.failed.lock().unwrap();
        let picked = loop {
            let member = self.turn % self.members.len();
            self.turn += 1;
            if !failed.contains(&(member as u16)) {
                let address = self.members[member];
                break address.map(|address| Picked { member: member as u16, address });
            }
        };
        self.open.push_back((Instant::now() + self.takes, tag, picked));
        true
    }

    fn process(&mut self) {}

    fn next(&mut self) -> Option<(u64, Option<Picked>)> {
        let (_, tag, picked) = self.open.pop_front_if(|(at, ..)| *at <= Instant::now())?;
        Some((tag, picked))
    }

    fn timeout(&self) -> Option<Duration> {
        self.open.front().map(|(at, ..)| at.saturating_duration_since(Instant::now()))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.quiet.0.as_fd()
    }

    fn failed(&mut self, member: u16) {
        self.failed.lock().unwrap().push(member);
    }

    fn answered_twice(&self) -> u64 {
        self.twice.map_or(0, |every| (self.turn / every) as u64)
    }
}

/// Twenty requests in 200 ms, each on a new connection.
fn twenty(rule: Rule) -> Record {
    let request = Request::named("GET", "http://web/", &[("connection", "close")], b"").unwrap();
    let target = Http::sequence(vec![request]).unwrap();
    let pace = Pace::new(Arrival::Constant, 100.0, 200 * MS, 1);
    let limits = Limits { timeout: 2000 * MS, reuse: false, ..Limits::default() };
    run::start_by(target, Some(Box::new(rule)), pace, limits).unwrap().join().unwrap()
}

#[test]
fn each_goes_to_whom_it_is_told_and_the_time_to_be_told_counts() {
    let servers = [server(OK, |now| now), server(OK, |now| now)];
    let (first, second) = (servers[0], servers[1]);
    let rule = Rule { twice: Some(5), ..Rule::new(&[Some(first), Some(second)], 30 * MS) };
    let record = twenty(rule);
    assert_eq!(record.picked_twice, 4, "of twenty");
    assert_eq!((record.due, record.ok, record.failures()), (20, 20, 0), "{:?}", record.failed);
    assert_eq!(record.picks.count(), 20);
    assert!(record.picks.quantile(0.0) >= 30 * MS);
    // From when it was due, and from when it began: to be told is a part of both.
    assert!(record.latency.quantile(0.0) >= 30 * MS && record.service.quantile(0.0) >= 30 * MS);
}

#[test]
fn where_nobody_is_picked_the_request_has_failed() {
    let record = twenty(Rule::new(&[Some(server(OK, |now| now)), None], MS));
    assert_eq!((record.ok, record.failed.get(&Fault::Unpicked)), (10, Some(&10)), "{:?}", record.failed);
    assert!(record.latency.quantile(1.0) >= 2000 * MS, "a failure counts with the time-out");
}

#[test]
fn who_cannot_be_reached_is_told_of_and_another_is_asked_for() {
    let there = [nobody(), nobody(), nobody()];
    let [first, second, third] = there.each_ref().map(|(_, address)| Some(*address));
    let rule = Rule::new(&[first, Some(server(OK, |now| now))], MS);
    let failed = Arc::clone(&rule.failed);
    let record = twenty(rule);
    assert_eq!((record.ok, record.failures()), (20, 0), "{:?}", record.failed);
    // Those that were on their way when the first had failed may have failed, too.
    assert!(failed.lock().unwrap().iter().all(|member| *member == 0) && !failed.lock().unwrap().is_empty());
    // If there is nobody else either it is given up.
    let record = twenty(Rule::new(&[first, second, third, None], MS));
    assert_eq!(record.ok, 0);
    let (connect, unpicked) = (Fault::Connect, Fault::Unpicked);
    let count = |fault| record.failed.get(&fault).copied().unwrap_or(0);
    assert_eq!((count(connect) > 0, count(connect) + count(unpicked)), (true, 20), "{:?}", record.failed);
}
