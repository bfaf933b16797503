//! Members report their load out of band: grpc-go's server of ORCA, one that has no such service, and one
//! that comes back.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::Value;

use crate::stage::{Balancer, Folder, InteropServer, Process, go_run, groups, until};

const MONITOR: &str = "protocol = \"h2\"\n[group.monitor]\nsource = \"orca-oob\"\n\
                       metric = \"cpu_utilization + utilization.util\"\n";

fn balancer(members: &[SocketAddr]) -> Balancer {
    let listener = "[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n";
    Balancer::start(&format!("{listener}{}", groups(&[("web", members)], MONITOR)))
}

fn member(balancer: &Balancer, address: SocketAddr) -> Value {
    let explained = balancer.run(&["explain", "group", "web", "-o", "json"]).json();
    let members = explained["members"].as_array().unwrap();
    members.iter().find(|member| member["name"] == address.to_string()).unwrap().clone()
}

/// Returns the value that is known of a member by one name, and its source.
fn fact(member: &Value, name: &str) -> Option<(f64, String)> {
    let facts = member["facts"].as_array().unwrap();
    let fact = facts.iter().find(|fact| fact["name"] == name)?;
    Some((fact["value"].as_f64()?, fact["source"].as_str()?.to_owned()))
}

/// Waits until a load was renewed by several reports, each newer than the one before.
#[track_caller]
fn renewed(balancer: &Balancer, address: SocketAddr, load: impl Fn(f64) -> bool) {
    let mut reports = 0;
    let mut before = f64::INFINITY;
    until("a load is made of it, again and again", || {
        let known = member(balancer, address)["load"].clone();
        let Some(age) = known["age_seconds"].as_f64() else { return false };
        assert!(load(known["value"].as_f64().unwrap()), "{known}");
        // Without a report the age only grows.
        reports += usize::from(age < before);
        before = age;
        reports > 3
    });
}

/// Lets the interop client make the server report the load of its last report: 0.29309 of its processors.
fn loaded(server: SocketAddr) {
    let port = format!("-server_port={}", server.port());
    let config =
        "-service_config_json={\"loadBalancingConfig\":[{\"test_backend_metrics_load_balancer\":{}}]}";
    let (passed, said) =
        go_run("grpc-interop-client", &["-server_host=127.0.0.1", &port, "-test_case=orca_oob", config]);
    assert!(passed, "{said}");
}

#[test]
fn a_server_of_grpc_go_tells_its_load_while_nobody_calls_it() {
    let server = InteropServer::start();
    let balancer = balancer(&[server.address]);
    loaded(server.address);
    until("what it says is known", || {
        let member = member(&balancer, server.address);
        let cpu = fact(&member, "cpu_utilization") == Some((0.29309, "orca-oob".to_owned()));
        cpu && fact(&member, "utilization.util") == Some((0.2039, "orca-oob".to_owned()))
    });
    let made = || member(&balancer, server.address)["load"]["value"].as_f64();
    until("a load is made of it", || made().is_some_and(|load| (load - 0.49699).abs() < 1e-9));
    renewed(&balancer, server.address, |load| (load - 0.49699).abs() < 1e-9);
    assert!(balancer.events(server.address, "no_reports").is_empty());
}

#[test]
fn a_server_that_comes_back_is_listened_to_again() {
    let server = InteropServer::start();
    let balancer = balancer(&[server.address]);
    loaded(server.address);
    until("what it says is known", || fact(&member(&balancer, server.address), "cpu_utilization").is_some());
    let address = server.address;
    let again = server.restart();
    until("what it said before is not true any more", || {
        let member = member(&balancer, address);
        member["trouble"].as_str().is_some_and(|why| why.contains("load reports of"))
    });
    loaded(again.address);
    renewed(&balancer, address, |_| true);
}

#[test]
fn a_member_without_the_service_is_told_of_once() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/e2e/grpc/bare.py");
    let folder = Folder::new();
    let server = Process::start(Path::new("/usr/bin/python3"), &[script], folder.path());
    let port = server.line("port ").split_once(' ').unwrap().1.parse().unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let balancer = balancer(&[address]);
    until("it is told", || !balancer.events(address, "no_reports").is_empty());
    let why = balancer.events(address, "no_reports")[0]["why"].to_string();
    assert!(why.contains("xds.service.orca.v3.OpenRcaService"), "{why}");
    let known = member(&balancer, address);
    assert!(known["trouble"].as_str().is_some_and(|why| why.contains("grpc-status 12")), "{known}");
}
