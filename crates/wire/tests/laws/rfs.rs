//! Datagrams of the lottery, before they are sealed: what is understood is written so that it is understood again, no
//! longer than its kind may be, and no answer is longer than what it answers.

use plimsoll_wire::rfs::{
    Answer, Encode as _, Further, Gossip, HEADER, Key, Keys, Kind, LEAST_ROOM, LONGEST, Listed, Message,
    Refused, Request, Status, TRAILER,
};

use super::Verdict;
use super::fields::show;

/// Panics if the law does not hold.
pub(crate) fn check(input: &[u8]) -> Verdict {
    let understood = read(input).is_ok() || gossip(input).is_some();
    // What it would say if only its length were right: else hardly a change to a datagram would get further than that.
    let mut fitted = input.to_vec();
    if let (Some(length), Ok(len)) = (fitted.get_mut(6..8), u16::try_from(input.len() + TRAILER)) {
        length.copy_from_slice(&len.to_be_bytes());
        if let Ok(message) = read(&fitted) {
            survives(&message, &fitted);
        }
        gossiped(&fitted);
    }
    if understood { Verdict::Accepted } else { Verdict::Refused }
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

/// What these bytes say to daemons of who is there, when they are sealed.
fn gossip(bytes: &[u8]) -> Option<Gossip> {
    let mut datagram = bytes.to_vec();
    keys().seal(0, &mut datagram);
    keys().open(&datagram).ok()?.gossip().ok()?
}

/// What daemons say of who is there is written as it was read.
fn gossiped(input: &[u8]) {
    let Some(first) = gossip(input) else { return };
    let mut out = Vec::new();
    assert_eq!(first.encode(&keys(), &mut out), Ok(()), "{}", show(input));
    assert!(out.len() <= input.len() + TRAILER, "{}", show(input));
    let again = keys().open(&out).and_then(|opened| opened.gossip());
    assert_eq!(again, Ok(Some(first)), "{}", show(input));
}

fn survives(message: &Message, input: &[u8]) {
    let (keys, mut out) = (keys(), Vec::new());
    let mut first = message.clone();
    match &mut first {
        Message::Request(request) => {
            assert_eq!(usize::from(request.room), input.len() + TRAILER);
            answered(request, input);
        }
        // It was read as one that is answered no more; to be written as it came it needs the room that it had.
        Message::Answer(answer) => answer.room = LONGEST as u16,
        Message::Table(table) => {
            let members: usize = table.members.iter().map(Listed::bytes).sum();
            assert!(members <= LONGEST - HEADER - 9 - TRAILER, "{}", show(input));
        }
        _ => {}
    }
    assert_eq!(first.encode(&keys, &mut out), Ok(()), "{}", show(input));
    assert!(out.len() <= Kind::of(message).longest(), "{}", show(input));
    let mut again = keys.open(&out).and_then(|opened| opened.message()).expect("what was written");
    if let (Message::Request(again), Message::Request(first)) = (&mut again, message) {
        assert!(again.room >= LEAST_ROOM && again.room + 3 >= first.room, "{}", show(input));
        again.room = first.room;
    } else {
        assert!(out.len() <= input.len() + TRAILER, "what is left out takes no space: {}", show(input));
    }
    assert_eq!(&again, message, "{}", show(input));
}

/// An answer to it, with as much as fits and with more.
fn answered(request: &Request, input: &[u8]) {
    let endpoint = ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 80).into();
    let info: Vec<u8> = request.info.iter().copied().take(usize::from(request.room) - 75).collect();
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
        info: info.into(),
        further: vec![Further { member: 2, endpoint }; 4],
        room: request.room,
    };
    let mut out = Vec::new();
    assert_eq!(answer.encode(&keys(), &mut out), Ok(()), "{}", show(input));
    assert!(out.len() <= input.len() + TRAILER, "an answer of {} bytes to {}", out.len(), show(input));
    let Ok(Message::Answer(again)) = keys().open(&out).and_then(|opened| opened.message()) else {
        panic!("{}", show(input))
    };
    answer.further.truncate(again.further.len());
    answer.room = 0;
    assert_eq!(again, answer, "{}", show(input));
}
