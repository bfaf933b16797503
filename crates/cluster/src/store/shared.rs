//! A store in etcd, shared by any number of balancers.
//!
//! All keys with the prefix are read once, at one revision, and then watched. A broken connection is made
//! again, to any reachable endpoint, and the watch resumes after the last seen change. All keys are read
//! again only if etcd has compacted that revision, or is another cluster. Meanwhile the known state stays,
//! and changes are rejected: an acknowledged change reaches all balancers. Another cluster, or a restored
//! one, that is empty does not replace the known state: see `fallback`.
//!
//! A change is one transaction, and is complete once the watch has reported it. If the connection breaks
//! during it, it is sent once more. If that finds the keys changed, they are compared with the change, so
//! that a completed one is not rejected.

mod commit;
mod etcd_watch;
mod fallback;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};

use super::file::{self, FileContents};
use super::{Store, StoreChange, StoreEntry, StoreError, StoreHealth, StoreSnapshot};
use crate::etcd::{EtcdClient, EtcdSettings};
use crate::lock;

/// The maximum number of queued changes and renewals; further ones are rejected.
const JOB_CAPACITY: usize = 4096;
/// The time for which a lost store is still tried: it may return on the next node.
const UNAVAILABLE_GRACE: Duration = Duration::from_secs(1);
/// The time limit of the first read, before the start continues without it.
const FIRST_READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The settings of the store.
#[derive(Clone, Debug, PartialEq)]
pub struct EtcdStoreSettings {
    /// The cluster.
    pub etcd: EtcdSettings,
    /// The prefix of all keys.
    pub prefix: String,
    /// A file with a copy of the last state, for a start while etcd is unreachable; `None` to start empty
    /// then.
    pub copy: Option<PathBuf>,
}

/// A store in etcd.
pub struct EtcdStore {
    inner: Arc<EtcdShared>,
    jobs: mpsc::Sender<StoreJob>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct EtcdShared {
    settings: EtcdStoreSettings,
    client: EtcdClient,
    views: watch::Sender<Arc<StoreSnapshot>>,
    health: Mutex<StoreHealth>,
}

/// A task of the store's thread.
enum StoreJob {
    Commit(StoreChange, oneshot::Sender<Result<(), StoreError>>),
    /// Renews the lease with this ID.
    Renew(i64),
}

impl EtcdStore {
    /// Opens the store. It waits a moment for etcd. If etcd is unreachable, it continues with the copy, if
    /// there is one, and the result contains a sentence about that.
    ///
    /// # Errors
    /// The system provides no thread or no event queue.
    pub fn open(settings: EtcdStoreSettings) -> Result<(Self, Option<String>), String> {
        Self::open_after(settings, None)
    }

    /// Opens the store after another process. Until etcd is reachable, the state of that process replaces the
    /// copy.
    ///
    /// # Errors
    /// The same as those of [`open`](Self::open).
    pub fn open_after(
        settings: EtcdStoreSettings,
        seen: Option<StoreSnapshot>,
    ) -> Result<(Self, Option<String>), String> {
        let wrong = |error: std::io::Error| format!("no thread for the store: {error}");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(4)
            .build()
            .map_err(wrong)?;
        let client = EtcdClient::new(settings.etcd.clone());
        let trouble = Some(("it was not reached yet".to_owned(), Instant::now()));
        let health = Mutex::new(StoreHealth { problem: trouble, ..StoreHealth::default() });
        let inner = Arc::new(EtcdShared { settings, client, views: watch::Sender::default(), health });
        let (jobs, inbox) = mpsc::channel(JOB_CAPACITY);
        let (stop, stopped) = oneshot::channel();
        let (ready, first) = std::sync::mpsc::sync_channel(1);
        let own = Arc::clone(&inner);
        let thread = std::thread::Builder::new().name("store".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = etcd_watch::run_watch(&own, ready) => {}
                    () = commit::serve(&own, inbox) => {}
                    _ = stopped => {}
                }
            });
            // A DNS lookup must not keep the process from ending.
            runtime.shutdown_background();
        });
        let thread = thread.map_err(wrong)?;
        let store = Self { inner, jobs, stop: Some(stop), thread: Some(thread) };
        let said = match first.recv_timeout(FIRST_READ_TIMEOUT) {
            Ok(()) => None,
            Err(_) => Some(store.inner.start_degraded(seen)),
        };
        Ok((store, said))
    }
}

