//! What is in etcd, and what changes in it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use plimsoll_wire::etcd::{EventType, Header, KeyValue, WatchResponse};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::super::file;
use super::super::{Entry, MOST_ENTRIES, View};
use super::Inner;
use crate::etcd::{Failed, Watching};
use crate::lock;
use crate::pull::chance;

/// The first pause after a failure, and the longest.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);
/// Between two times that the copy is written.
const COPY: Duration = Duration::from_secs(1);

/// What is known, and of which cluster.
#[derive(Clone)]
struct Known {
    cluster: u64,
    view: View,
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
    let mut known = None;
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
                known = None;
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
async fn session(inner: &Inner, known: &mut Option<Known>, mut reached: impl FnMut()) -> Over {
    let known = match known {
        Some(known) => known,
        None => match read(inner).await {
            Ok((view, cluster)) => {
                lock(&inner.health).reads += 1;
                inner.views.send_replace(Arc::new(view.clone()));
                known.insert(Known { cluster, view })
            }
            Err(failed) => return failed.into(),
        },
    };
    let begun = inner.client.watch(inner.settings.prefix.as_bytes(), known.view.revision + 1).await;
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
    take(inner, known, first);
    changes(inner, known, &mut watching).await
}

async fn changes(inner: &Inner, known: &mut Known, watching: &mut Watching) -> Over {
    loop {
        let told = match watching.next().await {
            Ok(told) => told,
            Err(failed) => return failed.into(),
        };
        if let Some(over) = ended(&told) {
            return over;
        }
        take(inner, known, told);
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

/// Takes what a watch tells.
fn take(inner: &Inner, known: &mut Known, told: WatchResponse) {
    let revision = told.header.map_or(0, |header| header.revision);
    // What begins a watch is of the time at which it was asked for, and says nothing of changes before that.
    if told.events.is_empty() && (told.created || revision <= known.view.revision) {
        return;
    }
    let view = &mut known.view;
    if told.events.is_empty() {
        view.revision = revision;
    }
    // That of the head may be beyond changes that are still to be told.
    for event in told.events {
        let kind = event.kind();
        let Some(kv) = event.kv else { continue };
        view.revision = view.revision.max(kv.mod_revision);
        let Some((key, entry)) = entry(&inner.settings.prefix, kv) else { continue };
        match kind {
            EventType::Put => drop(view.entries.insert(key, entry)),
            EventType::Delete => drop(view.entries.remove(&key)),
        }
    }
    inner.views.send_replace(Arc::new(view.clone()));
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
