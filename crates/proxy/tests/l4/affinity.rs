//! Session affinity by cookies: the load of a member is bounded by the capacity that it reports, despite
//! returning clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_proxy::{AffinitySettings, Engine, ListenerSettings, Protocol};
use plimsoll_wire::affinity::TokenSigner;
use tokio::net::TcpStream;

use crate::line::{Server, head, send_with};
use crate::rig::{HOUR, by, group, listener, settings, start_with, status_of, until, within};

fn balancer(servers: [&Server; 2]) -> (Engine, SocketAddr) {
    let members = servers.map(|server| server.address);
    let signer = TokenSigner::new(b"secret");
    let cookie = AffinitySettings { cookie: "sid".into(), ttl: HOUR, signer, older: Vec::new() };
    let listener = ListenerSettings { affinity: Some(Arc::new(cookie)), ..listener(Protocol::Http) };
    let mut settings = settings(listener, by(group(&members), "adaptive"));
    settings.threads = 1;
    start_with(settings)
}

fn set(head: &str) -> Option<String> {
    let value = head.to_lowercase().split("set-cookie: ").nth(1)?.split(';').next()?.to_owned();
    Some(format!("Cookie: {value}\r\n"))
}

async fn answered(mut stream: TcpStream) -> String {
    let head = head(&mut stream).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    head
}

async fn visit(balancer: SocketAddr, cookie: &str) -> Option<String> {
    set(&answered(send_with(balancer, cookie).await).await)
}

#[tokio::test]
async fn a_client_escapes_a_member_that_has_what_it_can_work_on_and_then_stays_for_a_while() {
    within(async { while !a_client_escapes_and_stays().await {} }).await;
}

/// The time for which a client that has just moved stays: eight seconds, by a clock of whole seconds.
const STAYS: Duration = Duration::from_secs(7);

/// Returns `false` if it took so long that the client may move again.
async fn a_client_escapes_and_stays() -> bool {
    // Each can process one request and is given three.
    let (one, other) = (Server::start(0).await, Server::start(0).await);
    let (engine, address) = balancer([&one, &other]);
    let requests = |server: &Server| status_of(&engine, server.address).requests;
    let mut cookies = Vec::new();
    while requests(&one) == 0 || requests(&other) == 0 {
        cookies.push(visit(address, "").await.expect("a cookie"));
    }
    let cookie = &cookies[0];
    // A response reaches its client a moment before it is counted.
    let counted = async || {
        until("all is counted", || {
            [&one, &other].iter().all(|server| status_of(&engine, server.address).in_flight == 0)
        })
        .await;
    };
    counted().await;
    let before = requests(&one);
    assert_eq!(visit(address, cookie).await, None);
    counted().await;
    let (home, away) = if requests(&one) > before { (&one, &other) } else { (&other, &one) };
    home.gate.send_replace(false);
    let mut held = Vec::new();
    for count in 1..=3 {
        held.push(send_with(address, cookie).await);
        home.has(count).await;
    }
    // Another request is too much: another member serves it and those after it.
    let before = requests(away);
    let since = Instant::now();
    let moved = visit(address, cookie).await.expect("another cookie");
    assert_eq!(visit(address, &moved).await, None);
    until("both are counted", || requests(away) == before + 2).await;
    assert_eq!(status_of(&engine, home.address).moved, 1);
    until("it to be told", || {
        engine.events().iter().any(|stamped| stamped.event.why.starts_with("1 session left: 1 to "))
    })
    .await;

    // A client that has just moved does not move again, although this member is as busy.
    home.gate.send_replace(true);
    for stream in held.drain(..) {
        assert_eq!(set(&answered(stream).await), None);
    }
    away.gate.send_replace(false);
    for count in 1..=4 {
        held.push(send_with(address, &moved).await);
        // bound: the time that it stays; a longer time decides nothing
        let late = || since.elapsed() > STAYS;
        until("it is there", || away.running() == count || late()).await;
        if late() {
            return false;
        }
    }
    away.gate.send_replace(true);
    for stream in held {
        assert_eq!(set(&answered(stream).await), None, "it stayed");
    }
    assert_eq!(status_of(&engine, away.address).moved, 0);
    true
}
