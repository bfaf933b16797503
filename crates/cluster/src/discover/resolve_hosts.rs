//! Resolves the hosts of listed members, as those in the configuration: by the system's resolver, the first
//! IPv4 address, or else the first one. A failed lookup invalidates the whole list, so that no member is lost
//! while a resolver is down.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use tokio::net::lookup_host;
use tokio::task::JoinSet;

use super::{DiscoveredMember, MAX_MEMBERS, UnresolvedMember};

/// The maximum number of concurrent lookups.
const MAX_CONCURRENT_LOOKUPS: usize = 32;

/// Resolves all members. It requires a tokio runtime with time and I/O.
///
/// # Errors
/// One line: there are too many members, or a name has no address.
pub async fn resolve_members(unresolved: Vec<UnresolvedMember>) -> Result<Vec<DiscoveredMember>, String> {
    if unresolved.len() > MAX_MEMBERS {
        return Err(too_many_message(unresolved.len()));
    }
    let mut resolved: BTreeMap<String, IpAddr> = BTreeMap::new();
    let mut names: Vec<String> = Vec::new();
    for UnresolvedMember { host, .. } in &unresolved {
        match host.parse() {
            Ok(ip) => drop(resolved.insert(host.clone(), ip)),
            Err(_) => names.push(host.clone()),
        }
    }
    names.sort_unstable();
    names.dedup();
    for hosts in names.chunks(MAX_CONCURRENT_LOOKUPS) {
        let mut tasks = JoinSet::new();
        for host in hosts.iter().cloned() {
            tasks.spawn(async move {
                let address = lookup_host((host.as_str(), 0)).await.map(preferred_address);
                (host, address)
            });
        }
        while let Some(task_result) = tasks.join_next().await {
            let (host, address) = task_result.map_err(|error| error.to_string())?;
            match address {
                Ok(Some(ip)) => drop(resolved.insert(host, ip)),
                Ok(None) => return Err(format!("cannot look up `{host}`: the name has no address")),
                Err(error) => return Err(format!("cannot look up `{host}`: {error}")),
            }
        }
    }
    let to_member = |member: UnresolvedMember| {
        let ip = *resolved.get(&member.host)?;
        let host = if member.host.contains(':') { format!("[{}]", member.host) } else { member.host };
        Some(DiscoveredMember {
            name: format!("{host}:{}", member.port).into(),
            address: (ip, member.port).into(),
            capacity: member.capacity,
            limit: member.limit,
            leaving: false,
        })
    };
    Ok(unresolved.into_iter().filter_map(to_member).collect())
}

fn preferred_address(addresses: impl Iterator<Item = SocketAddr>) -> Option<IpAddr> {
    let addresses: Vec<IpAddr> = addresses.map(|address| address.ip()).collect();
    addresses.iter().find(|ip| ip.is_ipv4()).or_else(|| addresses.first()).copied()
}

/// Returns the message for a list that is too long.
pub(super) fn too_many_message(count: usize) -> String {
    format!("it lists {count} members, and {MAX_MEMBERS} is the most: split the group")
}
