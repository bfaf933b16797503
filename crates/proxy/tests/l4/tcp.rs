//! TCP streams: sharing, large transfers, half-close, retries, the wait queue, ends of every kind.

use std::io::ErrorKind;
use std::time::Instant;

use plimsoll_brain::hash;
use plimsoll_proxy::Protocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::rig::*;

#[tokio::test]
async fn sessions_are_shared() {
    within(async {
        let (one, other) = (Echo::start().await, Echo::start().await);
        let (engine, address) = start(listener(Protocol::Tcp), group(&[one.address, other.address]));
        let mut sessions = Vec::new();
        for number in 0..10 {
            let mut session = TcpStream::connect(address).await.unwrap();
            echoes(&mut session, &format!("session {number}")).await;
            sessions.push(session);
        }
        assert_eq!((one.sessions(), other.sessions()), (5, 5));
        let now = status_of(&engine, one.address);
        assert_eq!((now.in_flight, now.requests, now.connects), (5, 0, 5));
        drop(sessions);
        until("sessions are over", || status_of(&engine, one.address).in_flight == 0).await;
        let then = status_of(&engine, one.address);
        assert_eq!((then.requests, then.failures), (5, 0));
        assert_eq!((then.bytes_out, then.bytes_in), (45, 45));
        until("all is counted", || status(&engine).latency.count == 10).await;
        until("clients have gone", || engine.status().listeners[0].connections == 0).await;
    })
    .await;
}

#[tokio::test]
async fn much_is_carried_both_ways_and_ends_one_way_at_a_time() {
    within(async {
        let (one, other) = (Echo::start().await, Echo::start().await);
        let (engine, address) = start(listener(Protocol::Tcp), group(&[one.address, other.address]));
        let bytes: Vec<u8> = (0..64_usize << 20).map(|index| (index * 7 + index / 65_521) as u8).collect();
        let expected = hash(&bytes);
        let len = bytes.len();
        let carry = |bytes: Vec<u8>| async move {
            let (mut read, mut write) = TcpStream::connect(address).await.unwrap().into_split();
            let send = async move {
                write.write_all(&bytes).await.unwrap();
                write.shutdown().await.unwrap();
            };
            let mut got = Vec::with_capacity(len);
            tokio::join!(send, async { read.read_to_end(&mut got).await.unwrap() });
            assert_eq!((got.len(), hash(&got)), (len, expected));
        };
        tokio::join!(carry(bytes.clone()), carry(bytes));
        until("sessions are over", || status(&engine).latency.count == 2).await;
        for echo in [&one, &other] {
            let status = status_of(&engine, echo.address);
            assert_eq!((status.bytes_out, status.bytes_in), (len as u64, len as u64));
        }
    })
    .await;
}

#[tokio::test]
async fn a_member_that_refuses_costs_the_client_nothing() {
    within(async {
        let (down, echo) = (place(), Echo::start().await);
        let group = by(group(&[down, echo.address]), "first_available");
        let (engine, address) = start(listener(Protocol::Tcp), group);
        for _ in 0..5 {
            echoes(&mut TcpStream::connect(address).await.unwrap(), "hello").await;
        }
        assert_eq!(echo.sessions(), 5);
        let down = status_of(&engine, down);
        assert_eq!((down.requests, down.failures, down.connects), (5, 5, 5));
        assert_eq!(status(&engine).retries, 5);
    })
    .await;
}

#[tokio::test]
async fn retries_end_with_attempts_and_with_the_budget() {
    within(async {
        let echo = Echo::start().await;
        let members = [place(), place(), echo.address];
        for (attempts, budget, served) in [(2, 1.0, true), (1, 1.0, false), (0, 1.0, false), (2, 0.0, false)]
        {
            let mut group = by(group(&members), "first_available");
            group.retry.attempts = attempts;
            group.retry.budget = budget;
            group.retry.min_per_second = budget;
            let (engine, address) = start(listener(Protocol::Tcp), group);
            if served {
                echoes(&mut TcpStream::connect(address).await.unwrap(), "hello").await;
            } else {
                assert_reset(address).await;
                assert_eq!(status(&engine).rejected["connect_failed"], 1);
            }
        }
    })
    .await;
}

#[tokio::test]
async fn without_a_member_a_client_is_reset() {
    within(async {
        let (engine, address) = start(listener(Protocol::Tcp), group(&[]));
        assert_reset(address).await;
        assert_eq!(status(&engine).rejected["no_member"], 1);
    })
    .await;
}

