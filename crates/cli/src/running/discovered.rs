//! Members from sources: the answers of each group's sources, and the part of them that is in force.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use plimsoll_brain::status::GroupStatus;
use plimsoll_brain::{Event, EventKind, MemberSpec};
use plimsoll_cluster::discover::{Change, Heard, Last, Listed, News, Roll};
use plimsoll_proxy as proxy;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::kept::Again;
use super::{Running, lock};
use crate::config::Discovery;
use crate::made::{Base, Made};

/// The answers of the sources.
#[derive(Debug, Default)]
pub(crate) struct Discovered {
    rolls: Mutex<BTreeMap<Arc<str>, Known>>,
    /// The signal that other sources are in the configuration.
    pub(super) followed: Notify,
}

/// The answers for a group.
#[derive(Clone, Debug, Default)]
struct Known {
    limit: u32,
    roll: Roll,
    /// Whether an answer came since the last change was put in force.
    news: bool,
}

/// The last answers of a group's sources, for a process that takes over.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Found {
    group: String,
    sources: Vec<Last>,
}

/// Members to be put in force.
#[derive(Debug)]
pub(crate) struct Proposal {
    /// All members from sources, by group.
    pub(crate) found: BTreeMap<Arc<str>, Vec<MemberSpec>>,
    /// The groups with changes.
    changes: Vec<(Arc<str>, Change)>,
}

