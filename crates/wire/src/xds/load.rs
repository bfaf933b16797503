//! Load reports of clients (`envoy/service/load_stats/v3/lrs.proto`,
//! `envoy/config/endpoint/v3/load_report.proto`).

use prost::Message;

use super::{Locality, Node, ProtobufDuration};

/// A client's report of its requests since the previous report.
#[derive(Clone, PartialEq, Message)]
pub struct LoadStatsRequest {
    /// The client's identity; only the first request of a stream must contain it.
    #[prost(message, optional, tag = "1")]
    pub node: Option<Node>,
    /// The statistics, by cluster; a cluster without requests is missing.
    #[prost(message, repeated, tag = "2")]
    pub cluster_stats: Vec<ClusterStats>,
}

/// The server's instructions for a client's reports.
#[derive(Clone, PartialEq, Message)]
pub struct LoadStatsResponse {
    /// The clusters to report.
    #[prost(string, repeated, tag = "1")]
    pub clusters: Vec<String>,
    /// The report interval.
    #[prost(message, optional, tag = "2")]
    pub load_reporting_interval: Option<ProtobufDuration>,
    /// Whether to report all clusters instead, for clients with the feature [`SEND_ALL_CLUSTERS`].
    #[prost(bool, tag = "4")]
    pub send_all_clusters: bool,
}

/// A feature of clients, see [`Node::client_features`].
pub const SEND_ALL_CLUSTERS: &str = "envoy.lrs.supports_send_all_clusters";

/// The statistics of one cluster.
#[derive(Clone, PartialEq, Message)]
pub struct ClusterStats {
    /// The cluster's name.
    #[prost(string, tag = "1")]
    pub cluster_name: String,
    /// The statistics, by locality and priority; a locality without requests is missing.
    #[prost(message, repeated, tag = "2")]
    pub upstream_locality_stats: Vec<LocalityStats>,
    /// The period that the report covers.
    #[prost(message, optional, tag = "4")]
    pub load_report_interval: Option<ProtobufDuration>,
}

/// The statistics of one locality (`UpstreamLocalityStats`).
#[derive(Clone, PartialEq, Message)]
pub struct LocalityStats {
    /// The locality.
    #[prost(message, optional, tag = "1")]
    pub locality: Option<Locality>,
    /// Requests that succeeded.
    #[prost(uint64, tag = "2")]
    pub total_successful_requests: u64,
    /// Requests in flight.
    #[prost(uint64, tag = "3")]
    pub total_requests_in_progress: u64,
    /// Requests that failed.
    #[prost(uint64, tag = "4")]
    pub total_error_requests: u64,
    /// The load metrics that servers reported, by name.
    #[prost(message, repeated, tag = "5")]
    pub load_metric_stats: Vec<MetricStats>,
    /// The utilization of the server's processors (ORCA).
    #[prost(message, optional, tag = "12")]
    pub cpu_utilization: Option<UnnamedStats>,
    /// The utilization of the server's memory.
    #[prost(message, optional, tag = "13")]
    pub mem_utilization: Option<UnnamedStats>,
    /// The utilization of the application's own limit.
    #[prost(message, optional, tag = "14")]
    pub application_utilization: Option<UnnamedStats>,
}

/// A metric that servers have named (`EndpointLoadMetricStats`).
#[derive(Clone, PartialEq, Message)]
pub struct MetricStats {
    /// The metric's name.
    #[prost(string, tag = "1")]
    pub metric_name: String,
    /// The number of finished requests with this metric.
    #[prost(uint64, tag = "2")]
    pub requests: u64,
    /// The sum over these requests.
    #[prost(double, tag = "3")]
    pub total: f64,
}

/// A metric with a field of its own (`UnnamedEndpointLoadMetricStats`).
#[derive(Clone, Copy, PartialEq, Message)]
pub struct UnnamedStats {
    /// The number of finished requests with this metric.
    #[prost(uint64, tag = "1")]
    pub requests: u64,
    /// The sum over these requests.
    #[prost(double, tag = "2")]
    pub total: f64,
}
