//! Bindings of listeners: sessions that keep their member, leave it under alert, and draw only once for each
//! alert.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use plimsoll_brain::EventKind;
use plimsoll_brain::status::BindingStatus;
use plimsoll_proxy::{BindingMode, Engine, GroupSettings, ListenerSettings, Protocol, RebindMode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

mod sizes;

use crate::rig::*;
use crate::second;

fn bound(protocol: Protocol, binding: BindingMode) -> ListenerSettings {
    ListenerSettings { binding, ..listener(protocol) }
}

/// Starts a member that answers each request with its address.
async fn server() -> SocketAddr {
    server_that(Arc::default()).await
}

/// Starts a member that closes a connection with each response while it `closes`.
async fn server_that(closes: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind(home()).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let closes = Arc::clone(&closes);
            tokio::spawn(async move {
                while head(&mut stream).await.is_some() {
                    let (body, closes) = (address.to_string(), closes.load(SeqCst));
                    let last = if closes { "Connection: close\r\n" } else { "" };
                    let answer =
                        format!("HTTP/1.1 200 OK\r\n{last}Content-Length: {}\r\n\r\n{body}", body.len());
                    if stream.write_all(answer.as_bytes()).await.is_err() || closes {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// Reads up to the empty line; `None` at the end.
async fn head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8(head).ok()
}

/// A client's connection.
struct Client(TcpStream);

impl Client {
    async fn new(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.unwrap())
    }

    /// Returns the head of the response to a request, and its body.
    async fn ask(&mut self, path: &str) -> (String, String) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        self.0.write_all(request.as_bytes()).await.unwrap();
        let head = head(&mut self.0).await.expect("an answer");
        let length = head.split("Content-Length: ").nth(1).and_then(|rest| rest.split('\r').next());
        let mut body = vec![0; length.unwrap().parse().unwrap()];
        self.0.read_exact(&mut body).await.unwrap();
        (head, String::from_utf8(body).unwrap())
    }

    /// Returns the member that answers.
    async fn who(&mut self) -> SocketAddr {
        self.ask("/").await.1.parse().unwrap()
    }
}

async fn clients(address: SocketAddr, count: usize) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(Client::new(address).await);
    }
    clients
}

/// Returns the number of clients that a member answers. If a quarter of 60 is drawn, none leaves once in 3 *
/// 10^7 runs, and more than 45 leave once in 10^16.
async fn served(clients: &mut [Client], by: SocketAddr) -> usize {
    let mut served = 0;
    for client in clients {
        served += usize::from(client.who().await == by);
    }
    served
}

/// Returns a group whose strategy chooses the first member for all.
fn first(members: &[SocketAddr]) -> GroupSettings {
    by(group(members), "first_available")
}

/// Reports loads of a busy member and an idle one that put the busy one under alert: a quarter of its
/// sessions should leave.
fn alert(engine: &Engine, busy: SocketAddr, idle: SocketAddr) {
    tell(engine, (busy, 0.8), (idle, 0.4));
    assert!(engine.events().iter().any(|stamped| stamped.event.kind == EventKind::AlertRaised));
}

/// Reports loads as a monitor does.
fn tell(engine: &Engine, busy: (SocketAddr, f64), idle: (SocketAddr, f64)) {
    // Loads are compared once two reports agree that are a second apart. No others follow, so that the alert
    // lasts.
    for age in [3600 * SECOND, Duration::ZERO] {
        for (member, load) in [idle, busy] {
            engine.record_load("g", &member.to_string(), load, age, false);
        }
        if !age.is_zero() {
            // sleeps: the time between two reports
            std::thread::sleep(SECOND);
        }
    }
}

fn binding(engine: &Engine, member: SocketAddr) -> BindingStatus {
    let bindings = engine.status().listeners.remove(0).bindings;
    bindings.into_iter().find(|binding| binding.member == member.to_string()).unwrap()
}

#[tokio::test]
async fn a_connection_keeps_its_member_while_that_may_be_used() {
    within(async {
        let (one, other) = (server().await, server().await);
        let listener = bound(Protocol::Http, BindingMode::PerSession);
        let (engine, address) = start(listener, by(group(&[one, other]), "round_robin"));
        let mut clients = clients(address, 8).await;
        let before = served(&mut clients, one).await;
        assert!((1..8).contains(&before), "{before}");
        for _ in 0..5 {
            assert_eq!(served(&mut clients, one).await, before);
        }
        assert_eq!(
            (binding(&engine, one).bound, binding(&engine, other).bound),
            (before as u64, 8 - before as u64)
        );
        assert_eq!(engine.status().listeners[0].binding, "per_session");

        // Those of a drained member are bound anew, and keep their new member when it comes back.
        engine.drain(None, &one.to_string()).unwrap();
        assert_eq!(served(&mut clients, other).await, 8);
        engine.undrain(None, &one.to_string()).unwrap();
        assert_eq!(served(&mut clients, other).await, 8);
        assert_eq!((binding(&engine, one).bound, binding(&engine, other).bound), (0, 8));
        // No member was under alert.
        assert_eq!((binding(&engine, one).moved, status_of(&engine, one).moved), (0, 0));
        drop(clients);
        until("nobody is bound", || binding(&engine, other).bound == 0).await;
    })
    .await;
}

#[tokio::test]
async fn a_connection_whose_member_fails_or_is_full_is_bound_anew() {
    within(async {
        let doomed = TcpListener::bind(place()).await.unwrap();
        let (one, other) = (doomed.local_addr().unwrap(), server().await);
        let serving = tokio::spawn(async move {
            let (mut stream, _) = doomed.accept().await.unwrap();
            drop(doomed);
            head(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none").await.unwrap();
        });
        let listener = bound(Protocol::Http, BindingMode::PerSession);
        let (engine, address) = start(listener, first(&[one, other]));
        let mut client = Client::new(address).await;
        assert_eq!(client.ask("/").await.1, "one");
        serving.await.unwrap();
        // Its connection is closed, and so is its port: no failure for the client.
        assert_eq!(client.who().await, other);
        assert_eq!(binding(&engine, other).bound, 1);

        // Full: there is room for one request, which another connection uses.
        let (slow, spare) = (TcpListener::bind(home()).await.unwrap(), server().await);
        let mut group = first(&[slow.local_addr().unwrap(), spare]);
        group.spec.members[0].limit = 1;
        let (engine, address) = start(bound(Protocol::Http, BindingMode::PerSession), group);
        let mut client = Client::new(address).await;
        let answers = tokio::spawn(async move {
            let (mut stream, _) = slow.accept().await.unwrap();
            head(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nslow").await.unwrap();
            // The second one waits forever.
            head(&mut stream).await;
            std::future::pending::<()>().await;
        });
        assert_eq!(client.ask("/").await.1, "slow");
        until("it is counted", || status(&engine).members[0].in_flight == 0).await;
        let mut waiting = Client::new(address).await;
        waiting.0.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        until("it is full", || status(&engine).members[0].in_flight == 1).await;
        assert_eq!(client.who().await, spare);
        answers.abort();
    })
    .await;
}

#[tokio::test]
async fn part_of_the_connections_of_a_member_under_alert_goes_elsewhere_and_stays_there() {
    within(async {
        let (busy, idle) = (server().await, server().await);
        let listener = bound(Protocol::Http, BindingMode::OnDemand(RebindMode::Silent));
        let (engine, address) = start(listener, first(&[busy, idle]));
        let mut clients = clients(address, 60).await;
        assert_eq!(served(&mut clients, busy).await, 60);
        alert(&engine, busy, idle);
        // The plan with the alert is in force within a tenth of a second.
        while served(&mut clients, idle).await == 0 {}
        let moved = served(&mut clients, idle).await;
        assert!((1..=45).contains(&moved), "{moved}");
        for _ in 0..3 {
            assert_eq!(served(&mut clients, idle).await, moved, "asked again by the same decision");
        }
        assert_eq!((binding(&engine, busy).moved, binding(&engine, idle).moved), (moved as u64, 0));
        assert_eq!(
            (binding(&engine, busy).bound, binding(&engine, idle).bound),
            (60 - moved as u64, moved as u64)
        );
        assert_eq!(status_of(&engine, busy).moved, moved as u64);
        assert_eq!(status_of(&engine, busy).failures + status_of(&engine, idle).failures, 0);
        let explained = engine.explain("g").unwrap().members.remove(0);
        assert!(explained.alert.is_some_and(|alert| alert.share > 0.2) && explained.moved == moved as u64);
    })
    .await;
}

#[tokio::test]
async fn a_client_may_be_made_to_connect_again() {
    within(async {
        let (busy, idle) = (server().await, server().await);
        let listener = bound(Protocol::Http, BindingMode::OnDemand(RebindMode::Close));
        let (engine, address) = start(listener, first(&[busy, idle]));
        let mut clients = clients(address, 60).await;
        assert_eq!(served(&mut clients, busy).await, 60);
        alert(&engine, busy, idle);
        // One more round after the first, for those that were asked before the plan with the alert was in
        // force.
        let (mut closed, mut rounds) = (0, 0);
        while rounds < 2 {
            for client in &mut clients {
                let (head, body) = client.ask("/").await;
                if !head.contains("Connection: close") {
                    continue;
                }
                closed += 1;
                // The old member has answered; the new one is the one that lacks load.
                assert_eq!(body, busy.to_string());
                assert_eq!(client.0.read(&mut [0; 9]).await.unwrap(), 0);
                *client = Client::new(address).await;
                assert_eq!(client.who().await, idle);
            }
            rounds += usize::from(closed > 0);
        }
        assert!((1..=45).contains(&closed), "{closed}");
        assert_eq!(served(&mut clients, idle).await, closed);
        assert_eq!(binding(&engine, busy).moved, closed as u64);
    })
    .await;
}

#[tokio::test]
async fn a_client_may_be_sent_to_the_member_itself() {
    within(async {
        let (busy, idle) = (server().await, server().await);
        let listener = bound(Protocol::Http, BindingMode::OnDemand(RebindMode::Redirect));
        let mut group = first(&[busy, idle]);
        group.public.insert(idle.to_string().into(), "https://idle.example:8443".into());
        let (engine, address) = start(listener, group);
        let mut clients = clients(address, 60).await;
        assert_eq!(served(&mut clients, busy).await, 60);
        alert(&engine, busy, idle);
        let mut sent = 0;
        while sent == 0 {
            for client in &mut clients {
                let (head, body) = client.ask("/a/b?c=d").await;
                if head.starts_with("HTTP/1.1 307 ") {
                    sent += 1;
                    assert!(head.contains("\r\nLocation: https://idle.example:8443/a/b?c=d\r\n"), "{head}");
                    // A client that sends its request here all the same is served, by the member of the
                    // redirect.
                    assert_eq!((&*body, client.who().await), ("", idle));
                }
            }
        }
        assert!((1..=45).contains(&sent), "{sent}");
        assert_eq!(binding(&engine, busy).moved, sent as u64);
        // The member itself may have sent the client back: it does not return there, whatever the strategy.
        assert_eq!(Client::new(address).await.who().await, idle);
    })
    .await;
}

#[tokio::test]
async fn who_does_not_follow_a_redirect_is_not_sent_anywhere() {
    within(async {
        let (busy, idle) = (server().await, server().await);
        let listener = bound(Protocol::Http, BindingMode::OnDemand(RebindMode::Redirect));
        let mut group = first(&[busy, idle]);
        group.public.insert(idle.to_string().into(), "https://idle.example:8443".into());
        let (engine, address) = start(listener, group);
        let (mut sockets, mut callers) = (clients(address, 60).await, Vec::new());
        let ask = async |caller: &second::Sender| {
            let mut caller = caller.clone().ready().await.unwrap();
            let (response, _) = caller.send_request(second::call().body(()).unwrap(), true).unwrap();
            let (head, body, _) = second::answer(response).await.unwrap();
            assert_eq!(head.status(), 200, "{head:?}");
            String::from_utf8(body).unwrap().parse::<SocketAddr>().unwrap()
        };
        for _ in 0..60 {
            let (caller, _) = second::client(address).await;
            assert_eq!(ask(&caller).await, busy);
            callers.push(caller);
        }
        assert_eq!(served(&mut sockets, busy).await, 60);
        alert(&engine, busy, idle);
        let mut moved = [0, 0];
        while moved.contains(&0) {
            for caller in &callers {
                moved[0] += u32::from(ask(caller).await == idle);
            }
            for client in &mut sockets {
                let upgrade =
                    "GET /chat HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
                client.0.write_all(upgrade.as_bytes()).await.unwrap();
                let head = head(&mut client.0).await.expect("an answer");
                assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
                let length = head.split("Content-Length: ").nth(1).and_then(|rest| rest.split('\r').next());
                let mut body = vec![0; length.unwrap().parse().unwrap()];
                client.0.read_exact(&mut body).await.unwrap();
                moved[1] += u32::from(body == idle.to_string().as_bytes());
            }
        }
    })
    .await;
}

#[tokio::test]
async fn sessions_may_be_left_to_the_members_agents() {
    within(async {
        let (busy, idle) = (server().await, server().await);
        let listener = bound(Protocol::Http, BindingMode::OnDemand(RebindMode::Agent));
        let (engine, address) = start(listener, first(&[busy, idle]));
        let mut clients = clients(address, 10).await;
        assert_eq!(served(&mut clients, busy).await, 10);
        assert_eq!(engine.requested_shed(None, &busy.to_string()), None);
        alert(&engine, busy, idle);
        let shed = engine.requested_shed(Some("g"), &busy.to_string()).expect("it is under alert");
        assert!(shed.share > 0.2 && shed.epoch > 0, "{shed:?}");
        assert_eq!(
            (
                engine.requested_shed(Some("h"), &busy.to_string()),
                engine.requested_shed(None, &idle.to_string())
            ),
            (None, None)
        );
        // A side-car may have sent a client that comes during an alert: it does not return there, whatever
        // the strategy.
        while Client::new(address).await.who().await != idle {}
        // So the plan with the alert is in force.
        assert_eq!(served(&mut clients, busy).await, 10);
        assert_eq!(binding(&engine, busy).moved, 0);
        // A member that was drained takes sessions again. The busy one is measured anew after its alert: its
        // first report covers a time in which sessions moved, and two more have to agree.
        engine.drain(None, &idle.to_string()).unwrap();
        engine.undrain(None, &idle.to_string()).unwrap();
        for _ in 0..3 {
            tell(&engine, (busy, 0.8), (idle, 0.4));
        }
        let again = engine.requested_shed(Some("g"), &busy.to_string()).expect("it is under alert");
        assert!(again.epoch > shed.epoch && again.share > 0.2, "{again:?}");
        while Client::new(address).await.who().await != idle {}

        // Without a listener that binds on demand, no member is under alert.
        let (engine, _) = start(bound(Protocol::Http, BindingMode::PerSession), first(&[busy, idle]));
        for _ in 0..9 {
            engine.record_load("g", &idle.to_string(), 0.4, MILLI, false);
            engine.record_load("g", &busy.to_string(), 0.8, MILLI, false);
        }
        assert_eq!(engine.requested_shed(None, &busy.to_string()), None);
    })
    .await;
}

#[tokio::test]
async fn who_is_sent_away_by_a_members_agent_is_bound_anew() {
    within(async {
        let closes = Arc::new(AtomicBool::new(true));
        let (busy, idle) = (server_that(Arc::clone(&closes)).await, server().await);
        let listener = bound(Protocol::Http, BindingMode::OnDemand(RebindMode::Agent));
        let (engine, address) = start(listener, first(&[busy, idle]));
        let mut clients = clients(address, 10).await;
        // Without an alert, a member that closes its connections keeps its sessions.
        for _ in 0..3 {
            assert_eq!(served(&mut clients, busy).await, 10);
        }
        alert(&engine, busy, idle);
        // The plan with the alert is in force once a later one is.
        engine.drain(None, &idle.to_string()).unwrap();
        engine.undrain(None, &idle.to_string()).unwrap();
        closes.store(false, SeqCst);
        for _ in 0..2 {
            assert_eq!(served(&mut clients, busy).await, 10, "it closes none");
        }
        closes.store(true, SeqCst);
        assert_eq!(served(&mut clients[..4], busy).await, 4, "nothing of an answer is lost");
        assert_eq!((binding(&engine, busy).bound, binding(&engine, busy).moved), (10, 0));
        // Their own connections are open, and continue with the other member.
        assert_eq!(served(&mut clients[..4], idle).await, 4);
        assert_eq!((binding(&engine, busy).bound, binding(&engine, busy).moved), (6, 4));
        closes.store(false, SeqCst);
        assert_eq!((served(&mut clients, idle).await, binding(&engine, idle).bound), (4, 4));
        assert_eq!(status_of(&engine, busy).moved, 4);

        // Where the balancer itself moves sessions, a member closes a connection for other reasons.
        closes.store(true, SeqCst);
        let (engine, address) =
            start(bound(Protocol::Http, BindingMode::OnDemand(RebindMode::Close)), first(&[busy, idle]));
        let mut client = Client::new(address).await;
        for _ in 0..3 {
            assert_eq!(client.who().await, busy);
        }
        assert_eq!(binding(&engine, busy).bound, 1);
    })
    .await;
}

#[tokio::test]
async fn quiet_connections_are_closed_where_that_is_allowed() {
    within(async {
        let (busy, idle) = (Echo::start().await, Echo::start().await);
        let tcp = ListenerSettings {
            move_idle: 50 * MILLI,
            ..bound(Protocol::Tcp, BindingMode::OnDemand(RebindMode::Silent))
        };
        let (engine, address) = start(tcp, first(&[busy.address, idle.address]));
        let mut sessions = Vec::new();
        for _ in 0..60 {
            let mut session = TcpStream::connect(address).await.unwrap();
            echoes(&mut session, "hello").await;
            sessions.push(session);
        }
        assert_eq!(binding(&engine, busy.address).bound, 60);
        alert(&engine, busy.address, idle.address);
        until("sessions are moved", || binding(&engine, busy.address).moved > 0).await;
        // Each is asked once, within one interval.
        until("what left is gone", || {
            let now = binding(&engine, busy.address);
            now.bound + now.moved == 60
        })
        .await;
        // New ones go to the member that lacks load, whatever the strategy.
        let mut session = TcpStream::connect(address).await.unwrap();
        echoes(&mut session, "again").await;
        assert_eq!(binding(&engine, idle.address).bound, 1);
        let mut ended = 0;
        for session in &mut sessions {
            // The open ones still work; those that left have ended without an error.
            let spoken = session.write_all(b"x").await;
            let heard = session.read(&mut [0; 9]).await;
            match heard {
                Ok(1) => spoken.unwrap(),
                Ok(0) => ended += 1,
                other => assert!(spoken.is_err() || other.is_err(), "{other:?}"),
            }
        }
        let moved = binding(&engine, busy.address).moved;
        assert!((1..=45).contains(&moved) && ended <= moved, "{ended} ended of {moved}");
        assert_eq!(status_of(&engine, busy.address).failures, 0);
    })
    .await;
}

#[tokio::test]
async fn no_connection_is_closed_where_that_is_not_allowed() {
    within(async {
        let (busy, idle) = (Echo::start().await, Echo::start().await);
        let tcp = bound(Protocol::Tcp, BindingMode::OnDemand(RebindMode::Silent));
        let (engine, address) = start(tcp, first(&[busy.address, idle.address]));
        let mut session = TcpStream::connect(address).await.unwrap();
        echoes(&mut session, "hello").await;
        alert(&engine, busy.address, idle.address);
        // The alert is in force once new sessions follow it.
        while binding(&engine, idle.address).bound == 0 {
            echoes(&mut TcpStream::connect(address).await.unwrap(), "new").await;
        }
        echoes(&mut session, "still here").await;
        assert_eq!(binding(&engine, busy.address).moved, 0);
    })
    .await;
}

#[tokio::test]
async fn flows_move_after_a_quiet_second() {
    within(async {
        let parrot = || async {
            let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let address = socket.local_addr().unwrap();
            tokio::spawn(async move {
                let mut buffer = [0; 64];
                while let Ok((_, from)) = socket.recv_from(&mut buffer).await {
                    socket.send_to(address.to_string().as_bytes(), from).await.unwrap();
                }
            });
            address
        };
        let (busy, idle) = (parrot().await, parrot().await);
        let udp = bound(Protocol::Udp, BindingMode::OnDemand(RebindMode::Silent));
        let (engine, address) = start(udp, first(&[busy, idle]));
        let mut flows = Vec::new();
        for _ in 0..60 {
            let flow = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            flow.connect(address).await.unwrap();
            flows.push(flow);
        }
        let ask = async |flow: &UdpSocket| -> SocketAddr {
            let mut buffer = [0; 64];
            flow.send(b"who").await.unwrap();
            let len = flow.recv(&mut buffer).await.unwrap();
            std::str::from_utf8(&buffer[..len]).unwrap().parse().unwrap()
        };
        for flow in &flows {
            assert_eq!(ask(flow).await, busy);
        }
        assert_eq!(binding(&engine, busy).bound, 60);
        alert(&engine, busy, idle);
        // sleeps: the idle second that this is about; the requests before it stay
        tokio::time::sleep(1100 * MILLI).await;
        let mut moved = 0;
        for flow in &flows {
            let who = ask(flow).await;
            assert_eq!(ask(flow).await, who);
            moved += u64::from(who == idle);
        }
        assert!((1..=45).contains(&moved), "{moved}");
        assert_eq!((binding(&engine, busy).moved, binding(&engine, idle).bound), (moved, moved));
    })
    .await;
}
