//! Members that report that they are full, and reject further requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use plimsoll_brain::Urgency;
use plimsoll_brain::meter::Reading;
use plimsoll_proxy::{GroupSettings, ListenerSettings, Protocol, Settings};
use plimsoll_wire::load_report::{self, LoadReport};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::line::{ask, head};
use crate::rig::{self, HOUR, MILLI, by, group, home, settings, start_with, until, within};

/// Returns the header line of a report.
fn said(reading: &Reading) -> String {
    let mut said = Vec::new();
    load_report::write(&LoadReport { reading: *reading, not_processed: None }, &mut said);
    String::from_utf8(said).unwrap()
}

/// Returns a response with a report; with `full`, a rejection.
fn spoken(said: &str, full: bool) -> Vec<u8> {
    let (status, said) = match full {
        false => (200, said.to_owned()),
        true => (503, said.replace("\r\n", ", named_metrics.full=1\r\n")),
    };
    format!("HTTP/1.1 {status} So\r\nContent-Length: 0\r\n{said}\r\n").into_bytes()
}

/// Starts a full server: its first response reports so, and it rejects all others until `takes` is set. It
/// never answers requests for `/hold`. Returns its address, and the number of requests that it received.
async fn full_server(takes: watch::Receiver<bool>) -> (SocketAddr, Arc<AtomicU32>) {
    let listener = TcpListener::bind(home()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&seen);
    let said = said(&Reading {
        in_flight: 9,
        knee: 4.0,
        work: 0.02,
        mean_in_flight: 9.0,
        sojourn: 0.02,
        ..Reading::default()
    });
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (said, count, takes) = (said.clone(), Arc::clone(&count), takes.clone());
            tokio::spawn(async move {
                while let Some(asked) = head(&mut stream).await {
                    let before = count.fetch_add(1, Relaxed);
                    if asked.contains(" /hold ") {
                        return std::future::pending().await;
                    }
                    let full = before != 2 && !*takes.borrow();
                    stream.write_all(&spoken(&said, full)).await.unwrap();
                }
            });
        }
    });
    (address, seen)
}

