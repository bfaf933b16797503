//! HTTP/2 by h2spec, all of its cases, with and without TLS.

use std::net::SocketAddr;

use crate::stage::{Authority, Balancer, Folder, Member, go_run, groups, web};

/// The number of h2spec's cases for a server, the strict ones included (`h2spec --strict --dryrun`).
const CASES: usize = 146;

/// Runs all cases against `address`: none may fail, and none be skipped.
#[track_caller]
fn judge(address: SocketAddr, more: &[&str]) {
    let port = address.port().to_string();
    let (passed, said) =
        go_run("h2spec", &[&["--strict", "-h", "127.0.0.1", "-p", &port, "-o", "60"], more].concat());
    let failures = said.split_once("Failures:").map_or(&*said, |(_, failures)| failures);
    let summary = format!("{CASES} tests, {CASES} passed, 0 skipped, 0 failed");
    assert!(passed && said.contains(&summary), "{failures}");
}

#[test]
fn all_of_h2spec_passes_without_tls() {
    let member = Member::start(&[]);
    judge(Balancer::start(&web(&[member.address], "")).address(), &[]);
}

#[test]
fn all_of_h2spec_passes_with_tls() {
    let member = Member::start(&[]);
    let folder = Folder::new();
    Authority::new(&folder, "ca").issue(&folder, "one", &["127.0.0.1"]);
    let tls = "tls = { certificates = [{ certificate = \"one.pem\", key = \"one.key\" }] }";
    let listener =
        format!("[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"https\"\ngroup = \"web\"\n{tls}\n");
    let balancer =
        Balancer::start_in(folder, &format!("{listener}{}", groups(&[("web", &[member.address])], "")));
    judge(balancer.address(), &["-t", "-k"]);
}
