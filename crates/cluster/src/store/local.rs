//! A store on this machine: in a file, or in memory only.
//!
//! Each change is written as a complete new file before it is acknowledged, so that it survives a kill or a
//! power failure. Processes of one machine may share the file, as they briefly do during a handoff. Each
//! change is made under a lock, based on the file's current contents, and changes by others are seen within
//! [`CHECK_INTERVAL`].
//!
//! Leases live in memory. After a start, and when another process has written an entry, its lease has its
//! full time: no renewals were possible before.
//!
//! A disk may hang. Only callers that make changes and the store's own thread wait for it; no lock that
//! others need is held during I/O.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::file::{self, FileContents, StoreFingerprint};
use super::{MAX_ENTRIES, Store, StoreChange, StoreEntry, StoreError, StoreHealth, StoreSnapshot};
use crate::lock;

/// The interval of checks for changes of the file, and for expired leases.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// A store on this machine.
pub struct LocalStore {
    inner: Arc<LocalShared>,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct LocalShared {
    path: Option<PathBuf>,
    /// The state, locked for one change at a time. The lock is held during I/O, and so is taken only by
    /// threads that may block.
    state: Mutex<LocalState>,
    /// The expiry times of entries with a lease. Neither this lock nor that of `health` is held during I/O.
    expiry_times: Mutex<BTreeMap<String, Instant>>,
    health: Mutex<StoreHealth>,
    closed: AtomicBool,
    views: watch::Sender<Arc<StoreSnapshot>>,
}

struct LocalState {
    view: Arc<StoreSnapshot>,
    /// The file that the view was read from.
    fingerprint: Option<StoreFingerprint>,
}

impl LocalStore {
    /// Opens the store in a file, or in memory without one. An invalid file is renamed. Then the store begins
    /// empty, and the result contains a sentence about that.
    ///
    /// # Errors
    /// The file cannot be read or written: one line.
    pub fn open(path: Option<&Path>) -> Result<(Self, Option<String>), String> {
        let (view, stamp, set_aside) = match path {
            None => (StoreSnapshot::default(), None, None),
            Some(path) => load_initial(path)?,
        };
        let view = Arc::new(view);
        let inner = Arc::new(LocalShared {
            path: path.map(Path::to_owned),
            state: Mutex::new(LocalState { view: Arc::clone(&view), fingerprint: stamp }),
            expiry_times: Mutex::default(),
            health: Mutex::new(StoreHealth { reads: 1, ..StoreHealth::default() }),
            closed: AtomicBool::new(false),
            views: watch::Sender::new(view),
        });
        inner.update_expiry(&mut lock(&inner.expiry_times), Instant::now());
        let (stop, stopped) = mpsc::channel();
        let own = Arc::clone(&inner);
        let thread = std::thread::Builder::new().name("store".into()).spawn(move || {
            while stopped.recv_timeout(CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                own.check_file(Instant::now());
            }
        });
        let thread = thread.map_err(|error| format!("no thread for the store: {error}"))?;
        Ok((Self { inner, stop: Some(stop), thread: Some(thread) }, set_aside))
    }
}

/// Reads the file; an invalid one is renamed.
fn load_initial(path: &Path) -> Result<(StoreSnapshot, Option<StoreFingerprint>, Option<String>), String> {
    let name = path.display();
    let wrong = |why: io::Error| {
        format!(
            "the store {name} cannot be used: {why}; make its folder, writable for this user, or name \
             another file"
        )
    };
    // Missing permissions should fail here, not at an operator's first change.
    let _held = file::lock(path).map_err(wrong)?;
    match file::read(path).map_err(wrong)? {
        FileContents::Missing => Ok((StoreSnapshot::default(), None, None)),
        FileContents::Valid(stamp, view) => Ok((view, Some(stamp), None)),
        FileContents::Invalid(why) => {
            let aside = file::set_aside(path).map_err(wrong)?;
            let said = format!(
                "the store {name} cannot be used: {why}; it was set aside as {}, and what operators did \
                 before does not \
                 count: put back a copy and start again, or say it again",
                aside.display()
            );
            Ok((StoreSnapshot::default(), None, Some(said)))
        }
    }
}

impl LocalShared {
    /// Applies the changes of other processes, and removes expired entries.
    fn check_file(&self, now: Instant) {
        let mut state = lock(&self.state);
        if let Some(path) = &self.path
            && file::fingerprint(path) != state.fingerprint
        {
            let held = file::lock(path);
            let read = held.and_then(|_held| self.reload(&mut state, path));
            self.record_outcome(read.map_err(|why| why.to_string()), now);
        }
        if self.closed.load(SeqCst) {
            return;
        }
        // From here on the entries cannot be renewed: a renewal finds them expired, even if the disk is slow.
        let over: Vec<String> = {
            let mut due = lock(&self.expiry_times);
            let over = due.iter().filter(|(_, due)| **due <= now).map(|(key, _)| key.clone()).collect();
            due.retain(|_, due| *due > now);
            over
        };
        if over.is_empty() {
            return;
        }
        let change = StoreChange { deletes: over, ..StoreChange::default() }.if_unchanged_since(&state.view);
        if self.apply_change(&mut state, &change, now).is_err() {
            // The next check tries again. Entries that another process has written meanwhile have their own
            // time.
            let mut due = lock(&self.expiry_times);
            for key in change.deletes.into_iter().filter(|key| state.view.entries.contains_key(key)) {
                due.entry(key).or_insert(now);
            }
        }
    }

