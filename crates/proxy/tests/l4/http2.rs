//! HTTP/2 with clients and with members, by a client and a server of another implementation.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use h2::server;
use http::{HeaderMap, Request, Response, StatusCode};
use plimsoll_proxy::{BindingMode, GroupSettings, ListenerSettings, Protocol};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::rig::{HOUR, MILLI, by, group, home, listener, start, status, status_of, until, within};
use crate::second::*;

#[tokio::test]
async fn a_stream_is_a_request_to_a_member_of_http_1() {
    within(async {
        let ok = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\nTrailer: \
                  x-sum\r\n\r\n\
                  5\r\nhello\r\n0\r\nX-Sum: 7\r\n\r\n";
        let (member, mut told) = plain(ok).await;
        let (_engine, address) = http(group(&[member]));
        let (sender, _end) = client(address).await;
        let mut sender = sender.ready().await.unwrap();
        let request = Request::post("http://web.example/a?b")
            .header("cookie", "a=1")
            .header("cookie", "b=2")
            .header("te", "trailers");
        let (response, mut body) = sender.send_request(request.body(()).unwrap(), false).unwrap();
        body.send_data(Bytes::from_static(b"abc"), false).unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("x-check", "9".parse().unwrap());
        body.send_trailers(trailers).unwrap();
        let (head, content, trailers) = answer(response).await.unwrap();
        assert_eq!((head.status(), content.as_slice()), (StatusCode::OK, &b"hello"[..]));
        assert_eq!(trailers.unwrap()["x-sum"], "7");
        assert!(
            !head.headers().contains_key("connection") && !head.headers().contains_key("transfer-encoding")
        );
        let asked = told.recv().await.unwrap();
        assert!(asked.starts_with("POST /a?b HTTP/1.1\r\nHost: web.example\r\n"), "{asked}");
        assert!(asked.contains("\r\ncookie: a=1; b=2\r\n"), "{asked}");
        assert!(asked.contains("\r\nX-Forwarded-For: 127.0.0.1\r\n"), "{asked}");
        assert!(asked.ends_with("\r\n\r\n3\r\nabc\r\n0\r\nx-check: 9\r\n\r\n"), "{asked}");
    })
    .await;
}

#[tokio::test]
async fn members_of_http_1_say_in_trailers_how_loaded_they_are() {
    const SAYS: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum, \
                        Endpoint-Load-Metrics\r\n\r\n\
                        5\r\nhello\r\n0\r\nX-Sum: 7\r\nendpoint-load-metrics: TEXT \
                        cpu_utilization=0.3\r\n\r\n";
    within(async {
        let (member, _told) = plain(SAYS).await;
        for strip_reports in [true, false] {
            let sample_reports = Some(std::time::Duration::from_nanos(1));
            let (engine, address) = http(GroupSettings { strip_reports, sample_reports, ..group(&[member]) });
            let mut said = engine.report_samples().unwrap();
            let (sender, _end) = client(address).await;
            let (_, content, trailers) = get(&sender, "/").await.unwrap();
            let trailers = trailers.unwrap();
            assert_eq!((content.as_slice(), &trailers["x-sum"]), (&b"hello"[..], &"7".parse().unwrap()));
            assert_eq!(trailers.contains_key("endpoint-load-metrics"), !strip_reports);
            let mut old = TcpStream::connect(address).await.unwrap();
            old.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
            let mut text = String::new();
            old.read_to_string(&mut text).await.unwrap();
            assert!(text.contains("\r\n5\r\nhello\r\n0\r\nX-Sum: 7\r\n"), "{text}");
            assert_eq!(text.contains("cpu_utilization"), !strip_reports, "{text}");
            for _ in 0..2 {
                let heard = said.recv().await.unwrap();
                assert_eq!(heard.values, [("cpu_utilization".to_owned(), 0.3)]);
            }
        }
    })
    .await;
}

