//! Datagrams: flows that stick, expire, move and are bounded.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use plimsoll_brain::{HealthSpec, OutlierSpec};
use plimsoll_proxy::{ListenerSettings, ProbeKind, ProbeSettings, Protocol};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::rig::*;

/// A member that answers each datagram with its own address and what it got.
async fn parrot() -> SocketAddr {
    let address = place();
    tokio::spawn(speak(UdpSocket::bind(address).await.unwrap()));
    address
}

async fn speak(socket: UdpSocket) {
    let name = socket.local_addr().unwrap().to_string();
    let mut buffer = vec![0; 65_536];
    while let Ok((len, from)) = socket.recv_from(&mut buffer).await {
        let answer = [name.as_bytes(), b" ", &buffer[..len]].concat();
        // A client that is gone does not matter.
        let _ = socket.send_to(&answer[..answer.len().min(65_507)], from).await;
    }
}

async fn client(address: SocketAddr) -> UdpSocket {
    let any = if address.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" };
    let socket = UdpSocket::bind(any).await.unwrap();
    socket.connect(address).await.unwrap();
    socket
}

/// The member that answers, or `None` if none does.
async fn ask(client: &UdpSocket, text: &str) -> Option<SocketAddr> {
    client.send(text.as_bytes()).await.unwrap();
    let mut buffer = vec![0; 65_536];
    let len = timeout(500 * MILLI, client.recv(&mut buffer)).await.ok()?.unwrap();
    let answer = std::str::from_utf8(&buffer[..len]).unwrap();
    let (name, rest) = answer.split_once(' ').unwrap();
    assert_eq!(rest, text);
    Some(name.parse().unwrap())
}

fn udp() -> ListenerSettings {
    listener(Protocol::Udp)
}

#[tokio::test]
async fn flows_stick_and_are_shared_by_load() {
    within(async {
        let (one, other) = (parrot().await, parrot().await);
        let (engine, address) = start(udp(), group(&[one, other]));
        let mut flows = Vec::new();
        for _ in 0..10 {
            let client = client(address).await;
            let member = ask(&client, "first").await.unwrap();
            flows.push((client, member));
        }
        assert_eq!(flows.iter().filter(|(_, member)| *member == one).count(), 5);
        for round in 0..3 {
            for (client, member) in &flows {
                assert_eq!(ask(client, &format!("round {round}")).await, Some(*member));
            }
        }
        assert_eq!(status_of(&engine, one).in_flight, 5);
        let listener = &engine.status().listeners[0];
        assert_eq!((listener.connections, listener.accepted, listener.refused), (10, 10, 0));
        assert_eq!(status_of(&engine, one).bytes_out, 5 * (5 + 3 * 7));
    })
    .await;
}

#[tokio::test]
async fn datagrams_of_every_size_keep_their_bounds() {
    within(async {
        let (_engine, address) = start(udp(), group(&[parrot().await]));
        let client = client(address).await;
        for len in [0, 1, 1472, 9000, 65_000, 0, 3] {
            assert!(ask(&client, &"x".repeat(len)).await.is_some(), "{len} bytes");
        }
    })
    .await;
}

#[tokio::test]
async fn quiet_flows_end_and_busy_ones_do_not() {
    within(async {
        let member = parrot().await;
        let mut udp = udp();
        udp.timeouts.idle = 500 * MILLI;
        let (engine, address) = start(udp, group(&[member]));
        let (busy, quiet) = (client(address).await, client(address).await);
        ask(&quiet, "once").await.unwrap();
        let begun = Instant::now();
        let open = || engine.status().listeners[0].connections;
        let mut both = true;
        while open() != 1 || begun.elapsed() < 1200 * MILLI {
            ask(&busy, "again").await.unwrap();
            both &= open() == 2 || begun.elapsed() > 450 * MILLI;
            assert!(open() >= 1, "the busy flow ended");
            tokio::time::sleep(50 * MILLI).await;
        }
        assert!(both, "the quiet flow ended too soon");
        until("the busy flow ends, too", || open() == 0).await;
        let member = status_of(&engine, member);
        assert_eq!((member.requests, member.failures, member.in_flight), (2, 0, 0));
        assert_eq!(status(&engine).latency.count, 2);
    })
    .await;
}

#[tokio::test]
async fn a_closed_port_is_a_failure_and_the_flow_moves_on() {
    within(async {
        let doomed = UdpSocket::bind(place()).await.unwrap();
        let (first, second) = (doomed.local_addr().unwrap(), parrot().await);
        let (engine, address) = start(udp(), by(group(&[first, second]), "first_available"));
        let client = client(address).await;
        let speaking = tokio::spawn(speak(doomed));
        assert_eq!(ask(&client, "hello").await, Some(first));
        speaking.abort();
        let _ = speaking.await;
        // One is lost before the kernel tells; the next ones arrive.
        client.send(b"lost").await.unwrap();
        until("the failure is counted", || status_of(&engine, first).failures == 1).await;
        assert_eq!(ask(&client, "moved").await, Some(second));
        assert_eq!(ask(&client, "stays").await, Some(second));
        assert_eq!(status_of(&engine, first).in_flight, 0);
        assert_eq!(engine.status().listeners[0].accepted, 1);
        // The only one left has failed: it is tried again.
        let lonely = place();
        let gone = UdpSocket::bind(lonely).await.unwrap();
        let (engine, address) = start(udp(), group(&[lonely]));
        let client = self::client(address).await;
        drop(gone);
        client.send(b"lost").await.unwrap();
        until("the failure is counted", || status_of(&engine, lonely).failures > 0).await;
        tokio::spawn(speak(UdpSocket::bind(lonely).await.unwrap()));
        assert_eq!(ask(&client, "back").await, Some(lonely));
    })
    .await;
}

