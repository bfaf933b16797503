//! Who the members of a group are, by what its sources said: a value, without a socket or a clock of its own.
//!
//! Members in the configuration come first and are not this one's; then the sources in their order, and a name counts once, as whoever
//! comes first has it. A source that fails keeps what it said last. One that says that there is nobody is not believed unless it is
//! told that this may be: more often than a service without servers there is a list that somebody broke. One that leaves somebody out
//! may be told to keep them for a while (`hold`).
//!
//! Names are believed less than other sources: an address that a name has instead of another one may be wrong. Where members are checked
//! ([`Roll::check`]) one whose address a name does not have any more stays until one that came for it has passed its check.
//!
//! When the configuration changes, sources that stay keep their members. Those of sources that went stay, too, until the new ones have
//! answered: a name that is corrected empties no group.
//!
//! What they said last can be told to another process that takes over (`roll/carry.rs`).

mod carry;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_brain::status::SourceStatus;

use super::look_up::too_many;
use super::{Listed, MOST, SourceSettings, Told};

pub use carry::Last;

/// Members of sources that went stay at least so long while a new one has not answered.
const GRACE: Duration = Duration::from_secs(10);

/// Between two looks at whether members that came have passed their checks.
const LOOK: Duration = Duration::from_millis(250);

/// The sources of one group and what they said.
#[derive(Clone, Debug, Default)]
pub struct Roll {
    entries: Vec<Entry>,
    /// Members in the configuration.
    fixed: BTreeSet<Arc<str>>,
    /// What is in force.
    accepted: Vec<Listed>,
    /// Members have to pass checks.
    checked: bool,
    /// When it was looked last whether they have.
    looked: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Entry {
    source: Arc<SourceSettings>,
    members: Vec<Kept>,
    /// Members that others came for, which have not passed their checks yet.
    replaced: Vec<Listed>,
    /// When it said who is there.
    heard: Option<Instant>,
    trouble: Option<Trouble>,
    /// Why its last answer is not believed, if it is not.
    refused: Option<String>,
    failures: u64,
    /// It left the configuration then.
    former: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Kept {
    member: Listed,
    /// It is not listed any more, and goes then.
    until: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Trouble {
    why: String,
    since: Instant,
}

/// What is to be told of a source.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// It failed, after it had not: one sentence for a person, and how many members it keeps.
    Failed(String, usize),
    /// It answers again: one sentence for a person, and how long it did not.
    Recovered(String, Duration),
}

/// Other members than those that are in force.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// All there are, those in the configuration left out.
    pub members: Vec<Listed>,
    /// Names of those who were not there.
    pub came: Vec<Arc<str>>,
    /// Names of those who are not there any more.
    pub went: Vec<Arc<str>>,
}

impl Change {
    /// One sentence for a person: who came and who went, a few of them by name.
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
    /// What is known when other sources count. `fixed` are the names of members in the configuration.
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

    /// Says whether members of the group have to pass checks.
    #[must_use]
    pub fn check(self, checked: bool) -> Self {
        Self { checked, ..self }
    }

    /// Tells whether members stay that others came for.
    pub fn replacing(&self) -> bool {
        self.entries.iter().any(|entry| !entry.replaced.is_empty())
    }

    /// Lets members go for which others came that have passed their checks, and those that do not pass themselves. `passed` are the names
    /// of all that do.
    pub fn replace(&mut self, passed: &BTreeSet<String>, now: Instant) {
        self.looked = Some(now);
        for entry in &mut self.entries {
            let pending = entry.members.iter().filter(|kept| !passed.contains(&*kept.member.name)).count();
            entry.replaced.retain(|one| passed.contains(&*one.name));
            entry.replaced.truncate(pending);
        }
    }

    /// Takes what a source said; what there is to be told of that.
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
                // It says once more what was not believed.
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

    /// Has each source answered, or failed?
    pub fn all_asked(&self) -> bool {
        self.entries.iter().all(|entry| entry.heard.is_some() || entry.trouble.is_some())
    }

    /// Lets those go whose time is over.
    pub fn prune(&mut self, now: Instant) {
        for entry in &mut self.entries {
            entry.members.retain(|kept| kept.until.is_none_or(|until| until > now));
        }
        self.let_go(now);
    }

    /// Who is there now, if that is not what is in force.
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

    /// What was proposed is in force.
    pub fn accept(&mut self, change: Change) {
        self.accepted = change.members;
    }

    /// What is in force.
    pub fn accepted(&self) -> &[Listed] {
        &self.accepted
    }

    /// When there may be something to propose without anything being heard.
    pub fn due(&self) -> Option<Instant> {
        // Nobody is held by sources that hold nobody: most have many members, and this is asked for often.
        let holding = self.entries.iter().filter(|entry| !entry.source.hold.is_zero());
        let holds = holding.flat_map(|entry| &entry.members).filter_map(|kept| kept.until);
        // Who is there for want of others is not let go by time.
        let graces = self.entries.iter().filter_map(|entry| Some(entry.former? + GRACE));
        let graces = graces.filter(|_| self.others());
        let looks = self.looked.filter(|_| self.replacing()).map(|looked| looked + LOOK);
        holds.chain(graces).chain(looks).min()
    }

    /// What there is to be seen, in the order of the configuration.
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

    /// Has the group anybody but those of sources that left the configuration?
    fn others(&self) -> bool {
        let current = |entry: &Entry| entry.former.is_none() && !entry.members.is_empty();
        !self.fixed.is_empty() || self.entries.iter().any(current)
    }

    /// Sources that left the configuration are done with when those that came have answered, or, after a while, when the group has
    /// somebody else.
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

    /// Why an answer is not believed, if it is not.
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
        // By name where some are held, or each that is missing for a moment would change the order of the others.
        if !hold.is_zero() {
            self.members.sort_by(|one, other| one.member.name.cmp(&other.member.name));
        }
        // However many come and go, no more are held than may be listed.
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
