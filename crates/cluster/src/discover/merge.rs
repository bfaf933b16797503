//! Computes the members of a group from its sources' updates. It does no I/O and reads no clock.
//!
//! Configured members come first, and are not managed here. The sources follow in their order, and a name
//! counts once, with the settings of its first source. A failed source keeps its last members. An empty list
//! is rejected unless the configuration allows it: broken lists are more frequent than services without
//! servers. `stale_ttl` keeps missing members for a while.
//!
//! DNS is trusted less than other sources: a new address for a name may be wrong. If members have health
//! checks ([`MemberSet::check`]), a replaced address stays until its replacement has passed its check.
//!
//! When the configuration changes, unchanged sources keep their members. Those of removed sources stay until
//! the new sources have responded, so that correcting a name does not empty a group.
//!
//! The last members can be handed to another process (`merge/handoff.rs`).

mod handoff;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_brain::status::SourceStatus;

use super::resolve_hosts::too_many_message;
use super::{DiscoveredMember, MAX_MEMBERS, MemberList, SourceSettings};

pub use handoff::SourceHandoff;

/// The minimum time that members of removed sources stay while a new source has not responded.
const GRACE: Duration = Duration::from_secs(10);

/// The interval of checks whether new members have passed their health checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The sources of one group and their members.
#[derive(Clone, Debug, Default)]
pub struct MemberSet {
    entries: Vec<SourceState>,
    /// The configured members.
    configured: BTreeSet<Arc<str>>,
    /// The members in force.
    accepted: Vec<DiscoveredMember>,
    /// Whether members have health checks.
    has_health_checks: bool,
    /// The last check whether new members have passed.
    last_check_at: Option<Instant>,
}

#[derive(Clone, Debug)]
struct SourceState {
    source: Arc<SourceSettings>,
    members: Vec<KeptMember>,
    /// Replaced members whose replacements have not passed their checks yet.
    replaced_members: Vec<DiscoveredMember>,
    /// The time of the last accepted list.
    last_list_at: Option<Instant>,
    failure: Option<SourceFailure>,
    /// The reason why the last list was rejected, if it was.
    rejection: Option<String>,
    failures: u64,
    /// The time at which the source left the configuration.
    removed_at: Option<Instant>,
}

#[derive(Clone, Debug)]
struct KeptMember {
    member: DiscoveredMember,
    /// The time at which a member goes that is no longer listed.
    expires_at: Option<Instant>,
}

#[derive(Clone, Debug)]
struct SourceFailure {
    why: String,
    since: Instant,
}

/// An event of a source.
#[derive(Clone, Debug, PartialEq)]
pub enum SourceEvent {
    /// The source failed after it had worked: one sentence for people, and the number of members that it
    /// keeps.
    Failed(String, usize),
    /// The source works again: one sentence for people, and the duration of the failure.
    Recovered(String, Duration),
}

/// A change of the members in force.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberChange {
    /// All members except the configured ones.
    pub members: Vec<DiscoveredMember>,
    /// The names of new members.
    pub added: Vec<Arc<str>>,
    /// The names of removed members.
    pub removed: Vec<Arc<str>>,
}

impl MemberChange {
    /// Returns one sentence for people: the new and removed members, a few of them by name.
    pub fn summary(&self) -> String {
        const NAMED: usize = 8;
        let some = |sign: char, names: &[Arc<str>]| {
            let mut words: Vec<String> =
                names.iter().take(NAMED).map(|name| format!("{sign}{name}")).collect();
            if let Some(more) = names.len().checked_sub(NAMED).filter(|more| *more > 0) {
                words.push(format!("{sign}{more} more"));
            }
            words
        };
        let words = [some('+', &self.added), some('-', &self.removed)].concat();
        let count = match self.members.len() {
            1 => "1 member is found".to_owned(),
            count => format!("{count} members are found"),
        };
        if words.is_empty() {
            format!("{count}, with other settings or in another order")
        } else {
            format!("{count}: {}", words.join(" "))
        }
    }
}

impl MemberSet {
    /// Applies other sources. `fixed` are the names of the configured members.
    #[must_use]
    pub fn set_sources(
        mut self,
        fixed: BTreeSet<Arc<str>>,
        sources: &[Arc<SourceSettings>],
        now: Instant,
    ) -> Self {
        let mut entries: Vec<SourceState> = Vec::new();
        for source in sources {
            let same = self.entries.iter().position(|entry| *entry.source == **source);
            entries.push(match same {
                Some(place) => SourceState { removed_at: None, ..self.entries.remove(place) },
                None => SourceState::new(Arc::clone(source)),
            });
        }
        if entries.iter().any(|entry| entry.last_list_at.is_none()) {
            let gone = self.entries.into_iter().filter(|entry| !entry.members.is_empty());
            entries.extend(
                gone.map(|entry| SourceState { removed_at: entry.removed_at.or(Some(now)), ..entry }),
            );
        }
        Self { entries, configured: fixed, ..self }
    }

