//! Who gets what, as the clients see it: by capacity, by key, by load, in order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::stage::{Balancer, Load, Member, Script, Wire, until, web};

/// So many requests on one connection; answers by member. `fields` are those of the request with this number.
fn shares(balancer: &Balancer, requests: usize, fields: impl Fn(usize) -> String) -> BTreeMap<String, usize> {
    let mut client = Wire::connect(balancer.address());
    let mut shares = BTreeMap::new();
    for number in 0..requests {
        client.send(format!("GET /{number} HTTP/1.1\r\nHost: x\r\n{}\r\n", fields(number)));
        let answer = client.answer().unwrap();
        *shares.entry(answer.field("x-member").unwrap().to_owned()).or_default() += 1;
    }
    shares
}

#[test]
fn capacities_are_kept_exactly() {
    let members =
        [Member::start(&["--name", "a"]), Member::start(&["--name", "b"]), Member::start(&["--name", "c"])];
    let [a, b, c] = members.each_ref().map(|member| member.address);
    let text = format!(
        "threads = 1\n[[listener]]\naddress = \"127.0.0.1:0\"\ngroup = \"web\"\n[[group]]\nname = \"web\"\n\
         slow_start = \"0s\"\nstrategy = \"weighted_round_robin\"\nmembers = [\"{a}\",\n\
         {{ address = \"{b}\", capacity = 2 }}, {{ address = \"{c}\", capacity = 5 }}]\n"
    );
    let balancer = Balancer::start(&text);
    let shares = shares(&balancer, 800, |_| String::new());
    assert_eq!(shares.into_values().collect::<Vec<_>>(), [100, 200, 500]);
}

#[test]
fn what_has_a_key_stays_and_moves_no_more_than_it_must() {
    let members = Member::several(4, &[]);
    let all: Vec<_> = members.iter().map(|member| member.address).collect();
    let rest = "strategy = { rendezvous = { load_factor = 10 } }\nkey = \"cookie:user\"\n";
    let balancer = Balancer::start(&web(&all, rest));
    let owner = |user: usize| {
        let found = shares(&balancer, 3, |_| format!("Cookie: a=b; user={user}; c=d\r\n"));
        assert_eq!(found.len(), 1, "user {user} is with {found:?}");
        found.into_keys().next().unwrap()
    };
    let before: Vec<String> = (0..100).map(owner).collect();
    let each = all.iter().map(|address| before.iter().filter(|name| **name == address.to_string()).count());
    assert!(each.clone().all(|count| count >= 10), "{:?}", each.collect::<Vec<_>>());
    balancer.reload(&web(&all[..3], rest));
    let after: Vec<String> = (0..100).map(owner).collect();
    let left = all[3].to_string();
    for (user, (before, after)) in before.iter().zip(&after).enumerate() {
        assert!(*after != left && (before == after || *before == left), "user {user}: {before} -> {after}");
    }
}

#[test]
fn load_goes_where_it_is_carried() {
    let fast = Member::start(&["--name", "fast", "--service", "const:2ms", "--workers", "8"]);
    let slow = Member::start(&["--name", "slow", "--service", "const:100ms", "--workers", "8"]);
    for strategy in ["least_connections", "least_request", "peak_ewma"] {
        let rest = format!("strategy = \"{strategy}\"\n");
        let balancer = Balancer::start(&web(&[fast.address, slow.address], &rest));
        let mut load = Load::start(balancer.address(), "GET", 100.0);
        load.more(300);
        let record = load.stop_unharmed();
        let share = record.shares();
        assert!(share["fast"] > 0.75, "{strategy}: {share:?}");
        assert!(strategy == "peak_ewma" || share["slow"] > 0.02, "{strategy}: {share:?}");
    }
}

#[test]
fn the_first_is_used_while_it_can_be() {
    let mut members = Member::several(2, &[]);
    let all: Vec<_> = members.iter().map(|member| member.address).collect();
    let balancer =
        Balancer::start(&web(&all, "strategy = \"first_available\"\n[group.outlier]\nejection = \"1s\"\n"));
    let mut load = Load::start(balancer.address(), "GET", 100.0);
    load.more(50);
    assert_eq!(balancer.member(all[1])["requests"], 0);
    members[0].process.kill();
    until("the spare serves", || balancer.member(all[1])["requests"].as_u64() > Some(20));
    members[0].restart();
    let before = balancer.member(all[0])["answers"]["2xx"].as_u64();
    until("the first serves again", || balancer.member(all[0])["answers"]["2xx"].as_u64() > before);
    load.stop_unharmed();
}

#[test]
fn what_comes_at_once_for_one_key_stays_together_unless_it_is_too_much() {
    const CLIENTS: usize = 30;
    // None answers before all have come.
    let came = Arc::<AtomicUsize>::default();
    let members: Vec<Script> = (0..3)
        .map(|number| {
            let came = Arc::clone(&came);
            Script::start(move |wire| {
                while wire.head()?.is_some() {
                    came.fetch_add(1, SeqCst);
                    until("all have come", || came.load(SeqCst) >= CLIENTS);
                    let name = format!("X-Member: {number}\r\nContent-Length: 0\r\n\r\n");
                    wire.try_send(format!("HTTP/1.1 200 OK\r\n{name}"))?;
                }
                std::io::Result::Ok(())
            })
        })
        .collect();
    let all: Vec<_> = members.iter().map(|member| member.address).collect();
    let spread = |factor: f64| {
        let rest =
            format!("strategy = {{ rendezvous = {{ load_factor = {factor} }} }}\nkey = \"header:X-User\"\n");
        let balancer = Balancer::start(&web(&all, &rest));
        came.store(0, SeqCst);
        let mut clients: Vec<Wire> = (0..CLIENTS).map(|_| Wire::connect(balancer.address())).collect();
        clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: x\r\nX-User: one\r\n\r\n"));
        let mut shares: BTreeMap<String, usize> = BTreeMap::new();
        for client in &mut clients {
            let answer = client.answer().unwrap();
            *shares.entry(answer.field("x-member").unwrap().to_owned()).or_default() += 1;
        }
        shares.into_values().max().unwrap()
    };
    assert_eq!(spread(0.0), CLIENTS, "no bound");
    // 1.5 times a third of 30, and two threads that do not see each other at the same instant.
    let most = spread(1.5);
    assert!(most <= 18, "{most}");
}
