//! Tests of the actions that holders of each kind of key can perform on a daemon, in virtual time without
//! sockets.

use std::net::SocketAddr;

use plimsoll_brain::Time;
use plimsoll_brain::lottery::{
    AnswerCommit, AnswerMode, AnswerStatus, CandidateQuery, CandidateSet, LotteryAnswer, LotteryMessage,
    LotteryRequest, NodeDescription, NodeReport, NodeState, ServiceOffer, ServiceState, SipHashKey as Secret,
    TableFetch, TablePart, weight_codec,
};
use plimsoll_wire::rfs::{DatagramKey, DatagramKind, EncodeDatagram, GossipDatagram as Told, KeyRole};

use super::gossip::{NodeIdentity, SwimMembership};
use super::node::{DaemonNode, MAX_CLOCK_SKEW_SECONDS};
use super::*;

const SERVICE: u32 = 80;
const CLIENTS: u32 = 9;

fn daemons() -> KeyRing {
    KeyRing::new(DatagramKey::new(1, &[7; 32]))
}

fn clients() -> KeyRing {
    KeyRing::new(DatagramKey::for_role(KeyRole::Client, CLIENTS, &[8; 32]))
}

fn address(member: u16) -> SocketAddr {
    ([10, 0, (member >> 8) as u8, member as u8], 7447).into()
}

fn millis(millis: u64) -> Time {
    Time(millis * 1_000_000)
}

fn settings() -> DaemonSettings {
    let service = LotteryService {
        name: "web".into(),
        id: SERVICE,
        server: ([10, 0, 0, 1], 80).into(),
        capacity: 4,
        info: [].into(),
        check: None,
    };
    DaemonSettings {
        member: 1,
        incarnation: incarnation(),
        listen: address(1),
        address: None,
        peers: vec![address(2)],
        multicast: None,
        keys: daemons().with_key(DatagramKey::for_role(KeyRole::Client, CLIENTS, &[8; 32])).unwrap(),
        services: vec![service],
        ttl: Duration::ZERO,
        slow_start: Duration::ZERO,
        rate: 0,
    }
}

/// Creates member 1, which has been up since 700 ms and knows member 2, which has reported.
pub(super) fn daemon_node() -> DaemonNode {
    let mut node = DaemonNode::new(&settings(), address(1), Secret::new([3; 16]));
    node.receive(millis(1), address(2), &sealed(&report(2, incarnation() - 9, 1), &daemons()));
    let table_request = fetched_table(&mut node).expect("it asks who that is");
    let table = LotteryMessage::Table(TablePart {
        members: vec![node_description(2, incarnation() - 9)],
        ..table_request
    });
    node.receive(millis(2), address(2), &sealed(&table, &daemons()));
    node.receive(millis(3), address(2), &sealed(&report(2, incarnation() - 9, 2), &daemons()));
    for step in 1..=70 {
        node.run_due(millis(step * 10));
    }
    node.take_datagrams();
    assert_eq!(statistics(&mut node).protocol.members_reporting, 1);
    node
}

/// Returns the empty table that answers its last request.
fn fetched_table(node: &mut DaemonNode) -> Option<TablePart> {
    let fetch = node.take_datagrams().into_iter().find_map(|(_, bytes)| match message(&bytes, &daemons()) {
        Some(LotteryMessage::Fetch(TableFetch { id, part, .. })) => Some((id, part)),
        _ => None,
    });
    fetch.map(|(id, part)| TablePart { id, generation: 1, part, parts: 1, members: vec![] })
}

fn message(bytes: &[u8], keys: &KeyRing) -> Option<LotteryMessage> {
    keys.open(bytes).ok()?.message().ok()
}

fn sealed(message: &impl EncodeDatagram, keys: &KeyRing) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode(keys, &mut out).unwrap();
    out
}

fn read_view(node: &mut DaemonNode) -> (DaemonStatistics, NodeView) {
    let (sender, mut receiver) = oneshot::channel();
    node.execute(millis(702), DaemonCommand::ReadView(sender));
    receiver.try_recv().unwrap()
}

pub(super) fn statistics(node: &mut DaemonNode) -> DaemonStatistics {
    read_view(node).0
}

fn node_description(member: u16, incarnation: u32) -> NodeDescription {
    let endpoint = ([10, 0, 0, member as u8], 80).into();
    let offers = vec![ServiceOffer { service: SERVICE, capacity: 4, endpoint, info: [].into() }];
    NodeDescription { member, incarnation, address: address(member), offers }
}

fn report(member: u16, incarnation: u32, seq: u32) -> LotteryMessage {
    let services = vec![ServiceState {
        service: SERVICE,
        capacity: 4,
        weight: weight_codec::encode(4.0),
        load: 0,
        in_flight: 0,
    }];
    let (state, ids) = (NodeState::Up, vec![]);
    LotteryMessage::Report(NodeReport {
        member,
        incarnation,
        seq,
        state,
        digest: 0,
        services,
        ids,
        heard: vec![],
    })
}

