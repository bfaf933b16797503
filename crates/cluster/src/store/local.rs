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
    shared: Arc<LocalShared>,
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
    snapshots: watch::Sender<Arc<StoreSnapshot>>,
}

struct LocalState {
    snapshot: Arc<StoreSnapshot>,
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
        let (snapshot, fingerprint, set_aside) = match path {
            None => (StoreSnapshot::default(), None, None),
            Some(path) => load_initial(path)?,
        };
        let snapshot = Arc::new(snapshot);
        let shared = Arc::new(LocalShared {
            path: path.map(Path::to_owned),
            state: Mutex::new(LocalState { snapshot: Arc::clone(&snapshot), fingerprint }),
            expiry_times: Mutex::default(),
            health: Mutex::new(StoreHealth { reads: 1, ..StoreHealth::default() }),
            closed: AtomicBool::new(false),
            snapshots: watch::Sender::new(snapshot),
        });
        shared.update_expiry(&mut lock(&shared.expiry_times), Instant::now());
        let (stop, stopped) = mpsc::channel();
        let thread_shared = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("store".into()).spawn(move || {
            while stopped.recv_timeout(CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                thread_shared.check_file(Instant::now());
            }
        });
        let thread = thread.map_err(|error| format!("no thread for the store: {error}"))?;
        Ok((Self { shared, stop: Some(stop), thread: Some(thread) }, set_aside))
    }
}

