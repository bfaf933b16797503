//! Budgets that all connections share: memory and descriptors.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use http::{Request, StatusCode};
use plimsoll_brain::{HealthSpec, MemberState};
use plimsoll_proxy::{Engine, GroupSettings, IiopSettings, ProbeKind, ProbeSettings, Protocol, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::rig::{MILLI, MINUTE, group, home, listener, settings, start_with, status, until, within};
use crate::second::{Sender, client, echo, get, plain, second, to_second};

fn kept(engine: &Engine) -> u64 {
    engine.status().memory.kept_bytes
}

async fn sends(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

async fn status_line(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // A connection that was reset has returned nothing.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn unfinished_heads_draw_on_one_budget_and_are_refused_beyond_it() {
    const BUDGET: usize = 256 * 1024;
    within(async {
        let (member, _requests) =
            plain("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok").await;
        let settings =
            Settings { max_memory: BUDGET, ..settings(listener(Protocol::Http), group(&[member])) };
        let (engine, address) = start_with(settings);
        let half = format!("GET / HTTP/1.1\r\nHost: h\r\nX-Long: {}", "x".repeat(7000));
        let mut held = Vec::new();
        for _ in 0..BUDGET / 8192 {
            held.push(sends(address, half.as_bytes()).await);
        }
        until("all of the budget is drawn", || kept(&engine) > (BUDGET - 8192) as u64).await;
        let mut refused = sends(address, half.as_bytes()).await;
        assert_eq!(status_line(&mut refused).await, "HTTP/1.1 503 Service Unavailable");
        let memory = engine.status().memory;
        assert!(memory.kept_bytes <= BUDGET as u64 && memory.refused > 0, "{memory:?}");
        assert_eq!(status(&engine).rejected["memory"], memory.refused);
        // A request that arrives completely draws nothing.
        let mut whole = sends(address, b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
        assert_eq!(status_line(&mut whole).await, "HTTP/1.1 200 OK");
        drop(held);
        until("all of it is returned", || kept(&engine) == 0).await;
    })
    .await;
}

#[tokio::test]
async fn messages_of_iiop_draw_by_what_has_come_and_not_by_what_was_announced() {
    const BUDGET: usize = 4 << 20;
    within(async {
        let iiop = IiopSettings {
            key: None,
            type_id: Vec::new(),
            objects: Default::default(),
            max_message: 64 << 20,
            connections: 1,
            former: Vec::new(),
            home: None,
        };
        let group = GroupSettings { iiop: Some(iiop), ..group(&["127.0.0.1:9".parse().unwrap()]) };
        let settings = Settings { max_memory: BUDGET, ..settings(listener(Protocol::Iiop), group) };
        let (engine, address) = start_with(settings);
        // A request of 64 MiB less one byte is announced, in GIOP 1.2 and big-endian.
        let announced = [b"GIOP\x01\x02\0\0".as_slice(), &((64 << 20) - 13_u32).to_be_bytes()].concat();
        let mut idle = Vec::new();
        for _ in 0..100 {
            idle.push(sends(address, &announced).await);
        }
        until("they are here", || engine.status().listeners[0].connections == 100).await;
        assert!(kept(&engine) <= 100 * 65_536 / 8, "announced bytes draw next to nothing: {}", kept(&engine));
        drop(idle);
        let senders: Vec<_> = (0..8)
            .map(|_| {
                let announced = announced.clone();
                tokio::spawn(async move {
                    let mut stream = sends(address, &announced).await;
                    let piece = vec![0; 64 * 1024];
                    for _ in 0..32 {
                        if stream.write_all(&piece).await.is_err() {
                            return None;
                        }
                    }
                    Some(stream)
                })
            })
            .collect();
        let mut held = Vec::new();
        for sender in senders {
            held.extend(sender.await.unwrap());
        }
        until("some are refused", || engine.status().memory.refused > 0).await;
        assert!(kept(&engine) <= BUDGET as u64);
        drop(held);
        until("all of it is returned", || kept(&engine) == 0).await;
    })
    .await;
}

#[tokio::test]
async fn streams_of_http2_draw_on_the_budget() {
    within(async {
        let (member, _) = second(100, echo).await;
        // One connection, with streams that may each have 128 KiB in transit.
        let settings =
            Settings { max_memory: 400 * 1024, ..settings(listener(Protocol::Http), to_second(&[member])) };
        let (engine, address) = start_with(settings);
        let (sender, _end) = client(address).await;
        assert_eq!(get(&sender, "/").await.unwrap().0.status(), StatusCode::OK);
        let begun = |sender: &Sender| {
            let mut sender = sender.clone();
            let request = Request::post("http://h/").body(()).unwrap();
            sender.send_request(request, false).unwrap()
        };
        let first = (begun(&sender), begun(&sender));
        let (refused, _out) = begun(&sender);
        let answer = refused.await.unwrap();
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answer.headers()["plimsoll-reason"], "memory");
        drop(first);
        until("streams return what they drew", || kept(&engine) <= 32 * 1024).await;
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_stays_does_not_hold_what_a_burst_beside_it_drew() {
    within(async {
        let (member, _) = second(100, echo).await;
        let (engine, address) = start_with(settings(listener(Protocol::Http), to_second(&[member])));
        let (sender, _end) = client(address).await;
        let mut begun: Vec<_> = (0..10)
            .map(|_| {
                let request = Request::post("http://h/").body(()).unwrap();
                sender.clone().send_request(request, false).unwrap()
            })
            .collect();
        let stays = begun.pop();
        until("all have drawn", || kept(&engine) >= 10 * 128 * 1024).await;
        drop(begun);
        let mut sender = sender;
        until("the burst is over", || status(&engine).members[0].in_flight <= 1).await;
        for _ in 0..3 {
            // The connection checks when bytes arrive.
            sender = sender.ready().await.unwrap();
            assert_eq!(get(&sender, "/").await.unwrap().0.status(), StatusCode::OK);
        }
        until("only what stays is drawn", || kept(&engine) <= 4 * 128 * 1024).await;
        drop(stays);
    })
    .await;
}

/// Starts a member that accepts connections and is silent; returns the number of its connections, too.
async fn silent() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(home()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            count.fetch_add(1, Relaxed);
            held.push(stream);
        }
    });
    (address, connections)
}

#[tokio::test]
async fn connections_to_members_leave_descriptors_for_health_checks() {
    const DESCRIPTORS: usize = 10;
    within(async {
        let (member, connections) = silent().await;
        let mut members = group(&[member]);
        members.retry.attempts = 0;
        members.spec.health = Some(HealthSpec { rise: 1, fall: 1 });
        members.probe = Some(ProbeSettings { kind: ProbeKind::Tcp, interval: 20 * MILLI, timeout: MINUTE });
        let settings =
            Settings { max_descriptors: DESCRIPTORS, ..settings(listener(Protocol::Http), members) };
        let (engine, address) = start_with(settings);
        until("the member is up", || status(&engine).members[0].state == MemberState::Up).await;
        let (sender, _end) = client(address).await;
        // Each stream takes a connection of its own to the member, which never answers. The client's is one
        // of the ten.
        let asked: Vec<_> = (0..40)
            .map(|_| {
                let sender = sender.clone();
                tokio::spawn(async move { get(&sender, "/").await.map(|(head, ..)| head.status().as_u16()) })
            })
            .collect();
        until("the rest is refused", || status(&engine).rejected["exhausted"] == 41 - DESCRIPTORS as u64)
            .await;
        let before = connections.load(Relaxed);
        until("health checks go on", || connections.load(Relaxed) > before + 5).await;
        let member = &status(&engine).members[0];
        assert_eq!(
            (member.state, member.failures),
            (MemberState::Up, 0),
            "nothing is found about the member"
        );
        asked.iter().for_each(tokio::task::JoinHandle::abort);
        until("the descriptors are free", || status(&engine).members[0].in_flight == 0).await;
        let again = sends(address, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        until("the next request goes to the member", || status(&engine).members[0].in_flight == 1).await;
        drop(again);
    })
    .await;
}