/// Returns the join request of node `own` to member 1.
fn join(identity: NodeIdentity, keys: &KeyRing) -> Vec<u8> {
    let mut gossip = SwimMembership::new(identity, 5, Time(0));
    gossip.run_due(Time(0), [address(1)].into_iter());
    let (to, datagram) = gossip.poll_transmit().expect("it asks to be taken in");
    assert_eq!(to, address(1));
    sealed(&datagram, keys)
}

/// Returns one datagram of each kind. Each would have an effect if it were accepted.
fn all_datagrams(keys: &KeyRing) -> Vec<(DatagramKind, Vec<u8>)> {
    let (id, service, max_bytes) = (77, SERVICE, 200);
    let request = LotteryRequest {
        id,
        service,
        attempt: 0,
        mode: AnswerMode::Referral,
        generation: 0,
        client_time: 0,
        avoid: vec![],
        info: vec![],
        max_answer_bytes: max_bytes,
    };
    let answer = LotteryAnswer {
        id,
        service,
        status: AnswerStatus::Ok,
        rank: 0,
        ttl: 0,
        member: 2,
        endpoint: Some(address(2)),
        client_time: 0,
        generation: 0,
        info: [].into(),
        fallbacks: vec![],
        max_bytes,
    };
    let messages = [
        LotteryMessage::Request(request),
        LotteryMessage::Answer(answer),
        LotteryMessage::Commit(AnswerCommit { member: 2, incarnation: incarnation(), ids: vec![id] }),
        report(2, incarnation() - 9, 3),
        // From an unknown member, which would be asked for its offers.
        report(3, incarnation(), 1),
        LotteryMessage::Fetch(TableFetch { id, generation: 0, part: 0 }),
        LotteryMessage::Table(TablePart {
            id,
            generation: 1,
            part: 0,
            parts: 1,
            members: vec![node_description(4, 1)],
        }),
        LotteryMessage::CandidateQuery(CandidateQuery { id, service, part: 0 }),
        LotteryMessage::CandidateSet(CandidateSet { id, service, part: 0, parts: 1, candidates: vec![] }),
    ];
    let mut datagrams: Vec<_> =
        messages.iter().map(|message| (DatagramKind::of_message(message), sealed(message, keys))).collect();
    datagrams.push((
        DatagramKind::Gossip,
        join(NodeIdentity { member: 5, incarnation: incarnation(), address: address(5) }, keys),
    ));
    datagrams
}

#[test]
fn each_kind_of_datagram_with_each_kind_of_key() {
    for keys in [daemons(), clients()] {
        let is_request =
            |kind| matches!(kind, DatagramKind::Request | DatagramKind::Fetch | DatagramKind::Look);
        let mut kinds = std::collections::BTreeSet::new();
        for (kind, datagram) in all_datagrams(&keys) {
            kinds.insert(kind);
            let mut node = daemon_node();
            let view_before = read_view(&mut node);
            node.receive(millis(702), address(200), &datagram);
            let (view_after, datagrams) = (read_view(&mut node), node.take_datagrams());
            let is_client_key = keys.role() == KeyRole::Client;
            let dropped_count = u64::from(is_client_key && !is_request(kind));
            assert_eq!(view_after.0.misused, dropped_count, "{kind}");
            if dropped_count == 1 {
                // Only these two counters have changed.
                let expected =
                    DaemonStatistics { received: view_before.0.received + 1, misused: 1, ..view_before.0 };
                assert_eq!((view_after, datagrams), ((expected, view_before.1), vec![]), "{kind}");
                continue;
            }
            if is_request(kind) {
                let [(to, answer)] = &datagrams[..] else { panic!("{kind}: {} answers", datagrams.len()) };
                assert_eq!(*to, address(200), "{kind}");
                assert!(answer.len() <= datagram.len() && message(answer, &keys).is_some(), "{kind}");
                // A holder of a client key can read the answers to its requests, and nothing else.
                assert_eq!(message(answer, &clients()).is_some(), is_client_key, "{kind}");
                assert_eq!(message(answer, &daemons()).is_some(), !is_client_key, "{kind}");
            }
        }
        assert_eq!(kinds.len(), DatagramKind::ALL.len());
    }
}

#[test]
fn what_a_daemon_says_is_heard() {
    // The counterpart of the above: the same datagrams under a daemon key have an effect.
    let mut node = daemon_node();
    for (kind, datagram) in all_datagrams(&daemons()) {
        node.receive(millis(702), address(2), &datagram);
        let datagrams = node.take_datagrams();
        match kind {
            DatagramKind::Answer | DatagramKind::Commit | DatagramKind::Drum | DatagramKind::Table => {
                assert_eq!(datagrams.len(), 0, "{kind}")
            }
            DatagramKind::Report => {}
            _ => assert!(!datagrams.is_empty(), "{kind}"),
        }
    }
    let statistics = statistics(&mut node);
    assert_eq!((statistics.misused, statistics.alive, statistics.protocol.heard), (0, 1, 2));
}

