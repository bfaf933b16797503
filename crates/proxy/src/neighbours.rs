//! Members of several groups on one host: once per second, the load of each shared host is attributed, and
//! each group gets the result.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use plimsoll_brain::neighbours::{Neighbours, Stake};
use plimsoll_brain::status::HostStatus;
use plimsoll_brain::{Analyzer, MemberId, MemberSpec, Time};

use crate::GroupSettings;
use crate::control::{Control, Ruled};

/// The hosts of a group's members.
#[derive(Default)]
pub(crate) struct Hosts {
    of: BTreeMap<MemberId, Arc<str>>,
    /// The status of the hosts that are shared with other groups.
    shared: BTreeMap<MemberId, HostStatus>,
}

impl Hosts {
    pub(crate) fn new(analyzer: &Analyzer, settings: &GroupSettings) -> Self {
        let host = |spec: &MemberSpec| match settings.hosts.get(&spec.name) {
            Some(label) => Arc::clone(label),
            None => spec.address.ip().to_canonical().to_string().into(),
        };
        let of = analyzer.members().map(|(id, spec, _)| (id, host(spec))).collect();
        Self { of, shared: BTreeMap::new() }
    }

    /// Returns each host once.
    fn all(&self) -> BTreeSet<&Arc<str>> {
        self.of.values().collect()
    }

    /// Returns a member's host.
    pub(crate) fn of(&self, member: MemberId) -> Option<&Arc<str>> {
        self.of.get(&member)
    }

    /// Returns the members with which a member shares its host, if there are any.
    pub(crate) fn shared(&self, member: MemberId) -> Option<&HostStatus> {
        self.shared.get(&member)
    }
}

/// Counts the groups with members on each host. For most hosts there is only one, and nothing to do.
#[derive(Default)]
pub(crate) struct Sharing {
    groups: HashMap<Arc<str>, usize>,
    /// The number of hosts with several groups.
    shared: usize,
    /// Whether any host was shared at the last run.
    before: bool,
}

impl Sharing {
    /// Adds a group's hosts.
    pub(crate) fn come(&mut self, hosts: &Hosts) {
        for host in hosts.all() {
            let groups = self.groups.entry(Arc::clone(host)).or_default();
            *groups += 1;
            self.shared += usize::from(*groups == 2);
        }
    }

    /// Removes a group's hosts.
    pub(crate) fn go(&mut self, hosts: &Hosts) {
        for host in hosts.all() {
            let Some(groups) = self.groups.get_mut(host) else { continue };
            *groups -= 1;
            self.shared -= usize::from(*groups == 1);
            if *groups == 0 {
                self.groups.remove(host);
            }
        }
    }

    /// Returns `true` if a run is required; also once more after the last shared host has ceased to be
    /// shared.
    fn matters(&mut self) -> bool {
        std::mem::replace(&mut self.before, self.shared > 0) || self.shared > 0
    }
}

impl Control {
    /// Attributes the load of shared hosts.
    pub(crate) fn look_at_hosts(&mut self, now: Time) {
        if !self.sharing.matters() {
            return;
        }
        let stakes = self.groups.values().flat_map(Ruled::stakes);
        let stakes: Vec<Stake> = stakes.collect();
        self.neighbours.observe(&stakes, now);
        for (name, ruled) in &mut self.groups {
            ruled.share_hosts(name, &self.neighbours);
        }
        while let Some(event) = self.neighbours.poll_event() {
            self.journal.write(event);
        }
    }
}

impl Ruled {
    fn stakes(&self) -> impl Iterator<Item = Stake> + '_ {
        self.analyzer.members().filter_map(|(id, _, vitals)| {
            let host = Arc::clone(self.hosts.of.get(&id)?);
            Some(Stake { host, group: Arc::clone(&self.group.name), busy: f64::from(vitals.in_flight()) })
        })
    }

    fn share_hosts(&mut self, name: &Arc<str>, neighbours: &Neighbours) {
        let Hosts { of, shared } = &mut self.hosts;
        shared.clear();
        for (id, host) in of {
            let share = neighbours.share(host, name);
            self.analyzer.set_host_share(*id, share);
            if share.1 > 1 {
                let others = neighbours.others(host, name);
                let others = others.into_iter().map(|(name, part)| (name.to_string(), part)).collect();
                shared.insert(*id, HostStatus { name: host.to_string(), own: share.0, others });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(names: &[&str]) -> Hosts {
        let of = names.iter().zip(0..).map(|(name, id)| (MemberId(id), Arc::from(*name))).collect();
        Hosts { of, shared: BTreeMap::new() }
    }

    #[test]
    fn hosts_matter_as_long_as_several_groups_have_one() {
        let mut sharing = Sharing::default();
        let (one, other) = (hosts(&["a", "b", "b"]), hosts(&["b", "c"]));
        sharing.come(&one);
        assert!(!sharing.matters(), "a group does not share a host with itself");
        sharing.come(&other);
        assert!(sharing.matters() && sharing.matters());
        sharing.go(&one);
        assert!(sharing.matters(), "who shared one has to be told");
        assert!(!sharing.matters());
        sharing.go(&other);
        assert!(sharing.groups.is_empty());
    }
}
