use std::net::SocketAddr;

use plimsoll_brain::Time;
use plimsoll_brain::lottery::{Config, Daemon, Listed, Offer, PART, To};
use plimsoll_wire::rfs::{Key, LONGEST, Table};

use super::*;

fn keys() -> Keys {
    Keys::new(Key::new(7, &[9; 32]))
}

/// What another host reads of it.
fn over(message: Message) -> Message {
    let mut out = Vec::new();
    write(message, &keys(), &mut out).unwrap();
    read(keys().open(&out).unwrap().message().unwrap())
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn request(room: u16) -> brain::Request {
    brain::Request {
        id: 77,
        service: 80,
        attempt: 2,
        mode: brain::Mode::Lottery,
        generation: 5,
        client_time: 123,
        avoid: vec![3, 300],
        info: b"gold".to_vec(),
        room,
    }
}

fn answer(room: u16, info: &[u8]) -> brain::Answer {
    let further = |member| brain::Further { member, endpoint: address("[2001:db8::7]:80") };
    brain::Answer {
        id: 77,
        service: 80,
        status: brain::Status::Ok,
        rank: 1,
        ttl: 500,
        member: 6,
        endpoint: Some(address("10.0.0.6:80")),
        client_time: 123,
        generation: 5,
        info: info.into(),
        further: (7..11).map(further).collect(),
        room,
    }
}

/// A member with this many services, each with so much to say.
fn member(number: u16, services: u32, info: usize) -> Listed {
    let home = if number.is_multiple_of(2) { "10.0.0.1:7447" } else { "[2001:db8::1]:7447" };
    let server = if number.is_multiple_of(3) { "10.0.0.1:80" } else { "[2001:db8::1]:80" };
    let offer = |service| Offer {
        service,
        capacity: 4,
        endpoint: address(server),
        info: vec![service as u8; info].into(),
    };
    let offers = (0..services).map(offer).collect();
    Listed { member: number, incarnation: 9, address: address(home), offers }
}

#[test]
fn all_messages_come_over_as_they_are() {
    let state = brain::Standing::Draining;
    let share = brain::Share { service: 80, capacity: 1, weight: 2, load: 3, in_flight: 4 };
    let (ids, services) = (vec![1, 2, 3], vec![share, brain::Share { service: 81, ..share }]);
    let members = vec![member(1, 2, 5), member(2, 0, 0), member(3, 1, 1)];
    for message in [
        Message::Commit(brain::Commit { member: 4, incarnation: 5, ids: ids.clone() }),
        Message::Report(brain::Report { member: 1, incarnation: 2, seq: 3, state, digest: 4, services, ids }),
        Message::Fetch(brain::Fetch { id: 6, generation: 7, part: 8 }),
        Message::Table(brain::Table { id: 6, generation: 7, part: 8, parts: 9, members }),
        Message::Request(request(300)),
    ] {
        assert_eq!(over(message.clone()), message);
    }
    for status in [brain::Status::Busy, brain::Status::UnknownService, brain::Status::Draining] {
        let no = Message::Answer(brain::Answer { status, endpoint: None, room: 0, ..answer(0, b"") });
        let Message::Answer(came) = over(no.clone()) else { panic!() };
        assert_eq!(Message::Answer(brain::Answer { further: answer(0, b"").further, ..came }), no);
    }
}

#[test]
fn an_answer_is_never_longer_than_its_request() {
    for (room, further) in [(0, 2), (128, 2), (200, 4), (1200, 4)] {
        let mut out = Vec::new();
        write(Message::Answer(answer(room, b"")), &keys(), &mut out).unwrap();
        assert!(out.len() <= usize::from(room.max(128)), "{} for {room}", out.len());
        let Message::Answer(came) = over(Message::Answer(answer(room, b""))) else { panic!() };
        assert_eq!(came.further, answer(0, b"").further[..further]);
    }
    // Information is not cut.
    let mut out = Vec::new();
    assert!(write(Message::Answer(answer(128, &[1; 60])), &keys(), &mut out).is_err() && out.is_empty());
    assert!(write(Message::Answer(answer(200, &[1; 60])), &keys(), &mut out).is_ok());
}

#[test]
fn the_brain_cuts_tables_as_the_bytes_do() {
    // Of all sizes; one of them is too large to be told of.
    let mut members: Vec<Listed> =
        (2..400).map(|number| member(number, u32::from(number % 7), usize::from(number % 11) * 9)).collect();
    members.push(member(500, 60, 100));
    let daemon = brain::Key::new([1; 16]);
    let config = Config { rate: 0, ..Config::new(1, 1, address("10.0.0.1:7447"), vec![], daemon) };
    let mut daemon = Daemon::new(config, Time(0));
    assert!(members.iter().all(|member| daemon.member_up(member.clone())));
    let from = address("10.0.0.9:7447");
    let mut told = Vec::new();
    for part in 0.. {
        daemon.handle(Time(1), from, Message::Fetch(brain::Fetch { id: 1, generation: 0, part }));
        let Some((To::Address(_), message)) = daemon.poll_transmit() else { break };
        let Message::Table(table) = over(message) else { panic!() };
        assert_eq!(usize::from(table.part), told.len());
        told.push(table.members.into_iter().map(listed).collect::<Vec<_>>());
    }
    let whole: Vec<rfs::Listed> = told.concat();
    assert_eq!(whole.len(), members.len(), "with the daemon itself, without the one that is too large");
    let cut = Table::split(&whole).unwrap();
    assert_eq!(cut.len(), told.len());
    assert!(cut.iter().zip(&told).all(|(cut, told)| cut == told));
    assert_eq!(PART, LONGEST - 16 - 9 - 20);
}