#[tokio::test]
async fn one_listener_speaks_both_versions() {
    within(async {
        let (member, _told) = plain("HTTP/1.1 204 No Content\r\n\r\n").await;
        let (_engine, address) = http(group(&[member]));
        let (sender, _end) = client(address).await;
        assert_eq!(get(&sender, "/").await.unwrap().0.status(), StatusCode::NO_CONTENT);
        let mut old = TcpStream::connect(address).await.unwrap();
        old.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut text = [0; 12];
        old.read_exact(&mut text).await.unwrap();
        assert_eq!(&text, b"HTTP/1.1 204");
        // Byte by byte it is the same.
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.set_nodelay(true).unwrap();
        for byte in b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0" {
            slow.write_all(&[*byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        let mut frame = [0; 9];
        slow.read_exact(&mut frame).await.unwrap();
        assert_eq!(frame[3], 4, "settings come first: {frame:?}");
    })
    .await;
}

#[tokio::test]
async fn requests_share_a_members_connection_and_trailers_go_both_ways() {
    within(async {
        let (member, connections) = second(100, echo).await;
        let (engine, address) = http(to_second(&[member]));
        let (sender, _end) = client(address).await;
        for number in 0..50 {
            let mut sender = sender.clone().ready().await.unwrap();
            let request = call().body(()).unwrap();
            let (response, mut body) = sender.send_request(request, false).unwrap();
            let text = format!("message {number}");
            body.send_data(text.clone().into(), false).unwrap();
            let mut trailers = HeaderMap::new();
            trailers.insert("x-number", number.into());
            body.send_trailers(trailers).unwrap();
            let (head, content, trailers) = answer(response).await.unwrap();
            assert_eq!((head.status(), content), (StatusCode::OK, text.into_bytes()));
            assert_eq!(head.headers()["x-te"], "trailers");
            let trailers = trailers.unwrap();
            assert_eq!(
                (&trailers["x-number"], &trailers["grpc-status"]),
                (&number.into(), &"0".parse().unwrap())
            );
        }
        assert_eq!(connections.load(Relaxed), 1);
        // HTTP/1.1 as well.
        let mut old = TcpStream::connect(address).await.unwrap();
        old.write_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc")
            .await
            .unwrap();
        let mut text = String::new();
        old.read_to_string(&mut text).await.unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains("\r\n3\r\nabc\r\n0\r\n"), "{text}");
        assert!(text.ends_with("\r\ngrpc-status: 0\r\n\r\n"), "{text}");
        until("all are counted", || status_of(&engine, member).requests == 51).await;
    })
    .await;
}

#[tokio::test]
async fn no_more_streams_are_opened_than_a_member_takes() {
    within(async {
        let running = Arc::new(AtomicUsize::new(0));
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let (count, wait) = (Arc::clone(&running), Arc::clone(&gate));
        let (member, connections) = second(2, move |_, mut respond: server::SendResponse<Bytes>| {
            let (count, wait) = (Arc::clone(&count), Arc::clone(&wait));
            async move {
                count.fetch_add(1, Relaxed);
                let _ = wait.acquire().await.unwrap();
                let _ = respond.send_response(Response::new(()), true);
            }
        })
        .await;
        let (_engine, address) = http(to_second(&[member]));
        let (sender, _end) = client(address).await;
        let asked: Vec<_> = (0..6)
            .map(|_| {
                let sender = sender.clone();
                tokio::spawn(async move { get(&sender, "/").await.unwrap().0.status() })
            })
            .collect();
        until("all six run", || running.load(Relaxed) == 6).await;
        assert_eq!(connections.load(Relaxed), 3);
        gate.add_permits(6);
        for one in asked {
            assert_eq!(one.await.unwrap(), StatusCode::OK);
        }
    })
    .await;
}

/// Starts a member that declares with a frame that it did not process the first stream, which it received
/// completely.
async fn unwilling(frame: &'static [u8]) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(home()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let count = Arc::clone(&count);
            tokio::spawn(async move {
                let mut preface = [0; 24];
                stream.read_exact(&mut preface).await.unwrap();
                stream.write_all(b"\0\0\0\x04\0\0\0\0\0").await.unwrap();
                loop {
                    let mut head = [0; 9];
                    if stream.read_exact(&mut head).await.is_err() {
                        return;
                    }
                    let len = usize::from(head[1]) << 8 | usize::from(head[2]);
                    stream.read_exact(&mut vec![0; len]).await.unwrap();
                    // The end of the request.
                    if matches!(head[3], 0 | 1) && head[4] & 1 == 1 {
                        count.fetch_add(1, Relaxed);
                        let mut frame = frame.to_vec();
                        // A reset is for this stream, a GOAWAY for the connection.
                        if frame[3] == 3 {
                            frame[5..9].copy_from_slice(&head[5..]);
                        }
                        stream.write_all(&frame).await.unwrap();
                    }
                }
            });
        }
    });
    (address, seen)
}

