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
fn convert_endpoint(wire: Wire) -> Option<SliceEndpoint> {
    let conditions = wire.conditions.unwrap_or_default();
    let ready = conditions.ready.unwrap_or(true);
    let leaving = conditions.terminating.unwrap_or(false);
    let there = if leaving { conditions.serving.unwrap_or(ready) } else { ready };
    let address = wire.addresses.into_iter().next().filter(|_| there)?;
    let pod = wire.target_ref.and_then(|target| {
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
    fn port(&self, wanted: Option<&ServicePort>) -> Result<Option<u16>, String> {
        match wanted {
            None => match self.ports.as_slice() {
                [SlicePort { number: Some(number @ 1..), .. }] => Ok(Some(*number)),
                [] | [_] => Err("its endpoints say no port: add port = 8080, or whichever it is".into()),
                _ => Err(format!(
                    "it has several ports ({}): say which, as in port = \"http\"",
                    self.describe_ports()
                )),
            },
            // A slice without ports, or with an arbitrary one, is open on every port.
            Some(ServicePort::Number(wanted)) => {
                let has = |port: &SlicePort| port.number.is_none_or(|number| number == *wanted);
                let any = self.ports.is_empty() || self.ports.iter().any(has);
                Ok(any.then_some(*wanted))
            }
            Some(ServicePort::Name(wanted)) => {
                let named = self.ports.iter().find(|port| port.name == *wanted);
                Ok(named.and_then(|port| port.number).filter(|number| *number > 0))
            }
        }
    }

    /// Formats the ports as `http 8080, metrics 9090`.
    fn describe_ports(&self) -> String {
        let word = |port: &SlicePort| match (port.name.as_str(), port.number) {
            ("", None) => "any".to_owned(),
            ("", Some(number)) => number.to_string(),
            (name, None) => name.to_owned(),
            (name, Some(number)) => format!("{name} {number}"),
        };
        self.ports.iter().map(word).collect::<Vec<_>>().join(", ")
    }
}

/// Returns the members from all slices of the service, sorted by address. An error is one line: the slices do
/// not match the settings.
pub(super) fn members(
    source: &KubernetesSource,
    slices: &BTreeMap<String, ServiceSlice>,
) -> Result<MemberList, String> {
    let wanted = |family: AddressFamily| source.family == AddressFamily::Any || source.family == family;
    let fits = |slice: &&ServiceSlice| slice.family().is_some_and(wanted) && !slice.endpoints.is_empty();
    let (mut places, mut without) = (BTreeMap::<SocketAddr, &SliceEndpoint>::new(), BTreeSet::new());
    let mut found = false;
    for (name, slice) in slices.iter().filter(|(_, slice)| fits(slice)) {
        let Some(port) = slice.port(source.port.as_ref())? else {
            without.insert(slice.describe_ports());
            continue;
        };
        found = true;
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
            let place = places.entry((ip, port).into()).or_insert(endpoint);
            if place.leaving && !endpoint.leaving {
                *place = endpoint;
            }
        }
    }
    if let (false, Some(port)) = (found || without.is_empty(), &source.port) {
        let there: Vec<&str> = without.iter().map(String::as_str).collect();
        return Err(format!(
            "its endpoints have no port {port}; they have {} (as they listen, not as the service is asked)",
            there.join("; ")
        ));
    }
    // A pod with addresses of both families is one member.
    let four: BTreeSet<&Arc<str>> = places
        .iter()
        .filter(|(place, _)| place.is_ipv4())
        .filter_map(|(_, endpoint)| endpoint.pod.as_ref())
        .collect();
    let twice = |place: &SocketAddr, endpoint: &SliceEndpoint| {
        place.is_ipv6() && endpoint.pod.as_ref().is_some_and(|pod| four.contains(pod))
    };
    let once: Vec<(SocketAddr, &SliceEndpoint)> = places
        .iter()
        .filter(|(place, endpoint)| !twice(place, endpoint))
        .map(|(at, one)| (*at, *one))
        .collect();
    if once.len() > MAX_MEMBERS {
        return Err(too_many_message(once.len()));
    }
    let ready = once.iter().any(|(_, endpoint)| !endpoint.leaving);
    let listed = |(address, endpoint): (SocketAddr, &SliceEndpoint)| DiscoveredMember {
        name: address.to_string().into(),
        address,
        capacity: 1.0,
        limit: None,
        leaving: ready && endpoint.leaving,
    };
    let note = match slices.is_empty() {
        true => "the namespace has no EndpointSlice of such a service",
        false => "the service has no endpoint that is ready",
    };
    Ok(MemberList { members: Some(once.into_iter().map(listed).collect()), note: Some(note) })
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

    fn conditions(address: &str, ready: Value, serving: Value, terminating: Value) -> Value {
        json!({"addresses": [address], "nodeName": "n1", "zone": "z1",
            "conditions": {"ready": ready, "serving": serving, "terminating": terminating}})
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

    fn by(source: &KubernetesSource, slices: &[ServiceSlice]) -> Result<String, String> {
        let slices = slices.iter().enumerate().map(|(index, slice)| (format!("web-{index}"), slice.clone()));
        let told = members(source, &slices.collect())?;
        let word =
            |one: &DiscoveredMember| format!("{}{}", one.name, if one.leaving { " leaving" } else { "" });
        Ok(told.members.unwrap().iter().map(word).collect::<Vec<_>>().join(", "))
    }

    fn said(slices: &[ServiceSlice]) -> String {
        by(&source(), slices).unwrap()
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
                said(&[slice("IPv4", http(), std::slice::from_ref(&endpoint))]),
                expected,
                "{endpoint}"
            );
        }
        let both = [slice("IPv4", http(), &[ending("10.0.0.2"), ready("10.0.0.1")])];
        assert_eq!(said(&both), "10.0.0.1:8080, 10.0.0.2:8080 leaving");
        // They serve as members in the absence of others.
        let last = [slice("IPv4", http(), &[ending("10.0.0.2"), ending("10.0.0.1")])];
        assert_eq!(said(&last), "10.0.0.1:8080, 10.0.0.2:8080");
    }

    #[test]
    fn slices_of_one_service_are_one_list() {
        let two = [
            slice("IPv4", http(), &[ready("10.0.0.3"), ending("10.0.0.2")]),
            // It moves from one slice to the other.
            slice("IPv4", http(), &[ready("10.0.0.2"), ready("10.0.0.1")]),
            // A controller creates this for a service without endpoints.
            slice("IPv4", Value::Null, &[]),
        ];
        assert_eq!(said(&two), "10.0.0.1:8080, 10.0.0.2:8080, 10.0.0.3:8080");
        let note =
            |slices: &BTreeMap<String, ServiceSlice>| members(&source(), slices).unwrap().note.unwrap();
        assert!(note(&BTreeMap::new()).contains("no EndpointSlice"));
        let empty = [("a".to_owned(), slice("IPv4", Value::Null, &[]))];
        assert!(note(&empty.into()).contains("no endpoint that is ready"));
        let many: Vec<Value> =
            (0..=MAX_MEMBERS).map(|index| ready(&format!("10.0.{}.{}", index / 256, index % 256))).collect();
        assert!(by(&source(), &[slice("IPv4", http(), &many)]).unwrap_err().contains("4097"));
        let odd = by(&source(), &[slice("IPv4", http(), &[ready("web-0")])]).unwrap_err();
        assert_eq!(odd, "EndpointSlice web-0: `web-0` is no IP address");
        let other = by(&source(), &[slice("IPv6", http(), &[ready("10.0.0.1")])]).unwrap_err();
        assert_eq!(other, "EndpointSlice web-0: `10.0.0.1` is no address of the type IPv6");
    }

    #[test]
    fn both_kinds_of_addresses() {
        let dual = [
            slice("IPv4", http(), &[pod("10.0.0.1", "a"), ready("10.0.0.2")]),
            slice("IPv6", http(), &[pod("fd00::1", "a"), pod("fd00::3", "c"), ready("fd00::2")]),
            slice("FQDN", http(), &[ready("web.example.org")]),
        ];
        assert_eq!(said(&dual), "10.0.0.1:8080, 10.0.0.2:8080, [fd00::2]:8080, [fd00::3]:8080");
        let only = |family| by(&KubernetesSource { family, ..source() }, &dual).unwrap();
        assert_eq!(only(AddressFamily::V4), "10.0.0.1:8080, 10.0.0.2:8080");
        assert_eq!(only(AddressFamily::V6), "[fd00::1]:8080, [fd00::2]:8080, [fd00::3]:8080");
        assert!(dual[0].is_usable() && dual[1].is_usable() && !dual[2].is_usable());
    }

    #[test]
    fn ports_by_name_and_by_number() {
        let with = |port| KubernetesSource { port, ..source() };
        let name = |name: &str| with(Some(ServicePort::Name(name.into())));
        let number_of = |number| with(Some(ServicePort::Number(number)));
        let several = json!([{"name": "http", "port": 8080}, {"name": "metrics", "port": 9090}]);
        // Pods of two versions: the same name with another number; and some without it.
        let slices = [
            slice("IPv4", several.clone(), &[ready("10.0.0.1")]),
            slice("IPv4", json!([{"name": "http", "port": 8081}]), &[ready("10.0.0.2")]),
            slice("IPv4", json!([{"name": "metrics", "port": 9090}]), &[ready("10.0.0.3")]),
        ];
        assert_eq!(by(&name("http"), &slices).unwrap(), "10.0.0.1:8080, 10.0.0.2:8081");
        assert_eq!(by(&number_of(9090), &slices).unwrap(), "10.0.0.1:9090, 10.0.0.3:9090");
        assert_eq!(
            by(&with(None), &slices).unwrap_err(),
            "it has several ports (http 8080, metrics 9090): say which, as in port = \"http\""
        );
        let why = by(&number_of(80), &slices[..2]).unwrap_err();
        assert!(
            why.starts_with("its endpoints have no port 80; they have http 8080, metrics 9090; http 8081"),
            "{why}"
        );
        assert!(by(&name("web"), &slices).unwrap_err().contains("no port web"));
        // A port without a name is the only one.
        let bare = [slice("IPv4", json!([{"port": 8080}]), &[ready("10.0.0.1")])];
        assert_eq!(by(&with(None), &bare).unwrap(), "10.0.0.1:8080");
        // An invalid number stands for no port, not for any.
        for number in [0, -1, 65_536] {
            let odd = [slice("IPv4", json!([{"name": "http", "port": number}]), &[ready("10.0.0.1")])];
            assert!(by(&name("http"), &odd).is_err() && by(&with(None), &odd).is_err(), "{number}");
            assert!(by(&number_of(80), &odd).is_err(), "{number}");
        }
        // No ports of its own: any port.
        for ports in [Value::Null, json!([]), json!([{"name": "any"}])] {
            let open = [slice("IPv4", ports, &[ready("10.0.0.1")])];
            assert_eq!(by(&number_of(70), &open).unwrap(), "10.0.0.1:70");
            assert!(by(&with(None), &open).unwrap_err().contains("no port"));
        }
    }
}
