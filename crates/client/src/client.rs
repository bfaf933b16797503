//! A client for threads and event loops. It has no thread of its own and runs only within calls.
//!
//! *Threads*: one of the threads that wait in [`pick`](Client::pick) is the leader. It polls the sockets,
//! receives for all and wakes the others. The others wait for it, each at most until the next timeout, which
//! may be before the leader's. A leader that has its answer passes the lead on.
//!
//! *Event loops* call [`ask`](Client::ask) with a tag. They call [`process`](Client::process) when the
//! descriptor is readable or [`timeout`](Client::timeout) has elapsed, then [`next`](Client::next) until it
//! returns `None`. None of these calls waits. Both interfaces may be used at once.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::asker::Asker;
use crate::socket::Sockets;
use crate::{OpenError, Pick, Settings, Unserved};

/// The largest number of outcomes kept for event loops that have not taken them.
const LOOSE: usize = 4096;

/// The longest wait before a thread checks again, even without a notification.
const LONGEST: Duration = Duration::from_secs(1);

/// A client of a cluster, shared by any number of threads.
///
/// After a fork, the child must open its own client: with shared sockets, each process would receive answers
/// to the other.
#[derive(Debug)]
pub struct Client {
    state: Mutex<State>,
    /// Notified when a thread has its answer, or when there is no leader.
    turn: Condvar,
    sockets: Arc<Sockets>,
}

#[derive(Debug)]
struct State {
    asker: Asker<Tag>,
    /// The thread that polls the sockets.
    leader: Option<u64>,
    turns: u64,
    /// The waiting threads and their outcomes.
    waiting: HashMap<u64, Option<Result<Pick, Unserved>>>,
    /// The outcomes for event loops.
    loose: VecDeque<(u64, Result<Pick, Unserved>)>,
}

/// The origin of a request.
#[derive(Clone, Copy, Debug)]
enum Tag {
    Thread(u64),
    Loop(u64),
}

impl Client {
    /// Opens the sockets and reads the keys. Sends nothing.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(settings: Settings) -> Result<Self, OpenError> {
        let (asker, sockets) = Asker::open(settings)?;
        let (waiting, loose) = (HashMap::new(), VecDeque::new());
        let state = Mutex::new(State { asker, leader: None, turns: 0, waiting, loose });
        Ok(Self { state, turn: Condvar::new(), sockets })
    }

    /// Waits for the member to send a request to. `info` is passed to the daemons' applications (at most 1000
    /// bytes). With eight attempts and short round trips it takes at most 1.3 s.
    ///
    /// # Errors
    /// Returns an error if no member is available or no daemon answers.
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
                    // Wake one of the others: it becomes the leader.
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

    /// Records a failure of a picked member, so that it is not picked for five seconds.
    pub fn failed(&self, member: u16) {
        self.lock().asker.failed(member);
    }

    /// Returns the number of requests since the client was opened whose second answer named another member.
    /// The first answer counts. It happens when more than one daemon was asked and their load data differ.
    pub fn answered_twice(&self) -> u64 {
        self.lock().asker.answered_twice()
    }

    /// Asks for a member without waiting. [`next`](Self::next) returns the outcome later, with `tag`.
    ///
    /// # Errors
    /// [`Unserved::TooMany`] if too many requests are open or too many outcomes were not taken.
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

    /// Receives datagrams and handles timeouts without waiting. Returns `true` if more datagrams may be
    /// waiting.
    pub fn process(&self) -> bool {
        let mut state = self.lock();
        let more = state.asker.process();
        if self.gather(&mut state, None) {
            self.turn.notify_all();
        }
        more
    }

    /// Returns the time until [`process`](Self::process) is due if the descriptor does not become readable
    /// before; `None` if no request is open.
    pub fn timeout(&self) -> Option<Duration> {
        let state = self.lock();
        if state.loose.is_empty() { state.asker.timeout() } else { Some(Duration::ZERO) }
    }

    /// Takes the next outcome and its tag.
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

    /// Distributes the outcomes. Returns `true` if a thread other than `me` got one.
    fn gather(&self, state: &mut State, me: Option<u64>) -> bool {
        let mut told = false;
        while let Some((tag, outcome)) = state.asker.next() {
            match tag {
                Tag::Thread(who) => {
                    if let Some(place) = state.waiting.get_mut(&who) {
                        *place = Some(outcome);
                        told |= me != Some(who);
                        if state.leader == Some(who) {
                            // Another thread received the leader's answer while the leader polls the sockets.
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
        // After a panic of another holder, the state is consistent enough to go on.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The descriptor is readable when [`process`](Client::process) or [`next`](Client::next) has something to
/// do.
impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sockets.as_fd()
    }
}
