//! The test member, accessed over raw sockets.

#![expect(clippy::unwrap_used, reason = "a test ends where it fails")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use plimsoll_bench::member::{self, FailureResponse, MemberProtocol, MemberSpec};
use plimsoll_bench::rng::SplitMix64;
use tokio::sync::oneshot;

mod iiop;
mod metered;
mod operator;
mod rig;
mod sharing;
mod steps;
mod telling;

use rig::*;

const PAGE: &str =
    "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-type: text/plain\r\nx-member: m1\r\n\r\nm1\n";

#[test]
fn keeps_alive_and_answers_pipelined_requests_in_order() {
    let m1 = member(|_| {});
    let mut stream = m1.connect();
    for _ in 0..3 {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        assert_eq!(until(&mut stream, "m1\n"), PAGE);
    }
    let three = "GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(2)
        + "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let last = PAGE.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
    assert_eq!(m1.say(&three, ""), format!("{PAGE}{PAGE}{last}"));
}

#[test]
fn requests_in_any_pieces() {
    let m1 = member(|spec| spec.protocol = MemberProtocol::HttpEcho);
    let request =
        "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n0\r\nt: 1\r\n\r\n";
    let mut stream = m1.connect();
    for byte in request.as_bytes() {
        stream.write_all(&[*byte]).unwrap();
        std::thread::yield_now();
    }
    let text = until(&mut stream, "\r\n0\r\n\r\n");
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("transfer-encoding: chunked"), "{head}");
    let echoed = "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut plain = String::new();
    let mut rest = body;
    while let Some((size, more)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        plain += &more[..size];
        rest = &more[size + 2..];
    }
    assert_eq!(plain, format!("{echoed}abc"));
}

#[test]
fn head_has_the_length_but_not_the_body() {
    let m1 = member(|spec| spec.body_length = Some(5000));
    let text = m1
        .say("HEAD / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "");
    let answers: Vec<&str> = text.splitn(3, "\r\n\r\n").collect();
    assert!(answers[0].contains("content-length: 5000") && answers[1].contains("content-length: 5000"));
    assert!(answers[1].starts_with("HTTP/1.1 200"), "{text}");
    assert_eq!(answers[2].len(), 5000);
}

#[test]
fn bodies_are_drained_before_the_next_request() {
    let m1 = member(|_| {});
    let requests = format!(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n{}\
         PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n\
         GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        "x".repeat(100_000)
    );
    assert_eq!(m1.say(&requests, "").matches("HTTP/1.1 200 OK").count(), 3);
}

#[test]
fn waits_for_the_body_after_100_continue() {
    let m1 = member(|spec| spec.protocol = MemberProtocol::HttpEcho);
    let mut stream = m1.connect();
    stream
        .write_all(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        .unwrap();
    let text = until(&mut stream, "\r\n\r\n");
    assert!(text.starts_with("HTTP/1.1 100 Continue\r\n\r\n"), "{text}");
    stream.write_all(b"abc").unwrap();
    assert!(until(&mut stream, "abc").ends_with("abc"));
}

#[test]
fn http_1_0_closes_unless_asked() {
    let m1 = member(|_| {});
    assert!(m1.say("GET / HTTP/1.0\r\n\r\n", "").ends_with("connection: close\r\n\r\nm1\n"));
    let text = m1.say("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.0\r\n\r\n", "");
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 2);
}

#[test]
fn echoes_what_a_balancer_made_of_a_request() {
    let m1 = member(|spec| spec.protocol = MemberProtocol::HttpEcho);
    let request = "PUT /x?y HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.2.3.4\r\nContent-Length: 4\r\n\r\nbody";
    let text = m1.say(request, "body");
    assert!(text.ends_with(request), "{text}");
    assert!(text.contains(&format!("content-length: {}\r\n", request.len())));
}

#[test]
fn an_echo_is_streamed() {
    let m1 = member(|spec| spec.protocol = MemberProtocol::HttpEcho);
    let (size, mut stream) = (64 << 20, m1.connect());
    stream
        .write_all(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n").as_bytes())
        .unwrap();
    let mut writer = stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || writer.write_all(&vec![7; size]).unwrap());
    let (mut sevens, mut buffer) = (0, vec![0; 1 << 16]);
    while sevens < size {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0);
        sevens += buffer[..count].iter().filter(|byte| **byte == 7).count();
    }
    sender.join().unwrap();
}

