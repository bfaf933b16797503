//! Members are found in Kubernetes, with an API server that lists and watches as the real one does, and does
//! as little else as possible. Cargo's own binary is tested, whatever `PLIMSOLL_BIN` names: it has Kubernetes
//! built in, as this test has.

mod api;

use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};

use crate::stage::{Balancer, Folder, Load, Member, until};
use api::Api;

const BINARY: &str = env!("CARGO_BIN_EXE_plimsoll");

/// The conditions of an endpoint.
#[derive(Clone, Copy)]
enum Is {
    Ready,
    Unready,
    Ending,
}

/// Returns a slice of the service `web`. All members here have one address and a port each; a slice has one
/// port, so each member has its own slice.
fn slice(member: SocketAddr, is: Is) -> (String, Value) {
    let name = format!("web-{}", member.port());
    let (ready, serving, terminating) = match is {
        Is::Ready => (true, true, false),
        Is::Unready => (false, false, false),
        Is::Ending => (false, true, true),
    };
    let object = json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
        "metadata": {"name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
        "endpoints": [{
            "addresses": [member.ip().to_string()],
            "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        }],
        "ports": [{"name": "http", "port": member.port(), "protocol": "TCP"}],
    });
    (name, object)
}

/// Starts a balancer. A machine that stands still must not cause overload: nothing is rejected for it.
fn start(source: &str) -> Balancer {
    Balancer::of(
        Path::new(BINARY),
        Folder::new(),
        &format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n[[group]]\nname = \"web\"\nslow_start \
             = \"0s\"\n\
             admission = false\n[[group.discover]]\nkubernetes = \
             {{ service = \"web\", namespace = \"default\", port = \"http\", {source} }}\n"
        ),
    )
}

/// Returns each member and its state.
fn states(balancer: &Balancer) -> Vec<(String, String)> {
    let group = balancer.group("web");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let members = group["members"].as_array().unwrap().iter();
    members.map(|one| (text(&one["name"]), text(&one["state"]))).collect()
}

#[track_caller]
fn has(balancer: &Balancer, wanted: &[(SocketAddr, &str)]) {
    let mut wanted: Vec<(String, String)> =
        wanted.iter().map(|(member, state)| (member.to_string(), (*state).to_owned())).collect();
    wanted.sort();
    until(&format!("members {wanted:?}"), || {
        let mut found = states(balancer);
        found.sort();
        found == wanted
    });
}

/// A source of slices, in which the test puts and removes them.
trait Slices {
    fn put(&mut self, slice: (String, Value));
    fn remove(&mut self, member: SocketAddr);
}

/// Asserts that a balancer follows a service whose pods come, become ready, end and go, and that no request
/// fails.
fn follows(slices: &mut dyn Slices, source: &str) -> (Balancer, Vec<Member>) {
    let three = Member::several(3, &[]);
    let [a, b, c] = [0, 1, 2].map(|at: usize| three[at].address);
    slices.put(slice(a, Is::Ready));
    slices.put(slice(b, Is::Unready));
    let balancer = start(source);
    has(&balancer, &[(a, "up")]);
    let mut load = Load::start(balancer.address(), "GET", 100.0);
    load.more(20);
    slices.put(slice(b, Is::Ready));
    has(&balancer, &[(a, "up"), (b, "up")]);
    slices.put(slice(c, Is::Ready));
    has(&balancer, &[(a, "up"), (b, "up"), (c, "up")]);
    load.more(20);
    // The member serves its requests and gets no new ones.
    slices.put(slice(a, Is::Ending));
    has(&balancer, &[(a, "draining"), (b, "up"), (c, "up")]);
    load.more(20);
    slices.remove(a);
    has(&balancer, &[(b, "up"), (c, "up")]);
    // Pods that end are better than none.
    slices.put(slice(b, Is::Ending));
    has(&balancer, &[(b, "draining"), (c, "up")]);
    slices.remove(c);
    has(&balancer, &[(b, "up")]);
    load.more(20);
    // No pod is left; the balancer keeps the last list.
    slices.remove(b);
    let source = || balancer.group("web")["discovery"][0].clone();
    until("a list that is not believed", || {
        source()["error"].as_str().is_some_and(|error| error.contains("not believed"))
    });
    has(&balancer, &[(b, "up")]);
    slices.put(slice(b, Is::Ready));
    until("a list that is", || source()["error"].is_null());
    load.more(20);
    load.stop_unharmed();
    (balancer, three)
}

#[test]
fn the_endpoints_of_a_service_are_followed() {
    let mut api = Api::start();
    let at = format!("server = \"{}\", tls = false", api.address());
    let (balancer, members) = follows(&mut api, &at);
    let [b, c] = [1, 2].map(|at: usize| members[at].address);
    // The API server goes away, and the service changes meanwhile.
    let source = || balancer.group("web")["discovery"][0].clone();
    api.stop();
    until("a server that is away", || !source()["error"].is_null());
    api.put(slice(c, Is::Ready));
    has(&balancer, &[(b, "up")]);
    api.again();
    has(&balancer, &[(b, "up"), (c, "up")]);
    until("a server that is back", || source()["error"].is_null());
    assert_eq!(source()["kind"], "kubernetes");
    assert_eq!(source()["what"], "default/web:http");
    // The API server comes back without a memory.
    api.stop();
    api.forget();
    api.remove(c);
    api.again();
    has(&balancer, &[(b, "up")]);
}
