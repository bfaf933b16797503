//! Verification of members: no client is redirected to a member that is gone.
//!
//! A relay detects a member that is gone and tries another. With a redirect, the client detects it, and its
//! reaction depends on the ORB: some wait for a minute, some ask their users. So the balancer asks a member
//! whether it has the object and serves it ([`super::question`]) before it redirects a client there. It does
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

use super::question::{self, Answer};
use crate::core::Core;
use crate::trip::Trip;

/// The lifetime of an answer while no client returns from the member.
const GOOD: Duration = Duration::from_secs(1);
/// The minimum lifetime of an answer, whatever clients do: a client with two references returns without
/// having fled.
const FRESH: Duration = Duration::from_millis(5);
/// The time for which a member that is gone is not asked again.
const GONE: Duration = Duration::from_millis(250);
/// The time for which a member that sends clients away is not asked again.
const SHEDS: Duration = Duration::from_millis(100);
/// The time limit of a connection attempt, or of a first answer.
const PATIENCE: Duration = Duration::from_millis(250);
/// The maximum time to an idle member's answer.
const BRIEF: Duration = Duration::from_millis(5);
/// The maximum time for which a member that has answered before may be busy.
const BUSY: Duration = Duration::from_secs(1);
/// The time limit of an answer, while clients proceed.
const LASTING: Duration = Duration::from_secs(5);

/// One core's knowledge of a group's members.
#[derive(Default)]
pub(crate) struct Proofs(RefCell<BTreeMap<MemberId, Rc<Proof>>>);

#[derive(Default)]
struct Proof {
    /// The time and the result of the last query.
    known: Cell<Option<(Time, Found)>>,
    /// Whether a client has returned from the member since.
    doubted: Cell<bool>,
    /// The begin of the query in progress, if there is one.
    asking: Cell<Option<Time>>,
    /// Whether the member has accepted the connection.
    taken: Cell<bool>,
    /// The duration of the last query, and whether the member is there, until they are recorded with the
    /// member.
    owed: Cell<Option<(Duration, bool)>>,
    changed: Notify,
}

/// The state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The member is there and serves clients.
    There,
    /// The member is there and sends clients away.
    Sheds,
    /// The member accepts connections and does not answer.
    Silent,
    /// The member is not there.
    Gone,
}

impl Proof {
    /// Returns the member's state, if it is known well enough.
    fn says(&self, now: Time) -> Option<Found> {
        let known = self.known.get();
        let before = known.map(|(_, found)| found);
        if let Some(since) = self.asking.get() {
            let waited = now.since(since);
            return match (before, self.taken.get()) {
                // A silent member is treated as unknown: it may answer again.
                (Some(Found::There | Found::Silent), true) if waited < BRIEF => None,
                (Some(Found::There), true) if waited < BUSY => Some(Found::There),
                (Some(Found::There | Found::Silent), true) => Some(Found::Silent),
                (_, taken) if waited >= PATIENCE => Some(if taken { Found::Silent } else { Found::Gone }),
                _ => None,
            };
        }
        let (at, found) = known?;
        let lasts = match (found, self.doubted.get()) {
            (Found::There, false) => GOOD,
            (Found::There, true) => FRESH,
            (Found::Sheds, _) => SHEDS,
            (Found::Silent | Found::Gone, _) => GONE,
        };
        (now.since(at) < lasts).then_some(found)
    }

    /// Queries the member.
    async fn ask(self: Rc<Self>, core: Rc<Core>, address: SocketAddr, key: Vec<u8>) {
        let begun = core.now();
        let found = match core.within(PATIENCE, TcpStream::connect(address)).await {
            Some(Ok(stream)) => {
                self.taken.set(true);
                self.changed.notify_waiters();
                // The socket should not linger.
                let _ = stream.set_zero_linger();
                match core.within(LASTING, question::ask(stream, &question::exists(&key))).await {
                    Some(Answer::Here) => Found::There,
                    Some(Answer::Elsewhere) => Found::Sheds,
                    Some(Answer::Not(_)) => Found::Gone,
                    None => Found::Silent,
                }
            }
            Some(Err(_)) | None => Found::Gone,
        };
        let now = core.tick();
        self.known.set(Some((now, found)));
        self.doubted.set(false);
        self.asking.set(None);
        if found != Found::Silent {
            self.owed.set(Some((now.since(begun), found != Found::Gone)));
        }
        self.changed.notify_waiters();
    }
}

impl Proofs {
    /// Records that a client returned from this member, which may be a sign of a problem.
    pub(super) fn doubt(&self, member: MemberId) {
        if let Some(proof) = self.0.borrow().get(&member) {
            proof.doubted.set(true);
        }
    }

    /// Returns the state of a trip's member: whether it is there, and serves the object `key`.
    pub(super) async fn prove(&self, core: &Rc<Core>, trip: &Trip, key: &[u8]) -> Found {
        let proof = Rc::clone(self.0.borrow_mut().entry(trip.member()).or_default());
        loop {
            let now = core.now();
            let says = proof.says(now);
            if let Some((took, there)) = proof.owed.take() {
                trip.asked(took, there, now);
            }
            if let Some(says) = says {
                return says;
            }
            if proof.asking.get().is_none() {
                proof.asking.set(Some(now));
                proof.taken.set(false);
                let asked = Rc::clone(&proof).ask(Rc::clone(core), trip.upstream.address.get(), key.to_vec());
                tokio::task::spawn_local(asked);
            }
            // The presumed state may have changed during the wait.
            let _ = core.within(BRIEF, proof.changed.notified()).await;
            core.tick();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    /// Returns a member with this state, which is queried again at 0 and has accepted the connection.
    fn asked(found: Found) -> Proof {
        let proof = Proof::default();
        proof.known.set(Some((Time(0), found)));
        proof.asking.set(Some(Time(0)));
        proof.taken.set(true);
        proof
    }

    #[test]
    fn who_was_silent_may_speak_again_when_asked_again() {
        let proof = asked(Found::Silent);
        assert_eq!(proof.says(Time(0)), None, "it has taken a connection: that says nothing yet");
        assert_eq!(proof.says(Time(0) + BRIEF - MILLI), None);
        // Clients do not wait any longer for a member that may hang.
        assert_eq!(proof.says(Time(0) + BRIEF), Some(Found::Silent));
        // The member has answered.
        proof.known.set(Some((Time(0) + MILLI, Found::There)));
        proof.asking.set(None);
        assert_eq!(proof.says(Time(0) + 2 * MILLI), Some(Found::There));
    }

    #[test]
    fn who_was_there_may_be_busy() {
        let proof = asked(Found::There);
        for (waited, found) in [
            (BRIEF - MILLI, None),
            (BRIEF, Some(Found::There)),
            (BUSY - MILLI, Some(Found::There)),
            (BUSY, Some(Found::Silent)),
        ] {
            assert_eq!(proof.says(Time(0) + waited), found, "{waited:?}");
        }
    }
}
