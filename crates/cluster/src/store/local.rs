//! A store on this machine: in a file, or in memory only.
//!
//! Each change is written as a complete new file before it is acknowledged, so that it survives a kill or a
//! power failure. Processes of one machine may share the file, as they briefly do during a handoff. Each
//! change is made under a lock, based on the file's current contents, and changes by others are seen within
//! [`LOOK`].
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

use super::file::{self, Found, Stamp};
use super::{Change, Entry, Health, MOST_ENTRIES, Refused, Store, View};
use crate::lock;

/// The interval of checks for changes of the file, and for expired leases.
const LOOK: Duration = Duration::from_millis(250);

/// A store on this machine.
pub struct Local {
    inner: Arc<Inner>,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Inner {
    path: Option<PathBuf>,
    /// The state, locked for one change at a time. The lock is held during I/O, and so is taken only by
    /// threads that may block.
    state: Mutex<State>,
    /// The expiry times of entries with a lease. Neither this lock nor that of `health` is held during I/O.
    due: Mutex<BTreeMap<String, Instant>>,
    health: Mutex<Health>,
    closed: AtomicBool,
    views: watch::Sender<Arc<View>>,
}

struct State {
    view: Arc<View>,
    /// The file that the view was read from.
    stamp: Option<Stamp>,
}

impl Local {
    /// Opens the store in a file, or in memory without one. An invalid file is renamed. Then the store begins
    /// empty, and the result contains a sentence about that.
    ///
    /// # Errors
    /// The file cannot be read or written: one line.
    pub fn open(path: Option<&Path>) -> Result<(Self, Option<String>), String> {
        let (view, stamp, set_aside) = match path {
            None => (View::default(), None, None),
            Some(path) => begin(path)?,
        };
        let view = Arc::new(view);
        let inner = Arc::new(Inner {
            path: path.map(Path::to_owned),
            state: Mutex::new(State { view: Arc::clone(&view), stamp }),
            due: Mutex::default(),
            health: Mutex::new(Health { reads: 1, ..Health::default() }),
            closed: AtomicBool::new(false),
            views: watch::Sender::new(view),
        });
        inner.follow(&mut lock(&inner.due), Instant::now());
        let (stop, stopped) = mpsc::channel();
        let own = Arc::clone(&inner);
        let thread = std::thread::Builder::new().name("store".into()).spawn(move || {
            while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                own.look(Instant::now());
            }
        });
        let thread = thread.map_err(|error| format!("no thread for the store: {error}"))?;
        Ok((Self { inner, stop: Some(stop), thread: Some(thread) }, set_aside))
    }
}

/// Reads the file; an invalid one is renamed.
fn begin(path: &Path) -> Result<(View, Option<Stamp>, Option<String>), String> {
    let name = path.display();
    let wrong = |why: io::Error| {
        format!(
            "the store {name} cannot be used: {why}; make its folder, writable for this user, or name another file"
        )
    };
    // Missing permissions should fail here, not at an operator's first change.
    let _held = file::lock(path).map_err(wrong)?;
    match file::read(path).map_err(wrong)? {
        Found::Nothing => Ok((View::default(), None, None)),
        Found::Whole(stamp, view) => Ok((view, Some(stamp), None)),
        Found::Bad(why) => {
            let aside = file::set_aside(path).map_err(wrong)?;
            let said = format!(
                "the store {name} cannot be used: {why}; it was set aside as {}, and what operators did before does not \
                 count: put back a copy and start again, or say it again",
                aside.display()
            );
            Ok((View::default(), None, Some(said)))
        }
    }
}

impl Inner {
    /// Applies the changes of other processes, and removes expired entries.
    fn look(&self, now: Instant) {
        let mut state = lock(&self.state);
        if let Some(path) = &self.path
            && file::stamp(path) != state.stamp
        {
            let held = file::lock(path);
            let read = held.and_then(|_held| self.read_again(&mut state, path));
            self.judge(read.map_err(|why| why.to_string()), now);
        }
        if self.closed.load(SeqCst) {
            return;
        }
        // From here on the entries cannot be renewed: a renewal finds them expired, even if the disk is slow.
        let over: Vec<String> = {
            let mut due = lock(&self.due);
            let over = due.iter().filter(|(_, due)| **due <= now).map(|(key, _)| key.clone()).collect();
            due.retain(|_, due| *due > now);
            over
        };
        if over.is_empty() {
            return;
        }
        let change = Change { deletes: over, ..Change::default() }.as_seen(&state.view);
        if self.make(&mut state, &change, now).is_err() {
            // The next check tries again. Entries that another process has written meanwhile have their own
            // time.
            let mut due = lock(&self.due);
            for key in change.deletes.into_iter().filter(|key| state.view.entries.contains_key(key)) {
                due.entry(key).or_insert(now);
            }
        }
    }

    /// Reads the file again, which another process may have written.
    fn read_again(&self, state: &mut State, path: &Path) -> io::Result<()> {
        if file::stamp(path) == state.stamp {
            return Ok(());
        }
        let (stamp, view) = match file::read(path)? {
            Found::Whole(stamp, view) => (Some(stamp), view),
            // The file was removed or overwritten. The known state is complete, and stays; the next change
            // writes it again.
            Found::Nothing => return Err(io::Error::other("somebody took the file away")),
            Found::Bad(why) => return Err(io::Error::other(why)),
        };
        state.stamp = stamp;
        lock(&self.health).reads += 1;
        self.show(state, view, Instant::now());
        Ok(())
    }