impl Known {
    fn specs(&self, members: &[Listed]) -> Vec<MemberSpec> {
        let spec = |one: &Listed| MemberSpec {
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

impl Discovered {
    /// Returns the sources of a file, without any answer yet.
    pub(crate) fn new(base: &Base) -> Self {
        let discovered = Self::default();
        follow(&mut lock(&discovered.rolls), base);
        discovered
    }

    /// Returns the last answers of the sources.
    pub(crate) fn last(&self) -> Vec<Found> {
        let now = Instant::now();
        let of = |(group, known): (&Arc<str>, &Known)| Found {
            group: group.to_string(),
            sources: known.roll.last(now),
        };
        lock(&self.rolls).iter().map(of).filter(|found| !found.sources.is_empty()).collect()
    }

    /// Takes over the answers of the same sources to a process before this one, until they answer themselves.
    pub(crate) fn recall(&self, found: Vec<Found>) {
        let (now, mut rolls) = (Instant::now(), lock(&self.rolls));
        for Found { group, sources } in found {
            if let Some(known) = rolls.get_mut(group.as_str()) {
                known.roll.recall(sources, now);
                known.news = true;
            }
        }
    }

    /// Takes an answer of a source; returns its event.
    pub(crate) fn hear(&self, heard: Heard) -> Option<Event> {
        let Heard { group, source, said } = heard;
        let news = {
            let mut rolls = lock(&self.rolls);
            let known = rolls.get_mut(&group)?;
            known.news = true;
            known.roll.hear(&source, said, Instant::now())?
        };
        let (kind, why, input) = match news {
            News::Failed(why, members) => (EventKind::DiscoveryFailed, why, ("members", members as f64)),
            News::Recovered(why, since) => {
                (EventKind::DiscoveryRecovered, why, ("seconds", since.as_secs_f64()))
            }
        };
        Some(Event { kind, group, member: None, why, inputs: vec![(input.0.to_owned(), input.1)] })
    }

    /// Returns `true` if each source has answered or failed.
    pub(crate) fn all_asked(&self) -> bool {
        lock(&self.rolls).values().all(|known| known.roll.all_asked())
    }

    /// Returns the time of the next change without an answer.
    pub(crate) fn due(&self) -> Option<Instant> {
        lock(&self.rolls).values().filter_map(|known| known.roll.due()).min()
    }

    /// Returns the present members of the sources, by those of another file if there is one. Nothing counts
    /// as in force yet.
    pub(crate) fn propose(&self, base: Option<&Base>) -> Proposal {
        let now = Instant::now();
        let mut rolls = {
            let mut rolls = lock(&self.rolls);
            rolls.values_mut().for_each(|known| known.roll.prune(now));
            rolls.clone()
        };
        if let Some(base) = base {
            follow(&mut rolls, base);
        }
        let (mut found, mut changes) = (BTreeMap::new(), Vec::new());
        for (group, known) in &mut rolls {
            if let Some(change) = known.roll.propose(now) {
                changes.push((Arc::clone(group), change.clone()));
                known.roll.accept(change);
            }
            found.insert(Arc::clone(group), known.specs(known.roll.accepted()));
        }
        Proposal { found, changes }
    }

    /// Returns the present members of the groups with an answer, or with members that are to go. `passed`
    /// returns the members of a group that are up.
    fn news(&self, passed: impl Fn(&str) -> BTreeSet<String>) -> Proposal {
        let now = Instant::now();
        let (mut found, mut changes) = (BTreeMap::new(), Vec::new());
        for (group, known) in lock(&self.rolls).iter_mut() {
            if !std::mem::take(&mut known.news) && known.roll.due().is_none_or(|due| due > now) {
                continue;
            }
            if known.roll.replacing() {
                known.roll.replace(&passed(group), now);
            }
            if let Some(change) = known.roll.propose(now) {
                found.insert(Arc::clone(group), known.specs(&change.members));
                changes.push((Arc::clone(group), change));
            }
        }
        Proposal { found, changes }
    }

    /// Keeps a proposal that is not in force, so that it is made again.
    fn keep(&self, proposal: &Proposal) {
        let mut rolls = lock(&self.rolls);
        for (group, _) in &proposal.changes {
            if let Some(known) = rolls.get_mut(group) {
                known.news = true;
            }
        }
    }

    /// Returns a file's settings with the members of the sources.
    pub(crate) fn settings(&self, base: &Base) -> proxy::Settings {
        let mut made = Made::default();
        made.find(self.propose(None).found);
        base.with(&made).settings
    }

    /// Marks a proposal as in force; returns its events. Answers that came meanwhile are the next change.
    pub(crate) fn accept(&self, proposal: Proposal, base: Option<&Base>) -> Vec<Event> {
        let mut rolls = lock(&self.rolls);
        if let Some(base) = base {
            follow(&mut rolls, base);
            self.followed.notify_one();
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
    pub(super) fn show(&self, groups: &mut [GroupStatus]) {
        let rolls = lock(&self.rolls);
        for group in groups {
            if let Some(known) = rolls.get(group.name.as_str()) {
                group.discovery = known.roll.status(Instant::now());
            }
        }
    }
}

/// Uses the sources of a file from now on. Those that stay keep their answers.
fn follow(rolls: &mut BTreeMap<Arc<str>, Known>, base: &Base) {
    let now = Instant::now();
    let mut before = std::mem::take(rolls);
    for Discovery { group, limit, sources } in &base.discoveries {
        let roll = before.remove(group).unwrap_or_default().roll;
        let roll = roll.follow(fixed(base, group), sources, now).check(checked(base, group));
        rolls.insert(Arc::clone(group), Known { limit: *limit, roll, news: true });
    }
}

/// Returns the names of members that the file lists.
fn fixed(base: &Base, group: &str) -> BTreeSet<Arc<str>> {
    let settings = base.settings.groups.iter().filter(|settings| *settings.spec.name == *group);
    settings.flat_map(|settings| &settings.spec.members).map(|one| Arc::clone(&one.name)).collect()
}

/// Returns whether the members of a group have health checks.
fn checked(base: &Base, group: &str) -> bool {
    let mut groups = base.settings.groups.iter().filter(|settings| *settings.spec.name == *group);
    groups.any(|settings| settings.probe.is_some())
}

fn event(group: &Arc<str>, change: &Change) -> Event {
    let count = |name: &str, count: usize| (name.to_owned(), count as f64);
    Event {
        kind: EventKind::MembersDiscovered,
        group: Arc::clone(group),
        member: None,
        why: change.said(),
        inputs: vec![
            count("came", change.came.len()),
            count("members", change.members.len()),
            count("went", change.went.len()),
        ],
    }
}

impl Running {
    /// Returns the answers of the sources of members.
    pub(crate) fn discovered(&self) -> &Discovered {
        &self.discovered
    }

    /// Returns the groups with members from sources.
    pub(crate) fn discoveries(&self) -> Vec<Discovery> {
        lock(&self.base).discoveries.clone()
    }

    /// Returns once other sources may be in the configuration.
    pub(crate) async fn sources_changed(&self) {
        self.discovered.followed.notified().await;
    }

    /// Puts the present members of the sources in force.
    ///
    /// # Errors
    /// Fails if they cannot be; those before stay then.
    pub(crate) fn find(&self) -> Result<(), String> {
        let mut kept = lock(&self.kept);
        let one = lock(&self.reloading);
        let passed = |group: &str| {
            let look = self.engine.look(group).into_iter().flat_map(|look| look.status.members);
            look.filter(|member| member.state.eligible()).map(|member| member.name).collect()
        };
        let proposal = self.discovered.news(passed);
        if proposal.changes.is_empty() {
            return Ok(());
        }
        let mut made = lock(&self.made).clone();
        made.find_more(proposal.found.clone());
        let groups: Vec<Arc<str>> = proposal.found.keys().cloned().collect();
        let force = lock(&self.base).again(&self.force(), &made, &groups);
        if let Err(error) = self.engine.found(force.settings.clone()) {
            self.discovered.keep(&proposal);
            return Err(error.to_string());
        }
        self.cluster.update(force.watched.clone());
        *lock(&self.force) = Arc::new(force);
        *lock(&self.made) = made;
        self.discovered.accept(proposal, None).into_iter().for_each(|event| self.engine.tell(event));
        drop(one);
        // An operator may have drained a new member, here or elsewhere.
        self.follow(&mut kept, Again::Members);
        Ok(())
    }
}
