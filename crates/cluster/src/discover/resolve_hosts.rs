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
pub async fn resolve_members(stated: Vec<UnresolvedMember>) -> Result<Vec<DiscoveredMember>, String> {
    if stated.len() > MAX_MEMBERS {
        return Err(too_many_message(stated.len()));
    }
    let mut known: BTreeMap<String, IpAddr> = BTreeMap::new();
    let mut names: Vec<String> = Vec::new();
    for UnresolvedMember { host, .. } in &stated {
        match host.parse() {
            Ok(ip) => drop(known.insert(host.clone(), ip)),
            Err(_) => names.push(host.clone()),
        }
    }
    names.sort_unstable();
    names.dedup();
    for some in names.chunks(MAX_CONCURRENT_LOOKUPS) {
        let mut tasks = JoinSet::new();
        for host in some.iter().cloned() {
            tasks.spawn(async move {
                let found = lookup_host((host.as_str(), 0)).await.map(preferred_address);
                (host, found)
            });
        }
        while let Some(ended) = tasks.join_next().await {
            let (host, found) = ended.map_err(|error| error.to_string())?;
            match found {
                Ok(Some(ip)) => drop(known.insert(host, ip)),
                Ok(None) => return Err(format!("cannot look up `{host}`: the name has no address")),
                Err(error) => return Err(format!("cannot look up `{host}`: {error}")),
            }
        }
    }
    let listed = |one: UnresolvedMember| {
        let ip = *known.get(&one.host)?;
        let host = if one.host.contains(':') { format!("[{}]", one.host) } else { one.host };
        Some(DiscoveredMember {
            name: format!("{host}:{}", one.port).into(),
            address: (ip, one.port).into(),
            capacity: one.capacity,
            limit: one.limit,
            leaving: false,
        })
    };
    Ok(stated.into_iter().filter_map(listed).collect())
}

fn preferred_address(found: impl Iterator<Item = SocketAddr>) -> Option<IpAddr> {
    let found: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    found.iter().find(|ip| ip.is_ipv4()).or_else(|| found.first()).copied()
}

/// Returns the message for a list that is too long.
pub(super) fn too_many_message(count: usize) -> String {
    format!("it lists {count} members, and {MAX_MEMBERS} is the most: split the group")
}
