//! Datagrams: flows that are bound, expire, move and are bounded.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use plimsoll_brain::{HealthSpec, OutlierSpec};
use plimsoll_proxy::{ListenerSettings, ProbeKind, ProbeSettings, Protocol};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::rig::*;

/// Starts a member that answers each datagram with its own address and the datagram.
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
        // A client that has gone does not matter.
        let _ = socket.send_to(&answer[..answer.len().min(65_507)], from).await;
    }
}

async fn client(address: SocketAddr) -> UdpSocket {
    let any = if address.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" };
    let socket = UdpSocket::bind(any).await.unwrap();
    socket.connect(address).await.unwrap();
    socket
}

/// Returns the member that answers.
async fn ask(client: &UdpSocket, text: &str) -> SocketAddr {
    client.send(text.as_bytes()).await.unwrap();
    let mut buffer = vec![0; 65_536];
    let len = client.recv(&mut buffer).await.unwrap();
    let answer = std::str::from_utf8(&buffer[..len]).unwrap();
    let (name, rest) = answer.split_once(' ').unwrap();
    assert_eq!(rest, text);
    name.parse().unwrap()
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
            let member = ask(&client, "first").await;
            flows.push((client, member));
        }
        assert_eq!(flows.iter().filter(|(_, member)| *member == one).count(), 5);
        for round in 0..3 {
            for (client, member) in &flows {
                assert_eq!(ask(client, &format!("round {round}")).await, *member);
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
            ask(&client, &"x".repeat(len)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn quiet_flows_end_and_busy_ones_do_not() {
    within(async {
        let member = parrot().await;
        while !a_quiet_one_ends_beside_a_busy_one(member).await {}
    })
    .await;
}

/// Returns `false` if the machine was suspended for too long to see it.
async fn a_quiet_one_ends_beside_a_busy_one(parrot: SocketAddr) -> bool {
    let (mut udp, idle) = (udp(), 500 * MILLI);
    udp.timeouts.idle = idle;
    let (engine, address) = start(udp, group(&[parrot]));
    let (busy, quiet) = (client(address).await, client(address).await);
    let asked = Instant::now();
    ask(&quiet, "once").await;
    let flows = || {
        let listener = engine.status().listeners.remove(0);
        (listener.accepted, listener.connections)
    };
    let over = || status_of(&engine, parrot).requests;
    let steady = steadily(idle, async || {
        ask(&busy, "again").await;
        assert!(over() == 0 || asked.elapsed() >= idle, "the quiet flow ended too soon");
        // A flow that ended would have started again.
        flows().0 == 2
    });
    if !steady.await {
        return false;
    }
    until("the quiet flow ends", || over() > 0).await;
    until("the busy flow ends, too", || flows() == (2, 0)).await;
    let member = status_of(&engine, parrot);
    assert_eq!((member.requests, member.failures, member.in_flight), (2, 0, 0));
    until("both are counted", || status(&engine).latency.count == 2).await;
    true
}

#[tokio::test]
async fn a_closed_port_is_a_failure_and_the_flow_moves_on() {
    within(async {
        let doomed = UdpSocket::bind(place()).await.unwrap();
        let (first, second) = (doomed.local_addr().unwrap(), parrot().await);
        let (engine, address) = start(udp(), by(group(&[first, second]), "first_available"));
        let client = client(address).await;
        let speaking = tokio::spawn(speak(doomed));
        assert_eq!(ask(&client, "hello").await, first);
        speaking.abort();
        let _ = speaking.await;
        // One datagram is lost before the kernel reports the error; the next ones arrive.
        client.send(b"lost").await.unwrap();
        until("the failure is counted", || status_of(&engine, first).failures == 1).await;
        assert_eq!(ask(&client, "moved").await, second);
        assert_eq!(ask(&client, "stays").await, second);
        assert_eq!(status_of(&engine, first).in_flight, 0);
        assert_eq!(engine.status().listeners[0].accepted, 1);
        // The only remaining member has failed: it is tried again.
        let lonely = place();
        let gone = UdpSocket::bind(lonely).await.unwrap();
        let (engine, address) = start(udp(), group(&[lonely]));
        let client = self::client(address).await;
        drop(gone);
        client.send(b"lost").await.unwrap();
        until("the failure is counted", || status_of(&engine, lonely).failures > 0).await;
        tokio::spawn(speak(UdpSocket::bind(lonely).await.unwrap()));
        assert_eq!(ask(&client, "back").await, lonely);
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
            interval: HOUR,
            deviations: 0.0,
            min_requests: 100,
            ejection: HOUR,
            max_ejection: HOUR,
            max_ejected: 0.5,
        });
        let (engine, address) = start(udp(), group);
        for count in 1..=3 {
            client(address).await.send(b"lost").await.unwrap();
            until("it is counted", || status_of(&engine, down).failures == count).await;
        }
        until("it is ejected", || status_of(&engine, down).state == plimsoll_brain::MemberState::Ejected)
            .await;
        assert_eq!(ask(&client(address).await, "hello").await, up);
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
            ask(&client, "in").await;
            flows.push(client);
        }
        let out = client(address).await;
        out.send(b"out").await.unwrap();
        until("one is refused", || engine.status().listeners[0].refused == 1).await;
        for client in &flows {
            assert_eq!(ask(client, "still in").await, member);
        }
        let listener = &engine.status().listeners[0];
        assert_eq!((listener.connections, listener.refused), (3, 1));
        assert_eq!(out.try_recv(&mut [0; 100]).unwrap_err().kind(), ErrorKind::WouldBlock);
    })
    .await;
}

