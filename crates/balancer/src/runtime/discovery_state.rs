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
    roll: MemberSet,
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
        let spec = |one: &DiscoveredMember| MemberSpec {
            name: Arc::clone(&one.name),
            address: one.address,
            capacity: one.capacity,
            limit: one.limit.unwrap_or(self.limit),
            leaving: one.leaving,
            checked: false,
        };
        members.iter().map(spec).collect()
    }
}

impl DiscoveryState {
    /// Returns the sources of a file, without any answer yet.
    pub(crate) fn new(base: &FileConfig) -> Self {
        let discovered = Self::default();
        replace_sources(&mut lock(&discovered.memberships), base);
        discovered
    }

    /// Returns the last answers of the sources.
    pub(crate) fn last_answers(&self) -> Vec<SourceAnswers> {
        let now = Instant::now();
        let of = |(group, known): (&Arc<str>, &GroupMembership)| SourceAnswers {
            group: group.to_string(),
            sources: known.roll.handoff(now),
        };
        lock(&self.memberships).iter().map(of).filter(|found| !found.sources.is_empty()).collect()
    }

    /// Takes over the answers of the same sources to a process before this one, until they answer themselves.
    pub(crate) fn restore_answers(&self, found: Vec<SourceAnswers>) {
        let (now, mut rolls) = (Instant::now(), lock(&self.memberships));
        for SourceAnswers { group, sources } in found {
            if let Some(known) = rolls.get_mut(group.as_str()) {
                known.roll.restore(sources, now);
                known.has_news = true;
            }
        }
    }

    /// Takes an answer of a source; returns its event.
    pub(crate) fn record_answer(&self, heard: SourceUpdate) -> Option<Event> {
        let SourceUpdate { group, source, result: said } = heard;
        let news = {
            let mut rolls = lock(&self.memberships);
            let known = rolls.get_mut(&group)?;
            known.has_news = true;
            known.roll.record_update(&source, said, Instant::now())?
        };
        let (kind, why, input) = match news {
            SourceEvent::Failed(why, members) => {
                (EventKind::DiscoveryFailed, why, ("members", members as f64))
            }
            SourceEvent::Recovered(why, since) => {
                (EventKind::DiscoveryRecovered, why, ("seconds", since.as_secs_f64()))
            }
        };
        Some(Event { kind, group, member: None, why, inputs: vec![(input.0.to_owned(), input.1)] })
    }

    /// Returns `true` if each source has answered or failed.
    pub(crate) fn all_answered(&self) -> bool {
        lock(&self.memberships).values().all(|known| known.roll.have_all_responded())
    }

    /// Returns the time of the next change without an answer.
    pub(crate) fn next_change_at(&self) -> Option<Instant> {
        lock(&self.memberships).values().filter_map(|known| known.roll.next_due()).min()
    }

    /// Returns the present members of the sources, by those of another file if there is one. Nothing counts
    /// as in force yet.
    pub(crate) fn propose(&self, base: Option<&FileConfig>) -> MemberProposal {
        let now = Instant::now();
        let mut rolls = {
            let mut rolls = lock(&self.memberships);
            rolls.values_mut().for_each(|known| known.roll.prune(now));
            rolls.clone()
        };
        if let Some(base) = base {
            replace_sources(&mut rolls, base);
        }
        let (mut found, mut changes) = (BTreeMap::new(), Vec::new());
        for (group, known) in &mut rolls {
            if let Some(change) = known.roll.propose(now) {
                changes.push((Arc::clone(group), change.clone()));
                known.roll.accept(change);
            }
            found.insert(Arc::clone(group), known.specs(known.roll.accepted()));
        }
        MemberProposal { members: found, changes }
    }

    /// Returns the present members of the groups with an answer, or with members that are to go. `passed`
    /// returns the members of a group that are up.
    fn changed_groups(&self, passed: impl Fn(&str) -> BTreeSet<String>) -> MemberProposal {
        let now = Instant::now();
        let (mut found, mut changes) = (BTreeMap::new(), Vec::new());
        for (group, known) in lock(&self.memberships).iter_mut() {
            if !std::mem::take(&mut known.has_news) && known.roll.next_due().is_none_or(|due| due > now) {
                continue;
            }
            if known.roll.is_replacing() {
                known.roll.retire_replaced(&passed(group), now);
            }
            if let Some(change) = known.roll.propose(now) {
                found.insert(Arc::clone(group), known.specs(&change.members));
                changes.push((Arc::clone(group), change));
            }
        }
        MemberProposal { members: found, changes }
    }

