//! The end of HTTP/2 connections: not before the bytes in transit have arrived.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use bytes::Bytes;
use h2::server;
use http::{Request, Response, StatusCode};
use plimsoll_proxy::{
    ClientTimeouts, GroupSettings, ListenerSettings, MemberTimeouts, Protocol, RetrySettings, Settings,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::frames::*;
use crate::rig::{HOUR, MILLI, SECOND, home, listener, settings, start, start_with, until, within};
use crate::second::*;

#[tokio::test]
async fn a_client_that_reads_slowly_gets_all_of_it() {
    const ALL: usize = 3 << 20;
    within(async {
        let (member, _) = second(100, |_, mut respond: server::SendResponse<Bytes>| async move {
            let mut stream = respond.send_response(Response::new(()), false).unwrap();
            let _ = send_all(&mut stream, Bytes::from(vec![b'x'; ALL]), true).await;
        })
        .await;
        // The timeout is far shorter than the time that the client takes to read all.
        let timeouts = ClientTimeouts { idle: SECOND, ..listener(Protocol::Http).timeouts };
        let hasty = ListenerSettings { timeouts, ..listener(Protocol::Http) };
        let (_engine, address) = start(hasty, to_second(&[member]));
        let mut client = TcpStream::connect(address).await.unwrap();
        // All of it fits into its windows and into the kernel's buffers: for the balancer it is complete at
        // once. The client's bytes come in one piece: it is never idle before that.
        let room = (1_u32 << 30).to_be_bytes();
        let window = frame(SETTINGS, 0, 0, &[&[0, 4], &room[..]].concat());
        let asks = frame(HEADERS, END_HEADERS | END_STREAM, 1, HEAD);
        let said = [PREFACE, &window, &frame(WINDOW_UPDATE, 0, 0, &room), &asks].concat();
        client.write_all(&said).await.unwrap();
        let (mut came, mut paused, mut ended) = (0, 0, false);
        while let Some((kind, flags, _, payload)) = next(&mut client).await {
            if kind != DATA {
                continue;
            }
            came += payload.len();
            ended |= flags & END_STREAM != 0;
            if came - paused >= 128 << 10 {
                paused = came;
                let more = u32::try_from(payload.len()).unwrap().to_be_bytes();
                // A closed connection accepts no update.
                let _ = client.write_all(&frame(WINDOW_UPDATE, 0, 0, &more)).await;
                // sleeps: paces the client
                tokio::time::sleep(200 * MILLI).await;
            }
        }
        assert_eq!((came, ended), (ALL, true));
    })
    .await;
}

#[tokio::test]
async fn what_a_member_did_not_take_any_more_is_asked_again_of_the_same() {
    within(async {
        // Its first connection accepts one request, however many are on it.
        let (member, _) = raw_member(|number, stream| match (number, stream) {
            (1, 1) => ([frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]), ok(1)].concat(), true),
            (1, _) => (Vec::new(), true),
            _ => (ok(stream), true),
        })
        .await;
        let group = to_second(&[member]);
        let (_engine, address) =
            http(GroupSettings { retry: RetrySettings { attempts: 0, ..group.retry }, ..group });
        let (sender, _end) = client(address).await;
        let asked: Vec<_> = (0..3)
            .map(|_| {
                let sender = sender.clone();
                tokio::spawn(async move { get(&sender, "/").await.unwrap().0.status() })
            })
            .collect();
        for one in asked {
            assert_eq!(one.await.unwrap(), StatusCode::OK);
        }
    })
    .await;
}

/// Starts a member that sends its settings and GOAWAY at once on its first `leaving` connections, like one
/// that shuts down or is at its connection limit, and then responds. Returns the number of its connections,
/// too.
async fn leaving_member(leaving: usize) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(home()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let leaves = count.fetch_add(1, Relaxed) < leaving;
            let goaway = if leaves { frame(GOAWAY, 0, 0, &[0; 8]) } else { Vec::new() };
            let _ = stream.write_all(&[frame(SETTINGS, 0, 0, &[]), goaway].concat()).await;
            tokio::spawn(async move {
                let _ = stream.read_exact(&mut [0; 24]).await;
                while let Some((kind, _, id, _)) = next(&mut stream).await {
                    if kind == HEADERS && !leaves {
                        let _ = stream.write_all(&ok(id)).await;
                    }
                }
            });
        }
    });
    (address, connections)
}

/// The process that stops still accepts connections; the next one serves the request.
#[tokio::test]
async fn a_post_finds_the_next_process_of_its_only_member() {
    within(async {
        let (member, connections) = leaving_member(3).await;
        let group = to_second(&[member]);
        let (_engine, address) =
            http(GroupSettings { retry: RetrySettings { attempts: 0, ..group.retry }, ..group });
        let (sender, _end) = client(address).await;
        let request = Request::post("http://web.example/").body(()).unwrap();
        let (response, _) = sender.ready().await.unwrap().send_request(request, true).unwrap();
        assert_eq!(response.await.unwrap().status(), StatusCode::OK);
        assert_eq!(connections.load(Relaxed), 4);
    })
    .await;
}

/// A client that connected before the process stopped gets a response to its first request, and GOAWAY after
/// it.
#[tokio::test]
async fn the_first_request_of_a_connection_is_served_while_the_process_stops() {
    within(async { while !first_request_is_served().await {} }).await;
}

