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
pub(super) fn has_no_operator_entries(view: &StoreSnapshot) -> bool {
    view.entries.values().all(|entry| entry.lease != 0)
}

impl FallbackEntries {
    /// Keeps the shown entries. Those with a lease have its full time from now on: the etcd that would have
    /// ended it is gone, and its rest is unknown. A live owner registers again well within it, as its next
    /// renewal is rejected. A dead one's entry would otherwise stay forever.
    pub(super) fn keep_shown(&mut self, shown: &StoreSnapshot, now: Instant) {
        for (key, entry) in &shown.entries {
            // The time of an already carried entry continues.
            self.entries.entry(key.clone()).or_insert_with(|| {
                let due = (entry.lease != 0).then(|| now + lease_duration(entry));
                (StoreEntry { revision: 0, ..entry.clone() }, due)
            });
        }
        if !self.entries.is_empty() {
            self.since.get_or_insert(now);
        }
    }

    /// Drops entries that the current cluster has, those that are over, and all others once an operator's
    /// entry exists.
    pub(super) fn reconcile(&mut self, view: &StoreSnapshot, now: Instant) {
        let nothing = has_no_operator_entries(view);
        self.entries
            .retain(|key, (_, due)| !view.entries.contains_key(key) && due.map_or(nothing, |due| due > now));
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
        self.entries.values().filter_map(|(_, due)| *due).min()
    }

    /// Returns the view with the carried entries added.
    pub(super) fn merged_with(&self, view: &StoreSnapshot) -> StoreSnapshot {
        let mut view = view.clone();
        for (key, (entry, _)) in &self.entries {
            view.entries.entry(key.clone()).or_insert_with(|| entry.clone());
        }
        view
    }

    /// Returns a message about the carried entries, and since when there are any.
    pub(super) fn distrust(&self) -> Option<(String, Instant)> {
        let count = match self.entries.len() {
            1 => "1 entry that was".to_owned(),
            count => format!("{count} entries that were"),
        };
        let why = format!(
            "has lost what it had: it is another cluster, or was set back; {count} known stay in force until \
             something is there \
             again: put a backup back, or have an operator change something, which writes them again"
        );
        self.since.map(|since| (why, since))
    }
}

/// Returns the duration of an entry's lease, as stated in its value.
fn lease_duration(entry: &StoreEntry) -> Duration {
    let said: Option<serde_json::Value> = serde_json::from_str(&entry.value).ok();
    let seconds = said.and_then(|said| said["ttl_seconds"].as_f64());
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.map_or(DEFAULT_LEASE, |time| time.min(MAX_LEASE))
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

    fn keys(view: &StoreSnapshot) -> Vec<&str> {
        view.entries.keys().map(String::as_str).collect()
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_was_known_stays_until_somebody_puts_something_there() {
        let now = Instant::now();
        let before = view(
            90,
            &[("drain/a", "{}", 0), ("members/a", "{\"ttl_seconds\": 10}", 7), ("members/b", "?", 8)],
        );
        let mut carried = FallbackEntries::default();
        assert_eq!((carried.next_expiry(), carried.distrust()), (None, None));
        carried.keep_shown(&before, now);
        let nothing = view(1, &[]);
        carried.reconcile(&nothing, now);
        let shown = carried.merged_with(&nothing);
        assert_eq!((shown.revision, keys(&shown)), (1, vec!["drain/a", "members/a", "members/b"]));
        // They have no revision and no lease of this cluster.
        assert!(shown.entries.values().all(|entry| entry.revision == 0));
        let (why, since) = carried.distrust().unwrap();
        assert!(why.contains("3 entries that were known stay") && since == now, "{why}");
        // A live owner returns by itself. The others' time continues, and operators' entries stay.
        let agent = view(2, &[("members/b", "?", 1)]);
        carried.reconcile(&agent, now + secs(1));
        assert_eq!(keys(&carried.merged_with(&agent)), ["drain/a", "members/a", "members/b"]);
        assert_eq!(carried.merged_with(&agent).entries["members/b"].lease, 1);
        // After a repeated loss, the time continues.
        carried.keep_shown(&carried.merged_with(&agent), now + secs(5));
        assert_eq!(carried.next_expiry(), Some(now + secs(10)));
        carried.reconcile(&agent, now + secs(10));
        assert_eq!(keys(&carried.merged_with(&agent)), ["drain/a", "members/b"]);
        // A new operator's entry decides.
        let other = view(3, &[("members/b", "?", 1), ("drain/b", "{}", 0)]);
        carried.reconcile(&other, now + secs(11));
        assert_eq!((carried.merged_with(&other), carried.distrust()), (other, None));
    }

    #[test]
    fn who_may_live_has_its_time_whatever_somebody_puts_there() {
        let now = Instant::now();
        let mut carried = FallbackEntries::default();
        carried
            .keep_shown(&view(9, &[("a", "1", 0), ("m", "{\"ttl_seconds\": 1e300}", 7), ("n", "", 8)]), now);
        let one = view(2, &[("config", "", 0)]);
        carried.reconcile(&one, now);
        assert_eq!(keys(&carried.merged_with(&one)), ["config", "m", "n"]);
        assert_eq!(carried.next_expiry(), Some(now + DEFAULT_LEASE));
        carried.remove("m");
        carried.reconcile(&one, now + DEFAULT_LEASE);
        assert_eq!((carried.merged_with(&one), carried.next_expiry(), carried.distrust()), (one, None, None));
    }
}