#[tokio::test]
async fn sessions_beyond_the_limit_wait_their_turn() {
    within(async {
        let echo = Echo::start().await;
        let mut group = group(&[echo.address]);
        group.spec.members[0].limit = 1;
        (group.queue, group.queue_timeout) = (1, HOUR);
        let (engine, address) = start(listener(Protocol::Tcp), group.clone());
        let mut first = TcpStream::connect(address).await.unwrap();
        echoes(&mut first, "first").await;
        let mut second = TcpStream::connect(address).await.unwrap();
        second.write_all(b"second").await.unwrap();
        until("the second waits", || status(&engine).queued == 1).await;
        assert_reset(address).await;
        assert_eq!(status(&engine).rejected["queue_full"], 1);
        assert_eq!(echo.sessions(), 1);
        drop(first);
        let mut heard = [0; 6];
        second.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"second");
        assert_eq!(status(&engine).queued, 0);
        // Now with a shorter timeout than an hour, while the second still runs.
        group.queue_timeout = 200 * MILLI;
        engine.reload(settings(listener(Protocol::Tcp), group), Vec::new()).unwrap();
        let begun = Instant::now();
        assert_reset(address).await;
        assert!(begun.elapsed() >= 200 * MILLI, "{:?}", begun.elapsed());
        assert_eq!(status(&engine).rejected["queue_timeout"], 1);
    })
    .await;
}

#[tokio::test]
async fn an_idle_session_ends() {
    within(async {
        let echo = Echo::start().await;
        let mut listener = listener(Protocol::Tcp);
        let idle = 500 * MILLI;
        listener.timeouts.idle = idle;
        let (engine, address) = start(listener, group(&[echo.address]));
        let mut sessions = 1;
        let mut session = TcpStream::connect(address).await.unwrap();
        while !steadily(idle, async || is_echoed(&mut session, "still here").await).await {
            session = TcpStream::connect(address).await.unwrap();
            sessions += 1;
        }
        // Without further bytes, none may have arrived for longer.
        let mut quiet = TcpStream::connect(address).await.unwrap();
        let last = Instant::now();
        echoes(&mut quiet, "the last word").await;
        assert_eq!(quiet.read(&mut [0; 9]).await.unwrap(), 0);
        assert!(last.elapsed() >= idle, "{:?}", last.elapsed());
        drop(session);
        until("all are counted", || status_of(&engine, echo.address).requests == sessions + 1).await;
        assert_eq!(status_of(&engine, echo.address).failures, 0);
    })
    .await;
}

#[tokio::test]
async fn resets_are_passed_on_and_only_the_members_count_against_it() {
    within(async {
        let member = TcpListener::bind(home()).await.unwrap();
        let place = member.local_addr().unwrap();
        let (engine, address) = start(listener(Protocol::Tcp), group(&[place]));
        for member_resets in [true, false] {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(b"hello").await.unwrap();
            let mut session = member.accept().await.unwrap().0;
            session.read_exact(&mut [0; 5]).await.unwrap();
            let (breaks, mut learns) = if member_resets { (session, client) } else { (client, session) };
            breaks.set_zero_linger().unwrap();
            drop(breaks);
            let error = learns.read(&mut [0; 9]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
        until("both are counted", || status_of(&engine, place).requests == 2).await;
        assert_eq!(status_of(&engine, place).failures, 1);
    })
    .await;
}

#[tokio::test]
async fn sessions_outlive_the_drain_of_their_member() {
    within(async {
        let (one, other) = (Echo::start().await, Echo::start().await);
        let group = by(group(&[one.address, other.address]), "first_available");
        let (engine, address) = start(listener(Protocol::Tcp), group);
        let mut session = TcpStream::connect(address).await.unwrap();
        echoes(&mut session, "before").await;
        engine.drain(None, &one.address.to_string()).unwrap();
        echoes(&mut session, "after").await;
        echoes(&mut TcpStream::connect(address).await.unwrap(), "a new one").await;
        assert_eq!((one.sessions(), other.sessions()), (1, 1));
        assert_eq!(status_of(&engine, one.address).in_flight, 1);
    })
    .await;
}

#[tokio::test]
async fn stopping_lets_sessions_end_until_the_deadline() {
    within(async {
        for (ends, deadline) in [(true, HOUR), (false, SECOND)] {
            let echo = Echo::start().await;
            let mut settings = settings(listener(Protocol::Tcp), group(&[echo.address]));
            settings.drain_deadline = deadline;
            let (engine, address) = start_with(settings);
            let mut session = TcpStream::connect(address).await.unwrap();
            echoes(&mut session, "hello").await;
            assert!(listens(address));
            let begun = Instant::now();
            let stopping = tokio::spawn(async move { engine.stop().await });
            until("nobody listens any more", || !listens(address)).await;
            if ends {
                assert!(TcpStream::connect(address).await.is_err());
                echoes(&mut session, "still served").await;
                drop(session);
                assert_eq!(stopping.await.unwrap(), 0);
            } else {
                assert_eq!(stopping.await.unwrap(), 1);
                assert!(begun.elapsed() >= deadline, "{:?}", begun.elapsed());
                assert!(matches!(session.read(&mut [0; 9]).await, Ok(0) | Err(_)));
            }
        }
    })
    .await;
}
