//! Changes: made by transactions, and complete once the watch reports them.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_wire::etcd::{Compare, Delete, Does, Op, Put, Txn};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::super::{Change, Entry, Refused, View};
use super::{Inner, Job};
use crate::etcd::Failed;
use crate::lock;

/// The gRPC status code for exhausted resources.
const RESOURCE_EXHAUSTED: u32 = 8;

/// The time limit for the watch to report a change.
const SEEN: Duration = Duration::from_secs(5);
/// The limits of a part when all entries are written: etcd accepts 128 operations and 1.5 MiB.
const MOST_OPS: usize = 64;
const MOST_BYTES: usize = 512 << 10;

/// Performs tasks until all senders are gone.
pub(super) async fn serve(inner: &Arc<Inner>, mut jobs: mpsc::Receiver<Job>) {
    while let Some(job) = jobs.recv().await {
        let inner = Arc::clone(inner);
        match job {
            Job::Make(change, answer) => {
                tokio::spawn(async move {
                    // The receiver may be gone.
                    let _ = answer.send(make(&inner, &change).await);
                });
            }
            Job::Renew(lease) => {
                tokio::spawn(async move {
                    if let Err(failed) = inner.client.keep_alive(lease).await {
                        tracing::debug!("a lease was not renewed: {failed}");
                    }
                });
            }
        }
    }
}

async fn make(inner: &Inner, change: &Change) -> Result<(), Refused> {
    let mut leases = Vec::new();
    let made = match bring_along(inner, change).await {
        Ok(Some(change)) => attempt(inner, &change, &mut leases).await,
        Ok(None) => attempt(inner, change, &mut leases).await,
        Err(refused) => Err(refused),
    };
    if made.is_err() {
        // If this fails they expire by themselves.
        for lease in leases {
            let _ = inner.client.revoke(lease).await;
        }
    }
    if let Err(Refused::Conflict(_)) = made {
        lock(&inner.health).conflicts += 1;
    }
    let revision = made?;
    let mut views = inner.views.subscribe();
    match timeout(SEEN, views.wait_for(|view| view.revision >= revision)).await {
        Ok(_) => Ok(()),
        Err(_) => Err(Refused::Unsure("it was made, but is not seen yet".into())),
    }
}

