//! The open loop against servers that misbehave: the offered rate holds and the latencies tell the truth.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use plimsoll_bench::pace::{Arrival, Pace};
use plimsoll_bench::record::{Fault, Record};
use plimsoll_bench::run::{self, Limits};
use plimsoll_bench::target::Http;

use super::rig::{MS, OK, load, nobody, server};

/// With a stall of S every period P, a share S/P of the requests waits uniformly up to S: the closed form
/// gives the quantiles. A generator that leaves out its own waits has a p95 of next to nothing.
#[test]
fn a_stall_shows_in_the_percentiles_as_its_users_would_feel_it() {
    let address = server(OK, |now| {
        let (period, stall) = (1000, 100);
        let phase = now.as_millis() as u64 % period;
        if (500..500 + stall).contains(&phase) { now + (500 + stall - phase) as u32 * MS } else { now }
    });
    let record = load(address, Arrival::Constant, 1000.0, Duration::from_secs(4), Limits::default());
    assert_eq!((record.due, record.failures()), (4000, 0), "{:?}", record.failed);
    // P(wait > x) = 0.1 (1 - x / 100 ms): p95 = 50 ms, p99 = 90 ms.
    let [p50, p95, p99] = [0.5, 0.95, 0.99].map(|q| record.latency.quantile(q));
    assert!(p50 < 20 * MS, "p50 {p50:?}");
    assert!((40 * MS..65 * MS).contains(&p95), "p95 {p95:?}");
    assert!((80 * MS..110 * MS).contains(&p99), "p99 {p99:?}");
    assert_eq!(record.members["m1"].ok, 4000);
}

/// A server that never answers must not slow the sender down: every request leaves, on time, and its
/// time-out counts in the percentiles.
#[test]
fn a_dead_server_is_offered_all_of_the_load() {
    let address = server(OK, |now| now + Duration::from_secs(3600));
    let limits = Limits { timeout: 300 * MS, tolerance: 100 * MS, ..Limits::default() };
    let begin = Instant::now();
    let record = load(address, Arrival::Poisson, 500.0, Duration::from_secs(1), limits);
    assert!(begin.elapsed() < Duration::from_secs(3));
    assert!((400..600).contains(&record.due), "{}", record.due);
    assert_eq!(record.failed.get(&Fault::Timeout), Some(&record.due), "{:?}", record.failed);
    assert!(record.punctuality() > 0.9, "{}", record.punctuality());
    assert!(record.latency.quantile(0.01) >= 299 * MS);
    assert_eq!(record.latency.count(), record.due);
}

/// More in flight than allowed is not put off but counted, and spoils the verdict.
#[test]
fn what_exceeds_the_bound_is_counted_as_not_sent() {
    let address = server(OK, |now| now + Duration::from_secs(3600));
    let limits = Limits { timeout: 2000 * MS, in_flight: 10, tolerance: 500 * MS, ..Limits::default() };
    let record = load(address, Arrival::Constant, 1000.0, 200 * MS, limits);
    assert_eq!(record.due, 200);
    assert_eq!(record.failed.get(&Fault::Unsent), Some(&190), "{:?}", record.failed);
    assert_eq!(record.failed.get(&Fault::Timeout), Some(&10));
    assert!(record.punctuality() < 0.06);
}

/// A full backlog drops SYNs: connections are given up before the kernel repeats them.
#[test]
fn a_connection_that_does_not_come_up_is_given_up() {
    let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    listener.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap().as_socket().unwrap();
    let _fills_the_backlog = TcpStream::connect(address).unwrap();
    let limits = Limits { connect_timeout: 300 * MS, timeout: 5000 * MS, ..Limits::default() };
    let begin = Instant::now();
    let record = load(address, Arrival::Constant, 100.0, 200 * MS, limits);
    assert!(begin.elapsed() < Duration::from_secs(3));
    assert_eq!(record.failed.get(&Fault::ConnectTimeout), Some(&20), "{:?}", record.failed);
}