#[tokio::test]
async fn a_member_that_was_full_is_asked_again_by_what_can_be_sent_again_and_waits_then() {
    within(async {
        let (takes, taking) = watch::channel(false);
        let (server, seen) = full_server(taking).await;
        let group = by(GroupSettings { queue: 0, ..group(&[server]) }, "adaptive");
        // Until a thread has a report of the server, nothing limits its requests.
        let (_engine, address) =
            start_with(Settings { threads: 1, ..settings(rig::listener(Protocol::Http), group) });
        // A balancer with hardly any requests at its members tries them anyhow.
        let mut held = Vec::new();
        for _ in 0..2 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /hold HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
            held.push(stream);
        }
        until("both are there", || seen.load(Relaxed) == 2).await;
        assert_eq!(ask(address).await.unwrap(), 200);
        // sleeps: so long that the server's report, whose requests take 20 ms, may be outdated
        sleep(100 * MILLI).await;
        let mut upload = TcpStream::connect(address).await.unwrap();
        upload.write_all(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n12").await.unwrap();
        let told = head(&mut upload).await.unwrap();
        assert!(told.starts_with("HTTP/1.1 503 ") && told.contains("plimsoll-reason: shed"), "{told}");
        assert_eq!(seen.load(Relaxed), 3, "what has not come yet cannot be sent again");
        let begun = Instant::now();
        assert_eq!(ask(address).await.unwrap(), 503);
        let took = begun.elapsed();
        assert!(seen.load(Relaxed) == 4 && took >= 50 * MILLI, "refused once it waits: {took:?}");
        takes.send_replace(true);
        // sleeps: as long again
        sleep(100 * MILLI).await;
        let mut whole = TcpStream::connect(address).await.unwrap();
        whole.write_all(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n12").await.unwrap();
        let told = head(&mut whole).await.unwrap();
        assert!(told.starts_with("HTTP/1.1 200 ") && seen.load(Relaxed) == 5, "{told}");
    })
    .await;
}

/// The server's action on a request that waits for room, although it reports some.
enum Deed {
    Refuse,
    /// Closes the connection without a response.
    Hang,
    Answer,
}

/// The outcome of such a request.
#[derive(Debug, PartialEq)]
struct Came {
    status: u16,
    /// The number of times that the server received it.
    seen: u32,
    /// The connections to the server, one of which existed before.
    connections: u32,
    /// The number of waits that are counted, and of requests that had to wait and were then served or
    /// rejected.
    waits: u64,
    ranked: (u64, u64),
}

/// Lets a server perform `deed` on a request, given the number of times that it received it before. `others`
/// is `true` if there are other requests, whose ends wake it.
async fn late(deed: impl Fn(u32) -> Deed + Send + Copy + 'static, others: bool) -> Came {
    let listener = TcpListener::bind(home()).await.unwrap();
    let server = listener.local_addr().unwrap();
    let said = said(&Reading {
        in_flight: 1,
        knee: 99.0,
        work: 0.001,
        mean_in_flight: 1.0,
        sojourn: 0.001,
        ..Reading::default()
    });
    let [seen, connections] = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
    let (count, accepted) = (Arc::clone(&seen), Arc::clone(&connections));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            accepted.fetch_add(1, Relaxed);
            let (said, count) = (said.clone(), Arc::clone(&count));
            tokio::spawn(async move {
                while let Some(asked) = head(&mut stream).await {
                    let deed = match asked.contains(" /late ") {
                        true => deed(count.fetch_add(1, Relaxed)),
                        false => Deed::Answer,
                    };
                    match deed {
                        Deed::Hang => return,
                        Deed::Refuse => stream.write_all(&spoken(&said, true)).await.unwrap(),
                        Deed::Answer => stream.write_all(&spoken(&said, false)).await.unwrap(),
                    }
                }
            });
        }
    });
    let mut group = by(GroupSettings { queue: 0, ..group(&[server]) }, "adaptive");
    // It may wait for longer than all of this takes.
    group.spec.objective = Some(HOUR);
    let asking = ListenerSettings { priority: Some("priority".into()), ..rig::listener(Protocol::Http) };
    let (engine, address) = start_with(Settings { threads: 1, ..settings(asking, group) });
    assert_eq!(ask(address).await.unwrap(), 200);
    let mut late = TcpStream::connect(address).await.unwrap();
    late.write_all(b"GET /late HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let answer = async { head(&mut late).await.unwrap() };
    tokio::pin!(answer);
    let told = loop {
        tokio::select! {
            told = &mut answer => break told,
            other = async { ask(address).await }, if others => assert_eq!(other.unwrap(), 200),
        }
    };
    let status = || rig::status(&engine);
    let ranked = || {
        let waited = &status().urgencies[usize::from(Urgency::default().value())];
        (waited.served, waited.refused)
    };
    // A response is counted after it was sent.
    until("it is counted", || ranked() != (0, 0)).await;
    Came {
        status: told.split(' ').nth(1).unwrap().parse().unwrap(),
        seen: seen.load(Relaxed),
        connections: connections.load(Relaxed),
        waits: status().waits.count,
        ranked: ranked(),
    }
}

/// Near capacity, another request is mostly faster, which is no sign for the next free place.
#[tokio::test]
async fn who_waits_may_be_refused_many_times_and_not_for_ever() {
    within(async {
        let twenty = |before| if before < 20 { Deed::Refuse } else { Deed::Answer };
        let came = late(twenty, true).await;
        assert_eq!((came.status, came.seen, came.waits, came.ranked), (200, 21, 1, (1, 0)));
        let came = late(|_| Deed::Refuse, true).await;
        assert_eq!((came.status, came.seen, came.waits, came.ranked), (503, 128, 1, (0, 1)));
    })
    .await;
}

#[tokio::test]
async fn whom_nobody_calls_looks_for_itself_by_the_connections_that_there_are() {
    within(async {
        let deed = |before| match before {
            0 | 7 => Deed::Hang,
            1..=8 => Deed::Refuse,
            _ => Deed::Answer,
        };
        // One before, and one for each that was closed.
        let came = Came { status: 200, seen: 10, connections: 3, waits: 1, ranked: (1, 0) };
        assert_eq!(late(deed, false).await, came);
    })
    .await;
}
