//! How long requests by HTTP/2 and calls of gRPC are waited for: as long as something moves, and what streams may be silent.

use std::time::Duration;

use bytes::Bytes;
use h2::server;
use http::{Request, Response, StatusCode};
use plimsoll_proxy::{ClientTimeouts, Forwarded, GroupSettings, ListenerSettings, MemberTimeouts, Protocol};
use tokio::time::sleep;

use crate::rig::{MILLI, SECOND, group, listener, start, status_of, until, within};
use crate::second::*;

/// Clients may be silent for so long within a body.
const BODY: Duration = Duration::from_millis(800);

fn patient(tunnel: Duration, forwarded: Forwarded) -> ListenerSettings {
    let timeouts = ClientTimeouts { body: BODY, tunnel, ..listener(Protocol::Http).timeouts };
    ListenerSettings { timeouts, forwarded, ..listener(Protocol::Http) }
}

#[tokio::test]
async fn a_small_upload_may_take_as_long_as_it_moves() {
    within(async {
        let (member, _told) = plain("HTTP/1.1 204 No Content\r\n\r\n").await;
        let (_engine, address) = start(patient(SECOND, Forwarded::XForwarded), group(&[member]));
        let (sender, _end) = client(address).await;
        let mut sender = sender.ready().await.unwrap();
        let request = Request::post("http://web.example/").body(()).unwrap();
        let (response, mut body) = sender.send_request(request, false).unwrap();
        for _ in 0..20 {
            sleep(BODY / 8).await;
            body.send_data(Bytes::from_static(b"x"), false).unwrap();
        }
        body.send_data(Bytes::new(), true).unwrap();
        assert_eq!(answer(response).await.unwrap().0.status(), StatusCode::NO_CONTENT);
    })
    .await;
}

#[tokio::test]
async fn once_all_has_come_it_is_the_member_that_is_waited_for() {
    within(async {
        let (member, _) = second(100, |_, mut respond: server::SendResponse<Bytes>| async move {
            sleep(2 * BODY).await;
            respond.send_response(Response::new(()), true).unwrap();
        })
        .await;
        let (_engine, address) = start(patient(SECOND, Forwarded::XForwarded), to_second(&[member]));
        let (sender, _end) = client(address).await;
        for request in [Request::post("http://web.example/"), call()] {
            let mut sender = sender.clone().ready().await.unwrap();
            let (response, mut body) = sender.send_request(request.body(()).unwrap(), false).unwrap();
            // After its head has been looked at.
            sleep(100 * MILLI).await;
            body.send_data(Bytes::from_static(b"x"), true).unwrap();
            let (head, ..) = answer(response).await.unwrap();
            assert!(
                head.status() == StatusCode::OK && !head.headers().contains_key("grpc-status"),
                "{head:?}"
            );
        }
    })
    .await;
}

/// Calls whose messages are told as they are, and as text.
const WAYS: [Forwarded; 2] = [Forwarded::XForwarded, Forwarded::Rfc7239];

/// A group in which members may not be silent for long.
fn hasty(group: GroupSettings) -> GroupSettings {
    GroupSettings { timeouts: MemberTimeouts { idle: BODY, ..group.timeouts }, ..group }
}

#[tokio::test]
async fn a_call_may_be_silent_between_its_messages() {
    within(async {
        let (member, _) = second(100, echo).await;
        for way in WAYS {
            let (engine, address) = start(patient(20 * SECOND, way), hasty(to_second(&[member])));
            let (sender, _end) = client(address).await;
            let mut sender = sender.ready().await.unwrap();
            let (response, mut body) = sender.send_request(call().body(()).unwrap(), false).unwrap();
            body.send_data(Bytes::from_static(b"one"), false).unwrap();
            let mut back = response.await.unwrap().into_body();
            assert_eq!(back.data().await.unwrap().unwrap(), "one");
            sleep(3 * BODY).await;
            body.send_data(Bytes::from_static(b"other"), false).unwrap();
            assert_eq!(back.data().await.unwrap().unwrap(), "other");
            sleep(2 * BODY).await;
            body.send_data(Bytes::new(), true).unwrap();
            while back.data().await.is_some() {}
            assert_eq!(back.trailers().await.unwrap().unwrap()["grpc-status"], "0");
            assert_eq!(status_of(&engine, member).failures, 0);
        }
    })
    .await;
}

/// Of the connections that have this port at an end (1 for ours, 2 for the other): which does the kernel ask after?
fn asked_after(port: u16, end: usize) -> Vec<bool> {
    let text = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let place = format!(":{port:04X}");
    let rows = text.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    // Local and remote address, state (01 is established), queues, the timer that runs: 02 is that of keep-alive where nothing is
    // under way.
    let rows = rows.filter(|row| row.len() > 5 && row[end].ends_with(&place) && row[3] == "01");
    rows.map(|row| row[5].starts_with("02:")).collect()
}

#[tokio::test]
async fn the_kernel_asks_after_peers_of_connections_that_may_be_silent() {
    within(async {
        let (member, _) = second(100, echo).await;
        let (_engine, address) = http(to_second(&[member]));
        let (sender, _end) = client(address).await;
        assert_eq!(get(&sender, "/").await.unwrap().0.status(), StatusCode::OK);
        until("its client is asked after", || asked_after(address.port(), 1) == [true]).await;
        until("its member is, too", || asked_after(member.port(), 2) == [true]).await;
    })
    .await;
}

#[tokio::test]
async fn a_call_that_is_silent_for_too_long_ends_and_nobody_is_blamed() {
    within(async {
        let (member, _) = second(100, echo).await;
        for way in WAYS {
            let (engine, address) = start(patient(BODY, way), to_second(&[member]));
            let (sender, _end) = client(address).await;
            let mut sender = sender.ready().await.unwrap();
            let (response, mut body) = sender.send_request(call().body(()).unwrap(), false).unwrap();
            body.send_data(Bytes::from_static(b"one"), false).unwrap();
            let (_, content, trailers) = answer(response).await.unwrap();
            assert_eq!(
                (&content[..], &trailers.unwrap()["grpc-status"]),
                (&b"one"[..], &"4".parse().unwrap())
            );
            assert_eq!(status_of(&engine, member).failures, 0);
        }
    })
    .await;
}

#[tokio::test]
async fn a_client_that_says_nothing_at_all_is_not_waited_for() {
    within(async {
        let (member, _) = second(100, |_, respond: server::SendResponse<Bytes>| async move {
            sleep(20 * SECOND).await;
            drop(respond);
        })
        .await;
        let (_engine, address) = start(patient(20 * SECOND, Forwarded::XForwarded), to_second(&[member]));
        let (sender, _end) = client(address).await;
        let mut sender = sender.ready().await.unwrap();
        let (response, _body) = sender.send_request(call().body(()).unwrap(), false).unwrap();
        let (head, ..) = answer(response).await.unwrap();
        assert_eq!(head.headers()["plimsoll-reason"], "client_timeout");
    })
    .await;
}
