//! Discovery requests and responses (`envoy/service/discovery/v3/discovery.proto`).

use prost::Message;

use super::{Node, ProtobufAny};

/// A client's subscription to resources of a type. It also accepts (ACK) or rejects (NACK) the previous
/// response.
#[derive(Clone, PartialEq, Message)]
pub struct DiscoveryRequest {
    /// The version of the last accepted response; empty before the first.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// The client's identity; only the first request of a stream must contain it.
    #[prost(message, optional, tag = "2")]
    pub node: Option<Node>,
    /// The names of all resources that the client currently wants.
    #[prost(string, repeated, tag = "3")]
    pub resource_names: Vec<String>,
    /// The type of the resources.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// The nonce of the response that this request acknowledges; empty in the first request for a type.
    #[prost(string, tag = "5")]
    pub response_nonce: String,
    /// The reason why the client rejects the response; `None` if it accepts it.
    #[prost(message, optional, tag = "6")]
    pub error_detail: Option<RpcStatus>,
}

/// A status (`google.rpc.Status`).
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RpcStatus {
    /// The gRPC status code.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// The message for people.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// Resources of a type for a client.
#[derive(Clone, PartialEq, Message)]
pub struct DiscoveryResponse {
    /// The version, which the client repeats once it has accepted the resources.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// The resources.
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<ProtobufAny>,
    /// The type of the resources.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// The response's nonce.
    #[prost(string, tag = "5")]
    pub nonce: String,
}
