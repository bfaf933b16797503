//! Changes of a running daemon, the membership protocol's input, and the answers to balancers.

use std::time::Duration;

use plimsoll_brain::lottery::{
    CandidateEntry, CandidateQuery, CandidateSet, LotteryMessage, LotteryNode, MAX_CANDIDATE_BYTES,
    MessageTarget, NodeConfig, NodeConfigChange, NodeReport, NodeState, ServiceOffer, ServiceState,
    SipHashKey, TableFetch, TablePart, UNKNOWN_LOAD, weight_codec,
};
use plimsoll_brain::{Time, mix};

use super::checks::{address, endpoint};
use super::rules::{SERVICE, daemon, listed, millis, report, sent};

fn offer(service: u32, capacity: u16, who: usize) -> ServiceOffer {
    let none: &[u8] = b"";
    ServiceOffer { service, capacity, endpoint: endpoint(who), info: none.into() }
}

fn change(offers: Vec<ServiceOffer>) -> NodeConfigChange {
    let slow_start = Duration::from_secs(10);
    NodeConfigChange { offers, key: SipHashKey::new([3; 16]), ttl: 7, slow_start, rate: 0, burst: 0 }
}

/// Returns the report that is due.
fn told(daemon: &mut LotteryNode, now: Time) -> NodeReport {
    daemon.handle_timeout(now);
    let reports = sent(daemon).into_iter().filter_map(|(_, message)| match message {
        LotteryMessage::Report(report) => Some(report),
        _ => None,
    });
    reports.last().expect("a report")
}

#[test]
fn another_offer_is_a_new_life_and_keeps_what_was_known() {
    let mut one = daemon(0, 2);
    // Past its slow start.
    while let Some(due) = one.poll_timeout().filter(|due| *due <= millis(12_000)) {
        one.set_load(due, SERVICE, 3750, 3);
        one.handle_timeout(due);
    }
    sent(&mut one);
    let offers = vec![offer(SERVICE, 8, 5), offer(SERVICE + 1, 2, 6)];
    assert!(!one.apply_change(millis(12_001), change(offers.clone()), 1), "nobody would believe it");
    assert!(one.apply_change(millis(12_001), change(offers.clone()), 9));
    let NodeReport { incarnation, services, .. } = told(&mut one, millis(12_001));
    let [web, mail] = services[..] else { panic!("{services:?}") };
    assert_eq!(incarnation, 9);
    // A quarter of its capacity, at once, as it is loaded; the other one comes slowly.
    assert_eq!((web.capacity, web.weight, web.load, web.in_flight), (8, weight_codec::encode(2.0), 3750, 3));
    assert_eq!(
        (mail.service, mail.weight, mail.load),
        (SERVICE + 1, weight_codec::encode(2.0 * 0.05), UNKNOWN_LOAD)
    );
    // An unchanged offer needs no new life.
    assert!(one.apply_change(millis(12_002), NodeConfigChange { ttl: 9, ..change(offers) }, 1));
    assert!(one.apply_change(millis(12_003), change(vec![]), 10));
    assert!(told(&mut one, millis(12_003)).services.is_empty());
}

#[test]
fn another_capacity_takes_no_other_life() {
    let mut one = daemon(0, 2);
    while let Some(due) = one.poll_timeout().filter(|due| *due <= millis(12_000)) {
        one.handle_timeout(due);
    }
    sent(&mut one);
    let offers = listed(0).offers.iter().map(|offer| ServiceOffer { capacity: 8, ..offer.clone() }).collect();
    assert!(one.apply_change(millis(12_001), change(offers), 1));
    let NodeReport { incarnation, services, .. } = told(&mut one, millis(12_001));
    assert_eq!(
        (incarnation, services[0].capacity, services[0].weight),
        (1, 8, weight_codec::encode(8.0)),
        "at once"
    );
}

#[test]
fn a_load_that_is_told_no_more_is_not_known() {
    let mut one = daemon(0, 1);
    one.set_load(millis(11_000), SERVICE, 3750, 3);
    let load = |share: &ServiceState| (share.weight, share.load);
    let of = |report: NodeReport| load(&report.services[0]);
    let first = of(told(&mut one, millis(11_250)));
    assert_eq!(first, (weight_codec::encode(1.0), 3750));
    assert_eq!(one.statistics(millis(14_000)).loads_lost, 0);
    assert_eq!(
        of(told(&mut one, millis(14_001))),
        (weight_codec::encode(4.0), UNKNOWN_LOAD),
        "by its capacity alone"
    );
    assert_eq!(one.statistics(millis(14_001)).loads_lost, 1);
}

