//! What a member tells of itself, and what it makes by programs.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use plimsoll_bench::member::Service;

use crate::{MS, member, until};

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
}

#[test]
fn what_a_script_makes_takes_its_own_time() {
    let m1 = member(|spec| spec.dynamic = Some(Service::Const(120 * MS)));
    for (path, slow) in
        [("/", false), ("/page.html", false), ("/cgi-bin/x", true), ("/x?y", true), ("/x.php", true)]
    {
        let begin = Instant::now();
        let said = m1.say(&get(path), "");
        assert!(said.starts_with("HTTP/1.1 200"), "{path}: {said}");
        if slow {
            assert!(begin.elapsed() >= 120 * MS, "{path}");
        }
    }
    // The service time of the others is none: many of them take less than one of these.
    let begin = Instant::now();
    let mut stream = m1.connect();
    for _ in 0..20 {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        until(&mut stream, "m1\n");
    }
    assert!(begin.elapsed() < 20 * 120 * MS);
}

/// What is told next, to `agent`, which takes it; its member goes on.
fn told(agent: &TcpListener) -> String {
    let (mut stream, _) = agent.accept().unwrap();
    let mut text = String::new();
    let mut buffer = [0; 2000];
    while !text.contains("in_flight&value=") || text.ends_with('=') {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "{text}");
        text += std::str::from_utf8(&buffer[..count]).unwrap();
    }
    stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    assert!(text.starts_with("POST /v1/report HTTP/1.1\r\n"), "{text}");
    text
}

#[test]
fn a_server_with_several_doors_tells_of_all_that_comes_as_each_of_its_members() {
    let balancer = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = balancer.local_addr().unwrap();
    let m1 = member(|spec| {
        (spec.also, spec.tell) = (vec!["127.0.0.1:0".parse().unwrap()], Some(address));
        spec.tell_as = vec!["10.0.0.1:80".to_owned(), "b".to_owned()];
        spec.workers = 1;
        spec.service = Service::Const(3000 * MS);
    });
    let door = m1.doors.lock().unwrap().recv().unwrap();
    let mut streams = [m1.connect(), TcpStream::connect(door).unwrap()];
    for stream in &mut streams {
        stream.write_all(get("/").as_bytes()).unwrap();
    }
    let all =
        |text: &str, name: &str| text.ends_with(&format!("\r\n\r\nmember={name}&name=in_flight&value=2"));
    // One came by each door, and each name hears of both.
    for name in ["10.0.0.1:80", "b", "10.0.0.1:80"] {
        while !all(&told(&balancer), name) {}
    }
}

#[test]
fn an_agent_is_told_how_many_requests_there_are() {
    let agent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = agent.local_addr().unwrap();
    let m1 = member(|spec| {
        spec.tell = Some(address);
        spec.workers = 1;
        spec.service = Service::Const(3000 * MS);
    });
    let told = || told(&agent).rsplit_once('=').unwrap().1.to_owned();
    assert_eq!(told(), "0");
    let mut streams = [m1.connect(), m1.connect()];
    for stream in &mut streams {
        stream.write_all(get("/").as_bytes()).unwrap();
    }
    // One is served and one waits: both are there.
    while told() != "2" {}
    drop(streams);
}