#[tokio::test]
async fn what_a_member_did_not_process_is_sent_again_elsewhere() {
    // GOAWAY with no stream processed, and REFUSED_STREAM.
    const AWAY: &[u8] = b"\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\0";
    const REFUSED: &[u8] = b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\x07";
    within(async {
        for frame in [AWAY, REFUSED] {
            let (away, seen) = unwilling(frame).await;
            let (good, _) = second(100, echo).await;
            let (_engine, address) = http(by(to_second(&[away, good]), "round_robin"));
            let (sender, _end) = client(address).await;
            for _ in 0..4 {
                let mut sender = sender.clone().ready().await.unwrap();
                // Not idempotent: it must not be executed twice.
                let (response, mut body) = sender.send_request(call().body(()).unwrap(), false).unwrap();
                body.send_data(Bytes::from_static(b"once"), true).unwrap();
                let (head, content, _) = answer(response).await.unwrap();
                assert_eq!((head.status(), content.as_slice()), (StatusCode::OK, &b"once"[..]));
            }
            assert!(seen.load(Relaxed) > 0, "it was asked");
        }
    })
    .await;
}

#[tokio::test]
async fn a_slow_client_holds_the_member_back() {
    const ALL: usize = 48 << 20;
    within(async {
        let sent = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&sent);
        let (member, _) = second(100, move |_, mut respond: server::SendResponse<Bytes>| {
            let count = Arc::clone(&count);
            async move {
                let mut stream = respond.send_response(Response::new(()), false).unwrap();
                let piece = Bytes::from(vec![b'x'; 1 << 16]);
                for _ in 0..ALL >> 16 {
                    if send_all(&mut stream, piece.clone(), false).await.is_err() {
                        return;
                    }
                    count.fetch_add(piece.len(), Relaxed);
                }
                stream.send_data(Bytes::new(), true).unwrap();
            }
        })
        .await;
        let (_engine, address) = http(to_second(&[member]));
        let (sender, _end) = client(address).await;
        let mut sender = sender.ready().await.unwrap();
        let request = Request::get("http://web.example/").body(()).unwrap();
        let (response, _) = sender.send_request(request, true).unwrap();
        let mut body = response.await.unwrap().into_body();
        // The client reads nothing: the number of sent bytes stays constant.
        let mut before = 0;
        let mut same = 0;
        while same < 20 {
            // sleeps: polls
            tokio::time::sleep(20 * MILLI).await;
            let now = sent.swap(sent.load(Relaxed), Relaxed);
            same = if now == before { same + 1 } else { 0 };
            before = now;
        }
        assert!(before < 2 << 20, "{before} bytes were taken from the member");
        let mut came = 0;
        while let Some(piece) = body.data().await {
            let piece = piece.unwrap();
            came += piece.len();
            body.flow_control().release_capacity(piece.len()).unwrap();
        }
        assert_eq!(came, ALL);
    })
    .await;
}

/// Stalled clients share a member's connection with others, and more bytes are in transit to them than fit
/// into one connection's window.
#[tokio::test]
async fn clients_that_do_not_read_hold_up_nobody_else() {
    within(async {
        let (member, _) = second(100, |request, mut respond: server::SendResponse<Bytes>| async move {
            let mut stream = respond.send_response(Response::new(()), false).unwrap();
            let piece = Bytes::from(vec![b'x'; 1 << 16]);
            let pieces = if request.uri().path() == "/large" { 64 } else { 0 };
            for _ in 0..pieces {
                if send_all(&mut stream, piece.clone(), false).await.is_err() {
                    return;
                }
            }
            let _ = stream.send_data(Bytes::from_static(b"small"), true);
        })
        .await;
        let (_engine, address) = http(to_second(&[member]));
        let (sender, _end) = client(address).await;
        let mut sender = sender.ready().await.unwrap();
        let mut stalled = Vec::new();
        for _ in 0..20 {
            let request = Request::get("http://web.example/large").body(()).unwrap();
            stalled.push(sender.send_request(request, true).unwrap().0.await.unwrap());
        }
        // Some time for all bytes to arrive that can.
        for _ in 0..20 {
            let (sender, _end) = client(address).await;
            let mut sender = sender.ready().await.unwrap();
            let request = Request::get("http://web.example/small").body(()).unwrap();
            let mut body = sender.send_request(request, true).unwrap().0.await.unwrap().into_body();
            assert_eq!(body.data().await.unwrap().unwrap(), "small");
            // sleeps: paces the clients
            tokio::time::sleep(10 * MILLI).await;
        }
        assert_eq!(stalled.len(), 20);
    })
    .await;
}

