//! Computes the members of a group from its sources' updates. It does no I/O and reads no clock.
//!
//! Configured members come first, and are not managed here. The sources follow in their order, and a name
//! counts once, with the settings of its first source. A failed source keeps its last members. An empty list
//! is rejected unless the configuration allows it: broken lists are more frequent than services without
//! servers. `hold` keeps missing members for a while.
//!
//! DNS is trusted less than other sources: a new address for a name may be wrong. If members have health
//! checks ([`Roll::check`]), a replaced address stays until its replacement has passed its check.
//!
//! When the configuration changes, unchanged sources keep their members. Those of removed sources stay until
//! the new sources have responded, so that correcting a name does not empty a group.
//!
//! The last members can be handed to another process (`roll/carry.rs`).

mod carry;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_brain::status::SourceStatus;

use super::look_up::too_many;
use super::{Listed, MOST, SourceSettings, Told};

pub use carry::Last;

/// The minimum time that members of removed sources stay while a new source has not responded.
const GRACE: Duration = Duration::from_secs(10);

/// The interval of checks whether new members have passed their health checks.
const LOOK: Duration = Duration::from_millis(250);

/// The sources of one group and their members.
#[derive(Clone, Debug, Default)]
pub struct Roll {
    entries: Vec<Entry>,
    /// The configured members.
    fixed: BTreeSet<Arc<str>>,
    /// The members in force.
    accepted: Vec<Listed>,
    /// Whether members have health checks.
    checked: bool,
    /// The last check whether new members have passed.
    looked: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Entry {
    source: Arc<SourceSettings>,
    members: Vec<Kept>,
    /// Replaced members whose replacements have not passed their checks yet.
    replaced: Vec<Listed>,
    /// The time of the last accepted list.
    heard: Option<Instant>,
    trouble: Option<Trouble>,
    /// The reason why the last list was rejected, if it was.
    refused: Option<String>,
    failures: u64,
    /// The time at which the source left the configuration.
    former: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Kept {
    member: Listed,
    /// The time at which a member goes that is no longer listed.
    until: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Trouble {
    why: String,
    since: Instant,
}

/// An event of a source.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// The source failed after it had worked: one sentence for people, and the number of members that it
    /// keeps.
    Failed(String, usize),
    /// The source works again: one sentence for people, and the duration of the failure.
    Recovered(String, Duration),
}

/// A change of the members in force.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// All members except the configured ones.
    pub members: Vec<Listed>,
    /// The names of new members.
    pub came: Vec<Arc<str>>,
    /// The names of removed members.
    pub went: Vec<Arc<str>>,
}

impl Change {
    /// Returns one sentence for people: the new and removed members, a few of them by name.
    pub fn said(&self) -> String {
        const NAMED: usize = 8;
        let some = |sign: char, names: &[Arc<str>]| {
            let mut words: Vec<String> =
                names.iter().take(NAMED).map(|name| format!("{sign}{name}")).collect();
            if let Some(more) = names.len().checked_sub(NAMED).filter(|more| *more > 0) {
                words.push(format!("{sign}{more} more"));
            }
            words
        };
        let words = [some('+', &self.came), some('-', &self.went)].concat();
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

impl Roll {
    /// Applies other sources. `fixed` are the names of the configured members.
    #[must_use]
    pub fn follow(
        mut self,
        fixed: BTreeSet<Arc<str>>,
        sources: &[Arc<SourceSettings>],
        now: Instant,
    ) -> Self {
        let mut entries: Vec<Entry> = Vec::new();
        for source in sources {
            let same = self.entries.iter().position(|entry| *entry.source == **source);
            entries.push(match same {
                Some(place) => Entry { former: None, ..self.entries.remove(place) },
                None => Entry::new(Arc::clone(source)),
            });
        }
        if entries.iter().any(|entry| entry.heard.is_none()) {
            let gone = self.entries.into_iter().filter(|entry| !entry.members.is_empty());
            entries.extend(gone.map(|entry| Entry { former: entry.former.or(Some(now)), ..entry }));
        }
        Self { entries, fixed, ..self }
    }

    /// Sets whether members of the group have health checks.
    #[must_use]
    pub fn check(self, checked: bool) -> Self {
        Self { checked, ..self }
    }

    /// Returns `true` if replaced members are still kept.
    pub fn replacing(&self) -> bool {
        self.entries.iter().any(|entry| !entry.replaced.is_empty())
    }

    /// Removes replaced members whose replacements have passed their checks, and those that do not pass
    /// themselves. `passed` are the names of all members that pass.
    pub fn replace(&mut self, passed: &BTreeSet<String>, now: Instant) {
        self.looked = Some(now);
        for entry in &mut self.entries {
            let pending = entry.members.iter().filter(|kept| !passed.contains(&*kept.member.name)).count();
            entry.replaced.retain(|one| passed.contains(&*one.name));
            entry.replaced.truncate(pending);
        }
    }

    /// Records an update from a source. Returns an event, if there is one.
    pub fn hear(
        &mut self,
        source: &SourceSettings,
        said: Result<Told, String>,
        now: Instant,
    ) -> Option<News> {
        let checked = self.checked;
        let current = |entry: &&mut Entry| entry.former.is_none() && *entry.source == *source;
        let entry = self.entries.iter_mut().find(current)?;
        match said {
            Err(why) => entry.fail(why, now),
            Ok(Told { members: None, .. }) => match entry.refused.clone() {
                // The source repeats a rejected list.
                Some(why) => entry.fail(why, now),
                None => entry.recover(now),
            },
            Ok(Told { members: Some(members), note }) => match entry.doubt(&members, note) {
                Some(why) => {
                    entry.refused = Some(why.clone());
                    entry.fail(why, now)
                }
                None => {
                    entry.refused = None;
                    entry.take(members, checked, now);
                    entry.recover(now)
                }
            },
        }
    }

    /// Returns `true` if each source has responded or failed.
    pub fn all_asked(&self) -> bool {
        self.entries.iter().all(|entry| entry.heard.is_some() || entry.trouble.is_some())
    }

    /// Removes members whose time is over.
    pub fn prune(&mut self, now: Instant) {
        for entry in &mut self.entries {
            entry.members.retain(|kept| kept.until.is_none_or(|until| until > now));
        }
        self.let_go(now);
    }

    /// Returns a change if the members differ from those in force.
    pub fn propose(&mut self, now: Instant) -> Option<Change> {
        self.prune(now);
        let members = self.members();
        if members == self.accepted {
            return None;
        }
        let names =
            |members: &[Listed]| members.iter().map(|one| Arc::clone(&one.name)).collect::<BTreeSet<_>>();
        let (before, after) = (names(&self.accepted), names(&members));
        let came = after.difference(&before).cloned().collect();
        let went = before.difference(&after).cloned().collect();
        Some(Change { members, came, went })
    }

    /// Puts a proposed change in force.
    pub fn accept(&mut self, change: Change) {
        self.accepted = change.members;
    }

    /// Returns the members in force.
    pub fn accepted(&self) -> &[Listed] {
        &self.accepted
    }

    /// Returns the time at which members may change without an update.
    pub fn due(&self) -> Option<Instant> {
        // Sources without `hold` keep no members: most have many, and this is called often.
        let holding = self.entries.iter().filter(|entry| !entry.source.hold.is_zero());
        let holds = holding.flat_map(|entry| &entry.members).filter_map(|kept| kept.until);
        // Members that stay because there are no others have no time limit.
        let graces = self.entries.iter().filter_map(|entry| Some(entry.former? + GRACE));
        let graces = graces.filter(|_| self.others());
        let looks = self.looked.filter(|_| self.replacing()).map(|looked| looked + LOOK);
        holds.chain(graces).chain(looks).min()
    }

    /// Returns the status of the sources, in the order of the configuration.
    pub fn status(&self, now: Instant) -> Vec<SourceStatus> {
        self.entries.iter().map(|entry| entry.status(now)).collect()
    }

    fn members(&self) -> Vec<Listed> {
        let mut seen = self.fixed.clone();
        let of = |entry: &'_ Entry| -> Vec<Listed> {
            let listed = entry.members.iter().map(|kept| &kept.member);
            listed.chain(&entry.replaced).cloned().collect()
        };
        let mut all: Vec<Listed> = self.entries.iter().flat_map(of).collect();
        all.retain(|member| seen.insert(Arc::clone(&member.name)));
        all
    }

    /// Returns `true` if the group has members besides those of removed sources.
    fn others(&self) -> bool {
        let current = |entry: &Entry| entry.former.is_none() && !entry.members.is_empty();
        !self.fixed.is_empty() || self.entries.iter().any(current)
    }

    /// Drops removed sources when the new ones have responded, or after a while if the group has other
    /// members.
    fn let_go(&mut self, now: Instant) {
        let mut current = self.entries.iter().filter(|entry| entry.former.is_none());
        let answered = current.all(|entry| entry.heard.is_some());
        let others = self.others();
        self.entries.retain(|entry| match entry.former {
            None => true,
            Some(since) => !answered && (!others || now < since + GRACE),
        });
    }
}

impl Entry {
    fn new(source: Arc<SourceSettings>) -> Self {
        let (members, heard, trouble, refused) = (Vec::new(), None, None, None);
        Self { source, members, replaced: Vec::new(), heard, trouble, refused, failures: 0, former: None }
    }

