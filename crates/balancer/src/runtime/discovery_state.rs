//! Members from sources: the answers of each group's sources, and the part of them that is in force.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use plimsoll_brain::status::GroupStatus;
use plimsoll_brain::{Event, EventKind, MemberSpec};
use plimsoll_cluster::discover::{
    DiscoveredMember, MemberChange, MemberSet, SourceEvent, SourceHandoff, SourceUpdate,
};
use plimsoll_config::GroupDiscovery;
use plimsoll_proxy as proxy;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::operator_state::Reapply;
use super::{BalancerRuntime, lock};
use crate::runtime_config::{ConfigOverlay, FileConfig};

/// The answers of the sources.
#[derive(Debug, Default)]
pub(crate) struct DiscoveryState {
    memberships: Mutex<BTreeMap<Arc<str>, GroupMembership>>,
    /// The signal that other sources are in the configuration.
    pub(super) sources_changed: Notify,
}

/// The answers for a group.
#[derive(Clone, Debug, Default)]
struct GroupMembership {
    limit: u32,
    sources: MemberSet,
    /// Whether an answer came since the last change was put in force.
    has_news: bool,
}

/// The last answers of a group's sources, for a process that takes over.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SourceAnswers {
    group: String,
    sources: Vec<SourceHandoff>,
}

/// Members to be put in force.
#[derive(Debug)]
pub(crate) struct MemberProposal {
    /// All members from sources, by group.
    pub members: BTreeMap<Arc<str>, Vec<MemberSpec>>,
    /// The groups with changes.
    changes: Vec<(Arc<str>, MemberChange)>,
}

impl GroupMembership {
    fn specs(&self, members: &[DiscoveredMember]) -> Vec<MemberSpec> {
        let spec = |member: &DiscoveredMember| MemberSpec {
            name: Arc::clone(&member.name),
            address: member.address,
            capacity: member.capacity,
            limit: member.limit.unwrap_or(self.limit),
            leaving: member.leaving,
            checked: false,
        };
        members.iter().map(spec).collect()
    }
}

impl DiscoveryState {
    /// Returns the sources of a file, without any answer yet.
    pub(crate) fn new(file_config: &FileConfig) -> Self {
        let state = Self::default();
        replace_sources(&mut lock(&state.memberships), file_config);
        state
    }

    /// Returns the last answers of the sources.
    pub(crate) fn last_answers(&self) -> Vec<SourceAnswers> {
        let now = Instant::now();
        let source_answers = |(group, membership): (&Arc<str>, &GroupMembership)| SourceAnswers {
            group: group.to_string(),
            sources: membership.sources.handoff(now),
        };
        lock(&self.memberships)
            .iter()
            .map(source_answers)
            .filter(|answers| !answers.sources.is_empty())
            .collect()
    }

    /// Takes over the answers of the same sources to a process before this one, until they answer themselves.
    pub(crate) fn restore_answers(&self, answers: Vec<SourceAnswers>) {
        let (now, mut memberships) = (Instant::now(), lock(&self.memberships));
        for SourceAnswers { group, sources } in answers {
            if let Some(membership) = memberships.get_mut(group.as_str()) {
                membership.sources.restore(sources, now);
                membership.has_news = true;
            }
        }
    }

    /// Takes an answer of a source; returns its event.
    pub(crate) fn record_answer(&self, update: SourceUpdate) -> Option<Event> {
        let SourceUpdate { group, source, result } = update;
        let event = {
            let mut memberships = lock(&self.memberships);
            let membership = memberships.get_mut(&group)?;
            membership.has_news = true;
            membership.sources.record_update(&source, result, Instant::now())?
        };
        let (kind, reason, input) = match event {
            SourceEvent::Failed(reason, members) => {
                (EventKind::DiscoveryFailed, reason, ("members", members as f64))
            }
            SourceEvent::Recovered(reason, duration) => {
                (EventKind::DiscoveryRecovered, reason, ("seconds", duration.as_secs_f64()))
            }
        };
        Some(Event { kind, group, member: None, why: reason, inputs: vec![(input.0.to_owned(), input.1)] })
    }

