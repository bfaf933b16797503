//! A group of one server whose side-car this process is: what it learns from real sockets, says and refuses, and which
//! connections go when there is an alert.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use plimsoll_proxy::{Engine, GroupSettings, ListenerSettings, Protocol, SideCarSettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use crate::rig::{Echo, MILLI, assert_reset, echoes, group, listener, settings, start_with, until, within};

fn side_car(protocol: Protocol, server: SocketAddr, side_car: SideCarSettings) -> (Engine, SocketAddr) {
    let group = GroupSettings { side_car: Some(side_car), ..group(&[server]) };
    let mut settings = settings(ListenerSettings { ..listener(protocol) }, group);
    settings.threads = 1;
    start_with(settings)
}

const PLAIN: SideCarSettings = SideCarSettings { refuse: false, shed_idle: None };

/// An http server that works on so many requests at once, each for some milliseconds, first come first served.
async fn server(workers: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let free = Arc::new(Semaphore::new(workers));
    let number = Arc::new(AtomicU64::new(0));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (free, number) = (Arc::clone(&free), Arc::clone(&number));
            tokio::spawn(async move {
                let mut stream = stream;
                while head(&mut stream).await.is_some() {
                    let _worker = free.acquire().await;
                    // 3 to 11 ms, in no order.
                    sleep(
                        MILLI
                            * (3 + (number.fetch_add(1, Relaxed).wrapping_mul(0x9e37_79b9) >> 8) as u32 % 9),
                    )
                    .await;
                    if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// Reads up to an empty line.
async fn head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8_lossy(&head).into_owned())
}

/// Asks for something and reads the answer; its head.
async fn ask(stream: &mut TcpStream) -> Option<String> {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.ok()?;
    let head = head(stream).await?;
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse().ok())?;
    stream.read_exact(&mut vec![0; length]).await.ok()?;
    Some(head)
}

#[tokio::test]
async fn the_knee_of_a_real_server_is_learned_and_what_is_too_much_refused() {
    within(async {
        let server = server(4).await;
        let (engine, address) = side_car(Protocol::Http, server, PLAIN);
        let stop = Arc::new(AtomicBool::new(false));
        let refused = Arc::new(AtomicU64::new(0));
        for _ in 0..16 {
            let (stop, refused) = (Arc::clone(&stop), Arc::clone(&refused));
            tokio::spawn(async move {
                let mut stream = TcpStream::connect(address).await.unwrap();
                while !stop.load(Relaxed) {
                    let head = ask(&mut stream).await.unwrap();
                    assert!(head.contains("\r\nendpoint-load-metrics: TEXT named_metrics.rif="), "{head}");
                    let full = head.contains("named_metrics.full=1");
                    assert_eq!(full, head.starts_with("HTTP/1.1 503 "), "{head}");
                    if full {
                        refused.fetch_add(1, Relaxed);
                        sleep(5 * MILLI).await;
                    }
                }
            });
        }
        let reading = || engine.reading("g").unwrap();
        let served = || engine.counters("g")[0].requests;
        until("4000 requests", || served() > 4000).await;
        // Not at one lucky moment, but all the time.
        for round in 1..=10 {
            let reading = reading();
            assert!((3.0..=6.0).contains(&reading.knee), "{reading:?}");
            // Sleeps are longer than they were meant to be, never shorter.
            assert!((0.003..0.030).contains(&reading.work), "{reading:?}");
            assert!(
                reading.sojourn >= 0.003 && f64::from(reading.in_flight) <= 6.0 + 3.0 * 6_f64.sqrt() + 1.0
            );
            until("64 more", || served() > 4000 + 64 * round).await;
        }
        assert!(refused.load(Relaxed) > 0);
        stop.store(true, Relaxed);
        until("all are answered", || reading().in_flight == 0).await;
    })
    .await;
}

#[tokio::test]
async fn an_alert_sends_connections_away_at_the_boundary_of_a_request() {
    within(async {
        let (engine, address) = side_car(Protocol::Http, server(4).await, PLAIN);
        let mut there = Vec::new();
        for _ in 0..5 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            assert!(!ask(&mut stream).await.unwrap().contains("Connection: close"));
            there.push(stream);
        }
        let mut last = there.pop().unwrap();
        engine.shed("g", 1.0);
        for stream in &mut there {
            assert!(ask(stream).await.unwrap().contains("Connection: close"));
            assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
        }
        // It is not about those that come later, and one that is over is about nobody.
        let mut fresh = TcpStream::connect(address).await.unwrap();
        engine.shed("g", 0.0);
        for stream in [&mut fresh, &mut last] {
            assert!(!ask(stream).await.unwrap().contains("Connection: close"));
        }
    })
    .await;
}

#[tokio::test]
async fn byte_streams_are_counted_and_refused_only_if_that_is_wanted() {
    within(async {
        let echo = Echo::start().await;
        for refuse in [false, true] {
            let (engine, address) =
                side_car(Protocol::Tcp, echo.address, SideCarSettings { refuse, shed_idle: None });
            let mut open = Vec::new();
            // A server that has shown nothing is believed to take 2, and to be full with 7.
            for _ in 0..7 {
                let mut stream = TcpStream::connect(address).await.unwrap();
                echoes(&mut stream, "x").await;
                open.push(stream);
            }
            assert_eq!(engine.reading("g").unwrap().in_flight, 7);
            if refuse {
                assert_reset(address).await;
            } else {
                echoes(&mut TcpStream::connect(address).await.unwrap(), "x").await;
            }
            drop(open);
            until("all are counted out", || engine.reading("g").unwrap().in_flight == 0).await;
        }
    })
    .await;
}

#[tokio::test]
async fn an_alert_sends_byte_streams_away_when_they_are_quiet() {
    within(async {
        let echo = Echo::start().await;
        let shed_idle = Some(50 * MILLI);
        let (engine, address) =
            side_car(Protocol::Tcp, echo.address, SideCarSettings { refuse: false, shed_idle });
        let mut quiet = TcpStream::connect(address).await.unwrap();
        echoes(&mut quiet, "something").await;
        engine.shed("g", 1.0);
        // An end, and no reset.
        assert_eq!(quiet.read(&mut [0]).await.unwrap(), 0);
        let mut later = TcpStream::connect(address).await.unwrap();
        echoes(&mut later, "something").await;
        sleep(150 * MILLI).await;
        echoes(&mut later, "still there").await;
        assert_eq!(engine.reading("h"), None);
    })
    .await;
}