impl EtcdShared {
    /// Checks that the store is worth trying.
    fn check_available(&self) -> Result<(), StoreError> {
        match &lock(&self.health).problem {
            Some((why, since)) if since.elapsed() > UNAVAILABLE_GRACE => {
                Err(StoreError::Unavailable(why.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Shows the state of another process, or the copy, unless a better one has arrived meanwhile. Returns a
    /// message about it.
    fn start_degraded(&self, seen: Option<StoreSnapshot>) -> String {
        let why = lock(&self.health).problem.clone().map(|(why, _)| why).unwrap_or_default();
        let begin = format!("the store in etcd cannot be reached: {why}; going on with");
        // A process that never reached etcd knows less than the copy.
        if let Some(seen) = seen.filter(|seen| seen.revision > 0) {
            let told = format!("{begin} what the process before saw of it, of revision {}", seen.revision);
            self.publish_earlier(seen);
            return told;
        }
        let Some(path) = &self.settings.copy else {
            return format!(
                "{begin}out it until it can: what operators did, and members that were registered, are not \
                 known yet"
            );
        };
        match file::read(path) {
            Ok(FileContents::Valid(_, view)) => {
                let told = format!("{begin} the copy in {}, of revision {}", path.display(), view.revision);
                self.publish_earlier(view);
                told
            }
            Ok(FileContents::Missing) => {
                format!("{begin}out it until it can: there is no copy in {} yet", path.display())
            }
            Ok(FileContents::Invalid(why)) => {
                format!("{begin}out it until it can: the copy {}: {why}", path.display())
            }
            Err(why) => format!("{begin}out it until it can: the copy {}: {why}", path.display()),
        }
    }

    /// Shows an earlier state, unless etcd has reported the current one meanwhile.
    fn publish_earlier(&self, view: StoreSnapshot) {
        self.views.send_if_modified(|shown| {
            let nothing = shown.revision == 0;
            if nothing {
                *shown = Arc::new(view);
            }
            nothing
        });
    }
}

impl Store for EtcdStore {
    fn kind(&self) -> &'static str {
        "etcd"
    }

    fn location(&self) -> String {
        let EtcdStoreSettings { etcd, prefix, .. } = &self.inner.settings;
        let endpoints: Vec<String> = etcd.endpoints.iter().map(ToString::to_string).collect();
        format!("{} {prefix}", endpoints.join(","))
    }

    fn prefix(&self) -> Option<&str> {
        Some(&self.inner.settings.prefix)
    }

    fn snapshots(&self) -> watch::Receiver<Arc<StoreSnapshot>> {
        self.inner.views.subscribe()
    }

    fn commit(&self, change: &StoreChange) -> Result<(), StoreError> {
        if let Some(why) = change.invalid_reason() {
            return Err(StoreError::Invalid(why));
        }
        self.inner.check_available()?;
        let (answer, answered) = oneshot::channel();
        let full = |_| StoreError::Unavailable("too many changes wait for it".into());
        self.jobs.try_send(StoreJob::Commit(change.clone(), answer)).map_err(full)?;
        answered.blocking_recv().unwrap_or_else(|_| Err(StoreError::OutcomeUnknown("it was closed".into())))
    }

    fn renew(&self, key: &str) -> Result<bool, StoreError> {
        self.inner.check_available()?;
        // A lease of a previous cluster cannot be renewed: its owner must register again with this one.
        let here = |entry: &&StoreEntry| entry.revision != 0;
        let lease = self.inner.views.borrow().entries.get(key).filter(here).map_or(0, |entry| entry.lease);
        if lease == 0 {
            return Ok(false);
        }
        let full = |_| StoreError::Unavailable("too many changes wait for it".into());
        self.jobs.try_send(StoreJob::Renew(lease)).map_err(full)?;
        Ok(true)
    }

    fn health(&self) -> StoreHealth {
        lock(&self.inner.health).clone()
    }

    /// etcd controls the expiry.
    fn close(&self) {}

    fn reopen(&self) {}
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }
}
