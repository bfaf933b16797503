//! Tests of the three kinds of clients with scripted daemons on loopback. Tests with real daemons:
//! `crates/cluster` and `tests/e2e`.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use plimsoll_client::{AsyncClient, Client, ClientSettings, KeyRing, KeySource, OpenError, PickError};
use plimsoll_wire::rfs::{AnswerStatus, EncodeDatagram as _, LotteryAnswer, LotteryMessage, LotteryRequest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const SERVICE: u32 = 80;

/// A timeout that no wait reaches on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn line(number: u32) -> String {
    format!("{number} {}\n", "5a".repeat(32))
}

fn keys() -> KeyRing {
    line(1).parse().unwrap()
}

/// Decides a daemon's answer to a request: status, member and lifetime in milliseconds; `None` for no answer.
type Rule = Box<dyn FnMut(&LotteryRequest) -> Option<(AnswerStatus, u16, u16)> + Send>;

/// A scripted daemon.
struct Daemon {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    heard: Receiver<LotteryRequest>,
}

impl Daemon {
    fn start(rule: impl FnMut(&LotteryRequest) -> Option<(AnswerStatus, u16, u16)> + Send + 'static) -> Self {
        Self::with_keys(Arc::new(Mutex::new(keys())), rule)
    }

    fn with_keys(
        keys: Arc<Mutex<KeyRing>>,
        rule: impl FnMut(&LotteryRequest) -> Option<(AnswerStatus, u16, u16)> + Send + 'static,
    ) -> Self {
        Self::on(UdpSocket::bind("127.0.0.1:0").unwrap(), keys, rule)
    }

