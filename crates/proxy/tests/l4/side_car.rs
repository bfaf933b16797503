//! A group of one server whose side-car this process is: its learning from real sockets, its reports and
//! rejections, and the connections that leave under an alert.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use plimsoll_proxy::{Engine, GroupSettings, ListenerSettings, Protocol, Settings, SideCarSettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep};

use crate::rig::{
    Echo, MILLI, assert_reset, echoes, group, home, listener, settings, start_with, until, within,
};

fn side_car(protocol: Protocol, server: SocketAddr, side_car: SideCarSettings) -> (Engine, SocketAddr) {
    let group = GroupSettings { side_car: Some(side_car), ..group(&[server]) };
    let mut settings = settings(ListenerSettings { ..listener(protocol) }, group);
    settings.threads = 1;
    start_with(settings)
}

const PLAIN: SideCarSettings =
    SideCarSettings { refuse: false, shed_idle: None, shares_host: false, home: None };

/// Measures the delay of events that should be immediate: on a busy machine, nothing follows from measured
/// times.
#[derive(Default)]
struct Late {
    count: AtomicU64,
    /// The sum in microseconds.
    sum: AtomicU64,
    worst: AtomicU64,
}

impl Late {
    fn note(&self, late: Duration) {
        let late = late.as_micros() as u64;
        self.count.fetch_add(1, Relaxed);
        self.sum.fetch_add(late, Relaxed);
        self.worst.fetch_max(late, Relaxed);
    }

    /// Returns `true` for at most 2 ms on average, and 50 ms once: little beside the 20 ms of a request.
    fn little(&self) -> bool {
        let mean = self.sum.load(Relaxed) / self.count.load(Relaxed).max(1);
        // bound: a larger delay decides nothing
        mean <= 2_000 && self.worst.load(Relaxed) <= 50_000
    }
}

/// The requests that run on a host and share its processors, and the delays for them and their clients.
#[derive(Default)]
struct Host {
    running: AtomicU64,
    late: Late,
}

/// Starts an HTTP server with this number of processors, which its requests share; each needs 20 ms of one on
/// average.
async fn server(processors: f64) -> SocketAddr {
    server_on(processors, Arc::default()).await
}

