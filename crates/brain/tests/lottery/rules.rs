//! Single rules of the protocol, one daemon at a time.

use std::time::Duration;

use plimsoll_brain::lottery::{
    AnswerCommit, AnswerMode, AnswerStatus, LotteryAnswer, LotteryMessage, LotteryNode, LotteryRequest,
    MessageTarget, NodeConfig, NodeDescription, NodeReport, NodeState, ServiceOffer, ServiceState,
    SipHashKey, TableFetch, weight_codec,
};
use plimsoll_brain::{Time, mix};

use super::checks::{address, client, endpoint};

pub(crate) const SERVICE: u32 = 80;

pub(crate) fn millis(millis: u64) -> Time {
    Time(millis * 1_000_000)
}

pub(crate) fn listed(who: usize) -> NodeDescription {
    let none: &[u8] = b"";
    let offers =
        vec![ServiceOffer { service: SERVICE, capacity: 4, endpoint: endpoint(who), info: none.into() }];
    NodeDescription { member: who as u16 + 1, incarnation: 1, address: address(who), offers }
}

pub(crate) fn report(who: usize, seq: u32, state: NodeState, weight: f64) -> LotteryMessage {
    let share = ServiceState {
        service: SERVICE,
        capacity: 4,
        weight: weight_codec::encode(weight),
        load: 0,
        in_flight: 0,
    };
    let member = who as u16 + 1;
    let (services, ids) = (vec![share], vec![]);
    LotteryMessage::Report(NodeReport {
        member,
        incarnation: 1,
        seq,
        state,
        digest: 0,
        services,
        ids,
        heard: vec![],
    })
}

/// Returns daemon `who` of `count`, which knows all others and is up since 700 ms.
pub(crate) fn daemon(who: usize, count: usize) -> LotteryNode {
    let NodeDescription { member, incarnation, address: own, offers } = listed(who);
    let config = NodeConfig {
        rate: 1000,
        burst: 100,
        ..NodeConfig::new(member, incarnation, own, offers, SipHashKey::new([3; 16]))
    };
    let mut daemon = LotteryNode::new(config, Time(0));
    for other in (0..count).filter(|other| *other != who) {
        assert!(daemon.member_up(listed(other)));
        daemon.handle(millis(650), address(other), report(other, 1, NodeState::Up, 4.0));
    }
    daemon.set_load(Time(0), SERVICE, 750, 0);
    while let Some(due) = daemon.poll_timeout().filter(|due| *due <= millis(700)) {
        daemon.handle_timeout(due);
    }
    assert_eq!(daemon.state(), NodeState::Up);
    sent(&mut daemon);
    daemon
}

pub(crate) fn sent(daemon: &mut LotteryNode) -> Vec<(MessageTarget, LotteryMessage)> {
    std::iter::from_fn(|| daemon.poll_transmit()).collect()
}

pub(crate) fn request(id: u64, mode: AnswerMode) -> LotteryRequest {
    LotteryRequest {
        id,
        service: SERVICE,
        attempt: 0,
        mode,
        generation: 0,
        client_time: 9,
        avoid: vec![],
        info: vec![],
        max_answer_bytes: 200,
    }
}

/// Returns a daemon's answer to a request, if it answers at once.
fn ask(daemon: &mut LotteryNode, now: Time, request: LotteryRequest) -> Option<LotteryAnswer> {
    let from = client((request.id % 200) as usize);
    daemon.handle(now, from, LotteryMessage::Request(request));
    let answers = sent(daemon).into_iter().filter_map(|(to, message)| match message {
        LotteryMessage::Answer(answer) => {
            assert_eq!(to, MessageTarget::Address(from));
            Some(answer)
        }
        _ => None,
    });
    answers.last()
}

pub(crate) fn refer(daemon: &mut LotteryNode, now: Time, id: u64) -> LotteryAnswer {
    ask(daemon, now, request(id, AnswerMode::Referral)).expect("a referral is answered at once")
}

