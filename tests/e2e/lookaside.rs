//! Clients ask for a member and go there themselves: leases over HTTP count, move and end.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::binding::report;
use crate::stage::{Balancer, Script, Wire, curl, found, until, web};

fn member(name: &str) -> Script {
    Script::answering(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len()))
}

/// Returns the status and the answer that curl gets.
#[track_caller]
fn ask(balancer: &Balancer, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let url = format!("http://{}/v1/groups/{path}", balancer.reports());
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let mut args = vec!["-X", method, "-w", "\n%{http_code}", &url];
    if !body.is_empty() {
        args.extend(["-d", &body]);
    }
    let curled = curl(&args, b"");
    let text = String::from_utf8(curled.body).unwrap();
    let (said, status) = text.rsplit_once('\n').unwrap();
    let said = if said.is_empty() { Value::Null } else { serde_json::from_str(said).unwrap() };
    (status.parse().unwrap(), said)
}

#[track_caller]
fn bind(balancer: &Balancer, wish: &Value) -> Value {
    let (status, lease) = ask(balancer, "POST", "web/bind", wish);
    assert_eq!(status, 200, "{lease}");
    lease
}

fn path(lease: &Value) -> String {
    format!("web/bind/{}", lease["lease"].as_str().unwrap())
}

#[track_caller]
fn renew(balancer: &Balancer, lease: &Value, wish: &Value) -> Value {
    let (status, lease) = ask(balancer, "POST", &path(lease), wish);
    assert_eq!(status, 200, "{lease}");
    lease
}

fn at(lease: &Value) -> SocketAddr {
    lease["address"].as_str().unwrap().parse().unwrap()
}

fn in_flight(balancer: &Balancer, member: SocketAddr) -> (u64, u64) {
    let member = balancer.member(member);
    (member["in_flight"].as_u64().unwrap(), member["leases"].as_u64().unwrap())
}

#[test]
fn a_client_with_a_lease_does_not_miss_the_balancer() {
    let only = member("only");
    let text = web(&[only.address], "");
    let (mut balancer, other) = (Balancer::start(&text), Balancer::start(&text));
    let lease = bind(&balancer, &json!({"lease_seconds": 60}));
    let mut client = Wire::connect(at(&lease));
    let mut served = || {
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
        client.answer().unwrap().text()
    };
    assert_eq!(served(), "only");
    balancer.process.kill();
    assert_eq!(served(), "only");
    // When it is time to ask again, another balancer gives the same answer.
    let (status, _) = ask(&other, "POST", &path(&lease), &json!({}));
    assert_eq!(status, 404, "it does not know the lease: its client binds again");
    assert_eq!(at(&bind(&other, &Value::Null)), only.address);
}

#[test]
fn a_lease_counts_until_it_is_released() {
    let (one, other) = (member("one"), member("other"));
    let balancer = Balancer::start(&web(&[one.address, other.address], "strategy = \"least_connections\"\n"));
    let leases: Vec<Value> = (0..4).map(|_| bind(&balancer, &Value::Null)).collect();
    let first = &leases[0];
    assert!(first["why"].as_str().unwrap().starts_with("least_connections chose "), "{first}");
    assert!(first["lease_seconds"] == 60.0 && first["moved"] == false, "{first}");
    assert_eq!(first["member"], first["address"]);
    assert_eq!((in_flight(&balancer, one.address), in_flight(&balancer, other.address)), ((2, 2), (2, 2)));
    let series = format!("plimsoll_member_leases{{group=\"web\",member=\"{}\"}}", one.address);
    assert_eq!(balancer.metric(&series), 2.0);
    // Clients of a listener go where fewer are in flight, which includes the leases.
    for lease in leases.iter().filter(|lease| at(lease) == one.address) {
        assert_eq!(ask(&balancer, "DELETE", &path(lease), &Value::Null), (204, Value::Null));
    }
    assert_eq!((in_flight(&balancer, one.address), in_flight(&balancer, other.address)), ((0, 0), (2, 2)));
    let mut client = Wire::connect(balancer.address());
    for _ in 0..4 {
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
        assert_eq!(client.answer().unwrap().text(), "one");
    }
    // A released lease is gone, and so is one that never existed.
    let gone = leases.iter().find(|lease| at(lease) == one.address).unwrap();
    for path in [path(gone), "web/bind/0a".into(), format!("web/bind/{}", "0".repeat(32))] {
        let (status, why) = ask(&balancer, "POST", &path, &Value::Null);
        assert!(status == 404 && why["error"].as_str().unwrap().contains("bind again"), "{why}");
        assert_eq!(ask(&balancer, "DELETE", &path, &Value::Null).0, 404);
    }
    let (status, why) = ask(&balancer, "POST", "wbe/bind", &Value::Null);
    assert!(status == 404 && why["error"].as_str().unwrap().contains("there are: web"), "{why}");
    // A reload keeps the leases.
    balancer.reload(&web(&[one.address, other.address], "strategy = \"round_robin\"\n"));
    assert_eq!(in_flight(&balancer, other.address), (2, 2));
    let kept = leases.iter().find(|lease| at(lease) == other.address).unwrap();
    assert_eq!(at(&renew(&balancer, kept, &Value::Null)), other.address);
}

