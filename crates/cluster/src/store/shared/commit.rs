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
pub(super) async fn serve(inner: &Arc<EtcdShared>, mut jobs: mpsc::Receiver<StoreJob>) {
    while let Some(job) = jobs.recv().await {
        let inner = Arc::clone(inner);
        match job {
            StoreJob::Commit(change, answer) => {
                tokio::spawn(async move {
                    // The receiver may be gone.
                    let _ = answer.send(commit_change(&inner, &change).await);
                });
            }
            StoreJob::Renew(lease) => {
                tokio::spawn(async move {
                    if let Err(failed) = inner.client.keep_alive(lease).await {
                        tracing::debug!("a lease was not renewed: {failed}");
                    }
                });
            }
        }
    }
}

async fn commit_change(inner: &EtcdShared, change: &StoreChange) -> Result<(), StoreError> {
    let mut leases = Vec::new();
    let made = match write_fallback(inner, change).await {
        Ok(Some(change)) => try_commit(inner, &change, &mut leases).await,
        Ok(None) => try_commit(inner, change, &mut leases).await,
        Err(refused) => Err(refused),
    };
    if made.is_err() {
        // If this fails they expire by themselves.
        for lease in leases {
            let _ = inner.client.revoke(lease).await;
        }
    }
    if let Err(StoreError::Conflict(_)) = made {
        lock(&inner.health).conflicts += 1;
    }
    let revision = made?;
    let mut views = inner.views.subscribe();
    match timeout(VISIBLE_TIMEOUT, views.wait_for(|view| view.revision >= revision)).await {
        Ok(_) => Ok(()),
        Err(_) => Err(StoreError::OutcomeUnknown("it was made, but is not seen yet".into())),
    }
}

/// First writes the entries in force from a previous cluster. An operator's entry in an empty cluster would
/// otherwise end them all, and missing entries cannot be deleted visibly for others. Returns the adjusted
/// change; `None` if it is unchanged.
async fn write_fallback(inner: &EtcdShared, change: &StoreChange) -> Result<Option<StoreChange>, StoreError> {
    let view = Arc::clone(&inner.views.borrow());
    let missing: Vec<(&String, &StoreEntry)> =
        view.entries.iter().filter(|(_, entry)| entry.revision == 0 && entry.lease == 0).collect();
    let decides = change.puts.iter().any(|put| put.ttl.is_none())
        || change.deletes.iter().any(|gone| missing.iter().any(|(key, _)| *key == gone));
    if missing.is_empty() || !decides {
        return Ok(None);
    }
    let mut change = change.clone();
    for part in split_batches(&missing) {
        let key = |key: &str| [inner.settings.prefix.as_str(), key].concat().into_bytes();
        let put = |(at, entry): &(&String, &StoreEntry)| {
            let put = PutRequest { key: key(at), value: entry.value.as_bytes().to_vec(), lease: 0 };
            RequestOp { request: Some(OpRequest::Put(put)) }
        };
        let compare = part.iter().map(|(at, _)| CompareCondition::unchanged(key(at), 0)).collect();
        let txn = TxnRequest { compare, success: part.iter().map(put).collect(), failure: Vec::new() };
        let done = inner.client.transact(&txn).await.map_err(store_error)?;
        if !done.succeeded {
            // Another balancer does the same, or made another change: the change is rejected if that affects
            // it.
            continue;
        }
        let revision = done.header.map_or(0, |header| header.revision);
        let touched = change.unchanged.iter_mut().filter(|(at, _)| part.iter().any(|(key, _)| *key == at));
        touched.for_each(|(_, seen)| *seen = revision);
    }
    Ok(Some(change))
}

/// Splits the entries into parts that etcd accepts. Between two parts others may take the missing entries for
/// deleted, for milliseconds.
fn split_batches<'e>(all: &[(&'e String, &'e StoreEntry)]) -> Vec<Vec<(&'e String, &'e StoreEntry)>> {
    let mut parts: Vec<Vec<(&String, &StoreEntry)>> = Vec::new();
    let mut bytes = 0;
    for one in all {
        let more = one.0.len() + one.1.value.len();
        bytes += more;
        match parts.last_mut().filter(|part| part.len() < MAX_BATCH_OPS && bytes <= MAX_BATCH_BYTES) {
            Some(part) => part.push(*one),
            None => {
                parts.push(vec![*one]);
                bytes = more;
            }
        }
    }
    parts
}