#[tokio::test]
async fn closed_ports_eject_a_member() {
    within(async {
        let (down, up) = (place(), parrot().await);
        let mut group = by(group(&[down, up]), "first_available");
        group.spec.outlier = Some(OutlierSpec {
            false_alarm: 0.0,
            consecutive: 3,
            interval: 10 * SECOND,
            deviations: 0.0,
            min_requests: 100,
            ejection: 60 * SECOND,
            max_ejection: 60 * SECOND,
            max_ejected: 0.5,
        });
        let (engine, address) = start(udp(), group);
        for count in 1..=3 {
            client(address).await.send(b"lost").await.unwrap();
            until("it is counted", || status_of(&engine, down).failures == count).await;
        }
        until("it is ejected", || status_of(&engine, down).state == plimsoll_brain::State::Ejected).await;
        assert_eq!(ask(&client(address).await, "hello").await, Some(up));
        assert_eq!(status_of(&engine, down).failures, 3);
    })
    .await;
}

#[tokio::test]
async fn a_full_table_refuses_newcomers_only() {
    within(async {
        let member = parrot().await;
        let udp = ListenerSettings { max_flows: 3, ..udp() };
        let settings = plimsoll_proxy::Settings { threads: 1, ..settings(udp, group(&[member])) };
        let (engine, address) = start_with(settings);
        let mut flows = Vec::new();
        for _ in 0..3 {
            let client = client(address).await;
            ask(&client, "in").await.unwrap();
            flows.push(client);
        }
        assert_eq!(ask(&client(address).await, "out").await, None);
        for client in &flows {
            assert_eq!(ask(client, "still in").await, Some(member));
        }
        let listener = &engine.status().listeners[0];
        assert_eq!((listener.connections, listener.refused), (3, 1));
    })
    .await;
}

#[tokio::test]
async fn without_a_member_datagrams_are_dropped_and_counted() {
    within(async {
        let (engine, address) = start(udp(), group(&[]));
        let socket = client(address).await;
        socket.send(b"one").await.unwrap();
        socket.send(b"two").await.unwrap();
        until("both are counted", || status(&engine).rejected.get("no_member") == Some(&2)).await;
        let mut group = group(&[parrot().await]);
        group.spec.members[0].limit = 1;
        let (engine, address) = start(udp(), group);
        assert!(ask(&client(address).await, "in").await.is_some());
        assert!(ask(&client(address).await, "too many").await.is_none());
        assert_eq!(status(&engine).rejected["queue_full"], 1);
        assert_eq!(engine.status().listeners[0].connections, 1);
    })
    .await;
}

#[tokio::test]
async fn answers_come_from_the_address_that_was_asked() {
    within(async {
        for (bind, asked) in [("0.0.0.0:0", "127.0.0.3"), ("[::]:0", "::1"), ("[::]:0", "127.0.0.3")] {
            let udp = ListenerSettings { address: bind.parse().unwrap(), ..udp() };
            let (engine, address) = start(udp, group(&[parrot().await]));
            let asked = SocketAddr::new(asked.parse::<IpAddr>().unwrap(), address.port());
            // Connected: it hears nobody but whom it asked.
            let client = client(asked).await;
            assert!(ask(&client, "hello").await.is_some(), "{bind} asked as {asked}");
            assert!(ask(&client, "again").await.is_some(), "{bind} asked as {asked}");
            assert_eq!(engine.status().listeners[0].accepted, 1);
        }
    })
    .await;
}

#[tokio::test]
async fn flows_follow_the_plan_but_stay_with_a_drained_member() {
    within(async {
        let (one, other) = (parrot().await, parrot().await);
        // Health checks by TCP on a port of the first member's number.
        let door = TcpListener::bind(one).await.unwrap();
        let mut group = by(group(&[one, other]), "first_available");
        group.spec.health = Some(HealthSpec { rise: 1, fall: 1 });
        group.probe = Some(ProbeSettings { kind: ProbeKind::Tcp, interval: 100 * MILLI, timeout: SECOND });
        let other_door = TcpListener::bind(other).await.unwrap();
        let (engine, address) = start(udp(), group);
        until("both are up", || status(&engine).verdict.starts_with("2/2")).await;
        let socket = client(address).await;
        assert_eq!(ask(&socket, "hello").await, Some(one));
        engine.drain(None, &one.to_string()).unwrap();
        assert_eq!(ask(&socket, "still here").await, Some(one));
        assert_eq!(ask(&client(address).await, "a new one").await, Some(other));
        engine.undrain(None, &one.to_string()).unwrap();
        assert_eq!(ask(&socket, "as before").await, Some(one));
        drop(door);
        until("one is down", || status(&engine).verdict.starts_with("1/2")).await;
        assert_eq!(ask(&socket, "moved").await, Some(other));
        let _door = TcpListener::bind(one).await.unwrap();
        until("both are up", || status(&engine).verdict.starts_with("2/2")).await;
        assert_eq!(ask(&socket, "no reason to move back").await, Some(other));
        drop(other_door);
    })
    .await;
}

