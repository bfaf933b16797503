//! Failures between HTTP/2 clients and the balancer.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use h2::server;
use http::{Request, Response, StatusCode};
use plimsoll_proxy::{AccessLogSettings, Protocol};
use tokio::io::AsyncWriteExt;

use crate::frames::*;
use crate::rig::{MILLI, group, listener, settings, start_with, status, until, within};
use crate::second::*;

#[tokio::test]
async fn calls_may_be_cancelled_after_a_while_as_often_as_their_client_likes() {
    within(async {
        let (member, _) = second(1000, |_, respond: server::SendResponse<Bytes>| async move {
            std::future::pending::<()>().await;
            drop(respond);
        })
        .await;
        let (engine, address) = http(to_second(&[member]));
        let (mut input, mut output) = raw_client(address).await.into_split();
        let mut stream = 1;
        // Far more than the resets that are permitted in that time.
        for _ in 0..6 {
            let first = stream;
            for _ in 0..100 {
                output.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, stream, HEAD)).await.unwrap();
                stream += 2;
            }
            until("all are under way", || status(&engine).members[0].in_flight == 100).await;
            // sleeps: so long that they are no longer young
            tokio::time::sleep(150 * MILLI).await;
            for stream in (first..stream).step_by(2) {
                // CANCEL
                output.write_all(&reset(stream, 8)).await.unwrap();
            }
            until("all are cancelled", || status(&engine).members[0].in_flight == 0).await;
        }
        output.write_all(&frame(PING, 0, 0, b"farewell")).await.unwrap();
        loop {
            match next(&mut input).await.expect("it goes on") {
                (PING, 1, ..) => break,
                (kind, ..) => assert_ne!(kind, GOAWAY),
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_client_that_errs_now_and_then_is_let_go_before_it_is_thrown_out() {
    within(async {
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let wait = Arc::clone(&gate);
        let (member, _) = second(100, move |_, mut respond: server::SendResponse<Bytes>| {
            let wait = Arc::clone(&wait);
            async move {
                let _ = wait.acquire().await.unwrap();
                let _ = respond.send_response(Response::new(()), true);
            }
        })
        .await;
        let (engine, address) = http(to_second(&[member]));
        let (mut input, mut output) = raw_client(address).await.into_split();
        output.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 1, HEAD)).await.unwrap();
        until("one is under way", || status(&engine).members[0].in_flight == 1).await;
        // A field that is not allowed in HTTP/2: `connection: x`. It is that stream's error (RFC 9113 section
        // 8.1.1).
        let bad = [HEAD, &[0, 10], b"connection", &[1], b"x"].concat();
        let mut stream = 3;
        let mut resets = 0;
        let mut told = false;
        while !told {
            assert!(resets < 100, "it is told in time");
            output.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &bad)).await.unwrap();
            loop {
                match next(&mut input).await.expect("it goes on") {
                    (RST_STREAM, _, id, code) => {
                        // PROTOCOL_ERROR
                        assert_eq!((id, code), (stream, 1_u32.to_be_bytes().to_vec()));
                        resets += 1;
                        break;
                    }
                    (GOAWAY, _, _, payload) => {
                        // NO_ERROR, and no stream is named as the last.
                        assert_eq!(payload, [0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
                        told = true;
                        break;
                    }
                    _ => {}
                }
            }
            stream += 2;
        }
        assert!(resets > 20, "{resets}");
        gate.add_permits(1);
        loop {
            match next(&mut input).await.expect("the answer") {
                (HEADERS, _, 1, payload) => break assert_eq!(payload[0], 0x88),
                // Frames in transit at that time.
                (PING, 0, _, payload) => output.write_all(&frame(PING, 1, 0, &payload)).await.unwrap(),
                _ => {}
            }
        }
    })
    .await;
}

fn log(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("plimsoll-l4-{}-{name}.log", std::process::id()))
}

#[tokio::test]
async fn requests_for_two_hosts_are_refused_as_others_are() {
    within(async {
        let (member, _told) = plain("HTTP/1.1 204 No Content\r\n\r\n").await;
        let path = log("two-hosts");
        let mut settings = settings(listener(Protocol::Http), group(&[member]));
        settings.access_log = Some(AccessLogSettings { path: path.clone(), sample: 1.0 });
        let (engine, address) = start_with(settings);
        let (sender, _end) = client(address).await;
        let ask = async |head: http::request::Builder| {
            let mut sender = sender.clone().ready().await.unwrap();
            let head = head.header("host", "other.example").body(()).unwrap();
            answer(sender.send_request(head, true).unwrap().0).await.unwrap()
        };
        let (head, body, _) = ask(Request::get("http://web.example/a?b").header("user-agent", "me/1")).await;
        assert_eq!(head.status(), StatusCode::BAD_REQUEST);
        assert_eq!(head.headers()["plimsoll-reason"], "bad_request");
        assert_eq!(head.headers()["content-length"], body.len().to_string().as_str());
        assert_eq!(body, b"plimsoll: the request is malformed\n");
        let (head, body, _) = ask(Request::head("http://web.example/h")).await;
        assert_eq!((head.status(), body.len()), (StatusCode::BAD_REQUEST, 0));
        let (head, body, trailers) = ask(call()).await;
        assert_eq!((head.status(), body.len(), trailers), (StatusCode::OK, 0, None));
        assert_eq!(head.headers()["grpc-status"], "13");
        assert_eq!(head.headers()["plimsoll-reason"], "bad_request");
        drop(sender);
        assert_eq!(engine.stop().await, 0);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        for (line, (method, target)) in lines.iter().zip([("GET", "/a?b"), ("HEAD", "/h"), ("POST", "/s/M")])
        {
            for part in [
                format!("\"method\":\"{method}\""),
                format!("\"target\":\"{target}\""),
                "\"client\":\"127.0.0.1\"".into(),
                "\"host\":\"web.example\"".into(),
                "\"reason\":\"bad_request\"".into(),
                "\"status\":400".into(),
            ] {
                assert!(line.contains(&part), "{part} in {line}");
            }
        }
        assert!(lines[0].contains("\"user_agent\":\"me/1\""), "{text}");
    })
    .await;
}