/// Returns a request for which daemon `who` has this rank among equal members.
fn won_by(count: usize, who: usize, rank: usize) -> u64 {
    let fits = |id: &u64| {
        let mut one = daemon(0, count);
        let mut last = None;
        // The first, second, … member: the first that is left when the others are avoided.
        let mut avoid = vec![];
        for _ in 0..=rank {
            let answer = ask(
                &mut one,
                millis(701),
                LotteryRequest { avoid: avoid.clone(), ..request(*id, AnswerMode::Referral) },
            );
            last = answer.map(|answer| answer.member);
            avoid.extend(last);
        }
        last == Some(who as u16 + 1)
    };
    (0..1000).map(mix).find(fits).expect("one in so many")
}

#[test]
fn a_repeated_request_gets_the_same_answer() {
    let mut daemon = daemon(0, 5);
    let first: Vec<LotteryAnswer> = (0..50).map(|id| refer(&mut daemon, millis(701), id)).collect();
    // Loads change, and most draws with them.
    for other in 1..5 {
        let weight = if other == 1 { 16.0 } else { 1.0 };
        daemon.handle(millis(702), address(other), report(other, 2, NodeState::Up, weight));
    }
    let again: Vec<LotteryAnswer> = (0..50).map(|id| refer(&mut daemon, millis(900), id)).collect();
    assert_eq!(first, again);
    let anew = (0..50).filter(|id| refer(&mut daemon, millis(900), id + 1000).member == 2).count();
    assert!(anew > 20, "{anew}");
    // Except for a member that is gone.
    daemon.handle(millis(903), address(1), report(1, 3, NodeState::Draining, 16.0));
    assert!((0..50).all(|id| refer(&mut daemon, millis(904), id).member != 2));
}

#[test]
fn it_draws_for_itself_with_what_it_told_the_others() {
    let mut one = daemon(0, 3);
    one.handle_timeout(one.poll_timeout().expect("a report"));
    let mut two = one.clone();
    two.set_load(millis(1100), SERVICE, 60_000, 9);
    let draws = |daemon: &mut LotteryNode, from: u64| -> Vec<u16> {
        (from..from + 60).map(|id| refer(daemon, millis(1101), id).member).collect()
    };
    assert_eq!(draws(&mut one, 0), draws(&mut two, 0), "nobody knows of its load yet");
    two.set_load(millis(3100), SERVICE, 60_000, 9);
    two.handle_timeout(two.poll_timeout().expect("a report"));
    let own = |members: Vec<u16>| members.iter().filter(|member| **member == 1).count();
    assert!(own(draws(&mut two, 100)) < own(draws(&mut one, 100)));
}

#[test]
fn who_has_only_begun_and_knows_nobody_says_nothing() {
    let NodeDescription { member, incarnation, address: own, offers } = listed(0);
    let mut one = LotteryNode::new(
        NodeConfig::new(member, incarnation, own, offers, SipHashKey::new([3; 16])),
        Time(0),
    );
    assert_eq!(ask(&mut one, millis(1), request(1, AnswerMode::Referral)), None);
    // It knows others before it serves anything itself.
    one.member_up(listed(1));
    one.handle(millis(2), address(1), report(1, 1, NodeState::Up, 4.0));
    assert_eq!(refer(&mut one, millis(3), 1).member, 2);
}