/// Starts such a server on a host. Each response contains the request's duration in microseconds.
async fn server_on(processors: f64, host: Arc<Host>) -> SocketAddr {
    let listener = TcpListener::bind(home()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let number = Arc::new(AtomicU64::new(0));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (host, number) = (Arc::clone(&host), Arc::clone(&number));
            tokio::spawn(async move {
                while head(&mut stream).await.is_some() {
                    let begun = Instant::now();
                    host.running.fetch_add(1, Relaxed);
                    let mut left = -0.02 * chance(number.fetch_add(1, Relaxed)).ln();
                    while left > 0.0 {
                        let since = Instant::now();
                        // sleeps: the server's service time
                        sleep(MILLI).await;
                        let share = (processors / host.running.load(Relaxed) as f64).min(1.0);
                        host.late.note(since.elapsed().saturating_sub(MILLI));
                        left -= since.elapsed().as_secs_f64() * share;
                    }
                    host.running.fetch_sub(1, Relaxed);
                    let took = begun.elapsed().as_micros();
                    let answer = format!("HTTP/1.1 200 OK\r\nX-Took: {took}\r\nContent-Length: 2\r\n\r\nok");
                    if stream.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// Returns a number from 0 to 1, in no order.
fn chance(number: u64) -> f64 {
    plimsoll_brain::mix(number) as f64 / u64::MAX as f64
}

/// Reads up to an empty line; the other side sends no more than that at once.
async fn head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if stream.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    Some(String::from_utf8_lossy(&head).into_owned())
}

/// Sends a request as [`ask`], and records how much longer it took than the server reports.
async fn ask_of(stream: &mut TcpStream, host: &Host) -> Option<String> {
    let begun = Instant::now();
    let answer = ask(stream).await?;
    if let Some(took) = answer.lines().find_map(|line| line.strip_prefix("X-Took: ")?.parse().ok()) {
        host.late.note(begun.elapsed().saturating_sub(Duration::from_micros(took)));
    }
    Some(answer)
}

/// Sends a request and reads the response; returns its head, and the part of the body that came with it.
async fn ask(stream: &mut TcpStream) -> Option<String> {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.ok()?;
    let answer = head(stream).await?;
    let length: usize =
        answer.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse().ok())?;
    let body = answer.split_once("\r\n\r\n")?.1.len();
    stream.read_exact(&mut vec![0; length - body]).await.ok()?;
    Some(answer)
}

/// Its correctness is tested in `tests/knee.rs` of `plimsoll-brain`, by a clock that nothing stops.
#[tokio::test]
async fn the_knee_of_a_real_server_is_learned_and_what_is_too_much_refused() {
    within(async {
        let host = Arc::<Host>::default();
        let server = server_on(4.0, Arc::clone(&host)).await;
        let (engine, address) = side_car(Protocol::Http, server, PLAIN);
        let stop = Arc::new(AtomicBool::new(false));
        let refused = Arc::new(AtomicU64::new(0));
        for client in 0..40 {
            let mut number = client << 32;
            let (stop, refused) = (Arc::clone(&stop), Arc::clone(&refused));
            let host = Arc::clone(&host);
            tokio::spawn(async move {
                let mut stream = TcpStream::connect(address).await.unwrap();
                while !stop.load(Relaxed) {
                    let head = ask_of(&mut stream, &host).await.unwrap();
                    assert!(head.contains("\r\nendpoint-load-metrics: TEXT named_metrics.rif="), "{head}");
                    let full = head.contains("named_metrics.full=1");
                    assert_eq!(full, head.starts_with("HTTP/1.1 503 "), "{head}");
                    refused.fetch_add(u64::from(full), Relaxed);
                    number += 1;
                    // Together about three quarters of what the server can do.
                    // sleeps: paces the client
                    sleep(MILLI.mul_f64(-230.0 * chance(number).ln())).await;
                }
            });
        }
        let reading = || engine.meter_reading("g").unwrap();
        let served = || engine.member_counters("g")[0].requests;
        until("1500 requests", || served() > 1500).await;
        // Not at one lucky moment, but all the time.
        for round in 1..=5 {
            let reading = reading();
            assert!(reading.work > 0.0 && reading.sojourn >= 0.005, "{reading:?}");
            if host.late.little() {
                assert!((3.0..=6.0).contains(&reading.knee) && reading.work < 0.060, "{reading:?}");
                assert!(f64::from(reading.in_flight) <= 6.0 + 3.0 * 6_f64.sqrt() + 1.0, "{reading:?}");
            }
            until("64 more", || served() > 1500 + 64 * round).await;
        }
        stop.store(true, Relaxed);
        until("all are answered", || reading().in_flight == 0).await;
    })
    .await;
}

#[tokio::test]
async fn of_servers_that_share_a_host_none_takes_what_the_others_use() {
    within(async {
        let host = Arc::<Host>::default();
        let (mut listeners, mut groups) = (Vec::new(), Vec::new());
        for name in ["one", "other"] {
            let manner = SideCarSettings { shares_host: true, ..PLAIN };
            let server = server_on(4.0, Arc::clone(&host)).await;
            let mut group = GroupSettings { side_car: Some(manner), ..group(&[server]) };
            group.spec.name = name.into();
            listeners.push(ListenerSettings { group: name.into(), ..listener(Protocol::Http) });
            groups.push(group);
        }
        let first = settings(listeners.remove(0), groups.remove(0));
        let mut all = Settings { threads: 1, ..first };
        all.listeners.append(&mut listeners);
        all.groups.extend(groups.into_iter().map(Arc::new));
        let engine = Engine::start(all).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        for (which, address) in engine.addresses().into_iter().enumerate() {
            // Together about three quarters of the host's capacity.
            for client in 0..20 {
                let mut number = ((which * 100 + client) as u64) << 32;
                let (stop, host) = (Arc::clone(&stop), Arc::clone(&host));
                tokio::spawn(async move {
                    let mut stream = TcpStream::connect(address).await.unwrap();
                    while !stop.load(Relaxed) {
                        let head = ask_of(&mut stream, &host).await.unwrap();
                        let full = head.contains("named_metrics.full=1");
                        assert_eq!(full, head.starts_with("HTTP/1.1 503 "), "{head}");
                        number += 1;
                        // sleeps: paces the client
                        sleep(MILLI.mul_f64(-230.0 * chance(number).ln())).await;
                    }
                });
            }
        }
        let served = |group: &str| engine.member_counters(group)[0].requests;
        until("800 requests", || served("one") + served("other") > 800).await;
        assert!(served("one") > 200 && served("other") > 200, "{} {}", served("one"), served("other"));
        for _ in 0..3 {
            let (shared, before) = (engine.host_reading(), served("one") + served("other"));
            let own = ["one", "other"].map(|group| engine.meter_reading(group).unwrap());
            // The view of neither server: its own requests are half of those that share the processors. Four
            // fit; it begins with two, and times are not reliable beside other tests.
            assert!(shared.knee > 0.0 && shared.work > 0.0, "{shared:?} {own:?}");
            if host.late.little() {
                assert!((2.2..=9.0).contains(&shared.knee), "{shared:?} {own:?}");
                assert!(f64::from(shared.in_flight) <= 9.0 + 3.0 * 3.0 + 1.0, "{shared:?} {own:?}");
            }
            until("64 more", || served("one") + served("other") > before + 64).await;
        }
        stop.store(true, Relaxed);
        until("all are answered", || engine.host_reading().in_flight == 0).await;
        assert_eq!(["one", "other"].map(|group| engine.meter_reading(group).unwrap().in_flight), [0, 0]);
    })
    .await;
}

#[tokio::test]
async fn an_alert_sends_connections_away_at_the_boundary_of_a_request() {
    within(async {
        let (engine, address) = side_car(Protocol::Http, server(4.0).await, PLAIN);
        let mut there = Vec::new();
        for _ in 0..5 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            assert!(!ask(&mut stream).await.unwrap().contains("Connection: close"));
            there.push(stream);
        }
        let mut last = there.pop().unwrap();
        engine.request_shed("g", 1.0);
        for stream in &mut there {
            assert!(ask(stream).await.unwrap().contains("Connection: close"));
            assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
        }
        // An alert does not apply to later connections, and one that has ended applies to none.
        let mut fresh = TcpStream::connect(address).await.unwrap();
        engine.request_shed("g", 0.0);
        for stream in [&mut fresh, &mut last] {
            assert!(!ask(stream).await.unwrap().contains("Connection: close"));
        }
    })
    .await;
}

/// A server that echoes the first byte of each session after 2 ms of work, one session at a time.
async fn one_at_a_time() -> SocketAddr {
    let listener = TcpListener::bind(home()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let work = Arc::new(tokio::sync::Mutex::new(()));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let work = Arc::clone(&work);
            tokio::spawn(async move {
                let mut byte = [0];
                if stream.read_exact(&mut byte).await.is_err() {
                    return;
                }
                {
                    let _turn = work.lock().await;
                    // sleeps: the server's service time
                    sleep(2 * MILLI).await;
                }
                let _ = stream.write_all(&byte).await;
                let _ = stream.read(&mut byte).await;
            });
        }
    });
    address
}

