//! gRPC calls that pass through from a client's stream to a member's, without conversion to text.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use h2::{RecvStream, SendStream, server};
use http::{HeaderMap, Request, Response, StatusCode};
use plimsoll_brain::meter::Reading;
use plimsoll_proxy::{ForwardedHeaders, ListenerSettings, Protocol};
use plimsoll_wire::load_report::{self, LoadReport, NotProcessed};

use crate::rig::{MILLI, by, group, listener, settings, start, status_of, until, within};
use crate::second::*;

fn trailers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
    fields.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
}

fn grpc() -> Response<()> {
    Response::builder().header("content-type", "application/grpc").body(()).unwrap()
}

#[tokio::test]
async fn a_call_arrives_as_it_was_sent_and_so_does_its_answer() {
    within(async {
        let (tell, mut told) = tokio::sync::mpsc::channel(1);
        let (member, _) =
            second(100, move |request: Request<RecvStream>, mut respond: server::SendResponse<Bytes>| {
                let tell = tell.clone();
                async move {
                    let (head, mut body) = request.into_parts();
                    let hints = Response::builder().status(103).header("link", "</a>").body(()).unwrap();
                    respond.send_informational(hints).unwrap();
                    let mut content = Vec::new();
                    while let Some(piece) = body.data().await {
                        content.extend_from_slice(&piece.unwrap());
                    }
                    let after = body.trailers().await.unwrap();
                    tell.send((head, content, after)).await.unwrap();
                    let mut stream = respond.send_response(grpc(), false).unwrap();
                    stream.send_data(Bytes::from_static(b"an"), false).unwrap();
                    stream.send_data(Bytes::from_static(b"swer"), false).unwrap();
                    let after =
                        [("grpc-status", "0"), ("content-length", "9"), ("set-cookie", "a=b"), ("x", " 1\t")];
                    stream.send_trailers(trailers(&after)).unwrap();
                }
            })
            .await;
        let listener =
            ListenerSettings { forwarded: ForwardedHeaders::XForwarded, ..listener(Protocol::Http) };
        let (_engine, address) = start(listener, to_second(&[member]));
        let (sender, _end) = client(address).await;
        let mut sender = sender.ready().await.unwrap();
        let request = call().header("x-forwarded-for", "10.0.0.1").header("x-y", "z").body(()).unwrap();
        let (mut response, mut body) = sender.send_request(request, false).unwrap();
        body.send_data(Bytes::from_static(b"ques"), false).unwrap();
        body.send_data(Bytes::from_static(b"tion"), false).unwrap();
        body.send_trailers(trailers(&[
            ("a", "b"),
            ("host", "c"),
            ("authorization", "d"),
            ("x_forwarded_for", "e"),
        ]))
        .unwrap();
        let hints = std::future::poll_fn(|cx| response.poll_informational(cx)).await.unwrap().unwrap();
        assert_eq!((hints.status().as_u16(), &hints.headers()["link"]), (103, &"</a>".parse().unwrap()));
        let (head, content, after) = answer(response).await.unwrap();
        assert_eq!((head.status(), content.as_slice()), (StatusCode::OK, &b"answer"[..]));
        assert_eq!(after, Some(trailers(&[("grpc-status", "0"), ("x", "1")])));
        let (head, content, after) = told.recv().await.unwrap();
        assert_eq!((head.method.as_str(), head.uri.to_string().as_str()), ("POST", "http://web.example/s/M"));
        assert_eq!((content.as_slice(), after), (&b"question"[..], Some(trailers(&[("a", "b")]))));
        let fields = head.headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap()));
        let mut fields: Vec<_> = fields.collect();
        fields.sort();
        let expected = [
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("x-forwarded-for", "127.0.0.1"),
            ("x-forwarded-host", "web.example"),
            ("x-forwarded-proto", "http"),
            ("x-y", "z"),
        ];
        assert_eq!(fields, expected);
    })
    .await;
}

/// Waits until bytes are counted, and no more for a while; returns the count.
async fn settled(count: &AtomicUsize) -> usize {
    until("it begins", || count.load(Relaxed) > 0).await;
    let (mut before, mut same) = (usize::MAX, 0);
    while same < 20 {
        // sleeps: polls; bytes that come later than that are within the limit, too
        tokio::time::sleep(10 * MILLI).await;
        let now = count.load(Relaxed);
        same = if now == before { same + 1 } else { 0 };
        before = now;
    }
    before
}

