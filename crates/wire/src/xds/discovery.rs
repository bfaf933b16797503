//! What clients ask for and are told (`envoy/service/discovery/v3/discovery.proto`).

use prost::Message;

use super::{Any, Node};

/// A client asks for resources of a type, or says what it makes of those that it was told.
#[derive(Clone, PartialEq, Message)]
pub struct DiscoveryRequest {
    /// Of the last answer that it accepted; empty before the first.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// Who it is; only the first request of a stream needs to say so.
    #[prost(message, optional, tag = "2")]
    pub node: Option<Node>,
    /// What it asks for: all that it still wants, each time.
    #[prost(string, repeated, tag = "3")]
    pub resource_names: Vec<String>,
    /// Of what type.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// Of the answer that this is said of; empty in the first request of a type.
    #[prost(string, tag = "5")]
    pub response_nonce: String,
    /// Why that answer is refused; accepted without.
    #[prost(message, optional, tag = "6")]
    pub error_detail: Option<Status>,
}

/// What went wrong (`google.rpc.Status`).
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Status {
    /// As gRPC numbers them.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// For people.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// A client is told resources of a type.
#[derive(Clone, PartialEq, Message)]
pub struct DiscoveryResponse {
    /// The client repeats it when it has accepted them.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// The resources.
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<Any>,
    /// Of what type they are.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// Of this answer.
    #[prost(string, tag = "5")]
    pub nonce: String,
}
