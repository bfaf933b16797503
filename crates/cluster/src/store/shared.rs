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
    shared: Arc<EtcdShared>,
    jobs: mpsc::Sender<StoreJob>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct EtcdShared {
    settings: EtcdStoreSettings,
    client: EtcdClient,
    snapshots: watch::Sender<Arc<StoreSnapshot>>,
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
        last_snapshot: Option<StoreSnapshot>,
    ) -> Result<(Self, Option<String>), String> {
        let thread_error = |error: std::io::Error| format!("no thread for the store: {error}");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(4)
            .build()
            .map_err(thread_error)?;
        let client = EtcdClient::new(settings.etcd.clone());
        let problem = Some(("it was not reached yet".to_owned(), Instant::now()));
        let health = Mutex::new(StoreHealth { problem, ..StoreHealth::default() });
        let shared = Arc::new(EtcdShared { settings, client, snapshots: watch::Sender::default(), health });
        let (jobs, job_receiver) = mpsc::channel(JOB_CAPACITY);
        let (stop, stopped) = oneshot::channel();
        let (ready, first_read) = std::sync::mpsc::sync_channel(1);
        let thread_shared = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("store".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = etcd_watch::run_watch(&thread_shared, ready) => {}
                    () = commit::serve(&thread_shared, job_receiver) => {}
                    _ = stopped => {}
                }
            });
            // A DNS lookup must not keep the process from ending.
            runtime.shutdown_background();
        });
        let thread = thread.map_err(thread_error)?;
        let store = Self { shared, jobs, stop: Some(stop), thread: Some(thread) };
        let warning = match first_read.recv_timeout(FIRST_READ_TIMEOUT) {
            Ok(()) => None,
            Err(_) => Some(store.shared.start_degraded(last_snapshot)),
        };
        Ok((store, warning))
    }
}

impl EtcdShared {
    /// Checks that the store is worth trying.
    fn check_available(&self) -> Result<(), StoreError> {
        match &lock(&self.health).problem {
            Some((reason, since)) if since.elapsed() > UNAVAILABLE_GRACE => {
                Err(StoreError::Unavailable(reason.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Shows the state of another process, or the copy, unless a better one has arrived meanwhile. Returns a
    /// message about it.
    fn start_degraded(&self, last_snapshot: Option<StoreSnapshot>) -> String {
        let reason = lock(&self.health).problem.clone().map(|(reason, _)| reason).unwrap_or_default();
        let prefix = format!("the store in etcd cannot be reached: {reason}; going on with");
        // A process that never reached etcd knows less than the copy.
        if let Some(last_snapshot) = last_snapshot.filter(|last_snapshot| last_snapshot.revision > 0) {
            let message =
                format!("{prefix} what the process before saw of it, of revision {}", last_snapshot.revision);
            self.publish_earlier(last_snapshot);
            return message;
        }
        let Some(path) = &self.settings.copy else {
            return format!(
                "{prefix}out it until it can: what operators did, and members that were registered, are not \
                 known yet"
            );
        };
        match file::read(path) {
            Ok(FileContents::Valid(_, snapshot)) => {
                let message =
                    format!("{prefix} the copy in {}, of revision {}", path.display(), snapshot.revision);
                self.publish_earlier(snapshot);
                message
            }
            Ok(FileContents::Missing) => {
                format!("{prefix}out it until it can: there is no copy in {} yet", path.display())
            }
            Ok(FileContents::Invalid(reason)) => {
                format!("{prefix}out it until it can: the copy {}: {reason}", path.display())
            }
            Err(error) => format!("{prefix}out it until it can: the copy {}: {error}", path.display()),
        }
    }

    /// Shows an earlier state, unless etcd has reported the current one meanwhile.
    fn publish_earlier(&self, snapshot: StoreSnapshot) {
        self.snapshots.send_if_modified(|current| {
            let is_empty = current.revision == 0;
            if is_empty {
                *current = Arc::new(snapshot);
            }
            is_empty
        });
    }
}

impl Store for EtcdStore {
    fn kind(&self) -> &'static str {
        "etcd"
    }

    fn location(&self) -> String {
        let EtcdStoreSettings { etcd, prefix, .. } = &self.shared.settings;
        let endpoints: Vec<String> = etcd.endpoints.iter().map(ToString::to_string).collect();
        format!("{} {prefix}", endpoints.join(","))
    }

    fn prefix(&self) -> Option<&str> {
        Some(&self.shared.settings.prefix)
    }

    fn snapshots(&self) -> watch::Receiver<Arc<StoreSnapshot>> {
        self.shared.snapshots.subscribe()
    }

    fn commit(&self, change: &StoreChange) -> Result<(), StoreError> {
        if let Some(reason) = change.invalid_reason() {
            return Err(StoreError::Invalid(reason));
        }
        self.shared.check_available()?;
        let (sender, receiver) = oneshot::channel();
        let queue_full = |_| StoreError::Unavailable("too many changes wait for it".into());
        self.jobs.try_send(StoreJob::Commit(change.clone(), sender)).map_err(queue_full)?;
        receiver.blocking_recv().unwrap_or_else(|_| Err(StoreError::OutcomeUnknown("it was closed".into())))
    }

    fn renew(&self, key: &str) -> Result<bool, StoreError> {
        self.shared.check_available()?;
        // A lease of a previous cluster cannot be renewed: its owner must register again with this one.
        let is_in_etcd = |entry: &&StoreEntry| entry.revision != 0;
        let lease =
            self.shared.snapshots.borrow().entries.get(key).filter(is_in_etcd).map_or(0, |entry| entry.lease);
        if lease == 0 {
            return Ok(false);
        }
        let queue_full = |_| StoreError::Unavailable("too many changes wait for it".into());
        self.jobs.try_send(StoreJob::Renew(lease)).map_err(queue_full)?;
        Ok(true)
    }

    fn health(&self) -> StoreHealth {
        lock(&self.shared.health).clone()
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
