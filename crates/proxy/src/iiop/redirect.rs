//! Redirects: clients get a member's reference and connect to it directly (LOCATION_FORWARD).
//!
//! From then on the balancer does not see them until they return: because the member shed them, because it is
//! gone, or because they have another reference to the group. Therefore:
//!
//! - A member's presence is verified first ([`super::proof`]).
//! - A client that returns is not redirected to the same member if there is another.
//! - While members are under alert, a client that returns at once is delayed: an ORB follows redirects as
//!   fast as it gets them, and would otherwise circle thousands of times per second.
//! - A client is delayed as well if members send clients away on their own, and all of them do.

use std::rc::Rc;
use std::time::Duration;

use plimsoll_brain::{MemberId, Time};

use super::call::Call;
use super::pace::Pace;
use super::proof::Found;
use crate::Binding;
use crate::admit::{self, admit};
use crate::bond::Bond;
use crate::pool::{Pool, Work};
use crate::reason::Reason;
use crate::trip::Trip;
use crate::wheel::Timer;

/// A client that returns after a longer time has not fled from its member.
const FLED: Duration = Duration::from_secs(10);

/// The delay of a client while all members send theirs away, and the interval of checking the members
/// meanwhile.
const HELD: Duration = Duration::from_millis(250);
const LOOK: Duration = Duration::from_millis(100);

/// A connection's memory of its client's redirects.
#[derive(Default)]
pub(super) struct Bound {
    bond: Bond,
    /// Counts the client with its member while its connection shows that it is there.
    held: Option<Trip>,
    last: Option<(MemberId, Time)>,
    pace: Pace,
}

/// Answers with a member's reference.
pub(super) async fn redirect(call: Call, bound: &mut Bound, timer: &Timer) {
    let session = Rc::clone(&call.session);
    let core = &session.core;
    let pool = session.listener.pool();
    let mut tried: Vec<MemberId> = Vec::new();
    // While the client asks, it is at no member.
    bound.held = None;
    pool.session();
    let reads_key = pool.view().published.plan.strategy().reads_key;
    let mut left = None;
    if let Some((member, since)) = bound.last {
        pool.iiop.proofs.doubt(member);
        // A key binds the client to that member, if it is there.
        left = Some(member).filter(|_| !reads_key && call.begun.since(since) < FLED);
        tried.extend(left);
    }
    if pool.view().alert {
        let held = bound.hold(&pool, &call);
        if !held.is_zero() {
            core.wheel.sleep(held).await;
        }
    }
    let key = if reads_key { crate::key::of_client(session.peer.client.ip()) } else { 0 };
    let deadline = core.tick() + pool.view().published.settings.queue_timeout;
    let on_demand = matches!(session.listener.settings().binding, Binding::OnDemand(_));
    let mut last = Reason::NoMember;
    let mut sheds = false;
    let (mut silent, mut busy) = (false, false);
    loop {
        let view = pool.view();
        let chosen = match on_demand && tried.len() == usize::from(left.is_some()) {
            true => admit::returning(core, &pool, &view, core.now())
                .filter(|trip| !tried.contains(&trip.member())),
            false => None,
        };
        let admitted = match chosen {
            Some(trip) => Ok(trip),
            None => admit(core, &pool, timer, key, &tried, Work::Session, deadline).await,
        };
        let mut trip = match admitted {
            Ok(trip) => trip,
            Err(Reason::NoMember) => match left.take() {
                // There is no other member: this one may be there all the same.
                Some(member) => {
                    tried.retain(|other| *other != member);
                    continue;
                }
                // All members that are there send their clients away.
                None if std::mem::take(&mut sheds) && !session.outbox.closed() => {
                    tried.clear();
                    core.wheel.sleep(LOOK).await;
                    core.tick();
                    continue;
                }
                // None answers: all may be busy.
                None if std::mem::take(&mut silent) => {
                    busy = true;
                    tried.clear();
                    continue;
                }
                None => return call.refuse(last),
            },
            Err(reason) => return call.refuse(reason),
        };
        let chosen = Rc::clone(trip.view());
        let iiop = chosen.published.settings.iiop.as_ref();
        let Some(object) = iiop.and_then(|iiop| iiop.objects.get(trip.name())) else {
            tried.push(trip.member());
            continue;
        };
        match pool.iiop.proofs.prove(core, &trip, object.key()).await {
            Found::There => {}
            // A client that has waited is redirected there all the same: the member will decide.
            Found::Sheds if core.now() >= call.begun + HELD => {}
            Found::Silent if busy => {}
            found => {
                last = if found == Found::Sheds { Reason::Shed } else { Reason::ConnectFailed };
                silent |= found == Found::Silent;
                sheds |= found == Found::Sheds;
                tried.push(trip.member());
                left = left.filter(|member| *member != trip.member());
                continue;
            }
        }
        let now = core.now();
        // Otherwise the client may have another reference, or its member may be gone.
        if on_demand && view.alert && bound.last.is_some_and(|(member, _)| member != trip.member()) {
            bound.bond.moved(Some(&trip));
        }
        bound.bond.hold(&session.listener, &trip);
        bound.last = Some((trip.member(), now));
        trip.sent(now);
        trip.settle();
        bound.held = Some(trip);
        return call.forward(object.ior());
    }
}

impl Bound {
    /// Returns the delay of a client that returns while members are under alert: by its connection, and for a
    /// new connection also by its address.
    fn hold(&mut self, pool: &Pool, call: &Call) -> Duration {
        let own = self.pace.hold(call.begun, CONNECTION, 1);
        if self.last.is_some() {
            return own;
        }
        let mut paces = pool.iiop.paces.borrow_mut();
        let address = call.session.peer.client.ip();
        if !paces.contains_key(&address) {
            // Full buckets hold no information. They are not removed each time, but whenever the number of
            // entries has doubled.
            if paces.len() >= PACES && paces.len().is_power_of_two() {
                paces.retain(|_, pace| !pace.full(call.begun));
            }
            if paces.len() >= MOST_PACES {
                return own;
            }
        }
        let pace = paces.entry(address).or_default();
        let cores = pool.group.tallies.len() as u32;
        own.max(pace.hold(call.begun, ADDRESS, cores))
    }
}

/// The number of addresses from which full buckets are removed, and the maximum.
const PACES: usize = 1024;
const MOST_PACES: usize = 65_536;

/// The burst of redirects for a connection, and for all from one address; further ones come at 40 per second.
const CONNECTION: u32 = 4;
const ADDRESS: u32 = 64;
