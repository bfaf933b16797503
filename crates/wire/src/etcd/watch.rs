//! A stream of changes (`Watch`).

use prost::Message;

use super::{EtcdKeyValue, ResponseHeader};

/// A request on the stream (`WatchRequest`).
#[derive(Clone, PartialEq, Message)]
pub struct WatchRequest {
    /// The kind of request.
    #[prost(oneof = "WatchRequestKind", tags = "1")]
    pub ask: Option<WatchRequestKind>,
}

/// The kinds of requests.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum WatchRequestKind {
    /// Creates a watch.
    #[prost(message, tag = "1")]
    Create(WatchCreateRequest),
}

/// Creates a watch (`WatchCreateRequest`).
#[derive(Clone, PartialEq, Message)]
pub struct WatchCreateRequest {
    /// The first key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// The end of the range, exclusive.
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    /// The first revision to report.
    #[prost(int64, tag = "3")]
    pub start_revision: i64,
    /// Whether the server reports its revision now and then while nothing changes.
    #[prost(bool, tag = "4")]
    pub progress_notify: bool,
}

impl WatchRequest {
    /// Creates a request for all changes of keys with this prefix, from a revision on.
    pub fn for_prefix(prefix: &[u8], start_revision: i64) -> Self {
        let create = WatchCreateRequest {
            key: prefix.to_vec(),
            range_end: super::prefix_end(prefix),
            start_revision,
            progress_notify: true,
        };
        Self { ask: Some(WatchRequestKind::Create(create)) }
    }
}

/// A response on the stream (`WatchResponse`).
#[derive(Clone, PartialEq, Message)]
pub struct WatchResponse {
    /// The response header. Without events it reports that all changes before its revision were delivered.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// Whether the watch has been created.
    #[prost(bool, tag = "3")]
    pub created: bool,
    /// Whether the watch has been cancelled.
    #[prost(bool, tag = "4")]
    pub canceled: bool,
    /// The oldest available revision, if the watch was cancelled because its start revision was compacted;
    /// else 0.
    #[prost(int64, tag = "5")]
    pub compact_revision: i64,
    /// The reason for the cancellation.
    #[prost(string, tag = "6")]
    pub cancel_reason: String,
    /// The changes, in their order.
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<WatchEvent>,
}

/// A change (`mvccpb.Event`).
#[derive(Clone, PartialEq, Message)]
pub struct WatchEvent {
    /// The kind, an [`EventType`].
    #[prost(enumeration = "EventType", tag = "1")]
    pub kind: i32,
    /// The key after the change; without a value if it was deleted.
    #[prost(message, optional, tag = "2")]
    pub kv: Option<EtcdKeyValue>,
}

/// The kinds of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum EventType {
    /// The key was written.
    Put = 0,
    /// The key was deleted, or its lease has expired.
    Delete = 1,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_protocol() {
        let request = WatchRequest::for_prefix(b"a", 5).encode_to_vec();
        assert_eq!(request, b"\x0a\x0a\x0a\x01a\x12\x01b\x18\x05\x20\x01");
        let bytes = b"\x0a\x02\x18\x09\x18\x01\x28\x07\x32\x02no\x5a\x09\x08\x01\x12\x05\x0a\x01k\x18\x08";
        let response = WatchResponse::decode(&bytes[..]).unwrap();
        assert!(response.created && !response.canceled);
        assert_eq!((response.compact_revision, &*response.cancel_reason), (7, "no"));
        let [event] = &response.events[..] else { panic!("{response:?}") };
        let kv = event.kv.clone().unwrap();
        assert_eq!((event.kind(), &kv.key[..], kv.mod_revision), (EventType::Delete, &b"k"[..], 8));
    }
}