const PIECE: usize = 1 << 14;
const PIECES: usize = 512;

/// Sends all pieces, and counts bytes.
async fn send_many(stream: &mut SendStream<Bytes>, count: &AtomicUsize) {
    for _ in 0..PIECES {
        if send_all(stream, vec![b'x'; PIECE].into(), false).await.is_err() {
            return;
        }
        count.fetch_add(PIECE, Relaxed);
    }
}

/// Reads all, and returns the number of bytes.
async fn read_all(body: &mut RecvStream) -> usize {
    let mut came = 0;
    while let Some(piece) = body.data().await {
        let piece = piece.unwrap();
        came += piece.len();
        body.flow_control().release_capacity(piece.len()).unwrap();
    }
    came
}

#[tokio::test]
async fn who_reads_slowly_holds_the_other_back() {
    within(async {
        let sent = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&sent);
        let (go, gone) = tokio::sync::watch::channel(false);
        let (member, _) =
            second(100, move |request: Request<RecvStream>, mut respond: server::SendResponse<Bytes>| {
                let (count, mut gone) = (Arc::clone(&count), gone.clone());
                async move {
                    let mut stream = respond.send_response(grpc(), false).unwrap();
                    if request.uri().path() == "/down" {
                        send_many(&mut stream, &count).await;
                    } else {
                        gone.wait_for(|gone| *gone).await.unwrap();
                        count.store(read_all(&mut request.into_body()).await, Relaxed);
                    }
                    stream.send_trailers(trailers(&[("grpc-status", "0")])).unwrap();
                }
            })
            .await;
        let (_engine, address) = http(to_second(&[member]));
        let (sender, _end) = client(address).await;
        let mut sender = sender.ready().await.unwrap();
        let ask = |path: &str| call().uri(format!("http://web.example{path}")).body(()).unwrap();

        let (response, _) = sender.send_request(ask("/down"), true).unwrap();
        let mut body = response.await.unwrap().into_body();
        let taken = settled(&sent).await;
        assert!((1..1 << 20).contains(&taken), "{taken} bytes were taken from the member");
        assert_eq!(read_all(&mut body).await, PIECE * PIECES);
        assert_eq!(body.trailers().await.unwrap().unwrap()["grpc-status"], "0");

        let (response, mut body) = sender.send_request(ask("/up"), false).unwrap();
        let (up, count) = (Arc::new(AtomicUsize::new(0)), sent);
        let counted = Arc::clone(&up);
        let sending = tokio::spawn(async move {
            send_many(&mut body, &counted).await;
            body.send_data(Bytes::new(), true).unwrap();
        });
        let taken = settled(&up).await;
        assert!((1..1 << 20).contains(&taken), "{taken} bytes were taken from the client");
        go.send(true).unwrap();
        sending.await.unwrap();
        let (_, _, after) = answer(response).await.unwrap();
        assert_eq!(
            (after.unwrap()["grpc-status"].as_bytes(), count.load(Relaxed)),
            (&b"0"[..], PIECE * PIECES)
        );
    })
    .await;
}

#[tokio::test]
async fn a_member_without_room_is_not_the_last_word() {
    within(async {
        let mut full = Vec::new();
        load_report::write(
            &LoadReport { reading: Reading::default(), not_processed: Some(NotProcessed::Full) },
            &mut full,
        );
        let line = String::from_utf8(full).unwrap();
        let (name, value) = line.trim_end().split_once(": ").unwrap();
        let field: (http::HeaderName, http::HeaderValue) = (name.parse().unwrap(), value.parse().unwrap());
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let (crowded, _) = second(100, move |_, mut respond: server::SendResponse<Bytes>| {
            count.fetch_add(1, Relaxed);
            let refusal = Response::builder().status(503).header(field.0.clone(), field.1.clone());
            async move {
                let mut stream = respond.send_response(refusal.body(()).unwrap(), false).unwrap();
                stream.send_data(Bytes::from_static(b"no room"), true).unwrap();
            }
        })
        .await;
        let (good, _) = second(100, echo).await;
        let (engine, address) = http(by(to_second(&[crowded, good]), "round_robin"));
        let (sender, _end) = client(address).await;
        for _ in 0..10 {
            let mut sender = sender.clone().ready().await.unwrap();
            let (response, mut body) = sender.send_request(call().body(()).unwrap(), false).unwrap();
            body.send_data(Bytes::from_static(b"once"), true).unwrap();
            let (head, content, _) = answer(response).await.unwrap();
            assert_eq!((head.status(), content.as_slice()), (StatusCode::OK, &b"once"[..]));
        }
        assert!(asked.load(Relaxed) > 0);
        assert_eq!(status_of(&engine, crowded).failures, 0);
    })
    .await;
}

