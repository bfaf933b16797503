//! Computes the members of a service from its slices, as a pure function.
//!
//! A terminating endpoint counts while it serves, but gets no new work; one that is not ready does not count.
//! If none is ready but some terminating endpoints still serve, those are the members, as for the cluster's
//! own proxies. Only the first address of an endpoint counts, as further ones have no defined meaning. An
//! endpoint that moves between slices may be in both for a while, and counts once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use k8s_openapi::api::discovery::v1::{Endpoint as Wire, EndpointSlice};

use super::{KubernetesSource, ServicePort};
use crate::discover::resolve_hosts::too_many_message;
use crate::discover::{AddressFamily, DiscoveredMember, MAX_MEMBERS, MemberList};

/// The relevant part of a slice.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ServiceSlice {
    /// `IPv4`, `IPv6`, or an unsupported kind.
    address_type: String,
    ports: Vec<SlicePort>,
    endpoints: Vec<SliceEndpoint>,
}

#[derive(Clone, Debug, PartialEq)]
struct SlicePort {
    /// The name; empty for a single port.
    name: String,
    /// The number; `None` for any port, 0 for an invalid number.
    number: Option<u16>,
}

#[derive(Clone, Debug, PartialEq)]
struct SliceEndpoint {
    address: String,
    /// The endpoint's target, if it is given: it may be listed again with an address of the other family.
    pod: Option<Arc<str>>,
    /// Whether the endpoint serves but is about to end.
    leaving: bool,
}

impl From<EndpointSlice> for ServiceSlice {
    fn from(slice: EndpointSlice) -> Self {
        let port = |port: k8s_openapi::api::discovery::v1::EndpointPort| SlicePort {
            name: port.name.unwrap_or_default(),
            number: port.port.map(|number| u16::try_from(number).unwrap_or(0)),
        };
        Self {
            address_type: slice.address_type,
            ports: slice.ports.unwrap_or_default().into_iter().map(port).collect(),
            endpoints: slice.endpoints.into_iter().filter_map(convert_endpoint).collect(),
        }
    }
}

/// Converts an endpoint; `None` for one that does not serve.
fn convert_endpoint(endpoint: Wire) -> Option<SliceEndpoint> {
    let conditions = endpoint.conditions.unwrap_or_default();
    let has_ready = conditions.ready.unwrap_or(true);
    let leaving = conditions.terminating.unwrap_or(false);
    let available_ports = if leaving { conditions.serving.unwrap_or(has_ready) } else { has_ready };
    let address = endpoint.addresses.into_iter().next().filter(|_| available_ports)?;
    let pod = endpoint.target_ref.and_then(|target| {
        let name = target.uid.or(target.name)?;
        Some(format!("{} {name}", target.kind.unwrap_or_default()).into())
    });
    Some(SliceEndpoint { address, pod, leaving })
}

impl ServiceSlice {
    /// Returns the number of serving endpoints.
    pub(super) fn len(&self) -> usize {
        self.endpoints.len()
    }

    /// Returns `true` if the slice has addresses that members can have.
    pub(super) fn is_usable(&self) -> bool {
        self.family().is_some()
    }

    /// Returns the kind of its addresses.
    pub(super) fn address_type(&self) -> &str {
        &self.address_type
    }

    fn family(&self) -> Option<AddressFamily> {
        match self.address_type.as_str() {
            "IPv4" => Some(AddressFamily::V4),
            "IPv6" => Some(AddressFamily::V6),
            _ => None,
        }
    }

    /// Returns the number of the wanted port; `None` if the slice does not have it.
    fn port(&self, expected_port: Option<&ServicePort>) -> Result<Option<u16>, String> {
        match expected_port {
            None => match self.ports.as_slice() {
                [SlicePort { number: Some(number @ 1..), .. }] => Ok(Some(*number)),
                [] | [_] => Err("its endpoints say no port: add port = 8080, or whichever it is".into()),
                _ => Err(format!(
                    "it has several ports ({}): say which, as in port = \"http\"",
                    self.describe_ports()
                )),
            },
            // A slice without ports, or with an arbitrary one, is open on every port.
            Some(ServicePort::Number(expected_number)) => {
                let has_number =
                    |port: &SlicePort| port.number.is_none_or(|number| number == *expected_number);
                let has_any = self.ports.is_empty() || self.ports.iter().any(has_number);
                Ok(has_any.then_some(*expected_number))
            }
            Some(ServicePort::Name(name)) => {
                let named_port = self.ports.iter().find(|port| port.name == *name);
                Ok(named_port.and_then(|port| port.number).filter(|number| *number > 0))
            }
        }
    }

