//! Members that say with each answer how loaded they are.

use super::*;

/// A member that shares its cores and says how loaded it is.
fn metered(cores: f64, service: &str, change: impl FnOnce(&mut Spec)) -> Running {
    member(|spec| {
        spec.cores = Some(cores);
        spec.service = service.parse().unwrap();
        spec.meter = true;
        change(spec);
    })
}

/// What the report of an answer says of this, if it has one.
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
    // Room at a member that fails is no room.
    assert!(answer.starts_with("HTTP/1.1 500 ") && said(&answer, "slot").is_none(), "{answer}");
    assert_eq!(said(&answer, "rif"), Some(0.0));
    let echo = metered(1.0, "none", |spec| spec.kind = Kind::HttpEcho);
    assert_eq!(said(&echo.say(GET, "Host: a\r\n\r\n"), "rif"), Some(0.0));
    let bare = member(|_| {});
    assert!(said(&bare.say(GET, "m1\n"), "rif").is_none());
}

#[test]
fn one_more_than_fits_is_refused_and_clients_that_go_leave_room() {
    let m1 = metered(1.0, HOUR, |spec| spec.admin = true);
    // It is believed to take two at once until it has shown more, and to have room for the square root thrice beyond.
    let waiting: Vec<TcpStream> = (1..=7)
        .map(|count| {
            let mut stream = m1.connect();
            stream.write_all(GET.as_bytes()).unwrap();
            let come = format!("\"requests\":{count}}}\n");
            while !m1.say("GET /_plimsoll/count HTTP/1.1\r\nHost: a\r\n\r\n", "}\n").ends_with(&come) {}
            stream
        })
        .collect();
    let answer = m1.say(GET, "\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("content-length: 0\r\n"), "{answer}");
    assert_eq!((said(&answer, "rif"), said(&answer, "full")), (Some(7.0), Some(1.0)));
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
    assert_eq!(said(&answer, "work"), Some(0.0), "{answer}");
}