    /// Returns the reason to reject a list, if there is one.
    fn doubt(&self, members: &[Listed], note: Option<&str>) -> Option<String> {
        if members.len() > MOST {
            return Some(too_many(members.len()));
        }
        if members.is_empty() && !self.source.allow_empty {
            let note = note.unwrap_or("it lists no member");
            return Some(format!("{note}, which is not believed; if it may be so, set allow_empty = true"));
        }
        None
    }

    fn take(&mut self, members: Vec<Listed>, checked: bool, now: Instant) {
        let mut names = BTreeSet::new();
        let listed = members.into_iter().filter(|member| names.insert(Arc::clone(&member.name)));
        let listed: Vec<Kept> = listed.map(|member| Kept { member, until: None }).collect();
        let missing = self.members.drain(..).filter(|kept| !names.contains(&kept.member.name));
        let hold = self.source.hold;
        let missing = missing.map(|kept| Kept { until: kept.until.or(Some(now + hold)), ..kept });
        let (held, gone): (Vec<Kept>, Vec<Kept>) =
            missing.partition(|kept| kept.until.is_some_and(|until| until > now));
        self.members = listed;
        self.replaced.retain(|one| !names.contains(&one.name));
        if checked && self.source.kind.named() {
            self.replaced.extend(gone.into_iter().map(|kept| kept.member));
            self.replaced.truncate(MOST);
        }
        self.members.extend(held);
        // Sorted by name if members are held; otherwise a briefly missing one would change the order of the
        // others.
        if !hold.is_zero() {
            self.members.sort_by(|one, other| one.member.name.cmp(&other.member.name));
        }
        // Limits the number of held members to that of listed ones.
        self.members.truncate(2 * MOST);
    }

