//! The load line against simulated members of known capacity: shared processors and thread pools, alike and
//! unequal, with and without agents, by strategies that use load and that do not.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[expect(dead_code, reason = "other tests draw more")]
mod dice;
#[path = "load_line/other.rs"]
mod other;
mod parallel;
#[path = "load_line/unequal.rs"]
mod unequal;
#[path = "load_line/world.rs"]
mod world;

use world::{Kind, Server, World};

/// Returns its result after some seconds at a load, as a share of the true capacity.
fn at(world: &mut World, share: f64, seconds: f64) -> plimsoll_brain::status::LoadLine {
    let rate = share * world.capacity();
    world.run(rate, seconds);
    world.estimator.status().expect("a load line")
}

fn alike(kind: Kind, count: usize) -> Vec<Server> {
    vec![Server::new(kind, 2.0, 0.02); count]
}

#[track_caller]
fn within(found: Option<f64>, truth: f64, off: f64, what: &str) {
    let found = found.unwrap_or_else(|| panic!("{what}: no number"));
    assert!((found / truth - 1.0).abs() <= off, "{what}: {found:.1}, not {truth:.1}");
}

#[test]
fn with_agents_the_capacity_is_known_at_a_third_of_it() {
    let unlike = vec![
        Server::new(Kind::Shared, 2.0, 0.02),
        Server::new(Kind::Shared, 4.0, 0.02),
        Server::new(Kind::Shared, 8.0, 0.016),
    ];
    for (what, servers) in [
        ("processors", alike(Kind::Shared, 3)),
        ("thread pools", alike(Kind::Line, 3)),
        ("unlike members", unlike),
    ] {
        for share in [0.3, 0.4, 0.5] {
            let mut world = World::new(servers.clone(), true, true, 7);
            let truth = world.capacity();
            let line = at(&mut world, share, 90.0);
            within(line.capacity, truth, 0.1, &format!("{what} at {share}: {}", line.why));
            let headroom = line.headroom.unwrap();
            assert!((headroom - (1.0 - share)).abs() < 0.12, "{what}: head-room {headroom}");
            assert_eq!((line.verdict.as_str(), line.limited_by.as_str()), ("unproven", "members"));
        }
    }
}

#[test]
fn without_agents_the_interval_covers_the_truth_or_nothing_is_said() {
    let mut numbers = 0;
    for (what, kind) in [("processors", Kind::Shared), ("thread pools", Kind::Line)] {
        for (cores, share) in [(1.0, 0.5), (2.0, 0.5), (2.0, 0.8), (4.0, 0.4), (4.0, 0.8), (64.0, 0.5)] {
            let mut world = World::new(vec![Server::new(kind, cores, 0.02); 2], false, true, 11);
            let truth = world.capacity();
            let line = at(&mut world, share, 180.0);
            let what = format!("{cores} {what} at {share}: {line:?}");
            match (line.capacity_low, line.capacity_high) {
                (Some(low), Some(high)) => {
                    numbers += 1;
                    assert!(low <= 1.05 * truth && high >= 0.95 * truth, "{what}, not {truth}");
                }
                _ => assert!(
                    line.capacity.is_none() && line.verdict == "unknown" && !line.why.is_empty(),
                    "{what}"
                ),
            }
            if cores > 16.0 {
                assert_eq!(line.capacity, None, "nobody can know: {what}");
            }
        }
    }
    assert!(numbers >= 5, "it says something in {numbers} cases only");
}

#[test]
fn predictions_are_held_against_what_comes() {
    let mut world = World::new(alike(Kind::Shared, 3), true, true, 3);
    let truth = world.capacity();
    let before = at(&mut world, 0.4, 90.0);
    assert_eq!((before.error, before.predictions_checked), (None, 0));
    at(&mut world, 0.6, 40.0);
    let after = at(&mut world, 0.9, 90.0);
    assert!(after.predictions_checked >= 2 && after.error.unwrap() < 0.1, "{after:?}");
    assert_eq!(after.verdict, "good");
    // The predictions for 80 % of the capacity, made at 40 %.
    let measured = World::measured(alike(Kind::Shared, 3), true, 0.8 * truth, 300.0);
    let predicted = before.predicted.iter().find(|one| one.load == 0.8).unwrap();
    within(predicted.p50, measured.0, 0.25, "median");
    within(predicted.p99, measured.1, 0.35, "99th percentile");
    // Above the line requests pile up, and the served rate is the capacity.
    world.run(1.3 * truth, 60.0);
    let over = world.estimator.status().unwrap();
    within(over.capacity, truth, 0.05, "saturated");
    assert!(over.headroom.unwrap() < 0.05 && over.error.unwrap() < 0.1, "{over:?}");
}

