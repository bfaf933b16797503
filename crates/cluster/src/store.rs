//! Persistent state: operator actions, registered members, and the groups and listeners that several
//! balancers share.
//!
//! A store holds entries, each a text under a key, and numbers its changes. A [`StoreChange`] is atomic, and
//! conditional on the state that it was decided on. A [`StoreSnapshot`] is a consistent snapshot, which stays
//! readable even if the store fails. An entry may have a lease: it is removed unless it is renewed.
//!
//! There are two stores: a file on this machine ([`LocalStore`], or memory without a file), and etcd
//! ([`EtcdStore`]), which any number of balancers share. The store does not interpret keys.

mod file;
mod local;
mod shared;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

pub use local::LocalStore;
pub use shared::{EtcdStore, EtcdStoreSettings};

/// The maximum number of entries.
pub const MAX_ENTRIES: usize = 65_536;
/// The maximum length of a value, in bytes: below etcd's limit.
pub const MAX_VALUE_LENGTH: usize = 1 << 20;
/// The maximum length of a key, in bytes.
pub const MAX_KEY_LENGTH: usize = 1024;

/// A stored entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreEntry {
    /// The value.
    pub value: Arc<str>,
    /// The number of the change that wrote it; 0 for a deleted entry that stays in force (see
    /// [`StoreHealth::distrust`]).
    pub revision: i64,
    /// A number for its lease; 0 if it has none.
    pub lease: i64,
}

/// A consistent snapshot of all entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreSnapshot {
    /// The number of the last change.
    pub revision: i64,
    /// The entries, by key.
    pub entries: BTreeMap<String, StoreEntry>,
}

impl StoreSnapshot {
    /// Returns the entries whose keys begin with `prefix`, each with the rest of its key.
    pub fn with_prefix<'v>(&'v self, prefix: &'v str) -> impl Iterator<Item = (&'v str, &'v StoreEntry)> {
        let range = self.entries.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        range.map_while(move |(key, entry)| Some((key.strip_prefix(prefix)?, entry)))
    }

    /// Returns the number of the change that wrote an entry; 0 if there is none.
    pub fn revision_of(&self, key: &str) -> i64 {
        self.entries.get(key).map_or(0, |entry| entry.revision)
    }
}

/// An entry to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryWrite {
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
    /// The lease's duration: the entry is removed unless it is renewed within this time.
    pub ttl: Option<Duration>,
}

/// An atomic change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreChange {
    /// The conditions: keys with the expected numbers of their last changes; 0 for a missing key.
    pub unchanged: Vec<(String, i64)>,
    /// The entries to write.
    pub puts: Vec<EntryWrite>,
    /// The keys to delete; missing ones are no error.
    pub deletes: Vec<String>,
}

impl StoreChange {
    /// Creates a change that writes one entry.
    pub fn put(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self::default().and_put(key, value, None)
    }

    /// Creates a change that deletes one entry.
    pub fn delete(key: impl Into<String>) -> Self {
        Self { deletes: vec![key.into()], ..Self::default() }
    }

    /// Adds an entry to write, with a lease if `ttl` is set.
    #[must_use]
    pub fn and_put(
        mut self,
        key: impl Into<String>,
        value: impl Into<String>,
        ttl: Option<Duration>,
    ) -> Self {
        self.puts.push(EntryWrite { key: key.into(), value: value.into(), ttl });
        self
    }

    /// Adds an entry to delete.
    #[must_use]
    pub fn and_delete(mut self, key: impl Into<String>) -> Self {
        self.deletes.push(key.into());
        self
    }

    /// Adds the condition that all affected entries are as in a view.
    #[must_use]
    pub fn if_unchanged_since(mut self, snapshot: &StoreSnapshot) -> Self {
        let touched_keys = self.puts.iter().map(|put| &put.key).chain(&self.deletes);
        self.unchanged = touched_keys.map(|key| (key.clone(), snapshot.revision_of(key))).collect();
        self
    }

    /// Returns the reason why the change is invalid in any state.
    fn invalid_reason(&self) -> Option<String> {
        let oversized_put = self.puts.iter().find(|put| put.value.len() > MAX_VALUE_LENGTH);
        if let Some(put) = oversized_put {
            return Some(format!("{}: longer than {} KiB", put.key, MAX_VALUE_LENGTH >> 10));
        }
        let keys = self.puts.iter().map(|put| &put.key).chain(&self.deletes);
        let oversized_key = keys.into_iter().find(|key| key.len() > MAX_KEY_LENGTH);
        oversized_key.map(|key| format!("a key of {} bytes: {MAX_KEY_LENGTH} is the most", key.len()))
    }

    /// Returns `true` if a view contains all entries of this change, and none that it deletes.
    fn is_applied_in(&self, snapshot: &StoreSnapshot) -> bool {
        let is_written =
            |put: &EntryWrite| snapshot.entries.get(&put.key).is_some_and(|entry| *entry.value == *put.value);
        self.puts.iter().all(is_written) && self.deletes.iter().all(|key| !snapshot.entries.contains_key(key))
    }
}

