//! Verification of members: no client is redirected to a member that is gone.
//!
//! A relay detects a member that is gone and tries another. With a redirect, the client detects it, and its
//! reaction depends on the ORB: some wait for a minute, some ask their users. So the balancer asks a member
//! whether it has the object and serves it ([`super::locate`]) before it redirects a client there. It does
//! so if the member has not been seen alive for a second, or if a client has returned from it since. Each
//! core asks by itself; clients that arrive meanwhile wait for the same answer.
//!
//! A single-threaded server answers in turn. A member that has answered before and accepts connections is
//! presumed busy, not gone. Clients wait for its answer no longer than an idle member needs. Only a member
//! that is silent for longer is passed over, as long as others answer. That counts as no failure, as health
//! checks detect members that hang.
//!
//! A member that sends its clients away would send these away, too. They would circle between it and this
//! balancer as fast as both permit. Such a member is passed over for a moment, like one that is gone.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use plimsoll_brain::{MemberId, Time};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::locate::{self, LocateAnswer};
use crate::upstream::in_flight::InFlight;
use crate::upstream::thread_context::ThreadContext;

/// The lifetime of an answer while no client returns from the member.
const PRESENT_LIFETIME: Duration = Duration::from_secs(1);
/// The minimum lifetime of an answer, whatever clients do: a client with two references returns without
/// having fled.
const MIN_LIFETIME: Duration = Duration::from_millis(5);
/// The time for which a member that is gone is not asked again.
const GONE_LIFETIME: Duration = Duration::from_millis(250);
/// The time for which a member that sends clients away is not asked again.
const SHEDDING_LIFETIME: Duration = Duration::from_millis(100);
/// The time limit of a connection attempt, or of a first answer.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(250);
/// The maximum time to an idle member's answer.
const IDLE_ANSWER_TIME: Duration = Duration::from_millis(5);
/// The maximum time for which a member that has answered before may be busy.
const MAX_BUSY_TIME: Duration = Duration::from_secs(1);
/// The time limit of an answer, while clients proceed.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// One core's knowledge of a group's members.
#[derive(Default)]
pub(crate) struct MemberLiveness(RefCell<BTreeMap<MemberId, Rc<LivenessState>>>);

#[derive(Default)]
struct LivenessState {
    /// The time and the result of the last query.
    last_result: Cell<Option<(Time, MemberPresence)>>,
    /// Whether a client has returned from the member since.
    doubtful: Cell<bool>,
    /// The begin of the query in progress, if there is one.
    query_started_at: Cell<Option<Time>>,
    /// Whether the member has accepted the connection.
    connected: Cell<bool>,
    /// The duration of the last query, and whether the member is there, until they are recorded with the
    /// member.
    unrecorded: Cell<Option<(Duration, bool)>>,
    changed: Notify,
}

/// The state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberPresence {
    /// The member is there and serves clients.
    Present,
    /// The member is there and sends clients away.
    Shedding,
    /// The member accepts connections and does not answer.
    Silent,
    /// The member is not there.
    Gone,
}

impl LivenessState {
    /// Returns the member's state, if it is known well enough.
    fn cached_presence(&self, now: Time) -> Option<MemberPresence> {
        let last_result = self.last_result.get();
        let previous_presence = last_result.map(|(_, presence)| presence);
        if let Some(query_started_at) = self.query_started_at.get() {
            let waited = now.since(query_started_at);
            return match (previous_presence, self.connected.get()) {
                // A silent member is treated as unknown: it may answer again.
                (Some(MemberPresence::Present | MemberPresence::Silent), true)
                    if waited < IDLE_ANSWER_TIME =>
                {
                    None
                }
                (Some(MemberPresence::Present), true) if waited < MAX_BUSY_TIME => {
                    Some(MemberPresence::Present)
                }
                (Some(MemberPresence::Present | MemberPresence::Silent), true) => {
                    Some(MemberPresence::Silent)
                }
                (_, connected) if waited >= CONNECT_TIMEOUT => {
                    Some(if connected { MemberPresence::Silent } else { MemberPresence::Gone })
                }
                _ => None,
            };
        }
        let (checked_at, presence) = last_result?;
        let lifetime = match (presence, self.doubtful.get()) {
            (MemberPresence::Present, false) => PRESENT_LIFETIME,
            (MemberPresence::Present, true) => MIN_LIFETIME,
            (MemberPresence::Shedding, _) => SHEDDING_LIFETIME,
            (MemberPresence::Silent | MemberPresence::Gone, _) => GONE_LIFETIME,
        };
        (now.since(checked_at) < lifetime).then_some(presence)
    }