    /// Keeps a proposal that is not in force, so that it is made again.
    fn requeue(&self, proposal: &MemberProposal) {
        let mut rolls = lock(&self.memberships);
        for (group, _) in &proposal.changes {
            if let Some(known) = rolls.get_mut(group) {
                known.has_news = true;
            }
        }
    }

    /// Returns a file's settings with the members of the sources.
    pub(crate) fn settings(&self, base: &FileConfig) -> proxy::Settings {
        let mut made = ConfigOverlay::default();
        made.set_discovered(self.propose(None).members);
        base.with_overlay(&made).settings
    }

    /// Marks a proposal as in force; returns its events. Answers that came meanwhile are the next change.
    pub(crate) fn accept(&self, proposal: MemberProposal, base: Option<&FileConfig>) -> Vec<Event> {
        let mut rolls = lock(&self.memberships);
        if let Some(base) = base {
            replace_sources(&mut rolls, base);
            self.sources_changed.notify_one();
        }
        let mut events = Vec::new();
        for (group, change) in proposal.changes {
            if let Some(known) = rolls.get_mut(&group) {
                events.push(event(&group, &change));
                known.roll.accept(change);
            }
        }
        events
    }

    /// Fills in the status of the sources.
    pub(super) fn fill_status(&self, groups: &mut [GroupStatus]) {
        let rolls = lock(&self.memberships);
        for group in groups {
            if let Some(known) = rolls.get(group.name.as_str()) {
                group.discovery = known.roll.status(Instant::now());
            }
        }
    }
}

/// Uses the sources of a file from now on. Those that stay keep their answers.
fn replace_sources(rolls: &mut BTreeMap<Arc<str>, GroupMembership>, base: &FileConfig) {
    let now = Instant::now();
    let mut before = std::mem::take(rolls);
    for GroupDiscovery { group, limit, sources } in &base.discoveries {
        let roll = before.remove(group).unwrap_or_default().roll;
        let roll =
            roll.set_sources(listed_names(base, group), sources, now).check(has_health_checks(base, group));
        rolls.insert(Arc::clone(group), GroupMembership { limit: *limit, roll, has_news: true });
    }
}

/// Returns the names of members that the file lists.
fn listed_names(base: &FileConfig, group: &str) -> BTreeSet<Arc<str>> {
    let settings = base.settings.groups.iter().filter(|settings| *settings.spec.name == *group);
    settings.flat_map(|settings| &settings.spec.members).map(|one| Arc::clone(&one.name)).collect()
}

/// Returns whether the members of a group have health checks.
fn has_health_checks(base: &FileConfig, group: &str) -> bool {
    let mut groups = base.settings.groups.iter().filter(|settings| *settings.spec.name == *group);
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
        let mut kept = lock(&self.operator_actions);
        let one = lock(&self.reloading);
        let passed = |group: &str| {
            let look = self.engine.group_snapshot(group).into_iter().flat_map(|look| look.status.members);
            look.filter(|member| member.state.is_eligible()).map(|member| member.name).collect()
        };
        let proposal = self.discovery.changed_groups(passed);
        if proposal.changes.is_empty() {
            return Ok(());
        }
        let mut made = lock(&self.overlay).clone();
        made.extend_discovered(proposal.members.clone());
        let groups: Vec<Arc<str>> = proposal.members.keys().cloned().collect();
        let force = lock(&self.file_config).reapply_groups(&self.effective_config(), &made, &groups);
        if let Err(error) = self.engine.apply_discovered(force.settings.clone()) {
            self.discovery.requeue(&proposal);
            return Err(error.to_string());
        }
        self.cluster.update(force.watched.clone());
        *lock(&self.effective_config) = Arc::new(force);
        *lock(&self.overlay) = made;
        self.discovery.accept(proposal, None).into_iter().for_each(|event| self.engine.write_event(event));
        drop(one);
        // An operator may have drained a new member, here or elsewhere.
        self.sync_actions(&mut kept, Reapply::Members);
        Ok(())
    }
}
