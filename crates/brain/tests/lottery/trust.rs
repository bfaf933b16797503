//! Attacks on a client or a daemon, with a key or with all messages, that must fail.

use plimsoll_brain::lottery::{
    AnswerMode, CandidateQuery, LotteryClient, LotteryClientConfig, LotteryMessage, LotteryNode,
    MessageTarget, NodeConfig, NodeDescription, NodeReport, NodeState, PickStatus, ServiceState, SipHashKey,
    TableFetch, TablePart, weight_codec,
};
use plimsoll_brain::{Time, mix};

use super::checks::{address, client};
use super::rules::{SERVICE, daemon, listed, millis, refer, report, request, sent};

/// Returns the input of [`mix`] for its output `bits`, which shows that it hides nothing.
fn unmixed(bits: u64) -> u64 {
    let inverse =
        |odd: u64| (0..6).fold(odd, |by, _| by.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(by))));
    let unshifted = |bits: u64, by: u32| (0..64 / by + 1).fold(bits, |known, _| bits ^ (known >> by));
    let bits = unshifted(bits, 31).wrapping_mul(inverse(0x94d0_49bb_1331_11eb));
    let bits = unshifted(bits, 27).wrapping_mul(inverse(0xbf58_476d_1ce4_e5b9));
    // The constant that it adds first.
    unshifted(bits, 30).wrapping_sub(0x9e37_79b9_7f4a_7c15)
}

fn ids(secret: [u8; 16]) -> Vec<u64> {
    let mut client = LotteryClient::new(LotteryClientConfig::new(SipHashKey::new(secret)));
    client.set_nodes([(1, address(0))]);
    let asked = (0..100).map(|_| match client.pick(Time(0), SERVICE, b"") {
        PickStatus::Requested(id) => id,
        other => panic!("{other:?}"),
    });
    asked.collect()
}

#[test]
fn who_has_seen_ids_cannot_tell_the_next() {
    for bits in [0, 1, 7, u64::MAX, 0x5a5a] {
        assert_eq!(unmixed(mix(bits)), bits);
    }
    let seen = ids([7; 16]);
    // An implementation that mixed its counter with a secret, which one output would reveal.
    for first in 1..4_u64 {
        let secret = unmixed(seen[0]) ^ mix(first);
        let foretold: Vec<u64> = (0..400_u64).map(|turn| mix(secret ^ mix(turn))).collect();
        assert!(seen[1..].iter().all(|id| !foretold.contains(id)));
    }
    // Simulations are repeatable, and each of 16 secret bytes counts.
    assert_eq!(seen, ids([7; 16]));
    for at in 0..16 {
        let mut other = [7; 16];
        other[at] = 8;
        assert!(ids(other).iter().all(|id| !seen.contains(id)));
    }
}

#[test]
fn what_a_daemon_asks_cannot_be_foretold_either() {
    let fetched = |secret: u8| -> Vec<u64> {
        let NodeDescription { member, incarnation, address: own, offers } = listed(0);
        let mut config = NodeConfig::new(member, incarnation, own, offers, SipHashKey::new([3; 16]));
        config.secret = SipHashKey::new([secret; 16]);
        let mut one = LotteryNode::new(config, Time(0));
        let asked = (1..6_u64).map(|second| {
            one.handle(millis(second * 1000), address(3), report(3, second as u32, NodeState::Up, 4.0));
            let fetch = sent(&mut one).into_iter().find_map(|(_, message)| match message {
                LotteryMessage::Fetch(TableFetch { id, .. }) => Some(id),
                _ => None,
            });
            fetch.expect("it asks who that is")
        });
        asked.collect()
    };
    let seen = fetched(1);
    for first in 1..4_u64 {
        let secret = unmixed(seen[0]) ^ mix(!first);
        assert!((0..100_u64).all(|turn| !seen[1..].contains(&mix(secret ^ mix(!turn)))));
    }
    // The cluster's key alone, which all daemons have, does not reveal the queries of one of them.
    assert!(fetched(2).iter().all(|id| !seen.contains(id)));
}

