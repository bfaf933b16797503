//! HTTP/2 and gRPC, with curl, nghttp2's load generator and grpcio on the other side.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use crate::stage::{Balancer, Member, curl, groups, noise, part, web};

#[test]
fn curl_and_members_speak_different_versions() {
    let member = Member::start(&["--echo", "http"]);
    let inner = Balancer::start(&web(&[member.address], ""));
    // A balancer serves as the HTTP/2 member.
    let outer = Balancer::start(&web(&[inner.address()], "protocol = \"h2\""));
    let large = noise(3_000_000);
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let url = format!("http://{}/a/b?c", outer.address());
        let got = curl(&[version, "-v", &url], b"");
        assert_eq!(got.code, Some(0), "{}", got.talk);
        let text = String::from_utf8(got.body).unwrap();
        assert!(text.starts_with("GET /a/b?c HTTP/1.1\r\n"), "{text}");
        let got = curl(&[version, "-H", "Expect:", "--data-binary", "@-", &url], &large);
        assert_eq!(got.code, Some(0), "{}", got.talk);
        assert!(got.body.ends_with(&large), "{} bytes came back", got.body.len());
    }
}

#[test]
fn h2load_loses_nothing() {
    let members = [Member::start(&[]), Member::start(&[])];
    // A machine that stands still must not cause overload: nothing is rejected for it.
    let rest = "admission = false\n";
    let balancer = Balancer::start(&web(&members.each_ref().map(|member| member.address), rest));
    let url = format!("http://{}/", balancer.address());
    let output = Command::new(part("h2load")).args(["-n2000", "-c4", "-m50", &url]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("2000 succeeded, 0 failed, 0 errored, 0 timeout"), "{said}");
}

#[test]
fn calls_of_grpc_get_through() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/e2e/grpc/calls.py");
    let mut child = Command::new(part("setpriv"))
        .args(["--pdeathsig", "KILL", "--", "/usr/bin/python3", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let ports = line.split_whitespace().map(|port| SocketAddr::from(([127, 0, 0, 1], port.parse().unwrap())));
    let members: Vec<SocketAddr> = ports.collect();
    assert_eq!(members.len(), 3, "{line}");
    // Equal turns, however busy the machine makes a member.
    let rest = "protocol = \"h2\"\nstrategy = \"round_robin\"\nhealth = \
        { grpc = \"\", interval = \"200ms\", timeout = \"30s\" }";
    let listener = "[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n";
    let balancer = Balancer::start(&format!("{listener}{}", groups(&[("web", &members)], rest)));
    writeln!(child.stdin.take().unwrap(), "{}", balancer.address()).unwrap();
    let mut said = String::new();
    out.read_to_string(&mut said).unwrap();
    let output = child.wait_with_output().unwrap();
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.starts_with("spread"), "{said}\n{talk}");
}