    fn recover(&mut self, now: Instant) -> Option<News> {
        self.heard = Some(now);
        let trouble = self.trouble.take()?;
        let since = now.saturating_duration_since(trouble.since);
        let kind = &self.source.kind;
        Some(News::Recovered(format!("{kind} answers again, after {:.1} s", since.as_secs_f64()), since))
    }

    fn fail(&mut self, why: String, now: Instant) -> Option<News> {
        self.failures += 1;
        if let Some(trouble) = &mut self.trouble {
            trouble.why = why;
            return None;
        }
        let kept = match self.members.len() {
            0 => "it has no members yet".to_owned(),
            1 => "its member stays".to_owned(),
            count => format!("its {count} members stay"),
        };
        let news = News::Failed(format!("{}: {why}; {kept}", self.source.kind), self.members.len());
        self.trouble = Some(Trouble { why, since: now });
        Some(news)
    }

    fn status(&self, now: Instant) -> SourceStatus {
        let ago = |at: Instant| now.saturating_duration_since(at).as_secs_f64();
        SourceStatus {
            kind: self.source.kind.name().to_owned(),
            what: self.source.kind.what(),
            members: self.members.len(),
            age_seconds: self.heard.map(ago),
            failures: self.failures,
            error: match self.former {
                Some(_) => Some(
                    "it is not in the configuration any more; its members stay until the others answer"
                        .into(),
                ),
                None => self.trouble.as_ref().map(|trouble| trouble.why.clone()),
            },
            failing_seconds: self.trouble.as_ref().map(|trouble| ago(trouble.since)),
        }
    }
}

#[cfg(test)]
mod tests;
