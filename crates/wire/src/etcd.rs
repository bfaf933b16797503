//! Messages of etcd's API, version 3 (`etcdserverpb/rpc.proto`, `mvccpb/kv.proto`), with those fields that are written or read here.
//! They go in the frames of gRPC: see [`frame`](crate::xds::frame).

mod watch;

pub use watch::{Event, EventType, WatchAsk, WatchCreate, WatchRequest, WatchResponse};

/// Reads and writes messages.
pub use prost::Message;

/// Paths of calls.
pub mod path {
    /// [`Range`](super::Range).
    pub const RANGE: &str = "/etcdserverpb.KV/Range";
    /// [`Txn`](super::Txn).
    pub const TXN: &str = "/etcdserverpb.KV/Txn";
    /// A stream of [`WatchRequest`](super::WatchRequest) both ways.
    pub const WATCH: &str = "/etcdserverpb.Watch/Watch";
    /// [`Grant`](super::Grant).
    pub const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
    /// [`Revoke`](super::Revoke).
    pub const REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
    /// A stream of [`KeepAlive`](super::KeepAlive) both ways.
    pub const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
    /// [`Authenticate`](super::Authenticate).
    pub const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
}

/// What every answer begins with (`ResponseHeader`).
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Header {
    /// Of the cluster.
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    /// How often anything was changed, when it was answered.
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

/// A key with what is known of it (`mvccpb.KeyValue`).
#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    /// Its name.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// The revision of its last change.
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    /// What it holds.
    #[prost(bytes = "vec", tag = "5")]
    pub value: Vec<u8>,
    /// The lease that it ends with; 0 for none.
    #[prost(int64, tag = "6")]
    pub lease: i64,
}

/// Reads keys (`RangeRequest`).
#[derive(Clone, PartialEq, Message)]
pub struct Range {
    /// The first one.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// The first that does not count any more; empty for that key alone.
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    /// At most so many; 0 for all.
    #[prost(int64, tag = "3")]
    pub limit: i64,
    /// As they were at that revision; 0 for now.
    #[prost(int64, tag = "4")]
    pub revision: i64,
}

/// The answer to it (`RangeResponse`).
#[derive(Clone, PartialEq, Message)]
pub struct Ranged {
    /// Of the answer.
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    /// In the order of their names.
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    /// There are more than were asked for.
    #[prost(bool, tag = "3")]
    pub more: bool,
}

/// Writes a key (`PutRequest`).
#[derive(Clone, PartialEq, Message)]
pub struct Put {
    /// Its name.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// What it is to hold.
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
    /// The lease that it ends with; 0 for none.
    #[prost(int64, tag = "3")]
    pub lease: i64,
}

/// Takes keys away (`DeleteRangeRequest`).
#[derive(Clone, PartialEq, Message)]
pub struct Delete {
    /// The first one.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// The first that does not count any more; empty for that key alone.
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
}

/// Something to be done within a transaction (`RequestOp`).
#[derive(Clone, PartialEq, Message)]
pub struct Op {
    /// What.
    #[prost(oneof = "Does", tags = "1, 2, 3")]
    pub does: Option<Does>,
}

/// What is done.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Does {
    /// Keys are read.
    #[prost(message, tag = "1")]
    Range(Range),
    /// A key is written.
    #[prost(message, tag = "2")]
    Put(Put),
    /// Keys are taken away.
    #[prost(message, tag = "3")]
    Delete(Delete),
}

/// What has to be so (`Compare`): here always that a key was last changed at a revision.
#[derive(Clone, PartialEq, Message)]
pub struct Compare {
    /// 0: equal.
    #[prost(int32, tag = "1")]
    pub result: i32,
    /// 2: the revision of its last change.
    #[prost(int32, tag = "2")]
    pub target: i32,
    /// Of which key.
    #[prost(bytes = "vec", tag = "3")]
    pub key: Vec<u8>,
    /// The revision; 0 for a key that is not there.
    #[prost(oneof = "Wanted", tags = "6")]
    pub wanted: Option<Wanted>,
}

/// What is compared with.
#[derive(Clone, Copy, PartialEq, prost::Oneof)]
pub enum Wanted {
    /// A revision of a change. That it is 0 is said, too.
    #[prost(int64, tag = "6")]
    ModRevision(i64),
}

impl Compare {
    /// The last change of `key` was at that revision; 0 if there is no such key.
    pub fn unchanged(key: Vec<u8>, revision: i64) -> Self {
        Self { result: 0, target: 2, key, wanted: Some(Wanted::ModRevision(revision)) }
    }
}

/// All or nothing (`TxnRequest`).
#[derive(Clone, PartialEq, Message)]
pub struct Txn {
    /// What has to be so.
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    /// What is done then.
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<Op>,
    /// And what otherwise.
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<Op>,
}

/// The answer to it (`TxnResponse`).
#[derive(Clone, PartialEq, Message)]
pub struct Done {
    /// Of the answer; its revision is that of the change.
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    /// Was it all so?
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    /// What came of each thing that was done.
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<Outcome>,
}

/// What came of something within a transaction (`ResponseOp`).
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Outcome {
    /// Keys were to be taken away.
    #[prost(message, optional, tag = "3")]
    pub delete: Option<Deleted>,
}

/// What was taken away (`DeleteRangeResponse`).
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Deleted {
    /// So many keys.
    #[prost(int64, tag = "2")]
    pub deleted: i64,
}