#[test]
fn who_is_there_and_was_not_heard_of_is_asked() {
    let mut one = daemon(0, 2);
    one.member_alive(millis(710), 2, 1, address(1));
    one.member_alive(millis(710), 1, 1, address(0));
    assert!(sent(&mut one).is_empty(), "it is known, and so is itself");
    one.member_alive(millis(720), 3, 4, address(2));
    let [(MessageTarget::Address(to), LotteryMessage::Fetch(TableFetch { id, .. }))] = sent(&mut one)[..]
    else {
        panic!("it asks")
    };
    assert_eq!(to, address(2));
    one.member_alive(millis(730), 3, 4, address(2));
    assert!(sent(&mut one).is_empty(), "once a second");
    one.member_alive(millis(1_721), 3, 4, address(2));
    let [(_, LotteryMessage::Fetch(TableFetch { id: again, .. }))] = sent(&mut one)[..] else {
        panic!("it was lost")
    };
    assert_ne!(id, again);
    let now = plimsoll_brain::lottery::NodeDescription { incarnation: 4, ..listed(2) };
    let table = TablePart { id: again, generation: 3, part: 0, parts: 1, members: vec![now] };
    one.handle(millis(1_730), address(2), LotteryMessage::Table(table));
    one.member_alive(millis(9_000), 3, 4, address(2));
    assert!(sent(&mut one).is_empty());
    one.member_alive(millis(9_000), 3, 5, address(2));
    assert_eq!(sent(&mut one).len(), 1, "a later life of it");
}

#[test]
fn balancers_are_told_who_is_drawn() {
    let mut one = daemon(0, 3);
    one.handle(millis(900), address(2), report(2, 9, NodeState::Draining, 4.0));
    let look = |one: &mut LotteryNode, now: Time, part: u16| {
        one.handle(
            now,
            address(77),
            LotteryMessage::CandidateQuery(CandidateQuery { id: 5, service: SERVICE, part }),
        );
        sent(one)
    };
    let answers = look(&mut one, millis(901), 0);
    let [(MessageTarget::Address(to), LotteryMessage::CandidateSet(drum))] = &answers[..] else {
        panic!("{answers:?}")
    };
    let CandidateSet { id, service, part, parts, candidates: places } = drum;
    assert_eq!((*to, *id, *service, *part, *parts), (address(77), 5, SERVICE, 0, 1));
    let members: Vec<u16> = places.iter().map(|place| place.member).collect();
    assert_eq!(members, [1, 2], "not who drains");
    assert_eq!((places[1].capacity, places[1].weight), (4, weight_codec::encode(4.0)));
    assert_eq!((places[1].address, places[1].endpoint), (address(1), endpoint(1)));
    assert!(look(&mut one, millis(902), 1).is_empty(), "there is no such part");
    // The second sent nothing for three reports.
    let answers = look(&mut one, millis(1_600), 0);
    let [(_, LotteryMessage::CandidateSet(drum))] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(drum.candidates.iter().map(|place| place.weight > 0).collect::<Vec<_>>(), [true, false]);
    let config = NodeConfig::new(9, 1, address(9), vec![], SipHashKey::new([3; 16]));
    let mut new = LotteryNode::new(config, Time(0));
    assert!(look(&mut new, millis(1), 0).is_empty(), "it does not know yet");
}

#[test]
fn a_large_drum_is_told_part_by_part() {
    let mut one = daemon(0, 300);
    let (mut members, mut part, mut parts) = (Vec::new(), 0, 1);
    while part < parts {
        let id = mix(u64::from(part));
        one.handle(
            millis(701),
            address(77),
            LotteryMessage::CandidateQuery(CandidateQuery { id, service: SERVICE, part }),
        );
        let answers = sent(&mut one);
        let [(_, LotteryMessage::CandidateSet(drum))] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!((drum.id, drum.part), (id, part));
        assert!(
            drum.candidates.iter().map(CandidateEntry::encoded_size).sum::<usize>() <= MAX_CANDIDATE_BYTES
        );
        members.extend(drum.candidates.iter().map(|place| place.member));
        (part, parts) = (part + 1, drum.parts);
    }
    assert_eq!(members, (1..=300).collect::<Vec<u16>>());
    assert_eq!(parts, 6, "20 bytes each: 57 to a part");
}
