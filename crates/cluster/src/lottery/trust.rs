//! Tests of the actions that holders of each kind of key can perform on a daemon, in virtual time without
//! sockets.

use std::net::SocketAddr;

use plimsoll_brain::Time;
use plimsoll_brain::lottery::{
    Answer, Commit, Drum, Fetch, Key as Secret, Listed, Look, Message, Mode, Offer, Report, Request, Share,
    Standing, Status, Table, code,
};
use plimsoll_wire::rfs::{Encode, Gossip as Told, Key, Kind, Role};

use super::desk::{AHEAD, Desk};
use super::gossip::{Gossip, Node};
use super::*;

const SERVICE: u32 = 80;
const CLIENTS: u32 = 9;

fn daemons() -> Keys {
    Keys::new(Key::new(1, &[7; 32]))
}

fn clients() -> Keys {
    Keys::new(Key::of(Role::Client, CLIENTS, &[8; 32]))
}

fn address(member: u16) -> SocketAddr {
    ([10, 0, (member >> 8) as u8, member as u8], 7447).into()
}

fn millis(millis: u64) -> Time {
    Time(millis * 1_000_000)
}

fn settings() -> Settings {
    let service = Service {
        name: "web".into(),
        id: SERVICE,
        server: ([10, 0, 0, 1], 80).into(),
        capacity: 4,
        info: [].into(),
        check: None,
    };
    Settings {
        member: 1,
        incarnation: incarnation(),
        listen: address(1),
        address: None,
        peers: vec![address(2)],
        multicast: None,
        keys: daemons().also(Key::of(Role::Client, CLIENTS, &[8; 32])).unwrap(),
        services: vec![service],
        ttl: Duration::ZERO,
        slow_start: Duration::ZERO,
        rate: 0,
    }
}

/// Creates member 1, which has been up since 700 ms and knows member 2, which has reported.
pub(super) fn desk() -> Desk {
    let mut desk = Desk::new(&settings(), address(1), Secret::new([3; 16]));
    desk.take(millis(1), address(2), &sealed(&report(2, incarnation() - 9, 1), &daemons()));
    let fetched = asked(&mut desk).expect("it asks who that is");
    let table = Message::Table(Table { members: vec![listed(2, incarnation() - 9)], ..fetched });
    desk.take(millis(2), address(2), &sealed(&table, &daemons()));
    desk.take(millis(3), address(2), &sealed(&report(2, incarnation() - 9, 2), &daemons()));
    for at in 1..=70 {
        desk.wake(millis(at * 10));
    }
    desk.letters();
    assert_eq!(statistics(&mut desk).lots.members_heard, 1);
    desk
}

/// Returns the empty table that answers its last request.
fn asked(desk: &mut Desk) -> Option<Table> {
    let fetch = desk.letters().into_iter().find_map(|(_, bytes)| match message(&bytes, &daemons()) {
        Some(Message::Fetch(Fetch { id, part, .. })) => Some((id, part)),
        _ => None,
    });
    fetch.map(|(id, part)| Table { id, generation: 1, part, parts: 1, members: vec![] })
}

fn message(bytes: &[u8], keys: &Keys) -> Option<Message> {
    keys.open(bytes).ok()?.message().ok()
}

fn sealed(what: &impl Encode, keys: &Keys) -> Vec<u8> {
    let mut out = Vec::new();
    what.encode(keys, &mut out).unwrap();
    out
}

fn seen(desk: &mut Desk) -> (Statistics, View) {
    let (show, mut shown) = oneshot::channel();
    desk.obey(millis(702), Order::Show(show));
    shown.try_recv().unwrap()
}

pub(super) fn statistics(desk: &mut Desk) -> Statistics {
    seen(desk).0
}

fn listed(member: u16, incarnation: u32) -> Listed {
    let endpoint = ([10, 0, 0, member as u8], 80).into();
    let offers = vec![Offer { service: SERVICE, capacity: 4, endpoint, info: [].into() }];
    Listed { member, incarnation, address: address(member), offers }
}

fn report(member: u16, incarnation: u32, seq: u32) -> Message {
    let services =
        vec![Share { service: SERVICE, capacity: 4, weight: code::of(4.0), load: 0, in_flight: 0 }];
    let (state, ids) = (Standing::Up, vec![]);
    Message::Report(Report { member, incarnation, seq, state, digest: 0, services, ids, heard: vec![] })
}

