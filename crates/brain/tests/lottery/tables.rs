//! The discovery of daemons: by tables, part by part, and without a membership protocol by nothing else.

use std::time::Duration;

use plimsoll_brain::Time;
use plimsoll_brain::lottery::{
    LotteryMessage, LotteryNode, MAX_TABLE_PART_BYTES, MessageTarget, NodeConfig, NodeDescription,
    NodeReport, NodeState, RelayedReport, SipHashKey, TableFetch, TablePart,
};

use super::checks::address;
use super::rules::{SERVICE, daemon, listed, millis, refer, report, sent};

/// Returns a daemon without a membership protocol, which knows one other.
fn lone() -> LotteryNode {
    let NodeDescription { member, incarnation, address: own, offers } = listed(0);
    let config = NodeConfig::new(member, incarnation, own, offers, SipHashKey::new([3; 16]));
    let mut one =
        LotteryNode::new(NodeConfig { forget_after: Some(Duration::from_secs(10)), ..config }, Time(0));
    assert!(one.member_up(listed(1)));
    one
}

/// Handles the timers due until then.
fn until(daemon: &mut LotteryNode, end: Time) {
    while let Some(due) = daemon.poll_timeout().filter(|due| *due <= end) {
        daemon.handle_timeout(due);
    }
    sent(daemon);
}

#[test]
fn a_large_table_is_fetched_part_by_part() {
    let mut one = daemon(0, 2);
    let mut other = daemon(2, 200);
    one.handle(millis(710), address(2), report(2, 7, NodeState::Up, 4.0));
    let mut parts = 0;
    while let Some((to, fetch)) = sent(&mut one).pop() {
        assert_eq!(to, MessageTarget::Address(address(2)));
        other.handle(millis(711), address(0), fetch);
        let answers = sent(&mut other);
        let [(_, table)] = &answers[..] else { panic!("one question, one answer: {answers:?}") };
        let LotteryMessage::Table(TablePart { part, parts: all, members, .. }) = table else {
            panic!("{table:?}")
        };
        let bytes: usize = members.iter().map(NodeDescription::encoded_size).sum();
        assert!(
            bytes <= MAX_TABLE_PART_BYTES && (part + 1 == *all || bytes > MAX_TABLE_PART_BYTES - 40),
            "as full as can be"
        );
        // The second of two identical parts changes nothing.
        one.handle(millis(712), address(2), table.clone());
        one.handle(millis(712), address(2), table.clone());
        parts += 1;
    }
    assert!(parts > 3, "{parts}");
    assert_eq!(one.statistics(millis(712)).members, 199);
    let generation = refer(&mut one, millis(714), 1).generation;
    assert_eq!(generation, refer(&mut other, millis(714), 1).generation);
}

#[test]
fn where_nobody_says_who_is_dead_the_silent_are_forgotten() {
    let mut one = lone();
    one.handle(millis(650), address(1), report(1, 1, NodeState::Up, 4.0));
    until(&mut one, millis(15_000));
    assert_eq!((one.can_draw(2, SERVICE), one.node_addresses().count()), (false, 1), "out, and known");
    until(&mut one, millis(17_000));
    assert_eq!(one.node_addresses().count(), 0);
    // It was only cut off, and its life is the same.
    one.handle(millis(17_001), address(1), report(1, 70, NodeState::Up, 4.0));
    let [(_, LotteryMessage::Fetch(TableFetch { id, .. }))] = sent(&mut one)[..] else {
        panic!("it asks who that is")
    };
    let table = TablePart { id, generation: 3, part: 0, parts: 1, members: vec![listed(1)] };
    one.handle(millis(17_002), address(1), LotteryMessage::Table(table));
    one.handle(millis(17_250), address(1), report(1, 71, NodeState::Up, 4.0));
    assert!(one.can_draw(2, SERVICE));
}