/// Attempts a change. Returns the revision at which it is complete, if it has one.
async fn try_commit(
    inner: &EtcdShared,
    change: &StoreChange,
    leases: &mut Vec<i64>,
) -> Result<i64, StoreError> {
    let key = |key: &str| [inner.settings.prefix.as_str(), key].concat().into_bytes();
    let mut ops = Vec::new();
    for put in &change.puts {
        let lease = match put.ttl {
            None => 0,
            Some(ttl) => {
                let granted = inner.client.grant(lease_seconds(ttl)).await.map_err(store_error)?;
                leases.push(granted);
                granted
            }
        };
        let put = PutRequest { key: key(&put.key), value: put.value.clone().into_bytes(), lease };
        ops.push(RequestOp { request: Some(OpRequest::Put(put)) });
    }
    let delete = |gone: &String| DeleteRangeRequest { key: key(gone), range_end: Vec::new() };
    ops.extend(
        change.deletes.iter().map(|gone| RequestOp { request: Some(OpRequest::Delete(delete(gone))) }),
    );
    let compare = change
        .unchanged
        .iter()
        .map(|(at, revision)| CompareCondition::unchanged(key(at), *revision))
        .collect();
    let txn = TxnRequest { compare, success: ops, failure: Vec::new() };
    let mut unsure = false;
    let done = match inner.client.transact(&txn).await {
        Err(EtcdError::OutcomeUnknown(why)) => {
            unsure = true;
            tracing::debug!("a change of the store is sent again: {why}");
            inner.client.transact(&txn).await
        }
        done => done,
    };
    let done = done.map_err(|failed| match failed {
        // The first attempt may have succeeded though the second never arrived.
        EtcdError::Unreachable(why) if unsure => StoreError::OutcomeUnknown(why),
        failed => store_error(failed),
    })?;
    if done.succeeded {
        let gone = done.responses.iter().filter_map(|one| one.delete).any(|delete| delete.deleted > 0);
        // Without an effect there is no change to wait for.
        let changed = gone || !change.puts.is_empty();
        return Ok(done.header.filter(|_| changed).map_or(0, |header| header.revision));
    }
    if unsure {
        // The conflicting change may be this one's first attempt.
        let (view, _) = super::etcd_watch::read_all(inner).await.map_err(store_error)?;
        if change.is_applied_in(&view) {
            return Ok(change.puts.iter().map(|put| view.revision_of(&put.key)).max().unwrap_or(0));
        }
    }
    Err(StoreError::Conflict(conflict_message(&inner.views.borrow(), change)))
}

/// Returns the conflicting key, as far as it is known here.
fn conflict_message(view: &StoreSnapshot, change: &StoreChange) -> String {
    let differs = |(key, revision): &&(String, i64)| view.revision_of(key) != *revision;
    let found = change.unchanged.iter().find(differs).or_else(|| change.unchanged.first());
    found.map(|(key, _)| key.clone()).unwrap_or_default()
}

/// Converts a duration to a lease's whole seconds.
fn lease_seconds(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1)
}

fn store_error(failed: EtcdError) -> StoreError {
    match failed {
        EtcdError::Unreachable(why) => StoreError::Unavailable(why),
        EtcdError::OutcomeUnknown(why) => StoreError::OutcomeUnknown(why),
        // Overload, or no space: a later attempt may succeed.
        EtcdError::Rejected(RESOURCE_EXHAUSTED, why) => StoreError::Unavailable(why),
        EtcdError::Rejected(_, why) => StoreError::Invalid(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_at_once_is_bounded() {
        let all = |count: usize, bytes: usize| -> Vec<(String, StoreEntry)> {
            let entry = || StoreEntry { value: "x".repeat(bytes).into(), revision: 0, lease: 0 };
            (0..count).map(|key| (key.to_string(), entry())).collect()
        };
        let lengths = |all: &[(String, StoreEntry)]| -> Vec<usize> {
            let all: Vec<(&String, &StoreEntry)> = all.iter().map(|(key, entry)| (key, entry)).collect();
            let parts = split_batches(&all);
            assert_eq!(parts.concat(), all);
            parts.iter().map(Vec::len).collect()
        };
        assert_eq!(lengths(&all(0, 0)), [0; 0]);
        assert_eq!(lengths(&all(130, 2)), [64, 64, 2]);
        assert_eq!(lengths(&all(3, 1 << 20)), [1, 1, 1]);
        assert_eq!(lengths(&all(5, 200 << 10)), [2, 2, 1]);
    }
}
