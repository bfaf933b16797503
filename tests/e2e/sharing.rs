//! The shares of members, as the clients see them: by capacity, by key, by load, in order.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use crate::stage::{Balancer, Load, Member, Script, Wire, free_port, until, web};

/// Sends so many requests on one connection and counts the answers by member. `fields` returns the fields of
/// the request with this number.
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
    // The mean is 25 of 100: fewer than five has a probability of one in ten million.
    let each = all.iter().map(|address| before.iter().filter(|name| **name == address.to_string()).count());
    assert!(each.clone().all(|count| count >= 5), "{:?}", each.collect::<Vec<_>>());
    balancer.reload(&web(&all[..3], rest));
    let after: Vec<String> = (0..100).map(owner).collect();
    let left = all[3].to_string();
    for (user, (before, after)) in before.iter().zip(&after).enumerate() {
        assert!(*after != left && (before == after || *before == left), "user {user}: {before} -> {after}");
    }
}

/// Runs clients at once, each of which asks again when it has its answer, for so many answers in all. Counts
/// the answers by member. While the machine stands still nothing piles up.
pub(crate) fn asked_by(address: SocketAddr, clients: usize, answers: usize) -> BTreeMap<String, usize> {
    let begun = AtomicUsize::new(0);
    let client = || {
        let mut client = Wire::connect(address);
        let mut shares: BTreeMap<String, usize> = BTreeMap::new();
        while begun.fetch_add(1, SeqCst) < answers {
            client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
            let answer = client.answer().unwrap();
            assert_eq!(answer.status, 200, "{answer:?}");
            *shares.entry(answer.field("x-member").unwrap().to_owned()).or_default() += 1;
        }
        shares
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        let mut all: BTreeMap<String, usize> = BTreeMap::new();
        for shares in clients.into_iter().map(|client| client.join().unwrap()) {
            shares.into_iter().for_each(|(member, count)| *all.entry(member).or_default() += count);
        }
        all
    })
}

#[test]
fn load_goes_where_it_is_carried() {
    let fast = Member::start(&["--name", "fast", "--service", "const:2ms", "--workers", "8"]);
    let slow = Member::start(&["--name", "slow", "--service", "const:1s", "--workers", "8"]);
    for strategy in ["least_connections", "least_request", "peak_ewma"] {
        let rest = format!("strategy = \"{strategy}\"\n");
        let balancer = Balancer::start(&web(&[fast.address, slow.address], &rest));
        // At most eight requests wait, whatever stands still meanwhile.
        let share = asked_by(balancer.address(), 8, 400);
        assert!(share["fast"] > 300, "{strategy}: {share:?}");
        assert!(strategy == "peak_ewma" || share["slow"] > 0, "{strategy}: {share:?}");
    }
}

#[test]
fn the_first_is_used_while_it_can_be() {
    // The first comes back at its address, whose port is reserved for it meanwhile.
    let first = Member::start_at(SocketAddr::from(([127, 0, 0, 1], free_port())), &[]);
    let mut members = [first, Member::start(&[])];
    let all: Vec<_> = members.iter().map(|member| member.address).collect();
    // All requests may be tried again, however many come at once.
    let rest = "strategy = \"first_available\"\nretry = { budget = 1.0, min_per_second = 100000 }\n\
                [group.outlier]\nejection = \"1s\"\n";
    let balancer = Balancer::start(&web(&all, rest));
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
    // No member answers before all requests have come.
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
        // One thread knows of all.
        let balancer = Balancer::start(&("threads = 1\n".to_owned() + &web(&all, &rest)));
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
    // The limit is 1.5 times a third of 30.
    let most = spread(1.5);
    assert!(most <= 15, "{most}");
}
