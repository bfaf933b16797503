//! Changes: made by transactions, and complete once the watch reports them.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_wire::etcd::{
    CompareCondition, DeleteRangeRequest, OpRequest, PutRequest, RequestOp, TxnRequest,
};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::super::{StoreChange, StoreEntry, StoreError, StoreSnapshot};
use super::{EtcdShared, StoreJob};
use crate::etcd::EtcdError;
use crate::lock;

/// The gRPC status code for exhausted resources.
const RESOURCE_EXHAUSTED: u32 = 8;

/// The time limit for the watch to report a change.
const VISIBLE_TIMEOUT: Duration = Duration::from_secs(5);
/// The limits of a part when all entries are written: etcd accepts 128 operations and 1.5 MiB.
const MAX_BATCH_OPS: usize = 64;
const MAX_BATCH_BYTES: usize = 512 << 10;

/// Performs tasks until all senders are gone.
pub(super) async fn serve(shared: &Arc<EtcdShared>, mut jobs: mpsc::Receiver<StoreJob>) {
    while let Some(job) = jobs.recv().await {
        let shared = Arc::clone(shared);
        match job {
            StoreJob::Commit(change, result_sender) => {
                tokio::spawn(async move {
                    // The receiver may be gone.
                    let _ = result_sender.send(commit_change(&shared, &change).await);
                });
            }
            StoreJob::Renew(lease) => {
                tokio::spawn(async move {
                    if let Err(error) = shared.client.keep_alive(lease).await {
                        tracing::debug!("a lease was not renewed: {error}");
                    }
                });
            }
        }
    }
}

async fn commit_change(shared: &EtcdShared, change: &StoreChange) -> Result<(), StoreError> {
    let mut leases = Vec::new();
    let result = match write_fallback(shared, change).await {
        Ok(Some(change)) => try_commit(shared, &change, &mut leases).await,
        Ok(None) => try_commit(shared, change, &mut leases).await,
        Err(error) => Err(error),
    };
    if result.is_err() {
        // If this fails they expire by themselves.
        for lease in leases {
            let _ = shared.client.revoke(lease).await;
        }
    }
    if let Err(StoreError::Conflict(_)) = result {
        lock(&shared.health).conflicts += 1;
    }
    let revision = result?;
    let mut snapshots = shared.snapshots.subscribe();
    match timeout(VISIBLE_TIMEOUT, snapshots.wait_for(|snapshot| snapshot.revision >= revision)).await {
        Ok(_) => Ok(()),
        Err(_) => Err(StoreError::OutcomeUnknown("it was made, but is not seen yet".into())),
    }
}

/// First writes the entries in force from a previous cluster. An operator's entry in an empty cluster would
/// otherwise end them all, and missing entries cannot be deleted visibly for others. Returns the adjusted
/// change; `None` if it is unchanged.
async fn write_fallback(
    shared: &EtcdShared,
    change: &StoreChange,
) -> Result<Option<StoreChange>, StoreError> {
    let snapshot = Arc::clone(&shared.snapshots.borrow());
    let fallback_entries: Vec<(&String, &StoreEntry)> =
        snapshot.entries.iter().filter(|(_, entry)| entry.revision == 0 && entry.lease == 0).collect();
    let is_operator_change = change.puts.iter().any(|put| put.ttl.is_none())
        || change
            .deletes
            .iter()
            .any(|deleted_key| fallback_entries.iter().any(|(key, _)| *key == deleted_key));
    if fallback_entries.is_empty() || !is_operator_change {
        return Ok(None);
    }
    let mut change = change.clone();
    for batch in split_batches(&fallback_entries) {
        let key = |key: &str| [shared.settings.prefix.as_str(), key].concat().into_bytes();
        let put = |(entry_key, entry): &(&String, &StoreEntry)| {
            let put = PutRequest { key: key(entry_key), value: entry.value.as_bytes().to_vec(), lease: 0 };
            RequestOp { request: Some(OpRequest::Put(put)) }
        };
        let compare =
            batch.iter().map(|(entry_key, _)| CompareCondition::unchanged(key(entry_key), 0)).collect();
        let txn = TxnRequest { compare, success: batch.iter().map(put).collect(), failure: Vec::new() };
        let response = shared.client.transact(&txn).await.map_err(store_error)?;
        if !response.succeeded {
            // Another balancer does the same, or made another change: the change is rejected if that affects
            // it.
            continue;
        }
        let revision = response.header.map_or(0, |header| header.revision);
        let checks = change
            .unchanged
            .iter_mut()
            .filter(|(entry_key, _)| batch.iter().any(|(key, _)| *key == entry_key));
        checks.for_each(|(_, checked_revision)| *checked_revision = revision);
    }
    Ok(Some(change))
}

/// Splits the entries into parts that etcd accepts. Between two parts others may take the missing entries for
/// deleted, for milliseconds.
fn split_batches<'e>(entries: &[(&'e String, &'e StoreEntry)]) -> Vec<Vec<(&'e String, &'e StoreEntry)>> {
    let mut batches: Vec<Vec<(&String, &StoreEntry)>> = Vec::new();
    let mut bytes = 0;
    for entry in entries {
        let entry_bytes = entry.0.len() + entry.1.value.len();
        bytes += entry_bytes;
        match batches.last_mut().filter(|batch| batch.len() < MAX_BATCH_OPS && bytes <= MAX_BATCH_BYTES) {
            Some(batch) => batch.push(*entry),
            None => {
                batches.push(vec![*entry]);
                bytes = entry_bytes;
            }
        }
    }
    batches
}

