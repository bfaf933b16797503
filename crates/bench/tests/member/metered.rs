//! Members that send a load report with each answer.

use super::*;

/// Starts a member with shared cores and load reports.
fn metered(cores: f64, service: &str, change: impl FnOnce(&mut MemberSpec)) -> Running {
    member(|spec| {
        spec.cores = Some(cores);
        spec.service = service.parse().unwrap();
        spec.meter = true;
        change(spec);
    })
}

/// Returns a metric of an answer's load report, if it has one.
fn said(answer: &str, what: &str) -> Option<f64> {
    let report = answer.lines().find_map(|line| line.strip_prefix("endpoint-load-metrics: TEXT "))?;
    let name = format!("named_metrics.{what}");
    let value = report.split(", ").find_map(|part| part.strip_prefix(&name)?.strip_prefix('='))?;
    Some(value.parse().unwrap())
}

#[test]
fn each_answer_of_any_kind_has_a_report() {
    let m1 = metered(1.0, "const:1ms", |spec| spec.admin = true);
    let answer = m1.say(GET, "m1\n");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nm1\n"), "{answer}");
    assert_eq!(
        (said(&answer, "rif"), said(&answer, "slot"), said(&answer, "full")),
        (Some(0.0), Some(1.0), None)
    );
    assert!(said(&answer, "work").unwrap() >= 0.001 && said(&answer, "knee").unwrap() >= 1.0, "{answer}");
    let end = "as it was told to\n";
    m1.say("POST /_plimsoll/fail?rate=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", "}\n");
    let answer = m1.say(GET, end);
    // A failing member reports no capacity.
    assert!(answer.starts_with("HTTP/1.1 500 ") && said(&answer, "slot").is_none(), "{answer}");
    assert_eq!(said(&answer, "rif"), Some(0.0));
    let echo = metered(1.0, "none", |spec| spec.protocol = MemberProtocol::HttpEcho);
    assert_eq!(said(&echo.say(GET, "Host: a\r\n\r\n"), "rif"), Some(0.0));
    let bare = member(|_| {});
    assert!(said(&bare.say(GET, "m1\n"), "rif").is_none());
}

/// Sends bursts of requests until evidence bounds the member's knee.
fn bound(m1: &Running) {
    for size in [1, 6, 2, 8].into_iter().cycle().take(2_000) {
        let mut burst: Vec<TcpStream> = (0..size).map(|_| m1.connect()).collect();
        burst.iter_mut().for_each(|stream| stream.write_all(GET.as_bytes()).unwrap());
        if burst.iter_mut().all(|stream| said(&until(stream, "m1\n"), "open").is_none()) {
            return;
        }
    }
    panic!("the knee is open after 2,000 bursts");
}

/// Sends requests, which are not answered, until one is refused. Returns those that the member holds.
fn fill(m1: &Running) -> Vec<TcpStream> {
    let mut held = Vec::new();
    while held.len() < 64 {
        let mut stream = m1.connect();
        stream.write_all(GET.as_bytes()).unwrap();
        stream.set_read_timeout(Some(MS)).unwrap();
        let mut refused = false;
        eventually("it is held or refused", || {
            refused = stream.peek(&mut [0]).is_ok();
            refused || m1.tells("load")["values"]["in_flight"] == held.len() + 1
        });
        if refused {
            return held;
        }
        held.push(stream);
    }
    panic!("64 requests are not too many");
}

#[test]
fn one_more_than_fits_is_refused_and_clients_that_go_leave_room() {
    let m1 = metered(1.0, "const:2ms", |spec| spec.admin = true);
    bound(&m1);
    m1.say("POST /_plimsoll/slow?factor=1000000 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", "}\n");
    let waiting = fill(&m1);
    let answer = m1.say(GET, "\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("content-length: 0\r\n"), "{answer}");
    assert_eq!((said(&answer, "rif"), said(&answer, "full")), (Some(waiting.len() as f64), Some(1.0)));
    // A body that comes with a refused request is taken, or the next request would be read out of it.
    let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody";
    let both = m1.say(&format!("{post}GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"), "");
    assert_eq!((both.matches("HTTP/1.1 503 ").count(), both.matches("full=1").count()), (2, 2), "{both}");
    drop(waiting);
    m1.say("POST /_plimsoll/fail?rate=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", "}\n");
    let mut answer = String::new();
    eventually("all have gone", || {
        answer = m1.say("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "");
        said(&answer, "rif") == Some(0.0)
    });
    // None of them counts as work that was done.
    assert!(said(&answer, "work").unwrap() < 1.0, "{answer}");
}
