//! Which members are known to be there: nobody is sent to one that is not.
//!
//! Whoever relays notices that a member is gone and tries another. Whoever only says where the member is does not: the
//! client finds out, and what it does then depends on whose it is; some wait for a minute, some ask their users. So
//! before a client is sent to a member that has not been seen alive for a second, or from which a client came back
//! since, the member is asked whether it has the object and works for it ([`super::question`]). Each core asks for itself;
//! clients that come meanwhile wait for the same answer.
//!
//! A member that sends its clients away would send these away, too: they would go round between it and this balancer as
//! fast as both can. It is passed over for a moment, like one that is not there.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
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
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_millis(250);

/// What one core knows of a group's members.
#[derive(Default)]
pub(crate) struct Proofs(RefCell<BTreeMap<MemberId, Rc<Proof>>>);

#[derive(Default)]
struct Proof {
    /// When the member was last asked, and what came of it.
    known: Cell<Option<(Time, Found)>>,
    /// Has a client come back from it since?
    doubted: Cell<bool>,
    asking: Cell<bool>,
    answered: Notify,
}

/// How a member was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It is there, and works.
    There,
    /// It is there, and sends clients away.
    Sheds,
    /// It is not there.
    Gone,
}

impl Proof {
    fn says(&self, now: Time) -> Option<Found> {
        let (at, found) = self.known.get()?;
        let lasts = match (found, self.doubted.get()) {
            (Found::There, false) => GOOD,
            (Found::There, true) => FRESH,
            (Found::Sheds, _) => SHEDS,
            (Found::Gone, _) => GONE,
        };
        (now.since(at) < lasts).then_some(found)
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
    pub(super) async fn prove(&self, core: &Core, trip: &Trip, key: &[u8]) -> Found {
        let proof = Rc::clone(self.0.borrow_mut().entry(trip.member()).or_default());
        loop {
            if let Some(says) = proof.says(core.now()) {
                return says;
            }
            if !proof.asking.get() {
                break;
            }
            proof.answered.notified().await;
        }
        let asking = Asking::begin(&proof);
        let begun = core.tick();
        let asked = core.within(PATIENCE, ask(trip, key)).await;
        let now = core.tick();
        let found = asked.unwrap_or(Found::Gone);
        proof.known.set(Some((now, found)));
        proof.doubted.set(false);
        drop(asking);
        trip.asked(now.since(begun), found != Found::Gone, now);
        found
    }
}

/// While a member is asked; those who wait are told when it ends, however it does.
struct Asking<'a>(&'a Proof);

impl<'a> Asking<'a> {
    fn begin(proof: &'a Proof) -> Self {
        proof.asking.set(true);
        Self(proof)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.asking.set(false);
        self.0.answered.notify_waiters();
    }
}

async fn ask(trip: &Trip, key: &[u8]) -> Found {
    let Ok(stream) = TcpStream::connect(trip.upstream.address.get()).await else { return Found::Gone };
    // Nothing is to linger of it.
    let _ = stream.set_zero_linger();
    match question::ask(stream, &question::exists(key)).await {
        Answer::Here => Found::There,
        Answer::Elsewhere => Found::Sheds,
        Answer::Not(_) => Found::Gone,
    }
}
