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
const MIN_RETRY_PAUSE: Duration = Duration::from_millis(100);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(5);
/// The minimum interval of writing the copy.
const COPY_INTERVAL: Duration = Duration::from_secs(1);

/// The known state.
#[derive(Default)]
struct WatchedState {
    /// The contents of the cluster.
    snapshot: StoreSnapshot,
    /// The cluster's ID; 0 before the first read.
    cluster_id: u64,
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
    fn from(error: EtcdError) -> Self {
        Self::Failed(error)
    }
}

/// Follows forever. It sends on `ready` after the first read.
pub(super) async fn run_watch(shared: &Arc<EtcdShared>, ready: SyncSender<()>) {
    if let Some(path) = &shared.settings.copy {
        tokio::spawn(write_copies(path.clone(), shared.snapshots.subscribe()));
    }
    let mut state = WatchedState::default();
    let mut pause = MIN_RETRY_PAUSE;
    loop {
        let mut reached = false;
        let session = run_session(shared, &mut state, || {
            reached = true;
            shared.mark_available();
            // Only the first message is awaited.
            let _ = ready.try_send(());
        });
        match session.await {
            SessionEnd::Stale(reason) => {
                tracing::info!("the store in etcd is read anew: {reason}");
                state.is_current = false;
                // Without a pause, as etcd is reachable. The pause below applies if this repeats.
                if reached {
                    pause = MIN_RETRY_PAUSE;
                    continue;
                }
            }
            SessionEnd::Failed(error) => shared.mark_unavailable(&error.to_string()),
        }
        if reached {
            pause = MIN_RETRY_PAUSE;
        }
        sleep(pause.mul_f64(0.5 + random_unit())).await;
        pause = pause.mul_f64(1.6).min(MAX_RETRY_PAUSE);
    }
}

/// Reads the contents if they are outdated, and follows their changes until the connection ends.
async fn run_session(
    shared: &EtcdShared,
    state: &mut WatchedState,
    mut on_reached: impl FnMut(),
) -> SessionEnd {
    if !state.is_current {
        match read_all(shared).await {
            Ok((snapshot, cluster_id)) => state.reset(shared, snapshot, cluster_id),
            Err(error) => return error.into(),
        }
    }
    let watch = shared
        .client
        .watch(shared.settings.prefix.as_bytes(), state.snapshot.revision.saturating_add(1))
        .await;
    let mut watch_stream = match watch {
        Ok(watch_stream) => watch_stream,
        Err(error) => return error.into(),
    };
    let first_response = timeout(shared.client.timeout(), watch_stream.next());
    let first_response = first_response
        .await
        .unwrap_or_else(|_| Err(EtcdError::OutcomeUnknown("a watch that does not begin".into())));
    let first_response = match first_response {
        Ok(first_response) => first_response,
        Err(error) => return error.into(),
    };
    if let Some(session_end) = watch_end(&first_response) {
        return session_end;
    }
    let header = first_response.header.unwrap_or_default();
    if header.cluster_id != state.cluster_id {
        return SessionEnd::Stale("it is another cluster".into());
    }
    if header.revision < state.snapshot.revision {
        let (previous_revision, revision) = (state.snapshot.revision, header.revision);
        return SessionEnd::Stale(format!("it was set back from revision {previous_revision} to {revision}"));
    }
    on_reached();
    state.apply(shared, first_response);
    apply_changes(shared, state, &mut watch_stream).await
}

async fn apply_changes(
    shared: &EtcdShared,
    state: &mut WatchedState,
    watch_stream: &mut WatchStream,
) -> SessionEnd {
    loop {
        let expires_at = state.fallback.next_expiry();
        let expiry = async {
            match expires_at {
                Some(expires_at) => sleep_until(expires_at.into()).await,
                None => std::future::pending().await,
            }
        };
        let response = tokio::select! {
            told = watch_stream.next() => told,
            () = expiry => {
                state.publish(shared);
                continue;
            }
        };
        let response = match response {
            Ok(response) => response,
            Err(error) => return error.into(),
        };
        if let Some(session_end) = watch_end(&response) {
            return session_end;
        }
        state.apply(shared, response);
        if state.snapshot.entries.len() > MAX_ENTRIES {
            let reason = format!("more than {MAX_ENTRIES} keys are there");
            return EtcdError::Rejected(0, reason).into();
        }
    }
}

