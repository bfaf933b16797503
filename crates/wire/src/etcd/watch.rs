//! A stream of changes (`Watch`).

use prost::Message;

use super::{Header, KeyValue};

/// What is asked on the stream (`WatchRequest`).
#[derive(Clone, PartialEq, Message)]
pub struct WatchRequest {
    /// What.
    #[prost(oneof = "WatchAsk", tags = "1")]
    pub ask: Option<WatchAsk>,
}

/// What is asked.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum WatchAsk {
    /// To be told of changes.
    #[prost(message, tag = "1")]
    Create(WatchCreate),
}

/// To be told of changes (`WatchCreateRequest`).
#[derive(Clone, PartialEq, Message)]
pub struct WatchCreate {
    /// Of the first key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// The first that does not count any more.
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    /// From that revision on, itself included.
    #[prost(int64, tag = "3")]
    pub start_revision: i64,
    /// To be told now and then how far it is, though nothing changes.
    #[prost(bool, tag = "4")]
    pub progress_notify: bool,
}

impl WatchRequest {
    /// Asks for all changes of keys with this prefix from a revision on.
    pub fn of(prefix: &[u8], start_revision: i64) -> Self {
        let create = WatchCreate {
            key: prefix.to_vec(),
            range_end: super::end_of(prefix),
            start_revision,
            progress_notify: true,
        };
        Self { ask: Some(WatchAsk::Create(create)) }
    }
}

/// What is told (`WatchResponse`).
#[derive(Clone, PartialEq, Message)]
pub struct WatchResponse {
    /// Of the answer; without events, all before its revision was told.
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    /// It has begun.
    #[prost(bool, tag = "3")]
    pub created: bool,
    /// It has ended.
    #[prost(bool, tag = "4")]
    pub canceled: bool,
    /// It has ended because what it asked for was compacted away, before this revision; 0 if not.
    #[prost(int64, tag = "5")]
    pub compact_revision: i64,
    /// Why it has ended.
    #[prost(string, tag = "6")]
    pub cancel_reason: String,
    /// In the order in which they happened.
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<Event>,
}

/// A change (`mvccpb.Event`).
#[derive(Clone, PartialEq, Message)]
pub struct Event {
    /// Of what kind.
    #[prost(enumeration = "EventType", tag = "1")]
    pub kind: i32,
    /// The key as it is now; without a value if it is not there any more.
    #[prost(message, optional, tag = "2")]
    pub kv: Option<KeyValue>,
}

/// The kinds of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum EventType {
    /// It was written.
    Put = 0,
    /// It was taken away, or its lease is over.
    Delete = 1,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_protocol() {
        let asked = WatchRequest::of(b"a", 5).encode_to_vec();
        assert_eq!(asked, b"\x0a\x0a\x0a\x01a\x12\x01b\x18\x05\x20\x01");
        let told = b"\x0a\x02\x18\x09\x18\x01\x28\x07\x32\x02no\x5a\x09\x08\x01\x12\x05\x0a\x01k\x18\x08";
        let told = WatchResponse::decode(&told[..]).unwrap();
        assert!(told.created && !told.canceled);
        assert_eq!((told.compact_revision, &*told.cancel_reason), (7, "no"));
        let [event] = &told.events[..] else { panic!("{told:?}") };
        let kv = event.kv.clone().unwrap();
        assert_eq!((event.kind(), &kv.key[..], kv.mod_revision), (EventType::Delete, &b"k"[..], 8));
    }
}
