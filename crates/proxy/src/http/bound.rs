//! Client connections that are bound to a member: the choice for the first request applies to the later ones.
//!
//! A bound request goes to its member without a choice by the strategy. The session is bound anew when the
//! member fails it, or is drained, ejected, down or full. It is also bound anew when it is due to leave a
//! member under alert. That happens between two requests, where no request of the client is in flight.

use std::rc::Rc;

use plimsoll_brain::{MemberId, Time};

use super::{Asked, Session, Stream};
use crate::account::Choice;
use crate::admit;
use crate::pool::{Admission, Pool, View};
use crate::trip::Trip;
use crate::{Binding, Rebind};

/// The target of a redirect.
pub(super) struct Location(pub(super) Vec<u8>);

impl Location {
    /// Returns the same resource below another base URL; `None` if the request has no resource (`OPTIONS *`).
    pub(super) fn at(base: &str, asked: &Asked) -> Option<Self> {
        // The request line for the member: the part between its spaces.
        let target = asked.out.split(|byte| *byte == b' ').nth(1);
        let target = target.filter(|target| target.starts_with(b"/"))?;
        Some(Self([base.as_bytes(), target].concat()))
    }
}

impl<S: Stream> Session<S> {
    /// Replaces [`admit::at_once`](crate::admit::at_once) for a bound client connection; `Err` if the client
    /// is redirected to a member. Out of line, so that requests of other connections do not carry it.
    #[cold]
    #[inline(never)]
    pub(super) fn admit_bound(
        &mut self,
        pool: &Rc<Pool>,
        view: Rc<View>,
        asked: &mut Asked,
        tried: &[MemberId],
        now: Time,
    ) -> Result<Admission, Location> {
        if let Some(affinity) = &self.listener.settings().affinity {
            return Ok(self.admit_affine(affinity, pool, view, asked, tried, now));
        }
        // Every member is at its limit, this one included, and other requests came first.
        let Some(bond) = self.bond.clone().filter(|_| !pool.contended()) else {
            return Ok(Admission::Full);
        };
        let bond = &mut *bond.borrow_mut();
        bond.cookie = None;
        bond.how = Choice::Strategy;
        let mut trip = None;
        let binding = self.listener.settings().binding;
        if let Binding::OnDemand(rebind) = binding
            && view.alert
            && tried.is_empty()
        {
            // The client of a closed connection returns to a member that lacks load.
            let closes = rebind == Rebind::Close;
            let leaves = match (rebind, bond.is_bound()) {
                // The client may have been sent away by this balancer or by a member's side-car: it must not
                // return to the same member.
                (Rebind::Close | Rebind::Redirect | Rebind::Agent, false) => {
                    trip = admit::returning(&self.core, pool, &view, now);
                    None
                }
                (Rebind::Silent, false) => None,
                (Rebind::Agent, true) => bond.is_sent_away(&view, now),
                (_, true) => bond.leaves_with(&view, !closes, self.core.chance(), now),
            };
            match leaves {
                None => {}
                Some(_) if closes => {
                    asked.keep_alive = false;
                    self.stream.farewell();
                    bond.moved(None);
                }
                Some(luggage) => {
                    let ask = (asked.key, self.core.chance());
                    trip = bond
                        .elsewhere(pool, &view, ask, asked.work(), luggage, now)
                        .inspect(|there| bond.moved(Some(there)));
                }
            }
            // Clients of gRPC and of WebSockets do not follow redirects.
            let follows = self.stream.call().is_none() && !asked.upgrade;
            if let (Rebind::Redirect, true, Some(there)) = (rebind, bond.is_bound() && follows, &trip)
                && let Some(location) = location(there, &view, asked)
            {
                // A client that sends its request here all the same gets the new member.
                bond.hold(&self.listener, there);
                return Err(location);
            }
        }
        if trip.is_some() {
            bond.how = Choice::Moved;
        } else if !tried.iter().any(|member| bond.is_to(*member)) {
            trip = bond.own(pool, &view, now);
            if trip.is_some() {
                bond.how = Choice::Session;
            }
        }
        // The client came by a cookie before a reload, and is not to be bound.
        let free = binding == Binding::PerRequest && !bond.is_bound();
        let admission = match trip {
            Some(trip) => Admission::Trip(trip),
            // As in `admit::at_once`.
            None if pool.group.room.ranked() => Admission::Shed,
            None => {
                // An imbalance of sessions that are bound on demand is corrected once it is known.
                let stays = binding == Binding::PerSession && !free;
                let work = if stays { asked.work().binding() } else { asked.work() };
                pool.admit_by(view, asked.key, self.core.chance(), now, tried, work)
            }
        };
        if let Admission::Trip(trip) = &admission
            && !free
        {
            bond.hold(&self.listener, trip);
        }
        Ok(admission)
    }

    /// Records that a member has closed the connection of its response. Where the members' agents rebind
    /// sessions, this is how a member sends a session away: the next request is bound anew.
    #[cold]
    #[inline(never)]
    pub(super) fn closed_by(&self, member: MemberId) {
        let view = self.listener.view();
        if view.alert
            && self.listener.settings().binding == Binding::OnDemand(Rebind::Agent)
            && let Some(bond) = &self.bond
        {
            bond.borrow_mut().closed_by(member, &view);
        }
    }

    /// Binds the client, or its connection, to the member of a trip that it has waited for, if it is to be
    /// bound.
    #[cold]
    pub(super) fn hold(&mut self, asked: &Asked, trip: &Trip) {
        if let Some(affinity) = &self.listener.settings().affinity {
            self.settle(affinity, asked, trip);
        } else if let Some(bond) = &self.bond {
            let mut bond = bond.borrow_mut();
            if bond.is_bound() || self.listener.settings().binding != Binding::PerRequest {
                bond.hold(&self.listener, trip);
            }
        }
    }
}

/// Returns the same resource at the member's public address. `None` if the member has none, if the request
/// has no resource (`OPTIONS *`), or if a part of its body was already forwarded.
fn location(trip: &Trip, view: &View, asked: &Asked) -> Option<Location> {
    let published = &view.published;
    let name = &published.plan.members()[trip.place()].name;
    let public = published.settings.public.get(name).filter(|_| !asked.streamed)?;
    Location::at(public, asked)
}
