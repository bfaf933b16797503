//! Failures between the balancer and HTTP/2 members.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::{RecvStream, server};
use http::{HeaderMap, Request, Response, StatusCode};
use plimsoll_proxy::{GroupSettings, MemberTimeouts, Protocol, RetrySettings, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::frames::*;
use crate::rig::{
    MILLI, MINUTE, SECOND, by, group, home, listener, settings, start_with, status_of, until, within,
};
use crate::second::*;

/// The maximum time without any bytes from a member. Its connection is made before that applies: it has a
/// minute for that.
const CONNECT: Duration = Duration::from_millis(200);

/// Returns a group with ample time limits, and one whose members may be silent for `CONNECT` and have
/// `per_try` for a response.
fn patient_and_hasty(member: SocketAddr, per_try: Duration) -> [Settings; 2] {
    let group = to_second(&[member]);
    let patient = GroupSettings { retry: RetrySettings { attempts: 0, ..group.retry }, ..group };
    let timeouts = MemberTimeouts { connect: CONNECT, per_try, ..patient.timeouts };
    let hasty = GroupSettings { timeouts, ..patient.clone() };
    [patient, hasty].map(|group| settings(listener(Protocol::Http), group))
}

/// Starts a member whose first connection answers one request and then hangs. Returns the numbers of its
/// connections and requests, too.
async fn hanging() -> (SocketAddr, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let (member, connections) = raw_member(move |number, stream| {
        count.fetch_add(1, Relaxed);
        (if number == 1 && stream > 1 { Vec::new() } else { ok(stream) }, true)
    })
    .await;
    (member, connections, asked)
}

async fn status_to(sender: &Sender) -> StatusCode {
    get(sender, "/").await.unwrap().0.status()
}

#[tokio::test]
async fn a_connection_on_which_nothing_is_heard_gets_no_new_requests() {
    within(async {
        let (member, connections, _) = hanging().await;
        let [patient, hasty] = patient_and_hasty(member, 2 * CONNECT);
        let (engine, address) = start_with(patient.clone());
        let (sender, _end) = client(address).await;
        assert_eq!(status_to(&sender).await, StatusCode::OK);
        engine.reload(hasty, Vec::new()).unwrap();
        assert_eq!(status_to(&sender).await, StatusCode::GATEWAY_TIMEOUT);
        engine.reload(patient, Vec::new()).unwrap();
        for _ in 0..3 {
            assert_eq!(status_to(&sender).await, StatusCode::OK);
        }
        assert_eq!(connections.load(Relaxed), 2);
    })
    .await;
}

#[tokio::test]
async fn clients_that_give_up_say_as_much_of_a_connection() {
    within(async {
        let (member, connections, asked) = hanging().await;
        let [patient, hasty] = patient_and_hasty(member, MINUTE);
        let (engine, address) = start_with(patient.clone());
        let (sender, _end) = client(address).await;
        assert_eq!(status_to(&sender).await, StatusCode::OK);
        engine.reload(hasty, Vec::new()).unwrap();
        let hangs = sender.clone();
        let hangs = tokio::spawn(async move { status_to(&hangs).await });
        until("the member has it", || asked.load(Relaxed) == 2).await;
        // sleeps: for longer than it may be silent
        tokio::time::sleep(2 * CONNECT).await;
        hangs.abort();
        until("it is noticed", || status_of(&engine, member).in_flight == 0).await;
        engine.reload(patient, Vec::new()).unwrap();
        assert_eq!(status_to(&sender).await, StatusCode::OK);
        assert_eq!(connections.load(Relaxed), 2);
    })
    .await;
}

#[tokio::test]
async fn a_slow_answer_does_not_make_a_connection_dead() {
    within(async { while !others_are_heard_meanwhile().await {} }).await;
}

/// Returns `false` if the machine was suspended for so long that no bytes could arrive.
async fn others_are_heard_meanwhile() -> bool {
    let (member, connections) = second(100, |request, mut respond: server::SendResponse<Bytes>| async move {
        if request.uri().path() == "/slow" {
            std::future::pending::<()>().await;
        }
        let _ = respond.send_response(Response::new(()), true);
    })
    .await;
    let [patient, hasty] = patient_and_hasty(member, 2 * CONNECT);
    let (engine, address) = start_with(patient.clone());
    let (sender, _end) = client(address).await;
    assert_eq!(status_to(&sender).await, StatusCode::OK);
    until("it is counted", || status_of(&engine, member).in_flight == 0).await;
    engine.reload(hasty, Vec::new()).unwrap();
    let (slow, mut last) = (sender.clone(), Instant::now());
    let slow = tokio::spawn(async move { get(&slow, "/slow").await.unwrap().0.status() });
    until("it is under way", || status_of(&engine, member).in_flight == 1 || slow.is_finished()).await;
    // It is abandoned by the time limit of its begin; the others have time.
    engine.reload(patient, Vec::new()).unwrap();
    let mut silence = Duration::ZERO;
    while !slow.is_finished() {
        let now = Instant::now();
        assert_eq!(status_to(&sender).await, StatusCode::OK);
        silence = silence.max(last.elapsed());
        last = now;
        // sleeps: paces the client
        tokio::time::sleep(10 * MILLI).await;
    }
    silence = silence.max(last.elapsed());
    assert_eq!(slow.await.unwrap(), StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(status_to(&sender).await, StatusCode::OK);
    // bound: the time without any bytes that is permitted; a longer time decides nothing
    if silence > CONNECT * 4 / 5 {
        return false;
    }
    assert_eq!(connections.load(Relaxed), 1);
    true
}

#[tokio::test]
async fn a_member_that_has_nothing_more_to_say_is_not_dead() {
    within(async {
        // It begins each response, and does not complete it.
        let (member, connections) =
            raw_member(|_, stream| (frame(HEADERS, END_HEADERS, stream, &[0x88]), true)).await;
        let [patient, hasty] = patient_and_hasty(member, MINUTE);
        let (engine, address) = start_with(patient);
        let (sender, _end) = client(address).await;
        for turn in 0..4 {
            let mut sender = sender.clone().ready().await.unwrap();
            let request = Request::get("http://web.example/watch").body(()).unwrap();
            let watched = sender.send_request(request, true).unwrap().0.await.unwrap();
            if turn == 0 {
                engine.reload(hasty.clone(), Vec::new()).unwrap();
            }
            // sleeps: for longer than it may be silent before a response has begun
            tokio::time::sleep(2 * CONNECT).await;
            drop(watched);
            until("it is over", || status_of(&engine, member).in_flight == 0).await;
        }
        assert_eq!(connections.load(Relaxed), 1);
    })
    .await;
}

/// The code REFUSED_STREAM.
const REFUSED: u32 = 7;

#[tokio::test]
async fn what_a_member_declines_goes_to_another_and_not_by_a_new_connection() {
    within(async {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let (declines, connections) = raw_member(move |_, stream| {
            count.fetch_add(1, Relaxed);
            (reset(stream, REFUSED), true)
        })
        .await;
        let (good, _) = second(100, echo).await;
        let (engine, address) = http(by(to_second(&[declines, good]), "round_robin"));
        let (sender, _end) = client(address).await;
        for _ in 0..20 {
            let mut sender = sender.clone().ready().await.unwrap();
            let (response, mut body) = sender.send_request(call().body(()).unwrap(), false).unwrap();
            body.send_data(Bytes::from_static(b"once"), true).unwrap();
            let (head, content, _) = answer(response).await.unwrap();
            assert_eq!((head.status(), content.as_slice()), (StatusCode::OK, &b"once"[..]));
        }
        assert_eq!(connections.load(Relaxed), 1);
        assert!((5..=20).contains(&asked.load(Relaxed)), "{}", asked.load(Relaxed));
        assert_eq!(status_of(&engine, declines).failures, 0);
    })
    .await;
}

#[tokio::test]
async fn what_a_member_declines_waits_for_another_that_has_no_room_yet() {
    within(async {
        let (declines, _) = raw_member(|_, stream| (reset(stream, REFUSED), true)).await;
        let (slow, _) = second(100, |_, mut respond: server::SendResponse<Bytes>| async move {
            // sleeps: the member's service time
            tokio::time::sleep(CONNECT).await;
            let _ = respond.send_response(Response::new(()), true);
        })
        .await;
        let mut group = to_second(&[declines, slow]);
        group.spec.members[1].limit = 1;
        let (engine, address) = http(group);
        let (sender, _end) = client(address).await;
        let asked: Vec<_> = (0..3)
            .map(|_| {
                let sender = sender.clone();
                tokio::spawn(async move { get(&sender, "/").await.unwrap().0.status() })
            })
            .collect();
        for one in asked {
            assert_eq!(one.await.unwrap(), StatusCode::OK);
        }
        until("all are counted", || status_of(&engine, slow).requests == 3).await;
    })
    .await;
}

#[tokio::test]
async fn who_is_alone_is_asked_four_times() {
    within(async {
        // It declines each stream but every fifth.
        let (member, connections) = raw_member(|_, stream| match stream % 10 {
            9 => (ok(stream), true),
            _ => (reset(stream, REFUSED), true),
        })
        .await;
        let (_engine, address) = http(to_second(&[member]));
        let (sender, _end) = client(address).await;
        // Streams 1 to 7; 9; 11 to 17; 19.
        for expected in [502, 200, 502, 200] {
            assert_eq!(get(&sender, "/").await.unwrap().0.status(), expected);
        }
        assert_eq!(connections.load(Relaxed), 1);
    })
    .await;
}

#[tokio::test]
async fn a_client_that_takes_back_an_upload_frees_the_member_that_does_not_read_it() {
    within(async {
        let told = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&told);
        let (deaf, _) =
            second(100, move |request: Request<RecvStream>, mut respond: server::SendResponse<Bytes>| {
                let count = Arc::clone(&count);
                async move {
                    // It keeps the body and does not read it.
                    let _request = request;
                    if std::future::poll_fn(|cx| respond.poll_reset(cx)).await.is_ok() {
                        count.fetch_add(1, Relaxed);
                    }
                }
            })
            .await;
        let old = TcpListener::bind(home()).await.unwrap();
        let plain = old.local_addr().unwrap();
        // It runs, accepts connections, and reads nothing from them.
        tokio::spawn(async move {
            let mut kept = Vec::new();
            while let Ok((stream, _)) = old.accept().await {
                kept.push(stream);
            }
        });
        for (group, member) in [(to_second(&[deaf]), deaf), (group(&[plain]), plain)] {
            let (engine, address) = http(group);
            let (sender, _end) = client(address).await;
            let mut sender = sender.ready().await.unwrap();
            let request = Request::post("http://web.example/").body(()).unwrap();
            let (_response, mut body) = sender.send_request(request, false).unwrap();
            until("it is under way", || status_of(&engine, member).in_flight == 1).await;
            // As much as is accepted, until nothing more is for a while.
            let piece = Bytes::from(vec![b'x'; 1 << 16]);
            while let Ok(sent) = tokio::time::timeout(SECOND, send_all(&mut body, piece.clone(), false)).await
            {
                sent.unwrap();
            }
            assert_eq!(status_of(&engine, member).in_flight, 1);
            body.send_reset(h2::Reason::CANCEL);
            until("its place is free", || status_of(&engine, member).in_flight == 0).await;
        }
        until("the member of HTTP/2 is told", || told.load(Relaxed) == 1).await;
    })
    .await;
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_reset() {
    within(async {
        let listener = TcpListener::bind(home()).await.unwrap();
        let old = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 4096]).await.unwrap();
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").await.unwrap();
            }
        });
        let (new, _) = raw_member(|_, stream| (broken(stream), false)).await;
        for group in [group(&[old]), to_second(&[new])] {
            let (_engine, address) = http(group);
            let (sender, _end) = client(address).await;
            let error = get(&sender, "/").await.unwrap_err();
            assert!(error.is_reset() && error.is_remote(), "{error}");
            assert_eq!(error.reason(), Some(h2::Reason::INTERNAL_ERROR));
        }
    })
    .await;
}