    /// Sets whether members of the group have health checks.
    #[must_use]
    pub fn check(self, checked: bool) -> Self {
        Self { has_health_checks: checked, ..self }
    }

    /// Returns `true` if replaced members are still kept.
    pub fn is_replacing(&self) -> bool {
        self.entries.iter().any(|entry| !entry.replaced_members.is_empty())
    }

    /// Removes replaced members whose replacements have passed their checks, and those that do not pass
    /// themselves. `passed` are the names of all members that pass.
    pub fn retire_replaced(&mut self, passed: &BTreeSet<String>, now: Instant) {
        self.last_check_at = Some(now);
        for entry in &mut self.entries {
            let pending = entry.members.iter().filter(|kept| !passed.contains(&*kept.member.name)).count();
            entry.replaced_members.retain(|one| passed.contains(&*one.name));
            entry.replaced_members.truncate(pending);
        }
    }

    /// Records an update from a source. Returns an event, if there is one.
    pub fn record_update(
        &mut self,
        source: &SourceSettings,
        said: Result<MemberList, String>,
        now: Instant,
    ) -> Option<SourceEvent> {
        let checked = self.has_health_checks;
        let current = |entry: &&mut SourceState| entry.removed_at.is_none() && *entry.source == *source;
        let entry = self.entries.iter_mut().find(current)?;
        match said {
            Err(why) => entry.fail(why, now),
            Ok(MemberList { members: None, .. }) => match entry.rejection.clone() {
                // The source repeats a rejected list.
                Some(why) => entry.fail(why, now),
                None => entry.recover(now),
            },
            Ok(MemberList { members: Some(members), note }) => match entry.rejection_reason(&members, note) {
                Some(why) => {
                    entry.rejection = Some(why.clone());
                    entry.fail(why, now)
                }
                None => {
                    entry.rejection = None;
                    entry.replace_members(members, checked, now);
                    entry.recover(now)
                }
            },
        }
    }

    /// Returns `true` if each source has responded or failed.
    pub fn have_all_responded(&self) -> bool {
        self.entries.iter().all(|entry| entry.last_list_at.is_some() || entry.failure.is_some())
    }

    /// Removes members whose time is over.
    pub fn prune(&mut self, now: Instant) {
        for entry in &mut self.entries {
            entry.members.retain(|kept| kept.expires_at.is_none_or(|until| until > now));
        }
        self.drop_removed_sources(now);
    }

    /// Returns a change if the members differ from those in force.
    pub fn propose(&mut self, now: Instant) -> Option<MemberChange> {
        self.prune(now);
        let members = self.members();
        if members == self.accepted {
            return None;
        }
        let names = |members: &[DiscoveredMember]| {
            members.iter().map(|one| Arc::clone(&one.name)).collect::<BTreeSet<_>>()
        };
        let (before, after) = (names(&self.accepted), names(&members));
        let came = after.difference(&before).cloned().collect();
        let went = before.difference(&after).cloned().collect();
        Some(MemberChange { members, added: came, removed: went })
    }

    /// Puts a proposed change in force.
    pub fn accept(&mut self, change: MemberChange) {
        self.accepted = change.members;
    }

    /// Returns the members in force.
    pub fn accepted(&self) -> &[DiscoveredMember] {
        &self.accepted
    }

    /// Returns the time at which members may change without an update.
    pub fn next_due(&self) -> Option<Instant> {
        // Sources without `hold_time` keep no members: most have many, and this is called often.
        let holding = self.entries.iter().filter(|entry| !entry.source.hold_time.is_zero());
        let holds = holding.flat_map(|entry| &entry.members).filter_map(|kept| kept.expires_at);
        // Members that stay because there are no others have no time limit.
        let graces = self.entries.iter().filter_map(|entry| Some(entry.removed_at? + GRACE));
        let graces = graces.filter(|_| self.has_other_members());
        let looks = self.last_check_at.filter(|_| self.is_replacing()).map(|looked| looked + CHECK_INTERVAL);
        holds.chain(graces).chain(looks).min()
    }

    /// Returns the status of the sources, in the order of the configuration.
    pub fn status(&self, now: Instant) -> Vec<SourceStatus> {
        self.entries.iter().map(|entry| entry.status(now)).collect()
    }

