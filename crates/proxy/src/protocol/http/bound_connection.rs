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
    pub(super) fn with_base(base: &str, request: &ParsedRequest) -> Option<Self> {
        // The request line for the member: the part between its spaces.
        let target = request.outgoing.split(|byte| *byte == b' ').nth(1);
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
        request: &mut ParsedRequest,
        tried: &[MemberId],
        now: Time,
    ) -> Result<AdmissionOutcome, RedirectLocation> {
        if let Some(affinity) = &self.listener.settings().affinity {
            return Ok(self.admit_sticky(affinity, pool, view, request, tried, now));
        }
        // Every member is at its limit, this one included, and other requests came first.
        let Some(session_binding) = self.binding.clone().filter(|_| !pool.has_waiting()) else {
            return Ok(AdmissionOutcome::Full);
        };
        let session_binding = &mut *session_binding.borrow_mut();
        session_binding.cookie = None;
        session_binding.choice = ChoiceReason::Strategy;
        let mut in_flight = None;
        let binding_mode = self.listener.settings().binding;
        if let BindingMode::OnDemand(rebind) = binding_mode
            && view.alert
            && tried.is_empty()
        {
            // The client of a closed connection returns to a member that lacks load.
            let should_close = rebind == RebindMode::Close;
            let pending_move = match (rebind, session_binding.is_bound()) {
                // The client may have been sent away by this balancer or by a member's side-car: it must not
                // return to the same member.
                (RebindMode::Close | RebindMode::Redirect | RebindMode::Agent, false) => {
                    in_flight = admission::admit_returning(&self.core, pool, &view, now);
                    None
                }
                (RebindMode::Silent, false) => None,
                (RebindMode::Agent, true) => session_binding.moved_by_member(&view, now),
                (_, true) => session_binding.begin_move(&view, !should_close, self.core.random_bits(), now),
            };
            match pending_move {
                None => {}
                Some(_) if should_close => {
                    request.keep_alive = false;
                    self.stream.close_connection();
                    session_binding.record_move(None);
                }
                Some(moved_session) => {
                    let selection_key = (request.key, self.core.random_bits());
                    in_flight = session_binding
                        .admit_elsewhere(pool, &view, selection_key, request.work(), moved_session, now)
                        .inspect(|moved| session_binding.record_move(Some(moved)));
                }
            }
            // Clients of gRPC and of WebSockets do not follow redirects.
            let can_redirect = self.stream.call().is_none() && !request.upgrade;
            if let (RebindMode::Redirect, true, Some(moved)) =
                (rebind, session_binding.is_bound() && can_redirect, &in_flight)
                && let Some(location) = redirect_location(moved, &view, request)
            {
                // A client that sends its request here all the same gets the new member.
                session_binding.hold(&self.listener, moved);
                return Err(location);
            }
        }
        if in_flight.is_some() {
            session_binding.choice = ChoiceReason::Moved;
        } else if !tried.iter().any(|member| session_binding.is_bound_to(*member)) {
            in_flight = session_binding.admit_to_own(pool, &view, now);
            if in_flight.is_some() {
                session_binding.choice = ChoiceReason::Session;
            }
        }
        // The client came by a cookie before a reload, and is not to be bound.
        let per_request = binding_mode == BindingMode::PerRequest && !session_binding.is_bound();
        let admission = match in_flight {
            Some(in_flight) => AdmissionOutcome::Admitted(in_flight),
            // As in `admit::at_once`.
            None if pool.group.wait_queue.has_urgent() => AdmissionOutcome::Overloaded,
            None => {
                // An imbalance of sessions that are bound on demand is corrected once it is known.
                let binds = binding_mode == BindingMode::PerSession && !per_request;
                let work = if binds { request.work().binding() } else { request.work() };
                pool.admit_in_view(view, request.key, self.core.random_bits(), now, tried, work)
            }
        };
        if let AdmissionOutcome::Admitted(in_flight) = &admission
            && !per_request
        {
            session_binding.hold(&self.listener, in_flight);
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
            && let Some(binding) = &self.binding
        {
            binding.borrow_mut().record_closed_by(member, &view);
        }
    }

    /// Binds the client, or its connection, to the member of the request in flight that it has waited for, if
    /// it is to be bound.
    #[cold]
    pub(super) fn bind_after_wait(&mut self, request: &ParsedRequest, in_flight: &InFlight) {
        if let Some(affinity) = &self.listener.settings().affinity {
            self.bind_cookie_after_wait(affinity, request, in_flight);
        } else if let Some(binding) = &self.binding {
            let mut binding = binding.borrow_mut();
            if binding.is_bound() || self.listener.settings().binding != BindingMode::PerRequest {
                binding.hold(&self.listener, in_flight);
            }
        }
    }
}

/// Returns the same resource at the member's public address. `None` if the member has none, if the request
/// has no resource (`OPTIONS *`), or if a part of its body was already forwarded.
fn redirect_location(
    in_flight: &InFlight,
    view: &PlanView,
    request: &ParsedRequest,
) -> Option<RedirectLocation> {
    let published = &view.published;
    let member_name = &published.plan.members()[in_flight.place()].name;
    let public_url = published.settings.public.get(member_name).filter(|_| !request.streamed)?;
    RedirectLocation::with_base(public_url, request)
}