/// Returns the join request of node `own` to member 1.
fn join(own: Node, keys: &Keys) -> Vec<u8> {
    let mut gossip = Gossip::new(own, 5, Time(0));
    gossip.wake(Time(0), [address(1)].into_iter());
    let (to, told) = gossip.poll_transmit().expect("it asks to be taken in");
    assert_eq!(to, address(1));
    sealed(&told, keys)
}

/// Returns one datagram of each kind. Each would have an effect if it were accepted.
fn all(keys: &Keys) -> Vec<(Kind, Vec<u8>)> {
    let (id, service, room) = (77, SERVICE, 200);
    let request = Request {
        id,
        service,
        attempt: 0,
        mode: Mode::Referral,
        generation: 0,
        client_time: 0,
        avoid: vec![],
        info: vec![],
        room,
    };
    let answer = Answer {
        id,
        service,
        status: Status::Ok,
        rank: 0,
        ttl: 0,
        member: 2,
        endpoint: Some(address(2)),
        client_time: 0,
        generation: 0,
        info: [].into(),
        further: vec![],
        room,
    };
    let messages = [
        Message::Request(request),
        Message::Answer(answer),
        Message::Commit(Commit { member: 2, incarnation: incarnation(), ids: vec![id] }),
        report(2, incarnation() - 9, 3),
        // From an unknown member, which would be asked for its offers.
        report(3, incarnation(), 1),
        Message::Fetch(Fetch { id, generation: 0, part: 0 }),
        Message::Table(Table { id, generation: 1, part: 0, parts: 1, members: vec![listed(4, 1)] }),
        Message::Look(Look { id, service, part: 0 }),
        Message::Drum(Drum { id, service, part: 0, parts: 1, places: vec![] }),
    ];
    let mut all: Vec<_> = messages.iter().map(|message| (Kind::of(message), sealed(message, keys))).collect();
    all.push((Kind::Gossip, join(Node { member: 5, life: incarnation(), address: address(5) }, keys)));
    all
}

#[test]
fn each_kind_of_datagram_with_each_kind_of_key() {
    for keys in [daemons(), clients()] {
        let asks = |kind| matches!(kind, Kind::Request | Kind::Fetch | Kind::Look);
        let mut kinds = std::collections::BTreeSet::new();
        for (kind, datagram) in all(&keys) {
            kinds.insert(kind);
            let mut desk = desk();
            let before = seen(&mut desk);
            desk.take(millis(702), address(200), &datagram);
            let (after, letters) = (seen(&mut desk), desk.letters());
            let theirs = keys.role() == Role::Client;
            let dropped = u64::from(theirs && !asks(kind));
            assert_eq!(after.0.misused, dropped, "{kind}");
            if dropped == 1 {
                // Only these two counters have changed.
                let counted = Statistics { received: before.0.received + 1, misused: 1, ..before.0 };
                assert_eq!((after, letters), ((counted, before.1), vec![]), "{kind}");
                continue;
            }
            if asks(kind) {
                let [(to, answer)] = &letters[..] else { panic!("{kind}: {} answers", letters.len()) };
                assert_eq!(*to, address(200), "{kind}");
                assert!(answer.len() <= datagram.len() && message(answer, &keys).is_some(), "{kind}");
                // A holder of a client key can read the answers to its requests, and nothing else.
                assert_eq!(message(answer, &clients()).is_some(), theirs, "{kind}");
                assert_eq!(message(answer, &daemons()).is_some(), !theirs, "{kind}");
            }
        }
        assert_eq!(kinds.len(), Kind::ALL.len());
    }
}

#[test]
fn what_a_daemon_says_is_heard() {
    // The counterpart of the above: the same datagrams under a daemon key have an effect.
    let mut desk = desk();
    for (kind, datagram) in all(&daemons()) {
        desk.take(millis(702), address(2), &datagram);
        let letters = desk.letters();
        match kind {
            Kind::Answer | Kind::Commit | Kind::Drum | Kind::Table => assert_eq!(letters.len(), 0, "{kind}"),
            Kind::Report => {}
            _ => assert!(!letters.is_empty(), "{kind}"),
        }
    }
    let statistics = statistics(&mut desk);
    assert_eq!((statistics.misused, statistics.alive, statistics.lots.heard), (0, 1, 2));
}