    fn members(&self) -> Vec<DiscoveredMember> {
        let mut seen = self.configured.clone();
        let of = |entry: &'_ SourceState| -> Vec<DiscoveredMember> {
            let listed = entry.members.iter().map(|kept| &kept.member);
            listed.chain(&entry.replaced_members).cloned().collect()
        };
        let mut all: Vec<DiscoveredMember> = self.entries.iter().flat_map(of).collect();
        all.retain(|member| seen.insert(Arc::clone(&member.name)));
        all
    }

    /// Returns `true` if the group has members besides those of removed sources.
    fn has_other_members(&self) -> bool {
        let current = |entry: &SourceState| entry.removed_at.is_none() && !entry.members.is_empty();
        !self.configured.is_empty() || self.entries.iter().any(current)
    }

    /// Drops removed sources when the new ones have responded, or after a while if the group has other
    /// members.
    fn drop_removed_sources(&mut self, now: Instant) {
        let mut current = self.entries.iter().filter(|entry| entry.removed_at.is_none());
        let answered = current.all(|entry| entry.last_list_at.is_some());
        let others = self.has_other_members();
        self.entries.retain(|entry| match entry.removed_at {
            None => true,
            Some(since) => !answered && (!others || now < since + GRACE),
        });
    }
}

impl SourceState {
    fn new(source: Arc<SourceSettings>) -> Self {
        let (members, last_list_at, failure, rejection) = (Vec::new(), None, None, None);
        Self {
            source,
            members,
            replaced_members: Vec::new(),
            last_list_at,
            failure,
            rejection,
            failures: 0,
            removed_at: None,
        }
    }

    /// Returns the reason to reject a list, if there is one.
    fn rejection_reason(&self, members: &[DiscoveredMember], note: Option<&str>) -> Option<String> {
        if members.len() > MAX_MEMBERS {
            return Some(too_many_message(members.len()));
        }
        if members.is_empty() && !self.source.allow_empty {
            let note = note.unwrap_or("it lists no member");
            return Some(format!("{note}, which is not believed; if it may be so, set allow_empty = true"));
        }
        None
    }

    fn replace_members(&mut self, members: Vec<DiscoveredMember>, checked: bool, now: Instant) {
        let mut names = BTreeSet::new();
        let listed = members.into_iter().filter(|member| names.insert(Arc::clone(&member.name)));
        let listed: Vec<KeptMember> = listed.map(|member| KeptMember { member, expires_at: None }).collect();
        let missing = self.members.drain(..).filter(|kept| !names.contains(&kept.member.name));
        let hold = self.source.hold_time;
        let missing =
            missing.map(|kept| KeptMember { expires_at: kept.expires_at.or(Some(now + hold)), ..kept });
        let (held, gone): (Vec<KeptMember>, Vec<KeptMember>) =
            missing.partition(|kept| kept.expires_at.is_some_and(|until| until > now));
        self.members = listed;
        self.replaced_members.retain(|one| !names.contains(&one.name));
        if checked && self.source.kind.is_dns() {
            self.replaced_members.extend(gone.into_iter().map(|kept| kept.member));
            self.replaced_members.truncate(MAX_MEMBERS);
        }
        self.members.extend(held);
        // Sorted by name if members are held; otherwise a briefly missing one would change the order of the
        // others.
        if !hold.is_zero() {
            self.members.sort_by(|one, other| one.member.name.cmp(&other.member.name));
        }
        // Limits the number of held members to that of listed ones.
        self.members.truncate(2 * MAX_MEMBERS);
    }

    fn recover(&mut self, now: Instant) -> Option<SourceEvent> {
        self.last_list_at = Some(now);
        let trouble = self.failure.take()?;
        let since = now.saturating_duration_since(trouble.since);
        let kind = &self.source.kind;
        Some(SourceEvent::Recovered(
            format!("{kind} answers again, after {:.1} s", since.as_secs_f64()),
            since,
        ))
    }

    fn fail(&mut self, why: String, now: Instant) -> Option<SourceEvent> {
        self.failures += 1;
        if let Some(trouble) = &mut self.failure {
            trouble.why = why;
            return None;
        }
        let kept = match self.members.len() {
            0 => "it has no members yet".to_owned(),
            1 => "its member stays".to_owned(),
            count => format!("its {count} members stay"),
        };
        let news = SourceEvent::Failed(format!("{}: {why}; {kept}", self.source.kind), self.members.len());
        self.failure = Some(SourceFailure { why, since: now });
        Some(news)
    }

    fn status(&self, now: Instant) -> SourceStatus {
        let ago = |at: Instant| now.saturating_duration_since(at).as_secs_f64();
        SourceStatus {
            kind: self.source.kind.name().to_owned(),
            what: self.source.kind.target(),
            members: self.members.len(),
            age_seconds: self.last_list_at.map(ago),
            failures: self.failures,
            error: match self.removed_at {
                Some(_) => Some(
                    "it is not in the configuration any more; its members stay until the others answer"
                        .into(),
                ),
                None => self.failure.as_ref().map(|trouble| trouble.why.clone()),
            },
            failing_seconds: self.failure.as_ref().map(|trouble| ago(trouble.since)),
        }
    }
}

#[cfg(test)]
mod tests;
