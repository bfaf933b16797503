//! The state that stays in force when the etcd cluster has lost it: the cluster was wiped, or restored from
//! an older backup.
//!
//! An empty etcd is more often a mistake than a decision. So the known state stays until an operator's entry
//! exists again: any entry without a lease. Entries with a lease do not count, as agents write them by
//! themselves.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::super::{StoreEntry, StoreSnapshot};

/// The assumed duration of a lease whose duration is unknown.
const DEFAULT_LEASE: Duration = Duration::from_secs(60);
/// The maximum duration of a lease.
const MAX_LEASE: Duration = Duration::from_secs(3600);

/// The entries that the current cluster does not have.
#[derive(Debug, Default)]
pub(super) struct FallbackEntries {
    entries: BTreeMap<String, (StoreEntry, Option<Instant>)>,
    since: Option<Instant>,
}

/// Returns `true` if there are no operator's entries.
pub(super) fn has_no_operator_entries(snapshot: &StoreSnapshot) -> bool {
    snapshot.entries.values().all(|entry| entry.lease != 0)
}

impl FallbackEntries {
    /// Keeps the shown entries. Those with a lease have its full time from now on: the etcd that would have
    /// ended it is gone, and its rest is unknown. A live owner registers again well within it, as its next
    /// renewal is rejected. A dead one's entry would otherwise stay forever.
    pub(super) fn keep_shown(&mut self, snapshot: &StoreSnapshot, now: Instant) {
        for (key, entry) in &snapshot.entries {
            // The time of an already carried entry continues.
            self.entries.entry(key.clone()).or_insert_with(|| {
                let expires_at = (entry.lease != 0).then(|| now + lease_duration(entry));
                (StoreEntry { revision: 0, ..entry.clone() }, expires_at)
            });
        }
        if !self.entries.is_empty() {
            self.since.get_or_insert(now);
        }
    }

    /// Drops entries that the current cluster has, those that are over, and all others once an operator's
    /// entry exists.
    pub(super) fn reconcile(&mut self, snapshot: &StoreSnapshot, now: Instant) {
        let empty = has_no_operator_entries(snapshot);
        self.entries.retain(|key, (_, expires_at)| {
            !snapshot.entries.contains_key(key) && expires_at.map_or(empty, |expires_at| expires_at > now)
        });
        if self.entries.is_empty() {
            self.since = None;
        }
    }

    /// Drops an entry that was deleted.
    pub(super) fn remove(&mut self, key: &str) {
        self.entries.remove(key);
    }

    /// Drops all entries.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the time at which the next entry expires.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.entries.values().filter_map(|(_, expires_at)| *expires_at).min()
    }

    /// Returns the view with the carried entries added.
    pub(super) fn merged_with(&self, snapshot: &StoreSnapshot) -> StoreSnapshot {
        let mut snapshot = snapshot.clone();
        for (key, (entry, _)) in &self.entries {
            snapshot.entries.entry(key.clone()).or_insert_with(|| entry.clone());
        }
        snapshot
    }

    /// Returns a message about the carried entries, and since when there are any.
    pub(super) fn distrust(&self) -> Option<(String, Instant)> {
        let count = match self.entries.len() {
            1 => "1 entry that was".to_owned(),
            count => format!("{count} entries that were"),
        };
        let reason = format!(
            "has lost what it had: it is another cluster, or was set back; {count} known stay in force until \
             something is there \
             again: put a backup back, or have an operator change something, which writes them again"
        );
        self.since.map(|since| (reason, since))
    }
}

/// Returns the duration of an entry's lease, as stated in its value.
fn lease_duration(entry: &StoreEntry) -> Duration {
    let document: Option<serde_json::Value> = serde_json::from_str(&entry.value).ok();
    let seconds = document.and_then(|document| document["ttl_seconds"].as_f64());
    let lease = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    lease.map_or(DEFAULT_LEASE, |lease| lease.min(MAX_LEASE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(revision: i64, entries: &[(&str, &str, i64)]) -> StoreSnapshot {
        let entry = |(key, value, lease): &(&str, &str, i64)| {
            ((*key).to_owned(), StoreEntry { value: (*value).into(), revision, lease: *lease })
        };
        StoreSnapshot { revision, entries: entries.iter().map(entry).collect() }
    }

    fn keys(snapshot: &StoreSnapshot) -> Vec<&str> {
        snapshot.entries.keys().map(String::as_str).collect()
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_was_known_stays_until_somebody_puts_something_there() {
        let now = Instant::now();
        let previous = view(
            90,
            &[("drain/a", "{}", 0), ("members/a", "{\"ttl_seconds\": 10}", 7), ("members/b", "?", 8)],
        );
        let mut fallback = FallbackEntries::default();
        assert_eq!((fallback.next_expiry(), fallback.distrust()), (None, None));
        fallback.keep_shown(&previous, now);
        let empty = view(1, &[]);
        fallback.reconcile(&empty, now);
        let merged = fallback.merged_with(&empty);
        assert_eq!((merged.revision, keys(&merged)), (1, vec!["drain/a", "members/a", "members/b"]));
        // They have no revision and no lease of this cluster.
        assert!(merged.entries.values().all(|entry| entry.revision == 0));
        let (reason, since) = fallback.distrust().unwrap();
        assert!(reason.contains("3 entries that were known stay") && since == now, "{reason}");
        // A live owner returns by itself. The others' time continues, and operators' entries stay.
        let agent_snapshot = view(2, &[("members/b", "?", 1)]);
        fallback.reconcile(&agent_snapshot, now + secs(1));
        assert_eq!(keys(&fallback.merged_with(&agent_snapshot)), ["drain/a", "members/a", "members/b"]);
        assert_eq!(fallback.merged_with(&agent_snapshot).entries["members/b"].lease, 1);
        // After a repeated loss, the time continues.
        fallback.keep_shown(&fallback.merged_with(&agent_snapshot), now + secs(5));
        assert_eq!(fallback.next_expiry(), Some(now + secs(10)));
        fallback.reconcile(&agent_snapshot, now + secs(10));
        assert_eq!(keys(&fallback.merged_with(&agent_snapshot)), ["drain/a", "members/b"]);
        // A new operator's entry decides.
        let operator_snapshot = view(3, &[("members/b", "?", 1), ("drain/b", "{}", 0)]);
        fallback.reconcile(&operator_snapshot, now + secs(11));
        assert_eq!(
            (fallback.merged_with(&operator_snapshot), fallback.distrust()),
            (operator_snapshot, None)
        );
    }

    #[test]
    fn who_may_live_has_its_time_whatever_somebody_puts_there() {
        let now = Instant::now();
        let mut fallback = FallbackEntries::default();
        fallback
            .keep_shown(&view(9, &[("a", "1", 0), ("m", "{\"ttl_seconds\": 1e300}", 7), ("n", "", 8)]), now);
        let config_snapshot = view(2, &[("config", "", 0)]);
        fallback.reconcile(&config_snapshot, now);
        assert_eq!(keys(&fallback.merged_with(&config_snapshot)), ["config", "m", "n"]);
        assert_eq!(fallback.next_expiry(), Some(now + DEFAULT_LEASE));
        fallback.remove("m");
        fallback.reconcile(&config_snapshot, now + DEFAULT_LEASE);
        assert_eq!(
            (fallback.merged_with(&config_snapshot), fallback.next_expiry(), fallback.distrust()),
            (config_snapshot, None, None)
        );
    }
}