#[test]
fn who_has_nobody_says_why() {
    let mut one = daemon(0, 3);
    let status = |daemon: &mut LotteryNode, service, id| {
        ask(daemon, millis(750), LotteryRequest { service, ..request(id, AnswerMode::Referral) })
            .map(|answer| answer.status)
    };
    assert_eq!(status(&mut one, 81, 1), Some(AnswerStatus::UnknownService));
    one.set_draining(millis(710), true);
    one.handle_timeout(millis(710));
    for other in 1..3 {
        one.handle(millis(710), address(other), report(other, 2, NodeState::Draining, 4.0));
    }
    assert_eq!(status(&mut one, SERVICE, 2), Some(AnswerStatus::Draining));
    for other in 1..3 {
        one.handle(millis(711), address(other), report(other, 3, NodeState::Joining, 4.0));
    }
    assert_eq!(status(&mut one, SERVICE, 3), Some(AnswerStatus::Busy));
    one.set_draining(millis(712), false);
    one.handle_timeout(millis(712));
    assert_eq!(status(&mut one, SERVICE, 3), Some(AnswerStatus::Ok), "what was refused is drawn anew");
    one.leave(millis(713));
    assert_eq!(status(&mut one, SERVICE, 4), None);
}

#[test]
fn the_winner_answers_and_commits_twice_and_the_second_waits_for_that() {
    let id = won_by(3, 0, 0);
    let mut winner = daemon(0, 3);
    let now = millis(701);
    winner.handle(now, client(1), LotteryMessage::Request(request(id, AnswerMode::Lottery)));
    let commits = |messages: &[(MessageTarget, LotteryMessage)]| {
        messages
            .iter()
            .filter(|(_, message)| matches!(message, LotteryMessage::Commit(commit) if commit.ids == [id]))
            .count()
    };
    let said = sent(&mut winner);
    assert!(matches!(&said[0].1, LotteryMessage::Answer(answer) if answer.member == 1 && answer.rank == 0));
    assert_eq!((commits(&said), winner.statistics(now).won), (2, 1));
    winner.handle_timeout(now + Duration::from_micros(1600));
    assert_eq!(commits(&sent(&mut winner)), 2);

    let id = won_by(3, 0, 1);
    let second = || {
        let mut second = daemon(0, 3);
        assert_eq!(ask(&mut second, now, request(id, AnswerMode::Lottery)), None);
        second
    };
    let due = second().poll_timeout().expect("its turn");
    assert_eq!(due, now + Duration::from_millis(10), "the step as long as nothing was measured");
    let mut waits = second();
    waits.handle_timeout(due);
    let said = sent(&mut waits);
    assert!(matches!(&said[0].1, LotteryMessage::Answer(answer) if answer.rank == 1 && answer.member == 1));
    assert_eq!(waits.statistics(now).stood_in, 1);

    let mut silent = second();
    let commit = AnswerCommit { member: 2, incarnation: 1, ids: vec![id] };
    silent.handle(now + Duration::from_millis(3), address(1), LotteryMessage::Commit(commit.clone()));
    assert_eq!(silent.statistics(now).waiting, 0);
    silent.handle_timeout(due);
    assert!(sent(&mut silent).iter().all(|(_, message)| !matches!(message, LotteryMessage::Answer(_))));
    // Asked for a referral meanwhile, it waits no longer.
    let again = LotteryRequest { attempt: 3, ..request(id, AnswerMode::Referral) };
    let mut asked = second();
    assert!(ask(&mut asked, now, again).is_some_and(|answer| answer.member == 2));
    assert_eq!(asked.statistics(now).waiting, 0);
    // A commit that comes before its request counts as well.
    let mut early = daemon(0, 3);
    early.handle(now, address(1), LotteryMessage::Commit(commit));
    assert_eq!(ask(&mut early, now, request(id, AnswerMode::Lottery)), None);
    assert_eq!(early.statistics(now).waiting, 0);
}

#[test]
fn a_daemon_that_is_late_lets_others_go_first() {
    let id = won_by(3, 0, 0);
    let mut late = daemon(0, 3);
    late.note_lag(millis(701), Duration::from_millis(20));
    assert_eq!(ask(&mut late, millis(701), request(id, AnswerMode::Lottery)), None);
    assert_eq!((late.statistics(millis(701)).deferred_by_lag, late.statistics(millis(701)).waiting), (1, 1));
    // If no other answers, it does.
    late.handle_timeout(millis(741));
    assert!(sent(&mut late).iter().any(|(_, message)| matches!(message, LotteryMessage::Answer(_))));
}

