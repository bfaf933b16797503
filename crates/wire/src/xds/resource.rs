//! The resources that a gRPC client needs to find a service (gRFC A27, A28): its listener, with the routes
//! and the router filter in it, its cluster and its endpoints.

use prost::Message;

use super::{Locality, ProtobufAny, UInt32Value};

/// The name of the message [`Listener`].
pub const LISTENER: &str = "envoy.config.listener.v3.Listener";
/// The name of the message [`RouteConfiguration`].
pub const ROUTES: &str = "envoy.config.route.v3.RouteConfiguration";
/// The name of the message [`Cluster`].
pub const CLUSTER: &str = "envoy.config.cluster.v3.Cluster";
/// The name of the message [`ClusterLoadAssignment`].
pub const ENDPOINTS: &str = "envoy.config.endpoint.v3.ClusterLoadAssignment";
/// The name of the message [`HttpConnectionManager`].
pub const CONNECTION_MANAGER: &str =
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
/// The name of the message [`Empty`] as the router, which must be the last filter (gRFC A39).
pub const ROUTER: &str = "envoy.extensions.filters.http.router.v3.Router";

/// A message without fields, whose presence alone matters.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Empty {}

/// The resource for the name in a client's target.
#[derive(Clone, PartialEq, Message)]
pub struct Listener {
    /// The name in the target.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The configuration for clients that are not proxies.
    #[prost(message, optional, tag = "19")]
    pub api_listener: Option<ApiListener>,
}

/// A listener without a socket.
#[derive(Clone, PartialEq, Message)]
pub struct ApiListener {
    /// A [`HttpConnectionManager`].
    #[prost(message, optional, tag = "1")]
    pub api_listener: Option<ProtobufAny>,
}

/// The processing of requests.
#[derive(Clone, PartialEq, Message)]
pub struct HttpConnectionManager {
    /// The routes.
    #[prost(message, optional, tag = "4")]
    pub route_config: Option<RouteConfiguration>,
    /// The filters, in their order; the router is the last.
    #[prost(message, repeated, tag = "5")]
    pub http_filters: Vec<HttpFilter>,
}

/// A filter.
#[derive(Clone, PartialEq, Message)]
pub struct HttpFilter {
    /// The filter's name, any text.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The filter's configuration, whose type determines the filter.
    #[prost(message, optional, tag = "4")]
    pub typed_config: Option<ProtobufAny>,
}

/// The routes of requests.
#[derive(Clone, PartialEq, Message)]
pub struct RouteConfiguration {
    /// The configuration's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The routes, by domain.
    #[prost(message, repeated, tag = "2")]
    pub virtual_hosts: Vec<VirtualHost>,
}

/// The routes for some domains.
#[derive(Clone, PartialEq, Message)]
pub struct VirtualHost {
    /// The virtual host's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The domains; `*` for all.
    #[prost(string, repeated, tag = "2")]
    pub domains: Vec<String>,
    /// The routes; the first match applies.
    #[prost(message, repeated, tag = "3")]
    pub routes: Vec<Route>,
}

/// A route.
#[derive(Clone, PartialEq, Message)]
pub struct Route {
    /// The requests that it matches.
    #[prost(message, optional, tag = "1")]
    pub r#match: Option<RouteMatch>,
    /// The destination.
    #[prost(message, optional, tag = "2")]
    pub route: Option<RouteAction>,
}

/// A condition on requests.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RouteMatch {
    /// The prefix of the path. It is encoded even if it is empty, which matches all.
    #[prost(string, optional, tag = "1")]
    pub prefix: Option<String>,
}

/// A destination.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RouteAction {
    /// The cluster's name.
    #[prost(string, tag = "1")]
    pub cluster: String,
}

