//! Single rules of a client: the daemons that it asks, how often, and the answers that it accepts.

use std::collections::HashMap;

use plimsoll_brain::Time;
use plimsoll_brain::lottery::{
    AnswerMode, AnswerStatus, LotteryClient, LotteryClientConfig, LotteryMessage, LotteryRequest,
    MessageTarget, NodeDescription, PickOutcome, PickStatus, SipHashKey, TablePart,
};

use super::checks::address;
use super::rules::{SERVICE, daemon, listed, millis, refer};

fn asks(client: &mut LotteryClient) -> Vec<(MessageTarget, LotteryRequest)> {
    let requests = std::iter::from_fn(|| client.poll_transmit()).filter_map(|(to, message)| match message {
        LotteryMessage::Request(request) => Some((to, request)),
        _ => None,
    });
    requests.collect()
}

fn known() -> LotteryClient {
    let mut client = LotteryClient::new(LotteryClientConfig::new(SipHashKey::new([5; 16])));
    client.set_nodes((0..4).map(|who| (who as u16 + 1, address(who))));
    client
}

fn answer(request: &LotteryRequest, now: Time, status: AnswerStatus, ttl: u16) -> LotteryMessage {
    let mut daemon = daemon(0, 2);
    let mut answer = refer(&mut daemon, millis(701), request.id);
    (answer.status, answer.ttl, answer.client_time) = (status, ttl, request.client_time);
    answer.endpoint = answer.endpoint.filter(|_| status == AnswerStatus::Ok);
    assert!(now >= Time(0));
    LotteryMessage::Answer(answer)
}

#[test]
fn a_client_asks_one_twice_then_all_then_another() {
    let mut client = known();
    let PickStatus::Requested(id) = client.pick(Time(0), SERVICE, b"x") else { panic!() };
    let (mut times, mut tos) = (vec![], vec![]);
    loop {
        for (to, request) in asks(&mut client) {
            assert_eq!((request.id, usize::from(request.attempt)), (id, tos.len()));
            tos.push((to, request.mode));
        }
        let Some(due) = client.poll_timeout() else { break };
        times.push(due.0 / 1_000_000);
        client.handle_timeout(due);
    }
    assert_eq!(times, [20, 40, 60, 100, 180, 340, 660, 1300]);
    assert!(tos[0] == tos[1] && tos[0].1 == AnswerMode::Referral, "it says the same again");
    assert!(tos[3].0 != tos[0].0);
    assert!(
        tos[2] == (MessageTarget::AllNodes, AnswerMode::Lottery)
            && tos[3].1 == AnswerMode::Referral
            && tos[4].0 == MessageTarget::AllNodes
    );
    assert_eq!(client.poll_outcome(), Some(PickOutcome::NoMember(id, None)));
    assert_eq!(client.open(), 0);
}

#[test]
fn a_client_that_knows_nobody_asks_all_and_learns() {
    let mut client = LotteryClient::new(LotteryClientConfig::new(SipHashKey::new([6; 16])));
    client.pick(Time(0), SERVICE, b"");
    let (to, request) = asks(&mut client).remove(0);
    assert_eq!((to, request.mode), (MessageTarget::AllNodes, AnswerMode::Lottery));
    client.handle(millis(1), address(0), answer(&request, millis(1), AnswerStatus::Ok, 0));
    assert!(matches!(client.poll_outcome(), Some(PickOutcome::Member(_))));
    // One part after the other; a repeated one counts once.
    for part in 0..2 {
        let Some((MessageTarget::Address(to), LotteryMessage::Fetch(fetch))) = client.poll_transmit() else {
            panic!()
        };
        assert_eq!((to, fetch.part), (address(0), part));
        let members = (0..3).map(|who| listed(usize::from(part) * 3 + who)).collect();
        let table = LotteryMessage::Table(TablePart { id: fetch.id, generation: 7, part, parts: 2, members });
        client.handle(millis(2), address(1), table.clone());
        client.handle(millis(2), address(0), table.clone());
        client.handle(millis(2), address(0), table);
    }
    assert_eq!(client.node_addresses().collect::<Vec<_>>(), (0..6).map(address).collect::<Vec<_>>());
    client.pick(millis(3), SERVICE, b"");
    assert!(matches!(
        asks(&mut client)[..],
        [(MessageTarget::Address(_), LotteryRequest { generation: 7, .. })]
    ));
}

#[test]
fn a_client_uses_an_answer_again_until_its_member_fails() {
    let mut client = known();
    client.pick(Time(0), SERVICE, b"");
    let (_, request) = asks(&mut client).remove(0);
    client.handle(millis(1), address(0), answer(&request, millis(1), AnswerStatus::Ok, 100));
    let Some(PickOutcome::Member(first)) = client.poll_outcome() else { panic!() };
    assert_eq!(client.pick(millis(100), SERVICE, b""), PickStatus::Cached(first.clone()));
    assert!(
        matches!(client.clone().pick(millis(101), SERVICE, b""), PickStatus::Requested(_)),
        "its time is over"
    );
    client.record_failure(millis(50), first.member);
    assert!(matches!(client.pick(millis(51), SERVICE, b""), PickStatus::Requested(_)));
    let (_, request) = asks(&mut client).remove(0);
    assert_eq!(request.avoid, [first.member]);
    // Not before: the second answer to the first request is ignored.
    client.handle(millis(52), address(1), LotteryMessage::Answer(first));
    assert_eq!(client.poll_outcome(), None);
}