#[test]
fn what_is_read_long_after_it_came_is_left_to_others_if_there_are_any() {
    for (others, asked) in [(3, None), (1, Some(1))] {
        for mode in [AnswerMode::Lottery, AnswerMode::Referral] {
            let mut late = daemon(0, others);
            late.note_lag(millis(701), Duration::from_millis(300));
            let answer = ask(&mut late, millis(701), request(1, mode));
            assert_eq!(answer.map(|answer| answer.member), asked, "{mode:?}, {others}");
            assert_eq!(late.statistics(millis(701)).waiting, 0);
            // A recent message is answered, and a request to all a little later.
            late.note_lag(millis(702), Duration::ZERO);
            assert!(ask(&mut late, millis(702), request(2, AnswerMode::Referral)).is_some());
        }
    }
    // Two seconds without messages of others mean nothing while these are not read.
    let mut late = daemon(0, 3);
    late.note_lag(millis(2700), Duration::from_secs(2));
    late.handle_timeout(millis(2700));
    sent(&mut late);
    late.note_lag(millis(2701), Duration::ZERO);
    let members = (0..50).filter(|id| refer(&mut late, millis(2701), mix(*id)).member == 1).count();
    assert!(members < 40, "it refers to others, too: {members} of 50 to itself");
    let alone = (0..50).filter(|id| refer(&mut daemon(0, 3), millis(2701), mix(*id)).member == 1).count();
    assert_eq!(alone, 50, "as one does that was not late");
}

#[test]
fn one_that_was_away_leaves_first_attempts_to_those_who_may_hold_it_for_dead() {
    let id = won_by(3, 0, 0);
    let mut away = daemon(0, 3);
    away.note_lag(millis(2700), Duration::from_secs(2));
    let at = |since: u64| millis(2700 + since);
    for other in [1, 2] {
        away.handle(at(1), address(other), report(other, 9, NodeState::Up, 4.0));
    }
    // It has read its messages, and is no longer doubtful.
    assert_eq!(ask(&mut away, at(590), request(id, AnswerMode::Lottery)), None);
    assert_eq!(away.statistics(at(590)).waiting, 0, "they send it no commits");
    let mut alone = daemon(0, 1);
    alone.note_lag(millis(2700), Duration::from_secs(2));
    assert!(ask(&mut alone, at(590), request(id, AnswerMode::Lottery)).is_some());
    let again = LotteryRequest { attempt: 1, ..request(id, AnswerMode::Lottery) };
    assert!(ask(&mut away.clone(), at(590), again).is_some(), "all may have been away");
    assert!(ask(&mut away, at(601), request(id, AnswerMode::Lottery)).is_some());
}

#[test]
fn nobody_waits_for_a_member_that_is_quiet() {
    let id = won_by(2, 1, 0);
    let mut one = daemon(0, 2);
    assert_eq!(refer(&mut one.clone(), millis(1400), id).member, 2);
    assert_eq!(refer(&mut one.clone(), millis(1500), id).member, 1, "quiet since 650 ms");
    assert!(
        ask(&mut one, millis(1500), request(id, AnswerMode::Lottery)).is_some_and(|answer| answer.rank == 1)
    );
    one.member_down(2, 1);
    one.handle(millis(1501), address(1), report(1, 9, NodeState::Up, 4.0));
    assert!(!one.can_draw(2, SERVICE), "its life is over");
    assert!(one.member_up(NodeDescription { incarnation: 2, ..listed(1) }));
    assert!(!one.can_draw(2, SERVICE), "not heard of in its new life");
}