/// Returns the beginning of a response.
fn broken(stream: u32) -> Vec<u8> {
    [frame(HEADERS, END_HEADERS, stream, &[0x88]), frame(DATA, 0, stream, b"\0\0\0\0\x04half")].concat()
}

#[tokio::test]
async fn a_call_that_breaks_off_is_unavailable() {
    within(async {
        let (member, _) = raw_member(|_, stream| (broken(stream), false)).await;
        let (engine, address) = http(to_second(&[member]));
        let (sender, _end) = client(address).await;
        let mut sender = sender.ready().await.unwrap();
        let (response, _) = sender.send_request(call().body(()).unwrap(), true).unwrap();
        let (head, content, trailers) = answer(response).await.unwrap();
        assert_eq!((head.status(), content.as_slice()), (StatusCode::OK, &b"\0\0\0\0\x04half"[..]));
        assert_eq!(trailers.unwrap()["grpc-status"], "14");
        until("it is counted", || status_of(&engine, member).failures == 1).await;
    })
    .await;
}

#[tokio::test]
async fn a_call_that_lasts_too_long_in_its_answer_is_told_so() {
    within(async {
        let (member, _) = raw_member(|_, stream| (broken(stream), true)).await;
        let (engine, address) = http(to_second(&[member]));
        let (sender, _end) = client(address).await;
        // If that is too short for the response to begin, the next one has longer.
        let mut patience = ["150m", "3S", "30S"].into_iter();
        loop {
            let mut sender = sender.clone().ready().await.unwrap();
            let patience = patience.next().expect("an answer that begins in time");
            let request = call().header("grpc-timeout", patience).body(()).unwrap();
            let (response, _) = sender.send_request(request, true).unwrap();
            let (head, content, trailers) = answer(response).await.unwrap();
            assert_eq!(trailers.as_ref().unwrap_or_else(|| head.headers())["grpc-status"], "4");
            if !content.is_empty() {
                break assert_eq!((content.len(), trailers.is_some()), (9, true));
            }
        }
        assert_eq!(status_of(&engine, member).failures, 0);
    })
    .await;
}