/// Asks for a lease (`LeaseGrantRequest`).
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Grant {
    /// Seconds that it lives without being kept alive.
    #[prost(int64, tag = "1")]
    pub ttl: i64,
    /// Its number; 0 to be given one.
    #[prost(int64, tag = "2")]
    pub id: i64,
}

/// The answer to it (`LeaseGrantResponse`).
#[derive(Clone, PartialEq, Message)]
pub struct Granted {
    /// The lease.
    #[prost(int64, tag = "2")]
    pub id: i64,
    /// Seconds that it was given.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
    /// Why there is none, if so.
    #[prost(string, tag = "4")]
    pub error: String,
}

/// Ends a lease, and takes its keys away (`LeaseRevokeRequest`).
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Revoke {
    /// Which one.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// Prolongs a lease (`LeaseKeepAliveRequest`).
#[derive(Clone, Copy, PartialEq, Message)]
pub struct KeepAlive {
    /// Which one.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// The answer to it (`LeaseKeepAliveResponse`).
#[derive(Clone, Copy, PartialEq, Message)]
pub struct KeptAlive {
    /// Which one.
    #[prost(int64, tag = "2")]
    pub id: i64,
    /// Seconds that it lives from now; 0 if it is over.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

/// Says who asks (`AuthenticateRequest`).
#[derive(Clone, PartialEq, Message)]
pub struct Authenticate {
    /// The user.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Their password.
    #[prost(string, tag = "2")]
    pub password: String,
}

/// The answer to it (`AuthenticateResponse`).
#[derive(Clone, PartialEq, Message)]
pub struct Authenticated {
    /// To be shown with every call as the field `token`.
    #[prost(string, tag = "2")]
    pub token: String,
}

/// What answers hold that nobody asks for.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Nothing {}

/// The first key that does not begin with `prefix` any more; a zero, which stands for the end of all keys, if there is none.
pub fn end_of(prefix: &[u8]) -> Vec<u8> {
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
        assert_eq!(end_of(b"/plimsoll/"), b"/plimsoll0");
        assert_eq!(end_of(b"a\xff\xff"), b"b");
        assert_eq!(end_of(b"\xff"), [0]);
        assert_eq!(end_of(b""), [0]);
    }

    /// Numbers of fields as `rpc.proto` of etcd 3.4 and 3.5 has them.
    #[test]
    fn numbers_are_those_of_the_protocol() {
        let put = Put { key: b"k".to_vec(), value: b"v".to_vec(), lease: 7 };
        assert_eq!(put.encode_to_vec(), b"\x0a\x01k\x12\x01v\x18\x07");
        let compare = Compare::unchanged(b"k".to_vec(), 0);
        assert_eq!(compare.encode_to_vec(), b"\x10\x02\x1a\x01k\x30\x00", "0 is said");
        let delete = Op { does: Some(Does::Delete(Delete { key: b"k".to_vec(), range_end: Vec::new() })) };
        let txn = Txn {
            compare: vec![compare],
            success: vec![Op { does: Some(Does::Put(put)) }],
            failure: vec![delete],
        };
        let mut wanted = b"\x0a\x07\x10\x02\x1a\x01k\x30\x00".to_vec();
        wanted.extend(b"\x12\x0a\x12\x08\x0a\x01k\x12\x01v\x18\x07");
        wanted.extend(b"\x1a\x05\x1a\x03\x0a\x01k");
        assert_eq!(txn.encode_to_vec(), wanted);
        let range =
            Range { key: b"a".to_vec(), range_end: b"b".to_vec(), limit: 3, revision: 300 }.encode_to_vec();
        assert_eq!(range, b"\x0a\x01a\x12\x01b\x18\x03\x20\xac\x02");
        let done =
            Done::decode(&b"\x0a\x02\x18\x09\x10\x01\x1a\x04\x1a\x02\x10\x03\x1a\x02\x12\x00"[..]).unwrap();
        assert_eq!((done.header.unwrap().revision, done.succeeded), (9, true));
        let deleted: Vec<_> = done.responses.iter().map(|one| one.delete.map(|gone| gone.deleted)).collect();
        assert_eq!(deleted, [Some(3), None]);
        assert_eq!(Grant { ttl: 5, id: 0 }.encode_to_vec(), b"\x08\x05");
        let kept = KeptAlive::decode(&b"\x0a\x02\x18\x09\x10\x07\x18\x05"[..]).unwrap();
        assert_eq!((kept.id, kept.ttl), (7, 5));
        let ranged = b"\x0a\x04\x08\x01\x18\x09\x12\x0a\x0a\x01k\x18\x08\x2a\x01v\x30\x07\x18\x01";
        let ranged = Ranged::decode(&ranged[..]).unwrap();
        let held = KeyValue { key: b"k".to_vec(), mod_revision: 8, value: b"v".to_vec(), lease: 7 };
        assert_eq!((ranged.header.unwrap().revision, ranged.more), (9, true));
        assert_eq!(ranged.kvs, [held]);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_are_the_end_of_us(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
            let _ = Ranged::decode(&bytes[..]);
            let _ = Done::decode(&bytes[..]);
            let _ = WatchResponse::decode(&bytes[..]);
            let _ = Granted::decode(&bytes[..]);
        }
    }
}
