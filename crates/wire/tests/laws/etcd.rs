//! Responses of etcd. A message that can be decoded stays the same after encoding and decoding, and its size
//! is a small multiple of the received bytes. Two concatenated responses decode to their joined lists, as in
//! protobuf.

use plimsoll_wire::etcd::{
    AuthenticateResponse, EmptyResponse, LeaseGrantResponse, LeaseKeepAliveResponse, Message, RangeResponse,
    TxnResponse, WatchResponse, prefix_end,
};

use super::Verdict;
use super::fields::show;

/// Checks the law; panics if it is broken. Accepts responses to reads of keys, and reports of changes.
pub(crate) fn check(input: &[u8]) -> Verdict {
    let (ranged, told) = (again::<RangeResponse>(input), again::<WatchResponse>(input));
    again::<TxnResponse>(input);
    again::<LeaseGrantResponse>(input);
    again::<LeaseKeepAliveResponse>(input);
    again::<AuthenticateResponse>(input);
    again::<EmptyResponse>(input);
    if let Some(ranged) = &ranged {
        let twice = RangeResponse::decode(&[input, input].concat()[..]).expect("messages can be joined");
        assert_eq!(twice.kvs, [&ranged.kvs[..], &ranged.kvs].concat(), "{}", show(input));
        for kv in &ranged.kvs {
            let (end, key) = (prefix_end(&kv.key), kv.key.as_slice());
            assert!(end == [0] || (key < end.as_slice() && !end.starts_with(key)), "{}", show(key));
        }
    }
    if let Some(told) = &told {
        let twice = WatchResponse::decode(&[input, input].concat()[..]).expect("messages can be joined");
        assert_eq!(twice.events, [&told.events[..], &told.events].concat(), "{}", show(input));
        assert_eq!(
            (twice.created, twice.canceled, twice.compact_revision),
            (told.created, told.canceled, told.compact_revision),
            "{}",
            show(input)
        );
    }
    match (ranged, told) {
        (Some(ranged), _) if !ranged.kvs.is_empty() => Verdict::Accepted,
        (_, Some(told)) if told != WatchResponse::default() => Verdict::Accepted,
        _ => Verdict::Refused,
    }
}

/// Decodes a message, encodes it, and decodes it again.
fn again<M: Message + Default + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> Option<M> {
    let message = M::decode(bytes).ok()?;
    let written = message.encode_to_vec();
    // A negative 32-bit number may arrive in 5 bytes and is encoded in 10.
    assert!(written.len() <= 2 * bytes.len(), "{} bytes for {}", written.len(), show(bytes));
    let read = M::decode(&written[..]).unwrap_or_else(|error| panic!("{error}: {}", show(bytes)));
    assert_eq!(read, message, "{}", show(bytes));
    assert_eq!(read.encode_to_vec(), written, "{}", show(bytes));
    Some(message)
}
