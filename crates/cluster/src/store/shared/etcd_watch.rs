//! The contents of etcd, and their changes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use plimsoll_wire::etcd::{EtcdKeyValue, EventType, ResponseHeader, WatchResponse};
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until, timeout};

use super::super::file::{self, FileContents};
use super::super::{MAX_ENTRIES, StoreEntry, StoreSnapshot};
use super::EtcdShared;
use super::fallback::{self, FallbackEntries};
use crate::etcd::{EtcdError, WatchStream};
use crate::lock;
use crate::scrape::random_unit;

/// The first pause after a failure, and the maximum.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);
/// The minimum interval of writing the copy.
const COPY_INTERVAL: Duration = Duration::from_secs(1);

/// The known state.
#[derive(Default)]
struct WatchedState {
    /// The contents of the cluster.
    view: StoreSnapshot,
    /// The cluster's ID; 0 before the first read.
    cluster: u64,
    /// Whether the state is current. If not, all keys must be read again.
    is_current: bool,
    /// The entries in force that the cluster does not have.
    fallback: FallbackEntries,
}

/// The reason why a session ended.
enum SessionEnd {
    /// The known state is outdated: all keys must be read again.
    Stale(String),
    Failed(EtcdError),
}

impl From<EtcdError> for SessionEnd {
    fn from(failed: EtcdError) -> Self {
        Self::Failed(failed)
    }
}

/// Follows forever. It sends on `ready` after the first read.
pub(super) async fn run_watch(inner: &Arc<EtcdShared>, ready: SyncSender<()>) {
    if let Some(path) = &inner.settings.copy {
        tokio::spawn(write_copies(path.clone(), inner.views.subscribe()));
    }
    let mut known = WatchedState::default();
    let mut pause = SHORTEST;
    loop {
        let mut reached = false;
        let over = run_session(inner, &mut known, || {
            reached = true;
            inner.mark_available();
            // Only the first message is awaited.
            let _ = ready.try_send(());
        });
        match over.await {
            SessionEnd::Stale(why) => {
                tracing::info!("the store in etcd is read anew: {why}");
                known.is_current = false;
                // Without a pause, as etcd is reachable. The pause below applies if this repeats.
                if reached {
                    pause = SHORTEST;
                    continue;
                }
            }
            SessionEnd::Failed(failed) => inner.mark_unavailable(&failed.to_string()),
        }
        if reached {
            pause = SHORTEST;
        }
        sleep(pause.mul_f64(0.5 + random_unit())).await;
        pause = pause.mul_f64(1.6).min(LONGEST);
    }
}

/// Reads the contents if they are outdated, and follows their changes until the connection ends.
async fn run_session(inner: &EtcdShared, known: &mut WatchedState, mut reached: impl FnMut()) -> SessionEnd {
    if !known.is_current {
        match read_all(inner).await {
            Ok((view, cluster)) => known.reset(inner, view, cluster),
            Err(failed) => return failed.into(),
        }
    }
    let begun =
        inner.client.watch(inner.settings.prefix.as_bytes(), known.view.revision.saturating_add(1)).await;
    let mut watching = match begun {
        Ok(watching) => watching,
        Err(failed) => return failed.into(),
    };
    let first = timeout(inner.client.timeout(), watching.next());
    let first =
        first.await.unwrap_or_else(|_| Err(EtcdError::OutcomeUnknown("a watch that does not begin".into())));
    let first = match first {
        Ok(first) => first,
        Err(failed) => return failed.into(),
    };
    if let Some(over) = watch_end(&first) {
        return over;
    }
    let header = first.header.unwrap_or_default();
    if header.cluster_id != known.cluster {
        return SessionEnd::Stale("it is another cluster".into());
    }
    if header.revision < known.view.revision {
        let (before, now) = (known.view.revision, header.revision);
        return SessionEnd::Stale(format!("it was set back from revision {before} to {now}"));
    }
    reached();
    known.apply(inner, first);
    apply_changes(inner, known, &mut watching).await
}

