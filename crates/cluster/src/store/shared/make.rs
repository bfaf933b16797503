//! Changes: made by transactions, and waited for until they are seen.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_wire::etcd::{Compare, Delete, Does, Op, Put, Txn};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::super::{Change, Refused, View};
use super::{Inner, Job};
use crate::etcd::Failed;
use crate::lock;

/// For the watch to tell of a change that was made.
const SEEN: Duration = Duration::from_secs(5);

/// Does what comes, for as long as somebody may send something.
pub(super) async fn serve(inner: &Arc<Inner>, mut jobs: mpsc::Receiver<Job>) {
    while let Some(job) = jobs.recv().await {
        let inner = Arc::clone(inner);
        match job {
            Job::Make(change, answer) => {
                tokio::spawn(async move {
                    // Whoever waited may be gone.
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
    let made = attempt(inner, change, &mut leases).await;
    if made.is_err() {
        // They end by themselves if this does not come through.
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

/// The revision at which all of it is so, as far as it has one.
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
        // The first may have been made though the second never came.
        Failed::Away(why) if unsure => Refused::Unsure(why),
        failed => refused(failed),
    })?;
    if done.succeeded {
        let gone = done.responses.iter().filter_map(|one| one.delete).any(|delete| delete.deleted > 0);
        // Where nothing was changed there is nothing to be waited for.
        let changed = gone || !change.puts.is_empty();
        return Ok(done.header.filter(|_| changed).map_or(0, |header| header.revision));
    }
    if unsure {
        // It was perhaps our own first attempt that was faster.
        let (view, _) = super::follow::read(inner).await.map_err(refused)?;
        if change.is_in(&view) {
            return Ok(change.puts.iter().map(|put| view.revision_of(&put.key)).max().unwrap_or(0));
        }
    }
    Err(Refused::Conflict(differing(&inner.views.borrow(), change)))
}

/// The key that is to blame, as far as is known here.
fn differing(view: &View, change: &Change) -> String {
    let differs = |(key, revision): &&(String, i64)| view.revision_of(key) != *revision;
    let found = change.unchanged.iter().find(differs).or_else(|| change.unchanged.first());
    found.map(|(key, _)| key.clone()).unwrap_or_default()
}

/// Leases have whole seconds.
fn seconds(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1)
}

fn refused(failed: Failed) -> Refused {
    match failed {
        Failed::Away(why) => Refused::Away(why),
        Failed::Unsure(why) => Refused::Unsure(why),
        Failed::Refused(_, why) => Refused::Wrong(why),
    }
}
