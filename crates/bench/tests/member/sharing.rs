//! Members that share their cores, fail at once, or are many in a process.

use super::*;

/// Starts a member that shares its cores among its requests.
fn sharing(change: impl FnOnce(&mut MemberSpec)) -> Running {
    member(|spec| {
        spec.cores = Some(2.0);
        spec.service = "const:100ms".parse().unwrap();
        change(spec);
    })
}

#[test]
fn cores_are_shared_by_all_requests() {
    let m1 = sharing(|spec| spec.speed = 2.0);
    let (alone, _) = together(&m1, 1);
    assert!(alone >= 50 * MS, "{alone:?}");
    // 800 ms of work; two cores of speed 2 do 4 ms of it in a millisecond.
    let (eight, answers) = together(&m1, 8);
    assert!(
        eight >= 200 * MS && answers.iter().all(|answer| answer.starts_with("HTTP/1.1 200 ")),
        "{eight:?}"
    );
    let bounded = sharing(|spec| {
        spec.service = HOUR.parse().unwrap();
        (spec.queue_limit, spec.admin) = (3, true);
    });
    let _streams = asked(&bounded, 5);
    bounded.comes_to(5, 3);
    assert!(bounded.say(GET, "full\n").starts_with("HTTP/1.1 503 "));
}

#[test]
fn a_client_that_goes_away_ends_its_job_unless_that_is_ignored() {
    for ignore in [false, true] {
        let m1 = sharing(|spec| {
            spec.service = HOUR.parse().unwrap();
            spec.ignore_cancel = ignore;
            spec.admin = true;
        });
        let streams = asked(&m1, 18);
        m1.comes_to(18, 18);
        drop(streams);
        if ignore {
            // The member sees the disconnects before it sees new connections.
            (0..20).for_each(|_| drop(m1.tells("count")));
        }
        m1.comes_to(18, if ignore { 18 } else { 0 });
        let busy = || m1.tells("load")["busy"].as_f64().unwrap();
        let before = busy();
        eventually("what it does goes on, or has ended", || busy() > before || !ignore);
        assert_eq!(busy() > before, ignore);
    }
}

#[test]
fn fails_at_once_when_told_to() {
    let m1 = sharing(|spec| {
        spec.service = HOUR.parse().unwrap();
        spec.fail_rate = 1.0;
        spec.fail_after = Some(MS / 2);
        spec.admin = true;
    });
    let (_, answers) = together(&m1, 20);
    assert!(answers.iter().all(|answer| answer.starts_with("HTTP/1.1 500 ")), "{answers:?}");
    let fail = |query: &str| {
        let line = format!("POST /_plimsoll/fail?{query} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n");
        m1.say(&(line + "Connection: close\r\n\r\n"), "")
    };
    assert!(fail("rate=1&after=500us&with=503").ends_with("{\"fail\":1.0,\"member\":\"m1\"}\n"));
    assert!(together(&m1, 1).1[0].starts_with("HTTP/1.1 503 "));
    fail("rate=1&with=close");
    assert_eq!(together(&m1, 1).1, [""]);
    for query in ["", "rate=2", "rate=nan", "rate=1&after=5", "rate=1&with=200", "with=close", "rate=1&x=1"] {
        assert!(fail(query).starts_with("HTTP/1.1 400 "), "{query}");
    }
    fail("rate=0");
    let mut stream = m1.connect();
    stream.set_read_timeout(Some(50 * MS)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(stream.read(&mut [0; 9]).is_err());
}

#[test]
fn many_members_in_one_process() {
    let mut spec = MemberSpec::new("127.0.0.1:0".parse().unwrap());
    (spec.count, spec.name) = (3, Some("m9".to_owned()));
    let (tell, told) = mpsc::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        let stopped = async { drop(stopped.await) };
        member::serve(spec, |address| tell.send(address).unwrap(), stopped).unwrap();
    });
    for name in ["m9", "m10", "m11"] {
        let mut stream = TcpStream::connect(told.recv().unwrap()).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        assert!(until(&mut stream, "").ends_with(&format!("{name}\n")));
    }
    drop(stop);
    thread.join().unwrap();
}
