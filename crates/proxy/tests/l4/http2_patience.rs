//! The timeouts of HTTP/2 requests and gRPC calls: they do not expire while bytes move; and the silence that
//! streams may keep.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server;
use http::{Request, Response, StatusCode};
use plimsoll_proxy::{
    ClientTimeouts, ForwardedHeaders, GroupSettings, ListenerSettings, MemberTimeouts, Protocol,
};
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::rig::{MILLI, MINUTE, group, listener, sockets, start, status_of, steadily, until, within};
use crate::second::*;

/// The maximum silence of clients within a body.
const BODY: Duration = Duration::from_millis(800);

fn patient(tunnel: Duration, forwarded: ForwardedHeaders) -> ListenerSettings {
    let timeouts = ClientTimeouts { body: BODY, tunnel, ..listener(Protocol::Http).timeouts };
    ListenerSettings { timeouts, forwarded, ..listener(Protocol::Http) }
}

#[tokio::test]
async fn a_small_upload_may_take_as_long_as_it_moves() {
    within(async {
        let (member, _told) = plain("HTTP/1.1 204 No Content\r\n\r\n").await;
        let (_engine, address) = start(patient(MINUTE, ForwardedHeaders::XForwarded), group(&[member]));
        loop {
            let (sender, mut ping) = pinging(address).await;
            let mut sender = sender.ready().await.unwrap();
            let request = Request::post("http://web.example/").body(()).unwrap();
            let (response, mut body) = sender.send_request(request, false).unwrap();
            // The answer shows that the previous piece has arrived.
            let steady = steadily(BODY, async || {
                let sent = body.send_data(Bytes::from_static(b"x"), false).is_ok();
                sent && ping.ping(h2::Ping::opaque()).await.is_ok()
            });
            if steady.await {
                body.send_data(Bytes::new(), true).unwrap();
                break assert_eq!(answer(response).await.unwrap().0.status(), StatusCode::NO_CONTENT);
            }
        }
    })
    .await;
}

/// Returns a client's connection, and a handle that checks whether all bytes sent before have arrived.
async fn pinging(address: SocketAddr) -> (Sender, h2::PingPong) {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (sender, mut connection) = h2::client::handshake(stream).await.unwrap();
    let ping = connection.ping_pong().unwrap();
    tokio::spawn(connection);
    (sender, ping)
}

#[tokio::test]
async fn once_all_has_come_it_is_the_member_that_is_waited_for() {
    within(async {
        let (member, _) = second(100, |_, mut respond: server::SendResponse<Bytes>| async move {
            // sleeps: the member's service time
            sleep(2 * BODY).await;
            let _ = respond.send_response(Response::new(()), true);
        })
        .await;
        let (_engine, address) = start(patient(MINUTE, ForwardedHeaders::XForwarded), to_second(&[member]));
        let (sender, mut ping) = pinging(address).await;
        for request in [|| Request::post("http://web.example/"), call] {
            loop {
                let mut sender = sender.clone().ready().await.unwrap();
                let begun = Instant::now();
                let (response, mut body) = sender.send_request(request().body(()).unwrap(), false).unwrap();
                // After its head was processed.
                ping.ping(h2::Ping::opaque()).await.unwrap();
                // sleeps: for less than clients may be silent
                sleep(100 * MILLI).await;
                let sent = body.send_data(Bytes::from_static(b"x"), true).is_ok();
                ping.ping(h2::Ping::opaque()).await.unwrap();
                // bound: the time that clients may be silent; a longer time decides nothing
                if begun.elapsed() > BODY * 4 / 5 {
                    continue;
                }
                let (head, ..) = answer(response).await.unwrap();
                assert!(
                    sent && head.status() == StatusCode::OK && !head.headers().contains_key("grpc-status"),
                    "{head:?}"
                );
                break;
            }
        }
    })
    .await;
}

/// Calls whose messages pass through, and calls as text.
const WAYS: [ForwardedHeaders; 2] = [ForwardedHeaders::XForwarded, ForwardedHeaders::Rfc7239];

