//! Members and clients that try to harm the other clients.

use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use crate::stage::{Balancer, Script, Wire, get, groups, refusing, until, web};

#[test]
fn what_a_member_says_unasked_is_nobody_elses_answer() {
    let (tell, told) = mpsc::channel();
    let tell = Mutex::new(tell);
    let member = Script::start(move |wire| {
        while let Some(head) = wire.head()? {
            if head.starts_with("HEAD") {
                wire.try_send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n")?;
                wire.try_send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nPOISON")?;
                tell.lock().unwrap().send(()).unwrap();
            } else {
                let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                wire.try_send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}", path.len()))?;
            }
        }
        std::io::Result::Ok(())
    });
    let balancer = Balancer::start(&format!("threads = 1\n{}", web(&[member.address], "")));
    let (mut attacker, mut victim) = (Wire::connect(balancer.address()), Wire::connect(balancer.address()));
    for round in 0..100 {
        attacker.send("HEAD / HTTP/1.1\r\nHost: test\r\n\r\n");
        assert_eq!(attacker.answer_to("HEAD").unwrap().status, 200);
        told.recv().unwrap();
        victim.send(format!("GET /victim/{round} HTTP/1.1\r\nHost: test\r\n\r\n"));
        assert_eq!(victim.answer().unwrap().text(), format!("/victim/{round}"));
    }
}

#[test]
fn half_of_an_answer_that_ends_with_its_connection_passes_for_no_whole() {
    let (go_on, heard) = mpsc::channel();
    let heard = Mutex::new(heard);
    let member = Script::start(move |wire| {
        let chunked = wire.head()?.is_some_and(|head| head.contains("chunked"));
        let said = if chunked { "Transfer-Encoding: chunked\r\n\r\n9\r\nhalf" } else { "\r\nhalf" };
        wire.try_send(format!("HTTP/1.1 200 OK\r\n{said}"))?;
        // Once all of it has arrived: a reset discards data in transit.
        heard.lock().unwrap().recv().unwrap();
        rustix::net::sockopt::set_socket_linger(wire.stream(), Some(std::time::Duration::ZERO))?;
        std::io::Result::Ok(())
    });
    let balancer = Balancer::start(&web(&[member.address], ""));
    for (version, wanted) in [("1.1", "closing"), ("1.0", "closing"), ("1.0", "chunked")] {
        let client = Wire::connect(balancer.address());
        let mut stream = client.stream();
        write!(stream, "GET /{wanted} HTTP/{version}\r\nHost: test\r\n\r\n").unwrap();
        let mut came = Vec::new();
        let ended = loop {
            let mut piece = [0; 1024];
            match stream.read(&mut piece) {
                Ok(0) => break None,
                Ok(length) => came.extend_from_slice(&piece[..length]),
                Err(error) => break Some(error.kind()),
            }
            if came.ends_with(b"half") {
                go_on.send(()).unwrap();
            }
        };
        assert_eq!(ended, Some(std::io::ErrorKind::ConnectionReset), "{wanted} for HTTP/{version}");
        assert!(came.ends_with(b"\r\n\r\nhalf"), "{}", String::from_utf8_lossy(&came));
    }
}

#[test]
fn a_client_that_sends_ahead_without_end_starves_nobody() {
    let (_socket, dead) = refusing();
    let healthy = Script::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let text = format!(
        "threads = 1\n[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"dead\"\n\
         [[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n{}{}",
        groups(&[("dead", &[dead])], "health = { tcp = true }\n"),
        groups(&[("web", &[healthy.address])], ""),
    );
    let balancer = Balancer::start(&text);
    let enough = Arc::new(AtomicBool::new(false));
    let done = Arc::clone(&enough);
    let mut flood = Wire::connect(balancer.address());
    let mut answers = flood.stream().try_clone().unwrap();
    let reader = thread::spawn(move || std::io::copy(&mut answers, &mut std::io::sink()));
    let writer = thread::spawn(move || {
        let ahead = "GET / HTTP/1.1\r\nHost: test\r\n\r\n".repeat(2000);
        while !done.load(Ordering::SeqCst) && flood.try_send(&ahead).is_ok() {}
        flood.stream().shutdown(std::net::Shutdown::Both)
    });
    until("the flood", || balancer.status()["groups"][0]["rejected"]["no_member"].as_u64() > Some(5_000));
    for _ in 0..20 {
        assert_eq!(get(balancer.addresses()[1], "/").text(), "ok");
    }
    enough.store(true, Ordering::SeqCst);
    let _ = writer.join().unwrap();
    let _ = reader.join().unwrap();
}