    fn on(
        socket: UdpSocket,
        keys: Arc<Mutex<KeyRing>>,
        rule: impl FnMut(&LotteryRequest) -> Option<(AnswerStatus, u16, u16)> + Send + 'static,
    ) -> Self {
        let address = socket.local_addr().unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, heard) = channel();
        let thread = {
            let stop = Arc::clone(&stop);
            let rule: Rule = Box::new(rule);
            thread::spawn(move || serve(&socket, &keys, rule, &stop, &tell))
        };
        Self { address, stop, thread: Some(thread), heard }
    }

    /// Returns the requests received since the last call.
    fn heard(&self) -> Vec<LotteryRequest> {
        self.heard.try_iter().collect()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn serve(
    socket: &UdpSocket,
    keys: &Mutex<KeyRing>,
    mut rule: Rule,
    stop: &AtomicBool,
    tell: &Sender<LotteryRequest>,
) {
    let mut buffer = [0; 2000];
    while !stop.load(Ordering::Relaxed) {
        let Ok((len, from)) = socket.recv_from(&mut buffer) else { continue };
        let keys = keys.lock().unwrap().clone();
        let Ok(LotteryMessage::Request(request)) =
            keys.open(&buffer[..len]).and_then(|opened| opened.message())
        else {
            continue;
        };
        // The test may not read the requests.
        let _ = tell.send(request.clone());
        if let Some((status, member, ttl)) = rule(&request) {
            let answer = named(&request, status, member, ttl);
            let mut out = Vec::new();
            answer.encode(&keys, &mut out).unwrap();
            socket.send_to(&out, from).unwrap();
        }
    }
}

fn named(request: &LotteryRequest, status: AnswerStatus, member: u16, ttl: u16) -> LotteryAnswer {
    LotteryAnswer {
        id: request.id,
        service: request.service,
        status,
        rank: 0,
        ttl,
        member,
        endpoint: (status == AnswerStatus::Ok).then(|| server(member)),
        client_time: request.client_time,
        generation: 0,
        info: request.info.clone().into(),
        fallbacks: Vec::new(),
        max_bytes: request.max_answer_bytes,
    }
}

fn server(member: u16) -> SocketAddr {
    ([127, 0, 0, 1], member).into()
}

/// Sets enough attempts to take minutes, for daemons that stall on a slow machine.
fn patient(settings: ClientSettings) -> ClientSettings {
    ClientSettings { attempts: 255, ..settings }
}

fn settings(daemons: &[SocketAddr]) -> ClientSettings {
    patient(ClientSettings::new(daemons.to_vec(), KeySource::Fixed(keys())))
}

fn client(daemons: &[SocketAddr]) -> Client {
    Client::open(settings(daemons)).unwrap()
}

/// Opens a client with the default number of attempts.
fn hasty(daemons: &[SocketAddr]) -> Client {
    Client::open(ClientSettings::new(daemons.to_vec(), KeySource::Fixed(keys()))).unwrap()
}

/// Removes retries, which a slow machine may cause, by request id.
fn once(heard: Vec<LotteryRequest>) -> Vec<LotteryRequest> {
    let mut known = BTreeSet::new();
    heard.into_iter().filter(|request| known.insert(request.id)).collect()
}

/// Returns an address that does not answer as long as the socket is kept open.
fn silent() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// A temporary file, removed when it is dropped.
struct Draft(PathBuf);

impl Draft {
    fn new(text: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("plimsoll-client-{}-{number}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn an_answer_is_used_again_for_its_time_and_not_after_its_member_failed() {
    let daemon = Daemon::start(|request| {
        Some((AnswerStatus::Ok, if request.avoid.contains(&5) { 6 } else { 5 }, 60_000))
    });
    let client = client(&[daemon.address]);
    for _ in 0..20 {
        let pick = client.pick(SERVICE, b"gold").unwrap();
        assert_eq!((pick.member, pick.address, &pick.info[..]), (5, server(5), &b"gold"[..]));
    }
    client.record_failure(5);
    assert_eq!(client.pick(SERVICE, b"").unwrap().member, 6);
    let avoided: Vec<_> = once(daemon.heard()).into_iter().map(|request| request.avoid).collect();
    assert_eq!(avoided, [vec![], vec![5]], "the others were served by the first answer");
}

#[test]
fn who_does_not_answer_is_asked_again_with_the_same_id() {
    let daemon = Daemon::start(|request| (request.attempt >= 2).then_some((AnswerStatus::Ok, 5, 0)));
    assert_eq!(client(&[daemon.address]).pick(SERVICE, b"").unwrap().member, 5);
    let heard = daemon.heard();
    let ids: BTreeSet<u64> = heard.iter().map(|request| request.id).collect();
    let attempts: Vec<u8> = heard.iter().map(|request| request.attempt).collect();
    // A slow machine may cause more attempts.
    assert_eq!((ids.len(), &attempts[..3]), (1, &[0, 1, 2][..]));
}

#[test]
fn nobody_is_told_from_nobody_answers() {
    for (status, why) in [
        (AnswerStatus::Busy, PickError::Busy),
        (AnswerStatus::UnknownService, PickError::UnknownService),
        (AnswerStatus::Draining, PickError::Draining),
    ] {
        let daemons = [0, 1].map(|_| Daemon::start(move |_| Some((status, 9, 0))));
        assert_eq!(client(&daemons.each_ref().map(|one| one.address)).pick(SERVICE, b""), Err(why));
        // The client of this test retries for minutes, so wait only for the request to arrive.
        assert!(daemons.iter().all(|daemon| daemon.heard.recv_timeout(PATIENCE).is_ok()), "both were asked");
    }
    let (_socket, address) = silent();
    assert_eq!(hasty(&[address]).pick(SERVICE, b""), Err(PickError::NoResponse));
}

#[test]
fn threads_share_a_client_and_each_has_its_answer() {
    // The daemon drops every seventh request and echoes the information of the others.
    let mut turn = 0;
    let daemon = Daemon::start(move |_| {
        turn += 1;
        (turn % 7 != 0).then_some((AnswerStatus::Ok, 5, 0))
    });
    let (_socket, nobody) = silent();
    let client = client(&[daemon.address, nobody]);
    thread::scope(|scope| {
        for number in 0..16_u32 {
            let client = &client;
            scope.spawn(move || {
                for turn in 0..25_u32 {
                    let info = (number * 100 + turn).to_be_bytes();
                    assert_eq!(client.pick(SERVICE, &info).unwrap().info, info);
                }
            });
        }
    });
}

/// Waits for the descriptor or the timeout, as an event loop does.
fn turn(client: &Client) {
    let time = client.timeout().unwrap_or(PATIENCE);
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    poll(&mut [PollFd::new(&client.as_fd(), PollFlags::IN)], Some(&time)).unwrap();
    client.process();
}

#[test]
fn an_event_loop_asks_much_at_once() {
    let mut count = 0;
    let daemon = Daemon::start(move |request| {
        count += 1;
        (count % 5 != 0).then_some((AnswerStatus::Ok, 5, if request.service == SERVICE { 0 } else { 60_000 }))
    });
    let client = client(&[daemon.address]);
    assert_eq!((client.timeout(), client.next_outcome()), (None, None));
    for tag in 0..500_u64 {
        client.start_request(tag, SERVICE, &tag.to_be_bytes()).unwrap();
    }
    let (mut come, end) = (BTreeSet::new(), Instant::now() + PATIENCE);
    // bound: a safety net
    while come.len() < 500 && Instant::now() < end {
        turn(&client);
        while let Some((tag, outcome)) = client.next_outcome() {
            assert_eq!(outcome.unwrap().info, tag.to_be_bytes());
            assert!(come.insert(tag), "{tag} came twice");
        }
    }
    assert_eq!((come.len(), client.timeout()), (500, None));
    // An answer that is available at once makes the descriptor readable until it is taken.
    client.pick(SERVICE + 1, b"").unwrap();
    client.start_request(7, SERVICE + 1, b"").unwrap();
    let readable = || {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&client.as_fd(), PollFlags::IN)], Some(&now)).unwrap() == 1
    };
    assert!(readable() && client.timeout() == Some(Duration::ZERO));
    assert_eq!(client.next_outcome().unwrap().0, 7);
    assert!(!readable() && client.next_outcome().is_none());
}

