//! A store in etcd, which any number of balancers have together.
//!
//! All keys with the prefix are read once, at one revision, and followed by a watch from the next one on. A connection that breaks is made
//! again, to whichever endpoint can be had, and the watch goes on behind the last change that was seen; only if etcd has compacted that
//! away, or is another cluster than before, is all of it read anew. What is known stays meanwhile, and changes are refused: what an
//! operator is told has been done, all balancers do. Another cluster, or one that was set back, that has nothing does not replace what is
//! known: see `carried`.
//!
//! A change is one transaction, and has been made when the watch has told of it. If the connection breaks over it, it is sent once more;
//! if that finds the keys changed, they are compared with what was to be written: so a change that was made is not refused.

mod carried;
mod follow;
mod make;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};

use super::file::{self, Found};
use super::{Change, Entry, Health, Refused, Store, View};
use crate::etcd::{Client, EtcdSettings};
use crate::lock;

/// Changes, and renewals of leases, that wait: more are refused.
const JOBS: usize = 4096;
/// For so long a store that is lost is tried all the same: it may be back with the next node.
const GRACE: Duration = Duration::from_secs(1);
/// For a first look, before it is gone on without one.
const FIRST: Duration = Duration::from_secs(5);

/// Where the store is.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedSettings {
    /// The cluster.
    pub etcd: EtcdSettings,
    /// What all keys begin with.
    pub prefix: String,
    /// A file with what was seen last, for a start while etcd is away; none to start with nothing then.
    pub copy: Option<PathBuf>,
}

/// A store in etcd.
pub struct Shared {
    inner: Arc<Inner>,
    jobs: mpsc::Sender<Job>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Inner {
    settings: SharedSettings,
    client: Client,
    views: watch::Sender<Arc<View>>,
    health: Mutex<Health>,
}

/// Something to be done by the store's thread.
enum Job {
    Make(Change, oneshot::Sender<Result<(), Refused>>),
    /// Renew the lease of this number.
    Renew(i64),
}

impl Shared {
    /// Opens the store. Waits a moment for etcd; if it cannot be had, goes on with the copy, if there is one, and with a sentence
    /// about that.
    ///
    /// # Errors
    /// The system gives no thread or no event queue.
    pub fn open(settings: SharedSettings) -> Result<(Self, Option<String>), String> {
        Self::open_after(settings, None)
    }

    /// The same, where another process has had it open. What that saw last counts as a copy does, and before it: until etcd can be had.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_after(
        settings: SharedSettings,
        seen: Option<View>,
    ) -> Result<(Self, Option<String>), String> {
        let wrong = |error: std::io::Error| format!("no thread for the store: {error}");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(4)
            .build()
            .map_err(wrong)?;
        let client = Client::new(settings.etcd.clone());
        let trouble = Some(("it was not reached yet".to_owned(), Instant::now()));
        let health = Mutex::new(Health { trouble, ..Health::default() });
        let inner = Arc::new(Inner { settings, client, views: watch::Sender::default(), health });
        let (jobs, inbox) = mpsc::channel(JOBS);
        let (stop, stopped) = oneshot::channel();
        let (ready, first) = std::sync::mpsc::sync_channel(1);
        let own = Arc::clone(&inner);
        let thread = std::thread::Builder::new().name("store".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = follow::follow(&own, ready) => {}
                    () = make::serve(&own, inbox) => {}
                    _ = stopped => {}
                }
            });
            // A look-up of a name must not keep the process from ending.
            runtime.shutdown_background();
        });
        let thread = thread.map_err(wrong)?;
        let store = Self { inner, jobs, stop: Some(stop), thread: Some(thread) };
        let said = match first.recv_timeout(FIRST) {
            Ok(()) => None,
            Err(_) => Some(store.inner.go_on_without(seen)),
        };
        Ok((store, said))
    }
}

impl Inner {
    /// Is there a point in asking?
    fn usable(&self) -> Result<(), Refused> {
        match &lock(&self.health).trouble {
            Some((why, since)) if since.elapsed() > GRACE => Err(Refused::Away(why.clone())),
            _ => Ok(()),
        }
    }

    /// Shows what another process saw, or the copy, if nothing better has come meanwhile; what there is to be said.
    fn go_on_without(&self, seen: Option<View>) -> String {
        let why = lock(&self.health).trouble.clone().map(|(why, _)| why).unwrap_or_default();
        let begin = format!("the store in etcd cannot be reached: {why}; going on with");
        // One that saw nothing itself knows less than the copy.
        if let Some(seen) = seen.filter(|seen| seen.revision > 0) {
            let told = format!("{begin} what the process before saw of it, of revision {}", seen.revision);
            self.show(seen);
            return told;
        }
        let Some(path) = &self.settings.copy else {
            return format!(
                "{begin}out it until it can: what operators did, and members that were registered, are not known yet"
            );
        };
        match file::read(path) {
            Ok(Found::Whole(_, view)) => {
                let told = format!("{begin} the copy in {}, of revision {}", path.display(), view.revision);
                self.show(view);
                told
            }
            Ok(Found::Nothing) => {
                format!("{begin}out it until it can: there is no copy in {} yet", path.display())
            }
            Ok(Found::Bad(why)) => format!("{begin}out it until it can: the copy {}: {why}", path.display()),
            Err(why) => format!("{begin}out it until it can: the copy {}: {why}", path.display()),
        }
    }

    /// Shows what was there some time ago, if etcd has not said meanwhile what is there now.
    fn show(&self, view: View) {
        self.views.send_if_modified(|shown| {
            let nothing = shown.revision == 0;
            if nothing {
                *shown = Arc::new(view);
            }
            nothing
        });
    }
}

impl Store for Shared {
    fn kind(&self) -> &'static str {
        "etcd"
    }

    fn place(&self) -> String {
        let SharedSettings { etcd, prefix, .. } = &self.inner.settings;
        let endpoints: Vec<String> = etcd.endpoints.iter().map(ToString::to_string).collect();
        format!("{} {prefix}", endpoints.join(","))
    }

    fn prefix(&self) -> Option<&str> {
        Some(&self.inner.settings.prefix)
    }

    fn views(&self) -> watch::Receiver<Arc<View>> {
        self.inner.views.subscribe()
    }

    fn commit(&self, change: &Change) -> Result<(), Refused> {
        if let Some(why) = change.wrong() {
            return Err(Refused::Wrong(why));
        }
        self.inner.usable()?;
        let (answer, answered) = oneshot::channel();
        let full = |_| Refused::Away("too many changes wait for it".into());
        self.jobs.try_send(Job::Make(change.clone(), answer)).map_err(full)?;
        answered.blocking_recv().unwrap_or_else(|_| Err(Refused::Unsure("it was closed".into())))
    }

    fn renew(&self, key: &str) -> Result<bool, Refused> {
        self.inner.usable()?;
        // That of a cluster before nobody can renew: whoever holds it is to register anew, with this one.
        let here = |entry: &&Entry| entry.revision != 0;
        let lease = self.inner.views.borrow().entries.get(key).filter(here).map_or(0, |entry| entry.lease);
        if lease == 0 {
            return Ok(false);
        }
        let full = |_| Refused::Away("too many changes wait for it".into());
        self.jobs.try_send(Job::Renew(lease)).map_err(full)?;
        Ok(true)
    }

    fn health(&self) -> Health {
        lock(&self.inner.health).clone()
    }

    /// Time is etcd's.
    fn close(&self) {}

    fn reopen(&self) {}
}

impl Drop for Shared {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by the panic hook; there is nothing to add.
            let _ = thread.join();
        }
    }
}
