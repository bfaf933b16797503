//! The contents of etcd, and their changes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use plimsoll_wire::etcd::{EventType, Header, KeyValue, WatchResponse};
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until, timeout};

use super::super::file::{self, Found};
use super::super::{Entry, MOST_ENTRIES, View};
use super::Inner;
use super::carried::{self, Carried};
use crate::etcd::{Failed, Watching};
use crate::lock;
use crate::pull::chance;

/// The first pause after a failure, and the maximum.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);
/// The minimum interval of writing the copy.
const COPY: Duration = Duration::from_secs(1);

/// The known state.
#[derive(Default)]
struct Known {
    /// The contents of the cluster.
    view: View,
    /// The cluster's ID; 0 before the first read.
    cluster: u64,
    /// Whether the state is current. If not, all keys must be read again.
    good: bool,
    /// The entries in force that the cluster does not have.
    carried: Carried,
}

/// The reason why a session ended.
enum Over {
    /// The known state is outdated: all keys must be read again.
    Stale(String),
    Failed(Failed),
}

impl From<Failed> for Over {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed)
    }
}

/// Follows forever. It sends on `ready` after the first read.
pub(super) async fn follow(inner: &Arc<Inner>, ready: SyncSender<()>) {
    if let Some(path) = &inner.settings.copy {
        tokio::spawn(copy(path.clone(), inner.views.subscribe()));
    }
    let mut known = Known::default();
    let mut pause = SHORTEST;
    loop {
        let mut reached = false;
        let over = session(inner, &mut known, || {
            reached = true;
            inner.reached();
            // Only the first message is awaited.
            let _ = ready.try_send(());
        });
        match over.await {
            Over::Stale(why) => {
                tracing::info!("the store in etcd is read anew: {why}");
                known.good = false;
                // Without a pause, as etcd is reachable. The pause below applies if this repeats.
                if reached {
                    pause = SHORTEST;
                    continue;
                }
            }
            Over::Failed(failed) => inner.lost(&failed.to_string()),
        }
        if reached {
            pause = SHORTEST;
        }
        sleep(pause.mul_f64(0.5 + chance())).await;
        pause = pause.mul_f64(1.6).min(LONGEST);
    }
}

/// Reads the contents if they are outdated, and follows their changes until the connection ends.
async fn session(inner: &Inner, known: &mut Known, mut reached: impl FnMut()) -> Over {
    if !known.good {
        match read(inner).await {
            Ok((view, cluster)) => known.begin(inner, view, cluster),
            Err(failed) => return failed.into(),
        }
    }
    let begun =
        inner.client.watch(inner.settings.prefix.as_bytes(), known.view.revision.saturating_add(1)).await;
    let mut watching = match begun {
        Ok(watching) => watching,
        Err(failed) => return failed.into(),
    };
    let first = timeout(inner.client.patience(), watching.next());
    let first = first.await.unwrap_or_else(|_| Err(Failed::Unsure("a watch that does not begin".into())));
    let first = match first {
        Ok(first) => first,
        Err(failed) => return failed.into(),
    };
    if let Some(over) = ended(&first) {
        return over;
    }
    let header = first.header.unwrap_or_default();
    if header.cluster_id != known.cluster {
        return Over::Stale("it is another cluster".into());
    }
    if header.revision < known.view.revision {
        let (before, now) = (known.view.revision, header.revision);
        return Over::Stale(format!("it was set back from revision {before} to {now}"));
    }
    reached();
    known.take(inner, first);
    changes(inner, known, &mut watching).await
}