fn watch_end(response: &WatchResponse) -> Option<SessionEnd> {
    if response.compact_revision > 0 {
        return Some(SessionEnd::Stale(format!(
            "all before revision {} was compacted",
            response.compact_revision
        )));
    }
    let reason =
        || if response.cancel_reason.is_empty() { "it does not say why" } else { &*response.cancel_reason };
    response.canceled.then(|| EtcdError::OutcomeUnknown(format!("the watch was ended: {}", reason())).into())
}

impl WatchedState {
    /// Applies a full read.
    fn reset(&mut self, shared: &EtcdShared, snapshot: StoreSnapshot, cluster_id: u64) {
        lock(&shared.health).reads += 1;
        let mut previous = Arc::clone(&shared.snapshots.borrow());
        if previous.revision == 0
            && let Some(path) = &shared.settings.copy
            && let Ok(FileContents::Valid(_, saved_snapshot)) = file::read(path)
        {
            // The copy is the state at the end of a previous process.
            previous = Arc::new(saved_snapshot);
        }
        let is_other_cluster = self.cluster_id != 0 && self.cluster_id != cluster_id;
        // A copy written after the loss is not older, but contains entries that the cluster does not have.
        let has_fallback = previous.entries.values().any(|entry| entry.revision == 0);
        if is_other_cluster || has_fallback || snapshot.revision < previous.revision {
            if fallback::has_no_operator_entries(&snapshot) {
                self.fallback.keep_shown(&previous, Instant::now());
            } else {
                self.fallback.clear();
            }
        }
        (self.snapshot, self.cluster_id, self.is_current) = (snapshot, cluster_id, true);
        self.publish(shared);
    }

    /// Applies a response of the watch.
    fn apply(&mut self, shared: &EtcdShared, response: WatchResponse) {
        let revision = response.header.map_or(0, |header| header.revision);
        // The first response of a watch has the revision of the request, and does not confirm earlier
        // changes.
        if response.events.is_empty() && (response.created || revision <= self.snapshot.revision) {
            return;
        }
        let snapshot = &mut self.snapshot;
        if response.events.is_empty() {
            snapshot.revision = revision;
        }
        // The revision in the header may be beyond changes that are still to come.
        for event in response.events {
            let kind = event.kind();
            let Some(kv) = event.kv else { continue };
            snapshot.revision = snapshot.revision.max(kv.mod_revision);
            let Some((key, entry)) = entry(&shared.settings.prefix, kv) else { continue };
            // The cluster has decided about this entry.
            self.fallback.remove(&key);
            match kind {
                EventType::Put => drop(snapshot.entries.insert(key, entry)),
                EventType::Delete => drop(snapshot.entries.remove(&key)),
            }
        }
        self.publish(shared);
    }

    /// Publishes the current state.
    fn publish(&mut self, shared: &EtcdShared) {
        self.fallback.reconcile(&self.snapshot, Instant::now());
        lock(&shared.health).distrust = self.fallback.distrust();
        shared.snapshots.send_replace(Arc::new(self.fallback.merged_with(&self.snapshot)));
    }
}

/// Reads all entries and the cluster's ID.
pub(super) async fn read_all(shared: &EtcdShared) -> Result<(StoreSnapshot, u64), EtcdError> {
    let prefix = &shared.settings.prefix;
    let (ResponseHeader { cluster_id, revision }, kvs) =
        shared.client.read(prefix.as_bytes(), MAX_ENTRIES).await?;
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

    fn mark_unavailable(&self, reason: &str) {
        let mut health = lock(&self.health);
        match &mut health.problem {
            Some(problem) => reason.clone_into(&mut problem.0),
            None => {
                health.problem = Some((reason.to_owned(), Instant::now()));
                health.failures += 1;
            }
        }
    }
}

/// Writes the shown state to a file, for a start without etcd.
async fn write_copies(path: PathBuf, mut snapshots: watch::Receiver<Arc<StoreSnapshot>>) {
    while snapshots.changed().await.is_ok() {
        let snapshot = Arc::clone(&snapshots.borrow_and_update());
        let target_path = path.clone();
        let result = tokio::task::spawn_blocking(move || {
            file::save(&target_path, &snapshot).map_err(|error| error.why)
        });
        if let Ok(Err(error)) = result.await {
            tracing::warn!("the copy of the store cannot be written to {}: {error}", path.display());
        }
        sleep(COPY_INTERVAL).await;
    }
}