/// Starts a member that answers only questions, with the sender's address: that of the flow's own socket.
async fn choosy() -> SocketAddr {
    let socket = UdpSocket::bind(place()).await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 100];
        while let Ok((len, from)) = socket.recv_from(&mut buffer).await {
            if buffer[..len].starts_with(b"question") {
                // A client that has gone does not matter.
                let _ = socket.send_to(format!("{from} question").as_bytes(), from).await;
            }
        }
    });
    address
}

#[tokio::test]
async fn a_flood_of_flows_that_are_not_answered_keeps_nobody_out() {
    within(async {
        let most = 60;
        let udp = ListenerSettings { max_flows: 60, ..udp() };
        let (engine, address) = start(udp, group(&[choosy().await]));
        let mut served = Vec::new();
        for _ in 0..5 {
            let client = client(address).await;
            let flow = ask(&client, "question").await;
            assert_eq!(ask(&client, "question").await, flow);
            served.push((client, flow));
        }
        let mut flood = Vec::new();
        for host in 1..=120 {
            let one = UdpSocket::bind((IpAddr::from([127, 77, 0, host]), 0)).await.unwrap();
            one.send_to(b"noise", address).await.unwrap();
            flood.push(one);
        }
        let accepted = || engine.status().listeners[0].accepted;
        until("the table is full", || accepted() >= most).await;
        for host in 1..=20 {
            let newcomer = UdpSocket::bind((IpAddr::from([127, 78, 0, host]), 0)).await.unwrap();
            newcomer.connect(address).await.unwrap();
            ask(&newcomer, "question").await;
        }
        for (client, flow) in &served {
            assert_eq!(ask(client, "question").await, *flow, "those who were served keep their flows");
        }
        until("what made room is gone", || engine.status().listeners[0].connections <= most).await;
        assert_eq!(engine.status().listeners[0].refused, 0);
    })
    .await;
}

#[tokio::test]
async fn what_is_never_answered_goes_on_with_the_same_member() {
    within(async {
        let members = [UdpSocket::bind(place()).await.unwrap(), UdpSocket::bind(place()).await.unwrap()];
        let addresses = members.each_ref().map(|member| member.local_addr().unwrap());
        let (engine, address) = start(udp(), by(group(&addresses), "rendezvous"));
        let client = client(address).await;
        let mut buffer = [0; 100];
        let mut heard = async |text: &str| {
            client.send(text.as_bytes()).await.unwrap();
            let [one, other] = &members;
            let mut other_buffer = [0; 100];
            let (place, len) = tokio::select! {
                len = one.recv(&mut buffer) => (0, len.unwrap()),
                len = other.recv(&mut other_buffer) => {
                    let len = len.unwrap();
                    buffer[..len].copy_from_slice(&other_buffer[..len]);
                    (1, len)
                }
            };
            assert_eq!(&buffer[..len], text.as_bytes());
            place
        };
        let first = heard("first line").await;
        let begun = Instant::now();
        until("the flow has ended", || engine.status().listeners[0].connections == 0).await;
        // bound: far from the minute that an answered flow lives
        assert!(begun.elapsed() < MINUTE, "{:?}", begun.elapsed());
        assert_eq!(heard("second line").await, first);
        assert_eq!(engine.status().listeners[0].accepted, 2);
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
        let (first, other) = (client(address).await, client(address).await);
        ask(&first, "in").await;
        other.send(b"too many").await.unwrap();
        until("it is counted", || status(&engine).rejected.get("queue_full") == Some(&1)).await;
        ask(&first, "still in").await;
        assert_eq!(engine.status().listeners[0].connections, 1);
        assert_eq!(other.try_recv(&mut [0; 100]).unwrap_err().kind(), ErrorKind::WouldBlock);
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
            // Connected: it receives only from the address that it sends to.
            let client = client(asked).await;
            ask(&client, "hello").await;
            ask(&client, "again").await;
            assert_eq!(engine.status().listeners[0].accepted, 1, "{bind} asked as {asked}");
        }
    })
    .await;
}