#[tokio::test]
async fn stopping_waits_for_answers_but_not_for_long() {
    within(async {
        let slow = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut settings = settings(udp(), group(&[slow.local_addr().unwrap()]));
        settings.drain_deadline = 15 * SECOND;
        let (engine, address) = start_with(settings);
        let socket = client(address).await;
        socket.send(b"question").await.unwrap();
        let mut buffer = [0; 100];
        let (_, from) = slow.recv_from(&mut buffer).await.unwrap();
        let begun = Instant::now();
        let stopping = tokio::spawn(async move { engine.stop().await });
        tokio::time::sleep(300 * MILLI).await;
        slow.send_to(b"answer", from).await.unwrap();
        let len = timeout(5 * SECOND, socket.recv(&mut buffer)).await.unwrap().unwrap();
        assert_eq!(&buffer[..len], b"answer");
        assert_eq!(stopping.await.unwrap(), 0);
        assert!((SECOND..10 * SECOND).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    })
    .await;
}

/// A client that sends and hears all the time.
async fn busy(address: SocketAddr) -> tokio::task::JoinHandle<()> {
    let socket = client(address).await;
    assert!(ask(&socket, "hello").await.is_some());
    tokio::spawn(async move {
        let mut buffer = [0; 100];
        loop {
            // Refused where nobody listens any more.
            let _ = socket.send(b"busy").await;
            let _ = timeout(50 * MILLI, socket.recv(&mut buffer)).await;
            tokio::time::sleep(10 * MILLI).await;
        }
    })
}

#[tokio::test]
async fn busy_flows_of_a_closed_listener_end_too_and_at_once_for_the_next() {
    within(async {
        let parrot = parrot().await;
        let udp = ListenerSettings { address: place(), ..udp() };
        let (engine, address) = start(udp.clone(), group(&[parrot]));
        let _busy = busy(address).await;
        let name = address.to_string();
        let open = || engine.status().listeners[0].connections;
        // By themselves.
        assert!(engine.close_listener(&name).unwrap());
        let begun = Instant::now();
        until("it is free", || std::net::UdpSocket::bind(address).is_ok()).await;
        assert!((3 * SECOND..9 * SECOND).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        assert_eq!(open(), 0);
        for round in 1..=2 {
            // Opened again: the flow begins anew, where clients are let in.
            let begun = Instant::now();
            assert!(engine.open_listener(&name).unwrap(), "round {round}");
            assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
            assert!(ask(&client(address).await, "hello").await.is_some());
            until("the busy one is back", || open() == 2).await;
            assert!(engine.close_listener(&name).unwrap());
        }
        // By a reload that has it no more, and one that has it again.
        assert!(engine.open_listener(&name).unwrap());
        until("the busy one is back", || open() > 0).await;
        let mut none = settings(udp.clone(), group(&[parrot]));
        none.listeners.clear();
        engine.reload(none, Vec::new()).unwrap();
        let begun = Instant::now();
        engine.reload(settings(udp, group(&[parrot])), Vec::new()).unwrap();
        assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
        until("the busy one is back", || open() == 1).await;
    })
    .await;
}

#[tokio::test]
async fn flows_keep_no_connection_out() {
    within(async {
        let (parrot, echo) = (parrot().await, Echo::start().await);
        let mut settings = settings(udp(), group(&[parrot]));
        settings.max_connections = 1;
        let mut tcp = group(&[echo.address]);
        tcp.spec.name = "tcp".into();
        settings.listeners.push(ListenerSettings { group: "tcp".into(), ..listener(Protocol::Tcp) });
        settings.groups.push(tcp.into());
        let (engine, address) = start_with(settings);
        let mut flows = Vec::new();
        for _ in 0..5 {
            let flow = client(address).await;
            assert!(ask(&flow, "hello").await.is_some());
            flows.push(flow);
        }
        let mut session = TcpStream::connect(engine.addresses()[1]).await.unwrap();
        echoes(&mut session, "let in").await;
        let status = engine.status();
        let counts = |place: usize| {
            let listener = &status.listeners[place];
            (listener.connections, listener.refused)
        };
        assert_eq!((counts(0), counts(1)), ((5, 0), (1, 0)));
        assert!(ask(&client(address).await, "nor they one another").await.is_some());
    })
    .await;
}
