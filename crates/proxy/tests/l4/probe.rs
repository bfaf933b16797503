//! Health checks: those that pass, those that fail, and their effect on members.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use plimsoll_brain::{HealthSpec, MemberState, WhenAllDown};
use plimsoll_proxy::{
    Engine, GroupSettings, ListenerSettings, MemberTls, MemberTrust, ProbeKind, ProbeSettings, Protocol,
    Settings,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::rig::{
    Echo, HOUR, MILLI, MINUTE, assert_reset, by, echoes, group, home, listener, place, settings, start_with,
    status, status_of, until, within,
};
use crate::second::{plain, second};

/// An engine that stops its health checks at the end of its test: its members' ports may then be reused.
struct Checking(Engine);

impl Deref for Checking {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.0
    }
}

impl Drop for Checking {
    fn drop(&mut self) {
        let nobody = Settings { listeners: Vec::new(), ..settings(listener(Protocol::Tcp), group(&[])) };
        // A stopped engine rejects this.
        let _ = self.0.reload(nobody, Vec::new());
    }
}

fn start(listener: ListenerSettings, group: GroupSettings) -> (Checking, SocketAddr) {
    let (engine, address) = start_with(settings(listener, group));
    (Checking(engine), address)
}

fn checked(members: &[SocketAddr], kind: ProbeKind) -> GroupSettings {
    let mut group = by(group(members), "first_available");
    group.spec.health = Some(HealthSpec { rise: 2, fall: 2 });
    group.probe = Some(ProbeSettings { kind, interval: 100 * MILLI, timeout: MINUTE });
    group
}

fn http(expect: Option<u16>) -> ProbeKind {
    ProbeKind::Http { path: "/healthz".into(), host: None, expect }
}

/// A member that answers each request with the same bytes, with its last request and their number.
struct Canned {
    address: SocketAddr,
    asked: Arc<AtomicUsize>,
    last: Arc<std::sync::Mutex<Vec<u8>>>,
}

async fn canned(answer: &'static str) -> Canned {
    let listener = TcpListener::bind(home()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (asked, last) = (Arc::new(AtomicUsize::new(0)), Arc::new(std::sync::Mutex::new(Vec::new())));
    let (count, kept) = (Arc::clone(&asked), Arc::clone(&last));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (count, kept) = (Arc::clone(&count), Arc::clone(&kept));
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    if !matches!(stream.read_buf(&mut head).await, Ok(1..)) {
                        return;
                    }
                }
                *kept.lock().unwrap() = head;
                count.fetch_add(1, Relaxed);
                // Byte by byte: a response may arrive in pieces.
                for byte in answer.as_bytes() {
                    if stream.write_all(&[*byte]).await.is_err() {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
                // Waits for the other side to close, like a server that keeps connections.
                let _ = stream.read(&mut [0]).await;
            });
        }
    });
    Canned { address, asked, last }
}

async fn becomes(engine: &Engine, member: SocketAddr, state: MemberState) {
    until(&format!("{member} becomes {state:?}"), || status_of(engine, member).state == state).await;
}

#[tokio::test]
async fn a_member_not_yet_checked_is_not_used() {
    within(async {
        let (echo, hangs) = (Echo::start().await, TcpListener::bind(home()).await.unwrap());
        let unchecked = hangs.local_addr().unwrap();
        // It accepts connections and is silent: for a while, its check neither passes nor fails.
        let mut group = checked(&[unchecked, echo.address], http(None));
        group.probe.as_mut().unwrap().timeout = HOUR;
        let (engine, address) = start(listener(Protocol::Tcp), group);
        // The echo answers requests with requests, which is no response: down, after only one check.
        becomes(&engine, echo.address, MemberState::Down).await;
        assert_eq!(status_of(&engine, unchecked).state, MemberState::Unchecked);
        assert_reset(address).await;
        assert_eq!(status_of(&engine, unchecked).connects, 0);
        assert_eq!(status(&engine).rejected["no_member"], 1);
    })
    .await;
}

