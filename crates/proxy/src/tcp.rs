//! TCP byte streams: a choice per connection.
//!
//! If a connection to a member cannot be made, other members are tried. Nothing was sent yet, so that is
//! always safe. From then on the session belongs to its member, whatever the plan; a member that is drained,
//! ejected or down keeps its sessions.
//!
//! Where clients are bound on demand and the listener allows it, an idle session leaves a member under alert:
//! both connections are closed, and the client reconnects.
//!
//! A session without a member is reset and not closed regularly: an end would look like a response.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use plimsoll_brain::{MemberId, Time};

use crate::admit::{self, admit};
use crate::blame::Blame;
use crate::bond::Bond;
use crate::connect::{Peer, link};
use crate::core::Core;
use crate::link::Link;
use crate::listener::Listener;
use crate::metered::{Heed, Metered};
use crate::pool::{Pool, Work};
use crate::reason::Reason;
use crate::relay::{self, End, Quiet, Side};
use crate::stream::Stream;
use crate::trip::Trip;
use crate::wheel::Timer;
use crate::{Binding, Rebind};

/// Serves one client connection until it ends. `ahead` are bytes that were already read from it.
pub(crate) async fn serve<S: Stream>(
    core: Rc<Core>,
    listener: Rc<Listener>,
    mut client: S,
    peer: Peer,
    ahead: Vec<u8>,
) {
    let timer = poll_fn(|cx: &mut Context<'_>| Poll::Ready(core.wheel.timer(cx.waker()))).await;
    let pool = listener.pool();
    let begun = core.tick();
    let mut bond = Bond::default();
    let mut metered = Metered::default();
    let mut heed = Heed::default();
    if let Some(side_car) = &pool.group.side_car {
        let refuse = pool.view().published.settings.side_car.as_ref().is_some_and(|settings| settings.refuse);
        (metered, heed) = (Metered::begin(side_car, refuse, begun), Heed::begin(Some(side_car)));
        if !metered.refusal().is_empty() {
            pool.group.reject(core.index, Reason::Shed);
            client.abort();
            return;
        }
    }
    // On the heap: a session needs it only once, and it would enlarge the session for its whole life.
    let reached = Box::pin(reach(&core, &listener, &pool, &timer, &peer, begun)).await;
    let (mut trip, mut member) = match reached {
        Ok(reached) => reached,
        Err(reason) => {
            pool.group.reject(core.index, reason);
            pool.tally().latency.record(core.tick().since(begun));
            client.abort();
            return;
        }
    };
    bond.hold(&listener, &trip);
    trip.settle();
    let idle = listener.settings().timeouts.idle;
    let shed_idle = trip.settings().side_car.as_ref().and_then(|settings| settings.shed_idle);
    let mut leaves = |now| {
        leaves(&core, &listener, &mut bond, now) || (shed_idle.is_some() && heed.goes(|| core.chance()))
    };
    let quiet = Quiet {
        idle,
        leaves: look(&listener).or(shed_idle).map(|look| (look, &mut leaves as &mut dyn FnMut(Time) -> bool)),
    };
    let end = relay::copy(&core, &timer, quiet, (&mut client, &mut member), ahead, &trip.upstream).await;
    if end.left {
        bond.moved(None);
        relay::part(&core, &timer, (&mut client, &mut member)).await;
    }
    if end.reset {
        client.abort();
        member.abort();
    }
    let now = core.tick();
    pool.tally().latency.record(now.since(begun));
    metered.end(end.broken != Some(Side::Member), now);
    judge(trip, end, now);
}

/// Returns a place for a session while a member is under alert, where clients are bound on demand: its
/// previous connection may have been closed to be bound anew.
fn returning(core: &Core, listener: &Listener, pool: &Pool, now: Time) -> Option<Trip> {
    match listener.settings().binding {
        Binding::OnDemand(_) => admit::returning(core, pool, &pool.view(), now),
        Binding::PerRequest | Binding::PerSession => None,
    }
}

/// Returns the idle time after which a connection may be closed to be bound anew; `None` for never.
fn look(listener: &Listener) -> Option<Duration> {
    let settings = listener.settings();
    match settings.binding {
        Binding::OnDemand(Rebind::Silent) => Some(settings.move_idle).filter(|idle| !idle.is_zero()),
        _ => None,
    }
}

/// Returns `true` if this idle session is due to leave its member.
fn leaves(core: &Core, listener: &Listener, bond: &mut Bond, now: Time) -> bool {
    let view = listener.pool().view();
    view.alert && look(listener).is_some() && bond.leaves(&view, core.chance(), now)
}

/// Returns a connection to a member that accepts this session.
async fn reach(
    core: &Core,
    listener: &Listener,
    pool: &Pool,
    timer: &Timer,
    peer: &Peer,
    begun: Time,
) -> Result<(Trip, Link), Reason> {
    pool.deposit(begun);
    pool.session();
    let reads_key = pool.view().published.plan.strategy().reads_key;
    let key = if reads_key { crate::key::of_client(peer.client.ip()) } else { 0 };
    let never = Time(u64::MAX);
    let mut tried: Vec<MemberId> = Vec::new();
    let mut last = Reason::NoMember;
    loop {
        let chosen = if tried.is_empty() { returning(core, listener, pool, begun) } else { None };
        let trip = match chosen {
            Some(trip) => Ok(trip),
            None => admit(core, pool, timer, key, &tried, Work::Session, never).await,
        };
        let trip = match trip {
            Ok(trip) => trip,
            Err(Reason::NoMember) => return Err(last),
            Err(reason) => return Err(reason),
        };
        match link(core, &trip, timer, never, peer).await {
            Ok(stream) => return Ok((trip, stream)),
            // Further attempts would only blame the other members, too.
            Err(Reason::Exhausted) => {
                trip.abandoned();
                return Err(Reason::Exhausted);
            }
            Err(reason) => last = reason,
        }
        let now = core.tick();
        let attempts = trip.settings().retry.attempts as usize;
        let member = trip.member();
        trip.failed(Blame::Reason(last), now);
        if tried.len() >= attempts || !pool.withdraw(now) {
            return Err(last);
        }
        tried.push(member);
    }
}

/// Records a session's finding about its member: one that breaks off has failed; one that sends nothing may
/// have had nothing to send.
fn judge(trip: Trip, end: End, now: Time) {
    match end.broken {
        Some(Side::Member) => trip.failed(Blame::Broken, now),
        _ if end.heard => trip.succeeded(now),
        _ => trip.over(now),
    }
}
