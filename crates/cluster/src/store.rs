//! What outlives a balancer: what operators did, members that were registered, the groups and listeners that several balancers share.
//!
//! A store has entries, each a text under a key, and counts its changes. A [`Change`] is done as a whole or not at all, and only if what
//! it was decided on is still so. Whoever wants to know what is there has a [`View`]: all of it at one moment, which stays readable
//! whatever becomes of the store. An entry may have a lease: it goes when nobody renews it.
//!
//! There are two: a file on this machine ([`Local`], also without a file, for as long as the process lives), and etcd ([`Shared`]), which
//! any number of balancers have together. What the keys mean is not known here.

mod file;
mod local;
mod shared;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

pub use local::Local;
pub use shared::{Shared, SharedSettings};

/// Most entries.
pub const MOST_ENTRIES: usize = 65_536;
/// Longest value, bytes: below what etcd takes at once.
pub const LONGEST_VALUE: usize = 1 << 20;
/// Longest key, bytes.
pub const LONGEST_KEY: usize = 1024;

/// Something kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it says.
    pub value: Arc<str>,
    /// The number of the change that wrote it; 0 for one that is not there any more, and stays in force (see [`Health::doubt`]).
    pub revision: i64,
    /// A number that stands for its lease; 0 if it has none.
    pub lease: i64,
}

/// All that is kept, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The number of the last change.
    pub revision: i64,
    /// By key.
    pub entries: BTreeMap<String, Entry>,
}

impl View {
    /// The entries whose keys begin with `prefix`, with what follows it.
    pub fn below<'v>(&'v self, prefix: &'v str) -> impl Iterator<Item = (&'v str, &'v Entry)> {
        let from = self.entries.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        from.map_while(move |(key, entry)| Some((key.strip_prefix(prefix)?, entry)))
    }

    /// The number of the change that wrote an entry; 0 if there is none.
    pub fn revision_of(&self, key: &str) -> i64 {
        self.entries.get(key).map_or(0, |entry| entry.revision)
    }
}

/// An entry that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// Under which key.
    pub key: String,
    /// What it says.
    pub value: String,
    /// It goes if nobody renews it for so long.
    pub ttl: Option<Duration>,
}

/// What is to be done, as a whole or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Keys whose entries must be those of these changes; 0 for none there.
    pub unchanged: Vec<(String, i64)>,
    /// Entries to be written.
    pub puts: Vec<Put>,
    /// Keys to be taken away; that of none there is no error.
    pub deletes: Vec<String>,
}

impl Change {
    /// Writes one entry.
    pub fn put(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self::default().and_put(key, value, None)
    }

    /// Takes one away.
    pub fn delete(key: impl Into<String>) -> Self {
        Self { deletes: vec![key.into()], ..Self::default() }
    }

    /// And writes another, with a lease if `ttl` says so.
    #[must_use]
    pub fn and_put(
        mut self,
        key: impl Into<String>,
        value: impl Into<String>,
        ttl: Option<Duration>,
    ) -> Self {
        self.puts.push(Put { key: key.into(), value: value.into(), ttl });
        self
    }

    /// And takes another away.
    #[must_use]
    pub fn and_delete(mut self, key: impl Into<String>) -> Self {
        self.deletes.push(key.into());
        self
    }

    /// Only if all that it touches is as it is in a view.
    #[must_use]
    pub fn as_seen(mut self, view: &View) -> Self {
        let touched = self.puts.iter().map(|put| &put.key).chain(&self.deletes);
        self.unchanged = touched.map(|key| (key.clone(), view.revision_of(key))).collect();
        self
    }

    /// What is wrong with it whatever is there.
    fn wrong(&self) -> Option<String> {
        let long = self.puts.iter().find(|put| put.value.len() > LONGEST_VALUE);
        if let Some(put) = long {
            return Some(format!("{}: longer than {} KiB", put.key, LONGEST_VALUE >> 10));
        }
        let keys = self.puts.iter().map(|put| &put.key).chain(&self.deletes);
        let long = keys.into_iter().find(|key| key.len() > LONGEST_KEY);
        long.map(|key| format!("a key of {} bytes: {LONGEST_KEY} is the most", key.len()))
    }

