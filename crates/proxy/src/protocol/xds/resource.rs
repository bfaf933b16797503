//! The xDS resources of a group: a listener without a socket that routes all requests to a cluster of the
//! same name, whose endpoints are the members.

use plimsoll_wire::xds::{
    Address, ApiListener, CLUSTER, CONNECTION_MANAGER, CircuitBreakers, Cluster, ClusterLoadAssignment,
    ConfigSource, EDS, ENDPOINTS, EdsClusterConfig, Empty, Endpoint, HEALTHY, HttpConnectionManager,
    HttpFilter, LISTENER, LbEndpoint, Listener, Locality, LocalityEndpoints, PREFIX, ProtobufAny, ROUTER,
    ROUTES, Route, RouteAction, RouteConfiguration, RouteMatch, SocketAddress, Thresholds, UInt32Value,
    VirtualHost,
};

use super::weights::WeightedMember;

/// The types of resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ResourceKind {
    Cluster,
    Endpoints,
    Listener,
    Routes,
}

impl ResourceKind {
    /// All types in the order of updates: referenced resources before those that refer to them.
    pub(super) const ALL: [Self; 4] = [Self::Cluster, Self::Endpoints, Self::Listener, Self::Routes];

    pub(super) fn from_type_url(type_url: &str) -> Option<Self> {
        let name = type_url.strip_prefix(PREFIX)?;
        Self::ALL.into_iter().find(|kind| kind.type_name() == name)
    }

    /// Returns the name of the message type.
    pub(super) fn type_name(self) -> &'static str {
        match self {
            Self::Cluster => CLUSTER,
            Self::Endpoints => ENDPOINTS,
            Self::Listener => LISTENER,
            Self::Routes => ROUTES,
        }
    }

    /// Returns the name for people.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Endpoints => "endpoints",
            Self::Listener => "listener",
            Self::Routes => "routes",
        }
    }

    /// Returns `true` if a response contains all resources of the type, so that missing ones were removed.
    /// For other types it contains only changes.
    pub(super) fn is_complete_set(self) -> bool {
        matches!(self, Self::Cluster | Self::Listener)
    }
}

/// Returns the resource that derives from a group's name; `None` for endpoints.
pub(super) fn for_group(kind: ResourceKind, group: &str) -> Option<ProtobufAny> {
    match kind {
        ResourceKind::Cluster => Some(ProtobufAny::pack(CLUSTER, &cluster(group))),
        ResourceKind::Listener => Some(ProtobufAny::pack(LISTENER, &listener(group))),
        ResourceKind::Routes => Some(ProtobufAny::pack(ROUTES, &routes(group))),
        ResourceKind::Endpoints => None,
    }
}

fn listener(group: &str) -> Listener {
    let router = ProtobufAny::pack(ROUTER, &Empty {});
    let filter = HttpFilter { name: "router".into(), typed_config: Some(router) };
    let manager = HttpConnectionManager { route_config: Some(routes(group)), http_filters: vec![filter] };
    let api_listener = ApiListener { api_listener: Some(ProtobufAny::pack(CONNECTION_MANAGER, &manager)) };
    Listener { name: group.into(), api_listener: Some(api_listener) }
}

fn routes(group: &str) -> RouteConfiguration {
    let route = Route {
        r#match: Some(RouteMatch { prefix: Some(String::new()) }),
        route: Some(RouteAction { cluster: group.into() }),
    };
    let host = VirtualHost { name: group.into(), domains: vec!["*".into()], routes: vec![route] };
    RouteConfiguration { name: group.into(), virtual_hosts: vec![host] }
}

/// Version 3 of xDS.
const V3: i32 = 2;

fn cluster(group: &str) -> Cluster {
    let self_source = ConfigSource { ads: None, this: Some(Empty {}), resource_api_version: V3 };
    let ads_source = ConfigSource { ads: Some(Empty {}), this: None, resource_api_version: V3 };
    // Without this, a client itself rejects requests beyond 1024 at a time.
    let thresholds = Thresholds { max_requests: Some(UInt32Value { value: u32::MAX }) };
    Cluster {
        name: group.into(),
        r#type: EDS,
        eds_cluster_config: Some(EdsClusterConfig {
            eds_config: Some(ads_source),
            service_name: group.into(),
        }),
        lb_policy: 0,
        circuit_breakers: Some(CircuitBreakers { thresholds: vec![thresholds] }),
        lrs_server: Some(self_source),
        lrs_report_endpoint_metrics: REPORTED.map(str::to_owned).into(),
    }
}

/// The values of members' own load reports (ORCA) that clients forward, if they support it.
const REPORTED: [&str; 4] =
    ["cpu_utilization", "mem_utilization", "application_utilization", "named_metrics.*"];

/// Returns the members in use, each in a locality of its own.
pub(super) fn endpoints(group: &str, members: &[WeightedMember]) -> ProtobufAny {
    let endpoint_of = |weighted: &WeightedMember| {
        let ip = weighted.address.ip().to_canonical().to_string();
        let socket = SocketAddress { address: ip, port_value: weighted.address.port().into() };
        let address = Address { socket_address: Some(socket) };
        let endpoint =
            LbEndpoint { endpoint: Some(Endpoint { address: Some(address) }), health_status: HEALTHY };
        LocalityEndpoints {
            locality: Some(locality(group, &weighted.name)),
            lb_endpoints: vec![endpoint],
            load_balancing_weight: Some(UInt32Value { value: weighted.weight }),
        }
    };
    let endpoints = members.iter().map(endpoint_of).collect();
    ProtobufAny::pack(ENDPOINTS, &ClusterLoadAssignment { cluster_name: group.into(), endpoints })
}

/// Returns a member's locality for clients.
fn locality(group: &str, member: &str) -> Locality {
    Locality { region: "plimsoll".into(), zone: group.into(), sub_zone: member.into() }
}

/// Returns the member of a locality.
pub(super) fn member(locality: &Locality) -> &str {
    &locality.sub_zone
}

#[cfg(test)]
mod tests {
    use plimsoll_wire::xds::Message as _;

    use super::*;

    #[test]
    fn a_member_is_a_locality() {
        let weighted = WeightedMember {
            name: "m:80".into(),
            address: "[::ffff:10.0.0.1]:80".parse().unwrap(),
            weight: 7,
        };
        let any = endpoints("web", &[weighted]);
        assert_eq!(ResourceKind::from_type_url(&any.type_url), Some(ResourceKind::Endpoints));
        let assignment = ClusterLoadAssignment::decode(&any.value[..]).unwrap();
        let [entry] = &assignment.endpoints[..] else { panic!("{assignment:?}") };
        assert_eq!(member(entry.locality.as_ref().unwrap()), "m:80");
        assert_eq!(entry.load_balancing_weight, Some(UInt32Value { value: 7 }));
        let endpoint = entry.lb_endpoints[0].endpoint.as_ref().unwrap();
        let socket = endpoint.address.as_ref().unwrap().socket_address.as_ref().unwrap();
        assert_eq!((&*socket.address, socket.port_value), ("10.0.0.1", 80));
    }

    #[test]
    fn a_route_fits_all() {
        let Some(any) = for_group(ResourceKind::Routes, "web") else { panic!() };
        // The prefix is present, and empty.
        assert!(any.value.windows(4).any(|bytes| bytes == [0x0a, 2, 0x0a, 0]), "{any:?}");
        assert_eq!(for_group(ResourceKind::Endpoints, "web"), None);
        assert_eq!(ResourceKind::from_type_url("type.googleapis.com/nothing"), None);
    }
}