#[test]
fn a_bad_fit_is_found_out() {
    let mut world = World::new(alike(Kind::Shared, 2), true, true, 5);
    // Agents that see half of the utilization, as one with another group's limits would.
    world.agents_see = 0.5;
    let truth = world.capacity();
    let before = at(&mut world, 0.35, 90.0);
    within(before.capacity, 2.0 * truth, 0.15, "what agents say");
    world.run(1.2 * truth, 90.0);
    let after = world.estimator.status().unwrap();
    assert!(after.error.unwrap() > 0.25 && after.verdict == "poor", "{after:?}");
}

#[test]
fn what_if() {
    let mut world = World::new(alike(Kind::Shared, 4), true, true, 9);
    let truth = world.capacity();
    let line = at(&mut world, 0.45, 90.0);
    let of = |change: &str| line.what_if.iter().find(|one| one.change == change).unwrap().clone();
    let (less, more, double) = (of("minus_one"), of("plus_one"), of("double"));
    within(less.capacity, 0.75 * truth, 0.1, "without one");
    within(more.capacity, 1.25 * truth, 0.1, "with one more");
    assert!(
        less.over == Some(false) && double.over == Some(false) && double.headroom.unwrap() < 0.2,
        "{line:?}"
    );
    assert!(more.p99 <= less.p99 && less.p99 < double.p99, "{line:?}");
    let line = at(&mut world, 0.6, 60.0);
    let double = line.what_if.iter().find(|one| one.change == "double").unwrap();
    assert!(double.over == Some(true) && double.p99.is_none() && double.headroom.unwrap() < 0.0, "{line:?}");
}

#[test]
fn where_the_strategy_is_blind_the_slowest_member_is_the_line() {
    let servers = vec![Server::new(Kind::Shared, 2.0, 0.02), Server::new(Kind::Shared, 4.0, 0.02)];
    let mut world = World::new(servers, true, false, 13);
    // Half of the requests each: 200 a second is twice the capacity of the small one.
    world.run(80.0, 90.0);
    let line = world.estimator.status().unwrap();
    within(line.capacity, 200.0, 0.12, "turns");
}

/// Returns the least and the greatest result, look by look, at a third of the capacity.
fn spread(world: &mut World, seconds: u32) -> (f64, f64) {
    let rate = world.capacity() / 3.0;
    world.run(rate, 60.0);
    let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
    for _ in 0..seconds {
        world.run(rate, 1.0);
        let capacity = world.estimator.status().unwrap().capacity.unwrap();
        (least, most) = (least.min(capacity), most.max(capacity));
    }
    (least, most)
}

/// Returns four members with one core, and four with three.
fn one_and_three() -> Vec<Server> {
    (0..8).map(|place| Server::new(Kind::Shared, if place % 2 == 0 { 1.0 } else { 3.0 }, 0.02)).collect()
}

/// Checks that a member's random excess over its share for some seconds does not change the group's capacity.
#[test]
fn where_members_are_drawn_the_line_is_that_of_their_shares() {
    for servers in [alike(Kind::Shared, 8), one_and_three()] {
        let mut world = World::new(servers, true, false, 29);
        world.draws = true;
        let truth = world.capacity();
        let (least, most) = spread(&mut world, 60);
        assert!(least > 0.9 * truth && most < 1.1 * truth, "{least:.0} to {most:.0}, not {truth:.0}");
    }
    // With turns half of the members have three times their fair share.
    let (least, most) = spread(&mut World::new(one_and_three(), true, false, 29), 60);
    assert!(least > 0.9 * 400.0 && most < 1.1 * 400.0, "{least:.0} to {most:.0}, not 400");
}

/// Checks that the balancer's processor time for sessions, which are no requests, is no cost of requests.
#[test]
fn what_else_the_balancer_carries_is_no_cost_of_requests() {
    let mut world = World::new(alike(Kind::Shared, 4), true, true, 17);
    world.balancer_seconds = 0.002;
    let alone = at(&mut world, 0.4, 90.0);
    within(alone.balancer_capacity, 500.0, 0.02, "one processor, 2 ms each");
    world.sessions = 0.3;
    let beside = at(&mut world, 0.4, 30.0);
    within(beside.balancer_capacity, 350.0, 0.03, "0.7 of a processor");
    let mut world = World::new(alike(Kind::Shared, 4), true, true, 17);
    (world.balancer_seconds, world.sessions) = (0.002, 0.3);
    let never_alone = at(&mut world, 0.4, 90.0);
    assert_eq!(never_alone.balancer_capacity, None, "{never_alone:?}");
    assert!(never_alone.why.contains("is unknown: it carries tcp or udp"), "{}", never_alone.why);
}

