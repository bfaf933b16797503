//! A store on this machine: in a file, or in memory only.
//!
//! Each change is written as a whole new file before it counts: what was acknowledged is there after a kill or a loss of power. Processes of
//! one machine may have the same file, as they do for a moment when one takes over from another: each change is made under a lock on what
//! is in the file then, and what others wrote is seen within [`LOOK`].
//!
//! Leases live in memory. After a start, and when another process wrote an entry, it has its whole time: nobody could have renewed it.
//!
//! A disk may hang. Only who changes something waits for it, and the store's own thread: what is held over I/O is held for nothing else.

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

/// Between two looks at the file, and at what is over.
const LOOK: Duration = Duration::from_millis(250);

/// A store on this machine.
pub struct Local {
    inner: Arc<Inner>,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Inner {
    path: Option<PathBuf>,
    /// One change at a time. Held while the disk is waited for, and so only by who may wait.
    state: Mutex<State>,
    /// When entries with a lease go, unless they are renewed. Never held over I/O, nor is `health`.
    due: Mutex<BTreeMap<String, Instant>>,
    health: Mutex<Health>,
    closed: AtomicBool,
    views: watch::Sender<Arc<View>>,
}

struct State {
    view: Arc<View>,
    /// Which file the view is of.
    stamp: Option<Stamp>,
}

impl Local {
    /// Opens the store in a file, or one that forgets. What was in the place of the file and is none is set aside: then there is
    /// a sentence about that beside the store, which begins with nothing.
    ///
    /// # Errors
    /// The file cannot be read, or none could be written there: one line.
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

/// What is in the place of a file; what is no store is set aside.
fn begin(path: &Path) -> Result<(View, Option<Stamp>, Option<String>), String> {
    let name = path.display();
    let wrong = |why: io::Error| {
        format!(
            "the store {name} cannot be used: {why}; make its folder, writable for this user, or name another file"
        )
    };
    // Whoever cannot write there should say so at once, and not when an operator is waiting.
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
    /// Takes what other processes wrote, and takes away what is over.
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
        // From here on nobody renews them: whoever wants to is told that they are over, though the disk may take its time.
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
            // It is tried again with the next look. What another process wrote meanwhile has its own time.
            let mut due = lock(&self.due);
            for key in change.deletes.into_iter().filter(|key| state.view.entries.contains_key(key)) {
                due.entry(key).or_insert(now);
            }
        }
    }

    /// What is in the file now, which another process may have written.
    fn read_again(&self, state: &mut State, path: &Path) -> io::Result<()> {
        if file::stamp(path) == state.stamp {
            return Ok(());
        }
        let (stamp, view) = match file::read(path)? {
            Found::Whole(stamp, view) => (Some(stamp), view),
            // Somebody took it away, or wrote over it: what is known here is whole, and stays; the next change writes it again.
            Found::Nothing => return Err(io::Error::other("somebody took the file away")),
            Found::Bad(why) => return Err(io::Error::other(why)),
        };
        state.stamp = stamp;
        lock(&self.health).reads += 1;
        self.show(state, view, Instant::now());
        Ok(())
    }

    /// Makes a change, on what is in the file.
    fn make(&self, state: &mut State, change: &Change, now: Instant) -> Result<(), Refused> {
        let away = |why: io::Error| Refused::Away(why.to_string());
        let _held: Option<File> = match &self.path {
            Some(path) => {
                let held = file::lock(path).map_err(away)?;
                // What cannot be read is written over with what is known.
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

    /// From now on that is what there is. What was put, here or by another process, has its whole time.
    fn show(&self, state: &mut State, view: View, now: Instant) {
        let before = std::mem::replace(&mut state.view, Arc::new(view));
        let mut due = lock(&self.due);
        due.retain(|key, _| before.revision_of(key) == state.view.revision_of(key));
        self.views.send_replace(Arc::clone(&state.view));
        self.follow(&mut due, now);
    }

    /// Entries with a lease have a time at which they go; those that had none yet their whole time from now.
    fn follow(&self, due: &mut BTreeMap<String, Instant>, now: Instant) {
        let view = Arc::clone(&self.views.borrow());
        due.retain(|key, _| view.entries.get(key).is_some_and(|entry| entry.lease != 0));
        for (key, entry) in view.entries.iter().filter(|(_, entry)| entry.lease != 0) {
            if !due.contains_key(key) {
                due.insert(key.clone(), now + span(entry));
            }
        }
    }

    /// Remembers whether the store can be used.
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
        // One without a time has no lease, or is being taken away.
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
            // A panic there has been reported by the panic hook; there is nothing to add.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