#[test]
fn old_reports_count_for_nothing() {
    let mut one = daemon(0, 2);
    one.handle(millis(701), address(1), report(1, 5, NodeState::Draining, 4.0));
    one.handle(millis(702), address(1), report(1, 4, NodeState::Up, 4.0));
    one.handle(millis(702), address(1), report(1, 5, NodeState::Up, 4.0));
    assert!(!one.can_draw(2, SERVICE) && one.statistics(millis(702)).stale_reports == 2);
    one.handle(millis(703), address(1), report(1, 6, NodeState::Up, 4.0));
    assert!(one.can_draw(2, SERVICE));
}

#[test]
fn a_source_that_asks_too_much_is_not_heard() {
    let mut one = daemon(0, 2);
    for id in 0..500 {
        one.handle(millis(701), client(3), LotteryMessage::Request(request(mix(id), AnswerMode::Referral)));
    }
    let statistics = one.statistics(millis(701));
    assert_eq!((statistics.rate_limited, sent(&mut one).len()), (400, 100));
    assert_eq!(refer(&mut one, millis(701), 4).status, AnswerStatus::Ok, "others are");
}

#[test]
fn a_daemon_asks_who_a_stranger_is() {
    let mut one = daemon(0, 2);
    let mut other = daemon(2, 5);
    one.handle(millis(710), address(2), report(2, 7, NodeState::Up, 4.0));
    let (to, fetch) = sent(&mut one).pop().expect("a question");
    assert!(to == MessageTarget::Address(address(2)) && matches!(fetch, LotteryMessage::Fetch(_)));
    for _ in 0..11 {
        other.handle(millis(711), address(0), fetch.clone());
    }
    let parts = sent(&mut other);
    assert_eq!(
        (parts.len(), other.statistics(millis(711)).rate_limited),
        (10, 1),
        "each costs a tenth of a burst"
    );
    for (_, part) in parts.into_iter().take(1) {
        one.handle(millis(712), address(9), part.clone());
        assert_eq!(one.statistics(millis(712)).members, 1, "nobody asked that one");
        one.handle(millis(712), address(2), part);
    }
    assert_eq!(one.statistics(millis(712)).members, 4);
    one.handle(millis(713), address(2), report(2, 8, NodeState::Up, 4.0));
    assert!(one.can_draw(3, SERVICE) && !one.can_draw(4, SERVICE));
    let generation = refer(&mut one, millis(714), 1).generation;
    assert_eq!(generation, refer(&mut other, millis(714), 1).generation, "both know the same members");
    other.handle(millis(2000), address(0), LotteryMessage::Fetch(TableFetch { id: 1, generation, part: 0 }));
    assert!(sent(&mut other).is_empty(), "there is nothing to tell");
    other.handle(
        millis(2000),
        address(0),
        LotteryMessage::Fetch(TableFetch { id: 1, generation: 0, part: 1 }),
    );
    assert!(sent(&mut other).is_empty(), "there is one part");
}

#[test]
fn a_server_that_cannot_gets_nothing_and_comes_back_slowly() {
    let mut one = daemon(0, 2);
    let own = |daemon: &mut LotteryNode, now: Time, from: u64| {
        (from..from + 400).filter(|id| refer(daemon, now, *id).member == 1).count()
    };
    one.handle(millis(20_000), address(1), report(1, 2, NodeState::Up, 4.0));
    one.set_ready(millis(20_000), SERVICE, false);
    one.handle_timeout(millis(20_000));
    assert!(!one.can_draw(1, SERVICE) && one.can_draw(2, SERVICE));
    assert_eq!(own(&mut one, millis(20_001), 0), 0);
    one.set_ready(millis(30_000), SERVICE, true);
    one.handle(millis(30_000), address(1), report(1, 3, NodeState::Up, 4.0));
    one.handle_timeout(millis(30_000));
    let slow = own(&mut one, millis(30_001), 1000);
    assert!((1..60).contains(&slow), "{slow} of 400, at a twentieth of its weight");
}