#[tokio::test]
async fn targets_reach_members_of_both_versions() {
    const TARGET: &str = "/a<b>`c`{\"d\"}?<e>\"f\"`";
    within(async {
        let (new, _) = second(100, |request, mut respond: server::SendResponse<Bytes>| async move {
            let path = request.uri().path_and_query().unwrap().as_str().to_owned();
            let answer = Response::builder().header("x-path", path).body(()).unwrap();
            let _ = respond.send_response(answer, true);
        })
        .await;
        let (old, mut told) = plain("HTTP/1.1 204 No Content\r\n\r\n").await;
        let ask = async |group, target: &str| {
            let (_engine, address) = http(group);
            let mut stream = TcpStream::connect(address).await.unwrap();
            let text = format!("GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            stream.write_all(text.as_bytes()).await.unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).await.unwrap();
            text
        };
        let text = ask(to_second(&[new]), TARGET).await;
        assert!(text.contains("\r\nx-path: /a%3Cb%3E%60c%60{\"d\"}?%3Ce%3E%22f%22`\r\n"), "{text}");
        assert!(ask(group(&[old]), TARGET).await.starts_with("HTTP/1.1 204"));
        let asked = told.recv().await.unwrap();
        assert!(asked.starts_with(&format!("GET {TARGET} HTTP/1.1\r\n")), "{asked}");
        assert!(ask(to_second(&[new]), "/a#b").await.starts_with("HTTP/1.1 400"));
    })
    .await;
}

#[tokio::test]
async fn members_say_in_trailers_how_loaded_they_are() {
    within(async {
        // The value 0.3 of cpu_utilization.
        const REPORT: &str = "CTMzMzMzM9M/";
        let (member, _) = second(
            100,
            |request: Request<RecvStream>, mut respond: server::SendResponse<Bytes>| async move {
                let answer = Response::builder().header("content-type", "application/grpc");
                if request.headers().contains_key("x-alone") {
                    // Only a head.
                    let answer =
                        answer.header("endpoint-load-metrics-bin", REPORT).header("grpc-status", "0");
                    respond.send_response(answer.body(()).unwrap(), true).unwrap();
                    return;
                }
                let mut stream = respond.send_response(answer.body(()).unwrap(), false).unwrap();
                stream.send_data(Bytes::from_static(b"\0\0\0\0\0"), false).unwrap();
                let mut trailers = HeaderMap::new();
                match request.headers().get("x-text") {
                    Some(text) => trailers.insert("endpoint-load-metrics", text.clone()),
                    None => trailers.insert("endpoint-load-metrics-bin", REPORT.parse().unwrap()),
                };
                trailers.insert("grpc-status", "0".parse().unwrap());
                stream.send_trailers(trailers).unwrap();
            },
        )
        .await;
        for strip_reports in [true, false] {
            let group = to_second(&[member]);
            let (engine, address) =
                http(GroupSettings { strip_reports, sample_reports: Some(Duration::from_nanos(1)), ..group });
            let mut said = engine.report_samples().unwrap();
            let (sender, _end) = client(address).await;
            for (field, value) in [
                ("x-bin", ""),
                ("x-text", "TEXT cpu_utilization=0.3"),
                ("x-text", "JSON {\"cpu_utilization\": 0.3}"),
                ("x-alone", ""),
            ] {
                let mut sender = sender.clone().ready().await.unwrap();
                let (response, _) =
                    sender.send_request(call().header(field, value).body(()).unwrap(), true).unwrap();
                let (head, _, trailers) = answer(response).await.unwrap();
                let last = trailers.unwrap_or_else(|| head.headers().clone());
                assert_eq!(last["grpc-status"], "0");
                let seen = last.keys().any(|name| name.as_str().starts_with("endpoint-load-metrics"));
                assert_eq!(seen, !strip_reports, "{field} {value}");
                let heard = said.recv().await.unwrap();
                assert_eq!(&*heard.member, member.to_string());
                assert_eq!(heard.values, [("cpu_utilization".to_owned(), 0.3)]);
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_members_connection_ends_before_its_mistakes_end_it() {
    within(async {
        // Empty DATA, as some servers send it to flush: h2 ends a connection after 100 of them.
        let (member, connections) = raw_member(|_, stream| {
            let head = frame(HEADERS, END_HEADERS, stream, &[0x88]);
            ([head, frame(DATA, 0, stream, b""), frame(DATA, END_STREAM, stream, b"ok")].concat(), true)
        })
        .await;
        let (_engine, address) = http(to_second(&[member]));
        let (sender, _end) = client(address).await;
        for number in 0..250 {
            let (head, content, _) =
                get(&sender, "/").await.unwrap_or_else(|error| panic!("{number}: {error}"));
            assert_eq!((head.status(), content.as_slice()), (StatusCode::OK, &b"ok"[..]), "{number}");
        }
        assert_eq!(connections.load(Relaxed), 5);
    })
    .await;
}

#[tokio::test]
async fn what_a_member_says_wrongly_is_a_bad_answer_and_no_reset() {
    within(async {
        // A name in upper case, an invalid status, a pseudo-field behind a field, DATA before a head, a block
        // that is no HPACK.
        let wrong: [fn(u32) -> Vec<u8>; 5] = [
            |stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &[0x88, 0, 1, b'X', 1, b'y']),
            |stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &[8, 2, b'2', b'0']),
            |stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &[0x88, 0, 1, b'x', 1, b'y', 0x88]),
            |stream| frame(DATA, END_STREAM, stream, b"early"),
            |stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &[0xff, 0xff, 0xff, 0xff]),
        ];
        for (place, wrong) in wrong.into_iter().enumerate() {
            let (member, _) = raw_member(move |_, stream| (wrong(stream), true)).await;
            let (_engine, address) = http(to_second(&[member]));
            let (sender, _end) = client(address).await;
            let (head, ..) = get(&sender, "/").await.unwrap();
            assert_eq!(head.status(), StatusCode::BAD_GATEWAY, "{place}");
            assert_eq!(head.headers()["plimsoll-reason"], "bad_answer", "{place}");
        }
        // A member that closes before it has responded made no other error.
        let (member, _) = raw_member(|_, _| (Vec::new(), false)).await;
        let (_engine, address) = http(to_second(&[member]));
        let (sender, _end) = client(address).await;
        let (head, ..) = get(&sender, "/").await.unwrap();
        assert_eq!(head.headers()["plimsoll-reason"], "reset");
    })
    .await;
}
