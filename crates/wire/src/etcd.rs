//! Messages of etcd's API, version 3 (`etcdserverpb/rpc.proto`, `mvccpb/kv.proto`), limited to the fields
//! that Plimsoll reads or writes. gRPC frames carry them: see [`encode_frame`](crate::xds::encode_frame).

mod watch;

pub use watch::{EventType, WatchCreateRequest, WatchEvent, WatchRequest, WatchRequestKind, WatchResponse};

/// The trait that encodes and decodes messages.
pub use prost::Message;

/// Paths of calls.
pub mod path {
    /// [`RangeRequest`](super::RangeRequest).
    pub const RANGE: &str = "/etcdserverpb.KV/Range";
    /// [`TxnRequest`](super::TxnRequest).
    pub const TXN: &str = "/etcdserverpb.KV/Txn";
    /// A stream of [`WatchRequest`](super::WatchRequest) both ways.
    pub const WATCH: &str = "/etcdserverpb.Watch/Watch";
    /// [`LeaseGrantRequest`](super::LeaseGrantRequest).
    pub const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
    /// [`LeaseRevokeRequest`](super::LeaseRevokeRequest).
    pub const REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
    /// A stream of [`LeaseKeepAliveRequest`](super::LeaseKeepAliveRequest) both ways.
    pub const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
    /// [`AuthenticateRequest`](super::AuthenticateRequest).
    pub const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
}

/// The header of every response (`ResponseHeader`).
#[derive(Clone, Copy, PartialEq, Message)]
pub struct ResponseHeader {
    /// The cluster's ID.
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    /// The revision of the store at the time of the response.
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

/// A key with its value and metadata (`mvccpb.KeyValue`).
#[derive(Clone, PartialEq, Message)]
pub struct EtcdKeyValue {
    /// The key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// The revision of its last change.
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    /// The value.
    #[prost(bytes = "vec", tag = "5")]
    pub value: Vec<u8>,
    /// The lease that the key is attached to; 0 for none.
    #[prost(int64, tag = "6")]
    pub lease: i64,
}

/// Reads keys (`RangeRequest`).
#[derive(Clone, PartialEq, Message)]
pub struct RangeRequest {
    /// The first key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// The end of the range, exclusive; empty to read `key` alone.
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    /// The maximum number of keys; 0 for all.
    #[prost(int64, tag = "3")]
    pub limit: i64,
    /// The revision to read at; 0 for the current one.
    #[prost(int64, tag = "4")]
    pub revision: i64,
}

/// The response to [`RangeRequest`] (`RangeResponse`).
#[derive(Clone, PartialEq, Message)]
pub struct RangeResponse {
    /// The response header.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The keys, in lexical order.
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<EtcdKeyValue>,
    /// Whether the range holds more keys than were requested.
    #[prost(bool, tag = "3")]
    pub more: bool,
}

/// Writes a key (`PutRequest`).
#[derive(Clone, PartialEq, Message)]
pub struct PutRequest {
    /// The key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// The new value.
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
    /// The lease to attach the key to; 0 for none.
    #[prost(int64, tag = "3")]
    pub lease: i64,
}

/// Deletes keys (`DeleteRangeRequest`).
#[derive(Clone, PartialEq, Message)]
pub struct DeleteRangeRequest {
    /// The first key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// The end of the range, exclusive; empty to delete `key` alone.
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
}

/// An operation within a transaction (`RequestOp`).
#[derive(Clone, PartialEq, Message)]
pub struct RequestOp {
    /// The operation.
    #[prost(oneof = "OpRequest", tags = "1, 2, 3")]
    pub request: Option<OpRequest>,
}

/// The kinds of operations.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum OpRequest {
    /// Reads keys.
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    /// Writes a key.
    #[prost(message, tag = "2")]
    Put(PutRequest),
    /// Deletes keys.
    #[prost(message, tag = "3")]
    Delete(DeleteRangeRequest),
}

