//! Requests that find every member at capacity: they wait for a little, and no longer than helps.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use plimsoll_brain::meter::Reading;
use plimsoll_proxy::{Engine, GroupSettings, ListenerSettings, Protocol};
use plimsoll_wire::load_report::{self, LoadReport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::rig::{HOUR, MILLI, by, group, home, listener, settings, start_with, status, until, within};

/// A server that can process one request at a time, and reports so with each response: a balancer gives it
/// three. Each response takes the given time, and none is sent while the gate is closed.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) gate: watch::Sender<bool>,
    running: Arc<AtomicU32>,
    answered: Arc<AtomicU32>,
    /// The service time in milliseconds.
    takes: Arc<AtomicU64>,
}

impl Server {
    pub(crate) async fn start(takes: u64) -> Self {
        let listener = TcpListener::bind(home()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (gate, open) = watch::channel(true);
        let [running, answered] = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
        let (count, given) = (Arc::clone(&running), Arc::clone(&answered));
        let takes = Arc::new(AtomicU64::new(takes));
        let time = Arc::clone(&takes);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (count, time, mut open) = (Arc::clone(&count), Arc::clone(&time), open.clone());
                let given = Arc::clone(&given);
                tokio::spawn(async move {
                    while head(&mut stream).await.is_some() {
                        count.fetch_add(1, Relaxed);
                        // sleeps: the server's service time
                        sleep(MILLI * time.load(Relaxed) as u32).await;
                        if open.wait_for(|open| *open).await.is_err() {
                            return;
                        }
                        let left = count.fetch_sub(1, Relaxed) - 1;
                        given.fetch_add(1, Relaxed);
                        if stream.write_all(&answer(left)).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { address, gate, running, answered, takes }
    }

    pub(crate) async fn has(&self, requests: u32) {
        until("the requests are there", || self.running() == requests).await;
    }

    /// Returns the number of requests in progress.
    pub(crate) fn running(&self) -> u32 {
        self.running.load(Relaxed)
    }
}

fn answer(in_flight: u32) -> Vec<u8> {
    // The reported number decays at once: the balancer's own requests decide.
    let (work, sojourn) = (0.001, 0.001);
    let reading = Reading { in_flight, knee: 1.0, work, mean_in_flight: 0.0, sojourn, ..Reading::default() };
    let mut answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n".to_vec();
    load_report::write(&LoadReport { reading, not_processed: None }, &mut answer);
    answer.extend_from_slice(b"\r\n");
    answer
}

/// Reads up to an empty line; `None` at the end.
pub(crate) async fn head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if stream.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    Some(String::from_utf8_lossy(&head).into_owned())
}

fn balancer(server: &Server, threads: usize) -> (Engine, SocketAddr) {
    asking(server, threads, None)
}

/// Starts a balancer that reads requests' urgency from this header.
fn asking(server: &Server, threads: usize, priority: Option<&str>) -> (Engine, SocketAddr) {
    choosing(server, threads, priority, ("adaptive", None), None)
}

/// Starts a balancer with this strategy, and with these settings for admission and for the objective of
/// response times, if any.
fn choosing(
    server: &Server,
    threads: usize,
    priority: Option<&str>,
    (strategy, admission): (&str, Option<bool>),
    objective: Option<Duration>,
) -> (Engine, SocketAddr) {
    let mut group = by(GroupSettings { queue: 0, ..group(&[server.address]) }, strategy);
    (group.spec.admission, group.spec.objective) = (admission, objective);
    let priority = priority.map(Into::into);
    let mut settings = settings(ListenerSettings { priority, ..listener(Protocol::Http) }, group);
    settings.threads = threads;
    start_with(settings)
}

async fn send(balancer: SocketAddr) -> TcpStream {
    send_with(balancer, "").await
}

/// Sends a request; `fields` are complete lines.
pub(crate) async fn send_with(balancer: SocketAddr, fields: &str) -> TcpStream {
    let mut stream = TcpStream::connect(balancer).await.unwrap();
    stream.write_all(format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes()).await.unwrap();
    stream
}

/// Sends a request, and returns the status of its response.
pub(crate) fn ask(balancer: SocketAddr) -> JoinHandle<u16> {
    ask_with(balancer, "")
}

fn ask_with(balancer: SocketAddr, fields: &'static str) -> JoinHandle<u16> {
    tokio::spawn(async move {
        let mut stream = send_with(balancer, fields).await;
        let head = head(&mut stream).await.unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        assert_eq!(status == 503, head.contains("plimsoll-reason: shed"), "{head}");
        status
    })
}

/// Lets each thread learn the duration of a request, and returns an upper bound of it. Until a thread has a
/// report of the server, nothing limits its requests.
async fn learn(balancer: SocketAddr, requests: usize) -> Duration {
    let begun = Instant::now();
    let asked: Vec<JoinHandle<u16>> = (0..requests).map(|_| ask(balancer)).collect();
    for asked in asked {
        assert_eq!(asked.await.unwrap(), 200);
    }
    // The threads may receive the responses in another order than they were sent, and the last report may
    // show some in flight. That decays within the request duration that the server reports: a millisecond.
    let longest = begun.elapsed();
    // sleeps: lets that decay
    sleep(50 * MILLI).await;
    longest
}

/// Sends three requests that the server does not answer until the gate is opened; then it does at once.
async fn fill(server: &Server, balancer: SocketAddr) -> Vec<JoinHandle<u16>> {
    server.gate.send_replace(false);
    server.takes.store(0, Relaxed);
    let asked = (0..3).map(|_| ask(balancer)).collect();
    server.has(3).await;
    asked
}

/// The minimum time limit of a wait if a request takes a second or longer: twice as long as that.
const WAIT: Duration = Duration::from_secs(2);

/// The places that become free within that time with three in flight.
const PLACES: usize = 6;

/// Sends requests until one is rejected at once, and returns those that wait. Returns `None` if the first may
/// have reached its time limit: if the machine was suspended, nothing follows.
async fn line_up(engine: &Engine, balancer: SocketAddr) -> Option<Vec<JoinHandle<u16>>> {
    let (begun, mut waiting) = (Instant::now(), Vec::new());
    loop {
        let asked = ask(balancer);
        let waits = || status(engine).queued as usize == waiting.len() + 1;
        // bound: the time limit of a wait
        let late = || begun.elapsed() > WAIT * 3 / 4;
        until("it waits or is refused", || waits() || asked.is_finished() || late()).await;
        if late() {
            return None;
        }
        if asked.is_finished() {
            assert_eq!(asked.await.unwrap(), 503, "it would wait in vain");
            return Some(waiting);
        }
        waiting.push(asked);
    }
}

#[tokio::test]
async fn who_is_refused_is_told_to_come_again_when_a_request_is_likely_to_be_through() {
    within(async {
        let takes = 1200 * MILLI;
        loop {
            let server = Server::start(takes.as_millis() as u64).await;
            let (engine, address) = balancer(&server, 1);
            let longest = learn(address, 8).await;
            let asked = fill(&server, address).await;
            let Some(waiting) = line_up(&engine, address).await else { continue };
            assert_eq!(waiting.len(), PLACES);
            let told = head(&mut send(address).await).await.unwrap();
            let again = told.split("\r\nRetry-After: ").nth(1).and_then(|rest| rest.split('\r').next());
            let again: f64 = again.unwrap().parse().unwrap();
            // bound: the duration measured above
            assert!((2.0..=longest.as_secs_f64().ceil()).contains(&again), "{again} s after {longest:?}");
            assert!(told.starts_with("HTTP/1.1 503 "), "{told}");
            server.gate.send_replace(true);
            for asked in asked {
                assert_eq!(asked.await.unwrap(), 200);
            }
            break;
        }
    })
    .await;
}

#[tokio::test]
async fn a_short_burst_waits_and_is_not_refused() {
    within(async {
        let on = ("least_connections", Some(true));
        for (threads, rules) in [(1, ("adaptive", None)), (2, ("adaptive", None)), (1, on), (2, on)] {
            while !a_burst_waits(threads, rules).await {}
        }
    })
    .await;
}

/// Returns `false` if it took so long that some may have reached their time limit.
async fn a_burst_waits(threads: usize, rules: (&str, Option<bool>)) -> bool {
    let takes = 1000 * MILLI;
    let server = Server::start(takes.as_millis() as u64).await;
    let (engine, address) = choosing(&server, threads, None, rules, None);
    learn(address, 24).await;
    let mut asked = fill(&server, address).await;
    let begun = Instant::now();
    let Some(waiting) = line_up(&engine, address).await else { return false };
    let waited = waiting.len();
    assert_eq!(waited, PLACES);
    let refused = ask_with(address, "Priority: u=0\r\n").await.unwrap();
    assert_eq!(refused, 503, "nobody asked how urgent it is");
    assert_eq!(server.running(), 3, "the server has what it can work on");
    let explained = engine.explain("g").unwrap().members.remove(0);
    let why = "has 3 requests, its concurrency limit by its load reports; ";
    assert!(!explained.eligible && explained.why.starts_with(why), "{}", explained.why);
    let limit = explained.figures.iter().find(|figure| figure.name == "limit");
    assert_eq!(limit.map(|figure| figure.value), Some(3.0));
    server.gate.send_replace(true);
    asked.extend(waiting);
    let mut served = true;
    for asked in asked {
        served &= asked.await.unwrap() == 200;
    }
    if !served {
        assert!(begun.elapsed() >= WAIT, "some were refused after {:?}", begun.elapsed());
        return false;
    }
    until("all are counted", || status(&engine).members[0].in_flight == 0).await;
    let (status, longest) = (status(&engine), begun.elapsed().as_secs_f64());
    // The one that would have waited in vain, and the urgent one.
    let (waits, count) = (&status.waits, waited as u64);
    assert_eq!((status.queued, waits.count, status.rejected["shed"]), (0, count, 2));
    // bound: the whole time for each of them
    assert!(waits.sum > 0.0 && waits.sum <= longest * waited as f64, "{waits:?}");
    true
}

#[tokio::test]
async fn without_admission_nobody_is_told_that_it_is_too_much() {
    within(async {
        for rules in [("adaptive", Some(false)), ("least_connections", None)] {
            let server = Server::start(100).await;
            let (engine, address) = choosing(&server, 1, None, rules, None);
            learn(address, 8).await;
            let mut asked = fill(&server, address).await;
            asked.extend((0..6).map(|_| ask(address)));
            server.has(9).await;
            let explained = engine.explain("g").unwrap().members.remove(0);
            assert!(explained.eligible && explained.figures.iter().all(|figure| figure.name != "limit"));
            server.gate.send_replace(true);
            for asked in asked {
                assert_eq!(asked.await.unwrap(), 200);
            }
        }
    })
    .await;
}

#[tokio::test]
async fn an_urgent_request_takes_the_place_of_one_that_is_less_so() {
    within(async {
        for threads in [1, 2] {
            while !an_urgent_one_takes_a_place(threads).await {}
        }
        let server = Server::start(0).await;
        assert!(status(&balancer(&server, 1).0).urgencies.is_empty(), "nobody is asked");
    })
    .await;
}

/// Returns `false` if it took so long that some may have reached their time limit.
async fn an_urgent_one_takes_a_place(threads: usize) -> bool {
    let server = Server::start(1000).await;
    let (engine, address) = asking(&server, threads, Some("x-urgency"));
    learn(address, 24).await;
    let mut asked = fill(&server, address).await;
    let begun = Instant::now();
    let Some(waiting) = line_up(&engine, address).await else { return false };
    let waited = waiting.len() as u64;
    let shed = || status(&engine).rejected.get("shed").copied().unwrap_or(0);
    assert_eq!(ask_with(address, "X-Urgency: 5\r\n").await.unwrap(), 503, "all go before it");
    let urgent = ask_with(address, "x-urgency: u=1, i\r\n");
    until("another one had to go", || shed() >= 3).await;
    let queued = status(&engine).queued;
    server.gate.send_replace(true);
    let urgent = urgent.await.unwrap();
    asked.extend(waiting);
    let mut refused = 0;
    for asked in asked {
        refused += u64::from(asked.await.unwrap() == 503);
    }
    if (urgent, refused) != (200, 1) {
        assert!(begun.elapsed() >= WAIT, "{refused} were refused after {:?}", begun.elapsed());
        return false;
    }
    assert_eq!(queued, waited);
    // A response is counted after it was sent. Another one of usual urgency was rejected before the line was
    // full.
    let told = || {
        let urgencies = status(&engine).urgencies;
        [1, 3, 5].map(|urgency| (urgencies[urgency].served, urgencies[urgency].refused))
    };
    until("all are counted", || told() == [(1, 0), (waited - 1, 2), (0, 1)]).await;
    true
}

#[tokio::test]
async fn who_waits_in_vain_is_refused_in_time() {
    within(async {
        let server = Server::start(150).await;
        let (engine, address) = balancer(&server, 1);
        learn(address, 8).await;
        let asked = fill(&server, address).await;
        let begun = Instant::now();
        assert_eq!(ask(address).await.unwrap(), 503);
        let took = begun.elapsed();
        assert!(took >= 400 * MILLI, "a second but twice 150 ms: {took:?}");
        assert_eq!(status(&engine).rejected["shed"], 1);
        server.gate.send_replace(true);
        for asked in asked {
            assert_eq!(asked.await.unwrap(), 200);
        }
    })
    .await;
}

#[tokio::test]
async fn a_client_that_goes_away_leaves_the_line() {
    within(async {
        let server = Server::start(100).await;
        // It may wait for longer than all of this takes.
        let (engine, address) = choosing(&server, 1, None, ("adaptive", None), Some(HOUR));
        learn(address, 8).await;
        let mut asked = fill(&server, address).await;
        let first = send(address).await;
        until("one waits", || status(&engine).queued == 1).await;
        asked.push(ask(address));
        until("two wait", || status(&engine).queued == 2).await;
        drop(first);
        until("one has left", || status(&engine).queued == 1).await;
        server.gate.send_replace(true);
        for asked in asked {
            assert_eq!(asked.await.unwrap(), 200);
        }
        until("all are counted", || status(&engine).members[0].in_flight == 0).await;
        assert_eq!(status(&engine).members[0].requests, 8 + 4, "the server never saw it");
    })
    .await;
}

/// Time is counted in responses of the server: at full load, it sends three within the duration of one
/// request.
#[tokio::test]
async fn in_lasting_overload_what_is_served_is_fresh_and_the_rest_told_quickly() {
    within(async {
        let server = Server::start(100).await;
        let (engine, address) = balancer(&server, 1);
        learn(address, 8).await;
        // The server answers 30 per second, and gets 150.
        let mut asked = Vec::new();
        let begun = Instant::now();
        for turn in 0..750 {
            // sleeps: paces the clients
            sleep_until(begun + turn * MILLI * 20 / 3).await;
            let (answered, running) = (Arc::clone(&server.answered), Arc::clone(&server.running));
            asked.push(tokio::spawn(async move {
                let before = answered.load(Relaxed);
                let status = ask(address).await.unwrap();
                (status, answered.load(Relaxed) - before, running.load(Relaxed))
            }));
        }
        let (mut served, mut refused, mut busy) = (Vec::new(), Vec::new(), 0);
        for asked in asked.split_off(450) {
            let (status, answers, running) = asked.await.unwrap();
            if status == 200 {
                served.push(answers);
            } else {
                refused.push(answers);
                busy += usize::from(running == 3);
            }
        }
        for asked in asked {
            asked.await.unwrap();
        }
        served.sort();
        refused.sort();
        let (median, told) = (served[served.len() / 2], refused[refused.len() / 2]);
        // In order of arrival it would be three times as long.
        assert!(median <= 6, "{median} are answered while one waits and is answered");
        assert!(told <= 2, "told when {told} had been answered");
        assert!(busy > refused.len() / 2, "{busy} of {} were refused by a busy server", refused.len());
        let status = status(&engine);
        assert!(status.waits.count > 100, "{:?}", status.waits);
    })
    .await;
}