#[test]
fn what_is_not_http_is_refused() {
    let m1 = member(|_| {});
    for (request, status) in [
        ("nonsense\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", "400"),
        (&format!("GET / HTTP/1.1\r\nHost: a\r\nA: {}", "x".repeat(70_000)), "431"),
    ] {
        let text = m1.say(request, "");
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{request:.60?}: {text}");
        assert!(text.contains("connection: close"));
    }
}

/// Returns which of `n` requests failed.
fn failures(m1: &Running, n: usize) -> Vec<bool> {
    let mut stream = m1.connect();
    let mut failed = Vec::new();
    for _ in 0..n {
        stream.write_all(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        failed.push(until(&mut stream, "\r\n\r\n").starts_with("HTTP/1.1 503 "));
    }
    failed
}

#[test]
fn fails_at_its_rate_and_by_its_seed() {
    let failing = |seed| {
        member(move |spec| {
            spec.fail_rate = 0.3;
            spec.refusal = FailureResponse::Status(503);
            spec.seed = seed;
        })
    };
    let (first, again, other) =
        (failures(&failing(1), 500), failures(&failing(1), 500), failures(&failing(2), 500));
    let count = first.iter().filter(|failed| **failed).count();
    assert!((110..190).contains(&count), "{count}");
    assert_eq!(first, again);
    assert_ne!(first, other);
    let closing = member(|spec| {
        spec.fail_rate = 1.0;
        spec.refusal = FailureResponse::Close;
    });
    assert_eq!(closing.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n", ""), "");
}

#[test]
fn workers_serve_so_many_at_a_time_and_the_queue_is_bounded() {
    let two = |service: &str, queue| {
        member(|spec| {
            spec.service = service.parse().unwrap();
            (spec.workers, spec.queue_limit, spec.admin) = (2, queue, true);
        })
    };
    let (elapsed, answers) = together(&two("const:100ms", 4), 6);
    assert!(answers.iter().all(|answer| answer.starts_with("HTTP/1.1 200 ")), "{answers:?}");
    assert!(elapsed >= 300 * MS, "{elapsed:?}");
    // Two are served and four wait; the others are refused.
    let full = two(HOUR, 4);
    let _streams = asked(&full, 10);
    full.comes_to(10, 6);
    assert!(full.say(GET, "full\n").starts_with("HTTP/1.1 503 "));
}

/// The runtime's own timers would turn each into 2.5 ms and more. A busy machine only needs longer for twenty
/// exact ones.
#[test]
fn service_times_are_exact() {
    let (m1, instant) = (member(|spec| spec.service = "const:1500us".parse().unwrap()), member(|_| {}));
    let mut streams = [m1.connect(), instant.connect()];
    let (mut least, mut exact) = (Duration::MAX, 0);
    eventually("twenty exact ones", || {
        let [served, bare] = streams.each_mut().map(|stream| {
            let begin = Instant::now();
            stream.write_all(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            until(stream, "\r\n\r\n");
            begin.elapsed()
        });
        assert!(served >= Duration::from_micros(1500), "{served:?}");
        least = least.min(bare);
        // bound: the service time, and what an answer of a member without one takes at least
        exact += u32::from(served < Duration::from_micros(2200) + least);
        exact >= 20
    });
}

#[test]
fn burns_the_processor_when_told_to() {
    let m1 = member(|spec| {
        spec.service = "const:50ms".parse().unwrap();
        spec.burn = true;
    });
    let cpu = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    };
    let before = cpu();
    assert!(together(&m1, 2).0 >= 50 * MS);
    assert!(cpu() - before >= 100 * MS);
}

#[test]
fn becomes_slower_when_told_to_and_by_itself() {
    let m1 = member(|spec| {
        spec.service = "const:20ms".parse().unwrap();
        spec.admin = true;
    });
    let slow = |method: &str, factor: &str| {
        let request =
            format!("{method} /_plimsoll/slow?factor={factor} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n");
        m1.say(&(request + "Connection: close\r\n\r\n"), "")
    };
    assert!(together(&m1, 1).0 >= 20 * MS);
    let answer = slow("POST", "10");
    assert!(answer.ends_with("{\"member\":\"m1\",\"slow\":10.0}\n"), "{answer}");
    assert!(together(&m1, 1).0 >= 200 * MS);
    for (method, factor) in [("GET", "1"), ("POST", "-1"), ("POST", "nan"), ("POST", ""), ("POST", "1e9")] {
        assert!(slow(method, factor).starts_with("HTTP/1.1 400 "), "{method} {factor}");
    }
    assert!(together(&m1, 1).0 >= 200 * MS);

    let tired = member(|spec| {
        spec.service = "const:1ms".parse().unwrap();
        spec.slowdown = Some("0:200".parse().unwrap());
    });
    assert!(together(&tired, 1).0 >= 200 * MS);
    let deaf = member(|_| {});
    assert!(deaf.say("GET /_plimsoll/slow?factor=9 HTTP/1.1\r\nHost: a\r\n\r\n", "m1\n").ends_with(PAGE));
}

#[test]
fn ends_what_is_in_flight_when_stopped() {
    let m1 = member(|_| {});
    let (mut busy, mut idle) = (m1.connect(), m1.connect());
    idle.write_all(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    until(&mut idle, "\r\n\r\n");
    busy.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        .unwrap();
    // From here on the member is in the middle of it.
    until(&mut busy, "\r\n\r\n");
    let ending = std::thread::spawn(move || m1.stop());
    assert_eq!(until(&mut idle, ""), "");
    busy.write_all(b"abc").unwrap();
    assert!(until(&mut busy, "").ends_with("m1\n"));
    ending.join().unwrap();
}

#[test]
fn tcp_and_udp_echo() {
    let tcp = member(|spec| {
        spec.protocol = MemberProtocol::Tcp;
        spec.greet = true;
    });
    let mut stream = tcp.connect();
    stream.write_all(b"one ").unwrap();
    assert_eq!(until(&mut stream, "one "), "m1\none ");
    stream.write_all(b"two").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(until(&mut stream, ""), "two");

    let udp = member(|spec| {
        spec.protocol = MemberProtocol::Udp;
        spec.greet = true;
        spec.service = "const:1ms".parse().unwrap();
    });
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    for text in ["one", ""] {
        socket.send_to(text.as_bytes(), udp.address).unwrap();
        let mut buffer = [0; 100];
        let (count, _) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!(std::str::from_utf8(&buffer[..count]).unwrap(), format!("m1 {text}"));
    }
    udp.stop();
}

/// Returns the number of connections that a server has not closed.
fn open(server: SocketAddr) -> usize {
    let port = format!("0100007F:{:04X}", server.port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    // Established, or closed by the client alone.
    let open = |line: &&str| {
        let mut columns = line.split_whitespace().skip(1);
        columns.next() == Some(&port) && matches!(columns.nth(1), Some("01" | "08"))
    };
    table.lines().filter(open).count()
}

/// Requests, and pieces of them that do not belong together, in any order.
#[test]
fn no_bytes_bring_it_down() {
    const PIECES: [&str; 24] = [
        "GET / HTTP/1.1\r\n",
        "HEAD /x HTTP/1.0\r\n",
        "POST /_plimsoll/slow?factor=1 HTTP/1.1\r\n",
        "Host: a\r\n",
        "Content-Length: 5\r\n",
        "Content-Length: 99999999999999999999\r\n",
        "Content-Length: 18446744073709551615\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Expect: 100-continue\r\n",
        "Connection: close\r\n",
        "\r\n",
        "\r\n\r\n",
        "hello",
        "5\r\nhello\r\n",
        "0\r\n\r\n",
        "ffffffffffffffff\r\n",
        "10000000000000000\r\n",
        "\0",
        "\n",
        " ",
        ":",
        "é",
        "a: b\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ];
    let before = panicked();
    for kind in [MemberProtocol::Http, MemberProtocol::HttpEcho] {
        let m1 = member(|spec| {
            spec.protocol = kind;
            spec.admin = true;
            spec.fail_rate = 0.1;
        });
        let mut chance = SplitMix64::new(1);
        for _ in 0..2000 {
            let mut stream = m1.connect();
            let text: String =
                (0..chance.bits() % 12).map(|_| PIECES[chance.bits() as usize % PIECES.len()]).collect();
            stream.write_all(text.as_bytes()).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            // The connection may be reset where input was left unread.
            let _ = stream.read_to_end(&mut Vec::new());
        }
        let thread = m1.thread.as_ref().unwrap().thread().id();
        eventually("every connection has ended", || open(m1.address) == 0);
        m1.stop();
        assert!(!panicked()[before.len()..].contains(&thread));
    }
}

#[test]
fn a_name_that_would_break_a_header_is_refused() {
    for name in ["", "a b", "a\r\nb: c", "é"] {
        let mut spec = MemberSpec::new("127.0.0.1:0".parse().unwrap());
        spec.name = Some(name.to_owned());
        assert!(member::serve(spec, |_| {}, std::future::pending()).is_err(), "{name:?}");
    }
}

#[test]
fn integers_come_back_shuffled_and_whole() {
    let member = member(|spec| spec.swaps = Some(10_000));
    let mut stream = member.connect();
    let integers: Vec<u8> = (0..300u32).flat_map(|n| n.to_le_bytes()).collect();
    let head = format!(
        "POST / HTTP/1.1\r\nhost: m\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        integers.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&integers).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let body = &answer[answer.len() - integers.len()..];
    assert_ne!(body, integers);
    let mut numbers: Vec<u32> = body.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..300).collect::<Vec<u32>>());
    let long = "POST / HTTP/1.1\r\nhost: m\r\ncontent-length: 2000000\r\n\r\n";
    let refused = member.say(&(long.to_owned() + &"x".repeat(1_100_000)), "at once\n");
    assert!(refused.starts_with("HTTP/1.1 413 "), "{refused}");
    member.stop();
}

#[test]
fn the_first_request_of_a_connection_pays_for_the_session() {
    let m1 = member(|spec| {
        spec.service = "const:1ms".parse().unwrap();
        spec.session_cost = 100 * MS;
    });
    let mut stream = m1.connect();
    let mut times = Vec::new();
    for _ in 0..3 {
        let start = Instant::now();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: m\r\n\r\n").unwrap();
        until(&mut stream, "m1\n");
        times.push(start.elapsed());
    }
    assert!(times[0] >= 101 * MS, "{times:?}");
    m1.stop();
    // Shared cores count all work: that of one session and three requests.
    let shared = member(|spec| {
        spec.service = "const:1ms".parse().unwrap();
        (spec.session_cost, spec.cores, spec.admin) = (100 * MS, Some(1.0), true);
    });
    let mut stream = shared.connect();
    for _ in 0..3 {
        stream.write_all(GET.as_bytes()).unwrap();
        until(&mut stream, "m1\n");
    }
    let busy = shared.tells("load")["busy"].as_f64().unwrap();
    assert!((busy - 0.103).abs() < 1e-6, "{busy}");
}