#[tokio::test]
async fn answers_that_say_two_things_are_not_passed_on() {
    within(async {
        let (member, _) = second(
            100,
            |request: Request<RecvStream>, mut respond: server::SendResponse<Bytes>| async move {
                let mut answer = Response::builder().header("content-type", "text/plain");
                if request.uri().path() == "/large" {
                    answer = answer.header("x", "y".repeat(60_000));
                } else {
                    answer = answer.header("content-length", "3").header("content-length", "03");
                }
                let _ = respond.send_response(answer.body(()).unwrap(), true);
            },
        )
        .await;
        let (_engine, address) = http(to_second(&[member]));
        let (sender, _end) = client(address).await;
        for path in ["/large", "/two"] {
            let mut sender = sender.clone().ready().await.unwrap();
            let request = call().uri(format!("http://web.example{path}")).body(()).unwrap();
            let (response, _) = sender.send_request(request, true).unwrap();
            let (head, ..) = answer(response).await.unwrap();
            assert_eq!(head.headers()["grpc-status"], "14", "{path}");
        }
    })
    .await;
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_call_arrives_whole() {
    within(async {
        let (member, _) = second(100, |request, mut respond: server::SendResponse<Bytes>| async move {
            let mut stream = respond.send_response(grpc(), false).unwrap();
            stream.send_data(Bytes::from_static(b"enough"), false).unwrap();
            stream.send_trailers(trailers(&[("grpc-status", "8")])).unwrap();
            // Another side's timeout ends it.
            std::future::pending::<()>().await;
            drop(request);
        })
        .await;
        let (_engine, address) = http(to_second(&[member]));
        let (sender, _end) = client(address).await;
        let mut sender = sender.ready().await.unwrap();
        let (response, mut body) = sender.send_request(call().body(()).unwrap(), false).unwrap();
        body.send_data(Bytes::from_static(b"more to come"), false).unwrap();
        let (head, content, after) = answer(response).await.unwrap();
        assert_eq!((head.status(), content.as_slice()), (StatusCode::OK, &b"enough"[..]));
        assert_eq!(after.unwrap()["grpc-status"], "8");
    })
    .await;
}

#[tokio::test]
async fn a_call_becomes_text_when_its_group_speaks_http_1_by_then() {
    within(async {
        let (go, gone) = tokio::sync::watch::channel(false);
        let (here, mut came) = tokio::sync::mpsc::channel(1);
        let (second, _) =
            second(100, move |request: Request<RecvStream>, mut respond: server::SendResponse<Bytes>| {
                let (mut gone, here) = (gone.clone(), here.clone());
                async move {
                    let (_, mut body) = request.into_parts();
                    while body.data().await.is_some() {}
                    here.send(()).await.unwrap();
                    gone.wait_for(|gone| *gone).await.unwrap();
                    respond.send_reset(h2::Reason::REFUSED_STREAM);
                }
            })
            .await;
        let ok = "HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\nTransfer-Encoding: chunked\r\n\r\n\
                  6\r\nanswer\r\n0\r\ngrpc-status: 0\r\n\r\n";
        let (first, mut told) = plain(ok).await;
        let (engine, address) = http(to_second(&[second]));
        let (sender, _end) = client(address).await;
        let mut sender = sender.ready().await.unwrap();
        let (response, mut body) = sender.send_request(call().body(()).unwrap(), false).unwrap();
        body.send_data(Bytes::from_static(b"question"), true).unwrap();
        came.recv().await.unwrap();
        engine.reload(settings(listener(Protocol::Http), group(&[first])), Vec::new()).unwrap();
        go.send(true).unwrap();
        let (head, content, after) = answer(response).await.unwrap();
        assert_eq!((head.status(), content.as_slice()), (StatusCode::OK, &b"answer"[..]));
        assert_eq!(after.unwrap()["grpc-status"], "0");
        let text = told.recv().await.unwrap();
        assert!(text.starts_with("POST /s/M HTTP/1.1\r\nHost: web.example\r\n"), "{text}");
        assert!(text.ends_with("\r\n\r\n8\r\nquestion\r\n0\r\n\r\n"), "{text}");
    })
    .await;
}
