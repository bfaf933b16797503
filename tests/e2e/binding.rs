//! Clients that are bound on demand: a member under alert gives keep-alive connections away until loads are
//! even, without a failed request.

use std::net::SocketAddr;
use std::time::Instant;

use serde_json::Value;

use crate::stage::{Balancer, PATIENCE, Script, Wire, curl, curl_status, found, get, listening, until};

/// Starts a member that answers each request with its own name.
fn named(name: &'static str) -> Script {
    Script::answering(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len()))
}

/// Returns the members that answer the next request of each client.
pub(crate) fn round(clients: &mut [Wire]) -> Vec<String> {
    let ask = |client: &mut Wire| {
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
        let answer = client.answer().unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.text()
    };
    clients.iter_mut().map(ask).collect()
}

/// Returns the listener's sessions with a member: bound now, moved so far.
pub(crate) fn bound(balancer: &Balancer, address: SocketAddr) -> (u64, u64) {
    let said = balancer.run(&["bindings", "-o", "json"]).json();
    let bindings = said["listeners"][0]["bindings"].as_array().unwrap();
    let of = bindings.iter().find(|binding| binding["member"] == address.to_string()).unwrap();
    (of["bound"].as_u64().unwrap(), of["moved"].as_u64().unwrap())
}

/// Reports the load of a member; returns the share of its sessions that is to move.
pub(crate) fn report(balancer: &Balancer, member: SocketAddr, load: f64) -> Option<f64> {
    let url = format!("http://{}/v1/report", balancer.reports());
    let told = curl(&["-w", "%{http_code}", "-d", &format!("member={member}&load={load}"), &url], b"");
    let said = String::from_utf8(told.body).unwrap();
    if said == "204" {
        return None;
    }
    let body = said.strip_suffix("200").unwrap_or_else(|| panic!("{said}"));
    let shed: Value = serde_json::from_str(body).unwrap();
    assert!(shed["shed"]["epoch"].as_u64().unwrap() > 0, "{said}");
    shed["shed"]["share"].as_f64()
}

#[test]
fn sessions_leave_an_overloaded_member_until_all_is_even() {
    const CLIENTS: usize = 40;
    let (one, other) = (named("one"), named("other"));
    let listener = "binding = \"on_demand\"\n";
    // Reports stay valid for three minutes, however slow the machine is.
    let rest = "strategy = \"first_available\"\n[group.monitor]\nmetric = \"load\"\ninterval = \"1m\"\n";
    let balancer = Balancer::start(&listening(listener, &[one.address, other.address], rest));
    let mut clients: Vec<Wire> = (0..CLIENTS).map(|_| Wire::connect(balancer.address())).collect();
    assert!(round(&mut clients).iter().all(|name| name == "one"));
    assert_eq!((bound(&balancer, one.address), bound(&balancer, other.address)), ((40, 0), (0, 0)));

    // Each member's load is that of its sessions plus a constant. Reports are sent in rounds, as a monitor
    // does.
    let end = Instant::now() + PATIENCE;
    let (mut alerts, mut calm, mut rounds) = (0, 0, 0);
    while calm < 10 {
        // Slow machines get as many rounds as fast ones.
        rounds += 1;
        assert!(Instant::now() < end || rounds < 300, "sessions still move");
        let before = bound(&balancer, one.address).1 + bound(&balancer, other.address).1;
        let mut raised = false;
        for member in [&other, &one] {
            let sessions = bound(&balancer, member.address).0;
            let share = report(&balancer, member.address, 0.2 + sessions as f64 / CLIENTS as f64);
            assert!(share.is_none_or(|share| share > 0.0 && share <= 1.0), "{share:?}");
            raised |= share.is_some();
        }
        alerts += u32::from(raised);
        round(&mut clients);
        let after = bound(&balancer, one.address).1 + bound(&balancer, other.address).1;
        let even = bound(&balancer, one.address).0.abs_diff(20) <= 6;
        calm = if even && before == after { calm + 1 } else { 0 };
    }
    assert!(alerts > 0);
    let (stayed, moved) = bound(&balancer, one.address);
    let (came, back) = bound(&balancer, other.address);
    assert_eq!(stayed + came, CLIENTS as u64);
    assert_eq!(moved - back, came, "who came had been sent");
    // No request failed, and no session was lost.
    for member in [&one, &other] {
        assert_eq!(balancer.member(member.address)["failures"], 0);
    }
    assert_eq!(balancer.rejected("no_member") + balancer.rejected("connect_failed"), 0);

    // All endpoints show the moves; one event covers many of them.
    let told = |address| {
        let events = balancer.events(address, "moved");
        events.iter().map(|event| event["inputs"]["sessions"].as_f64().unwrap()).sum::<f64>()
    };
    until("all moves are told", || (told(one.address), told(other.address)) == (moved as f64, back as f64));
    let event = balancer.events(one.address, "moved")[0].clone();
    assert!(event["why"].as_str().unwrap().contains(&format!("to {}", other.address)), "{event}");
    assert!(event["inputs"]["fair"].is_number(), "{event}");
    let load = format!("plimsoll_member_load{{group=\"web\",member=\"{}\"}}", one.address);
    assert!((balancer.metric(&load) - (0.2 + stayed as f64 / CLIENTS as f64)).abs() < 0.3);
    assert!(balancer.metric(&load.replace("load", "report_age_seconds")) >= 0.0);
    assert!(balancer.metric("plimsoll_group_load{group=\"web\"}") > 0.0);
    assert!(!balancer.events(one.address, "alert_raised").is_empty());
    let series = format!("plimsoll_member_moved_total{{group=\"web\",member=\"{}\"}}", one.address);
    assert_eq!(balancer.metric(&series), moved as f64);
    let table = balancer.run(&["bindings"]).out;
    assert!(table.contains("on_demand") && table.contains(&one.address.to_string()), "{table}");
    let explained = balancer.run(&["explain", "group", "web", "-o", "json"]).json();
    assert_eq!(explained["members"][0]["moved"], moved);
}

