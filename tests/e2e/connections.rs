//! Connections: kept, shared, pipelined, of HTTP/1.0, and with `Expect: 100-continue`.

use crate::stage::{Balancer, Member, Nginx, Script, Wire, curl, get, listening, noise, until, web};

#[test]
fn connections_to_members_are_reused() {
    let nginx = Nginx::http("");
    nginx.file("page", b"the page");
    let text = "threads = 1\n".to_owned() + &web(&[nginx.address], "pool_idle_timeout = \"1h\"\n");
    let balancer = Balancer::start(&text);
    let mut client = Wire::connect(balancer.address());
    for _ in 0..200 {
        client.send("GET /page HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(client.answer().unwrap().body, b"the page");
    }
    // Another client's requests use the same connection.
    for _ in 0..20 {
        assert_eq!(get(balancer.address(), "/page").body, b"the page");
    }
    balancer.counted(&[nginx.address], 220);
    let member = balancer.member(nginx.address);
    assert_eq!((&member["requests"], &member["connects"]), (&220.into(), &1.into()), "{member}");
}

#[test]
fn a_stale_connection_costs_nobody_a_request() {
    // Each connection serves three requests and is closed without notice.
    let member = Script::start(|wire| {
        for _ in 0..3 {
            wire.head()?;
            wire.try_send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?;
        }
        std::io::Result::Ok(())
    });
    let balancer = Balancer::start(&web(&[member.address], "[group.retry]\nattempts = 0"));
    let mut client = Wire::connect(balancer.address());
    for number in 0..60 {
        client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(client.answer().unwrap().status, 200, "request {number}");
    }
    assert_eq!(balancer.member(member.address)["failures"], 0);
}

#[test]
fn pipelined_requests_are_answered_in_their_order() {
    let member = Member::start(&["--echo", "http", "--service", "uniform:1ms:5ms"]);
    let balancer = Balancer::start(&web(&[member.address], ""));
    let mut client = Wire::connect(balancer.address());
    let request = |n: usize| match n % 3 {
        0 => format!("GET /{n} HTTP/1.1\r\nHost: x\r\n\r\n"),
        1 => format!("POST /{n} HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"),
        _ => format!(
            "POST /{n} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"
        ),
    };
    client.send((0..60).map(request).collect::<String>());
    for n in 0..60 {
        let answer = client.answer().unwrap();
        let text = answer.text();
        let method = if n % 3 == 0 { "GET" } else { "POST" };
        assert!(text.starts_with(&format!("{method} /{n} HTTP/1.1\r\n")), "{n}: {text}");
        assert_eq!(text.ends_with("\r\n\r\nbody"), n % 3 != 0, "{n}: {text}");
    }
}

#[test]
fn http_1_0_clients_are_served() {
    let nginx = Nginx::http("ssi on;");
    let page = noise(100_000);
    nginx.file("page", &page);
    let balancer = Balancer::start(&web(&[nginx.address], ""));
    // A chunked answer of nginx is passed to this client without chunks, until the end of the connection.
    let came = curl(&["-0", "-v", &balancer.url("/page")], b"");
    assert!(came.code == Some(0) && came.body == page, "{}", came.talk);
    assert!(!came.talk.to_lowercase().contains("transfer-encoding"), "{}", came.talk);

    let mut client = Wire::connect(balancer.address());
    client.send("GET /page HTTP/1.0\r\n\r\n");
    assert!(client.answer().unwrap().body == page, "no Host, as it may be");
    client.closed();
    let mut client = Wire::connect(balancer.address());
    for _ in 0..3 {
        client.send("HEAD /page HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        let answer = client.answer_to("HEAD").unwrap();
        assert_eq!(answer.field("connection").map(str::to_lowercase).as_deref(), Some("keep-alive"));
    }
}

#[test]
fn http_1_0_members_are_spoken_to() {
    let member = Script::start(|wire| {
        wire.head()?;
        wire.try_send("HTTP/1.0 200 OK\r\nServer: old\r\n\r\n")?;
        wire.try_send(noise(300_000))
    });
    let balancer = Balancer::start(&web(&[member.address], ""));
    for _ in 0..3 {
        assert!(get(balancer.address(), "/").body == noise(300_000));
    }
    assert_eq!(member.accepted(), 3);
}

#[test]
fn a_client_that_asks_before_it_sends_is_told_to_go_on() {
    let nginx = Nginx::http("location = /no { return 403; }");
    let balancer = Balancer::start(&web(&[nginx.address], ""));
    let sent = noise(3 << 20);
    let file = balancer.folder().write("sent", &sent);
    let file = file.to_str().unwrap();
    let up = curl(&["-v", "-T", file, &balancer.url("/up")], b"");
    assert!(up.talk.contains("> Expect: 100-continue"), "{}", up.talk);
    assert!(up.talk.contains("< HTTP/1.1 100 Continue"), "{}", up.talk);
    assert!(nginx.read("up") == sent);

    // By hand: no byte of the body is sent before the 100.
    let mut client = Wire::connect(balancer.address());
    client.send("PUT /hand HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    assert_eq!(client.answer().unwrap().status, 100);
    client.send("hello");
    assert_eq!(client.answer().unwrap().status, 201);
    assert_eq!(nginx.read("hand"), b"hello");

    // A rejection replaces the 100, and the client need not send anything.
    let mut client = Wire::connect(balancer.address());
    client.send("PUT /no HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5000\r\n\r\n");
    assert_eq!(client.answer().unwrap().status, 403);
}

#[test]
fn a_client_that_leaves_frees_the_member() {
    let member = Member::start(&["--service", "const:1h"]);
    let balancer = Balancer::start(&web(&[member.address], ""));
    let mut client = Wire::connect(balancer.address());
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    until("a request in flight", || balancer.member(member.address)["in_flight"] == 1);
    drop(client);
    until("no request in flight", || balancer.member(member.address)["in_flight"] == 0);
    assert_eq!(balancer.member(member.address)["failures"], 0, "no fault of the member's");
    until("it is counted", || balancer.member(member.address)["clients_left"] == 1);
}

#[test]
fn a_client_may_end_its_side_and_wait_where_that_is_allowed() {
    let member = Member::start(&["--service", "const:300ms"]);
    let balancer = Balancer::start(&listening("half_close = true", &[member.address], ""));
    let mut client = Wire::connect(balancer.address());
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    client.finish();
    assert_eq!(client.answer().unwrap().status, 200);
    client.closed();
}

#[test]
fn ipv6_and_names_on_both_sides() {
    let listener = match std::net::TcpListener::bind("[::1]:0") {
        Ok(listener) => listener,
        Err(error) => return eprintln!("this machine has no IPv6: {error}"),
    };
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut wire = Wire::over(stream);
            let head = wire.head().unwrap().unwrap_or_default();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{head}",
                head.len()
            );
            let _ = wire.try_send(answer);
        }
    });
    let balancer = Balancer::start(&web(&[address], "").replace("127.0.0.1:0", "[::1]:0"));
    assert!(balancer.address().is_ipv6());
    let request = get(balancer.address(), "/").text();
    assert!(request.contains("\r\nX-Forwarded-For: ::1\r\n"), "{request}");

    let member = Member::start(&[]);
    let name = format!("localhost:{}", member.address.port());
    let balancer = Balancer::start(&web(&[member.address], "").replace(&member.address.to_string(), &name));
    assert_eq!(get(balancer.address(), "/").status, 200);
    assert_eq!(balancer.group("web")["members"][0]["name"], *name);
}

#[test]
fn heads_may_be_long_up_to_the_limit_on_both_sides() {
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Long: {}\r\n\r\n", "a".repeat(60_000));
    let member = Script::answering(answer);
    let balancer = Balancer::start(&listening("max_header_bytes = 65536", &[member.address], ""));
    for length in [1000, 30_000, 60_000] {
        let mut client = Wire::connect(balancer.address());
        client.send(format!("GET / HTTP/1.1\r\nHost: x\r\nCookie: {}\r\n\r\n", "a".repeat(length)));
        let answer = client.answer().unwrap();
        assert_eq!((answer.status, answer.field("x-long").map(str::len)), (200, Some(60_000)));
    }
    // One byte above the limit is rejected.
    let head = "GET / HTTP/1.1\r\nHost: x\r\nX-A: ";
    let mut client = Wire::connect(balancer.address());
    client.send(format!("{head}{}", "a".repeat(65_536 - head.len())));
    assert_eq!(client.answer().unwrap().status, 431);
}
