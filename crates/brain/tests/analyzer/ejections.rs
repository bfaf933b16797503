//! Ejections of members whose traffic fails: for a while, within the budget, and never the last one.

use std::time::Duration;

use plimsoll_brain::{Event, EventKind, GroupSpec, MemberState, OutlierSpec, PickerState};

use super::{Group, HEALTH, OUTLIER, at, spec};

#[test]
fn an_ejected_member_comes_back_by_itself() {
    let mut group = Group::new(GroupSpec { outlier: Some(OUTLIER), ..spec("a b c d") });
    assert_eq!(group.streak(1.0, "b"), "Ejected b");
    assert_eq!(group.state("b"), (MemberState::Ejected, "5 failures in a row; out for 30 s".into()));
    let inputs: Vec<&str> = group.events[0].inputs.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        inputs,
        ["failures_in_a_row", "seconds", "ejections_in_a_row", "members_out", "members_allowed_out"]
    );
    assert_eq!(group.planned(), "a c d");
    assert_eq!(group.streak(2.0, "b"), "", "it is out already");
    assert_eq!(group.analyzer.poll_timeout(), Some(at(31.0)));
    assert_eq!(group.tick(30.9), "");
    let (_, _, vitals) = group.analyzer.members().nth(1).unwrap();
    let vitals = vitals.clone();
    (0..9).for_each(|_| _ = vitals.record_failure());
    vitals.record_latency(Duration::from_secs(5), at(30.0), Duration::from_secs(10));
    assert_eq!(group.tick(31.0), "Readmitted b");
    assert_eq!(group.planned(), "a b c d");
    assert_eq!(group.analyzer.poll_timeout(), Some(at(41.0)), "its trial is over by then");
    assert_eq!(vitals.streak(), 0, "the failures that led to it are done with");
    assert_eq!(vitals.latency(at(31.0), Duration::from_secs(10)), None, "and so is the latency");
    assert_eq!(group.streak(40.0, "b"), "Ejected b");
    assert_eq!(group.tick(41.0), "");
    assert_eq!(group.analyzer.poll_timeout(), Some(at(100.0)), "the second in a row lasts twice as long");
}

#[test]
fn a_passed_check_does_not_end_an_ejection() {
    let mut group = Group::new(GroupSpec { health: Some(HEALTH), outlier: Some(OUTLIER), ..spec("a b") });
    group.probe(0.0, "a", Ok(()));
    group.probe(0.0, "b", Ok(()));
    group.streak(1.0, "a");
    assert_eq!(group.probe(2.0, "a", Ok(())), "");
    assert_eq!(group.state("a").0, MemberState::Ejected);
    for second in [3.0, 4.0] {
        group.probe(second, "a", Err("timeout"));
    }
    assert_eq!(group.probe(5.0, "a", Err("timeout")), "Down a");
    assert_eq!(group.tick(31.0), "Readmitted a");
    assert_eq!(group.state("a").0, MemberState::Down, "its checks keep it out all the same");
}

#[test]
fn no_more_are_out_than_may_be() {
    let mut group = Group::new(GroupSpec { outlier: Some(OUTLIER), ..spec("a b c d") });
    group.streak(1.0, "a");
    group.streak(2.0, "b");
    assert_eq!(group.streak(3.0, "c"), "");
    assert_eq!(group.planned(), "c d");
    // Requested again while its failures go on, and granted when there is room.
    let vitals = group.analyzer.members().nth(2).unwrap().2.clone();
    (0..5).for_each(|_| _ = vitals.record_failure());
    assert_eq!(group.totals(12.0, &[]), "");
    assert_eq!(group.tick(31.0), "Readmitted a");
    assert_eq!(group.totals(31.5, &[]), "", "it has had no requests since");
    vitals.record_failure();
    assert_eq!(group.totals(42.0, &[]), "Ejected c");

    let mut pair =
        Group::new(GroupSpec { outlier: Some(OutlierSpec { max_ejected: 0.0, ..OUTLIER }), ..spec("a b") });
    assert_eq!(pair.streak(1.0, "a"), "Ejected a", "one always may be");
    assert_eq!(pair.streak(1.0, "b"), "", "but not the last one");
    let mut single = Group::new(GroupSpec { outlier: Some(OUTLIER), ..spec("a") });
    assert_eq!(single.streak(1.0, "a"), "");
}

#[test]
fn an_ejected_member_is_better_than_none() {
    let outlier = OutlierSpec { max_ejected: 1.0, ..OUTLIER };
    let mut group = Group::new(GroupSpec { outlier: Some(outlier), ..spec("a b c") });
    group.streak(1.0, "a");
    group.streak(1.0, "b");
    assert_eq!(group.streak(1.0, "c"), "", "the last one stays");
    assert_eq!(
        group.then(2.0, |analyzer, now| analyzer.drain("c", now).unwrap()),
        "Draining c, Readmitted a, Readmitted b"
    );
    assert_eq!(group.events[1].why, "no other member can be used");
    assert_eq!(group.planned(), "a b");
}

/// Returns the number of requests until a member is found to fail more often than the others, given the
/// failed share of each. The first requests do not count: before any failure, two failures of one member are
/// enough.
fn until_suspected(shares: &[f64], first: usize, requests: usize) -> Option<usize> {
    let names = (0..shares.len()).map(|member| format!("m{member}")).collect::<Vec<_>>().join(" ");
    let group =
        Group::new(GroupSpec { outlier: Some(OutlierSpec { false_alarm: 1e-6, ..OUTLIER }), ..spec(&names) });
    let (mut hand, mut bits) = (PickerState::new(1), 1_u64);
    let mut chance = || {
        bits = plimsoll_brain::mix(bits);
        bits as f64 / u64::MAX as f64
    };
    (0..requests).position(|turn| {
        let member = (chance() * shares.len() as f64) as usize;
        let failed = chance() < shares[member];
        let (vitals, now) = (&group.plan.members()[member].vitals, at(turn as f64 / 1000.0));
        group.plan.observe(&mut hand, vitals, Duration::from_millis(2), failed, now) && turn >= first
    })
}