#[tokio::test]
async fn flows_follow_the_plan_but_stay_with_a_drained_member() {
    within(async {
        let (one, other) = (parrot().await, parrot().await);
        // Health checks by TCP on a port with the first member's number.
        let door = TcpListener::bind(one).await.unwrap();
        let mut group = by(group(&[one, other]), "first_available");
        group.spec.health = Some(HealthSpec { rise: 1, fall: 1 });
        group.probe = Some(ProbeSettings { kind: ProbeKind::Tcp, interval: 100 * MILLI, timeout: MINUTE });
        let other_door = TcpListener::bind(other).await.unwrap();
        let (engine, address) = start(udp(), group);
        until("both are up", || status(&engine).verdict.starts_with("2/2")).await;
        let socket = client(address).await;
        assert_eq!(ask(&socket, "hello").await, one);
        engine.drain(None, &one.to_string()).unwrap();
        assert_eq!(ask(&socket, "still here").await, one);
        assert_eq!(ask(&client(address).await, "a new one").await, other);
        engine.undrain(None, &one.to_string()).unwrap();
        assert_eq!(ask(&socket, "as before").await, one);
        drop(door);
        until("one is down", || status(&engine).verdict.starts_with("1/2")).await;
        assert_eq!(ask(&socket, "moved").await, other);
        let _door = TcpListener::bind(one).await.unwrap();
        until("both are up", || status(&engine).verdict.starts_with("2/2")).await;
        assert_eq!(ask(&socket, "no reason to move back").await, other);
        drop(other_door);
    })
    .await;
}

#[tokio::test]
async fn stopping_waits_for_answers_but_not_for_long() {
    within(async { while !an_answer_is_waited_for().await {} }).await;
}

/// Returns `false` if the machine was suspended for as long as the balancer waits for an answer.
async fn an_answer_is_waited_for() -> bool {
    let slow = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut settings = settings(udp(), group(&[slow.local_addr().unwrap()]));
    settings.drain_deadline = HOUR;
    let (engine, address) = start_with(settings);
    let (engine, socket) = (Arc::new(engine), client(address).await);
    let (asked, mut buffer) = (Instant::now(), [0; 100]);
    socket.send(b"question").await.unwrap();
    let (_, from) = slow.recv_from(&mut buffer).await.unwrap();
    let begun = Instant::now();
    let stopping = Arc::clone(&engine);
    let mut stopping = tokio::spawn(async move { stopping.stop().await });
    until("it stops", || engine.status().stopping).await;
    slow.send_to(b"answer", from).await.unwrap();
    let len = tokio::select! {
        biased;
        len = socket.recv(&mut buffer) => len.unwrap(),
        cut = &mut stopping => {
            assert_eq!(cut.unwrap(), 0);
            assert!(asked.elapsed() >= SECOND, "no answer was waited for: {:?}", asked.elapsed());
            return false;
        }
    };
    assert_eq!(&buffer[..len], b"answer");
    assert_eq!(stopping.await.unwrap(), 0);
    assert!(begun.elapsed() >= SECOND, "{:?}", begun.elapsed());
    true
}

/// Starts a client that sends and receives all the time.
async fn busy(address: SocketAddr) {
    let socket = client(address).await;
    ask(&socket, "hello").await;
    tokio::spawn(async move {
        let mut buffer = [0; 100];
        loop {
            // An error if no socket listens any more.
            let _ = socket.send(b"busy").await;
            let _ = timeout(50 * MILLI, socket.recv(&mut buffer)).await;
            // sleeps: paces the client
            tokio::time::sleep(10 * MILLI).await;
        }
    });
}

#[tokio::test]
async fn busy_flows_of_a_closed_listener_end_too_and_at_once_for_the_next() {
    within(async {
        let parrot = parrot().await;
        let udp = ListenerSettings { address: place(), ..udp() };
        let (engine, address) = start(udp.clone(), group(&[parrot]));
        busy(address).await;
        let name = address.to_string();
        let open = || engine.status().listeners[0].connections;
        // By themselves.
        let by_itself = loop {
            let begun = Instant::now();
            assert!(engine.close_listener(&name).unwrap());
            until("it is free", || std::net::UdpSocket::bind(address).is_ok()).await;
            let took = begun.elapsed();
            assert_eq!(open(), 0);
            if took >= 3 * SECOND {
                break took;
            }
            // The client was suspended for a second, and its flow was considered idle.
            assert!(engine.open_listener(&name).unwrap());
            until("the busy one is back", || open() == 1).await;
        };
        for round in 1..=2 {
            // Opened again: the flow begins anew, where clients are admitted.
            let begun = Instant::now();
            assert!(engine.open_listener(&name).unwrap(), "round {round}");
            // bound: half of the time that it takes by itself, measured above
            assert!(begun.elapsed() < by_itself / 2, "{:?}", begun.elapsed());
            ask(&client(address).await, "hello").await;
            until("the busy one is back", || open() == 2).await;
            assert!(engine.close_listener(&name).unwrap());
        }
        // By a reload without the listener, and one with it.
        assert!(engine.open_listener(&name).unwrap());
        until("the busy one is back", || open() > 0).await;
        let mut none = settings(udp.clone(), group(&[parrot]));
        none.listeners.clear();
        engine.reload(none, Vec::new()).unwrap();
        let begun = Instant::now();
        engine.reload(settings(udp, group(&[parrot])), Vec::new()).unwrap();
        // bound: half of the time that it takes by itself, measured above
        assert!(begun.elapsed() < by_itself / 2, "{:?}", begun.elapsed());
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
            ask(&flow, "hello").await;
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
        ask(&client(address).await, "nor they one another").await;
    })
    .await;
}