#[tokio::test]
async fn streams_under_way_end_when_the_process_stops() {
    within(async {
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let wait = Arc::clone(&gate);
        let (member, connections) = second(100, move |_, mut respond: server::SendResponse<Bytes>| {
            let wait = Arc::clone(&wait);
            async move {
                let _ = wait.acquire().await.unwrap();
                let _ = respond.send_response(Response::new(()), true);
            }
        })
        .await;
        let mut settings = crate::rig::settings(listener(Protocol::Http), to_second(&[member]));
        settings.drain_deadline = HOUR;
        let (engine, address) = crate::rig::start_with(settings);
        let (sender, end) = client(address).await;
        let asked: Vec<_> = (0..5)
            .map(|_| {
                let sender = sender.clone();
                tokio::spawn(async move { get(&sender, "/").await.unwrap().0.status() })
            })
            .collect();
        until("they are under way", || status(&engine).members[0].in_flight == 5).await;
        // They are counted before the member has accepted their connection.
        until("the member has a connection", || connections.load(Relaxed) > 0).await;
        assert_eq!(connections.load(Relaxed), 1);
        let engine = Arc::new(engine);
        let stopping = Arc::clone(&engine);
        let stopping = tokio::spawn(async move { stopping.stop().await });
        // After GOAWAY, the client's side ends by itself once these are answered.
        let late = sender.clone();
        until("the client knows", || {
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            matches!(late.clone().poll_ready(&mut cx), std::task::Poll::Ready(Err(_)))
        })
        .await;
        gate.add_permits(5);
        for one in asked {
            assert_eq!(one.await.unwrap(), StatusCode::OK);
        }
        end.await.unwrap().unwrap();
        assert_eq!(stopping.await.unwrap(), 0);
    })
    .await;
}

#[tokio::test]
async fn a_connection_is_a_session() {
    within(async {
        let (one, _told) = plain("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1").await;
        let (two, _told) = plain("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n2").await;
        let bound = ListenerSettings { binding: BindingMode::PerSession, ..listener(Protocol::Http) };
        let (_engine, address) = start(bound, by(group(&[one, two]), "round_robin"));
        let mut all = Vec::new();
        for _ in 0..4 {
            let (sender, _end) = client(address).await;
            let first = get(&sender, "/").await.unwrap().1;
            for _ in 0..5 {
                assert_eq!(get(&sender, "/").await.unwrap().1, first);
            }
            all.push(first);
        }
        assert!(all.contains(&b"1".to_vec()) && all.contains(&b"2".to_vec()), "{all:?}");
    })
    .await;
}

/// A call's message and its end are one frame if they arrived as one.
#[tokio::test]
async fn a_body_that_is_all_there_is_one_frame() {
    within(async {
        let (member, _) = second(100, |request, mut respond: server::SendResponse<Bytes>| async move {
            let mut body = request.into_body();
            let data = body.data().await.unwrap().unwrap();
            let status = if data == "message" && body.is_end_stream() { 200 } else { 400 };
            let _ = respond.send_response(Response::builder().status(status).body(()).unwrap(), true);
        })
        .await;
        let (_engine, address) = http(to_second(&[member]));
        let (sender, _end) = client(address).await;
        let mut sender = sender.ready().await.unwrap();
        let (answer, mut body) =
            sender.send_request(Request::post("http://web.example/").body(()).unwrap(), false).unwrap();
        body.send_data(Bytes::from_static(b"message"), true).unwrap();
        assert_eq!(answer.await.unwrap().status(), StatusCode::OK);
    })
    .await;
}