    /// Formats the ports as `http 8080, metrics 9090`.
    fn describe_ports(&self) -> String {
        let describe = |port: &SlicePort| match (port.name.as_str(), port.number) {
            ("", None) => "any".to_owned(),
            ("", Some(number)) => number.to_string(),
            (name, None) => name.to_owned(),
            (name, Some(number)) => format!("{name} {number}"),
        };
        self.ports.iter().map(describe).collect::<Vec<_>>().join(", ")
    }
}

/// Returns the members from all slices of the service, sorted by address. An error is one line: the slices do
/// not match the settings.
pub(super) fn members(
    source: &KubernetesSource,
    slices: &BTreeMap<String, ServiceSlice>,
) -> Result<MemberList, String> {
    let is_wanted_family =
        |family: AddressFamily| source.family == AddressFamily::Any || source.family == family;
    let is_usable =
        |slice: &&ServiceSlice| slice.family().is_some_and(is_wanted_family) && !slice.endpoints.is_empty();
    let (mut endpoints_by_address, mut ports_without_match) =
        (BTreeMap::<SocketAddr, &SliceEndpoint>::new(), BTreeSet::new());
    let mut found_port = false;
    for (name, slice) in slices.iter().filter(|(_, slice)| is_usable(slice)) {
        let Some(port) = slice.port(source.port.as_ref())? else {
            ports_without_match.insert(slice.describe_ports());
            continue;
        };
        found_port = true;
        for endpoint in &slice.endpoints {
            let ip: IpAddr = endpoint
                .address
                .parse()
                .map_err(|_| format!("EndpointSlice {name}: `{}` is no IP address", endpoint.address))?;
            if ip.is_ipv4() != (slice.family() == Some(AddressFamily::V4)) {
                return Err(format!(
                    "EndpointSlice {name}: `{ip}` is no address of the type {}",
                    slice.address_type
                ));
            }
            let current = endpoints_by_address.entry((ip, port).into()).or_insert(endpoint);
            if current.leaving && !endpoint.leaving {
                *current = endpoint;
            }
        }
    }
    if let (false, Some(port)) = (found_port || ports_without_match.is_empty(), &source.port) {
        let available_ports: Vec<&str> = ports_without_match.iter().map(String::as_str).collect();
        return Err(format!(
            "its endpoints have no port {port}; they have {} (as they listen, not as the service is asked)",
            available_ports.join("; ")
        ));
    }
    // A pod with addresses of both families is one member.
    let ipv4_pods: BTreeSet<&Arc<str>> = endpoints_by_address
        .iter()
        .filter(|(address, _)| address.is_ipv4())
        .filter_map(|(_, endpoint)| endpoint.pod.as_ref())
        .collect();
    let is_dual_stack = |address: &SocketAddr, endpoint: &SliceEndpoint| {
        address.is_ipv6() && endpoint.pod.as_ref().is_some_and(|pod| ipv4_pods.contains(pod))
    };
    let members_by_address: Vec<(SocketAddr, &SliceEndpoint)> = endpoints_by_address
        .iter()
        .filter(|(address, endpoint)| !is_dual_stack(address, endpoint))
        .map(|(address, endpoint)| (*address, *endpoint))
        .collect();
    if members_by_address.len() > MAX_MEMBERS {
        return Err(too_many_message(members_by_address.len()));
    }
    let has_ready = members_by_address.iter().any(|(_, endpoint)| !endpoint.leaving);
    let to_member = |(address, endpoint): (SocketAddr, &SliceEndpoint)| DiscoveredMember {
        name: address.to_string().into(),
        address,
        capacity: 1.0,
        limit: None,
        leaving: has_ready && endpoint.leaving,
    };
    let note = match slices.is_empty() {
        true => "the namespace has no EndpointSlice of such a service",
        false => "the service has no endpoint that is ready",
    };
    Ok(MemberList {
        members: Some(members_by_address.into_iter().map(to_member).collect()),
        note: Some(note),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::source;
    use super::*;

    /// Builds a slice from its JSON form.
    fn slice(kind: &str, ports: Value, endpoints: &[Value]) -> ServiceSlice {
        let value = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": kind,
            "metadata": {
                "name": "web-x2x7m", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"},
            },
            "ports": ports, "endpoints": endpoints,
        });
        serde_json::from_value::<EndpointSlice>(value).unwrap().into()
    }

    fn conditions(address: &str, has_ready: Value, serving: Value, terminating: Value) -> Value {
        json!({"addresses": [address], "nodeName": "n1", "zone": "z1",
            "conditions": {"ready": has_ready, "serving": serving, "terminating": terminating}})
    }

    fn ready(address: &str) -> Value {
        conditions(address, true.into(), true.into(), false.into())
    }

    fn ending(address: &str) -> Value {
        conditions(address, false.into(), true.into(), true.into())
    }

    fn pod(address: &str, uid: &str) -> Value {
        let mut endpoint = ready(address);
        endpoint["targetRef"] = json!({"kind": "Pod", "name": uid, "namespace": "shop", "uid": uid});
        endpoint
    }

    fn http() -> Value {
        json!([{"name": "http", "port": 8080, "protocol": "TCP"}])
    }

    fn member_names_of(source: &KubernetesSource, slices: &[ServiceSlice]) -> Result<String, String> {
        let slices = slices.iter().enumerate().map(|(index, slice)| (format!("web-{index}"), slice.clone()));
        let list = members(source, &slices.collect())?;
        let describe = |member: &DiscoveredMember| {
            format!("{}{}", member.name, if member.leaving { " leaving" } else { "" })
        };
        Ok(list.members.unwrap().iter().map(describe).collect::<Vec<_>>().join(", "))
    }

    fn member_names(slices: &[ServiceSlice]) -> String {
        member_names_of(&source(), slices).unwrap()
    }

    #[test]
    fn conditions_say_who_is_there() {
        let null = Value::Null;
        for (endpoint, expected) in [
            (ready("10.0.0.1"), "10.0.0.1:8080"),
            (json!({"addresses": ["10.0.0.1"]}), "10.0.0.1:8080"),
            (json!({"addresses": ["10.0.0.1", "10.0.0.2"], "conditions": {}}), "10.0.0.1:8080"),
            (conditions("10.0.0.1", null.clone(), null.clone(), null.clone()), "10.0.0.1:8080"),
            (conditions("10.0.0.1", false.into(), true.into(), false.into()), ""),
            (conditions("10.0.0.1", false.into(), null.clone(), null.clone()), ""),
            (conditions("10.0.0.1", false.into(), false.into(), true.into()), ""),
            // Of a service that publishes endpoints that are not ready.
            (conditions("10.0.0.1", true.into(), false.into(), false.into()), "10.0.0.1:8080"),
            (json!({"addresses": []}), ""),
        ] {
            assert_eq!(
                member_names(&[slice("IPv4", http(), std::slice::from_ref(&endpoint))]),
                expected,
                "{endpoint}"
            );
        }
        let ready_and_ending = [slice("IPv4", http(), &[ending("10.0.0.2"), ready("10.0.0.1")])];
        assert_eq!(member_names(&ready_and_ending), "10.0.0.1:8080, 10.0.0.2:8080 leaving");
        // They serve as members in the absence of others.
        let all_ending = [slice("IPv4", http(), &[ending("10.0.0.2"), ending("10.0.0.1")])];
        assert_eq!(member_names(&all_ending), "10.0.0.1:8080, 10.0.0.2:8080");
    }

    #[test]
    fn slices_of_one_service_are_one_list() {
        let two_slices = [
            slice("IPv4", http(), &[ready("10.0.0.3"), ending("10.0.0.2")]),
            // It moves from one slice to the other.
            slice("IPv4", http(), &[ready("10.0.0.2"), ready("10.0.0.1")]),
            // A controller creates this for a service without endpoints.
            slice("IPv4", Value::Null, &[]),
        ];
        assert_eq!(member_names(&two_slices), "10.0.0.1:8080, 10.0.0.2:8080, 10.0.0.3:8080");
        let note =
            |slices: &BTreeMap<String, ServiceSlice>| members(&source(), slices).unwrap().note.unwrap();
        assert!(note(&BTreeMap::new()).contains("no EndpointSlice"));
        let empty = [("a".to_owned(), slice("IPv4", Value::Null, &[]))];
        assert!(note(&empty.into()).contains("no endpoint that is ready"));
        let many_endpoints: Vec<Value> =
            (0..=MAX_MEMBERS).map(|index| ready(&format!("10.0.{}.{}", index / 256, index % 256))).collect();
        assert!(
            member_names_of(&source(), &[slice("IPv4", http(), &many_endpoints)])
                .unwrap_err()
                .contains("4097")
        );
        let error = member_names_of(&source(), &[slice("IPv4", http(), &[ready("web-0")])]).unwrap_err();
        assert_eq!(error, "EndpointSlice web-0: `web-0` is no IP address");
        let error = member_names_of(&source(), &[slice("IPv6", http(), &[ready("10.0.0.1")])]).unwrap_err();
        assert_eq!(error, "EndpointSlice web-0: `10.0.0.1` is no address of the type IPv6");
    }

    #[test]
    fn both_kinds_of_addresses() {
        let dual_stack = [
            slice("IPv4", http(), &[pod("10.0.0.1", "a"), ready("10.0.0.2")]),
            slice("IPv6", http(), &[pod("fd00::1", "a"), pod("fd00::3", "c"), ready("fd00::2")]),
            slice("FQDN", http(), &[ready("web.example.org")]),
        ];
        assert_eq!(member_names(&dual_stack), "10.0.0.1:8080, 10.0.0.2:8080, [fd00::2]:8080, [fd00::3]:8080");
        let in_family =
            |family| member_names_of(&KubernetesSource { family, ..source() }, &dual_stack).unwrap();
        assert_eq!(in_family(AddressFamily::V4), "10.0.0.1:8080, 10.0.0.2:8080");
        assert_eq!(in_family(AddressFamily::V6), "[fd00::1]:8080, [fd00::2]:8080, [fd00::3]:8080");
        assert!(dual_stack[0].is_usable() && dual_stack[1].is_usable() && !dual_stack[2].is_usable());
    }

    #[test]
    fn ports_by_name_and_by_number() {
        let with_port = |port| KubernetesSource { port, ..source() };
        let with_name = |with_name: &str| with_port(Some(ServicePort::Name(with_name.into())));
        let with_number = |number| with_port(Some(ServicePort::Number(number)));
        let two_ports = json!([{"name": "http", "port": 8080}, {"name": "metrics", "port": 9090}]);
        // Pods of two versions: the same name with another number; and some without it.
        let slices = [
            slice("IPv4", two_ports.clone(), &[ready("10.0.0.1")]),
            slice("IPv4", json!([{"name": "http", "port": 8081}]), &[ready("10.0.0.2")]),
            slice("IPv4", json!([{"name": "metrics", "port": 9090}]), &[ready("10.0.0.3")]),
        ];
        assert_eq!(member_names_of(&with_name("http"), &slices).unwrap(), "10.0.0.1:8080, 10.0.0.2:8081");
        assert_eq!(member_names_of(&with_number(9090), &slices).unwrap(), "10.0.0.1:9090, 10.0.0.3:9090");
        assert_eq!(
            member_names_of(&with_port(None), &slices).unwrap_err(),
            "it has several ports (http 8080, metrics 9090): say which, as in port = \"http\""
        );
        let error = member_names_of(&with_number(80), &slices[..2]).unwrap_err();
        assert!(
            error.starts_with("its endpoints have no port 80; they have http 8080, metrics 9090; http 8081"),
            "{error}"
        );
        assert!(member_names_of(&with_name("web"), &slices).unwrap_err().contains("no port web"));
        // A port without a name is the only one.
        let unnamed = [slice("IPv4", json!([{"port": 8080}]), &[ready("10.0.0.1")])];
        assert_eq!(member_names_of(&with_port(None), &unnamed).unwrap(), "10.0.0.1:8080");
        // An invalid number stands for no port, not for any.
        for number in [0, -1, 65_536] {
            let invalid_slices =
                [slice("IPv4", json!([{"name": "http", "port": number}]), &[ready("10.0.0.1")])];
            assert!(
                member_names_of(&with_name("http"), &invalid_slices).is_err()
                    && member_names_of(&with_port(None), &invalid_slices).is_err(),
                "{number}"
            );
            assert!(member_names_of(&with_number(80), &invalid_slices).is_err(), "{number}");
        }
        // No ports of its own: any port.
        for ports in [Value::Null, json!([]), json!([{"name": "any"}])] {
            let any_port = [slice("IPv4", ports, &[ready("10.0.0.1")])];
            assert_eq!(member_names_of(&with_number(70), &any_port).unwrap(), "10.0.0.1:70");
            assert!(member_names_of(&with_port(None), &any_port).unwrap_err().contains("no port"));
        }
    }
}
