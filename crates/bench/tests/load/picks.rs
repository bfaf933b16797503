//! Requests with an individually picked member.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use plimsoll_bench::pick::{MemberPicker, PickedMember};
use plimsoll_bench::record::{FailureKind, RunRecord};
use plimsoll_bench::run::{self, RunLimits};
use plimsoll_bench::target::{HttpRequest, HttpTarget};

use crate::rig::{MS, OK, PATIENCE, nobody, patient, server};

/// A picker that applies a rule, each time after some delay.
#[derive(Debug)]
struct Rule {
    members: Vec<Option<SocketAddr>>,
    takes: Duration,
    turn: usize,
    open: VecDeque<(Instant, u64, Option<PickedMember>)>,
    failed: Arc<Mutex<Vec<u16>>>,
    /// Every n-th request is given a second member.
    twice: Option<usize>,
    /// A socket that is never readable: only the time-outs trigger processing.
    quiet: (UnixStream, UnixStream),
}

impl Rule {
    /// Picks these members in turn, except those that failed.
    fn new(members: &[Option<SocketAddr>], takes: Duration) -> Self {
        let quiet = UnixStream::pair().unwrap();
        let (members, open) = (members.to_vec(), VecDeque::new());
        Self { members, takes, turn: 0, open, failed: Arc::default(), twice: None, quiet }
    }
}

impl MemberPicker for Rule {
    fn request_pick(&mut self, tag: u64) -> bool {
        let failed = self.failed.lock().unwrap();
        let picked = loop {
            let member = self.turn % self.members.len();
            self.turn += 1;
            if !failed.contains(&(member as u16)) {
                let address = self.members[member];
                break address.map(|address| PickedMember { member: member as u16, address });
            }
        };
        self.open.push_back((Instant::now() + self.takes, tag, picked));
        true
    }

    fn process(&mut self) {}

    fn next_pick(&mut self) -> Option<(u64, Option<PickedMember>)> {
        let (_, tag, picked) = self.open.pop_front_if(|(at, ..)| *at <= Instant::now())?;
        Some((tag, picked))
    }

    fn timeout(&self) -> Option<Duration> {
        self.open.front().map(|(at, ..)| at.saturating_duration_since(Instant::now()))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.quiet.0.as_fd()
    }

    fn report_failure(&mut self, member: u16) {
        self.failed.lock().unwrap().push(member);
    }

    fn duplicate_picks(&self) -> u64 {
        self.twice.map_or(0, |every| (self.turn / every) as u64)
    }
}

/// Sends `count` requests, one in 10 ms, each on a new connection.
fn requests(count: u32, rule: Rule) -> RunRecord {
    let request =
        HttpRequest::without_destination("GET", "http://web/", &[("connection", "close")], b"").unwrap();
    let target = HttpTarget::sequence(vec![request]).unwrap();
    let pace = (0..count).map(|n| n * 10 * MS);
    let limits = RunLimits { reuse_connections: false, ..patient() };
    run::start_with_picker(target, Some(Box::new(rule)), pace, limits).unwrap().join().unwrap()
}

#[test]
fn each_goes_to_whom_it_is_told_and_the_time_to_be_told_counts() {
    let servers = [server(OK, |now| now), server(OK, |now| now)];
    let (first, second) = (servers[0], servers[1]);
    let rule = Rule { twice: Some(5), ..Rule::new(&[Some(first), Some(second)], 30 * MS) };
    let record = requests(20, rule);
    assert_eq!(record.duplicate_picks, 4, "of twenty");
    assert_eq!((record.due, record.ok, record.failures()), (20, 20, 0), "{:?}", record.failed);
    assert_eq!(record.picks.count(), 20);
    assert!(record.picks.quantile(0.0) >= 30 * MS);
    // Both latencies include the time of the pick.
    assert!(record.latency.quantile(0.0) >= 30 * MS && record.service.quantile(0.0) >= 30 * MS);
}

#[test]
fn where_nobody_is_picked_the_request_has_failed() {
    let record = requests(20, Rule::new(&[Some(server(OK, |now| now)), None], MS));
    assert_eq!((record.ok, record.failed.get(&FailureKind::NoPick)), (10, Some(&10)), "{:?}", record.failed);
    assert!(record.latency.quantile(1.0) >= PATIENCE, "a failure counts with the time-out");
}

#[test]
fn who_cannot_be_reached_is_told_of_and_another_is_asked_for() {
    let there = [nobody(), nobody(), nobody()];
    let [first, second, third] = there.each_ref().map(|(_, address)| Some(*address));
    let rule = Rule::new(&[first, Some(server(OK, |now| now))], MS);
    let failed = Arc::clone(&rule.failed);
    let record = requests(20, rule);
    assert_eq!((record.ok, record.failures()), (20, 0), "{:?}", record.failed);
    // Requests in flight when the first had failed may have failed, too.
    assert!(failed.lock().unwrap().iter().all(|member| *member == 0) && !failed.lock().unwrap().is_empty());
    // If there is no other member either, the request fails.
    let none = || Rule::new(&[first, second, third, None], MS);
    assert_eq!(requests(1, none()).failed, [(FailureKind::Connect, 1)].into());
    let record = requests(20, none());
    assert_eq!((record.ok, record.failures()), (0, 20));
    let given_up = [FailureKind::Connect, FailureKind::NoPick];
    assert!(record.failed.keys().all(|fault| given_up.contains(fault)), "{:?}", record.failed);
}

/// Picks the same server each time, once as many connections have ended as were picked before.
#[derive(Debug)]
struct Turns {
    address: SocketAddr,
    open: VecDeque<u64>,
    picked: usize,
    ended: Arc<AtomicUsize>,
    quiet: (UnixStream, UnixStream),
}

impl MemberPicker for Turns {
    fn request_pick(&mut self, tag: u64) -> bool {
        self.open.push_back(tag);
        true
    }

    fn process(&mut self) {}

    fn next_pick(&mut self) -> Option<(u64, Option<PickedMember>)> {
        let tag = self.open.pop_front_if(|_| self.ended.load(SeqCst) >= self.picked)?;
        self.picked += 1;
        Some((tag, Some(PickedMember { member: 0, address: self.address })))
    }

    fn timeout(&self) -> Option<Duration> {
        let ready = self.ended.load(SeqCst) >= self.picked;
        (!self.open.is_empty()).then_some(if ready { Duration::ZERO } else { MS })
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.quiet.0.as_fd()
    }

    fn report_failure(&mut self, _: u16) {}

    fn duplicate_picks(&self) -> u64 {
        0
    }
}

/// A server that closes after each answer without announcing it: the next request uses a new connection.
#[test]
fn connections_that_the_server_closed_are_not_used_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, ended) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let ends = ended.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut buffer) = (stream.unwrap(), [0; 4096]);
            assert!(stream.read(&mut buffer).unwrap() > 0);
            stream.write_all(OK).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            // The client removes the connection before it sends the next request.
            assert!(!matches!(stream.read(&mut buffer), Ok(1..)));
            ends.fetch_add(1, SeqCst);
        }
    });
    let turns =
        Turns { address, open: VecDeque::new(), picked: 0, ended, quiet: UnixStream::pair().unwrap() };
    let target =
        HttpTarget::sequence(vec![HttpRequest::without_destination("GET", "http://web/", &[], b"").unwrap()])
            .unwrap();
    let run =
        run::start_with_picker(target, Some(Box::new(turns)), [Duration::ZERO; 20].into_iter(), patient());
    let record = run.unwrap().join().unwrap();
    assert_eq!((record.ok, record.failures()), (20, 0), "{:?}", record.failed);
}