#[tokio::test]
async fn a_member_goes_down_and_comes_back() {
    within(async {
        let (place, other) = (place(), Echo::start().await);
        let one = TcpListener::bind(place).await.unwrap();
        let (engine, address) =
            start(listener(Protocol::Tcp), checked(&[place, other.address], ProbeKind::Tcp));
        becomes(&engine, place, MemberState::Up).await;
        becomes(&engine, other.address, MemberState::Up).await;
        drop(one);
        becomes(&engine, place, MemberState::Down).await;
        assert!(
            status_of(&engine, place).why.contains("connection refused"),
            "{}",
            status_of(&engine, place).why
        );
        let before = other.sessions();
        echoes(&mut TcpStream::connect(address).await.unwrap(), "hello").await;
        assert!(other.sessions() > before);
        // The client never used the member that is down.
        assert_eq!(status_of(&engine, place).connects, 0);
        let _back = TcpListener::bind(place).await.unwrap();
        becomes(&engine, place, MemberState::Up).await;
        let events: Vec<_> = engine.events().into_iter().map(|stamped| stamped.event.kind).collect();
        for kind in [plimsoll_brain::EventKind::Up, plimsoll_brain::EventKind::Down] {
            assert!(events.contains(&kind), "{kind:?} is not among {events:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn answers_pass_by_their_status() {
    within(async {
        let early = "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n";
        for (answer, expect, state) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", None, MemberState::Up),
            ("HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n", None, MemberState::Up),
            ("HTTP/1.0 200 OK\r\n\r\nuntil the end", None, MemberState::Up),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Some(200), MemberState::Up),
            ("HTTP/1.1 404 Not Found\r\n\r\n", Some(404), MemberState::Up),
            ("HTTP/1.1 404 Not Found\r\n\r\n", None, MemberState::Down),
            ("HTTP/1.1 503 Service Unavailable\r\n\r\n", None, MemberState::Down),
            ("HTTP/1.1 204 No Content\r\n\r\n", Some(200), MemberState::Down),
            ("220 smtp\r\n\r\n", None, MemberState::Down),
        ] {
            for before in ["", early] {
                let answer: &'static str = format!("{before}{answer}").leak();
                let member = canned(answer).await;
                let (engine, _) = start(listener(Protocol::Http), checked(&[member.address], http(expect)));
                becomes(&engine, member.address, state).await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn requests_say_what_they_are() {
    within(async {
        let member = canned("HTTP/1.1 204 No Content\r\n\r\n").await;
        let (engine, _) = start(listener(Protocol::Http), checked(&[member.address], http(None)));
        becomes(&engine, member.address, MemberState::Up).await;
        let said = String::from_utf8(member.last.lock().unwrap().clone()).unwrap();
        let start_line =
            format!("GET /healthz HTTP/1.1\r\nHost: {}\r\nUser-Agent: plimsoll/", member.address);
        assert!(said.starts_with(&start_line), "{said}");
        // A new path, a new name, and the PROXY protocol in front: the running checks are replaced.
        let mut group = checked(
            &[member.address],
            ProbeKind::Http { path: "/other".into(), host: Some("web".into()), expect: None },
        );
        group.send_proxy = Some(1);
        engine.reload(settings(listener(Protocol::Http), group), Vec::new()).unwrap();
        until("the new probe is seen", || {
            member.last.lock().unwrap().starts_with(b"PROXY UNKNOWN\r\nGET /other HTTP/1.1\r\nHost: web\r\n")
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_handshake_comes_after_the_preface() {
    within(async {
        for (tls, expected) in [(true, &b"PROXY UNKNOWN\r\n\x16"[..]), (false, b"")] {
            let member = TcpListener::bind(home()).await.unwrap();
            let mut group = checked(&[member.local_addr().unwrap()], ProbeKind::Tcp);
            group.send_proxy = Some(1);
            let trusting = || MemberTls::new(MemberTrust::AnyCertificate, None, None, true, &[]).unwrap();
            group.tls = tls.then(trusting);
            let (_engine, _) = start(listener(Protocol::Tcp), group);
            let (mut probe, _) = member.accept().await.unwrap();
            let mut said = vec![0; 16];
            // A check that sends nothing closes at once, with a reset.
            let len = probe.read_exact(&mut said).await.unwrap_or(0);
            assert_eq!(&said[..len], expected);
        }
    })
    .await;
}

#[tokio::test]
async fn one_that_hangs_times_out_and_delays_nobody() {
    within(async {
        let hangs = TcpListener::bind(home()).await.unwrap();
        let (stuck, fine) = (hangs.local_addr().unwrap(), canned("HTTP/1.1 200 OK\r\n\r\n").await);
        let mut group = checked(&[stuck, fine.address], http(None));
        group.probe.as_mut().unwrap().timeout = HOUR;
        let (engine, _) = start(listener(Protocol::Http), group.clone());
        becomes(&engine, fine.address, MemberState::Up).await;
        until("others are probed again and again", || fine.asked.load(Relaxed) >= 5).await;
        assert_eq!(status_of(&engine, stuck).state, MemberState::Unchecked);
        group.probe.as_mut().unwrap().timeout = 700 * MILLI;
        let begun = Instant::now();
        let (engine, _) = start(listener(Protocol::Http), group);
        becomes(&engine, stuck, MemberState::Down).await;
        assert!(begun.elapsed() >= 700 * MILLI, "{:?}", begun.elapsed());
        assert!(status_of(&engine, stuck).why.contains("no answer within 0.7 s"));
    })
    .await;
}

/// Returns once four intervals have passed without a check; waits for those that were in flight.
async fn rests(who: &str, member: &Canned) {
    for _ in 0..20 {
        let before = member.asked.load(Relaxed);
        // sleeps: polls
        tokio::time::sleep(400 * MILLI).await;
        if member.asked.load(Relaxed) == before {
            return;
        }
    }
    panic!("{who} is still probed");
}

#[tokio::test]
async fn probes_come_and_go_with_their_members() {
    within(async {
        let (one, other) = (canned("HTTP/1.1 200 OK\r\n\r\n").await, canned("HTTP/1.1 200 OK\r\n\r\n").await);
        let (engine, _) = start(listener(Protocol::Http), checked(&[one.address], http(None)));
        becomes(&engine, one.address, MemberState::Up).await;
        assert_eq!(other.asked.load(Relaxed), 0);
        let next = settings(listener(Protocol::Http), checked(&[other.address], http(None)));
        engine.reload(next, Vec::new()).unwrap();
        becomes(&engine, other.address, MemberState::Up).await;
        until("the new member is probed", || other.asked.load(Relaxed) >= 3).await;
        rests("a member that left", &one).await;
        // Without health checks, none.
        engine.reload(settings(listener(Protocol::Http), group(&[other.address])), Vec::new()).unwrap();
        rests("an unchecked group", &other).await;
        assert_eq!(status_of(&engine, other.address).state, MemberState::Up);
        // Stopping ends them.
        let next = settings(listener(Protocol::Http), checked(&[one.address], http(None)));
        engine.reload(next, Vec::new()).unwrap();
        becomes(&engine, one.address, MemberState::Up).await;
        engine.stop().await;
        rests("by a stopped engine, a member", &one).await;
    })
    .await;
}

#[tokio::test]
async fn when_all_are_down_the_group_does_as_it_was_told() {
    within(async {
        for (open, kind) in [(false, WhenAllDown::Reject), (true, WhenAllDown::FailOpen)] {
            // Serves, but its health checks fail.
            let echo = Echo::start().await;
            let mut group = checked(&[echo.address], http(None));
            group.spec.when_all_down = kind;
            let (engine, address) = start(listener(Protocol::Tcp), group);
            becomes(&engine, echo.address, MemberState::Down).await;
            match open {
                true => echoes(&mut TcpStream::connect(address).await.unwrap(), "hello").await,
                false => assert_reset(address).await,
            }
        }
    })
    .await;
}

#[tokio::test]
async fn members_of_http_2_are_asked_by_it() {
    use bytes::Bytes;
    use h2::RecvStream;
    use h2::server::SendResponse;
    use http::{HeaderMap, Request, Response};
    within(async {
        let (member, _) =
            second(100, |request: Request<RecvStream>, mut respond: SendResponse<Bytes>| async move {
                assert_eq!((request.uri().path(), request.method().as_str()), ("/healthz", "GET"));
                respond.send_response(Response::builder().status(204).body(()).unwrap(), true).unwrap();
            })
            .await;
        let (engine, _) = start(
            listener(Protocol::Http),
            GroupSettings { http2: true, ..checked(&[member], http(Some(204))) },
        );
        becomes(&engine, member, MemberState::Up).await;
        // The health service reports the requested state.
        let state = Arc::new(AtomicUsize::new(2));
        let now = Arc::clone(&state);
        let (member, _) =
            second(100, move |request: Request<RecvStream>, mut respond: SendResponse<Bytes>| {
                let now = Arc::clone(&now);
                async move {
                    assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
                    assert_eq!(request.headers()["content-type"], "application/grpc");
                    let asked = request.into_body().data().await.unwrap().unwrap();
                    assert_eq!(&asked[..], b"\0\0\0\0\x06\x0a\x04shop");
                    let mut stream = respond.send_response(Response::new(()), false).unwrap();
                    let state = now.load(Relaxed) as u8;
                    stream.send_data(vec![0, 0, 0, 0, 2, 8, state].into(), false).unwrap();
                    let mut trailers = HeaderMap::new();
                    trailers.insert("grpc-status", "0".parse().unwrap());
                    stream.send_trailers(trailers).unwrap();
                }
            })
            .await;
        let kind = ProbeKind::Grpc { service: "shop".into(), host: None };
        let (engine, _) = start(listener(Protocol::Http), checked(&[member], kind));
        becomes(&engine, member, MemberState::Down).await;
        assert!(status_of(&engine, member).why.contains("NOT_SERVING"));
        state.store(1, Relaxed);
        becomes(&engine, member, MemberState::Up).await;
        // A server that does not know the service reports so in the head alone.
        let (member, _) = second(100, |_, mut respond: SendResponse<Bytes>| async move {
            let answer = Response::builder().header("grpc-status", "5").body(()).unwrap();
            respond.send_response(answer, true).unwrap();
        })
        .await;
        let kind = ProbeKind::Grpc { service: "shop".into(), host: None };
        let (engine, _) = start(listener(Protocol::Http), checked(&[member], kind));
        becomes(&engine, member, MemberState::Down).await;
        assert!(status_of(&engine, member).why.contains("does not know this service"));
    })
    .await;
}

#[tokio::test]
async fn a_request_whose_member_is_declared_down_goes_elsewhere_at_once() {
    within(async {
        // It answers its health checks until `well` is cleared, and never anything else.
        let door = TcpListener::bind(home()).await.unwrap();
        let frozen = door.local_addr().unwrap();
        let well = Arc::new(AtomicUsize::new(1));
        let (asked, mut requests) = tokio::sync::mpsc::channel(10);
        let serves = Arc::clone(&well);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = door.accept().await {
                let (serves, asked) = (Arc::clone(&serves), asked.clone());
                tokio::spawn(async move {
                    let mut head = vec![0; 4096];
                    let len = stream.read(&mut head).await.unwrap_or(0);
                    if head[..len].starts_with(b"GET /healthz") && serves.load(Relaxed) == 1 {
                        let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
                    } else if head[..len].starts_with(b"GET /slow") {
                        asked.send(()).await.unwrap();
                    }
                    // Held until the balancer closes it.
                    while let Ok(1..) = stream.read(&mut head).await {}
                });
            }
        });
        let (other, _told) = plain("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother").await;
        let mut group = checked(&[frozen, other], http(None));
        group.probe = Some(ProbeSettings { kind: http(None), interval: 20 * MILLI, timeout: 200 * MILLI });
        let (engine, address) = start(listener(Protocol::Http), group);
        until("both are up", || status(&engine).members.iter().all(|member| member.state == MemberState::Up))
            .await;
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET /slow HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
        // No time limit of this group is shorter than a minute: without health checks it would wait that
        // long.
        requests.recv().await.unwrap();
        well.store(0, Relaxed);
        let mut answer = [0; 15];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
        assert_eq!(status_of(&engine, frozen).state, MemberState::Down);
    })
    .await;
}