#[test]
fn who_says_that_it_wants_everything_gets_four_times_its_share() {
    let mut one = daemon(0, 3);
    let says = |weight, capacity, seq| {
        let services = vec![ServiceState { service: SERVICE, capacity, weight, load: 0, in_flight: 0 }];
        let (member, incarnation, state) = (2, 1, NodeState::Up);
        LotteryMessage::Report(NodeReport {
            member,
            incarnation,
            seq,
            state,
            digest: 0,
            services,
            ids: vec![],
            heard: vec![],
        })
    };
    let wins = |daemon: &mut LotteryNode, from: u64| {
        (from..from + 3000).filter(|id| refer(daemon, millis(710), mix(*id)).member == 2).count()
    };
    // Beside one with its capacity and one at the beginning of its slow start: 16 of 16 + 4 + 4 / 20.
    one.handle(millis(702), address(1), says(u16::MAX, 4, 2));
    let most = wins(&mut one, 0);
    assert!((2270..2480).contains(&most), "{most} of 3000");
    let mut same = one.clone();
    same.handle(millis(703), address(1), says(weight_codec::encode(16.0), 4, 3));
    assert_eq!(wins(&mut same, 10_000), wins(&mut one, 10_000), "it is what the idlest may say");
    // As little as a loaded one at the beginning of its slow start: 4 / 80 of 4 / 80 + 4 + 4 / 20.
    one.handle(millis(704), address(1), says(1, 4, 4));
    let least = wins(&mut one, 20_000);
    assert!((10..70).contains(&least), "{least} of 3000");
    // A member without a capacity is not drawn.
    one.handle(millis(705), address(1), says(u16::MAX, 0, 5));
    assert!(!one.can_draw(2, SERVICE));
}

#[test]
fn strangers_of_one_source_have_a_daemon_ask_only_so_often() {
    let mut one = daemon(0, 2);
    let mut asked = [0; 2];
    for turn in 0..10_000_u64 {
        // A report of an unknown member each millisecond, and now and then one of another source. The query
        // is answered at once, by a daemon that knows no member: the next may be queried.
        let who = if turn % 1000 == 999 { 60 } else { 50 };
        let now = millis(701 + turn);
        one.handle(now, address(who), report(100 + turn as usize % 500, turn as u32, NodeState::Up, 4.0));
        for (to, message) in sent(&mut one) {
            if let (MessageTarget::Address(to), LotteryMessage::Fetch(TableFetch { id, part, .. })) =
                (to, &message)
            {
                asked[usize::from(to == address(60))] += 1;
                let table = TablePart { id: *id, generation: 1, part: *part, parts: 1, members: vec![] };
                one.handle(now, to, LotteryMessage::Table(table));
            }
        }
        if one.poll_timeout().is_some_and(|due| due <= now) {
            one.handle_timeout(now);
        }
    }
    // Four a second, and eight at once.
    assert!((40..=49).contains(&asked[0]), "{asked:?}");
    assert_eq!(asked[1], 10, "another source is none the worse");
    assert!(one.statistics(millis(10_701)).rate_limited > 9000);
}

#[test]
fn who_asks_with_a_key_for_clients_is_answered_by_that() {
    let mut one = daemon(0, 3);
    let from = client(7);
    let back = MessageTarget::KeyedClient(from, 9);
    let fetch = LotteryMessage::Fetch(TableFetch { id: 5, generation: 0, part: 0 });
    let look = LotteryMessage::CandidateQuery(CandidateQuery { id: 6, service: SERVICE, part: 0 });
    for asks in [LotteryMessage::Request(request(4, AnswerMode::Referral)), fetch, look] {
        for (key, to) in [(Some(9), back), (None, MessageTarget::Address(from))] {
            one.handle_with_key(millis(701), from, key, asks.clone());
            let said: Vec<MessageTarget> = sent(&mut one).into_iter().map(|(to, _)| to).collect();
            assert_eq!(said, [to], "{asks:?}");
        }
    }
    // Also one that waits on the ladder, whichever daemon was asked first.
    let mut id = 0;
    while one.statistics(millis(702)).waiting == 0 {
        id += 1;
        one.handle_with_key(
            millis(702),
            from,
            Some(9),
            LotteryMessage::Request(request(mix(id), AnswerMode::Lottery)),
        );
        sent(&mut one);
    }
    while one.statistics(millis(702)).waiting > 0 {
        let due = one.poll_timeout().expect("its turn");
        one.handle_timeout(due);
    }
    let answers =
        sent(&mut one).into_iter().filter(|(_, message)| matches!(message, LotteryMessage::Answer(_)));
    assert_eq!(answers.map(|(to, _)| to).collect::<Vec<_>>(), [back]);
}
