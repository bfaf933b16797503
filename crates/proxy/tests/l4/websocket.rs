//! WebSocket on streams of HTTP/2 (RFC 8441), by a client of another implementation.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::RecvStream;
use h2::client::{ResponseFuture, SendRequest};
use h2::ext::Protocol;
use http::{Request, StatusCode};
use plimsoll_proxy::{ListenerSettings, Protocol as Spoken};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::rig::{MILLI, group, home, listener, start, status, until, within};
use crate::second::*;

/// Starts a member that upgrades and sends first, then echoes until its client ends. Returns the heads of its
/// requests, too.
async fn member() -> (SocketAddr, tokio::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind(home()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = tokio::sync::mpsc::channel(10);
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        tell.send(String::from_utf8(head).unwrap()).await.unwrap();
        let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                      Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: \
                      chat\r\n\r\nwelcome";
        stream.write_all(answer.as_bytes()).await.unwrap();
        let (mut input, mut output) = stream.split();
        tokio::io::copy(&mut input, &mut output).await.unwrap();
        output.shutdown().await.unwrap();
    });
    (address, told)
}

/// Requests a protocol on a stream.
async fn connect(
    sender: &SendRequest<Bytes>,
    protocol: &'static str,
) -> (ResponseFuture, h2::SendStream<Bytes>) {
    let mut sender = sender.clone().ready().await.unwrap();
    while !sender.is_extended_connect_protocol_enabled() {
        // sleeps: polls
        tokio::time::sleep(MILLI).await;
    }
    let request = Request::connect("http://web.example/chat?x")
        .extension(Protocol::from_static(protocol))
        .header("sec-websocket-version", "13")
        .header("sec-websocket-protocol", "chat");
    sender.send_request(request.body(()).unwrap(), false).unwrap()
}

/// Reads `len` bytes of a body.
async fn take(body: &mut RecvStream, len: usize) -> Vec<u8> {
    let mut taken = Vec::new();
    while taken.len() < len {
        let piece = body.data().await.expect("more").unwrap();
        body.flow_control().release_capacity(piece.len()).unwrap();
        taken.extend_from_slice(&piece);
    }
    taken
}

#[tokio::test]
async fn a_stream_becomes_a_tunnel_to_a_member_of_http_1() {
    within(async {
        let (member, mut told) = member().await;
        let (engine, address) = http(group(&[member]));
        let (sender, _end) = client(address).await;
        let (response, mut body) = connect(&sender, "websocket").await;
        let (head, mut answer) = response.await.unwrap().into_parts();
        assert_eq!(head.status, StatusCode::OK);
        assert_eq!(head.headers["sec-websocket-protocol"], "chat");
        for name in ["sec-websocket-accept", "upgrade", "connection", "content-length"] {
            assert!(!head.headers.contains_key(name), "{name}");
        }
        let asked = told.recv().await.unwrap();
        assert!(asked.starts_with("GET /chat?x HTTP/1.1\r\nHost: web.example\r\n"), "{asked}");
        for field in ["Connection: Upgrade", "Upgrade: websocket", "sec-websocket-version: 13"] {
            assert!(asked.contains(&format!("\r\n{field}\r\n")), "{asked}");
        }
        let key = asked.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
        assert!(key.len() == 24 && key.ends_with("=="), "{key}");
        assert_eq!(take(&mut answer, 7).await, b"welcome");
        // More than all windows, in both directions at once.
        let large = Bytes::from(vec![b'x'; 3 << 20]);
        let sent = large.clone();
        let sending = tokio::spawn(async move {
            send_all(&mut body, sent, false).await.unwrap();
            body
        });
        assert_eq!(take(&mut answer, large.len()).await, large);
        // The end of one side is forwarded to the other.
        let mut body = sending.await.unwrap();
        body.send_data(Bytes::from_static(b"last"), true).unwrap();
        assert_eq!(take(&mut answer, 4).await, b"last");
        while let Some(piece) = answer.data().await {
            assert!(piece.unwrap().is_empty(), "nothing but the end");
        }
        until("its place is free", || status(&engine).members[0].in_flight == 0).await;
    })
    .await;
}

#[tokio::test]
async fn a_member_that_does_not_want_a_web_socket_says_why() {
    within(async {
        let (member, mut told) = plain("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno").await;
        let (_engine, address) = http(group(&[member]));
        let (sender, _end) = client(address).await;
        let (response, mut body) = connect(&sender, "websocket").await;
        // Bytes on the stream are no request, whatever they look like.
        body.send_data(Bytes::from_static(b"GET /evil HTTP/1.1\r\nHost: x\r\n\r\n"), false).unwrap();
        let (head, content, _) = answer(response).await.unwrap();
        assert_eq!((head.status(), content.as_slice()), (StatusCode::FORBIDDEN, &b"no"[..]));
        assert!(told.recv().await.unwrap().starts_with("GET /chat?x "));
        assert_eq!(get(&sender, "/after").await.unwrap().0.status(), StatusCode::FORBIDDEN);
        let next = told.recv().await.unwrap();
        assert!(next.starts_with("GET /after "), "{next}");
    })
    .await;
}

#[tokio::test]
async fn a_member_that_answers_as_if_nothing_was_to_become_a_tunnel_does_not_make_one() {
    within(async {
        for answered in ["HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "HTTP/1.1 204 No Content\r\n\r\n"]
        {
            let (member, _told) = plain(answered).await;
            let (engine, address) = http(group(&[member]));
            let (sender, _end) = client(address).await;
            let (response, _body) = connect(&sender, "websocket").await;
            let (head, ..) = answer(response).await.unwrap();
            assert_eq!(head.status(), StatusCode::BAD_GATEWAY);
            assert_eq!(head.headers()["plimsoll-reason"], "bad_answer");
            // Without a request for a tunnel, it is a response like any other.
            assert!(get(&sender, "/").await.unwrap().0.status().is_success());
            until("its place is free", || status(&engine).members[0].in_flight == 0).await;
        }
    })
    .await;
}

#[tokio::test]
async fn other_protocols_and_members_of_http_2_are_not_there() {
    within(async {
        let (old, _told) = plain("HTTP/1.1 204 No Content\r\n\r\n").await;
        let (new, _) = second(100, echo).await;
        let none = ListenerSettings { upgrades: Vec::new(), ..listener(Spoken::Http) };
        for (listener, group, protocol) in [
            (listener(Spoken::Http), group(&[old]), "connect-udp"),
            (listener(Spoken::Http), to_second(&[new]), "websocket"),
            (none, group(&[old]), "websocket"),
        ] {
            let (_engine, address) = start(listener, group);
            let (sender, _end) = client(address).await;
            let (response, _body) = connect(&sender, protocol).await;
            let (head, ..) = answer(response).await.unwrap();
            assert_eq!(head.status(), StatusCode::NOT_IMPLEMENTED);
            assert_eq!(head.headers()["plimsoll-reason"], "not_implemented");
        }
    })
    .await;
}
