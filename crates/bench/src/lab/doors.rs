//! Servers that several groups of one balancer have members at: each server has a door for every group, and tells the balancer how
//! many requests it has in all, whichever door they came by.
//!
//! What is told is of the host as a whole, at one moment and to all groups, as a monitor of hosts tells it. That the members of
//! different groups are on one host the balancer is told by their `host`, unless it is to be hidden.

use std::net::SocketAddr;

use super::Trouble;
use super::network::{Network, Seat};

/// The doors of all servers.
#[derive(Clone, Debug)]
pub(super) struct Doors {
    groups: usize,
    hidden: bool,
    /// Where the balancer takes reports.
    reports: SocketAddr,
    /// By server, one for each group.
    servers: Vec<Vec<SocketAddr>>,
}

impl Doors {
    /// Of so many groups, before any server runs; `hidden` if the balancer is not to know who is where.
    pub(super) fn new(network: &Network, groups: usize, hidden: bool) -> Result<Self, Trouble> {
        let reports = network.listen(Seat::Balancer)?;
        Ok(Self { groups, hidden, reports, servers: Vec::new() })
    }

    /// Those of the next server, whose first is `listen`: what it is to be told.
    pub(super) fn open(&mut self, network: &Network, listen: SocketAddr) -> Result<Vec<String>, Trouble> {
        let seat = Seat::Member(self.servers.len() + 1);
        let mut doors = vec![listen];
        for _ in 1..self.groups {
            doors.push(network.listen(seat)?);
        }
        let mut told = vec![format!("--tell={}", self.reports)];
        told.extend(doors[1..].iter().map(|door| format!("--also={door}")));
        self.servers.push(doors);
        // What it tells is of the host, by each name that this has.
        let number = self.servers.len();
        let mut hosts: Vec<_> = (0..self.groups).map(|group| self.host(number, group)).collect();
        hosts.dedup();
        told.extend(hosts.iter().map(|host| format!("--tell-as={host}")));
        Ok(told)
    }

    /// What a group, counted from 0, calls the host of a server, counted from 1.
    fn host(&self, number: usize, group: usize) -> String {
        if self.hidden { format!("host{number}-{}", group + 1) } else { format!("host{number}") }
    }

    /// How many groups there are.
    pub(super) fn groups(&self) -> usize {
        self.groups
    }

    /// Where the balancer takes reports.
    pub(super) fn reports(&self) -> SocketAddr {
        self.reports
    }

    /// The members of a group, counted from 0, as the balancer's file has them.
    pub(super) fn members(&self, group: usize) -> Vec<serde_json::Value> {
        let member = |(number, doors): (usize, &Vec<SocketAddr>)| {
            let host = self.host(number, group);
            Some(serde_json::json!({ "address": doors.get(group)?.to_string(), "host": host }))
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
        let network = Network::build(&experiment::Network::default()).unwrap();
        let listen = network.listen(Seat::Member(1)).unwrap();
        for hidden in [false, true] {
            let mut doors = Doors::new(&network, 3, hidden).unwrap();
            let told = doors.open(&network, listen).unwrap();
            let count = |flag: &str| told.iter().filter(|told| told.starts_with(flag)).count();
            let names = if hidden { 3 } else { 1 };
            assert_eq!((count("--tell="), count("--also="), count("--tell-as=")), (1, 2, names), "{told:?}");
            let members = [0, 1, 2].map(|group| doors.members(group));
            assert!(members.iter().all(|members| members.len() == 1));
            assert_eq!(members[0][0]["address"], listen.to_string());
            assert!(told.contains(&format!("--also={}", members[2][0]["address"].as_str().unwrap())));
            assert_eq!(members[0][0]["host"] == members[1][0]["host"], !hidden);
            for members in &members {
                let host = members[0]["host"].as_str().unwrap();
                assert!(told.contains(&format!("--tell-as={host}")), "{told:?}");
            }
        }
    }
}