/// The discovery and selection of endpoints, and the destination of load reports.
#[derive(Clone, PartialEq, Message)]
pub struct Cluster {
    /// The cluster's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The kind of endpoint discovery: [`EDS`].
    #[prost(int32, tag = "2")]
    pub r#type: i32,
    /// The source of the endpoints.
    #[prost(message, optional, tag = "3")]
    pub eds_cluster_config: Option<EdsClusterConfig>,
    /// The load balancing policy; 0 is round robin within a locality, with weighted localities.
    #[prost(int32, tag = "6")]
    pub lb_policy: i32,
    /// The maximum number of a client's requests in flight; a gRPC client defaults to 1024 (gRFC A32).
    #[prost(message, optional, tag = "10")]
    pub circuit_breakers: Option<CircuitBreakers>,
    /// The destination of load reports; `None` disables them.
    #[prost(message, optional, tag = "42")]
    pub lrs_server: Option<ConfigSource>,
    /// The names of the servers' own metrics to include in load reports (gRFC A85).
    #[prost(string, repeated, tag = "57")]
    pub lrs_report_endpoint_metrics: Vec<String>,
}

/// The value of `Cluster::type` for endpoints that are resources of their own.
pub const EDS: i32 = 3;

/// The source of a cluster's endpoints.
#[derive(Clone, PartialEq, Message)]
pub struct EdsClusterConfig {
    /// The server to ask.
    #[prost(message, optional, tag = "1")]
    pub eds_config: Option<ConfigSource>,
    /// The name of the endpoint resource.
    #[prost(string, tag = "2")]
    pub service_name: String,
}

/// A source of configuration; exactly one of the first two fields is set.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ConfigSource {
    /// The aggregated discovery stream.
    #[prost(message, optional, tag = "3")]
    pub ads: Option<Empty>,
    /// The server that sent this message.
    #[prost(message, optional, tag = "5")]
    pub this: Option<Empty>,
    /// The version of xDS; 2 for version 3.
    #[prost(int32, tag = "6")]
    pub resource_api_version: i32,
}

/// Limits of a cluster.
#[derive(Clone, PartialEq, Message)]
pub struct CircuitBreakers {
    /// The limits, by priority.
    #[prost(message, repeated, tag = "1")]
    pub thresholds: Vec<Thresholds>,
}

/// The limits for the default priority.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Thresholds {
    /// The maximum number of a client's requests in flight.
    #[prost(message, optional, tag = "4")]
    pub max_requests: Option<UInt32Value>,
}

/// The endpoints of a cluster.
#[derive(Clone, PartialEq, Message)]
pub struct ClusterLoadAssignment {
    /// The cluster's name.
    #[prost(string, tag = "1")]
    pub cluster_name: String,
    /// The endpoints, by locality.
    #[prost(message, repeated, tag = "2")]
    pub endpoints: Vec<LocalityEndpoints>,
}

/// The endpoints of one locality (`LocalityLbEndpoints`).
#[derive(Clone, PartialEq, Message)]
pub struct LocalityEndpoints {
    /// The locality.
    #[prost(message, optional, tag = "1")]
    pub locality: Option<Locality>,
    /// The endpoints.
    #[prost(message, repeated, tag = "2")]
    pub lb_endpoints: Vec<LbEndpoint>,
    /// The locality's relative weight; a locality without one receives no requests. The sum must fit into 32
    /// bits.
    #[prost(message, optional, tag = "3")]
    pub load_balancing_weight: Option<UInt32Value>,
}

/// An endpoint and its health.
#[derive(Clone, PartialEq, Message)]
pub struct LbEndpoint {
    /// The endpoint.
    #[prost(message, optional, tag = "1")]
    pub endpoint: Option<Endpoint>,
    /// [`HEALTHY`], or 0 if the health is unknown.
    #[prost(int32, tag = "2")]
    pub health_status: i32,
}

/// The value of [`LbEndpoint::health_status`] for a usable endpoint.
pub const HEALTHY: i32 = 1;

/// An endpoint.
#[derive(Clone, PartialEq, Message)]
pub struct Endpoint {
    /// The endpoint's address.
    #[prost(message, optional, tag = "1")]
    pub address: Option<Address>,
}

/// An address.
#[derive(Clone, PartialEq, Message)]
pub struct Address {
    /// The socket's address.
    #[prost(message, optional, tag = "1")]
    pub socket_address: Option<SocketAddress>,
}

/// The address of a TCP socket.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SocketAddress {
    /// The IP address.
    #[prost(string, tag = "2")]
    pub address: String,
    /// The port, 1 to 65535.
    #[prost(uint32, tag = "3")]
    pub port_value: u32,
}
