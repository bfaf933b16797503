//! gRPC calls: their rejection, their timeouts, and the verdicts on members.

use bytes::Bytes;
use h2::{RecvStream, server};
use http::{HeaderMap, Request, Response, StatusCode};
use plimsoll_proxy::{GroupSettings, RetrySettings, SideCarSettings};

use crate::rig::{nobody, status_of, until, within};
use crate::second::*;

#[tokio::test]
async fn calls_are_refused_as_grpc_says() {
    within(async {
        let (_refuses, nobody) = nobody();
        let (_engine, address) = http(to_second(&[nobody]));
        let (sender, _end) = client(address).await;
        let mut sender = sender.ready().await.unwrap();
        let (response, _) = sender.send_request(call().body(()).unwrap(), true).unwrap();
        let (head, content, trailers) = answer(response).await.unwrap();
        assert_eq!((head.status(), content.len(), trailers), (StatusCode::OK, 0, None));
        assert_eq!(
            (&head.headers()["grpc-status"], &head.headers()["plimsoll-reason"]),
            (&"14".parse().unwrap(), &"connect_failed".parse().unwrap())
        );
        assert!(!head.headers().contains_key("content-length"));
    })
    .await;
}

#[tokio::test]
async fn a_call_ends_when_its_client_has_no_more_patience_and_nobody_is_blamed() {
    within(async {
        let (member, _) = second(100, |_, respond: server::SendResponse<Bytes>| async move {
            std::future::pending::<()>().await;
            drop(respond);
        })
        .await;
        let (engine, address) = http(to_second(&[member]));
        let (sender, _end) = client(address).await;
        let mut sender = sender.ready().await.unwrap();
        let request = call().header("grpc-timeout", "150m").body(()).unwrap();
        let (response, _) = sender.send_request(request, true).unwrap();
        let (head, ..) = answer(response).await.unwrap();
        assert_eq!(head.headers()["grpc-status"], "4");
        assert_eq!(status_of(&engine, member).failures, 0);
    })
    .await;
}

#[tokio::test]
async fn a_member_is_judged_by_grpc_status() {
    within(async {
        let (member, _) = second(
            100,
            |request: Request<RecvStream>, mut respond: server::SendResponse<Bytes>| async move {
                let code = request.headers()["x-code"].clone();
                let answer = Response::builder().header("content-type", "application/grpc");
                let mut stream = respond.send_response(answer.body(()).unwrap(), false).unwrap();
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", code);
                stream.send_trailers(trailers).unwrap();
            },
        )
        .await;
        let (engine, address) = http(to_second(&[member]));
        let (sender, _end) = client(address).await;
        for code in 0..=16 {
            let mut sender = sender.clone().ready().await.unwrap();
            let request = call().header("x-code", code).body(()).unwrap();
            let (response, _) = sender.send_request(request, true).unwrap();
            assert_eq!(answer(response).await.unwrap().2.unwrap()["grpc-status"], code.to_string().as_str());
        }
        let counted = || {
            let member = status_of(&engine, member);
            (member.requests, member.failures)
        };
        // A response reaches its client a moment before it is counted.
        until("all are counted", || counted() == (17, 4)).await;
    })
    .await;
}

/// Answers a call with an empty message, when it has arrived completely.
async fn serve(request: Request<RecvStream>, mut respond: server::SendResponse<Bytes>) {
    let mut body = request.into_body();
    let mut content = Vec::new();
    while let Some(piece) = body.data().await {
        content.extend_from_slice(&piece.unwrap());
    }
    assert_eq!(content, MESSAGE);
    let answer = Response::builder().header("content-type", "application/grpc");
    let mut stream = respond.send_response(answer.body(()).unwrap(), false).unwrap();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    stream.send_trailers(trailers).unwrap();
}

const MESSAGE: &[u8] = b"\0\0\0\0\x02hi";

/// A side-car answers every call with status 200: its other fields decide.
#[tokio::test]
async fn a_call_that_a_side_car_could_not_bring_to_its_server_is_taken_to_another_member() {
    within(async {
        let (_refuses, nobody) = nobody();
        let settings = SideCarSettings { refuse: false, shed_idle: None, shares_host: false, home: None };
        let (_away, away) = http(GroupSettings { side_car: Some(settings), ..to_second(&[nobody]) });
        let (full, _) = second(100, |request, respond| refuse(request, respond, "14")).await;
        let (there, _) = second(100, serve).await;
        for unable in [away, full] {
            let retry = RetrySettings { attempts: 1, ..to_second(&[there]).retry };
            let (engine, address) = http(GroupSettings { retry, ..to_second(&[unable, there]) });
            let (sender, _end) = client(address).await;
            for turn in 0..6 {
                let mut sender = sender.clone().ready().await.unwrap();
                // Two cookies are joined, for which a call becomes text.
                let plain = call();
                let request =
                    if turn < 3 { plain } else { plain.header("cookie", "a=1").header("cookie", "b=2") };
                let (response, mut body) = sender.send_request(request.body(()).unwrap(), false).unwrap();
                body.send_data(Bytes::from_static(MESSAGE), true).unwrap();
                let (head, _, trailers) = answer(response).await.unwrap();
                assert_eq!(
                    trailers.unwrap_or_else(|| head.headers().clone())["grpc-status"],
                    "0",
                    "{head:?}"
                );
            }
            until("all are counted", || status_of(&engine, there).requests == 6).await;
            // It was tried, by either way.
            assert!(status_of(&engine, unable).bytes_in > 0);
        }
    })
    .await;
}

/// Reports that there is no room, with this code.
async fn refuse(_: Request<RecvStream>, mut respond: server::SendResponse<Bytes>, code: &'static str) {
    let answer = Response::builder()
        .header("content-type", "application/grpc")
        .header("grpc-status", code)
        .header("endpoint-load-metrics", "TEXT named_metrics.rif=3, named_metrics.full=1");
    respond.send_response(answer.body(()).unwrap(), true).unwrap();
}

#[tokio::test]
async fn a_call_that_was_carried_out_is_not_taken_elsewhere_whatever_is_said_with_it() {
    within(async {
        let (over, _) = second(100, |request, respond| refuse(request, respond, "5")).await;
        let (_engine, address) = http(to_second(&[over]));
        let (sender, _end) = client(address).await;
        let mut sender = sender.ready().await.unwrap();
        let (response, _) = sender.send_request(call().body(()).unwrap(), true).unwrap();
        assert_eq!(answer(response).await.unwrap().0.headers()["grpc-status"], "5");
    })
    .await;
}
