//! A client for threads and event loops. It has no thread of its own and runs only within calls.
//!
//! *Threads*: one of the threads that wait in [`pick`](Client::pick) is the leader. It polls the sockets,
//! receives for all and wakes the others. The others wait for it, each at most until the next timeout, which
//! may be before the leader's. A leader that has its answer passes the lead on.
//!
//! *Event loops* call [`start_request`](Client::start_request) with a tag. They call
//! [`process`](Client::process) when the descriptor is readable or [`timeout`](Client::timeout) has elapsed,
//! then [`next_outcome`](Client::next_outcome) until it returns `None`. None of these calls waits. Both
//! interfaces may be used at once.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::engine::RequestEngine;
use crate::sockets::SocketSet;
use crate::{ClientSettings, OpenError, PickError, PickedMember};

/// The largest number of outcomes kept for event loops that have not taken them.
const MAX_OUTCOMES: usize = 4096;

/// The longest wait before a thread checks again, even without a notification.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// A client of a cluster, shared by any number of threads.
///
/// After a fork, the child must open its own client: with shared sockets, each process would receive answers
/// to the other.
#[derive(Debug)]
pub struct Client {
    state: Mutex<ClientState>,
    /// Notified when a thread has its answer, or when there is no leader.
    wakeup: Condvar,
    sockets: Arc<SocketSet>,
}

#[derive(Debug)]
struct ClientState {
    engine: RequestEngine<RequestOrigin>,
    /// The thread that polls the sockets.
    leader: Option<u64>,
    next_id: u64,
    /// The waiting threads and their outcomes.
    waiting: HashMap<u64, Option<Result<PickedMember, PickError>>>,
    /// The outcomes for event loops.
    outcomes: VecDeque<(u64, Result<PickedMember, PickError>)>,
}

/// The origin of a request.
#[derive(Clone, Copy, Debug)]
enum RequestOrigin {
    Thread(u64),
    EventLoop(u64),
}

impl Client {
    /// Opens the sockets and reads the keys. Sends nothing.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(settings: ClientSettings) -> Result<Self, OpenError> {
        let (engine, sockets) = RequestEngine::open(settings)?;
        let (waiting, outcomes) = (HashMap::new(), VecDeque::new());
        let state = Mutex::new(ClientState { engine, leader: None, next_id: 0, waiting, outcomes });
        Ok(Self { state, wakeup: Condvar::new(), sockets })
    }

    /// Waits for the member to send a request to. `info` is passed to the daemons' applications (at most 1000
    /// bytes). With eight attempts and short round trips it takes at most 1.3 s.
    ///
    /// # Errors
    /// Returns an error if no member is available or no daemon answers.
    pub fn pick(&self, service: u32, info: &[u8]) -> Result<PickedMember, PickError> {
        let mut state = self.lock();
        state.next_id += 1;
        let request_id = state.next_id;
        state.engine.start_request(RequestOrigin::Thread(request_id), service, info)?;
        state.waiting.insert(request_id, None);
        loop {
            if self.distribute_outcomes(&mut state, Some(request_id)) {
                self.wakeup.notify_all();
            }
            if let Some(Some(_)) = state.waiting.get(&request_id) {
                let outcome = state.waiting.remove(&request_id).flatten();
                if state.leader.is_none() {
                    // Wake one of the others: it becomes the leader.
                    self.wakeup.notify_one();
                }
                return outcome.unwrap_or(Err(PickError::NoResponse));
            }
            let time = state.engine.timeout().unwrap_or(MAX_WAIT).min(MAX_WAIT);
            if state.leader.is_some() {
                let wait_result = self.wakeup.wait_timeout(state, time);
                let (reacquired, wait_timeout) = wait_result.unwrap_or_else(PoisonError::into_inner);
                state = reacquired;
                if wait_timeout.timed_out() {
                    state.engine.process();
                }
            } else {
                state.leader = Some(request_id);
                drop(state);
                self.sockets.wait(time);
                state = self.lock();
                state.leader = None;
                state.engine.process();
            }
        }
    }

    /// Records a failure of a picked member, so that it is not picked for five seconds.
    pub fn record_failure(&self, member: u16) {
        self.lock().engine.record_failure(member);
    }

    /// Returns the number of requests since the client was opened whose second answer named another member.
    /// The first answer counts. It happens when more than one daemon was asked and their load data differ.
    pub fn answered_twice(&self) -> u64 {
        self.lock().engine.answered_twice()
    }

    /// Asks for a member without waiting. [`next_outcome`](Self::next_outcome) returns the outcome later,
    /// with `tag`.
    ///
    /// # Errors
    /// [`PickError::TooMany`] if too many requests are open or too many outcomes were not taken.
    pub fn start_request(&self, tag: u64, service: u32, info: &[u8]) -> Result<(), PickError> {
        let mut state = self.lock();
        if state.outcomes.len() >= MAX_OUTCOMES {
            return Err(PickError::TooMany);
        }
        state.engine.start_request(RequestOrigin::EventLoop(tag), service, info)?;
        if self.distribute_outcomes(&mut state, None) {
            self.wakeup.notify_all();
        }
        Ok(())
    }

    /// Receives datagrams and handles timeouts without waiting. Returns `true` if more datagrams may be
    /// waiting.
    pub fn process(&self) -> bool {
        let mut state = self.lock();
        let has_more = state.engine.process();
        if self.distribute_outcomes(&mut state, None) {
            self.wakeup.notify_all();
        }
        has_more
    }

    /// Returns the time until [`process`](Self::process) is due if the descriptor does not become readable
    /// before; `None` if no request is open.
    pub fn timeout(&self) -> Option<Duration> {
        let state = self.lock();
        if state.outcomes.is_empty() { state.engine.timeout() } else { Some(Duration::ZERO) }
    }

    /// Takes the next outcome and its tag.
    pub fn next_outcome(&self) -> Option<(u64, Result<PickedMember, PickError>)> {
        let mut state = self.lock();
        let next_outcome = state.outcomes.pop_front();
        if next_outcome.is_some() && state.outcomes.is_empty() {
            self.sockets.clear_readable();
        }
        next_outcome
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn sockets(&self) -> &SocketSet {
        &self.sockets
    }

    /// Distributes the outcomes. Returns `true` if a thread other than `me` got one.
    fn distribute_outcomes(&self, state: &mut ClientState, own_id: Option<u64>) -> bool {
        let mut is_notified = false;
        while let Some((origin, outcome)) = state.engine.next_finished() {
            match origin {
                RequestOrigin::Thread(waiter_id) => {
                    if let Some(slot) = state.waiting.get_mut(&waiter_id) {
                        *slot = Some(outcome);
                        is_notified |= own_id != Some(waiter_id);
                        if state.leader == Some(waiter_id) {
                            // Another thread received the leader's answer while the leader polls the sockets.
                            self.sockets.wake();
                        }
                    }
                }
                RequestOrigin::EventLoop(tag) => {
                    if state.outcomes.is_empty() {
                        self.sockets.set_readable();
                    }
                    state.outcomes.push_back((tag, outcome));
                }
            }
        }
        is_notified
    }

    fn lock(&self) -> MutexGuard<'_, ClientState> {
        // After a panic of another holder, the state is consistent enough to go on.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The descriptor is readable when [`process`](Client::process) or [`next_outcome`](Client::next_outcome) has
/// something to do.
impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sockets.as_fd()
    }
}