    /// Has a view all that this was to write, and nothing that it was to take away?
    fn is_in(&self, view: &View) -> bool {
        let written = |put: &Put| view.entries.get(&put.key).is_some_and(|entry| *entry.value == *put.value);
        self.puts.iter().all(written) && self.deletes.iter().all(|key| !view.entries.contains_key(key))
    }
}

/// Why a change was not made: one sentence for whoever wanted it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// What it was decided on is not so any more. Nothing was changed.
    #[error("somebody else changed {0} meanwhile: look again, and say it again if it still is what you want")]
    Conflict(String),
    /// The store cannot be reached or written. Nothing was changed.
    #[error("the store cannot be written: {0}; nothing was changed")]
    Away(String),
    /// Nobody knows whether it was made: it will be seen.
    #[error("the store broke off: {0}; whether it was done will be seen when it is back")]
    Unsure(String),
    /// It cannot be made.
    #[error("the store does not take it: {0}")]
    Wrong(String),
}

/// How a store is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Health {
    /// Why it cannot be used, and since when; `None` if all is well.
    pub trouble: Option<(String, Instant)>,
    /// Why what it has is not believed, to be read behind its name, and since when: what was known stays in force. It can be used all
    /// the same.
    pub doubt: Option<(String, Instant)>,
    /// How often it came to be like that.
    pub failures: u64,
    /// Changes that were refused because somebody else had been faster.
    pub conflicts: u64,
    /// How often all of it was read, the first time included.
    pub reads: u64,
}

/// Where entries are kept.
pub trait Store: Send + Sync + 'static {
    /// `file`, `etcd`, or `memory` for one that forgets.
    fn kind(&self) -> &'static str;

    /// Where it is, as configured.
    fn place(&self) -> String;

    /// What all keys begin with, where others have it, too.
    fn prefix(&self) -> Option<&str> {
        None
    }

    /// What is there, now and from now on. There is always something to be had, if only nothing.
    fn views(&self) -> watch::Receiver<Arc<View>>;

    /// Makes a change, and waits until it is safe and seen in the view: seconds at worst. Not to be called where waiting is not
    /// allowed.
    ///
    /// # Errors
    /// It was not made, or nobody knows.
    fn commit(&self, change: &Change) -> Result<(), Refused>;

    /// Renews the lease of an entry for its whole time. False if there is no such entry, or it has no lease. Waits for nobody.
    ///
    /// # Errors
    /// The store is away: it may be tried at another balancer.
    fn renew(&self, key: &str) -> Result<bool, Refused>;

    /// How it is.
    fn health(&self) -> Health;

    /// From now on nothing is taken away by time: whoever renews does so elsewhere.
    fn close(&self);

    /// From now on things are taken away by time again. Where nobody could tell what was renewed meanwhile, all has its whole time.
    fn reopen(&self);
}

impl dyn Store {
    /// What is there now.
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.views().borrow())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(entries: &[(&str, &str, i64)]) -> View {
        let entry = |(key, value, revision): &(&str, &str, i64)| {
            ((*key).to_owned(), Entry { value: (*value).into(), revision: *revision, lease: 0 })
        };
        View { revision: 9, entries: entries.iter().map(entry).collect() }
    }

    #[test]
    fn a_view_is_read_by_prefix() {
        let view = view(&[("a", "1", 1), ("b/x", "2", 2), ("b/y", "3", 3), ("b0", "4", 4)]);
        let found: Vec<(&str, i64)> = view.below("b/").map(|(key, entry)| (key, entry.revision)).collect();
        assert_eq!(found, [("x", 2), ("y", 3)]);
        assert_eq!((view.revision_of("b0"), view.revision_of("c")), (4, 0));
    }

    #[test]
    fn a_change_knows_what_it_was_decided_on() {
        let view = view(&[("a", "1", 4)]);
        let change = Change::put("a", "2").and_put("b", "3", None).and_delete("c").as_seen(&view);
        assert_eq!(change.unchanged, [("a".into(), 4), ("b".into(), 0), ("c".into(), 0)]);
        assert!(!change.is_in(&view));
        assert!(Change::put("a", "1").and_delete("c").is_in(&view));
        assert!(!Change::delete("a").is_in(&view));
        assert!(Change::put("a", "x".repeat(LONGEST_VALUE + 1)).wrong().unwrap().contains("1024 KiB"));
        assert!(Change::delete("x".repeat(2000)).wrong().unwrap().contains("2000 bytes"));
        assert_eq!(Change::put("a", "b").wrong(), None);
    }
}