/// First writes the entries in force from a previous cluster. An operator's entry in an empty cluster would
/// otherwise end them all, and missing entries cannot be deleted visibly for others. Returns the adjusted
/// change; `None` if it is unchanged.
async fn bring_along(inner: &Inner, change: &Change) -> Result<Option<Change>, Refused> {
    let view = Arc::clone(&inner.views.borrow());
    let missing: Vec<(&String, &Entry)> =
        view.entries.iter().filter(|(_, entry)| entry.revision == 0 && entry.lease == 0).collect();
    let decides = change.puts.iter().any(|put| put.ttl.is_none())
        || change.deletes.iter().any(|gone| missing.iter().any(|(key, _)| *key == gone));
    if missing.is_empty() || !decides {
        return Ok(None);
    }
    let mut change = change.clone();
    for part in parts(&missing) {
        let key = |key: &str| [inner.settings.prefix.as_str(), key].concat().into_bytes();
        let put = |(at, entry): &(&String, &Entry)| {
            let put = Put { key: key(at), value: entry.value.as_bytes().to_vec(), lease: 0 };
            Op { does: Some(Does::Put(put)) }
        };
        let compare = part.iter().map(|(at, _)| Compare::unchanged(key(at), 0)).collect();
        let txn = Txn { compare, success: part.iter().map(put).collect(), failure: Vec::new() };
        let done = inner.client.transact(&txn).await.map_err(refused)?;
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
fn parts<'e>(all: &[(&'e String, &'e Entry)]) -> Vec<Vec<(&'e String, &'e Entry)>> {
    let mut parts: Vec<Vec<(&String, &Entry)>> = Vec::new();
    let mut bytes = 0;
    for one in all {
        let more = one.0.len() + one.1.value.len();
        bytes += more;
        match parts.last_mut().filter(|part| part.len() < MOST_OPS && bytes <= MOST_BYTES) {
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
async fn attempt(inner: &Inner, change: &Change, leases: &mut Vec<i64>) -> Result<i64, Refused> {
    let key = |key: &str| [inner.settings.prefix.as_str(), key].concat().into_bytes();
    let mut ops = Vec::new();
    for put in &change.puts {
        let lease = match put.ttl {
            None => 0,
            Some(ttl) => {
                let granted = inner.client.grant(seconds(ttl)).await.map_err(refused)?;
                leases.push(granted);
                granted
            }
        };
        let put = Put { key: key(&put.key), value: put.value.clone().into_bytes(), lease };
        ops.push(Op { does: Some(Does::Put(put)) });
    }
    let delete = |gone: &String| Delete { key: key(gone), range_end: Vec::new() };
    ops.extend(change.deletes.iter().map(|gone| Op { does: Some(Does::Delete(delete(gone))) }));
    let compare =
        change.unchanged.iter().map(|(at, revision)| Compare::unchanged(key(at), *revision)).collect();
    let txn = Txn { compare, success: ops, failure: Vec::new() };
    let mut unsure = false;
    let done = match inner.client.transact(&txn).await {
        Err(Failed::Unsure(why)) => {
            unsure = true;
            tracing::debug!("a change of the store is sent again: {why}");
            inner.client.transact(&txn).await
        }
        done => done,
    };
    let done = done.map_err(|failed| match failed {
        // The first attempt may have succeeded though the second never arrived.
        Failed::Away(why) if unsure => Refused::Unsure(why),
        failed => refused(failed),
    })?;
    if done.succeeded {
        let gone = done.responses.iter().filter_map(|one| one.delete).any(|delete| delete.deleted > 0);
        // Without an effect there is no change to wait for.
        let changed = gone || !change.puts.is_empty();
        return Ok(done.header.filter(|_| changed).map_or(0, |header| header.revision));
    }
    if unsure {
        // The conflicting change may be this one's first attempt.
        let (view, _) = super::follow::read(inner).await.map_err(refused)?;
        if change.is_in(&view) {
            return Ok(change.puts.iter().map(|put| view.revision_of(&put.key)).max().unwrap_or(0));
        }
    }
    Err(Refused::Conflict(differing(&inner.views.borrow(), change)))
}

/// Returns the conflicting key, as far as it is known here.
fn differing(view: &View, change: &Change) -> String {
    let differs = |(key, revision): &&(String, i64)| view.revision_of(key) != *revision;
    let found = change.unchanged.iter().find(differs).or_else(|| change.unchanged.first());
    found.map(|(key, _)| key.clone()).unwrap_or_default()
}

/// Converts a duration to a lease's whole seconds.
fn seconds(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1)
}

fn refused(failed: Failed) -> Refused {
    match failed {
        Failed::Away(why) => Refused::Away(why),
        Failed::Unsure(why) => Refused::Unsure(why),
        // Overload, or no space: a later attempt may succeed.
        Failed::Refused(RESOURCE_EXHAUSTED, why) => Refused::Away(why),
        Failed::Refused(_, why) => Refused::Wrong(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_at_once_is_bounded() {
        let all = |count: usize, bytes: usize| -> Vec<(String, Entry)> {
            let entry = || Entry { value: "x".repeat(bytes).into(), revision: 0, lease: 0 };
            (0..count).map(|key| (key.to_string(), entry())).collect()
        };
        let lengths = |all: &[(String, Entry)]| -> Vec<usize> {
            let all: Vec<(&String, &Entry)> = all.iter().map(|(key, entry)| (key, entry)).collect();
            let parts = parts(&all);
            assert_eq!(parts.concat(), all);
            parts.iter().map(Vec::len).collect()
        };
        assert_eq!(lengths(&all(0, 0)), [0; 0]);
        assert_eq!(lengths(&all(130, 2)), [64, 64, 2]);
        assert_eq!(lengths(&all(3, 1 << 20)), [1, 1, 1]);
        assert_eq!(lengths(&all(5, 200 << 10)), [2, 2, 1]);
    }
}
