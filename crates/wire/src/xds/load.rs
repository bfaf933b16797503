//! What clients report of their load (`envoy/service/load_stats/v3/lrs.proto`, `envoy/config/endpoint/v3/load_report.proto`).

use prost::Message;

use super::{Locality, Node, Span};

/// A client's report: what it did since the one before.
#[derive(Clone, PartialEq, Message)]
pub struct LoadStatsRequest {
    /// Who it is; only the first request of a stream needs to say so.
    #[prost(message, optional, tag = "1")]
    pub node: Option<Node>,
    /// By cluster; one that is missing did nothing.
    #[prost(message, repeated, tag = "2")]
    pub cluster_stats: Vec<ClusterStats>,
}

/// A client is told what to report.
#[derive(Clone, PartialEq, Message)]
pub struct LoadStatsResponse {
    /// These clusters.
    #[prost(string, repeated, tag = "1")]
    pub clusters: Vec<String>,
    /// How often.
    #[prost(message, optional, tag = "2")]
    pub load_reporting_interval: Option<Span>,
    /// All clusters instead: for clients with the feature [`SEND_ALL_CLUSTERS`].
    #[prost(bool, tag = "4")]
    pub send_all_clusters: bool,
}

/// A feature of clients, see [`Node::client_features`].
pub const SEND_ALL_CLUSTERS: &str = "envoy.lrs.supports_send_all_clusters";

/// Of one cluster.
#[derive(Clone, PartialEq, Message)]
pub struct ClusterStats {
    /// Its name.
    #[prost(string, tag = "1")]
    pub cluster_name: String,
    /// By locality and priority; one that is missing did nothing.
    #[prost(message, repeated, tag = "2")]
    pub upstream_locality_stats: Vec<LocalityStats>,
    /// Over which time.
    #[prost(message, optional, tag = "4")]
    pub load_report_interval: Option<Span>,
}

/// Of one locality (`UpstreamLocalityStats`).
#[derive(Clone, PartialEq, Message)]
pub struct LocalityStats {
    /// Which one.
    #[prost(message, optional, tag = "1")]
    pub locality: Option<Locality>,
    /// Requests that ended well.
    #[prost(uint64, tag = "2")]
    pub total_successful_requests: u64,
    /// Requests that have not ended.
    #[prost(uint64, tag = "3")]
    pub total_requests_in_progress: u64,
    /// Requests that failed.
    #[prost(uint64, tag = "4")]
    pub total_error_requests: u64,
    /// What servers said of themselves, by name.
    #[prost(message, repeated, tag = "5")]
    pub load_metric_stats: Vec<MetricStats>,
    /// Share of its processors that the server uses (ORCA).
    #[prost(message, optional, tag = "12")]
    pub cpu_utilization: Option<UnnamedStats>,
    /// Share of its memory.
    #[prost(message, optional, tag = "13")]
    pub mem_utilization: Option<UnnamedStats>,
    /// Share of what the application thinks is its limit.
    #[prost(message, optional, tag = "14")]
    pub application_utilization: Option<UnnamedStats>,
}

/// A figure that servers have a name for (`EndpointLoadMetricStats`).
#[derive(Clone, PartialEq, Message)]
pub struct MetricStats {
    /// Its name.
    #[prost(string, tag = "1")]
    pub metric_name: String,
    /// Requests that ended with it.
    #[prost(uint64, tag = "2")]
    pub requests: u64,
    /// Added up over these.
    #[prost(double, tag = "3")]
    pub total: f64,
}

/// The same of one that has its own field (`UnnamedEndpointLoadMetricStats`).
#[derive(Clone, Copy, PartialEq, Message)]
pub struct UnnamedStats {
    /// Requests that ended with it.
    #[prost(uint64, tag = "1")]
    pub requests: u64,
    /// Added up over these.
    #[prost(double, tag = "2")]
    pub total: f64,
}