#[test]
fn an_answer_to_a_key_that_counts_no_more_is_not_sent() {
    let mut node = daemon_node();
    let (_, request) = all_datagrams(&clients()).swap_remove(0);
    node.receive(millis(702), address(200), &request);
    node.execute(
        millis(702),
        DaemonCommand::Reconfigure(Box::new(DaemonSettings { keys: daemons(), ..settings() })),
    );
    assert_eq!(node.take_datagrams().len(), 0);
    node.receive(millis(703), address(200), &request);
    let statistics_after = statistics(&mut node);
    assert_eq!((statistics_after.unsent, statistics_after.unknown_key), (1, 1));
}

#[test]
fn who_says_that_a_life_is_of_long_after_now_shuts_nobody_out() {
    let latest_incarnation = u32::MAX;
    let report_and_count = |node: &mut DaemonNode| {
        node.receive(millis(800), address(2), &sealed(&report(2, incarnation() - 9, 50), &daemons()));
        statistics(node).protocol.heard
    };
    // About the member itself, which could never have a later incarnation.
    let mut node = daemon_node();
    node.receive(millis(702), address(66), &sealed(&report(2, latest_incarnation, 1), &daemons()));
    node.receive(
        millis(702),
        address(66),
        &sealed(&report(2, incarnation() + MAX_CLOCK_SKEW_SECONDS + 60, 1), &daemons()),
    );
    assert_eq!((statistics(&mut node).implausible, report_and_count(&mut node)), (2, 2));
    // In a requested table.
    let mut node = daemon_node();
    node.receive(millis(702), address(66), &sealed(&report(66, incarnation(), 1), &daemons()));
    let table = fetched_table(&mut node).expect("it asks who that is");
    let members = vec![node_description(2, latest_incarnation), node_description(66, incarnation())];
    let table = LotteryMessage::Table(TablePart { members, ..table });
    node.receive(millis(703), address(66), &sealed(&table, &daemons()));
    assert_eq!((statistics(&mut node).implausible, report_and_count(&mut node)), (1, 2));
    assert_eq!(statistics(&mut node).protocol.members, 2, "the other one is known");
    // As gossip, about itself and about another.
    let mut node = daemon_node();
    let datagram =
        join(NodeIdentity { member: 2, incarnation: latest_incarnation, address: address(2) }, &daemons());
    node.receive(millis(702), address(66), &datagram);
    assert_eq!(
        (statistics(&mut node).implausible, statistics(&mut node).alive, report_and_count(&mut node)),
        (1, 0, 2)
    );
    // An incarnation less far in the future is accepted: the daemon requests its offers.
    let mut node = daemon_node();
    node.receive(
        millis(702),
        address(2),
        &sealed(&report(2, incarnation() + MAX_CLOCK_SKEW_SECONDS / 2, 1), &daemons()),
    );
    assert!(statistics(&mut node).implausible == 0 && fetched_table(&mut node).is_some());
}

#[test]
fn what_cannot_be_understood_is_no_gossip() {
    let mut node = daemon_node();
    let gossip_datagram = Told { member: 5, incarnation: 1, seq: 1, payload: vec![0; 9] };
    node.receive(millis(702), address(5), &sealed(&gossip_datagram, &daemons()));
    assert_eq!((statistics(&mut node).malformed, node.take_datagrams().len()), (1, 0));
}

#[test]
fn a_flood_of_those_who_want_to_be_taken_in_is_not_answered() {
    let node = |number: u16, address: SocketAddr| NodeIdentity {
        member: number,
        incarnation: incarnation(),
        address,
    };
    let sent_to = |datagrams: &[(SocketAddr, Vec<u8>)], victim: SocketAddr| {
        datagrams.iter().filter(|(to, _)| to.ip() == victim.ip()).count()
    };
    // From one source, with any address in the request.
    let mut target_node = daemon_node();
    let mut datagrams = Vec::new();
    for number in 0..1000 {
        let datagram = join(node(1000 + number, address(1000 + number)), &daemons());
        target_node.receive(millis(702 + u64::from(number)), address(200), &datagram);
        datagrams.extend(target_node.take_datagrams());
    }
    let datagram_count = datagrams.len();
    assert!((100..400).contains(&datagram_count), "50 a second, and 100 at once: {datagram_count}");
    let bytes: usize = datagrams.iter().map(|(_, bytes)| bytes.len()).sum();
    assert!(bytes < 400 * 1200, "{bytes}");
    assert!(statistics(&mut target_node).protocol.rate_limited > 800);
    // Meanwhile another daemon is accepted.
    target_node.receive(millis(1702), address(201), &join(node(900, address(201)), &daemons()));
    assert!(sent_to(&target_node.take_datagrams(), address(201)) > 0);
    // From many sources, with responses to a host that has not asked.
    let (mut target_node, victim, mut sent_count) = (daemon_node(), address(300), 0);
    for number in 0..1000 {
        let claimed_address = SocketAddr::new(victim.ip(), 10_000 + number);
        let datagram = join(node(1000 + number, claimed_address), &daemons());
        target_node.receive(millis(702), address(1000 + number), &datagram);
        sent_count += sent_to(&target_node.take_datagrams(), victim);
    }
    assert!((100..=300).contains(&sent_count), "{sent_count} to who has not asked");
}
