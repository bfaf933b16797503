//! A process's last view of a store that several balancers share, for the next one, which goes on with it
//! while the store is away. It is passed on in memory alone, as it has everything that operators and members
//! wrote.

use std::collections::BTreeMap;

use plimsoll_cluster::store::{Store, StoreEntry, StoreSnapshot};
use serde::{Deserialize, Serialize};

/// The maximum bytes of keys and values: more is not passed on, as one message has to hold it with all else.
const MAX_BYTES: usize = 128 << 20;

/// The view at one moment.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SharedStoreView {
    /// The prefix of all keys there.
    prefix: String,
    /// The number of the last change; 0 without any.
    revision: i64,
    /// Keys and values, each with the number of the change that wrote it and that of its lease.
    entries: Vec<(String, String, i64, i64)>,
}

impl SharedStoreView {
    /// Returns the view of a store that others share; nothing of any other.
    pub(crate) fn of(store: &dyn Store) -> Self {
        let Some(prefix) = store.prefix() else { return Self::default() };
        let snapshot = store.snapshot();
        if snapshot.entries.iter().map(|(key, entry)| key.len() + entry.value.len()).sum::<usize>()
            > MAX_BYTES
        {
            tracing::warn!(
                "the store has more than {} MiB: the next process is not told of it",
                MAX_BYTES >> 20
            );
            return Self::default();
        }
        let entry = |(key, entry): (&String, &StoreEntry)| {
            (key.clone(), entry.value.to_string(), entry.revision, entry.lease)
        };
        let entries = snapshot.entries.iter().map(entry).collect();
        Self { prefix: prefix.to_owned(), revision: snapshot.revision, entries }
    }

    /// Returns the view, if it is of a store with this prefix. The endpoints may be others now, as when etcd
    /// has moved.
    pub(crate) fn into_view(self, prefix: &str) -> Option<StoreSnapshot> {
        let Self { prefix: stored_prefix, revision, entries } = self;
        if revision <= 0 || stored_prefix != prefix {
            return None;
        }
        let entries = entries
            .into_iter()
            .map(|(key, value, revision, lease)| (key, StoreEntry { value: value.into(), revision, lease }));
        Some(StoreSnapshot { revision, entries: entries.collect::<BTreeMap<_, _>>() })
    }
}