    /// Reads the file again, which another process may have written.
    fn reload(&self, state: &mut LocalState, path: &Path) -> io::Result<()> {
        if file::fingerprint(path) == state.fingerprint {
            return Ok(());
        }
        let (stamp, view) = match file::read(path)? {
            FileContents::Valid(stamp, view) => (Some(stamp), view),
            // The file was removed or overwritten. The known state is complete, and stays; the next change
            // writes it again.
            FileContents::Missing => return Err(io::Error::other("somebody took the file away")),
            FileContents::Invalid(why) => return Err(io::Error::other(why)),
        };
        state.fingerprint = stamp;
        lock(&self.health).reads += 1;
        self.publish(state, view, Instant::now());
        Ok(())
    }

    /// Makes a change, based on the file's current contents.
    fn apply_change(
        &self,
        state: &mut LocalState,
        change: &StoreChange,
        now: Instant,
    ) -> Result<(), StoreError> {
        let away = |why: io::Error| StoreError::Unavailable(why.to_string());
        let _held: Option<File> = match &self.path {
            Some(path) => {
                let held = file::lock(path).map_err(away)?;
                // An unreadable file is overwritten with the known state.
                let _ = self.reload(state, path);
                Some(held)
            }
            None => None,
        };
        let differs = |(key, revision): &&(String, i64)| state.view.revision_of(key) != *revision;
        if let Some((key, _)) = change.unchanged.iter().find(differs) {
            lock(&self.health).conflicts += 1;
            return Err(StoreError::Conflict(key.clone()));
        }
        let mut view = StoreSnapshot::clone(&state.view);
        view.revision += 1;
        change.deletes.iter().for_each(|key| drop(view.entries.remove(key)));
        for put in &change.puts {
            let lease = put.ttl.map_or(0, |ttl| i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX).max(1));
            let entry = StoreEntry { value: put.value.as_str().into(), revision: view.revision, lease };
            view.entries.insert(put.key.clone(), entry);
        }
        if view.entries.len() > MAX_ENTRIES {
            return Err(StoreError::Invalid(format!("it is full: {MAX_ENTRIES} entries are the most")));
        }
        let Some(path) = &self.path else {
            self.publish(state, view, now);
            return Ok(());
        };
        match file::save(path, &view) {
            Ok(stamp) => {
                state.fingerprint = Some(stamp);
                self.publish(state, view, now);
                Ok(())
            }
            Err(file::SaveError { is_in_place: false, why }) => Err(away(why)),
            Err(file::SaveError { is_in_place: true, why }) => {
                state.fingerprint = file::fingerprint(path);
                self.publish(state, view, now);
                Err(StoreError::OutcomeUnknown(why.to_string()))
            }
        }
    }

