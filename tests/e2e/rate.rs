//! The rate limit of members, in requests a second.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::fleet::Fleet;
use crate::stage::{Balancer, Load, Member, get, until, web};

/// Returns the requests a second that a member ended, by the balancers in front of it, over some seconds with
/// more load than the limit. The first rate is by the time from the first count's begin to the last one's
/// end, which is too long. The second is by the time between the two counts, which is too short.
fn rates<'b>(balancers: impl Iterator<Item = &'b Balancer> + Clone, member: SocketAddr) -> (f64, f64) {
    let ended = || -> u64 {
        balancers.clone().map(|balancer| balancer.member(member)["requests"].as_u64().unwrap()).sum()
    };
    let begun = Instant::now();
    // The requests of the first moment used saved tokens.
    let (before, counted) = (ended(), Instant::now());
    // sleeps: the window, whose length is measured
    std::thread::sleep(Duration::from_secs(4));
    let between = counted.elapsed();
    let after = ended();
    let count = (after - before) as f64;
    (count / begun.elapsed().as_secs_f64(), count / between.as_secs_f64())
}

/// Asserts that the rate is never more than a tenth above the limit, and at most a tenth below it. A machine
/// that stood still may be below, which it is not always.
#[track_caller]
fn holds<'b>(limit: f64, balancers: impl Iterator<Item = &'b Balancer> + Clone, member: SocketAddr) {
    until("nearly as many as the limit lets through", || {
        let (least, most) = rates(balancers.clone(), member);
        assert!(least <= 1.1 * limit + 0.5, "{least} of {limit}");
        most >= 0.9 * limit
    });
}

#[test]
fn members_are_given_so_many_a_second_and_the_rest_waits_or_is_refused() {
    let members = Member::several(2, &[]);
    let addresses: Vec<_> = members.iter().map(|member| member.address).collect();
    let limited = web(&addresses, "strategy = \"least_request\"\nmax_rate = 40\nqueue = 100\n");
    let balancer = Balancer::start(&limited);
    assert_eq!(get(balancer.address(), "/").status, 200);
    let load = Load::start(balancer.address(), "GET", 250.0);
    until("the queue is full", || balancer.rejected("queue_full") > 20);
    for member in &addresses {
        holds(40.0, std::iter::once(&balancer), *member);
        assert_eq!(balancer.member(*member)["max_rate"].as_f64(), Some(40.0));
    }
    until("it is said why", || balancer.run(&["explain", "group", "web"]).out.contains("max_rate"));
    balancer.reload(&web(&addresses, "strategy = \"least_request\"\n"));
    until("there is no limit any more", || rates(std::iter::once(&balancer), addresses[0]).0 > 1.2 * 40.0);
    drop(load.stop());
}

#[test]
fn a_rate_holds_for_all_balancers_together() {
    let member = Member::start(&[]);
    let rest = "strategy = \"least_connections\"\nmax_rate = 100\nqueue = 1000\nqueue_timeout = \"20s\"\n";
    let fleet = Fleet::start(3, &[member.address], "", rest);
    let each = || (0..3).map(|one| fleet.one(one));
    let part = |one: usize| fleet.one(one).member(member.address)["max_rate"].as_f64().unwrap();
    let first = Load::start(fleet.one(0).address(), "GET", 150.0);
    until("who asks has most of it", || part(0) > 80.0 && part(1) < 12.0);
    holds(100.0, each(), member.address);
    let others = [1, 2].map(|one| Load::start(fleet.one(one).address(), "GET", 80.0));
    until("all have some of it", || (0..3).all(|one| part(one) > 15.0));
    holds(100.0, each(), member.address);
    // The balancers are asked one after the other, while the share of each changes.
    until("parts that come to the limit", || (90.0..=110.0).contains(&(0..3).map(part).sum::<f64>()));
    drop((first.stop(), others.map(Load::stop)));
}