/// Checks that predictions have the age of their last window.
#[test]
fn predictions_have_an_age() {
    let mut world = World::new(alike(Kind::Shared, 2), true, true, 31);
    at(&mut world, 0.4, 60.0);
    let rate = 0.4 * world.capacity();
    let mut ages = Vec::new();
    for _ in 0..10 {
        let before = world.estimator.status().unwrap();
        world.run(rate, 1.0);
        let line = world.estimator.status().unwrap();
        let same = before.predicted == line.predicted && before.what_if == line.what_if;
        assert!(same == (line.age_seconds > 0.5), "{before:?} {line:?}");
        ages.push(line.age_seconds.round() as u32);
    }
    ages.sort_unstable();
    assert_eq!(ages, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]);
}

#[test]
fn who_loses_its_only_member_has_nothing_left() {
    let mut world = World::new(alike(Kind::Shared, 1), true, true, 37);
    let line = at(&mut world, 0.4, 60.0);
    let less = &line.what_if[0];
    assert_eq!((less.change.as_str(), less.about.as_str()), ("minus_one", "without its only usable member"));
    assert!(
        less.over == Some(true)
            && less.capacity == Some(0.0)
            && less.headroom == Some(-1.0)
            && less.p99.is_none(),
        "{less:?}"
    );
}

/// Checks the reason if agents report and there is no number nevertheless.
#[test]
fn why_nothing_is_known_is_true_where_agents_tell() {
    for (agents, said) in [(false, "no agent tells"), (true, "agents tell")] {
        let mut world = World::new(alike(Kind::Shared, 2), agents, true, 41);
        // They see almost nothing: requests take their time elsewhere.
        world.agents_see = 0.05;
        let line = at(&mut world, 0.25, 60.0);
        assert_eq!(line.verdict, "unknown", "{line:?}");
        assert!(line.why.contains(said) && line.why.contains("no agent") != agents, "{}", line.why);
    }
    for agents in [false, true] {
        let mut world = World::new(alike(Kind::Shared, 2), agents, true, 43);
        world.run(1.0, 20.0);
        let line = world.estimator.status().unwrap();
        assert!(line.why.starts_with("too few requests so far"), "{}", line.why);
        assert_eq!(line.why.contains("no agent tells"), !agents, "{}", line.why);
    }
}

#[test]
fn the_balancer_may_be_the_limit() {
    let mut world = World::new(alike(Kind::Shared, 4), true, true, 17);
    world.balancer_seconds = 0.005;
    let line = at(&mut world, 0.4, 90.0);
    within(line.capacity, 200.0, 0.02, "one processor, 5 ms each");
    assert_eq!(line.limited_by, "balancer");
    within(line.balancer_capacity, 200.0, 0.02, "the balancer");
}

#[test]
fn sessions_have_no_load_line() {
    let mut world = World::new(alike(Kind::Shared, 2), true, true, 19);
    world.requests = false;
    let line = at(&mut world, 0.4, 30.0);
    assert!(
        line.capacity.is_none() && line.verdict == "unknown" && line.why.contains("sessions"),
        "{line:?}"
    );
}

/// Checks that failures, which are fast, do not count as served requests.
#[test]
fn what_fails_says_nothing_of_what_can_be_done() {
    use plimsoll_brain::load_line::{
        CapacityEstimator, CohostedWork, CpuUtilization, GroupLoadSample, MemberLoadSample, ProcessUsage,
    };
    use plimsoll_brain::{MemberId, Time};

    let mut estimator = CapacityEstimator::default();
    let (mut requests, mut failures, mut seconds) = (0, 0, 0.0);
    for second in 1..=90_u64 {
        let fails = second > 60;
        requests += if fails { 1000 } else { 50 };
        failures += if fails { 1000 } else { 0 };
        seconds += 0.5;
        let at = Time(1_000_000_000 * second);
        let member = MemberLoadSample {
            id: MemberId(1),
            usable: true,
            weight: 1.0,
            capacity: 1.0,
            requests,
            failures,
            seconds,
            levels: &[],
            meter_report: None,
            cpu: Some((CpuUtilization { share: 0.25, processors: Some(2.0), whole_host: false }, at)),
            cohosted: CohostedWork::default(),
            rate_elsewhere: 0.0,
        };
        let members = [member];
        let own = ProcessUsage::default();
        let (by_load, by_weight) = (true, false);
        let seen = GroupLoadSample {
            only_requests: true,
            by_load,
            by_weight,
            members: &members,
            latencies: &[],
            bucket_middles: &[],
            process: own,
        };
        estimator.observe(&seen, at);
    }
    let line = estimator.status().unwrap();
    assert!(line.requests_per_second > 900.0 && line.capacity_low.unwrap() < 230.0, "{line:?}");
}