/// The reason why a change was not made: one sentence for its author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A condition does not hold. Nothing was changed.
    #[error("somebody else changed {0} meanwhile: look again, and say it again if it still is what you want")]
    Conflict(String),
    /// The store cannot be reached or written. Nothing was changed.
    #[error("the store cannot be written: {0}; nothing was changed")]
    Unavailable(String),
    /// The outcome is unknown until the store is reachable again.
    #[error("the store broke off: {0}; whether it was done will be seen when it is back")]
    OutcomeUnknown(String),
    /// The change is invalid.
    #[error("the store does not take it: {0}")]
    Invalid(String),
}

/// The state of a store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoreHealth {
    /// The reason why the store cannot be used, and since when; `None` if it works.
    pub problem: Option<(String, Instant)>,
    /// The reason why the store's contents are not trusted, as text that follows its name, and since when.
    /// The previous state stays in force. The store can be used nevertheless.
    pub distrust: Option<(String, Instant)>,
    /// The number of such failures.
    pub failures: u64,
    /// The number of changes that were rejected because of concurrent ones.
    pub conflicts: u64,
    /// The number of full reads, with the first one.
    pub reads: u64,
}

/// A place for entries.
pub trait Store: Send + Sync + 'static {
    /// Returns `file`, `etcd`, or `memory` for a store without persistence.
    fn kind(&self) -> &'static str;

    /// Returns the location, as configured.
    fn location(&self) -> String;

    /// Returns the prefix of all keys, if others use the store, too.
    fn prefix(&self) -> Option<&str> {
        None
    }

    /// Returns the current view and all later ones. There is always a view, which may be empty.
    fn snapshots(&self) -> watch::Receiver<Arc<StoreSnapshot>>;

    /// Makes a change, and blocks until it is durable and visible in the view: seconds at worst. It must not
    /// be called where blocking is forbidden.
    ///
    /// # Errors
    /// The change was not made, or its outcome is unknown.
    fn commit(&self, change: &StoreChange) -> Result<(), StoreError>;

    /// Renews the lease of an entry for its full time. Returns `false` if there is no such entry, or it has
    /// no lease. It does not block.
    ///
    /// # Errors
    /// The store is unreachable: the caller may try another balancer.
    fn renew(&self, key: &str) -> Result<bool, StoreError>;

    /// Returns the state of the store.
    fn health(&self) -> StoreHealth;

    /// Stops the expiry of entries: renewals go to another process.
    fn close(&self);

    /// Resumes the expiry of entries. Where renewals may have been missed, all leases restart with their full
    /// time.
    fn reopen(&self);
}

impl dyn Store {
    /// Returns the current view.
    pub fn snapshot(&self) -> Arc<StoreSnapshot> {
        Arc::clone(&self.snapshots().borrow())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(entries: &[(&str, &str, i64)]) -> StoreSnapshot {
        let entry = |(key, value, revision): &(&str, &str, i64)| {
            ((*key).to_owned(), StoreEntry { value: (*value).into(), revision: *revision, lease: 0 })
        };
        StoreSnapshot { revision: 9, entries: entries.iter().map(entry).collect() }
    }

    #[test]
    fn a_view_is_read_by_prefix() {
        let snapshot = snapshot(&[("a", "1", 1), ("b/x", "2", 2), ("b/y", "3", 3), ("b0", "4", 4)]);
        let entries: Vec<(&str, i64)> =
            snapshot.with_prefix("b/").map(|(key, entry)| (key, entry.revision)).collect();
        assert_eq!(entries, [("x", 2), ("y", 3)]);
        assert_eq!((snapshot.revision_of("b0"), snapshot.revision_of("c")), (4, 0));
    }

    #[test]
    fn a_change_knows_what_it_was_decided_on() {
        let snapshot = snapshot(&[("a", "1", 4)]);
        let change =
            StoreChange::put("a", "2").and_put("b", "3", None).and_delete("c").if_unchanged_since(&snapshot);
        assert_eq!(change.unchanged, [("a".into(), 4), ("b".into(), 0), ("c".into(), 0)]);
        assert!(!change.is_applied_in(&snapshot));
        assert!(StoreChange::put("a", "1").and_delete("c").is_applied_in(&snapshot));
        assert!(!StoreChange::delete("a").is_applied_in(&snapshot));
        assert!(
            StoreChange::put("a", "x".repeat(MAX_VALUE_LENGTH + 1))
                .invalid_reason()
                .unwrap()
                .contains("1024 KiB")
        );
        assert!(StoreChange::delete("x".repeat(2000)).invalid_reason().unwrap().contains("2000 bytes"));
        assert_eq!(StoreChange::put("a", "b").invalid_reason(), None);
    }
}