/// Returns a group whose members may not be silent for long.
fn hasty(group: GroupSettings) -> GroupSettings {
    GroupSettings { timeouts: MemberTimeouts { idle: BODY, ..group.timeouts }, ..group }
}

#[tokio::test]
async fn a_call_may_be_silent_between_its_messages() {
    within(async {
        let (member, _) = second(100, echo).await;
        for way in WAYS {
            let (engine, address) = start(patient(MINUTE, way), hasty(to_second(&[member])));
            let (sender, _end) = client(address).await;
            let mut sender = sender.ready().await.unwrap();
            let (response, mut body) = sender.send_request(call().body(()).unwrap(), false).unwrap();
            body.send_data(Bytes::from_static(b"one"), false).unwrap();
            let mut back = response.await.unwrap().into_body();
            assert_eq!(back.data().await.unwrap().unwrap(), "one");
            // sleeps: for longer than clients and members may be silent elsewhere
            sleep(3 * BODY).await;
            body.send_data(Bytes::from_static(b"other"), false).unwrap();
            assert_eq!(back.data().await.unwrap().unwrap(), "other");
            // sleeps: as before
            sleep(2 * BODY).await;
            body.send_data(Bytes::new(), true).unwrap();
            while back.data().await.is_some() {}
            assert_eq!(back.trailers().await.unwrap().unwrap()["grpc-status"], "0");
            assert_eq!(status_of(&engine, member).failures, 0);
        }
    })
    .await;
}

/// Returns, for each connection with this address at an end (1 for local, 2 for remote), whether the kernel
/// probes the peer.
fn asked_after(address: SocketAddr, end: usize) -> Vec<bool> {
    // 02 is the keep-alive timer of an idle connection.
    sockets(address, end, "01").iter().map(|timer| timer.starts_with("02:")).collect()
}

#[tokio::test]
async fn the_kernel_asks_after_peers_of_connections_that_may_be_silent() {
    within(async {
        let (member, _) = second(100, echo).await;
        let (_engine, address) = http(to_second(&[member]));
        let (sender, _end) = client(address).await;
        assert_eq!(get(&sender, "/").await.unwrap().0.status(), StatusCode::OK);
        until("its client is asked after", || asked_after(address, 1) == [true]).await;
        until("its member is, too", || asked_after(member, 2) == [true]).await;
    })
    .await;
}

#[tokio::test]
async fn a_call_that_is_silent_for_too_long_ends_and_nobody_is_blamed() {
    within(async {
        let (member, _) = second(100, echo).await;
        for way in WAYS {
            // If that is too short for the response to begin, the next one has longer.
            let mut silence = [BODY, 4 * BODY, MINUTE].into_iter();
            loop {
                let silence = silence.next().expect("an answer that begins in time");
                let (engine, address) = start(patient(silence, way), to_second(&[member]));
                let (sender, _end) = client(address).await;
                let mut sender = sender.ready().await.unwrap();
                let (response, mut body) = sender.send_request(call().body(()).unwrap(), false).unwrap();
                body.send_data(Bytes::from_static(b"one"), false).unwrap();
                let (head, content, trailers) = answer(response).await.unwrap();
                assert_eq!(trailers.as_ref().unwrap_or_else(|| head.headers())["grpc-status"], "4");
                assert_eq!(status_of(&engine, member).failures, 0);
                if !content.is_empty() {
                    break assert_eq!((&content[..], trailers.is_some()), (&b"one"[..], true));
                }
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_client_that_says_nothing_at_all_is_not_waited_for() {
    within(async {
        let (member, _) = second(100, |_, respond: server::SendResponse<Bytes>| async move {
            std::future::pending::<()>().await;
            drop(respond);
        })
        .await;
        let (_engine, address) = start(patient(MINUTE, ForwardedHeaders::XForwarded), to_second(&[member]));
        let (sender, _end) = client(address).await;
        let mut sender = sender.ready().await.unwrap();
        let (response, _body) = sender.send_request(call().body(()).unwrap(), false).unwrap();
        let (head, ..) = answer(response).await.unwrap();
        assert_eq!(head.headers()["plimsoll-reason"], "client_timeout");
    })
    .await;
}
