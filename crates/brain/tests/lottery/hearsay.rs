//! Relayed reports without multicast.

use std::collections::BTreeSet;
use std::time::Duration;

use plimsoll_brain::lottery::{
    LotteryMessage, LotteryNode, MessageTarget, NodeConfig, NodeDescription, NodeReport, NodeState,
    RelayedReport, ServiceState, SipHashKey, TableFetch, weight_codec,
};
use plimsoll_brain::{Time, mix};

use super::checks::address;
use super::rules::{SERVICE, listed, millis, refer, report, sent};

/// Returns daemon 0 of `count`, which knows all others and is up since 700 ms.
fn alone(count: usize, forget: Option<Duration>) -> LotteryNode {
    let NodeDescription { member, incarnation, address: own, offers } = listed(0);
    let config = NodeConfig::new(member, incarnation, own, offers, SipHashKey::new([3; 16]));
    let mut daemon =
        LotteryNode::new(NodeConfig { multicast: false, forget_after: forget, ..config }, Time(0));
    for other in 1..count {
        assert!(daemon.member_up(listed(other)));
        daemon.handle(millis(650), address(other), report(other, 1, NodeState::Up, 4.0));
    }
    until(&mut daemon, 700);
    daemon
}

/// Returns its messages until then.
fn until(daemon: &mut LotteryNode, end: u64) -> Vec<(MessageTarget, LotteryMessage)> {
    let mut all = sent(daemon);
    while let Some(due) = daemon.poll_timeout().filter(|due| *due <= millis(end)) {
        daemon.handle_timeout(due);
        all.extend(sent(daemon));
    }
    all
}

fn said(who: usize, seq: u32, state: NodeState, weight: f64) -> RelayedReport {
    let share = ServiceState {
        service: SERVICE,
        capacity: 4,
        weight: weight_codec::encode(weight),
        load: 0,
        in_flight: 0,
    };
    RelayedReport { member: who as u16 + 1, incarnation: 1, seq, state, services: vec![share] }
}

/// Returns a report of member 2 that relays others.
fn passed_on(seq: u32, heard: Vec<RelayedReport>) -> LotteryMessage {
    let LotteryMessage::Report(own) = report(1, seq, NodeState::Up, 4.0) else { panic!() };
    LotteryMessage::Report(NodeReport { heard, ..own })
}

#[test]
fn a_report_goes_to_a_few_and_in_the_end_to_each() {
    let mut one = alone(40, None);
    let mut told = BTreeSet::new();
    for (to, message) in until(&mut one, 700 + 80 * 275) {
        let LotteryMessage::Report(report) = message else { continue };
        let MessageTarget::Address(to) = to else { panic!("nothing of it is urgent") };
        told.insert(to);
        // All known reports are relayed: 39 of 24 bytes, and its own service.
        assert_eq!(report.heard.len(), if told.len() < 19 { 39 } else { report.heard.len() });
    }
    assert_eq!(told.len(), 39);
}

#[test]
fn what_does_not_fit_has_its_turn() {
    let mut one = alone(100, None);
    let mut seen = BTreeSet::new();
    for (_, message) in until(&mut one, 700 + 4 * 275) {
        let LotteryMessage::Report(report) = message else { continue };
        assert_eq!(report.heard.len(), 46, "1139 bytes less 12, 24 each");
        seen.extend(report.heard.iter().map(|said| said.member));
    }
    assert_eq!(seen.len(), 99, "in three reports or four");
}

#[test]
fn what_another_heard_counts_as_if_it_had_come_itself() {
    let mut one = alone(3, None);
    let wins = |one: &LotteryNode, from: u64| {
        let mut one = one.clone();
        (from..from + 300).filter(|id| refer(&mut one, millis(710), mix(*id)).member == 3).count()
    };
    let before = wins(&one, 0);
    one.handle(millis(701), address(1), passed_on(2, vec![said(2, 5, NodeState::Up, 16.0)]));
    assert!(wins(&one, 0) > before + 50);
    // A late one of its own, or an earlier one of another, is old.
    one.handle(millis(702), address(2), report(2, 4, NodeState::Draining, 4.0));
    one.handle(millis(703), address(1), passed_on(3, vec![said(2, 5, NodeState::Draining, 4.0)]));
    assert!(one.can_draw(3, SERVICE));
    one.handle(millis(704), address(1), passed_on(4, vec![said(2, 6, NodeState::Draining, 4.0)]));
    assert!(!one.can_draw(3, SERVICE));
    // A daemon's own state is not overridden.
    one.handle(millis(705), address(1), passed_on(5, vec![said(0, 99, NodeState::Leaving, 4.0)]));
    assert!(one.can_draw(1, SERVICE));
}

#[test]
fn of_the_dead_nobody_goes_on_telling() {
    let mut one = alone(3, Some(Duration::from_secs(10)));
    // Member 3 is silent; member 2 relays its last report again and again.
    let mut seq = 1;
    for at in (900..30_000).step_by(250) {
        seq += 1;
        one.handle(millis(at), address(1), passed_on(seq, vec![said(2, 1, NodeState::Up, 4.0)]));
        until(&mut one, at);
        assert!(at < 6_000 || !one.can_draw(3, SERVICE), "{at}");
        assert!(at < 6_000 || one.can_draw(2, SERVICE));
    }
}

#[test]
fn a_stranger_that_is_told_of_is_asked_for() {
    let mut one = alone(2, None);
    one.handle(millis(701), address(1), passed_on(2, vec![said(7, 1, NodeState::Up, 4.0)]));
    let [(MessageTarget::Address(to), LotteryMessage::Fetch(TableFetch { .. }))] = sent(&mut one)[..] else {
        panic!("it asks")
    };
    assert_eq!(to, address(1), "who told of it knows it");
    // Reports relayed by an unknown sender are ignored.
    let mut one = alone(2, None);
    let LotteryMessage::Report(own) = report(7, 1, NodeState::Up, 4.0) else { panic!() };
    let heard = vec![said(1, 9, NodeState::Leaving, 4.0)];
    one.handle(millis(701), address(7), LotteryMessage::Report(NodeReport { heard, ..own }));
    assert!(one.can_draw(2, SERVICE));
}

#[test]
fn a_member_of_which_one_hears_seldom_is_not_silent_soon() {
    let mut one = alone(3, None);
    let mut others = 1;
    // Each 250 ms of member 2, each second of member 3.
    for (turn, at) in (1..).zip((750..20_000).step_by(250)) {
        others += 1;
        let heard = if turn % 4 == 0 { vec![said(2, others, NodeState::Up, 4.0)] } else { vec![] };
        one.handle(millis(at), address(1), passed_on(others, heard));
        until(&mut one, at);
    }
    let suspects = |at: u64| -> Vec<u16> {
        let others = one.view(millis(at)).members;
        others.iter().filter(|other| other.is_suspect).map(|other| other.member).collect()
    };
    assert_eq!(suspects(19_760), [0; 0]);
    assert_eq!(suspects(20_700), [2], "of which more is expected");
    assert_eq!(suspects(23_500), [2, 3]);
}
