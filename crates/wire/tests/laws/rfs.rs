//! Datagrams of the lottery before they are sealed. A valid datagram survives encoding and decoding, is
//! within the limit of its kind, and no response is longer than its request.

use plimsoll_wire::rfs::{
    Answer, Encode as _, Further, Gossip, HEADER, Key, Keys, Kind, LEAST_ROOM, LONGEST, Listed, Message,
    Refused, Request, Status, TRAILER,
};

use super::Verdict;
use super::fields::show;

/// Checks the law; panics if it is broken.
pub(crate) fn check(input: &[u8]) -> Verdict {
    let understood = read(input).is_ok() || gossip(input).is_some();
    // The same input with a correct length: otherwise few mutations of a datagram would reach the decoder.
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

/// Decodes these bytes after sealing them.
fn read(bytes: &[u8]) -> Result<Message, Refused> {
    let mut datagram = bytes.to_vec();
    keys().seal(0, &mut datagram);
    let opened = keys().open(&datagram)?;
    assert_eq!(opened.bytes(), bytes);
    opened.message()
}

/// Decodes these bytes as gossip after sealing them.
fn gossip(bytes: &[u8]) -> Option<Gossip> {
    let mut datagram = bytes.to_vec();
    keys().seal(0, &mut datagram);
    keys().open(&datagram).ok()?.gossip().ok()?
}

/// Checks that gossip is encoded as it was decoded.
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
        // Decoding leaves no room for a response; encoding the same bytes needs the original room.
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

/// Checks responses to a request, with as much information as fits and with more.
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