#[test]
fn another_strategy_while_it_runs_leaves_sessions_where_they_are() {
    let members = [named("one"), named("two"), named("three")];
    let addresses = members.each_ref().map(|member| member.address);
    let bindings = ["per_session", "on_demand"];
    let all = bindings.iter().flat_map(|binding| ["http", "tcp"].map(|protocol| (protocol, binding)));
    for (protocol, binding) in all {
        let listener = format!("protocol = \"{protocol}\"\nbinding = \"{binding}\"\n");
        let rest = "strategy = \"round_robin\"\n[group.monitor]\nmetric = \"load\"\n";
        let balancer = Balancer::start(&listening(&listener, &addresses, rest));
        let mut clients: Vec<Wire> = (0..9).map(|_| Wire::connect(balancer.address())).collect();
        let before = round(&mut clients);
        let count = |name: &str| before.iter().filter(|who| *who == name).count();
        assert!(["one", "two", "three"].iter().all(|name| count(name) >= 1), "{before:?}");
        let bound_before = addresses.map(|address| bound(&balancer, address));
        for strategy in ["first_available", "{ rendezvous = { load_factor = 0 } }", "adaptive"] {
            let said = balancer.run(&["set", "group", &format!("web.strategy={strategy}")]);
            assert!(said.code == Some(0) && said.err.contains("strategy"), "{}", said.err);
            for _ in 0..2 {
                assert_eq!(round(&mut clients), before, "{protocol}, {binding}, {strategy}");
            }
            let bound_now = addresses.map(|address| bound(&balancer, address));
            assert_eq!(bound_now, bound_before, "{protocol}, {binding}, {strategy}");
            // The strategy is in force: new clients follow it.
            if strategy == "first_available" {
                let mut news: Vec<Wire> = (0..4).map(|_| Wire::connect(balancer.address())).collect();
                assert_eq!(round(&mut news), ["one"; 4], "{protocol}, {binding}");
                drop(news);
                let there = || addresses.map(|address| bound(&balancer, address));
                until("those have gone", || there() == bound_before);
            }
        }
    }
}

#[test]
fn a_session_may_be_sent_to_its_member_and_members_told_to_send_it() {
    let (one, other) = (named("one"), named("other"));
    let rest = "[group.monitor]\nmetric = \"load\"\ninterval = \"1m\"\n";
    let file = |rebind: &str| {
        let members =
            format!("[\"{}\", {{ address = \"{}\", public = \"http://{1}\" }}]", one.address, other.address);
        let text = listening(
            &format!("binding = \"on_demand\"\nrebind = \"{rebind}\"\n"),
            &[one.address, other.address],
            &format!("strategy = \"first_available\"\n{rest}"),
        );
        text.replace(&crate::stage::members_list(&[one.address, other.address]), &members)
    };
    let mut balancer = Balancer::start(&file("agent"));
    let mut clients: Vec<Wire> = (0..30).map(|_| Wire::connect(balancer.address())).collect();
    assert!(round(&mut clients).iter().all(|name| name == "one"));
    let share = found("a member under alert", || {
        report(&balancer, other.address, 0.3);
        report(&balancer, one.address, 0.6)
    });
    assert!(share > 0.0 && share <= 1.0, "{share}");
    assert_eq!(
        curl_status(
            &[
                "-d",
                &format!("member={}&load=0.3", other.address),
                &format!("http://{}/v1/report", balancer.reports())
            ],
            b""
        ),
        204
    );
    assert!(round(&mut clients).iter().all(|name| name == "one"), "the balancer moves none itself");

    // Existing connections follow the new mode too.
    balancer.reload(&file("redirect"));
    let location = found("a client that is sent away", || {
        report(&balancer, other.address, 0.3);
        report(&balancer, one.address, 0.6);
        clients.iter_mut().find_map(|client| {
            client.send("GET /page?x=1 HTTP/1.1\r\nHost: test\r\n\r\n");
            let answer = client.answer().unwrap();
            (answer.status == 307).then(|| answer.field("location").unwrap().to_owned())
        })
    });
    assert_eq!(location, format!("http://{}/page?x=1", other.address));
    assert_eq!(get(other.address, "/page?x=1").text(), "other");
    // A redirected client no longer needs the balancer.
    let mut away = Wire::connect(other.address);
    for _ in 0..2 {
        away.send("GET /page?x=2 HTTP/1.1\r\nHost: test\r\n\r\n");
        assert_eq!(away.answer().unwrap().text(), "other");
        if !balancer.process.ended() {
            balancer.process.kill();
        }
    }
}
