//! A member's reports, and its dynamic pages.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use plimsoll_bench::member::ServiceTime;

use crate::{HOUR, MS, member};

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
}

#[test]
fn what_a_script_makes_takes_its_own_time() {
    let m1 = member(|spec| spec.dynamic = Some(ServiceTime::Const(120 * MS)));
    for path in ["/cgi-bin/x", "/x?y", "/x.php"] {
        let begin = Instant::now();
        let said = m1.say(&get(path), "");
        assert!(said.starts_with("HTTP/1.1 200") && begin.elapsed() >= 120 * MS, "{path}: {said}");
    }
    // The other pages have no service time; otherwise they would take an hour.
    let m1 = member(|spec| spec.dynamic = Some(HOUR.parse().unwrap()));
    for path in ["/", "/page.html"] {
        let said = m1.say(&get(path), "");
        assert!(said.starts_with("HTTP/1.1 200"), "{path}: {said}");
    }
}

/// Accepts the next whole report to `agent` and returns it. A member whose report timed out sends another
/// one.
fn told(agent: &TcpListener) -> String {
    loop {
        let (mut stream, _) = agent.accept().unwrap();
        let mut text = String::new();
        let mut buffer = [0; 2000];
        while !text.contains("in_flight&value=") || text.ends_with('=') {
            let Ok(count @ 1..) = stream.read(&mut buffer) else { break };
            text += std::str::from_utf8(&buffer[..count]).unwrap();
        }
        if text.contains("in_flight&value=") {
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
            assert!(text.starts_with("POST /v1/report HTTP/1.1\r\n"), "{text}");
            return text;
        }
    }
}

#[test]
fn a_server_with_several_doors_tells_of_all_that_comes_as_each_of_its_members() {
    let balancer = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = balancer.local_addr().unwrap();
    let m1 = member(|spec| {
        (spec.more_addresses, spec.report_to) = (vec!["127.0.0.1:0".parse().unwrap()], Some(address));
        spec.report_as = vec!["10.0.0.1:80".to_owned(), "b".to_owned()];
        spec.workers = 1;
        spec.service = HOUR.parse().unwrap();
    });
    let door = m1.doors.lock().unwrap().recv().unwrap();
    let mut streams = [m1.connect(), TcpStream::connect(door).unwrap()];
    for stream in &mut streams {
        stream.write_all(get("/").as_bytes()).unwrap();
    }
    let all =
        |text: &str, name: &str| text.ends_with(&format!("\r\n\r\nmember={name}&name=in_flight&value=2"));
    // One request arrived at each address, and the reports of each name include both.
    for name in ["10.0.0.1:80", "b", "10.0.0.1:80"] {
        while !all(&told(&balancer), name) {}
    }
}

#[test]
fn an_agent_is_told_how_many_requests_there_are() {
    let agent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = agent.local_addr().unwrap();
    let m1 = member(|spec| {
        spec.report_to = Some(address);
        spec.workers = 1;
        spec.service = HOUR.parse().unwrap();
    });
    let told = || told(&agent).rsplit_once('=').unwrap().1.to_owned();
    assert_eq!(told(), "0");
    let mut streams = [m1.connect(), m1.connect()];
    for stream in &mut streams {
        stream.write_all(get("/").as_bytes()).unwrap();
    }
    // One is served and one waits: both are in flight.
    while told() != "2" {}
    drop(streams);
}