    /// Returns `true` if each source has answered or failed.
    pub(crate) fn all_answered(&self) -> bool {
        lock(&self.memberships).values().all(|membership| membership.sources.have_all_responded())
    }

    /// Returns the time of the next change without an answer.
    pub(crate) fn next_change_at(&self) -> Option<Instant> {
        lock(&self.memberships).values().filter_map(|membership| membership.sources.next_due()).min()
    }

    /// Returns the present members of the sources, by those of another file if there is one. Nothing counts
    /// as in force yet.
    pub(crate) fn propose(&self, file_config: Option<&FileConfig>) -> MemberProposal {
        let now = Instant::now();
        let mut memberships = {
            let mut memberships = lock(&self.memberships);
            memberships.values_mut().for_each(|membership| membership.sources.prune(now));
            memberships.clone()
        };
        if let Some(file_config) = file_config {
            replace_sources(&mut memberships, file_config);
        }
        let (mut members, mut changes) = (BTreeMap::new(), Vec::new());
        for (group, membership) in &mut memberships {
            if let Some(change) = membership.sources.propose(now) {
                changes.push((Arc::clone(group), change.clone()));
                membership.sources.accept(change);
            }
            members.insert(Arc::clone(group), membership.specs(membership.sources.accepted()));
        }
        MemberProposal { members, changes }
    }

    /// Returns the present members of the groups with an answer, or with members that are to go. `passed`
    /// returns the members of a group that are up.
    fn changed_groups(&self, healthy_members: impl Fn(&str) -> BTreeSet<String>) -> MemberProposal {
        let now = Instant::now();
        let (mut members, mut changes) = (BTreeMap::new(), Vec::new());
        for (group, membership) in lock(&self.memberships).iter_mut() {
            if !std::mem::take(&mut membership.has_news)
                && membership.sources.next_due().is_none_or(|due_at| due_at > now)
            {
                continue;
            }
            if membership.sources.is_replacing() {
                membership.sources.retire_replaced(&healthy_members(group), now);
            }
            if let Some(change) = membership.sources.propose(now) {
                members.insert(Arc::clone(group), membership.specs(&change.members));
                changes.push((Arc::clone(group), change));
            }
        }
        MemberProposal { members, changes }
    }

    /// Keeps a proposal that is not in force, so that it is made again.
    fn requeue(&self, proposal: &MemberProposal) {
        let mut memberships = lock(&self.memberships);
        for (group, _) in &proposal.changes {
            if let Some(membership) = memberships.get_mut(group) {
                membership.has_news = true;
            }
        }
    }

    /// Returns a file's settings with the members of the sources.
    pub(crate) fn settings(&self, file_config: &FileConfig) -> proxy::Settings {
        let mut overlay = ConfigOverlay::default();
        overlay.set_discovered(self.propose(None).members);
        file_config.with_overlay(&overlay).settings
    }

    /// Marks a proposal as in force; returns its events. Answers that came meanwhile are the next change.
    pub(crate) fn accept(&self, proposal: MemberProposal, file_config: Option<&FileConfig>) -> Vec<Event> {
        let mut memberships = lock(&self.memberships);
        if let Some(file_config) = file_config {
            replace_sources(&mut memberships, file_config);
            self.sources_changed.notify_one();
        }
        let mut events = Vec::new();
        for (group, change) in proposal.changes {
            if let Some(membership) = memberships.get_mut(&group) {
                events.push(event(&group, &change));
                membership.sources.accept(change);
            }
        }
        events
    }

    /// Fills in the status of the sources.
    pub(super) fn fill_status(&self, groups: &mut [GroupStatus]) {
        let memberships = lock(&self.memberships);
        for group in groups {
            if let Some(membership) = memberships.get(group.name.as_str()) {
                group.discovery = membership.sources.status(Instant::now());
            }
        }
    }
}