/// Returns `false` if the machine was suspended for so long that the process waited no more.
async fn first_request_is_served() -> bool {
    let (member, _) = second(100, echo).await;
    let mut settings = settings(listener(Protocol::Http), to_second(&[member]));
    settings.drain_deadline = HOUR;
    let (engine, address) = start_with(settings);
    let mut client = raw_client(address).await;
    while !matches!(next(&mut client).await, Some((SETTINGS, ..))) {}
    let begun = Instant::now();
    let stopping = tokio::spawn(async move { engine.stop().await });
    until("it accepts no connections", || std::net::TcpStream::connect(address).is_err()).await;
    let mut before = Vec::new();
    for _ in 0..10 {
        // sleeps: each thread has the order to stop by then
        tokio::time::sleep(10 * MILLI).await;
        client.write_all(&frame(PING, 0, 0, &[0; 8])).await.unwrap();
        loop {
            match next(&mut client).await {
                Some((PING, ..)) => break,
                Some((kind, ..)) => before.push(kind),
                None => panic!("the connection ended before its first request"),
            }
        }
    }
    // bound: the time for which the process waits for a first request; a longer time decides nothing
    if begun.elapsed() > SECOND * 4 / 5 {
        return false;
    }
    assert!(!before.contains(&GOAWAY), "{before:?}");
    client.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 1, HEAD)).await.unwrap();
    while !matches!(next(&mut client).await.unwrap(), (HEADERS, _, 1, _)) {}
    drop(client);
    assert_eq!(stopping.await.unwrap(), 0);
    true
}

#[tokio::test]
async fn a_member_that_takes_nothing_costs_few_connections_for_each_request() {
    const REQUESTS: usize = 20;
    within(async {
        let (leaving, connections) = leaving_member(usize::MAX).await;
        let group = to_second(&[leaving]);
        let retry = RetrySettings { attempts: 2, budget: 1.0, ..group.retry };
        let (engine, address) = http(GroupSettings { retry, ..group });
        let (sender, _end) = client(address).await;
        let asked: Vec<_> = (0..REQUESTS)
            .map(|_| {
                let sender = sender.clone();
                tokio::spawn(async move { get(&sender, "/").await.unwrap().0.status() })
            })
            .collect();
        for one in asked {
            assert_eq!(one.await.unwrap(), StatusCode::BAD_GATEWAY);
        }
        let made = connections.load(Relaxed);
        assert!((1..=4 * REQUESTS).contains(&made), "{made} connections for {REQUESTS} requests");
        // Beside a member that accepts requests, clients notice nothing.
        let (healthy, _) = second(100, echo).await;
        let group = to_second(&[leaving, healthy]);
        let retry = RetrySettings { attempts: 2, budget: 1.0, ..group.retry };
        let both = settings(listener(Protocol::Http), GroupSettings { retry, ..group });
        engine.reload(both, Vec::new()).unwrap();
        for _ in 0..10 {
            assert_eq!(get(&sender, "/").await.unwrap().0.status(), StatusCode::OK);
        }
    })
    .await;
}

#[tokio::test]
async fn connections_to_a_member_that_reads_nothing_end() {
    within(async {
        let listener = TcpListener::bind(home()).await.unwrap();
        let member = listener.local_addr().unwrap();
        let accepted = tokio::spawn(async move {
            // It answers one request, announces unlimited windows, and reads nothing more: all buffers on the
            // way fill up.
            let (mut stream, _) = listener.accept().await.unwrap();
            let window = [&[0, 4][..], &0x7fff_ffff_u32.to_be_bytes()].concat();
            let room = frame(WINDOW_UPDATE, 0, 0, &0x7fff_0000_u32.to_be_bytes());
            stream.write_all(&[frame(SETTINGS, 0, 0, &window), room].concat()).await.unwrap();
            stream.read_exact(&mut [0; 24]).await.unwrap();
            loop {
                let (kind, _, id, _) = next(&mut stream).await.unwrap();
                if kind == HEADERS {
                    stream.write_all(&ok(id)).await.unwrap();
                    return stream;
                }
            }
        });
        let group = to_second(&[member]);
        let retry = RetrySettings { attempts: 0, ..group.retry };
        let mut group = GroupSettings { retry, ..group };
        // Two threads would have connections of their own.
        let single = |group: &GroupSettings| {
            let settings = settings(crate::rig::listener(Protocol::Http), group.clone());
            Settings { threads: 1, ..settings }
        };
        let (engine, address) = start_with(single(&group));
        let (sender, _end) = client(address).await;
        assert_eq!(get(&sender, "/").await.unwrap().0.status(), StatusCode::OK);
        // The connection exists: no delay is taken for a member that does not answer.
        let timeouts = MemberTimeouts { connect: SECOND / 2, per_try: SECOND, ..group.timeouts };
        group.timeouts = timeouts;
        engine.reload(single(&group), Vec::new()).unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        let head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000000000\r\n\r\n";
        client.write_all(head.as_bytes()).await.unwrap();
        let (mut input, mut output) = client.into_split();
        let upload = tokio::spawn(async move { while output.write_all(&[b'x'; 1 << 16]).await.is_ok() {} });
        let mut answer = [0; 12];
        input.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 504");
        let held = accepted.await.unwrap();
        // Reading would consume the bytes in transit before the end, and so free the way: it only peeks.
        until("the member is told", || held.take_error().unwrap().is_some()).await;
        upload.abort();
    })
    .await;
}