    /// Publishes a view. Leases of new and rewritten entries, by any process, have their full time.
    fn publish(&self, state: &mut LocalState, view: StoreSnapshot, now: Instant) {
        let before = std::mem::replace(&mut state.view, Arc::new(view));
        let mut due = lock(&self.expiry_times);
        due.retain(|key, _| before.revision_of(key) == state.view.revision_of(key));
        self.views.send_replace(Arc::clone(&state.view));
        self.update_expiry(&mut due, now);
    }

    /// Updates the expiry times: new leases have their full time from now on.
    fn update_expiry(&self, due: &mut BTreeMap<String, Instant>, now: Instant) {
        let view = Arc::clone(&self.views.borrow());
        due.retain(|key, _| view.entries.get(key).is_some_and(|entry| entry.lease != 0));
        for (key, entry) in view.entries.iter().filter(|(_, entry)| entry.lease != 0) {
            if !due.contains_key(key) {
                due.insert(key.clone(), now + lease_duration(entry));
            }
        }
    }

    /// Records whether the store can be used.
    fn record_outcome(&self, outcome: Result<(), String>, now: Instant) {
        let mut health = lock(&self.health);
        match (outcome, &mut health.problem) {
            (Ok(()), trouble) => *trouble = None,
            (Err(why), Some(trouble)) => trouble.0 = why,
            (Err(why), trouble) => {
                *trouble = Some((why, now));
                health.failures += 1;
            }
        }
    }
}

fn lease_duration(entry: &StoreEntry) -> Duration {
    Duration::from_millis(u64::try_from(entry.lease).unwrap_or_default())
}

impl Store for LocalStore {
    fn kind(&self) -> &'static str {
        if self.inner.path.is_some() { "file" } else { "memory" }
    }

    fn location(&self) -> String {
        self.inner.path.as_ref().map(|path| path.display().to_string()).unwrap_or_default()
    }

    fn snapshots(&self) -> watch::Receiver<Arc<StoreSnapshot>> {
        self.inner.views.subscribe()
    }

    fn commit(&self, change: &StoreChange) -> Result<(), StoreError> {
        if let Some(why) = change.invalid_reason() {
            return Err(StoreError::Invalid(why));
        }
        let now = Instant::now();
        let mut state = lock(&self.inner.state);
        let made = self.inner.apply_change(&mut state, change, now);
        match &made {
            Ok(()) => self.inner.record_outcome(Ok(()), now),
            Err(StoreError::Unavailable(why) | StoreError::OutcomeUnknown(why)) => {
                self.inner.record_outcome(Err(why.clone()), now)
            }
            Err(StoreError::Conflict(_) | StoreError::Invalid(_)) => {}
        }
        made
    }

    fn renew(&self, key: &str) -> Result<bool, StoreError> {
        let mut due = lock(&self.inner.expiry_times);
        let span = self.inner.views.borrow().entries.get(key).map(lease_duration);
        // An entry without an expiry time has no lease, or is being removed.
        let (Some(due), Some(span)) = (due.get_mut(key), span) else { return Ok(false) };
        *due = Instant::now() + span;
        Ok(true)
    }

    fn health(&self) -> StoreHealth {
        lock(&self.inner.health).clone()
    }

    fn close(&self) {
        self.inner.closed.store(true, SeqCst);
    }

    fn reopen(&self) {
        if self.inner.closed.swap(false, SeqCst) {
            let mut due = lock(&self.inner.expiry_times);
            due.clear();
            self.inner.update_expiry(&mut due, Instant::now());
        }
    }
}

impl Drop for LocalStore {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