/// A session whose first byte the server has echoed; `None` if the side-car refused it.
async fn served(address: SocketAddr) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream.write_all(b"x").await.ok()?;
    stream.read_exact(&mut [0]).await.ok()?;
    Some(stream)
}

#[tokio::test]
async fn byte_streams_are_counted_and_refused_only_if_that_is_wanted() {
    within(async {
        let server = one_at_a_time().await;
        for refuse in [false, true] {
            let (engine, address) = side_car(Protocol::Tcp, server, SideCarSettings { refuse, ..PLAIN });
            // Bursts of sessions, until evidence bounds the knee.
            for size in [1, 4, 2, 5].into_iter().cycle() {
                let sessions = (0..size).map(|_| tokio::spawn(served(address)));
                for session in sessions.collect::<Vec<_>>() {
                    session.await.unwrap();
                }
                if !engine.meter_reading("g").unwrap().open {
                    break;
                }
            }
            until("all are counted out", || engine.meter_reading("g").unwrap().in_flight == 0).await;
            let mut open = Vec::new();
            while open.len() < 64
                && let Some(stream) = served(address).await
            {
                open.push(stream);
            }
            assert_eq!(open.len() == 64, !refuse, "{}", open.len());
            let in_flight = || engine.meter_reading("g").unwrap().in_flight as usize;
            assert!(open.len() > 1, "a server with a knee of 1 takes more than one");
            until("only they are counted", || in_flight() == open.len()).await;
            if refuse {
                assert_reset(address).await;
            }
            drop(open);
            until("all are counted out", || engine.meter_reading("g").unwrap().in_flight == 0).await;
        }
    })
    .await;
}

#[tokio::test]
async fn an_alert_sends_byte_streams_away_when_they_are_quiet() {
    within(async {
        let echo = Echo::start().await;
        let shed_idle = Some(50 * MILLI);
        let (engine, address) = side_car(Protocol::Tcp, echo.address, SideCarSettings { shed_idle, ..PLAIN });
        let mut quiet = TcpStream::connect(address).await.unwrap();
        echoes(&mut quiet, "something").await;
        engine.request_shed("g", 1.0);
        // An end, and no reset.
        assert_eq!(quiet.read(&mut [0]).await.unwrap(), 0);
        let mut later = TcpStream::connect(address).await.unwrap();
        echoes(&mut later, "something").await;
        // sleeps: for longer than the idle time of connections that have to leave
        sleep(150 * MILLI).await;
        echoes(&mut later, "still there").await;
        assert_eq!(engine.meter_reading("h"), None);
    })
    .await;
}
