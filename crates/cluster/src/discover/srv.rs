//! The servers of a service (SRV, RFC 2782). Only the records with the lowest priority count. Each address of
//! a target is a member at the port of the record, with the weight as its capacity. If all weights are 0, all
//! members have capacity 1; a 0 among others is a server with a very small share.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::rr::rdata::SRV;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::task::JoinSet;

use super::dns::{
    AddressFamily, KnownAddresses, look_up_addresses, parse_name, record_address, retry_backoff, ttl_duration,
};
use super::resolve_hosts::too_many_message;
use super::resolver::{Resolver, ResolverSettings};
use super::{
    DiscoveredMember, MAX_MEMBERS, MemberList, MemberSource, QueryFuture, QueryOutcome, SourceConfig,
};

/// The maximum number of targets that are queried at once.
const MAX_CONCURRENT_LOOKUPS: usize = 16;

/// The capacity of a server with weight 0 among others with a weight.
const ZERO_WEIGHT_CAPACITY: f64 = 0.01;

/// The servers of a service.
#[derive(Clone, Debug, PartialEq)]
pub struct SrvSettings {
    /// The name, such as `_http._tcp.example.org`.
    pub name: String,
    /// The addresses of targets to use.
    pub family: AddressFamily,
    /// The name servers.
    pub resolver: ResolverSettings,
    /// The minimum time until the next query.
    pub min: Duration,
    /// The maximum time until the next query.
    pub max: Duration,
}

impl SourceConfig for SrvSettings {
    fn kind(&self) -> &'static str {
        "srv"
    }

    fn target(&self) -> String {
        self.name.clone()
    }

    fn query_timeout(&self) -> Duration {
        self.resolver.timeout
    }

    fn retry_delay(&self, failures: u32) -> Duration {
        retry_backoff(self.min, self.max, failures)
    }

    fn open(&self) -> Box<dyn MemberSource> {
        Box::new(SrvSource { settings: Arc::new(self.clone()), families: BTreeMap::new() })
    }
}

struct SrvSource {
    settings: Arc<SrvSettings>,
    /// The last known addresses of each target.
    families: BTreeMap<Name, KnownAddresses>,
}

impl MemberSource for SrvSource {
    fn query(&mut self) -> QueryFuture<'_> {
        Box::pin(async move {
            let settings = &self.settings;
            let resolver = Arc::new(Resolver::new(&settings.resolver, 2).await);
            let reply = resolver.query(&parse_name(&settings.name)?, RecordType::SRV).await?;
            let servers = lowest_priority(&reply.data);
            if servers.len() > MAX_MEMBERS {
                return Err(too_many_message(servers.len()));
            }
            let mut ttl = reply.ttl;
            let mut addresses_by_name = additional_addresses(&reply.additional, settings.family, &mut ttl);
            let mut targets: Vec<Name> = servers.iter().map(|server| server.target.to_lowercase()).collect();
            targets.sort_unstable();
            targets.dedup();
            targets.retain(|target| !addresses_by_name.contains_key(target));
            for partly_weighted in targets.chunks(MAX_CONCURRENT_LOOKUPS) {
                let mut tasks = JoinSet::new();
                for target in partly_weighted.iter().cloned() {
                    let (resolver, family) = (Arc::clone(&resolver), settings.family);
                    let mut families = self.families.get(&target).cloned().unwrap_or_default();
                    tasks.spawn(async move {
                        let lookup = look_up_addresses(&resolver, &target, family, &mut families).await;
                        (target, families, lookup)
                    });
                }
                while let Some(task_result) = tasks.join_next().await {
                    let (target, families, lookup) = task_result.map_err(|error| error.to_string())?;
                    self.families.insert(target.clone(), families);
                    let lookup = lookup?;
                    // A target with a failed family is queried again soon.
                    let valid_for = lookup.valid_for(settings.min, settings.max).as_secs();
                    ttl = ttl.min(lookup.ttl).min(u32::try_from(valid_for).unwrap_or(u32::MAX));
                    addresses_by_name.insert(target, lookup.addresses);
                }
            }
            // Targets that are no longer listed are forgotten.
            self.families.retain(|target, _| targets.contains(target));
            let note = match (reply.name_missing, servers.is_empty()) {
                (true, _) => "there is no such name (NXDOMAIN)",
                (false, true) => "the name has no server",
                (false, false) => "none of its servers has an address",
            };
            Ok(QueryOutcome {
                list: MemberList { members: Some(members(&servers, &addresses_by_name)?), note: Some(note) },
                valid_for: ttl_duration(ttl).clamp(settings.min, settings.max.max(settings.min)),
            })
        })
    }
}

/// Returns the servers with the lowest priority. A target `.` means that there is no such service, and a port
/// 0 that no server runs there.
pub(super) fn lowest_priority(data: &[RData]) -> Vec<SRV> {
    let servers = data.iter().filter_map(|data| match data {
        RData::SRV(server) if !server.target.is_root() && server.port != 0 => Some(server),
        _ => None,
    });
    let servers: Vec<&SRV> = servers.collect();
    let min_priority = servers.iter().map(|server| server.priority).min();
    let mut selected: Vec<SRV> =
        servers.into_iter().filter(|server| Some(server.priority) == min_priority).cloned().collect();
    // Name servers rotate their responses, and floating-point sums depend on the order.
    selected.sort_unstable_by(|left_server, right_server| {
        (left_server.port, left_server.weight, &left_server.target).cmp(&(
            right_server.port,
            right_server.weight,
            &right_server.target,
        ))
    });
    selected
}

