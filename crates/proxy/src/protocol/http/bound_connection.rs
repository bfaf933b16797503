//! Client connections that are bound to a member: the choice for the first request applies to the later ones.
//!
//! A bound request goes to its member without a choice by the strategy. The session is bound anew when the
//! member fails it, or is drained, ejected, down or full. It is also bound anew when it is due to leave a
//! member under alert. That happens between two requests, where no request of the client is in flight.

use std::rc::Rc;

use plimsoll_brain::{MemberId, Time};

use super::{ByteStream, HttpSession, ParsedRequest};
use crate::upstream::admission;
use crate::upstream::in_flight::InFlight;
use crate::upstream::pool::{AdmissionOutcome, GroupPool, PlanView};
use crate::upstream::request_record::ChoiceReason;
use crate::{BindingMode, RebindMode};

/// The target of a redirect.
pub(super) struct RedirectLocation(pub(super) Vec<u8>);

impl RedirectLocation {
    /// Returns the same resource below another base URL; `None` if the request has no resource (`OPTIONS *`).
    pub(super) fn with_base(base: &str, asked: &ParsedRequest) -> Option<Self> {
        // The request line for the member: the part between its spaces.
        let target = asked.outgoing.split(|byte| *byte == b' ').nth(1);
        let target = target.filter(|target| target.starts_with(b"/"))?;
        Some(Self([base.as_bytes(), target].concat()))
    }
}

impl<S: ByteStream> HttpSession<S> {
    /// Replaces [`try_admit`](crate::upstream::admission::try_admit) for a bound client connection; `Err` if
    /// the client is redirected to a member. Out of line, so that requests of other connections do not carry
    /// it.
    #[cold]
    #[inline(never)]
    pub(super) fn admit_bound(
        &mut self,
        pool: &Rc<GroupPool>,
        view: Rc<PlanView>,
        asked: &mut ParsedRequest,
        tried: &[MemberId],
        now: Time,
    ) -> Result<AdmissionOutcome, RedirectLocation> {
        if let Some(affinity) = &self.listener.settings().affinity {
            return Ok(self.admit_sticky(affinity, pool, view, asked, tried, now));
        }
        // Every member is at its limit, this one included, and other requests came first.
        let Some(bond) = self.binding.clone().filter(|_| !pool.has_waiting()) else {
            return Ok(AdmissionOutcome::Full);
        };
        let bond = &mut *bond.borrow_mut();
        bond.cookie = None;
        bond.choice = ChoiceReason::Strategy;
        let mut trip = None;
        let binding = self.listener.settings().binding;
        if let BindingMode::OnDemand(rebind) = binding
            && view.alert
            && tried.is_empty()
        {
            // The client of a closed connection returns to a member that lacks load.
            let closes = rebind == RebindMode::Close;
            let leaves = match (rebind, bond.is_bound()) {
                // The client may have been sent away by this balancer or by a member's side-car: it must not
                // return to the same member.
                (RebindMode::Close | RebindMode::Redirect | RebindMode::Agent, false) => {
                    trip = admission::admit_returning(&self.core, pool, &view, now);
                    None
                }
                (RebindMode::Silent, false) => None,
                (RebindMode::Agent, true) => bond.moved_by_member(&view, now),
                (_, true) => bond.begin_move(&view, !closes, self.core.random_bits(), now),
            };
            match leaves {
                None => {}
                Some(_) if closes => {
                    asked.keep_alive = false;
                    self.stream.close_connection();
                    bond.record_move(None);
                }
                Some(luggage) => {
                    let ask = (asked.key, self.core.random_bits());
                    trip = bond
                        .admit_elsewhere(pool, &view, ask, asked.work(), luggage, now)
                        .inspect(|there| bond.record_move(Some(there)));
                }
            }
            // Clients of gRPC and of WebSockets do not follow redirects.
            let follows = self.stream.call().is_none() && !asked.upgrade;
            if let (RebindMode::Redirect, true, Some(there)) = (rebind, bond.is_bound() && follows, &trip)
                && let Some(location) = location(there, &view, asked)
            {
                // A client that sends its request here all the same gets the new member.
                bond.hold(&self.listener, there);
                return Err(location);
            }
        }
        if trip.is_some() {
            bond.choice = ChoiceReason::Moved;
        } else if !tried.iter().any(|member| bond.is_bound_to(*member)) {
            trip = bond.admit_to_own(pool, &view, now);
            if trip.is_some() {
                bond.choice = ChoiceReason::Session;
            }
        }
        // The client came by a cookie before a reload, and is not to be bound.
        let free = binding == BindingMode::PerRequest && !bond.is_bound();
        let admission = match trip {
            Some(trip) => AdmissionOutcome::Admitted(trip),
            // As in `admit::at_once`.
            None if pool.group.wait_queue.has_urgent() => AdmissionOutcome::Overloaded,
            None => {
                // An imbalance of sessions that are bound on demand is corrected once it is known.
                let stays = binding == BindingMode::PerSession && !free;
                let work = if stays { asked.work().binding() } else { asked.work() };
                pool.admit_in_view(view, asked.key, self.core.random_bits(), now, tried, work)
            }
        };
        if let AdmissionOutcome::Admitted(trip) = &admission
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
    pub(super) fn record_member_close(&self, member: MemberId) {
        let view = self.listener.view();
        if view.alert
            && self.listener.settings().binding == BindingMode::OnDemand(RebindMode::Agent)
            && let Some(bond) = &self.binding
        {
            bond.borrow_mut().record_closed_by(member, &view);
        }
    }

    /// Binds the client, or its connection, to the member of the request in flight that it has waited for, if
    /// it is to be bound.
    #[cold]
    pub(super) fn bind_after_wait(&mut self, asked: &ParsedRequest, trip: &InFlight) {
        if let Some(affinity) = &self.listener.settings().affinity {
            self.bind_cookie_after_wait(affinity, asked, trip);
        } else if let Some(bond) = &self.binding {
            let mut bond = bond.borrow_mut();
            if bond.is_bound() || self.listener.settings().binding != BindingMode::PerRequest {
                bond.hold(&self.listener, trip);
            }
        }
    }
}

/// Returns the same resource at the member's public address. `None` if the member has none, if the request
/// has no resource (`OPTIONS *`), or if a part of its body was already forwarded.
fn location(trip: &InFlight, view: &PlanView, asked: &ParsedRequest) -> Option<RedirectLocation> {
    let published = &view.published;
    let name = &published.plan.members()[trip.place()].name;
    let public = published.settings.public.get(name).filter(|_| !asked.streamed)?;
    RedirectLocation::with_base(public, asked)
}