#[test]
fn who_comes_back_is_asked_what_it_offers_now() {
    let mut one = lone();
    one.handle(millis(650), address(1), report(1, 1, NodeState::Up, 4.0));
    until(&mut one, millis(700));
    assert!(one.can_draw(2, SERVICE));
    let LotteryMessage::Report(first) = report(1, 1, NodeState::Up, 4.0) else { panic!() };
    let again = |seq| LotteryMessage::Report(NodeReport { incarnation: 2, seq, ..first.clone() });
    one.handle(millis(701), address(5), again(1));
    assert!(!one.can_draw(2, SERVICE), "it may offer something else");
    let [(MessageTarget::Address(to), LotteryMessage::Fetch(TableFetch { id, .. }))] = sent(&mut one)[..]
    else {
        panic!("no question")
    };
    assert_eq!(to, address(5));
    let now = NodeDescription { incarnation: 2, address: address(5), ..listed(1) };
    let table = TablePart { id, generation: 3, part: 0, parts: 1, members: vec![now] };
    one.handle(millis(702), address(5), LotteryMessage::Table(table));
    one.handle(millis(703), address(5), again(2));
    assert!(one.can_draw(2, SERVICE));
    assert_eq!(one.node_addresses().collect::<Vec<_>>(), [address(5)]);
}

#[test]
fn who_offers_something_else_where_it_is_stays_in_the_drum_meanwhile() {
    for by_another in [false, true] {
        let mut one = lone();
        assert!(one.member_up(listed(2)));
        one.handle(millis(650), address(1), report(1, 1, NodeState::Up, 4.0));
        one.handle(millis(650), address(2), report(2, 1, NodeState::Up, 4.0));
        until(&mut one, millis(700));
        let LotteryMessage::Report(first) = report(1, 1, NodeState::Up, 4.0) else { panic!() };
        if by_another {
            let NodeReport { member, state, ref services, .. } = first;
            let said = RelayedReport { member, incarnation: 2, seq: 1, state, services: services.clone() };
            let LotteryMessage::Report(other) = report(2, 2, NodeState::Up, 4.0) else { panic!() };
            one.handle(
                millis(701),
                address(2),
                LotteryMessage::Report(NodeReport { heard: vec![said], ..other }),
            );
        } else {
            one.handle(
                millis(701),
                address(1),
                LotteryMessage::Report(NodeReport { incarnation: 2, seq: 1, ..first.clone() }),
            );
        }
        // The membership protocol takes its old life's end for a death.
        one.member_down(2, 1);
        assert!(one.can_draw(2, SERVICE));
        let [(MessageTarget::Address(to), LotteryMessage::Fetch(TableFetch { id, .. }))] = sent(&mut one)[..]
        else {
            panic!("it asks what that is")
        };
        assert_eq!(to, address(1), "whoever passes it on may not know either");
        let mut now = NodeDescription { incarnation: 2, ..listed(1) };
        now.offers[0].service += 1;
        let table = TablePart { id, generation: 3, part: 0, parts: 1, members: vec![now] };
        one.handle(millis(702), address(1), LotteryMessage::Table(table));
        assert!(!one.can_draw(2, SERVICE), "it offers that no more");
    }
}

#[test]
fn who_is_described_in_a_later_life_before_it_reports_stays_in_the_drum() {
    let mut one = lone();
    one.handle(millis(650), address(1), report(1, 1, NodeState::Up, 4.0));
    until(&mut one, millis(700));
    assert!(one.member_up(NodeDescription { incarnation: 2, ..listed(1) }));
    assert!(one.can_draw(2, SERVICE));
    let LotteryMessage::Report(first) = report(1, 2, NodeState::Joining, 4.0) else { panic!() };
    one.handle(
        millis(701),
        address(1),
        LotteryMessage::Report(NodeReport { incarnation: 2, seq: 1, ..first }),
    );
    assert!(!one.can_draw(2, SERVICE), "it has begun anew, and gathers who is there");
}
