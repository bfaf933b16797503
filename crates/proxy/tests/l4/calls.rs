//! Calls of gRPC: how they are refused, how long they may take, and what members are judged by.

use bytes::Bytes;
use h2::{RecvStream, server};
use http::{HeaderMap, Request, Response, StatusCode};
use tokio::net::TcpListener;

use crate::rig::{SECOND, status_of, within};
use crate::second::*;

#[tokio::test]
async fn calls_are_refused_as_grpc_says() {
    within(async {
        let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
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
            tokio::time::sleep(60 * SECOND).await;
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
        let member = status_of(&engine, member);
        assert_eq!((member.requests, member.failures), (17, 4));
    })
    .await;
}
