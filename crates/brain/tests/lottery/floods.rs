//! Floods and invalid messages, which a daemon only counts.

use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_brain::lottery::{
    Answer, Commit, Fetch, Hearsay, Listed, MEMBERS, Message, Mode, Offer, Report, Request, Share, Standing,
    Status, Table, To,
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
        let mode = if turn % 2 == 0 { Mode::Lottery } else { Mode::Referral };
        one.handle(now, client((turn % 2000) as usize), Message::Request(request(turn, mode)));
    }
    let statistics = one.statistics(millis(741));
    assert_eq!(statistics.limited, 0);
    assert!(statistics.waiting == 8192 && statistics.queued < 3 * 8192, "{statistics:?}");
    assert!(statistics.dropped > 10_000 && sent(&mut one).len() <= 8192 + MEMBERS);
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
        let mut asked: Option<(SocketAddr, Fetch)> = None;
        for _ in 0..4000 {
            now = now + Duration::from_micros(dice.bits() % 3000);
            let (mut from, mut message) = (address(dice.below(8)), nonsense(&mut dice));
            // A table counts only if it was requested.
            if let (Message::Table(table), Some((asked, fetch))) = (&mut message, asked) {
                (from, table.id, table.part) = (asked, fetch.id, fetch.part);
            }
            one.handle(now, from, message);
            for (to, message) in sent(&mut one) {
                if let (To::Address(to), Message::Fetch(fetch)) = (to, &message) {
                    asked = Some((to, *fetch));
                }
                if let Message::Answer(Answer { status: Status::Ok, member, service, .. }) = message {
                    assert!(one.draws(member, service));
                }
            }
            if one.poll_timeout().is_some_and(|due| due <= now) {
                one.handle_timeout(now);
                assert!(one.poll_timeout().is_some_and(|due| due > now));
            }
        }
        let statistics = one.statistics(now);
        assert!(statistics.members <= MEMBERS && statistics.members > 6, "{statistics:?}");
        assert!(
            statistics.turned_away > 0 && statistics.referred > 0 && statistics.won > 0,
            "{statistics:?}"
        );
    }
}

/// Returns any message with random fields, most of them near a meaningful value.
fn nonsense(dice: &mut Dice) -> Message {
    let id = dice.bits() % 500;
    let member = if dice.below(3) == 0 { dice.bits() as u16 } else { dice.below(9) as u16 };
    let incarnation = if dice.below(50) == 0 { dice.bits() as u32 } else { 1 };
    let service = if dice.below(4) == 0 { dice.bits() as u32 } else { SERVICE };
    let states = [Standing::Joining, Standing::Up, Standing::Up, Standing::Draining, Standing::Leaving];
    let many = dice.below(100);
    match dice.below(8) {
        0 | 1 => {
            let mode = if dice.below(2) == 0 { Mode::Referral } else { Mode::Lottery };
            let avoid = (0..dice.below(4)).map(|_| dice.below(9) as u16).collect();
            Message::Request(Request { service, attempt: dice.bits() as u8, avoid, ..request(id, mode) })
        }
        2 => Message::Commit(Commit {
            member,
            incarnation,
            ids: (0..many as u64).map(|turn| id + turn).collect(),
        }),
        3 | 4 => {
            let share = |dice: &mut Dice| Share {
                service: if dice.below(4) == 0 { dice.bits() as u32 } else { SERVICE },
                capacity: dice.bits() as u16,
                weight: dice.bits() as u16 >> dice.below(16),
                load: dice.bits() as u16,
                in_flight: dice.bits() as u16,
            };
            let services = (0..dice.below(3) * many).map(|_| share(dice)).collect();
            let ids = (0..many as u64).map(|turn| id + turn).collect();
            let heard = (0..dice.below(3) * many).map(|_| Hearsay {
                member: dice.below(12) as u16,
                incarnation: if dice.below(50) == 0 { dice.bits() as u32 } else { 1 },
                seq: dice.bits() as u32 >> dice.below(32),
                state: states[dice.below(5)],
                services: (0..dice.below(3)).map(|_| share(dice)).collect(),
            });
            let heard = heard.collect();
            let (seq, state) = (dice.bits() as u32 >> dice.below(32), states[dice.below(5)]);
            Message::Report(Report {
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
        5 => Message::Fetch(Fetch { id, generation: dice.bits() as u32, part: dice.below(3) as u16 }),
        6 => {
            let none: &[u8] = b"";
            let listed = |dice: &mut Dice| {
                let capacity = dice.bits() as u16;
                let offer = Offer { service, capacity, endpoint: endpoint(1), info: none.into() };
                let offers = vec![offer; dice.below(100)];
                Listed {
                    member: dice.bits() as u16,
                    incarnation: dice.below(3) as u32,
                    address: address(3),
                    offers,
                }
            };
            let members = (0..dice.below(40)).map(|_| listed(dice)).collect();
            Message::Table(Table {
                id,
                generation: 1,
                part: dice.bits() as u16,
                parts: dice.bits() as u16,
                members,
            })
        }
        _ => Message::Answer(Answer {
            id,
            service,
            status: Status::Ok,
            rank: 9,
            ttl: 9,
            member,
            endpoint: Some(endpoint(1)),
            client_time: 0,
            generation: 0,
            info: vec![].into(),
            further: vec![],
            room: 128,
        }),
    }
}