#[test]
fn where_all_fail_alike_nobody_is_suspected() {
    for share in [0.02, 0.05, 0.1, 0.3, 0.5, 0.8] {
        for members in [2, 4, 20] {
            let found = until_suspected(&vec![share; members], 1_000 * members, 60_000);
            assert_eq!(found, None, "{members} members that fail {share}");
        }
    }
}

#[test]
fn who_alone_fails_is_suspected_soon() {
    for members in [2, 4, 20] {
        for others in [0.0, 0.01] {
            let mut shares = vec![others; members];
            shares[1] = 1.0;
            let found = until_suspected(&shares, 0, 10_000);
            assert!(found.is_some_and(|after| after < 8 * members), "{found:?} of {members} members");
        }
        let mut shares = vec![0.0; members];
        shares[1] = 0.5;
        assert!(until_suspected(&shares, 0, 10_000).is_some_and(|after| after < 40 * members));
    }
}

#[test]
fn whoever_comes_back_is_tried_beside_what_it_has_still() {
    let mut group = Group::new(GroupSpec { outlier: Some(OUTLIER), ..spec("a b c d") });
    let vitals = group.plan.members()[1].vitals.clone();
    vitals.begin();
    vitals.begin();
    group.streak(1.0, "b");
    group.tick(31.0);
    let full = |group: &Group| group.plan.members().iter().any(|member| member.is_full());
    assert!(!full(&group), "two streams that go on say nothing");
    vitals.begin();
    assert!(full(&group), "one request at a time");
    group.tick(40.9);
    assert!(full(&group));
    group.tick(41.0);
    assert!(!full(&group), "nothing has come of it");
    group.streak(50.0, "b");
    group.tick(110.0);
    vitals.begin();
    assert!(full(&group));
    vitals.record_success();
    assert!(!full(&group), "an answer that begins well is enough");
}

#[test]
fn traffic_tells_who_is_sick() {
    let mut group = Group::new(GroupSpec { outlier: Some(OUTLIER), ..spec("a b c d") });
    assert_eq!(group.totals(0.0, &[("a", 7, 7), ("b", 0, 0), ("c", 0, 0), ("d", 0, 0)]), "");
    assert_eq!(
        group.totals(5.0, &[("a", 50, 7), ("b", 50, 40), ("c", 50, 0), ("d", 50, 1)]),
        "",
        "too early"
    );
    assert_eq!(
        group.totals(10.0, &[("a", 107, 7), ("b", 100, 60), ("c", 100, 0), ("d", 100, 1)]),
        "Ejected b"
    );
    assert_eq!(
        group.state("b").1,
        "60 of 100 requests failed: 40.0 % success against 99.7 % of the other members; out for 30 s"
    );
    let input = |name: &str| group.events[0].inputs.iter().find(|(input, _)| input == name).unwrap().1;
    assert_eq!((input("requests"), input("failures"), input("success_rate")), (100.0, 60.0, 0.4));
    assert_eq!(group.totals(20.0, &[("a", 207, 7), ("b", 100, 60), ("c", 200, 0), ("d", 200, 2)]), "");
    // Its history from before the ejection does not count afterwards.
    assert_eq!(group.tick(40.0), "Readmitted b");
    assert_eq!(group.totals(41.0, &[("a", 407, 7), ("b", 160, 120), ("c", 400, 0), ("d", 400, 2)]), "");
    assert_eq!(group.totals(51.0, &[("a", 507, 7), ("b", 260, 121), ("c", 500, 0), ("d", 500, 2)]), "");
}

#[test]
fn an_ejection_says_what_the_last_failure_was() {
    let mut group = Group::new(GroupSpec { outlier: Some(OUTLIER), ..spec("a b c d") });
    let b = group.analyzer.members().nth(1).unwrap().0;
    group.analyzer.handle_failure_cause(b, "status 500");
    group.analyzer.handle_failure_cause(b, "status 503");
    assert_eq!(group.streak(1.0, "b"), "Ejected b");
    let why = "5 failures in a row, the last one: status 503; out for 30 s";
    assert_eq!(group.state("b"), (MemberState::Ejected, why.into()));
    assert_eq!(group.events[0].why, why);
    assert_eq!(group.streak(2.0, "c"), "Ejected c");
    assert_eq!(group.events[0].why, "5 failures in a row; out for 30 s", "nobody told why of this one");
}

#[test]
fn who_comes_back_from_an_ejection_and_is_down_is_no_good_news() {
    let mut group = Group::new(GroupSpec { health: Some(HEALTH), outlier: Some(OUTLIER), ..spec("a b") });
    group.probe(0.0, "a", Ok(()));
    group.probe(0.0, "b", Ok(()));
    group.streak(1.0, "a");
    for second in [3.0, 4.0, 5.0] {
        group.probe(second, "a", Err("timeout"));
    }
    assert_eq!(group.tick(31.0), "Readmitted a");
    let last = group.events.last().unwrap();
    assert!(last.why.ends_with("; it is down") && Event::is_still_out(last.kind, &last.why), "{last:?}");
    assert!(!Event::is_still_out(last.kind, "its ejection is over"));
    assert!(!Event::is_still_out(EventKind::Down, &last.why));
}