/// Reads the file; an invalid one is renamed.
fn load_initial(path: &Path) -> Result<(StoreSnapshot, Option<StoreFingerprint>, Option<String>), String> {
    let path_text = path.display();
    let open_error = |error: io::Error| {
        format!(
            "the store {path_text} cannot be used: {error}; make its folder, writable for this user, or name \
             another file"
        )
    };
    // Missing permissions should fail here, not at an operator's first change.
    let _lock = file::lock(path).map_err(open_error)?;
    match file::read(path).map_err(open_error)? {
        FileContents::Missing => Ok((StoreSnapshot::default(), None, None)),
        FileContents::Valid(fingerprint, snapshot) => Ok((snapshot, Some(fingerprint), None)),
        FileContents::Invalid(reason) => {
            let backup_path = file::set_aside(path).map_err(open_error)?;
            let warning = format!(
                "the store {path_text} cannot be used: {reason}; it was set aside as {}, and what \
                 operators did before does not \
                 count: put back a copy and start again, or say it again",
                backup_path.display()
            );
            Ok((StoreSnapshot::default(), None, Some(warning)))
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
            let lock_file = file::lock(path);
            let result = lock_file.and_then(|_lock| self.reload(&mut state, path));
            self.record_outcome(result.map_err(|error| error.to_string()), now);
        }
        if self.closed.load(SeqCst) {
            return;
        }
        // From here on the entries cannot be renewed: a renewal finds them expired, even if the disk is slow.
        let expired: Vec<String> = {
            let mut expiry_times = lock(&self.expiry_times);
            let expired = expiry_times
                .iter()
                .filter(|(_, expires_at)| **expires_at <= now)
                .map(|(key, _)| key.clone())
                .collect();
            expiry_times.retain(|_, expires_at| *expires_at > now);
            expired
        };
        if expired.is_empty() {
            return;
        }
        let change =
            StoreChange { deletes: expired, ..StoreChange::default() }.if_unchanged_since(&state.snapshot);
        if self.apply_change(&mut state, &change, now).is_err() {
            // The next check tries again. Entries that another process has written meanwhile have their own
            // time.
            let mut expiry_times = lock(&self.expiry_times);
            for key in change.deletes.into_iter().filter(|key| state.snapshot.entries.contains_key(key)) {
                expiry_times.entry(key).or_insert(now);
            }
        }
    }

    /// Reads the file again, which another process may have written.
    fn reload(&self, state: &mut LocalState, path: &Path) -> io::Result<()> {
        if file::fingerprint(path) == state.fingerprint {
            return Ok(());
        }
        let (fingerprint, snapshot) = match file::read(path)? {
            FileContents::Valid(fingerprint, snapshot) => (Some(fingerprint), snapshot),
            // The file was removed or overwritten. The known state is complete, and stays; the next change
            // writes it again.
            FileContents::Missing => return Err(io::Error::other("somebody took the file away")),
            FileContents::Invalid(error) => return Err(io::Error::other(error)),
        };
        state.fingerprint = fingerprint;
        lock(&self.health).reads += 1;
        self.publish(state, snapshot, Instant::now());
        Ok(())
    }

    /// Makes a change, based on the file's current contents.
    fn apply_change(
        &self,
        state: &mut LocalState,
        change: &StoreChange,
        now: Instant,
    ) -> Result<(), StoreError> {
        let unavailable = |error: io::Error| StoreError::Unavailable(error.to_string());
        let _lock: Option<File> = match &self.path {
            Some(path) => {
                let lock_file = file::lock(path).map_err(unavailable)?;
                // An unreadable file is overwritten with the known state.
                let _ = self.reload(state, path);
                Some(lock_file)
            }
            None => None,
        };
        let has_changed = |(key, revision): &&(String, i64)| state.snapshot.revision_of(key) != *revision;
        if let Some((key, _)) = change.unchanged.iter().find(has_changed) {
            lock(&self.health).conflicts += 1;
            return Err(StoreError::Conflict(key.clone()));
        }
        let mut snapshot = StoreSnapshot::clone(&state.snapshot);
        snapshot.revision += 1;
        change.deletes.iter().for_each(|key| drop(snapshot.entries.remove(key)));
        for put in &change.puts {
            let lease = put.ttl.map_or(0, |ttl| i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX).max(1));
            let entry = StoreEntry { value: put.value.as_str().into(), revision: snapshot.revision, lease };
            snapshot.entries.insert(put.key.clone(), entry);
        }
        if snapshot.entries.len() > MAX_ENTRIES {
            return Err(StoreError::Invalid(format!("it is full: {MAX_ENTRIES} entries are the most")));
        }
        let Some(path) = &self.path else {
            self.publish(state, snapshot, now);
            return Ok(());
        };
        match file::save(path, &snapshot) {
            Ok(fingerprint) => {
                state.fingerprint = Some(fingerprint);
                self.publish(state, snapshot, now);
                Ok(())
            }
            Err(file::SaveError { is_in_place: false, why: error }) => Err(unavailable(error)),
            Err(file::SaveError { is_in_place: true, why: error }) => {
                state.fingerprint = file::fingerprint(path);
                self.publish(state, snapshot, now);
                Err(StoreError::OutcomeUnknown(error.to_string()))
            }
        }
    }

    /// Publishes a view. Leases of new and rewritten entries, by any process, have their full time.
    fn publish(&self, state: &mut LocalState, snapshot: StoreSnapshot, now: Instant) {
        let previous = std::mem::replace(&mut state.snapshot, Arc::new(snapshot));
        let mut expiry_times = lock(&self.expiry_times);
        expiry_times.retain(|key, _| previous.revision_of(key) == state.snapshot.revision_of(key));
        self.snapshots.send_replace(Arc::clone(&state.snapshot));
        self.update_expiry(&mut expiry_times, now);
    }

    /// Updates the expiry times: new leases have their full time from now on.
    fn update_expiry(&self, expiry_times: &mut BTreeMap<String, Instant>, now: Instant) {
        let snapshot = Arc::clone(&self.snapshots.borrow());
        expiry_times.retain(|key, _| snapshot.entries.get(key).is_some_and(|entry| entry.lease != 0));
        for (key, entry) in snapshot.entries.iter().filter(|(_, entry)| entry.lease != 0) {
            if !expiry_times.contains_key(key) {
                expiry_times.insert(key.clone(), now + lease_duration(entry));
            }
        }
    }

    /// Records whether the store can be used.
    fn record_outcome(&self, outcome: Result<(), String>, now: Instant) {
        let mut health = lock(&self.health);
        match (outcome, &mut health.problem) {
            (Ok(()), problem) => *problem = None,
            (Err(reason), Some(problem)) => problem.0 = reason,
            (Err(reason), problem) => {
                *problem = Some((reason, now));
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
        if self.shared.path.is_some() { "file" } else { "memory" }
    }

    fn location(&self) -> String {
        self.shared.path.as_ref().map(|path| path.display().to_string()).unwrap_or_default()
    }

    fn snapshots(&self) -> watch::Receiver<Arc<StoreSnapshot>> {
        self.shared.snapshots.subscribe()
    }

    fn commit(&self, change: &StoreChange) -> Result<(), StoreError> {
        if let Some(reason) = change.invalid_reason() {
            return Err(StoreError::Invalid(reason));
        }
        let now = Instant::now();
        let mut state = lock(&self.shared.state);
        let result = self.shared.apply_change(&mut state, change, now);
        match &result {
            Ok(()) => self.shared.record_outcome(Ok(()), now),
            Err(StoreError::Unavailable(reason) | StoreError::OutcomeUnknown(reason)) => {
                self.shared.record_outcome(Err(reason.clone()), now)
            }
            Err(StoreError::Conflict(_) | StoreError::Invalid(_)) => {}
        }
        result
    }

    fn renew(&self, key: &str) -> Result<bool, StoreError> {
        let mut expiry_times = lock(&self.shared.expiry_times);
        let lease_span = self.shared.snapshots.borrow().entries.get(key).map(lease_duration);
        // An entry without an expiry time has no lease, or is being removed.
        let (Some(expires_at), Some(lease_span)) = (expiry_times.get_mut(key), lease_span) else {
            return Ok(false);
        };
        *expires_at = Instant::now() + lease_span;
        Ok(true)
    }

    fn health(&self) -> StoreHealth {
        lock(&self.shared.health).clone()
    }

    fn close(&self) {
        self.shared.closed.store(true, SeqCst);
    }

    fn reopen(&self) {
        if self.shared.closed.swap(false, SeqCst) {
            let mut expiry_times = lock(&self.shared.expiry_times);
            expiry_times.clear();
            self.shared.update_expiry(&mut expiry_times, Instant::now());
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
