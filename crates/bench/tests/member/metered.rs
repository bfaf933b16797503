//! Members that say with each answer how loaded they are.

use super::*;

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

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
    assert!(said(&answer, "work").unwrap() >= 0.001, "{answer}");
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
    let m1 = metered(1.0, "const:100s", |spec| spec.admin = true);
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
    let begin = Instant::now();
    loop {
        let answer = m1.say("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "");
        if said(&answer, "rif") == Some(0.0) {
            // None of them counts as work that was done.
            assert_eq!(said(&answer, "work"), Some(0.0), "{answer}");
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(10), "{answer}");
    }
}

#[test]
fn the_knee_comes_near_the_number_of_cores() {
    let m1 = metered(4.0, "lognormal:10ms:1.2:300ms", |_| {});
    let knees = std::thread::scope(|scope| {
        let mut learners = Vec::new();
        for number in 0..10 {
            let m1 = &m1;
            learners.push(scope.spawn(move || {
                let mut chance = Chance::new(number);
                let mut stream = m1.connect();
                let mut knees = Vec::new();
                for turn in 0..200 {
                    stream.write_all(GET.as_bytes()).unwrap();
                    // An answer with the member's name, or a refusal without.
                    let mut answer = String::new();
                    while !answer.ends_with("m1\n") && !answer.ends_with("full=1\r\n\r\n") {
                        let mut buffer = [0; 1024];
                        let count = stream.read(&mut buffer).unwrap();
                        assert!(count > 0, "{answer}");
                        answer.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
                    }
                    if turn >= 100 {
                        knees.extend(said(&answer, "knee"));
                    }
                    // Clients that think for a while: now there are more requests than cores, now fewer.
                    std::thread::sleep(Duration::from_secs_f64(chance.exp() * 0.015));
                }
                knees
            }));
        }
        learners.into_iter().flat_map(|learner| learner.join().unwrap()).collect::<Vec<_>>()
    });
    // The mean of what it says: at one moment that may be what it tries, which is less, to see what is lost by it.
    let knee = knees.iter().sum::<f64>() / knees.len() as f64;
    assert!((3.0..=6.0).contains(&knee), "{knee}, {} times said", knees.len());
}
