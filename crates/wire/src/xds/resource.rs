//! The resources that a client of gRPC needs to find a service (gRFC A27, A28): its listener, with the routes and the router in it,
//! its cluster, its endpoints.

use prost::Message;

use super::{Any, Locality, UInt32};

/// Name of the message [`Listener`].
pub const LISTENER: &str = "envoy.config.listener.v3.Listener";
/// Name of the message [`RouteConfiguration`].
pub const ROUTES: &str = "envoy.config.route.v3.RouteConfiguration";
/// Name of the message [`Cluster`].
pub const CLUSTER: &str = "envoy.config.cluster.v3.Cluster";
/// Name of the message [`ClusterLoadAssignment`].
pub const ENDPOINTS: &str = "envoy.config.endpoint.v3.ClusterLoadAssignment";
/// Name of the message [`HttpConnectionManager`].
pub const CONNECTION_MANAGER: &str =
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
/// Name of the message [`Empty`] where it is the router, which must be the last filter (gRFC A39).
pub const ROUTER: &str = "envoy.extensions.filters.http.router.v3.Router";

/// A message of which nothing is said but that it is there.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Empty {}

/// What a client asks for by the name in its target.
#[derive(Clone, PartialEq, Message)]
pub struct Listener {
    /// That name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// For clients that are no proxies.
    #[prost(message, optional, tag = "19")]
    pub api_listener: Option<ApiListener>,
}

/// A listener without a socket.
#[derive(Clone, PartialEq, Message)]
pub struct ApiListener {
    /// A [`HttpConnectionManager`].
    #[prost(message, optional, tag = "1")]
    pub api_listener: Option<Any>,
}

/// What becomes of a request.
#[derive(Clone, PartialEq, Message)]
pub struct HttpConnectionManager {
    /// Where requests go.
    #[prost(message, optional, tag = "4")]
    pub route_config: Option<RouteConfiguration>,
    /// What they go through; the router is the last.
    #[prost(message, repeated, tag = "5")]
    pub http_filters: Vec<HttpFilter>,
}

/// What a request goes through.
#[derive(Clone, PartialEq, Message)]
pub struct HttpFilter {
    /// Any.
    #[prost(string, tag = "1")]
    pub name: String,
    /// What it is, by its type.
    #[prost(message, optional, tag = "4")]
    pub typed_config: Option<Any>,
}

/// Where requests go.
#[derive(Clone, PartialEq, Message)]
pub struct RouteConfiguration {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// By domain.
    #[prost(message, repeated, tag = "2")]
    pub virtual_hosts: Vec<VirtualHost>,
}

/// Where requests for some domains go.
#[derive(Clone, PartialEq, Message)]
pub struct VirtualHost {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// `*` for all.
    #[prost(string, repeated, tag = "2")]
    pub domains: Vec<String>,
    /// The first that fits counts.
    #[prost(message, repeated, tag = "3")]
    pub routes: Vec<Route>,
}

/// Where some requests go.
#[derive(Clone, PartialEq, Message)]
pub struct Route {
    /// Which ones.
    #[prost(message, optional, tag = "1")]
    pub r#match: Option<RouteMatch>,
    /// Where.
    #[prost(message, optional, tag = "2")]
    pub route: Option<RouteAction>,
}

/// Which requests.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RouteMatch {
    /// Those whose path begins so. It is said even where it is empty, which fits all.
    #[prost(string, optional, tag = "1")]
    pub prefix: Option<String>,
}

/// Where requests go.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RouteAction {
    /// To this cluster.
    #[prost(string, tag = "1")]
    pub cluster: String,
}