#[test]
fn threads_and_an_event_loop_may_use_one_client() {
    let daemon = Daemon::start(|_| Some((AnswerStatus::Ok, 5, 0)));
    let client = client(&[daemon.address]);
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        // The thread receives every datagram, also those for the event loop.
        let blocking = scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                assert_eq!(client.pick(SERVICE, b"thread").unwrap().info, b"thread");
            }
        });
        let end = Instant::now() + PATIENCE;
        for tag in 0..200 {
            client.start_request(tag, SERVICE, b"loop").unwrap();
            let (came, outcome) = loop {
                // bound: a safety net
                assert!(Instant::now() < end, "{tag} was answered and nobody was told");
                if let Some(next) = client.next_outcome() {
                    break next;
                }
                turn(&client);
            };
            assert_eq!((came, &outcome.unwrap().info[..]), (tag, &b"loop"[..]));
        }
        ended.store(true, Ordering::Relaxed);
        blocking.join().unwrap();
    });
}

#[tokio::test]
async fn tasks_share_a_client() {
    let mut count = 0;
    let daemon = Daemon::start(move |request| {
        count += 1;
        (count % 5 != 0 && request.info != b"never").then_some((AnswerStatus::Ok, 5, 0))
    });
    let client = Arc::new(AsyncClient::open(settings(&[daemon.address])).unwrap());
    let mut picks = tokio::task::JoinSet::new();
    for number in 0..300_u32 {
        let client = Arc::clone(&client);
        picks.spawn(async move {
            let info = number.to_be_bytes();
            assert_eq!(client.pick(SERVICE, &info).await.unwrap().info, info);
        });
    }
    tokio::time::timeout(PATIENCE, picks.join_all()).await.unwrap();
    // A cancelled request does not block the others.
    let given_up = tokio::time::timeout(Duration::ZERO, client.pick(SERVICE, b"never")).await;
    assert!(given_up.is_err());
    assert_eq!(client.pick(SERVICE, b"x").await.unwrap().info, b"x");
}