/// Uses the sources of a file from now on. Those that stay keep their answers.
fn replace_sources(memberships: &mut BTreeMap<Arc<str>, GroupMembership>, file_config: &FileConfig) {
    let now = Instant::now();
    let mut previous = std::mem::take(memberships);
    for GroupDiscovery { group, limit, sources } in &file_config.discoveries {
        let group_sources = previous.remove(group).unwrap_or_default().sources;
        let group_sources = group_sources
            .set_sources(listed_names(file_config, group), sources, now)
            .check(has_health_checks(file_config, group));
        memberships.insert(
            Arc::clone(group),
            GroupMembership { limit: *limit, sources: group_sources, has_news: true },
        );
    }
}

/// Returns the names of members that the file lists.
fn listed_names(file_config: &FileConfig, group: &str) -> BTreeSet<Arc<str>> {
    let settings = file_config.settings.groups.iter().filter(|settings| *settings.spec.name == *group);
    settings.flat_map(|settings| &settings.spec.members).map(|member| Arc::clone(&member.name)).collect()
}

/// Returns whether the members of a group have health checks.
fn has_health_checks(file_config: &FileConfig, group: &str) -> bool {
    let mut groups = file_config.settings.groups.iter().filter(|settings| *settings.spec.name == *group);
    groups.any(|settings| settings.probe.is_some())
}

fn event(group: &Arc<str>, change: &MemberChange) -> Event {
    let count = |name: &str, count: usize| (name.to_owned(), count as f64);
    Event {
        kind: EventKind::MembersDiscovered,
        group: Arc::clone(group),
        member: None,
        why: change.summary(),
        inputs: vec![
            count("came", change.added.len()),
            count("members", change.members.len()),
            count("went", change.removed.len()),
        ],
    }
}

impl BalancerRuntime {
    /// Returns the answers of the sources of members.
    pub(crate) fn discovered(&self) -> &DiscoveryState {
        &self.discovery
    }

    /// Returns the groups with members from sources.
    pub(crate) fn discoveries(&self) -> Vec<GroupDiscovery> {
        lock(&self.file_config).discoveries.clone()
    }

    /// Returns once other sources may be in the configuration.
    pub(crate) async fn sources_changed(&self) {
        self.discovery.sources_changed.notified().await;
    }

    /// Puts the present members of the sources in force.
    ///
    /// # Errors
    /// Fails if they cannot be; those before stay then.
    pub(crate) fn apply_discovered(&self) -> Result<(), String> {
        let mut actions = lock(&self.operator_actions);
        let reload_guard = lock(&self.reload_lock);
        let healthy_members = |group: &str| {
            let snapshot =
                self.engine.group_snapshot(group).into_iter().flat_map(|snapshot| snapshot.status.members);
            snapshot.filter(|member| member.state.is_eligible()).map(|member| member.name).collect()
        };
        let proposal = self.discovery.changed_groups(healthy_members);
        if proposal.changes.is_empty() {
            return Ok(());
        }
        let mut overlay = lock(&self.overlay).clone();
        overlay.extend_discovered(proposal.members.clone());
        let groups: Vec<Arc<str>> = proposal.members.keys().cloned().collect();
        let effective_config =
            lock(&self.file_config).reapply_groups(&self.effective_config(), &overlay, &groups);
        if let Err(error) = self.engine.apply_discovered(effective_config.settings.clone()) {
            self.discovery.requeue(&proposal);
            return Err(error.to_string());
        }
        self.cluster.update(effective_config.cluster_groups.clone());
        *lock(&self.effective_config) = Arc::new(effective_config);
        *lock(&self.overlay) = overlay;
        self.discovery.accept(proposal, None).into_iter().for_each(|event| self.engine.write_event(event));
        drop(reload_guard);
        // An operator may have drained a new member, here or elsewhere.
        self.sync_actions(&mut actions, Reapply::Members);
        Ok(())
    }
}