#[test]
fn a_client_that_is_told_no_asks_another() {
    let mut client = known();
    client.pick(Time(0), SERVICE, b"");
    let mut asked = HashMap::new();
    for turn in 1..=2 {
        let (to, request) = asks(&mut client).remove(0);
        let MessageTarget::Address(to) = to else { panic!() };
        asked.insert(to, ());
        client.handle(millis(turn), to, answer(&request, millis(turn), AnswerStatus::UnknownService, 0));
    }
    assert_eq!(asked.len(), 2);
    assert!(matches!(
        client.poll_outcome(),
        Some(PickOutcome::NoMember(_, Some(AnswerStatus::UnknownService)))
    ));
}

#[test]
fn two_who_say_no_are_enough_and_the_better_reason_stays() {
    for (first, second, why) in [
        (AnswerStatus::Busy, AnswerStatus::Busy, AnswerStatus::Busy),
        (AnswerStatus::Busy, AnswerStatus::UnknownService, AnswerStatus::Busy),
        (AnswerStatus::UnknownService, AnswerStatus::Draining, AnswerStatus::Draining),
    ] {
        // A single daemon is asked again.
        for daemons in [1, 4] {
            let mut client = LotteryClient::new(LotteryClientConfig::new(SipHashKey::new([7; 16])));
            client.set_seeds((0..daemons).map(address));
            let PickStatus::Requested(id) = client.pick(Time(0), SERVICE, b"") else { panic!() };
            for (turn, status) in [first, second].into_iter().enumerate() {
                assert_eq!(client.poll_outcome(), None);
                let (to, request) = asks(&mut client).remove(0);
                let MessageTarget::Address(to) = to else { panic!() };
                let now = millis(turn as u64 + 1);
                client.handle(now, to, answer(&request, now, status, 0));
            }
            assert_eq!(
                client.poll_outcome(),
                Some(PickOutcome::NoMember(id, Some(why))),
                "{first:?} {second:?}"
            );
            assert_eq!((client.open(), client.poll_timeout()), (0, None));
        }
    }
}

#[test]
fn a_client_leaves_a_silent_daemon_alone() {
    let mut client = known();
    let dead = address(2);
    let mut met = 0;
    for turn in 0..200 {
        let now = millis(1000 + turn * 10);
        client.pick(now, SERVICE, b"");
        let (to, request) = asks(&mut client).remove(0);
        let MessageTarget::Address(to) = to else { panic!() };
        if to == dead {
            met += 1;
            let due = client.poll_timeout().expect("a second attempt");
            client.handle_timeout(due);
            asks(&mut client);
        }
        client.handle(now, address(0), answer(&request, now, AnswerStatus::Ok, 0));
    }
    assert_eq!(met, 2, "of two hundred");
}

#[test]
fn who_a_client_began_with_is_asked_when_nobody_of_the_table_is_left() {
    // Without multicast, and with one that reaches no daemon.
    for multicast in [false, true] {
        let mut client = LotteryClient::new(LotteryClientConfig {
            multicast,
            ..LotteryClientConfig::new(SipHashKey::new([8; 16]))
        });
        client.set_seeds([address(0), address(1)]);
        client.pick(Time(0), SERVICE, b"");
        let (to, request) = asks(&mut client).remove(0);
        let MessageTarget::Address(alone) = to else { panic!() };
        client.handle(millis(1), alone, answer(&request, millis(1), AnswerStatus::Ok, 0));
        let Some((_, LotteryMessage::Fetch(fetch))) = client.poll_transmit() else { panic!("no question") };
        let members = vec![NodeDescription { address: alone, ..listed(0) }];
        let table = TablePart { id: fetch.id, generation: 7, part: 0, parts: 1, members };
        client.handle(millis(2), alone, LotteryMessage::Table(table));
        assert_eq!(client.node_addresses().count(), 2, "what is sent to all goes to it, too");
        client.poll_outcome();
        client.pick(millis(60_000), SERVICE, b"");
        let mut asked = Vec::new();
        while let Some(due) = client.poll_timeout() {
            asked.extend(asks(&mut client).into_iter().map(|(to, _)| to));
            client.handle_timeout(due);
        }
        assert_eq!(asked[..2], [MessageTarget::Address(alone), MessageTarget::Address(alone)]);
        let other = MessageTarget::Address(if alone == address(0) { address(1) } else { address(0) });
        assert!(asked[2..4].contains(&other), "{asked:?}");
    }
}

#[test]
fn a_no_that_comes_twice_is_one() {
    let mut client = known();
    client.pick(Time(0), SERVICE, b"");
    let (to, request) = asks(&mut client).remove(0);
    let MessageTarget::Address(to) = to else { panic!() };
    for turn in 1..=2 {
        client.handle(millis(turn), to, answer(&request, millis(1), AnswerStatus::Busy, 0));
    }
    assert_eq!((client.poll_outcome(), client.open()), (None, 1));
}