    /// Queries the member.
    async fn query(self: Rc<Self>, core: Rc<ThreadContext>, address: SocketAddr, key: Vec<u8>) {
        let started_at = core.now();
        let presence = match core.within(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Some(Ok(stream)) => {
                self.connected.set(true);
                self.changed.notify_waiters();
                // The socket should not linger.
                let _ = stream.set_zero_linger();
                match core
                    .within(QUERY_TIMEOUT, locate::ask(stream, &locate::non_existent_request(&key)))
                    .await
                {
                    Some(LocateAnswer::Here) => MemberPresence::Present,
                    Some(LocateAnswer::ForwardsAway) => MemberPresence::Shedding,
                    Some(LocateAnswer::NotHere(_)) => MemberPresence::Gone,
                    None => MemberPresence::Silent,
                }
            }
            Some(Err(_)) | None => MemberPresence::Gone,
        };
        let now = core.tick();
        self.last_result.set(Some((now, presence)));
        self.doubtful.set(false);
        self.query_started_at.set(None);
        if presence != MemberPresence::Silent {
            self.unrecorded.set(Some((now.since(started_at), presence != MemberPresence::Gone)));
        }
        self.changed.notify_waiters();
    }
}

impl MemberLiveness {
    /// Records that a client returned from this member, which may be a sign of a problem.
    pub(super) fn mark_doubtful(&self, member: MemberId) {
        if let Some(state) = self.0.borrow().get(&member) {
            state.doubtful.set(true);
        }
    }

    /// Returns the state of the member of the request in flight: whether it is there, and serves the object
    /// `key`.
    pub(super) async fn verify(
        &self,
        core: &Rc<ThreadContext>,
        in_flight: &InFlight,
        key: &[u8],
    ) -> MemberPresence {
        let state = Rc::clone(self.0.borrow_mut().entry(in_flight.member()).or_default());
        loop {
            let now = core.now();
            let presence = state.cached_presence(now);
            if let Some((elapsed, answered)) = state.unrecorded.take() {
                in_flight.asked(elapsed, answered, now);
            }
            if let Some(presence) = presence {
                return presence;
            }
            if state.query_started_at.get().is_none() {
                state.query_started_at.set(Some(now));
                state.connected.set(false);
                let query =
                    Rc::clone(&state).query(Rc::clone(core), in_flight.upstream.address.get(), key.to_vec());
                tokio::task::spawn_local(query);
            }
            // The presumed state may have changed during the wait.
            let _ = core.within(IDLE_ANSWER_TIME, state.changed.notified()).await;
            core.tick();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    /// Returns a member with this state, which is queried again at 0 and has accepted the connection.
    fn queried_state(presence: MemberPresence) -> LivenessState {
        let state = LivenessState::default();
        state.last_result.set(Some((Time(0), presence)));
        state.query_started_at.set(Some(Time(0)));
        state.connected.set(true);
        state
    }

    #[test]
    fn who_was_silent_may_speak_again_when_asked_again() {
        let state = queried_state(MemberPresence::Silent);
        assert_eq!(state.cached_presence(Time(0)), None, "it has taken a connection: that says nothing yet");
        assert_eq!(state.cached_presence(Time(0) + IDLE_ANSWER_TIME - MILLI), None);
        // Clients do not wait any longer for a member that may hang.
        assert_eq!(state.cached_presence(Time(0) + IDLE_ANSWER_TIME), Some(MemberPresence::Silent));
        // The member has answered.
        state.last_result.set(Some((Time(0) + MILLI, MemberPresence::Present)));
        state.query_started_at.set(None);
        assert_eq!(state.cached_presence(Time(0) + 2 * MILLI), Some(MemberPresence::Present));
    }

    #[test]
    fn who_was_there_may_be_busy() {
        let state = queried_state(MemberPresence::Present);
        for (waited, expected) in [
            (IDLE_ANSWER_TIME - MILLI, None),
            (IDLE_ANSWER_TIME, Some(MemberPresence::Present)),
            (MAX_BUSY_TIME - MILLI, Some(MemberPresence::Present)),
            (MAX_BUSY_TIME, Some(MemberPresence::Silent)),
        ] {
            assert_eq!(state.cached_presence(Time(0) + waited), expected, "{waited:?}");
        }
    }
}
