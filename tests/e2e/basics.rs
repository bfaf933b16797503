//! HTTP through nginx members with curl and wrk as clients: methods, bodies of every framing and length, and
//! statuses without a body.

use std::process::Command;
use std::thread;

use crate::stage::{Balancer, Member, Nginx, Script, Wire, curl, curl_status, noise, part, web};

const MIB: usize = 1 << 20;

#[test]
fn bodies_arrive_whole_both_ways() {
    let nginx = Nginx::http("");
    let balancer = Balancer::start(&web(&[nginx.address], ""));
    for length in [0, 1, 1024, 65_536, 10 * MIB] {
        let sent = noise(length);
        let file = balancer.folder().write("sent", &sent);
        let name = format!("{length}");
        let url = balancer.url(&format!("/{name}"));
        assert_eq!(curl_status(&["-T", file.to_str().unwrap(), &url], b""), 201, "PUT of {length}");
        assert!(nginx.read(&name) == sent, "{length} bytes did not arrive as they were sent");

        let came = curl(&[&url], b"");
        assert!(came.code == Some(0) && came.body == sent, "GET of {length}: {}", came.talk);

        let head = curl(&["-I", &url], b"");
        let said = String::from_utf8(head.body).unwrap().to_lowercase();
        assert!(head.code == Some(0), "HEAD of {length}: {}", head.talk);
        assert!(said.contains(&format!("\r\ncontent-length: {length}\r\n")), "{said}");
    }
}

#[test]
fn a_chunked_body_may_have_any_length() {
    let nginx = Nginx::http("ssi on;");
    let balancer = Balancer::start(&web(&[nginx.address], ""));
    let url = balancer.url("/piped");
    for length in [0, 1, 1024, 10 * MIB] {
        let sent = noise(length);
        let up = curl(&["-v", "-T", "-", &url], &sent);
        assert!(up.talk.contains("> Transfer-Encoding: chunked"), "{}", up.talk);
        assert!(up.talk.contains("< HTTP/1.1 20"), "{}", up.talk);
        assert!(nginx.read("piped") == sent, "{length} bytes did not arrive as they were sent");
        // nginx sends a file that may contain directives in chunks.
        let down = curl(&["-v", &url], b"");
        assert!(length == 0 || down.talk.contains("< Transfer-Encoding: chunked"), "{}", down.talk);
        assert!(down.code == Some(0) && down.body == sent, "GET of {length}: {}", down.talk);
    }
}