#[test]
fn an_answer_to_a_key_that_counts_no_more_is_not_sent() {
    let mut desk = desk();
    let (_, request) = all(&clients()).swap_remove(0);
    desk.take(millis(702), address(200), &request);
    desk.obey(millis(702), Order::Change(Box::new(Settings { keys: daemons(), ..settings() })));
    assert_eq!(desk.letters().len(), 0);
    desk.take(millis(703), address(200), &request);
    let after = statistics(&mut desk);
    assert_eq!((after.unsent, after.unknown_key), (1, 1));
}

#[test]
fn who_says_that_a_life_is_of_long_after_now_shuts_nobody_out() {
    let last = u32::MAX;
    let heard = |desk: &mut Desk| {
        desk.take(millis(800), address(2), &sealed(&report(2, incarnation() - 9, 50), &daemons()));
        statistics(desk).lots.heard
    };
    // About the member itself, which could never have a later incarnation.
    let mut one = desk();
    one.take(millis(702), address(66), &sealed(&report(2, last, 1), &daemons()));
    one.take(millis(702), address(66), &sealed(&report(2, incarnation() + AHEAD + 60, 1), &daemons()));
    assert_eq!((statistics(&mut one).implausible, heard(&mut one)), (2, 2));
    // In a requested table.
    let mut one = desk();
    one.take(millis(702), address(66), &sealed(&report(66, incarnation(), 1), &daemons()));
    let table = asked(&mut one).expect("it asks who that is");
    let members = vec![listed(2, last), listed(66, incarnation())];
    let table = Message::Table(Table { members, ..table });
    one.take(millis(703), address(66), &sealed(&table, &daemons()));
    assert_eq!((statistics(&mut one).implausible, heard(&mut one)), (1, 2));
    assert_eq!(statistics(&mut one).lots.members, 2, "the other one is known");
    // As gossip, about itself and about another.
    let mut one = desk();
    let datagram = join(Node { member: 2, life: last, address: address(2) }, &daemons());
    one.take(millis(702), address(66), &datagram);
    assert_eq!((statistics(&mut one).implausible, statistics(&mut one).alive, heard(&mut one)), (1, 0, 2));
    // An incarnation less far in the future is accepted: the daemon requests its offers.
    let mut one = desk();
    one.take(millis(702), address(2), &sealed(&report(2, incarnation() + AHEAD / 2, 1), &daemons()));
    assert!(statistics(&mut one).implausible == 0 && asked(&mut one).is_some());
}

#[test]
fn what_cannot_be_understood_is_no_gossip() {
    let mut desk = desk();
    let told = Told { member: 5, incarnation: 1, seq: 1, said: vec![0; 9] };
    desk.take(millis(702), address(5), &sealed(&told, &daemons()));
    assert_eq!((statistics(&mut desk).malformed, desk.letters().len()), (1, 0));
}

#[test]
fn a_flood_of_those_who_want_to_be_taken_in_is_not_answered() {
    let node = |number: u16, address: SocketAddr| Node { member: number, life: incarnation(), address };
    let fed = |letters: &[(SocketAddr, Vec<u8>)], whom: SocketAddr| {
        letters.iter().filter(|(to, _)| to.ip() == whom.ip()).count()
    };
    // From one source, with any address in the request.
    let mut one = desk();
    let mut letters = Vec::new();
    for number in 0..1000 {
        let datagram = join(node(1000 + number, address(1000 + number)), &daemons());
        one.take(millis(702 + u64::from(number)), address(200), &datagram);
        letters.extend(one.letters());
    }
    let all = letters.len();
    assert!((100..400).contains(&all), "50 a second, and 100 at once: {all}");
    let bytes: usize = letters.iter().map(|(_, bytes)| bytes.len()).sum();
    assert!(bytes < 400 * 1200, "{bytes}");
    assert!(statistics(&mut one).lots.limited > 800);
    // Meanwhile another daemon is accepted.
    one.take(millis(1702), address(201), &join(node(900, address(201)), &daemons()));
    assert!(fed(&one.letters(), address(201)) > 0);
    // From many sources, with responses to a host that has not asked.
    let (mut one, whom, mut sent) = (desk(), address(300), 0);
    for number in 0..1000 {
        let told = SocketAddr::new(whom.ip(), 10_000 + number);
        let datagram = join(node(1000 + number, told), &daemons());
        one.take(millis(702), address(1000 + number), &datagram);
        sent += fed(&one.letters(), whom);
    }
    assert!((100..=300).contains(&sent), "{sent} to who has not asked");
}
