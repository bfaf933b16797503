//! Datagrams of the lottery, before they are sealed: what is understood is written so that it is understood again, no
//! longer than its kind may be, and no answer is longer than what it answers.

use plimsoll_wire::rfs::{
    Answer, Further, Key, Keys, LONGEST, Message, Mode, Refused, Request, Room, Status, TRAILER, Table,
};

use super::Verdict;
use super::fields::show;

/// Panics if the law does not hold.
pub(crate) fn check(input: &[u8]) -> Verdict {
    let said = read(input);
    // What it would say if only its length were right: else hardly a change to a datagram would get further than that.
    let mut fitted = input.to_vec();
    if let (Some(length), Ok(len)) = (fitted.get_mut(6..8), u16::try_from(input.len() + TRAILER)) {
        length.copy_from_slice(&len.to_be_bytes());
        if let Ok(message) = read(&fitted) {
            survives(&message, &fitted);
        }
    }
    if said.is_ok() { Verdict::Accepted } else { Verdict::Refused }
}

pub(super) fn keys() -> Keys {
    Keys::new(Key::new(7, &std::array::from_fn(|at| at as u8)))
}

/// What these bytes say when they are sealed.
fn read(bytes: &[u8]) -> Result<Message, Refused> {
    let mut datagram = bytes.to_vec();
    keys().seal(0, &mut datagram);
    let opened = keys().open(&datagram)?;
    assert_eq!(opened.bytes(), bytes);
    opened.message()
}

fn survives(message: &Message, input: &[u8]) {
    let (keys, mut out) = (keys(), Vec::new());
    let written = match message {
        Message::Request(request, room) => {
            answered(request, *room, input);
            request.encode(room.bytes(), &keys, &mut out)
        }
        Message::Answer(answer) => answer.encode(most(), &keys, &mut out),
        Message::Commit(commit) => commit.encode(&keys, &mut out),
        Message::Report(report) => report.encode(&keys, &mut out),
        Message::Fetch(fetch, room) => {
            assert_eq!(room.bytes(), LONGEST);
            fetch.encode(&keys, &mut out)
        }
        Message::Table(table) => {
            assert_eq!(Table::fit(&table.members), table.members.len(), "{}", show(input));
            assert_eq!(Table::split(&table.members).map(|parts| parts.len()), Ok(1), "{}", show(input));
            table.encode(most(), &keys, &mut out)
        }
    };
    assert_eq!(written, Ok(()), "{}", show(input));
    assert!(out.len() <= message.kind().longest(), "{}", show(input));
    match (keys.open(&out).and_then(|opened| opened.message()), message) {
        (Ok(Message::Request(again, room)), Message::Request(first, wanted)) => {
            assert_eq!(&again, first, "{}", show(input));
            assert!(room >= Room::LEAST && room.bytes() + 3 >= wanted.bytes(), "{}", show(input));
        }
        (again, first) => {
            assert_eq!(again.as_ref(), Ok(first), "{}", show(input));
            assert!(out.len() <= input.len() + TRAILER, "what is left out takes no space: {}", show(input));
        }
    }
}

/// The room of the longest request.
fn most() -> Room {
    let (avoid, info) = (Vec::new(), Vec::new());
    let mode = Mode::Lottery;
    let request = Request { id: 0, service: 0, attempt: 0, mode, generation: 0, client_time: 0, avoid, info };
    let mut out = Vec::new();
    request.encode(LONGEST, &keys(), &mut out).expect("a plain request");
    match keys().open(&out).and_then(|opened| opened.message()) {
        Ok(Message::Request(_, room)) => room,
        other => panic!("{other:?}"),
    }
}

/// An answer to it, with as much as fits and with more.
fn answered(request: &Request, room: Room, input: &[u8]) {
    let endpoint = ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 80).into();
    let mut answer = Answer {
        id: request.id,
        service: request.service,
        status: Status::Ok,
        rank: request.attempt,
        ttl: 1000,
        member: 1,
        endpoint: Some(endpoint),
        client_time: request.client_time,
        generation: request.generation,
        info: request.info.iter().copied().take(room.bytes() - 75).collect(),
        further: vec![Further { member: 2, endpoint }; Answer::MOST_FURTHER],
    };
    let fit = answer.further_that_fit(room);
    let mut out = Vec::new();
    for further in fit..=Answer::MOST_FURTHER {
        let mut answer = answer.clone();
        answer.further.truncate(further);
        assert_eq!(answer.encode(room, &keys(), &mut out).is_ok(), further == fit, "{}", show(input));
    }
    assert!(out.len() <= input.len() + TRAILER, "an answer of {} bytes to {}", out.len(), show(input));
    answer.further.truncate(fit);
    let read = keys().open(&out).and_then(|opened| opened.message());
    assert_eq!(read, Ok(Message::Answer(answer)), "{}", show(input));
}