#[test]
fn refused_and_broken_answers_fail_and_never_look_fast() {
    let (_held, free) = nobody();
    let limits = || Limits { timeout: 800 * MS, ..Limits::default() };
    let record = load(free, Arrival::Constant, 100.0, 100 * MS, limits());
    assert_eq!(record.failed.get(&Fault::Connect), Some(&10), "{:?}", record.failed);
    assert!(record.latency.quantile(0.01) >= 799 * MS);

    let nonsense = server(b"nonsense\r\n\r\n", |now| now);
    let record = load(nonsense, Arrival::Constant, 100.0, 100 * MS, limits());
    assert_eq!(record.failed.get(&Fault::Malformed), Some(&10), "{:?}", record.failed);

    let failing = server(b"HTTP/1.1 503 No\r\nx-member: m1\r\ncontent-length: 0\r\n\r\n", |now| now);
    let record = load(failing, Arrival::Constant, 100.0, 100 * MS, limits());
    assert_eq!(record.failed.get(&Fault::Status), Some(&10), "{:?}", record.failed);
    assert_eq!(record.members["m1"].failed, 10);
}

/// A server that closes after each answer without saying so: the next request goes on a new connection.
#[test]
fn connections_that_the_server_closed_are_not_used_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(OK);
        }
    });
    let record = load(address, Arrival::Constant, 50.0, 400 * MS, Limits::default());
    assert_eq!((record.ok, record.failures()), (20, 0), "{:?}", record.failed);
}

/// A request larger than the socket takes at once, and an answer larger than one read.
#[test]
fn large_requests_and_answers_are_carried_whole() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    const SIZE: usize = 8 << 20;
    let server = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut buffer = vec![0; 65536];
        for _ in 0..3 {
            let mut seen = Vec::new();
            while !seen.windows(4).any(|four| four == b"\r\n\r\n") {
                let count = stream.read(&mut buffer).unwrap();
                seen.extend_from_slice(&buffer[..count]);
            }
            let head = seen.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
            let mut body = seen.len() - head;
            while body < SIZE {
                body += stream.read(&mut buffer).unwrap();
            }
            assert_eq!(body, SIZE);
            stream
                .write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {SIZE}\r\n\r\n").as_bytes())
                .unwrap();
            stream.write_all(&vec![1; SIZE]).unwrap();
        }
    });
    let target = Http::new("POST", &format!("http://{address}/"), &[], &vec![0; SIZE]).unwrap();
    let dues = [Duration::ZERO, 1500 * MS, 3000 * MS].into_iter();
    let record = run::start(target, dues, Limits::default()).unwrap().join().unwrap();
    assert_eq!((record.ok, record.failures()), (3, 0), "{:?}", record.failed);
    server.join().unwrap();
}

/// Parts taken while it runs add up; a stop ends it soon and says what it cut.
#[test]
fn a_run_can_be_watched_and_stopped() {
    let address =
        server(OK, |now| if now < Duration::from_secs(1) { now } else { now + Duration::from_secs(3600) });
    let target = Http::new("GET", &format!("http://{address}/"), &[], b"").unwrap();
    let pace = Pace::new(Arrival::Constant, 100.0, Duration::from_secs(600), 1);
    let limits = Limits { timeout: Duration::from_secs(30), ..Limits::default() };
    let run = run::start(target, pace, limits).unwrap();
    let mut whole = Record::new();
    while whole.ok <= 50 || run.in_flight() < 5 {
        std::thread::sleep(20 * MS);
        whole.add(&run.take());
        assert!(run.elapsed() < Duration::from_secs(30));
    }
    assert!(!run.finished());
    let begin = Instant::now();
    run.stop();
    whole.add(&run.join().unwrap());
    assert!(begin.elapsed() < Duration::from_secs(3));
    assert!(whole.cut >= 5);
    assert_eq!(whole.due, whole.ok + whole.cut + whole.failures());
}
