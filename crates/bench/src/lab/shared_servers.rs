//! Servers with members in several groups of one balancer. Each server has an address for every group, and
//! reports its total number of requests over all addresses.
//!
//! The reports are of the host as a whole, at one moment and to all groups, like those of a host monitor. The
//! balancer learns by `host` that members of different groups share a host, unless that is hidden.

use std::net::SocketAddr;

use super::LabError;
use super::network::{PointHost, PointNetwork};

/// The addresses of all servers.
#[derive(Clone, Debug)]
pub(super) struct SharedServers {
    groups: usize,
    hides_hosts: bool,
    /// The address at which the balancer takes reports.
    report_address: SocketAddr,
    /// The addresses by server, one for each group.
    servers: Vec<Vec<SocketAddr>>,
}

impl SharedServers {
    /// Prepares `groups` groups before any server runs. With `hidden`, the balancer does not learn which
    /// members share a host.
    pub(super) fn new(network: &PointNetwork, groups: usize, hides_hosts: bool) -> Result<Self, LabError> {
        let report_address = network.free_address(PointHost::Balancer)?;
        Ok(Self { groups, hides_hosts, report_address, servers: Vec::new() })
    }

    /// Adds the next server with its first address `listen`; returns its further arguments.
    pub(super) fn add_server(
        &mut self,
        network: &PointNetwork,
        listen: SocketAddr,
    ) -> Result<Vec<String>, LabError> {
        let point_host = PointHost::Member(self.servers.len() + 1);
        let mut addresses = vec![listen];
        for _ in 1..self.groups {
            addresses.push(network.free_address(point_host)?);
        }
        let mut arguments = vec![format!("--tell={}", self.report_address)];
        arguments.extend(addresses[1..].iter().map(|address| format!("--also={address}")));
        self.servers.push(addresses);
        // The server's reports are of the host, under each of its names.
        let number = self.servers.len();
        let mut hosts: Vec<_> = (0..self.groups).map(|group| self.host_name(number, group)).collect();
        hosts.dedup();
        arguments.extend(hosts.iter().map(|host| format!("--tell-as={host}")));
        Ok(arguments)
    }

    /// Returns the host name of a server, counted from 1, in a group, counted from 0.
    fn host_name(&self, number: usize, group: usize) -> String {
        if self.hides_hosts { format!("host{number}-{}", group + 1) } else { format!("host{number}") }
    }

    /// Returns the number of groups.
    pub(super) fn group_count(&self) -> usize {
        self.groups
    }

    /// Returns the address at which the balancer takes reports.
    pub(super) fn report_address(&self) -> SocketAddr {
        self.report_address
    }

    /// Returns the members of a group, counted from 0, for the balancer's file.
    pub(super) fn members(&self, group: usize) -> Vec<serde_json::Value> {
        let member = |(number, addresses): (usize, &Vec<SocketAddr>)| {
            let host = self.host_name(number, group);
            Some(serde_json::json!({ "address": addresses.get(group)?.to_string(), "host": host }))
        };
        (1..).zip(&self.servers).filter_map(member).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::experiment;

    #[test]
    fn each_server_has_a_door_for_every_group_and_hosts_have_one_name_unless_hidden() {
        let network = PointNetwork::build(&experiment::NetworkSettings::default()).unwrap();
        let listen = network.free_address(PointHost::Member(1)).unwrap();
        for hidden in [false, true] {
            let mut shared_servers = SharedServers::new(&network, 3, hidden).unwrap();
            let arguments = shared_servers.add_server(&network, listen).unwrap();
            let count = |flag: &str| arguments.iter().filter(|argument| argument.starts_with(flag)).count();
            let names = if hidden { 3 } else { 1 };
            assert_eq!(
                (count("--tell="), count("--also="), count("--tell-as=")),
                (1, 2, names),
                "{arguments:?}"
            );
            let members = [0, 1, 2].map(|group| shared_servers.members(group));
            assert!(members.iter().all(|members| members.len() == 1));
            assert_eq!(members[0][0]["address"], listen.to_string());
            assert!(arguments.contains(&format!("--also={}", members[2][0]["address"].as_str().unwrap())));
            assert_eq!(members[0][0]["host"] == members[1][0]["host"], !hidden);
            for members in &members {
                let host = members[0]["host"].as_str().unwrap();
                assert!(arguments.contains(&format!("--tell-as={host}")), "{arguments:?}");
            }
        }
    }
}