    /// Makes a change, based on the file's current contents.
    fn make(&self, state: &mut State, change: &Change, now: Instant) -> Result<(), Refused> {
        let away = |why: io::Error| Refused::Away(why.to_string());
        let _held: Option<File> = match &self.path {
            Some(path) => {
                let held = file::lock(path).map_err(away)?;
                // An unreadable file is overwritten with the known state.
                let _ = self.read_again(state, path);
                Some(held)
            }
            None => None,
        };
        let differs = |(key, revision): &&(String, i64)| state.view.revision_of(key) != *revision;
        if let Some((key, _)) = change.unchanged.iter().find(differs) {
            lock(&self.health).conflicts += 1;
            return Err(Refused::Conflict(key.clone()));
        }
        let mut view = View::clone(&state.view);
        view.revision += 1;
        change.deletes.iter().for_each(|key| drop(view.entries.remove(key)));
        for put in &change.puts {
            let lease = put.ttl.map_or(0, |ttl| i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX).max(1));
            let entry = Entry { value: put.value.as_str().into(), revision: view.revision, lease };
            view.entries.insert(put.key.clone(), entry);
        }
        if view.entries.len() > MOST_ENTRIES {
            return Err(Refused::Wrong(format!("it is full: {MOST_ENTRIES} entries are the most")));
        }
        let Some(path) = &self.path else {
            self.show(state, view, now);
            return Ok(());
        };
        match file::save(path, &view) {
            Ok(stamp) => {
                state.stamp = Some(stamp);
                self.show(state, view, now);
                Ok(())
            }
            Err(file::Unsaved { there: false, why }) => Err(away(why)),
            Err(file::Unsaved { there: true, why }) => {
                state.stamp = file::stamp(path);
                self.show(state, view, now);
                Err(Refused::Unsure(why.to_string()))
            }
        }
    }

    /// Publishes a view. Leases of new and rewritten entries, by any process, have their full time.
    fn show(&self, state: &mut State, view: View, now: Instant) {
        let before = std::mem::replace(&mut state.view, Arc::new(view));
        let mut due = lock(&self.due);
        due.retain(|key, _| before.revision_of(key) == state.view.revision_of(key));
        self.views.send_replace(Arc::clone(&state.view));
        self.follow(&mut due, now);
    }

    /// Updates the expiry times: new leases have their full time from now on.
    fn follow(&self, due: &mut BTreeMap<String, Instant>, now: Instant) {
        let view = Arc::clone(&self.views.borrow());
        due.retain(|key, _| view.entries.get(key).is_some_and(|entry| entry.lease != 0));
        for (key, entry) in view.entries.iter().filter(|(_, entry)| entry.lease != 0) {
            if !due.contains_key(key) {
                due.insert(key.clone(), now + span(entry));
            }
        }
    }

    /// Records whether the store can be used.
    fn judge(&self, outcome: Result<(), String>, now: Instant) {
        let mut health = lock(&self.health);
        match (outcome, &mut health.trouble) {
            (Ok(()), trouble) => *trouble = None,
            (Err(why), Some(trouble)) => trouble.0 = why,
            (Err(why), trouble) => {
                *trouble = Some((why, now));
                health.failures += 1;
            }
        }
    }
}

fn span(entry: &Entry) -> Duration {
    Duration::from_millis(u64::try_from(entry.lease).unwrap_or_default())
}

impl Store for Local {
    fn kind(&self) -> &'static str {
        if self.inner.path.is_some() { "file" } else { "memory" }
    }

    fn place(&self) -> String {
        self.inner.path.as_ref().map(|path| path.display().to_string()).unwrap_or_default()
    }

    fn views(&self) -> watch::Receiver<Arc<View>> {
        self.inner.views.subscribe()
    }

    fn commit(&self, change: &Change) -> Result<(), Refused> {
        if let Some(why) = change.wrong() {
            return Err(Refused::Wrong(why));
        }
        let now = Instant::now();
        let mut state = lock(&self.inner.state);
        let made = self.inner.make(&mut state, change, now);
        match &made {
            Ok(()) => self.inner.judge(Ok(()), now),
            Err(Refused::Away(why) | Refused::Unsure(why)) => self.inner.judge(Err(why.clone()), now),
            Err(Refused::Conflict(_) | Refused::Wrong(_)) => {}
        }
        made
    }

    fn renew(&self, key: &str) -> Result<bool, Refused> {
        let mut due = lock(&self.inner.due);
        let span = self.inner.views.borrow().entries.get(key).map(span);
        // An entry without an expiry time has no lease, or is being removed.
        let (Some(due), Some(span)) = (due.get_mut(key), span) else { return Ok(false) };
        *due = Instant::now() + span;
        Ok(true)
    }

    fn health(&self) -> Health {
        lock(&self.inner.health).clone()
    }

    fn close(&self) {
        self.inner.closed.store(true, SeqCst);
    }

    fn reopen(&self) {
        if self.inner.closed.swap(false, SeqCst) {
            let mut due = lock(&self.inner.due);
            due.clear();
            self.inner.follow(&mut due, Instant::now());
        }
    }
}

impl Drop for Local {
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
