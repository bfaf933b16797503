//! Floods and invalid messages, which a daemon only counts.

use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_brain::lottery::{
    AnswerCommit, AnswerMode, AnswerStatus, LotteryAnswer, LotteryMessage, LotteryRequest, MAX_MEMBERS,
    MessageTarget, NodeDescription, NodeReport, NodeState, RelayedReport, ServiceOffer, ServiceState,
    TableFetch, TablePart,
};

use super::checks::{address, client, endpoint};
use super::dice::Dice;
use super::rules::{SERVICE, daemon, millis, request, sent};

#[test]
fn a_flood_fills_no_memory() {
    let mut one = daemon(0, 3);
    for turn in 0..40_000_u64 {
        // No source exceeds its limit, and the outgoing messages are not taken.
        let now = millis(701 + turn / 1000);
        let mode = if turn % 2 == 0 { AnswerMode::Lottery } else { AnswerMode::Referral };
        one.handle(now, client((turn % 2000) as usize), LotteryMessage::Request(request(turn, mode)));
    }
    let statistics = one.statistics(millis(741));
    assert_eq!(statistics.rate_limited, 0);
    assert!(statistics.waiting == 8192 && statistics.queued < 3 * 8192, "{statistics:?}");
    assert!(statistics.dropped > 10_000 && sent(&mut one).len() <= 8192 + MAX_MEMBERS);
    // It continues.
    while let Some(due) = one.poll_timeout().filter(|due| *due < millis(3000)) {
        one.handle_timeout(due);
        sent(&mut one);
    }
    assert_eq!(one.statistics(millis(3000)).waiting, 0);
}

#[test]
fn nonsense_harms_nobody() {
    for seed in 1..5 {
        let mut dice = Dice::new(seed, 7);
        let mut one = daemon(0, 6);
        let mut now = millis(701);
        let mut asked: Option<(SocketAddr, TableFetch)> = None;
        for _ in 0..4000 {
            now = now + Duration::from_micros(dice.bits() % 3000);
            let (mut from, mut message) = (address(dice.below(8)), nonsense(&mut dice));
            // A table counts only if it was requested.
            if let (LotteryMessage::Table(table), Some((asked, fetch))) = (&mut message, asked) {
                (from, table.id, table.part) = (asked, fetch.id, fetch.part);
            }
            one.handle(now, from, message);
            for (to, message) in sent(&mut one) {
                if let (MessageTarget::Address(to), LotteryMessage::Fetch(fetch)) = (to, &message) {
                    asked = Some((to, *fetch));
                }
                if let LotteryMessage::Answer(LotteryAnswer {
                    status: AnswerStatus::Ok,
                    member,
                    service,
                    ..
                }) = message
                {
                    assert!(one.can_draw(member, service));
                }
            }
            if one.poll_timeout().is_some_and(|due| due <= now) {
                one.handle_timeout(now);
                assert!(one.poll_timeout().is_some_and(|due| due > now));
            }
        }
        let statistics = one.statistics(now);
        assert!(statistics.members <= MAX_MEMBERS && statistics.members > 6, "{statistics:?}");
        assert!(
            statistics.turned_away > 0 && statistics.referred > 0 && statistics.won > 0,
            "{statistics:?}"
        );
    }
}

/// Returns any message with random fields, most of them near a meaningful value.
fn nonsense(dice: &mut Dice) -> LotteryMessage {
    let id = dice.bits() % 500;
    let member = if dice.below(3) == 0 { dice.bits() as u16 } else { dice.below(9) as u16 };
    let incarnation = if dice.below(50) == 0 { dice.bits() as u32 } else { 1 };
    let service = if dice.below(4) == 0 { dice.bits() as u32 } else { SERVICE };
    let states = [NodeState::Joining, NodeState::Up, NodeState::Up, NodeState::Draining, NodeState::Leaving];
    let many = dice.below(100);
    match dice.below(8) {
        0 | 1 => {
            let mode = if dice.below(2) == 0 { AnswerMode::Referral } else { AnswerMode::Lottery };
            let avoid = (0..dice.below(4)).map(|_| dice.below(9) as u16).collect();
            LotteryMessage::Request(LotteryRequest {
                service,
                attempt: dice.bits() as u8,
                avoid,
                ..request(id, mode)
            })
        }
        2 => LotteryMessage::Commit(AnswerCommit {
            member,
            incarnation,
            ids: (0..many as u64).map(|turn| id + turn).collect(),
        }),
        3 | 4 => {
            let share = |dice: &mut Dice| ServiceState {
                service: if dice.below(4) == 0 { dice.bits() as u32 } else { SERVICE },
                capacity: dice.bits() as u16,
                weight: dice.bits() as u16 >> dice.below(16),
                load: dice.bits() as u16,
                in_flight: dice.bits() as u16,
            };
            let services = (0..dice.below(3) * many).map(|_| share(dice)).collect();
            let ids = (0..many as u64).map(|turn| id + turn).collect();
            let heard = (0..dice.below(3) * many).map(|_| RelayedReport {
                member: dice.below(12) as u16,
                incarnation: if dice.below(50) == 0 { dice.bits() as u32 } else { 1 },
                seq: dice.bits() as u32 >> dice.below(32),
                state: states[dice.below(5)],
                services: (0..dice.below(3)).map(|_| share(dice)).collect(),
            });
            let heard = heard.collect();
            let (seq, state) = (dice.bits() as u32 >> dice.below(32), states[dice.below(5)]);
            LotteryMessage::Report(NodeReport {
                member,
                incarnation,
                seq,
                state,
                digest: dice.bits(),
                services,
                ids,
                heard,
            })
        }
        5 => LotteryMessage::Fetch(TableFetch {
            id,
            generation: dice.bits() as u32,
            part: dice.below(3) as u16,
        }),
        6 => {
            let none: &[u8] = b"";
            let listed = |dice: &mut Dice| {
                let capacity = dice.bits() as u16;
                let offer = ServiceOffer { service, capacity, endpoint: endpoint(1), info: none.into() };
                let offers = vec![offer; dice.below(100)];
                NodeDescription {
                    member: dice.bits() as u16,
                    incarnation: dice.below(3) as u32,
                    address: address(3),
                    offers,
                }
            };
            let members = (0..dice.below(40)).map(|_| listed(dice)).collect();
            LotteryMessage::Table(TablePart {
                id,
                generation: 1,
                part: dice.bits() as u16,
                parts: dice.bits() as u16,
                members,
            })
        }
        _ => LotteryMessage::Answer(LotteryAnswer {
            id,
            service,
            status: AnswerStatus::Ok,
            rank: 9,
            ttl: 9,
            member,
            endpoint: Some(endpoint(1)),
            client_time: 0,
            generation: 0,
            info: vec![].into(),
            fallbacks: vec![],
            max_bytes: 128,
        }),
    }
}