async fn apply_changes(
    inner: &EtcdShared,
    known: &mut WatchedState,
    watching: &mut WatchStream,
) -> SessionEnd {
    loop {
        let due = known.fallback.next_expiry();
        let over = async {
            match due {
                Some(due) => sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        let told = tokio::select! {
            told = watching.next() => told,
            () = over => {
                known.publish(inner);
                continue;
            }
        };
        let told = match told {
            Ok(told) => told,
            Err(failed) => return failed.into(),
        };
        if let Some(over) = watch_end(&told) {
            return over;
        }
        known.apply(inner, told);
        if known.view.entries.len() > MAX_ENTRIES {
            let why = format!("more than {MAX_ENTRIES} keys are there");
            return EtcdError::Rejected(0, why).into();
        }
    }
}

fn watch_end(told: &WatchResponse) -> Option<SessionEnd> {
    if told.compact_revision > 0 {
        return Some(SessionEnd::Stale(format!(
            "all before revision {} was compacted",
            told.compact_revision
        )));
    }
    let why = || if told.cancel_reason.is_empty() { "it does not say why" } else { &*told.cancel_reason };
    told.canceled.then(|| EtcdError::OutcomeUnknown(format!("the watch was ended: {}", why())).into())
}

impl WatchedState {
    /// Applies a full read.
    fn reset(&mut self, inner: &EtcdShared, view: StoreSnapshot, cluster: u64) {
        lock(&inner.health).reads += 1;
        let mut before = Arc::clone(&inner.views.borrow());
        if before.revision == 0
            && let Some(path) = &inner.settings.copy
            && let Ok(FileContents::Valid(_, copy)) = file::read(path)
        {
            // The copy is the state at the end of a previous process.
            before = Arc::new(copy);
        }
        let other = self.cluster != 0 && self.cluster != cluster;
        // A copy written after the loss is not older, but contains entries that the cluster does not have.
        let carries = before.entries.values().any(|entry| entry.revision == 0);
        if other || carries || view.revision < before.revision {
            if fallback::has_no_operator_entries(&view) {
                self.fallback.keep_shown(&before, Instant::now());
            } else {
                self.fallback.clear();
            }
        }
        (self.view, self.cluster, self.is_current) = (view, cluster, true);
        self.publish(inner);
    }

    /// Applies a response of the watch.
    fn apply(&mut self, inner: &EtcdShared, told: WatchResponse) {
        let revision = told.header.map_or(0, |header| header.revision);
        // The first response of a watch has the revision of the request, and does not confirm earlier
        // changes.
        if told.events.is_empty() && (told.created || revision <= self.view.revision) {
            return;
        }
        let view = &mut self.view;
        if told.events.is_empty() {
            view.revision = revision;
        }
        // The revision in the header may be beyond changes that are still to come.
        for event in told.events {
            let kind = event.kind();
            let Some(kv) = event.kv else { continue };
            view.revision = view.revision.max(kv.mod_revision);
            let Some((key, entry)) = entry(&inner.settings.prefix, kv) else { continue };
            // The cluster has decided about this entry.
            self.fallback.remove(&key);
            match kind {
                EventType::Put => drop(view.entries.insert(key, entry)),
                EventType::Delete => drop(view.entries.remove(&key)),
            }
        }
        self.publish(inner);
    }

    /// Publishes the current state.
    fn publish(&mut self, inner: &EtcdShared) {
        self.fallback.reconcile(&self.view, Instant::now());
        lock(&inner.health).distrust = self.fallback.distrust();
        inner.views.send_replace(Arc::new(self.fallback.merged_with(&self.view)));
    }
}

/// Reads all entries and the cluster's ID.
pub(super) async fn read_all(inner: &EtcdShared) -> Result<(StoreSnapshot, u64), EtcdError> {
    let prefix = &inner.settings.prefix;
    let (ResponseHeader { cluster_id, revision }, kvs) =
        inner.client.read(prefix.as_bytes(), MAX_ENTRIES).await?;
    let entries: BTreeMap<String, StoreEntry> = kvs.into_iter().filter_map(|kv| entry(prefix, kv)).collect();
    Ok((StoreSnapshot { revision, entries }, cluster_id))
}

/// Converts a key without the prefix. Keys and values that are not text are ignored.
fn entry(prefix: &str, kv: EtcdKeyValue) -> Option<(String, StoreEntry)> {
    let key = String::from_utf8(kv.key).ok()?.strip_prefix(prefix)?.to_owned();
    let value: Arc<str> = String::from_utf8(kv.value).ok()?.into();
    Some((key, StoreEntry { value, revision: kv.mod_revision, lease: kv.lease }))
}

impl EtcdShared {
    fn mark_available(&self) {
        lock(&self.health).problem = None;
    }

    fn mark_unavailable(&self, why: &str) {
        let mut health = lock(&self.health);
        match &mut health.problem {
            Some(trouble) => why.clone_into(&mut trouble.0),
            None => {
                health.problem = Some((why.to_owned(), Instant::now()));
                health.failures += 1;
            }
        }
    }
}

/// Writes the shown state to a file, for a start without etcd.
async fn write_copies(path: PathBuf, mut views: watch::Receiver<Arc<StoreSnapshot>>) {
    while views.changed().await.is_ok() {
        let view = Arc::clone(&views.borrow_and_update());
        let to = path.clone();
        let saved =
            tokio::task::spawn_blocking(move || file::save(&to, &view).map_err(|unsaved| unsaved.why));
        if let Ok(Err(why)) = saved.await {
            tracing::warn!("the copy of the store cannot be written to {}: {why}", path.display());
        }
        sleep(COPY_INTERVAL).await;
    }
}