async fn changes(inner: &Inner, known: &mut Known, watching: &mut Watching) -> Over {
    loop {
        let due = known.carried.due();
        let over = async {
            match due {
                Some(due) => sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        let told = tokio::select! {
            told = watching.next() => told,
            () = over => {
                known.show(inner);
                continue;
            }
        };
        let told = match told {
            Ok(told) => told,
            Err(failed) => return failed.into(),
        };
        if let Some(over) = ended(&told) {
            return over;
        }
        known.take(inner, told);
        if known.view.entries.len() > MOST_ENTRIES {
            let why = format!("more than {MOST_ENTRIES} keys are there");
            return Failed::Refused(0, why).into();
        }
    }
}

fn ended(told: &WatchResponse) -> Option<Over> {
    if told.compact_revision > 0 {
        return Some(Over::Stale(format!("all before revision {} was compacted", told.compact_revision)));
    }
    let why = || if told.cancel_reason.is_empty() { "it does not say why" } else { &*told.cancel_reason };
    told.canceled.then(|| Failed::Unsure(format!("the watch was ended: {}", why())).into())
}

impl Known {
    /// Applies a full read.
    fn begin(&mut self, inner: &Inner, view: View, cluster: u64) {
        lock(&inner.health).reads += 1;
        let mut before = Arc::clone(&inner.views.borrow());
        if before.revision == 0
            && let Some(path) = &inner.settings.copy
            && let Ok(Found::Whole(_, copy)) = file::read(path)
        {
            // The copy is the state at the end of a previous process.
            before = Arc::new(copy);
        }
        let other = self.cluster != 0 && self.cluster != cluster;
        // A copy written after the loss is not older, but contains entries that the cluster does not have.
        let carries = before.entries.values().any(|entry| entry.revision == 0);
        if other || carries || view.revision < before.revision {
            if carried::is_empty(&view) {
                self.carried.take(&before, Instant::now());
            } else {
                self.carried.clear();
            }
        }
        (self.view, self.cluster, self.good) = (view, cluster, true);
        self.show(inner);
    }

    /// Applies a response of the watch.
    fn take(&mut self, inner: &Inner, told: WatchResponse) {
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
            self.carried.forget(&key);
            match kind {
                EventType::Put => drop(view.entries.insert(key, entry)),
                EventType::Delete => drop(view.entries.remove(&key)),
            }
        }
        self.show(inner);
    }

    /// Publishes the current state.
    fn show(&mut self, inner: &Inner) {
        self.carried.settle(&self.view, Instant::now());
        lock(&inner.health).doubt = self.carried.doubt();
        inner.views.send_replace(Arc::new(self.carried.with(&self.view)));
    }
}

/// Reads all entries and the cluster's ID.
pub(super) async fn read(inner: &Inner) -> Result<(View, u64), Failed> {
    let prefix = &inner.settings.prefix;
    let (Header { cluster_id, revision }, kvs) = inner.client.read(prefix.as_bytes(), MOST_ENTRIES).await?;
    let entries: BTreeMap<String, Entry> = kvs.into_iter().filter_map(|kv| entry(prefix, kv)).collect();
    Ok((View { revision, entries }, cluster_id))
}

/// Converts a key without the prefix. Keys and values that are not text are ignored.
fn entry(prefix: &str, kv: KeyValue) -> Option<(String, Entry)> {
    let key = String::from_utf8(kv.key).ok()?.strip_prefix(prefix)?.to_owned();
    let value: Arc<str> = String::from_utf8(kv.value).ok()?.into();
    Some((key, Entry { value, revision: kv.mod_revision, lease: kv.lease }))
}

impl Inner {
    fn reached(&self) {
        lock(&self.health).trouble = None;
    }

    fn lost(&self, why: &str) {
        let mut health = lock(&self.health);
        match &mut health.trouble {
            Some(trouble) => why.clone_into(&mut trouble.0),
            None => {
                health.trouble = Some((why.to_owned(), Instant::now()));
                health.failures += 1;
            }
        }
    }
}

/// Writes the shown state to a file, for a start without etcd.
async fn copy(path: PathBuf, mut views: watch::Receiver<Arc<View>>) {
    while views.changed().await.is_ok() {
        let view = Arc::clone(&views.borrow_and_update());
        let to = path.clone();
        let saved =
            tokio::task::spawn_blocking(move || file::save(&to, &view).map_err(|unsaved| unsaved.why));
        if let Ok(Err(why)) = saved.await {
            tracing::warn!("the copy of the store cannot be written to {}: {why}", path.display());
        }
        sleep(COPY).await;
    }
}
