//! Datagrams of the lottery before they are sealed. A valid datagram survives encoding and decoding, is
//! within the limit of its kind, and no response is longer than its request.

use plimsoll_wire::rfs::{
    AnswerStatus, DatagramDecodeError, DatagramKey, DatagramKind, EncodeDatagram as _, FallbackMember,
    GossipDatagram, HEADER_LEN, KeyRing, LotteryAnswer, LotteryMessage, LotteryRequest, MAX_DATAGRAM_LEN,
    MIN_ROOM, NodeDescription, TRAILER_LEN,
};

use super::Verdict;
use super::fields::show;

/// Checks the law; panics if it is broken.
pub(crate) fn check(input: &[u8]) -> Verdict {
    let understood = read(input).is_ok() || gossip(input).is_some();
    // The same input with a correct length: otherwise few mutations of a datagram would reach the decoder.
    let mut fitted = input.to_vec();
    if let (Some(length), Ok(len)) = (fitted.get_mut(6..8), u16::try_from(input.len() + TRAILER_LEN)) {
        length.copy_from_slice(&len.to_be_bytes());
        if let Ok(message) = read(&fitted) {
            survives(&message, &fitted);
        }
        gossiped(&fitted);
    }
    if understood { Verdict::Accepted } else { Verdict::Refused }
}

pub(super) fn keys() -> KeyRing {
    KeyRing::new(DatagramKey::new(7, &std::array::from_fn(|at| at as u8)))
}

/// Decodes these bytes after sealing them.
fn read(bytes: &[u8]) -> Result<LotteryMessage, DatagramDecodeError> {
    let mut datagram = bytes.to_vec();
    keys().seal(0, &mut datagram);
    let opened = keys().open(&datagram)?;
    assert_eq!(opened.bytes(), bytes);
    opened.message()
}

/// Decodes these bytes as gossip after sealing them.
fn gossip(bytes: &[u8]) -> Option<GossipDatagram> {
    let mut datagram = bytes.to_vec();
    keys().seal(0, &mut datagram);
    keys().open(&datagram).ok()?.gossip().ok()?
}

/// Checks that gossip is encoded as it was decoded.
fn gossiped(input: &[u8]) {
    let Some(first) = gossip(input) else { return };
    let mut out = Vec::new();
    assert_eq!(first.encode(&keys(), &mut out), Ok(()), "{}", show(input));
    assert!(out.len() <= input.len() + TRAILER_LEN, "{}", show(input));
    let again = keys().open(&out).and_then(|opened| opened.gossip());
    assert_eq!(again, Ok(Some(first)), "{}", show(input));
}

fn survives(message: &LotteryMessage, input: &[u8]) {
    let (keys, mut out) = (keys(), Vec::new());
    let mut first = message.clone();
    match &mut first {
        LotteryMessage::Request(request) => {
            assert_eq!(usize::from(request.max_answer_bytes), input.len() + TRAILER_LEN);
            answered(request, input);
        }
        // Decoding leaves no room for a response; encoding the same bytes needs the original room.
        LotteryMessage::Answer(answer) => answer.max_bytes = MAX_DATAGRAM_LEN as u16,
        LotteryMessage::Table(table) => {
            let members: usize = table.members.iter().map(NodeDescription::encoded_size).sum();
            assert!(members <= MAX_DATAGRAM_LEN - HEADER_LEN - 9 - TRAILER_LEN, "{}", show(input));
        }
        _ => {}
    }
    assert_eq!(first.encode(&keys, &mut out), Ok(()), "{}", show(input));
    assert!(out.len() <= DatagramKind::of_message(message).max_len(), "{}", show(input));
    let mut again = keys.open(&out).and_then(|opened| opened.message()).expect("what was written");
    if let (LotteryMessage::Request(again), LotteryMessage::Request(first)) = (&mut again, message) {
        assert!(
            again.max_answer_bytes >= MIN_ROOM && again.max_answer_bytes + 3 >= first.max_answer_bytes,
            "{}",
            show(input)
        );
        again.max_answer_bytes = first.max_answer_bytes;
    } else {
        assert!(out.len() <= input.len() + TRAILER_LEN, "what is left out takes no space: {}", show(input));
    }
    assert_eq!(&again, message, "{}", show(input));
}

/// Checks responses to a request, with as much information as fits and with more.
fn answered(request: &LotteryRequest, input: &[u8]) {
    let endpoint = ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 80).into();
    let info: Vec<u8> =
        request.info.iter().copied().take(usize::from(request.max_answer_bytes) - 75).collect();
    let mut answer = LotteryAnswer {
        id: request.id,
        service: request.service,
        status: AnswerStatus::Ok,
        rank: request.attempt,
        ttl: 1000,
        member: 1,
        endpoint: Some(endpoint),
        client_time: request.client_time,
        generation: request.generation,
        info: info.into(),
        fallbacks: vec![FallbackMember { member: 2, endpoint }; 4],
        max_bytes: request.max_answer_bytes,
    };
    let mut out = Vec::new();
    assert_eq!(answer.encode(&keys(), &mut out), Ok(()), "{}", show(input));
    assert!(out.len() <= input.len() + TRAILER_LEN, "an answer of {} bytes to {}", out.len(), show(input));
    let Ok(LotteryMessage::Answer(again)) = keys().open(&out).and_then(|opened| opened.message()) else {
        panic!("{}", show(input))
    };
    answer.fallbacks.truncate(again.fallbacks.len());
    answer.max_bytes = 0;
    assert_eq!(again, answer, "{}", show(input));
}