#[test]
fn operators_see_who_has_leases_and_end_them() {
    let (one, other) = (member("one"), member("other"));
    let strategy = "strategy = \"first_available\"\n";
    let balancer = Balancer::start(&web(&[one.address, other.address], strategy));
    let leases: Vec<Value> = (0..3).map(|_| bind(&balancer, &Value::Null)).collect();
    let elsewhere = bind(&balancer, &json!({"exclude": [one.address.to_string()]}));
    let shown = balancer.run(&["leases", "show", "web", "-o", "json"]).json();
    assert_eq!(shown["leases"], 4);
    let first = &shown["lessees"][0];
    assert!(first["member"] == one.address.to_string() && first["from"] == "127.0.0.1", "{shown}");
    assert_eq!((&first["leases"], &shown["lessees"][1]["leases"]), (&json!(3), &json!(1)));
    assert!(!shown.to_string().contains(leases[0]["lease"].as_str().unwrap()), "who has it is its client");
    let table = balancer.run(&["leases", "show", "web"]);
    assert!(table.out.contains("127.0.0.1"), "{}", table.out);

    let ended = balancer.run(&["leases", "end", "web", "--member", &one.address.to_string()]);
    assert!(ended.code == Some(0) && ended.err.contains("web: 3 leases ended"), "{}", ended.err);
    assert_eq!((in_flight(&balancer, one.address), in_flight(&balancer, other.address)), ((0, 0), (1, 1)));
    assert_eq!(ask(&balancer, "POST", &path(&leases[0]), &Value::Null).0, 404);
    assert_eq!(at(&renew(&balancer, &elsewhere, &Value::Null)), other.address);
    let none = balancer.run(&["leases", "end", "web", "--from", "10.9.8.7"]);
    assert!(none.err.contains("web: 0 leases ended"), "{}", none.err);
    assert_eq!(balancer.run(&["leases", "end", "web"]).code, Some(2), "it is to be said whose");
    let all = balancer.run(&["leases", "end", "web", "--all"]);
    assert!(all.err.contains("web: 1 lease ended"), "{}", all.err);
    assert_eq!(in_flight(&balancer, other.address), (0, 0));
    assert!(balancer.run(&["leases", "end", "wbe", "--all"]).err.contains("there are: web"));
}

#[test]
fn a_configuration_without_listeners_lends_members() {
    let one = member("one");
    let text = web(&[one.address], "");
    let group = &text[text.find("[[group]]").unwrap()..];
    let balancer = Balancer::start(group);
    assert_eq!(at(&bind(&balancer, &Value::Null)), one.address);
}

#[test]
fn reports_may_be_taken_without_lending_members() {
    let one = member("one");
    let text = web(&[one.address], "");
    let balancer = Balancer::start(&format!("{text}\n[admin]\nleases = false\n"));
    let (status, why) = ask(&balancer, "POST", "web/bind", &Value::Null);
    assert_eq!(status, 404, "{why}");
    assert_eq!(why["error"], "there is nothing here but POST /v1/report and GET /v1/groups/NAME/ior");
    let url = format!("http://{}/v1/report", balancer.reports());
    let told =
        curl(&["-w", "%{http_code}", "-d", &format!("member={}&name=cpu&value=0.5", one.address), &url], b"");
    assert_eq!(told.body, b"204");
}

#[test]
fn a_lease_that_nobody_renews_ends_by_itself() {
    let one = member("one");
    let balancer = Balancer::start(&web(&[one.address], ""));
    let short = bind(&balancer, &json!({"lease_seconds": 1}));
    let long = bind(&balancer, &json!({"lease_seconds": 3600}));
    assert!(short["lease_seconds"] == 1.0 && long["lease_seconds"] == 3600.0);
    until("one of them to end", || in_flight(&balancer, one.address) == (1, 1));
    assert_eq!(ask(&balancer, "POST", &path(&short), &Value::Null).0, 404);
    assert_eq!(renew(&balancer, &long, &json!({"lease_seconds": 5}))["lease_seconds"], 5.0);
}