/// Attempts a change. Returns the revision at which it is complete, if it has one.
async fn try_commit(
    shared: &EtcdShared,
    change: &StoreChange,
    leases: &mut Vec<i64>,
) -> Result<i64, StoreError> {
    let key = |key: &str| [shared.settings.prefix.as_str(), key].concat().into_bytes();
    let mut ops = Vec::new();
    for put in &change.puts {
        let lease = match put.ttl {
            None => 0,
            Some(ttl) => {
                let lease_id = shared.client.grant(lease_seconds(ttl)).await.map_err(store_error)?;
                leases.push(lease_id);
                lease_id
            }
        };
        let put = PutRequest { key: key(&put.key), value: put.value.clone().into_bytes(), lease };
        ops.push(RequestOp { request: Some(OpRequest::Put(put)) });
    }
    let delete = |deleted_key: &String| DeleteRangeRequest { key: key(deleted_key), range_end: Vec::new() };
    ops.extend(
        change
            .deletes
            .iter()
            .map(|deleted_key| RequestOp { request: Some(OpRequest::Delete(delete(deleted_key))) }),
    );
    let compare = change
        .unchanged
        .iter()
        .map(|(entry_key, revision)| CompareCondition::unchanged(key(entry_key), *revision))
        .collect();
    let txn = TxnRequest { compare, success: ops, failure: Vec::new() };
    let mut is_uncertain = false;
    let response = match shared.client.transact(&txn).await {
        Err(EtcdError::OutcomeUnknown(reason)) => {
            is_uncertain = true;
            tracing::debug!("a change of the store is sent again: {reason}");
            shared.client.transact(&txn).await
        }
        response => response,
    };
    let response = response.map_err(|error| match error {
        // The first attempt may have succeeded though the second never arrived.
        EtcdError::Unreachable(reason) if is_uncertain => StoreError::OutcomeUnknown(reason),
        error => store_error(error),
    })?;
    if response.succeeded {
        let has_deleted =
            response.responses.iter().filter_map(|response| response.delete).any(|delete| delete.deleted > 0);
        // Without an effect there is no change to wait for.
        let changed = has_deleted || !change.puts.is_empty();
        return Ok(response.header.filter(|_| changed).map_or(0, |header| header.revision));
    }
    if is_uncertain {
        // The conflicting change may be this one's first attempt.
        let (snapshot, _) = super::etcd_watch::read_all(shared).await.map_err(store_error)?;
        if change.is_applied_in(&snapshot) {
            return Ok(change.puts.iter().map(|put| snapshot.revision_of(&put.key)).max().unwrap_or(0));
        }
    }
    Err(StoreError::Conflict(conflict_message(&shared.snapshots.borrow(), change)))
}

/// Returns the conflicting key, as far as it is known here.
fn conflict_message(snapshot: &StoreSnapshot, change: &StoreChange) -> String {
    let has_changed = |(key, revision): &&(String, i64)| snapshot.revision_of(key) != *revision;
    let conflict = change.unchanged.iter().find(has_changed).or_else(|| change.unchanged.first());
    conflict.map(|(key, _)| key.clone()).unwrap_or_default()
}

/// Converts a duration to a lease's whole seconds.
fn lease_seconds(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1)
}

fn store_error(error: EtcdError) -> StoreError {
    match error {
        EtcdError::Unreachable(reason) => StoreError::Unavailable(reason),
        EtcdError::OutcomeUnknown(reason) => StoreError::OutcomeUnknown(reason),
        // Overload, or no space: a later attempt may succeed.
        EtcdError::Rejected(RESOURCE_EXHAUSTED, reason) => StoreError::Unavailable(reason),
        EtcdError::Rejected(_, reason) => StoreError::Invalid(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_at_once_is_bounded() {
        let make_entries = |count: usize, bytes: usize| -> Vec<(String, StoreEntry)> {
            let entry = || StoreEntry { value: "x".repeat(bytes).into(), revision: 0, lease: 0 };
            (0..count).map(|key| (key.to_string(), entry())).collect()
        };
        let lengths = |entries: &[(String, StoreEntry)]| -> Vec<usize> {
            let entries: Vec<(&String, &StoreEntry)> =
                entries.iter().map(|(key, entry)| (key, entry)).collect();
            let batches = split_batches(&entries);
            assert_eq!(batches.concat(), entries);
            batches.iter().map(Vec::len).collect()
        };
        assert_eq!(lengths(&make_entries(0, 0)), [0; 0]);
        assert_eq!(lengths(&make_entries(130, 2)), [64, 64, 2]);
        assert_eq!(lengths(&make_entries(3, 1 << 20)), [1, 1, 1]);
        assert_eq!(lengths(&make_entries(5, 200 << 10)), [2, 2, 1]);
    }
}