#[test]
fn who_may_only_ask_answers_nobody_who_has_a_key_for_daemons() {
    let (ours, theirs) = (line(1), format!("2 {} client\n", "6b".repeat(32)));
    // The daemon opens requests with both keys, and answers with the key for clients only.
    let clients: KeyRing = theirs.parse().unwrap();
    let both: KeyRing = (ours + &theirs).parse().unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let (address, stop) = (socket.local_addr().unwrap(), AtomicBool::new(false));
    let pick = |keys: &KeyRing, how: fn(ClientSettings) -> ClientSettings| {
        let settings = ClientSettings::new(vec![address], KeySource::Fixed(keys.clone()));
        Client::open(how(settings)).unwrap().pick(SERVICE, b"").map(|pick| pick.member)
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 2000];
            while !stop.load(Ordering::Relaxed) {
                let Ok((len, from)) = socket.recv_from(&mut buffer) else { continue };
                let Ok(LotteryMessage::Request(request)) = both.open(&buffer[..len]).unwrap().message()
                else {
                    continue;
                };
                let answer = named(&request, AnswerStatus::Ok, 5, 0);
                let mut out = Vec::new();
                answer.encode(&clients, &mut out).unwrap();
                socket.send_to(&out, from).unwrap();
            }
        });
        assert_eq!(pick(&clients, patient), Ok(5));
        assert_eq!(pick(&both, |usual| usual), Err(PickError::NoResponse));
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn keys_are_rotated_under_a_client_that_runs() {
    let file = Draft::new(&line(1));
    let valid = Arc::new(Mutex::new(keys()));
    let daemon = Daemon::with_keys(Arc::clone(&valid), |_| Some((AnswerStatus::Ok, 5, 0)));
    let client =
        Client::open(ClientSettings::new(vec![daemon.address], KeySource::File(file.path().to_owned())))
            .unwrap();
    while client.pick(SERVICE, b"").is_err() {}
    // The daemon has the new key only and does not answer requests sealed with the old one.
    *valid.lock().unwrap() = line(2).parse().unwrap();
    std::fs::write(file.path(), line(2) + &line(1)).unwrap();
    let end = Instant::now() + PATIENCE;
    while client.pick(SERVICE, b"").is_err() {
        // bound: a safety net
        assert!(Instant::now() < end, "the new key is never used");
    }
}

#[test]
fn all_are_asked_by_multicast_where_nobody_answers_alone() {
    // The test has a multicast group and port of its own, because the kernel assigns the port once.
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    let group: SocketAddr = ([239, 255, 74, 48], socket.local_addr().unwrap().port()).into();
    let loopback = "127.0.0.1".parse().unwrap();
    socket.join_multicast_v4(&"239.255.74.48".parse().unwrap(), &loopback).unwrap();
    let daemon = Daemon::on(socket, Arc::new(Mutex::new(keys())), |_| Some((AnswerStatus::Ok, 5, 0)));
    let (_socket, nobody) = silent();
    let mut known = BTreeSet::new();
    for daemons in [vec![], vec![nobody]] {
        let with = ClientSettings { multicast: Some(group), interface: Some(loopback), ..settings(&daemons) };
        let pick = Client::open(with).unwrap().pick(SERVICE, b"").unwrap();
        assert_eq!(pick.member, 5);
        // Retries caused by a slow machine may arrive later.
        let first = once(daemon.heard()).into_iter().find(|request| known.insert(request.id)).unwrap();
        assert_eq!(first.attempt, if daemons.is_empty() { 0 } else { 2 });
    }
}

#[test]
fn what_is_wrong_is_refused_before_anything_is_sent() {
    let open = |settings| Client::open(settings).map(|_| ()).unwrap_err();
    assert!(matches!(open(settings(&[])), OpenError::NoDaemons));
    let unicast = ClientSettings { multicast: Some(server(1)), ..settings(&[]) };
    assert!(matches!(open(unicast), OpenError::NotMulticast(_)));
    let bad = Draft::new("1 5a\n");
    let keys = KeySource::File(bad.path().to_owned());
    let why = open(ClientSettings { keys, ..settings(&[server(1)]) }).to_string();
    assert!(why.contains("line 1: the secret is not 64 hexadecimal digits"), "{why}");
}
