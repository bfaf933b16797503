//! Members of several groups on one host: once per second, the load of each shared host is attributed, and
//! each group gets the result.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use plimsoll_brain::shared_hosts::{HostWork, SharedHosts};
use plimsoll_brain::status::HostStatus;
use plimsoll_brain::{Analyzer, MemberId, MemberSpec, Time};

use crate::GroupSettings;
use crate::control::{ControlPlane, GroupState};

/// The hosts of a group's members.
#[derive(Default)]
pub(crate) struct MemberHosts {
    by_member: BTreeMap<MemberId, Arc<str>>,
    /// The status of the hosts that are shared with other groups.
    shared: BTreeMap<MemberId, HostStatus>,
}

impl MemberHosts {
    pub(crate) fn new(analyzer: &Analyzer, settings: &GroupSettings) -> Self {
        let host_name = |spec: &MemberSpec| match settings.hosts.get(&spec.name) {
            Some(label) => Arc::clone(label),
            None => spec.address.ip().to_canonical().to_string().into(),
        };
        let by_member = analyzer.members().map(|(id, spec, _)| (id, host_name(spec))).collect();
        Self { by_member, shared: BTreeMap::new() }
    }

    /// Returns each host once.
    fn distinct_hosts(&self) -> BTreeSet<&Arc<str>> {
        self.by_member.values().collect()
    }

    /// Returns a member's host.
    pub(crate) fn host_of(&self, member: MemberId) -> Option<&Arc<str>> {
        self.by_member.get(&member)
    }

    /// Returns the members with which a member shares its host, if there are any.
    pub(crate) fn shared_status(&self, member: MemberId) -> Option<&HostStatus> {
        self.shared.get(&member)
    }
}

/// Counts the groups with members on each host. For most hosts there is only one, and nothing to do.
#[derive(Default)]
pub(crate) struct HostSharing {
    groups: HashMap<Arc<str>, usize>,
    /// The number of hosts with several groups.
    shared: usize,
    /// Whether any host was shared at the last run.
    was_shared: bool,
}

impl HostSharing {
    /// Adds a group's hosts.
    pub(crate) fn add(&mut self, hosts: &MemberHosts) {
        for host in hosts.distinct_hosts() {
            let groups = self.groups.entry(Arc::clone(host)).or_default();
            *groups += 1;
            self.shared += usize::from(*groups == 2);
        }
    }

    /// Removes a group's hosts.
    pub(crate) fn remove(&mut self, hosts: &MemberHosts) {
        for host in hosts.distinct_hosts() {
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
    fn is_due(&mut self) -> bool {
        std::mem::replace(&mut self.was_shared, self.shared > 0) || self.shared > 0
    }
}

impl ControlPlane {
    /// Attributes the load of shared hosts.
    pub(crate) fn attribute_host_loads(&mut self, now: Time) {
        if !self.host_sharing.is_due() {
            return;
        }
        let work = self.groups.values().flat_map(GroupState::host_work);
        let host_work: Vec<HostWork> = work.collect();
        self.shared_hosts.observe(&host_work, now);
        for (name, group_state) in &mut self.groups {
            group_state.update_shared_hosts(name, &self.shared_hosts);
        }
        while let Some(event) = self.shared_hosts.poll_event() {
            self.event_log.write(event);
        }
    }
}

impl GroupState {
    fn host_work(&self) -> impl Iterator<Item = HostWork> + '_ {
        self.analyzer.members().filter_map(|(id, _, vitals)| {
            let host = Arc::clone(self.hosts.by_member.get(&id)?);
            Some(HostWork {
                host,
                group: Arc::clone(&self.group.name),
                mean_in_progress: f64::from(vitals.in_flight()),
            })
        })
    }

    fn update_shared_hosts(&mut self, name: &Arc<str>, shared_hosts: &SharedHosts) {
        let MemberHosts { by_member, shared } = &mut self.hosts;
        shared.clear();
        for (id, host) in by_member {
            let share = shared_hosts.share(host, name);
            self.analyzer.set_host_share(*id, share);
            if share.1 > 1 {
                let other_shares = shared_hosts.others(host, name);
                let other_shares =
                    other_shares.into_iter().map(|(name, share)| (name.to_string(), share)).collect();
                shared.insert(*id, HostStatus { name: host.to_string(), own: share.0, others: other_shares });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(names: &[&str]) -> MemberHosts {
        let by_member = names.iter().zip(0..).map(|(name, id)| (MemberId(id), Arc::from(*name))).collect();
        MemberHosts { by_member, shared: BTreeMap::new() }
    }

    #[test]
    fn hosts_matter_as_long_as_several_groups_have_one() {
        let mut host_sharing = HostSharing::default();
        let (first, second) = (hosts(&["a", "b", "b"]), hosts(&["b", "c"]));
        host_sharing.add(&first);
        assert!(!host_sharing.is_due(), "a group does not share a host with itself");
        host_sharing.add(&second);
        assert!(host_sharing.is_due() && host_sharing.is_due());
        host_sharing.remove(&first);
        assert!(host_sharing.is_due(), "who shared one has to be told");
        assert!(!host_sharing.is_due());
        host_sharing.remove(&second);
        assert!(host_sharing.groups.is_empty());
    }
}
