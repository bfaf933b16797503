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
const REMOVAL_GRACE: Duration = Duration::from_secs(10);

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
        let signed_names = |sign: char, names: &[Arc<str>]| {
            let mut words: Vec<String> =
                names.iter().take(NAMED).map(|name| format!("{sign}{name}")).collect();
            if let Some(remaining) = names.len().checked_sub(NAMED).filter(|remaining| *remaining > 0) {
                words.push(format!("{sign}{remaining} more"));
            }
            words
        };
        let words = [signed_names('+', &self.added), signed_names('-', &self.removed)].concat();
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
        configured: BTreeSet<Arc<str>>,
        sources: &[Arc<SourceSettings>],
        now: Instant,
    ) -> Self {
        let mut entries: Vec<SourceState> = Vec::new();
        for source in sources {
            let position = self.entries.iter().position(|entry| *entry.source == **source);
            entries.push(match position {
                Some(index) => SourceState { removed_at: None, ..self.entries.remove(index) },
                None => SourceState::new(Arc::clone(source)),
            });
        }
        if entries.iter().any(|entry| entry.last_list_at.is_none()) {
            let removed_sources = self.entries.into_iter().filter(|entry| !entry.members.is_empty());
            entries.extend(
                removed_sources
                    .map(|entry| SourceState { removed_at: entry.removed_at.or(Some(now)), ..entry }),
            );
        }
        Self { entries, configured, ..self }
    }

    /// Sets whether members of the group have health checks.
    #[must_use]
    pub fn check(self, has_health_checks: bool) -> Self {
        Self { has_health_checks, ..self }
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
            entry.replaced_members.retain(|member| passed.contains(&*member.name));
            entry.replaced_members.truncate(pending);
        }
    }

    /// Records an update from a source. Returns an event, if there is one.
    pub fn record_update(
        &mut self,
        source: &SourceSettings,
        result: Result<MemberList, String>,
        now: Instant,
    ) -> Option<SourceEvent> {
        let has_health_checks = self.has_health_checks;
        let is_current = |entry: &&mut SourceState| entry.removed_at.is_none() && *entry.source == *source;
        let entry = self.entries.iter_mut().find(is_current)?;
        match result {
            Err(reason) => entry.fail(reason, now),
            Ok(MemberList { members: None, .. }) => match entry.rejection.clone() {
                // The source repeats a rejected list.
                Some(reason) => entry.fail(reason, now),
                None => entry.recover(now),
            },
            Ok(MemberList { members: Some(members), note }) => match entry.rejection_reason(&members, note) {
                Some(reason) => {
                    entry.rejection = Some(reason.clone());
                    entry.fail(reason, now)
                }
                None => {
                    entry.rejection = None;
                    entry.replace_members(members, has_health_checks, now);
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
            entry.members.retain(|kept| kept.expires_at.is_none_or(|expires_at| expires_at > now));
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
            members.iter().map(|member| Arc::clone(&member.name)).collect::<BTreeSet<_>>()
        };
        let (names_before, names_after) = (names(&self.accepted), names(&members));
        let added = names_after.difference(&names_before).cloned().collect();
        let removed = names_before.difference(&names_after).cloned().collect();
        Some(MemberChange { members, added, removed })
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
        let sources_with_hold = self.entries.iter().filter(|entry| !entry.source.hold_time.is_zero());
        let hold_expiries =
            sources_with_hold.flat_map(|entry| &entry.members).filter_map(|kept| kept.expires_at);
        // Members that stay because there are no others have no time limit.
        let grace_ends = self.entries.iter().filter_map(|entry| Some(entry.removed_at? + REMOVAL_GRACE));
        let grace_ends = grace_ends.filter(|_| self.has_other_members());
        let next_check =
            self.last_check_at.filter(|_| self.is_replacing()).map(|checked_at| checked_at + CHECK_INTERVAL);
        hold_expiries.chain(grace_ends).chain(next_check).min()
    }

    /// Returns the status of the sources, in the order of the configuration.
    pub fn status(&self, now: Instant) -> Vec<SourceStatus> {
        self.entries.iter().map(|entry| entry.status(now)).collect()
    }

    fn members(&self) -> Vec<DiscoveredMember> {
        let mut seen_names = self.configured.clone();
        let entry_members = |entry: &'_ SourceState| -> Vec<DiscoveredMember> {
            let entry_list = entry.members.iter().map(|kept| &kept.member);
            entry_list.chain(&entry.replaced_members).cloned().collect()
        };
        let mut members: Vec<DiscoveredMember> = self.entries.iter().flat_map(entry_members).collect();
        members.retain(|member| seen_names.insert(Arc::clone(&member.name)));
        members
    }

    /// Returns `true` if the group has members besides those of removed sources.
    fn has_other_members(&self) -> bool {
        let is_current = |entry: &SourceState| entry.removed_at.is_none() && !entry.members.is_empty();
        !self.configured.is_empty() || self.entries.iter().any(is_current)
    }

    /// Drops removed sources when the new ones have responded, or after a while if the group has other
    /// members.
    fn drop_removed_sources(&mut self, now: Instant) {
        let mut current_sources = self.entries.iter().filter(|entry| entry.removed_at.is_none());
        let have_answered = current_sources.all(|entry| entry.last_list_at.is_some());
        let has_others = self.has_other_members();
        self.entries.retain(|entry| match entry.removed_at {
            None => true,
            Some(removed_at) => !have_answered && (!has_others || now < removed_at + REMOVAL_GRACE),
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

    fn replace_members(&mut self, members: Vec<DiscoveredMember>, has_health_checks: bool, now: Instant) {
        let mut names = BTreeSet::new();
        let listed_members = members.into_iter().filter(|member| names.insert(Arc::clone(&member.name)));
        let listed_members: Vec<KeptMember> =
            listed_members.map(|member| KeptMember { member, expires_at: None }).collect();
        let missing = self.members.drain(..).filter(|kept| !names.contains(&kept.member.name));
        let hold_time = self.source.hold_time;
        let missing =
            missing.map(|kept| KeptMember { expires_at: kept.expires_at.or(Some(now + hold_time)), ..kept });
        let (held_members, expired_members): (Vec<KeptMember>, Vec<KeptMember>) =
            missing.partition(|kept| kept.expires_at.is_some_and(|expires_at| expires_at > now));
        self.members = listed_members;
        self.replaced_members.retain(|member| !names.contains(&member.name));
        if has_health_checks && self.source.kind.is_dns() {
            self.replaced_members.extend(expired_members.into_iter().map(|kept| kept.member));
            self.replaced_members.truncate(MAX_MEMBERS);
        }
        self.members.extend(held_members);
        // Sorted by name if members are held; otherwise a briefly missing one would change the order of the
        // others.
        if !hold_time.is_zero() {
            self.members
                .sort_by(|left_member, right_member| left_member.member.name.cmp(&right_member.member.name));
        }
        // Limits the number of held members to that of listed ones.
        self.members.truncate(2 * MAX_MEMBERS);
    }

    fn recover(&mut self, now: Instant) -> Option<SourceEvent> {
        self.last_list_at = Some(now);
        let failure = self.failure.take()?;
        let failed_for = now.saturating_duration_since(failure.since);
        let kind = &self.source.kind;
        Some(SourceEvent::Recovered(
            format!("{kind} answers again, after {:.1} s", failed_for.as_secs_f64()),
            failed_for,
        ))
    }

    fn fail(&mut self, reason: String, now: Instant) -> Option<SourceEvent> {
        self.failures += 1;
        if let Some(failure) = &mut self.failure {
            failure.why = reason;
            return None;
        }
        let retained_members = match self.members.len() {
            0 => "it has no members yet".to_owned(),
            1 => "its member stays".to_owned(),
            count => format!("its {count} members stay"),
        };
        let event = SourceEvent::Failed(
            format!("{}: {reason}; {retained_members}", self.source.kind),
            self.members.len(),
        );
        self.failure = Some(SourceFailure { why: reason, since: now });
        Some(event)
    }

    fn status(&self, now: Instant) -> SourceStatus {
        let age_seconds = |at: Instant| now.saturating_duration_since(at).as_secs_f64();
        SourceStatus {
            kind: self.source.kind.name().to_owned(),
            what: self.source.kind.target(),
            members: self.members.len(),
            age_seconds: self.last_list_at.map(age_seconds),
            failures: self.failures,
            error: match self.removed_at {
                Some(_) => Some(
                    "it is not in the configuration any more; its members stay until the others answer"
                        .into(),
                ),
                None => self.failure.as_ref().map(|failure| failure.why.clone()),
            },
            failing_seconds: self.failure.as_ref().map(|failure| age_seconds(failure.since)),
        }
    }
}

#[cfg(test)]
mod tests;
