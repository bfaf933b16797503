//! What is in etcd, and what changes in it.

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

/// The first pause after a failure, and the longest.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);
/// Between two times that the copy is written.
const COPY: Duration = Duration::from_secs(1);

/// What is known.
#[derive(Default)]
struct Known {
    /// All that the cluster has.
    view: View,
    /// Its number; 0 if none was read yet.
    cluster: u64,
    /// Is that so, as far as is known? If not, all is to be read.
    good: bool,
    /// What is in force beside it.
    carried: Carried,
}

/// Why following has ended.
enum Over {
    /// What is known is not what is there any more: all of it is to be read.
    Stale(String),
    Failed(Failed),
}

impl From<Failed> for Over {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed)
    }
}

/// Follows for ever. Says when it was there for the first time.
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
            // The second time nobody waits any more.
            let _ = ready.try_send(());
        });
        match over.await {
            Over::Stale(why) => {
                tracing::info!("the store in etcd is read anew: {why}");
                known.good = false;
                // Without a pause: etcd is there. That it says so again and again is for the pause below.
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

/// Reads what is not known, and follows what changes, to the end of a connection.
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
    /// All of it was read.
    fn begin(&mut self, inner: &Inner, view: View, cluster: u64) {
        lock(&inner.health).reads += 1;
        let mut before = Arc::clone(&inner.views.borrow());
        if before.revision == 0
            && let Some(path) = &inner.settings.copy
            && let Ok(Found::Whole(_, copy)) = file::read(path)
        {
            // It is what was known when a process ended.
            before = Arc::new(copy);
        }
        let other = self.cluster != 0 && self.cluster != cluster;
        // A copy that was written after the loss is not older, but has what is not there.
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

    /// Takes what a watch tells.
    fn take(&mut self, inner: &Inner, told: WatchResponse) {
        let revision = told.header.map_or(0, |header| header.revision);
        // What begins a watch is of the time at which it was asked for, and says nothing of changes before that.
        if told.events.is_empty() && (told.created || revision <= self.view.revision) {
            return;
        }
        let view = &mut self.view;
        if told.events.is_empty() {
            view.revision = revision;
        }
        // That of the head may be beyond changes that are still to be told.
        for event in told.events {
            let kind = event.kind();
            let Some(kv) = event.kv else { continue };
            view.revision = view.revision.max(kv.mod_revision);
            let Some((key, entry)) = entry(&inner.settings.prefix, kv) else { continue };
            // Of this one it was decided here.
            self.carried.forget(&key);
            match kind {
                EventType::Put => drop(view.entries.insert(key, entry)),
                EventType::Delete => drop(view.entries.remove(&key)),
            }
        }
        self.show(inner);
    }

    /// From now on that is what there is.
    fn show(&mut self, inner: &Inner) {
        self.carried.settle(&self.view, Instant::now());
        lock(&inner.health).doubt = self.carried.doubt();
        inner.views.send_replace(Arc::new(self.carried.with(&self.view)));
    }
}

/// All that is there, and of which cluster.
pub(super) async fn read(inner: &Inner) -> Result<(View, u64), Failed> {
    let prefix = &inner.settings.prefix;
    let (Header { cluster_id, revision }, kvs) = inner.client.read(prefix.as_bytes(), MOST_ENTRIES).await?;
    let entries: BTreeMap<String, Entry> = kvs.into_iter().filter_map(|kv| entry(prefix, kv)).collect();
    Ok((View { revision, entries }, cluster_id))
}

/// Without the prefix. What is no text is nobody's.
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

/// Writes down what is shown, so that a start without etcd has something to begin with.
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