/// Returns the addresses in the additional records, by target, and lowers `ttl` to theirs.
pub(super) fn additional_addresses(
    records: &[Record],
    family: AddressFamily,
    ttl: &mut u32,
) -> BTreeMap<Name, Vec<IpAddr>> {
    let mut addresses_by_name: BTreeMap<Name, Vec<IpAddr>> = BTreeMap::new();
    for record in records {
        let is_in_family = |ip: &IpAddr| match family {
            AddressFamily::Any => true,
            AddressFamily::V4 => ip.is_ipv4(),
            AddressFamily::V6 => ip.is_ipv6(),
        };
        if let Some(ip) = record_address(&record.data).filter(is_in_family) {
            addresses_by_name.entry(record.name.to_lowercase()).or_default().push(ip);
            *ttl = (*ttl).min(record.ttl);
        }
    }
    addresses_by_name
}

/// Returns the members sorted by address, each address once: two records may lead to the same one.
///
/// # Errors
/// There are too many: a few thousand ports of a name with as many addresses would exhaust the memory.
pub(super) fn members(
    servers: &[SRV],
    addresses_by_name: &BTreeMap<Name, Vec<IpAddr>>,
) -> Result<Vec<DiscoveredMember>, String> {
    let has_weights = servers.iter().any(|server| server.weight > 0);
    let mut capacities: BTreeMap<SocketAddr, f64> = BTreeMap::new();
    for server in servers {
        let Some(addresses) = addresses_by_name.get(&server.target.to_lowercase()) else { continue };
        let weight = match (has_weights, server.weight) {
            (false, _) => 1.0,
            (true, 0) => ZERO_WEIGHT_CAPACITY,
            (true, weight) => f64::from(weight),
        };
        for ip in addresses {
            // The weight selects the target, and each of its addresses gets an equal part.
            *capacities.entry((*ip, server.port).into()).or_default() += weight / addresses.len() as f64;
        }
        if capacities.len() > MAX_MEMBERS {
            return Err(format!("it lists more than {MAX_MEMBERS} members: split the group"));
        }
    }
    let to_member = |(address, capacity): (SocketAddr, f64)| DiscoveredMember {
        name: address.to_string().into(),
        address,
        capacity,
        limit: None,
        leaving: false,
    };
    Ok(capacities.into_iter().map(to_member).collect())
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::rdata::A;

    use super::*;

    fn server(priority: u16, weight: u16, port: u16, target: &str) -> RData {
        RData::SRV(SRV::new(priority, weight, port, parse_name(target).unwrap()))
    }

    fn member_capacities(data: &[RData]) -> Vec<(String, f64)> {
        let address = |host: &str, last_octet: u8| {
            Record::from_rdata(parse_name(host).unwrap(), 5, RData::A(A([10, 0, 0, last_octet].into())))
        };
        let records = [address("A.example", 1), address("b.example", 2), address("b.example", 3)];
        let mut ttl = 60;
        let addresses_by_name = additional_addresses(&records, AddressFamily::Any, &mut ttl);
        assert_eq!(ttl, 5);
        let members = members(&lowest_priority(data), &addresses_by_name).unwrap();
        members.into_iter().map(|member| (member.name.to_string(), member.capacity)).collect()
    }

    #[test]
    fn weights_are_capacities_and_the_lowest_priority_counts() {
        let data = [
            server(1, 30, 80, "a.example"),
            server(1, 10, 81, "B.Example"),
            server(2, 99, 82, "a.example"),
            server(0, 99, 0, "a.example"),
            server(1, 7, 83, "c.example"),
        ];
        let expected = [("10.0.0.1:80", 30.0), ("10.0.0.2:81", 5.0), ("10.0.0.3:81", 5.0)];
        assert_eq!(member_capacities(&data), expected.map(|(name, capacity)| (name.to_owned(), capacity)));
    }

    #[test]
    fn weights_of_nothing() {
        let unweighted = [server(1, 0, 80, "a.example"), server(1, 0, 80, "b.example")];
        assert_eq!(member_capacities(&unweighted)[0].1, 1.0);
        assert_eq!(member_capacities(&unweighted)[1].1, 0.5);
        let partly_weighted = [server(1, 0, 80, "a.example"), server(1, 4, 80, "b.example")];
        assert_eq!(member_capacities(&partly_weighted)[0].1, ZERO_WEIGHT_CAPACITY);
        // A repeated address has the sum of the weights.
        let repeated = [server(1, 3, 80, "a.example"), server(1, 4, 80, "a.example")];
        assert_eq!(member_capacities(&repeated), [("10.0.0.1:80".to_owned(), 7.0)]);
        assert_eq!(member_capacities(&[server(0, 0, 80, ".")]), []);
        assert_eq!(member_capacities(&[]), []);
    }
}