#[test]
fn who_comes_again_or_does_not_reach_its_member_is_heard() {
    let (one, other) = (member("one"), member("other"));
    let members = [one.address, other.address];
    let balancer = Balancer::start(&web(&members, "strategy = \"round_robin\"\n"));
    let me = json!({"key": "me"});
    let mine = bind(&balancer, &me);
    for _ in 0..4 {
        let again = bind(&balancer, &me);
        assert_eq!(at(&again), at(&mine), "{again}");
        assert_ne!(again["lease"], mine["lease"]);
    }
    let elsewhere = bind(&balancer, &json!({"key": "me", "exclude": [mine["member"]]}));
    assert_ne!(at(&elsewhere), at(&mine));
    let moved = renew(&balancer, &mine, &json!({"exclude": [mine["member"]]}));
    assert!(moved["moved"] == true && moved["lease"] == mine["lease"], "{moved}");
    assert!(moved["why"].as_str().unwrap().contains("is not wanted by its client"), "{moved}");
    let both = json!({"exclude": [one.address.to_string(), other.address.to_string()]});
    let (status, why) = ask(&balancer, "POST", "web/bind", &both);
    assert!(status == 503 && why["error"].as_str().unwrap().contains("beside those"), "{why}");
    let stays = renew(&balancer, &moved, &both);
    assert!(
        stays["moved"] == false && stays["why"].as_str().unwrap().contains("there is no other"),
        "{stays}"
    );

    // With a strategy that reads keys each key has its member, whichever client asks.
    balancer.reload(&web(&members, "strategy = { rendezvous = { load_factor = 0 } }\n"));
    let home = |key: &str| at(&bind(&balancer, &json!({"key": key})));
    for key in ["a", "b", "c", "d", "e", "f"] {
        assert_eq!(home(key), home(key));
    }
}

#[test]
fn a_lease_leaves_a_member_that_is_drained_or_full_up() {
    let (one, other) = (member("one"), member("other"));
    let rest = "strategy = \"first_available\"\nmax_connections = 2\n";
    let balancer = Balancer::start(&web(&[one.address, other.address], rest));
    let leases: Vec<Value> = (0..4).map(|_| bind(&balancer, &Value::Null)).collect();
    assert!(leases.iter().map(at).eq([one.address, one.address, other.address, other.address]));
    // Every member has as many leases as its limit allows.
    let url = format!("http://{}/v1/groups/web/bind", balancer.reports());
    let full = curl(&["-i", "-X", "POST", &url], b"");
    let full = String::from_utf8(full.body).unwrap().to_lowercase();
    assert!(full.starts_with("http/1.1 429") && full.contains("retry-after: 1"), "{full}");

    let drained = balancer.run(&["drain", &one.address.to_string()]);
    assert_eq!(drained.code, Some(0), "{}", drained.err);
    let stays = renew(&balancer, &leases[0], &Value::Null);
    assert!(stays["moved"] == false && stays["why"].as_str().unwrap().contains("as much to do"), "{stays}");
    assert_eq!(ask(&balancer, "DELETE", &path(&leases[3]), &Value::Null).0, 204);
    let moved = renew(&balancer, &leases[0], &Value::Null);
    assert!(moved["moved"] == true && at(&moved) == other.address, "{moved}");
    assert!(moved["why"].as_str().unwrap().contains("drain"), "{moved}");
    assert_eq!((in_flight(&balancer, one.address), in_flight(&balancer, other.address)), ((1, 1), (2, 2)));
    // The move is reported like that of a session.
    until("the move to be told", || !balancer.events(one.address, "moved").is_empty());
    let event = &balancer.events(one.address, "moved")[0];
    assert!(
        event["why"].as_str().unwrap().contains(&format!("1 session left: 1 to {}", other.address)),
        "{event}"
    );

    assert_eq!(balancer.run(&["drain", &other.address.to_string()]).code, Some(0));
    let nobody = curl(&["-i", "-X", "POST", &url], b"");
    let nobody = String::from_utf8(nobody.body).unwrap().to_lowercase();
    assert!(nobody.starts_with("http/1.1 503") && nobody.contains("retry-after: 1"), "{nobody}");
}

#[test]
fn an_alert_moves_as_many_leases_as_it_asks_for() {
    const CLIENTS: usize = 24;
    let (one, other) = (member("one"), member("other"));
    let rest = "strategy = \"first_available\"\n[group.monitor]\nmetric = \"load\"\ninterval = \"1m\"\n";
    let balancer = Balancer::start(&web(&[one.address, other.address], rest));
    let mut leases: Vec<Value> = (0..CLIENTS).map(|_| bind(&balancer, &Value::Null)).collect();
    assert!(leases.iter().all(|lease| at(lease) == one.address));
    // Each member's load is that of its clients, and a base load of its own.
    let even = found("leases shared among both", || {
        let mut alert = false;
        for member in [&other, &one] {
            let held = in_flight(&balancer, member.address).1;
            alert |= report(&balancer, member.address, 0.2 + held as f64 / CLIENTS as f64).is_some();
        }
        for lease in &mut leases {
            *lease = renew(&balancer, lease, &Value::Null);
            let why = lease["why"].as_str().unwrap();
            assert!(lease["moved"] == false || why.contains("is under alert"), "{lease}");
        }
        let held = in_flight(&balancer, one.address).1;
        (!alert && held.abs_diff(CLIENTS as u64 / 2) <= 5).then_some(held)
    });
    assert_eq!(even, leases.iter().filter(|lease| at(lease) == one.address).count() as u64);
    let moved = |address| balancer.member(address)["moved"].as_u64().unwrap();
    assert_eq!(moved(one.address) - moved(other.address), CLIENTS as u64 - even);
}
