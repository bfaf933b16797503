//! A client for threads and for event loops. It has no thread of its own: while nobody asks nothing runs.
//!
//! *Threads*: of those that wait in [`pick`](Client::pick) one leads: it waits at the sockets, takes what comes for all and tells
//! them. The others wait for it, each until the next time at which something is due, as theirs may be due before the leader
//! looks. Who leads and has an answer leaves the lead to another.
//!
//! *Event loops*: [`ask`](Client::ask) with a tag; when the descriptor is readable or [`timeout`](Client::timeout) is over,
//! [`process`](Client::process); then [`next`](Client::next) until there is nothing. Neither waits. Both ways may be used at once.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::asker::Asker;
use crate::socket::Sockets;
use crate::{OpenError, Pick, Settings, Unserved};

/// Outcomes for event loops that were not taken, at the most.
const LOOSE: usize = 4096;

/// Nobody waits longer before it looks again, whatever it was told.
const LONGEST: Duration = Duration::from_secs(1);

/// A client of a cluster, for any number of threads.
///
/// A process that forks opens another one in the child: both would hear one another's answers.
#[derive(Debug)]
pub struct Client {
    state: Mutex<State>,
    /// Somebody has an answer, or the lead is free.
    turn: Condvar,
    sockets: Arc<Sockets>,
}

#[derive(Debug)]
struct State {
    asker: Asker<Tag>,
    /// The thread that waits at the sockets.
    leader: Option<u64>,
    turns: u64,
    /// Threads that wait, and what has come for them.
    waiting: HashMap<u64, Option<Result<Pick, Unserved>>>,
    /// What has come for event loops.
    loose: VecDeque<(u64, Result<Pick, Unserved>)>,
}

/// Who asked.
#[derive(Clone, Copy, Debug)]
enum Tag {
    Thread(u64),
    Loop(u64),
}

impl Client {
    /// Opens its sockets and reads the keys. Nothing is sent.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(settings: Settings) -> Result<Self, OpenError> {
        let (asker, sockets) = Asker::open(settings)?;
        let (waiting, loose) = (HashMap::new(), VecDeque::new());
        let state = Mutex::new(State { asker, leader: None, turns: 0, waiting, loose });
        Ok(Self { state, turn: Condvar::new(), sockets })
    }

    /// Waits for the member that is to serve; `info` is for the daemons' applications (at most 1000 bytes go). With eight attempts
    /// and short round trips it takes 1.3 s at the longest.
    ///
    /// # Errors
    /// There is nobody, or nobody answers.
    pub fn pick(&self, service: u32, info: &[u8]) -> Result<Pick, Unserved> {
        let mut state = self.lock();
        state.turns += 1;
        let me = state.turns;
        state.asker.ask(Tag::Thread(me), service, info)?;
        state.waiting.insert(me, None);
        loop {
            if self.gather(&mut state, Some(me)) {
                self.turn.notify_all();
            }
            if let Some(Some(_)) = state.waiting.get(&me) {
                let outcome = state.waiting.remove(&me).flatten();
                if state.leader.is_none() {
                    // Whoever is left.
                    self.turn.notify_one();
                }
                return outcome.unwrap_or(Err(Unserved::Silence));
            }
            let time = state.asker.timeout().unwrap_or(LONGEST).min(LONGEST);
            if state.leader.is_some() {
                let waited = self.turn.wait_timeout(state, time);
                let (again, over) = waited.unwrap_or_else(PoisonError::into_inner);
                state = again;
                if over.timed_out() {
                    state.asker.process();
                }
            } else {
                state.leader = Some(me);
                drop(state);
                self.sockets.wait(time);
                state = self.lock();
                state.leader = None;
                state.asker.process();
            }
        }
    }

    /// A member that was picked failed: not that one again for five seconds.
    pub fn failed(&self, member: u16) {
        self.lock().asker.failed(member);
    }

    /// Requests, since it was opened, for which a second answer named another member than the first, which was given out. That comes
    /// of daemons that know different loads, where more than one of them was asked.
    pub fn answered_twice(&self) -> u64 {
        self.lock().asker.answered_twice()
    }

    /// Asks, and does not wait: what comes of it is [`next`](Self::next)'s one day, with `tag`.
    ///
    /// # Errors
    /// [`Unserved::TooMany`].
    pub fn ask(&self, tag: u64, service: u32, info: &[u8]) -> Result<(), Unserved> {
        let mut state = self.lock();
        if state.loose.len() >= LOOSE {
            return Err(Unserved::TooMany);
        }
        state.asker.ask(Tag::Loop(tag), service, info)?;
        if self.gather(&mut state, None) {
            self.turn.notify_all();
        }
        Ok(())
    }

    /// Takes what has come and does what is due, and does not wait. Whether more may have come than was taken.
    pub fn process(&self) -> bool {
        let mut state = self.lock();
        let more = state.asker.process();
        if self.gather(&mut state, None) {
            self.turn.notify_all();
        }
        more
    }

    /// Until [`process`](Self::process) is to be called if the descriptor does not become readable before; `None` if nothing is
    /// waited for.
    pub fn timeout(&self) -> Option<Duration> {
        let state = self.lock();
        if state.loose.is_empty() { state.asker.timeout() } else { Some(Duration::ZERO) }
    }

    /// What has come of something that was asked for, with its tag.
    pub fn next(&self) -> Option<(u64, Result<Pick, Unserved>)> {
        let mut state = self.lock();
        let next = state.loose.pop_front();
        if next.is_some() && state.loose.is_empty() {
            self.sockets.hush();
        }
        next
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn sockets(&self) -> &Sockets {
        &self.sockets
    }

    /// Gives everyone what is theirs. Whether a thread other than `me` got something.
    fn gather(&self, state: &mut State, me: Option<u64>) -> bool {
        let mut told = false;
        while let Some((tag, outcome)) = state.asker.next() {
            match tag {
                Tag::Thread(who) => {
                    if let Some(place) = state.waiting.get_mut(&who) {
                        *place = Some(outcome);
                        told |= me != Some(who);
                        if state.leader == Some(who) {
                            // What came for it was taken by another, and it waits for what comes.
                            self.sockets.knock();
                        }
                    }
                }
                Tag::Loop(tag) => {
                    if state.loose.is_empty() {
                        self.sockets.ring();
                    }
                    state.loose.push_back((tag, outcome));
                }
            }
        }
        told
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panicked while it held the lock left nothing half done that matters more than going on.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The descriptor that is readable when [`process`](Client::process) or [`next`](Client::next) has something to do.
impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sockets.as_fd()
    }
}