/// A condition of a transaction (`Compare`): here always that a key was last changed at a given revision.
#[derive(Clone, PartialEq, Message)]
pub struct CompareCondition {
    /// The comparison; 0 for equal.
    #[prost(int32, tag = "1")]
    pub result: i32,
    /// The compared property; 2 for the revision of the last change.
    #[prost(int32, tag = "2")]
    pub target: i32,
    /// The key.
    #[prost(bytes = "vec", tag = "3")]
    pub key: Vec<u8>,
    /// The expected revision; 0 for a missing key.
    #[prost(oneof = "CompareValue", tags = "6")]
    pub expected: Option<CompareValue>,
}

/// The expected value of a comparison.
#[derive(Clone, Copy, PartialEq, prost::Oneof)]
pub enum CompareValue {
    /// A revision of a change. It is encoded even if it is 0.
    #[prost(int64, tag = "6")]
    ModRevision(i64),
}

impl CompareCondition {
    /// Creates the condition that `key` was last changed at `revision`; 0 if there is no such key.
    pub fn unchanged(key: Vec<u8>, revision: i64) -> Self {
        Self { result: 0, target: 2, key, expected: Some(CompareValue::ModRevision(revision)) }
    }
}

/// An atomic transaction (`TxnRequest`).
#[derive(Clone, PartialEq, Message)]
pub struct TxnRequest {
    /// The conditions.
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<CompareCondition>,
    /// The operations if all conditions hold.
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
    /// The operations otherwise.
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<RequestOp>,
}

/// The response to [`TxnRequest`] (`TxnResponse`).
#[derive(Clone, PartialEq, Message)]
pub struct TxnResponse {
    /// The response header; its revision is that of the change.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// Whether all conditions held.
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    /// The result of each operation.
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<ResponseOp>,
}

/// The result of an operation within a transaction (`ResponseOp`).
#[derive(Clone, Copy, PartialEq, Message)]
pub struct ResponseOp {
    /// The result of [`DeleteRangeRequest`].
    #[prost(message, optional, tag = "3")]
    pub delete: Option<DeleteRangeResponse>,
}

/// The response to [`DeleteRangeRequest`] (`DeleteRangeResponse`).
#[derive(Clone, Copy, PartialEq, Message)]
pub struct DeleteRangeResponse {
    /// The number of deleted keys.
    #[prost(int64, tag = "2")]
    pub deleted: i64,
}

/// Requests a lease (`LeaseGrantRequest`).
#[derive(Clone, Copy, PartialEq, Message)]
pub struct LeaseGrantRequest {
    /// The time to live without keep-alives, in seconds.
    #[prost(int64, tag = "1")]
    pub ttl: i64,
    /// The lease's ID; 0 to let the server choose one.
    #[prost(int64, tag = "2")]
    pub id: i64,
}

/// The response to [`LeaseGrantRequest`] (`LeaseGrantResponse`).
#[derive(Clone, PartialEq, Message)]
pub struct LeaseGrantResponse {
    /// The lease's ID.
    #[prost(int64, tag = "2")]
    pub id: i64,
    /// The granted time to live, in seconds.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
    /// The error message; empty on success.
    #[prost(string, tag = "4")]
    pub error: String,
}

/// Ends a lease and deletes its keys (`LeaseRevokeRequest`).
#[derive(Clone, Copy, PartialEq, Message)]
pub struct LeaseRevokeRequest {
    /// The lease's ID.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// Renews a lease (`LeaseKeepAliveRequest`).
#[derive(Clone, Copy, PartialEq, Message)]
pub struct LeaseKeepAliveRequest {
    /// The lease's ID.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// The response to [`LeaseKeepAliveRequest`] (`LeaseKeepAliveResponse`).
#[derive(Clone, Copy, PartialEq, Message)]
pub struct LeaseKeepAliveResponse {
    /// The lease's ID.
    #[prost(int64, tag = "2")]
    pub id: i64,
    /// The new time to live, in seconds; 0 if the lease has expired.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

/// Authenticates a user (`AuthenticateRequest`).
#[derive(Clone, PartialEq, Message)]
pub struct AuthenticateRequest {
    /// The user's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The user's password.
    #[prost(string, tag = "2")]
    pub password: String,
}

/// The response to [`AuthenticateRequest`] (`AuthenticateResponse`).
#[derive(Clone, PartialEq, Message)]
pub struct AuthenticateResponse {
    /// The token, which every call carries as the metadata field `token`.
    #[prost(string, tag = "2")]
    pub token: String,
}

/// A response whose fields are not needed.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct EmptyResponse {}

/// Returns the end of the range of all keys with `prefix`. If there is none, returns a zero byte, which
/// stands for the end of all keys.
pub fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix() {
        assert_eq!(prefix_end(b"/plimsoll/"), b"/plimsoll0");
        assert_eq!(prefix_end(b"a\xff\xff"), b"b");
        assert_eq!(prefix_end(b"\xff"), [0]);
        assert_eq!(prefix_end(b""), [0]);
    }

