//! Which members are known to be there: nobody is sent to one that is not.
//!
//! Whoever relays notices that a member is gone and tries another. Whoever only says where the member is does not: the
//! client finds out, and what it does then depends on whose it is; some wait for a minute, some ask their users. So
//! before a client is sent to a member that has not been seen alive for a second, or from which a client came back
//! since, the member is asked whether it has the object and works for it ([`super::question`]). Each core asks for itself;
//! clients that come meanwhile wait for the same answer.
//!
//! A server that does one thing after another answers when its turn has come. One that has answered before, and takes
//! connections, is believed to be busy and not gone, and nobody waits for its answer for longer than an idle one needs. Only one
//! that keeps silent for longer is passed over, as long as others answer; that is no fault of it, for what hangs is found by
//! health checks.
//!
//! A member that sends its clients away would send these away, too: they would go round between it and this balancer as
//! fast as both can. It is passed over for a moment, like one that is not there.

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

/// For how long an answer is good while nobody comes back from the member.
const GOOD: Duration = Duration::from_secs(1);
/// For how long it is whatever clients do: one that has two references comes back without having fled.
const FRESH: Duration = Duration::from_millis(5);
/// How long a member that is not there is left alone.
const GONE: Duration = Duration::from_millis(250);
/// How long one that sends clients away is.
const SHEDS: Duration = Duration::from_millis(100);
/// How long a connection, or the first answer, may take.
const PATIENCE: Duration = Duration::from_millis(250);
/// How long an answer of one that is idle takes at most.
const BRIEF: Duration = Duration::from_millis(5);
/// How long one that has answered before may be busy.
const BUSY: Duration = Duration::from_secs(1);
/// How long an answer is waited for, while clients go on.
const LASTING: Duration = Duration::from_secs(5);

/// What one core knows of a group's members.
#[derive(Default)]
pub(crate) struct Proofs(RefCell<BTreeMap<MemberId, Rc<Proof>>>);

#[derive(Default)]
struct Proof {
    /// When the member was last found out about, and how it was.
    known: Cell<Option<(Time, Found)>>,
    /// Has a client come back from it since?
    doubted: Cell<bool>,
    /// Since when it is being asked, if it is.
    asking: Cell<Option<Time>>,
    /// Has it taken the connection?
    taken: Cell<bool>,
    /// How long the last answer took, and whether it is there, until that was put to its account.
    owed: Cell<Option<(Duration, bool)>>,
    changed: Notify,
}

/// How a member was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It is there, and works.
    There,
    /// It is there, and sends clients away.
    Sheds,
    /// It takes connections and says nothing.
    Silent,
    /// It is not there.
    Gone,
}

impl Proof {
    /// What is known of it, if that is enough.
    fn says(&self, now: Time) -> Option<Found> {
        let known = self.known.get();
        let before = known.map(|(_, found)| found);
        if let Some(since) = self.asking.get() {
            let waited = now.since(since);
            return match (before, self.taken.get()) {
                // One that was silent is asked as if nothing was known: it may speak again.
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

    /// Finds out.
    async fn ask(self: Rc<Self>, core: Rc<Core>, address: SocketAddr, key: Vec<u8>) {
        let begun = core.now();
        let found = match core.within(PATIENCE, TcpStream::connect(address)).await {
            Some(Ok(stream)) => {
                self.taken.set(true);
                self.changed.notify_waiters();
                // Nothing is to linger of it.
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
    /// A client came back from this member, which may mean something.
    pub(super) fn doubt(&self, member: MemberId) {
        if let Some(proof) = self.0.borrow().get(&member) {
            proof.doubted.set(true);
        }
    }

    /// Is the member of this trip there, and does it work for the object `key`?
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
            // What is waited for may have become what is believed meanwhile.
            let _ = core.within(BRIEF, proof.changed.notified()).await;
            core.tick();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    /// A member that was found so, and was asked again, at 0, which took the connection.
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
        // Clients do not wait any longer for one that may hang.
        assert_eq!(proof.says(Time(0) + BRIEF), Some(Found::Silent));
        // It has answered.
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