#[test]
fn a_post_reaches_the_member_with_its_body() {
    let member = Member::start(&["--echo", "http"]);
    let balancer = Balancer::start(&web(&[member.address], ""));
    for length in [0, 1024, 3 * MIB] {
        let sent = noise(length);
        let post = ["-H", "Content-Type: application/x-noise", "--data-binary", "@-"];
        let came = curl(&[&post, &[&*balancer.url("/do?it=now")][..]].concat(), &sent);
        assert_eq!(came.code, Some(0), "{}", came.talk);
        let (head, body) = came.body.split_at(came.body.len() - length);
        let head = String::from_utf8_lossy(head);
        assert!(head.starts_with("POST /do?it=now HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("\r\nContent-Type: application/x-noise\r\n"), "{head}");
        assert!(body == sent, "{length} bytes were changed");
    }
}

#[test]
fn answers_without_a_body_end_at_their_head() {
    let nginx = Nginx::http(
        "port_in_redirect off; location = /nothing { return 204; } location = /moved { return 301 /there; }",
    );
    nginx.file("page", b"the page");
    let balancer = Balancer::start(&web(&[nginx.address], ""));
    let mut client = Wire::connect(balancer.address());
    // All on one connection: reading a body where there is none would shift the next answer.
    client.send("GET /page HTTP/1.1\r\nHost: x\r\n\r\n");
    let page = client.answer().unwrap();
    assert_eq!((page.status, &*page.body), (200, &b"the page"[..]));
    let tag = page.field("etag").unwrap();
    client.send(format!("GET /page HTTP/1.1\r\nHost: x\r\nIf-None-Match: {tag}\r\n\r\n"));
    assert_eq!(client.answer().unwrap().status, 304);
    client.send("HEAD /page HTTP/1.1\r\nHost: x\r\n\r\n");
    let head = client.answer_to("HEAD").unwrap();
    assert_eq!((head.status, head.field("content-length")), (200, Some("8")));
    client.send("GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(client.answer().unwrap().status, 204);
    client.send("GET /moved HTTP/1.1\r\nHost: x\r\n\r\n");
    let moved = client.answer().unwrap();
    assert_eq!((moved.status, moved.field("location")), (301, Some("http://x/there")));
    client.send("GET /missing HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(client.answer().unwrap().status, 404, "an error of the member's is the member's answer");
    client.send("GET /page HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(client.answer().unwrap().body, b"the page");
}

#[test]
fn extensions_and_trailers_are_passed_on_both_ways() {
    const CHUNKS: &str = "5;name=\"a value\"\r\nhello\r\n0\r\nX-Sum: 42\r\n\r\n";
    let member = Script::start(|wire| {
        wire.head()?;
        let body = wire.exactly(CHUNKS.len())?;
        assert_eq!(body, CHUNKS.as_bytes());
        wire.try_send("HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        wire.try_send(body)
    });
    let balancer = Balancer::start(&web(&[member.address], ""));
    let mut client = Wire::connect(balancer.address());
    let head = "POST / HTTP/1.1\r\nHost: x\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n";
    client.send(format!("{head}{CHUNKS}"));
    let head = client.head().unwrap().unwrap();
    assert!(head.contains("\r\nTrailer: X-Sum\r\n"), "{head}");
    assert_eq!(client.exactly(CHUNKS.len()).unwrap(), CHUNKS.as_bytes());
}

#[test]
fn wrk_finds_no_fault() {
    let members = [Nginx::http(""), Nginx::http("")];
    members.iter().for_each(|nginx| nginx.file("1k", &noise(1024)));
    // A machine that stands still must not cause overload: nothing is rejected for it.
    let rest = "admission = false\n";
    let balancer = Balancer::start(&web(&members.each_ref().map(|nginx| nginx.address), rest));
    let output = Command::new(part("wrk"))
        .args(["-t1", "-c64", "-d2s", "--timeout", "60s", "--latency", &balancer.url("/1k")])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("Requests/sec") && !said.contains("Non-2xx") && !said.contains("errors"), "{said}");
    let group = balancer.group("web");
    let counts: Vec<u64> = group["members"]
        .as_array()
        .unwrap()
        .iter()
        .map(|member| member["requests"].as_u64().unwrap())
        .collect();
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    assert_eq!(group["members"][0]["failures"], 0);
}

#[test]
fn ten_megabytes_go_through_and_come_back() {
    // The paper's balancer could not carry requests longer than a network packet.
    let member = Member::start(&["--echo", "http"]);
    let balancer = Balancer::start(&web(&[member.address], ""));
    let body = noise(10_000_000);
    let mut client = Wire::connect(balancer.address());
    let length = body.len();
    let head = format!("POST /whole HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
    // Sent and read at the same time: no socket buffer holds all of it.
    let stream = client.stream().try_clone().unwrap();
    let sent = body.clone();
    let sender = thread::spawn(move || {
        let mut wire = Wire::over(stream);
        wire.send(head);
        wire.send(sent);
    });
    let answer = client.answer().unwrap();
    sender.join().unwrap();
    assert_eq!(answer.status, 200);
    assert!(answer.body.len() > length, "{} bytes", answer.body.len());
    // The member echoes the unchanged head, and then the body.
    assert!(answer.body.ends_with(&body), "the body came back changed");
    assert!(answer.body.starts_with(b"POST /whole HTTP/1.1\r\n"));
}