    /// Checks field numbers against `rpc.proto` of etcd 3.4 and 3.5.
    #[test]
    fn numbers_are_those_of_the_protocol() {
        let put = PutRequest { key: b"k".to_vec(), value: b"v".to_vec(), lease: 7 };
        assert_eq!(put.encode_to_vec(), b"\x0a\x01k\x12\x01v\x18\x07");
        let compare = CompareCondition::unchanged(b"k".to_vec(), 0);
        assert_eq!(compare.encode_to_vec(), b"\x10\x02\x1a\x01k\x30\x00", "0 is said");
        let delete = RequestOp {
            request: Some(OpRequest::Delete(DeleteRangeRequest {
                key: b"k".to_vec(),
                range_end: Vec::new(),
            })),
        };
        let txn = TxnRequest {
            compare: vec![compare],
            success: vec![RequestOp { request: Some(OpRequest::Put(put)) }],
            failure: vec![delete],
        };
        let mut expected = b"\x0a\x07\x10\x02\x1a\x01k\x30\x00".to_vec();
        expected.extend(b"\x12\x0a\x12\x08\x0a\x01k\x12\x01v\x18\x07");
        expected.extend(b"\x1a\x05\x1a\x03\x0a\x01k");
        assert_eq!(txn.encode_to_vec(), expected);
        let range = RangeRequest { key: b"a".to_vec(), range_end: b"b".to_vec(), limit: 3, revision: 300 }
            .encode_to_vec();
        assert_eq!(range, b"\x0a\x01a\x12\x01b\x18\x03\x20\xac\x02");
        let response =
            TxnResponse::decode(&b"\x0a\x02\x18\x09\x10\x01\x1a\x04\x1a\x02\x10\x03\x1a\x02\x12\x00"[..])
                .unwrap();
        assert_eq!((response.header.unwrap().revision, response.succeeded), (9, true));
        let deleted: Vec<_> = response
            .responses
            .iter()
            .map(|operation| operation.delete.map(|deletion| deletion.deleted))
            .collect();
        assert_eq!(deleted, [Some(3), None]);
        assert_eq!(LeaseGrantRequest { ttl: 5, id: 0 }.encode_to_vec(), b"\x08\x05");
        let keep_alive = LeaseKeepAliveResponse::decode(&b"\x0a\x02\x18\x09\x10\x07\x18\x05"[..]).unwrap();
        assert_eq!((keep_alive.id, keep_alive.ttl), (7, 5));
        let ranged = b"\x0a\x04\x08\x01\x18\x09\x12\x0a\x0a\x01k\x18\x08\x2a\x01v\x30\x07\x18\x01";
        let ranged = RangeResponse::decode(&ranged[..]).unwrap();
        let key_value = EtcdKeyValue { key: b"k".to_vec(), mod_revision: 8, value: b"v".to_vec(), lease: 7 };
        assert_eq!((ranged.header.unwrap().revision, ranged.more), (9, true));
        assert_eq!(ranged.kvs, [key_value]);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_are_the_end_of_us(
            bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300),
        ) {
            let _ = RangeResponse::decode(&bytes[..]);
            let _ = TxnResponse::decode(&bytes[..]);
            let _ = WatchResponse::decode(&bytes[..]);
            let _ = LeaseGrantResponse::decode(&bytes[..]);
        }
    }
}
