//! xDS, version 3, as gRPC clients implement it: discovery from a control plane to its clients, load reports
//! from clients to it. The messages are Envoy's (`envoy/service/discovery/v3`, `envoy/config/*/v3`,
//! `envoy/service/load_stats/v3`). Each is limited to the fields that gRPC reads or writes (gRFC A27 and its
//! successors), with Envoy's field numbers. Unknown fields are ignored.
//!
//! [`encode_frame`] and [`FrameDecoder`] implement gRPC's message framing.

mod discovery;
mod frames;
mod load;
mod resource;

pub use discovery::*;
pub use frames::{FrameDecoder, FrameError, encode_frame};
pub use load::*;
pub use resource::*;

/// The trait that encodes and decodes messages.
pub use prost::Message;

/// The prefix of type URLs.
pub const PREFIX: &str = "type.googleapis.com/";

/// The path of the aggregated discovery method (ADS, state of the world).
pub const DISCOVERY: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
/// The path of the load reporting method (LRS).
pub const LOAD_REPORTS: &str = "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats";

/// A message of any type.
#[derive(Clone, PartialEq, Message)]
pub struct ProtobufAny {
    /// [`PREFIX`] and the message's name.
    #[prost(string, tag = "1")]
    pub type_url: String,
    /// The encoded message.
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

impl ProtobufAny {
    /// Wraps a message; `name` is its full name with the package.
    pub fn pack(name: &str, message: &impl Message) -> Self {
        Self { type_url: format!("{PREFIX}{name}"), value: message.encode_to_vec() }
    }
}

/// A number that may be missing (`google.protobuf.UInt32Value`).
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct UInt32Value {
    /// The number.
    #[prost(uint32, tag = "1")]
    pub value: u32,
}

/// A span of time (`google.protobuf.Duration`).
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ProtobufDuration {
    /// Whole seconds.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// The remaining nanoseconds.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

impl ProtobufDuration {
    /// Returns the time in seconds; `None` if it is negative.
    pub fn to_seconds(&self) -> Option<f64> {
        (self.seconds >= 0 && self.nanos >= 0).then(|| self.seconds as f64 + f64::from(self.nanos) / 1e9)
    }
}

/// A location (`envoy.config.core.v3.Locality`).
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Locality {
    /// The region.
    #[prost(string, tag = "1")]
    pub region: String,
    /// The zone within the region.
    #[prost(string, tag = "2")]
    pub zone: String,
    /// The sub-zone within the zone.
    #[prost(string, tag = "3")]
    pub sub_zone: String,
}

/// The identity of a client (`envoy.config.core.v3.Node`).
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Node {
    /// The ID from the client's bootstrap file.
    #[prost(string, tag = "1")]
    pub id: String,
    /// The client's implementation, such as `gRPC C-core`.
    #[prost(string, tag = "6")]
    pub user_agent_name: String,
    /// The names of the features that the client supports.
    #[prost(string, repeated, tag = "10")]
    pub client_features: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_passed_over() {
        // Field 3 (metadata) and field 12 besides the ID.
        let bytes = [0x0a, 2, b'm', b'e', 0x1a, 1, 0, 0x62, 1, b'x'];
        assert_eq!(Node::decode(&bytes[..]).unwrap().id, "me");
        assert!(Node::decode(&bytes[..3]).is_err());
    }

    #[test]
    fn numbers_are_those_of_the_protocol() {
        let request = DiscoveryRequest {
            version_info: "1".into(),
            node: Some(Node { id: "n".into(), ..Node::default() }),
            resource_names: vec!["web".into()],
            type_url: "t".into(),
            response_nonce: "2".into(),
            error_detail: Some(RpcStatus { code: 3, message: "no".into() }),
        };
        let bytes = b"\x0a\x011\x12\x03\x0a\x01n\x1a\x03web\x22\x01t\x2a\x012\x32\x06\x08\x03\x12\x02no";
        assert_eq!(request.encode_to_vec(), bytes);
        assert_eq!(DiscoveryRequest::decode(&bytes[..]).unwrap(), request);
        let any = ProtobufAny::pack("a.B", &UInt32Value { value: 300 });
        assert_eq!(any.encode_to_vec(), b"\x0a\x17type.googleapis.com/a.B\x12\x03\x08\xac\x02");
    }

    #[test]
    fn spans_are_not_negative() {
        assert_eq!(ProtobufDuration { seconds: 1, nanos: 500_000_000 }.to_seconds(), Some(1.5));
        assert_eq!(ProtobufDuration { seconds: -1, nanos: 0 }.to_seconds(), None);
    }
}