/// How endpoints are found and chosen, and where load is reported.
#[derive(Clone, PartialEq, Message)]
pub struct Cluster {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// How they are found: [`EDS`].
    #[prost(int32, tag = "2")]
    pub r#type: i32,
    /// Where they are asked for.
    #[prost(message, optional, tag = "3")]
    pub eds_cluster_config: Option<EdsClusterConfig>,
    /// How they are chosen; 0 is round robin within a locality, and localities by their weights.
    #[prost(int32, tag = "6")]
    pub lb_policy: i32,
    /// How many requests a client may have at once; without it a client of gRPC takes 1024 (gRFC A32).
    #[prost(message, optional, tag = "10")]
    pub circuit_breakers: Option<CircuitBreakers>,
    /// Where load is reported; nowhere without.
    #[prost(message, optional, tag = "42")]
    pub lrs_server: Option<ConfigSource>,
    /// What of a server's own reports is passed on with it (gRFC A85).
    #[prost(string, repeated, tag = "57")]
    pub lrs_report_endpoint_metrics: Vec<String>,
}

/// `Cluster::type`: endpoints are a resource of their own.
pub const EDS: i32 = 3;

/// Where endpoints are asked for.
#[derive(Clone, PartialEq, Message)]
pub struct EdsClusterConfig {
    /// Whom.
    #[prost(message, optional, tag = "1")]
    pub eds_config: Option<ConfigSource>,
    /// By what name.
    #[prost(string, tag = "2")]
    pub service_name: String,
}

/// Who says something; one of these.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ConfigSource {
    /// The stream by which everything is asked for.
    #[prost(message, optional, tag = "3")]
    pub ads: Option<Empty>,
    /// The server that said this.
    #[prost(message, optional, tag = "5")]
    pub this: Option<Empty>,
    /// 2 for version 3 of xDS.
    #[prost(int32, tag = "6")]
    pub resource_api_version: i32,
}

/// Most of something.
#[derive(Clone, PartialEq, Message)]
pub struct CircuitBreakers {
    /// By priority.
    #[prost(message, repeated, tag = "1")]
    pub thresholds: Vec<Thresholds>,
}

/// Most of something, of the default priority.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Thresholds {
    /// Requests of a client at once.
    #[prost(message, optional, tag = "4")]
    pub max_requests: Option<UInt32>,
}

/// The endpoints of a cluster.
#[derive(Clone, PartialEq, Message)]
pub struct ClusterLoadAssignment {
    /// The cluster's name.
    #[prost(string, tag = "1")]
    pub cluster_name: String,
    /// By locality.
    #[prost(message, repeated, tag = "2")]
    pub endpoints: Vec<LocalityEndpoints>,
}

/// Endpoints at one place (`LocalityLbEndpoints`).
#[derive(Clone, PartialEq, Message)]
pub struct LocalityEndpoints {
    /// Which one.
    #[prost(message, optional, tag = "1")]
    pub locality: Option<Locality>,
    /// The endpoints.
    #[prost(message, repeated, tag = "2")]
    pub lb_endpoints: Vec<LbEndpoint>,
    /// How often it is chosen, relative to the others; nothing is sent there without. All together must fit into 32 bits.
    #[prost(message, optional, tag = "3")]
    pub load_balancing_weight: Option<UInt32>,
}

/// An endpoint and how it is.
#[derive(Clone, PartialEq, Message)]
pub struct LbEndpoint {
    /// Where it is.
    #[prost(message, optional, tag = "1")]
    pub endpoint: Option<Endpoint>,
    /// [`HEALTHY`], or 0 where that is not known.
    #[prost(int32, tag = "2")]
    pub health_status: i32,
}

/// [`LbEndpoint::health_status`]: it may be used.
pub const HEALTHY: i32 = 1;

/// Where an endpoint is.
#[derive(Clone, PartialEq, Message)]
pub struct Endpoint {
    /// Its address.
    #[prost(message, optional, tag = "1")]
    pub address: Option<Address>,
}

/// An address.
#[derive(Clone, PartialEq, Message)]
pub struct Address {
    /// Of a socket.
    #[prost(message, optional, tag = "1")]
    pub socket_address: Option<SocketAddress>,
}

/// Of a TCP socket.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SocketAddress {
    /// An IP address.
    #[prost(string, tag = "2")]
    pub address: String,
    /// 1 to 65535.
    #[prost(uint32, tag = "3")]
    pub port_value: u32,
}
