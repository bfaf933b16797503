//! Session affinity: clients return to their member by a signed cookie that identifies no person
//! ([`plimsoll_wire::affinity`]).
//!
//! A request with a valid cookie goes to its member without a choice by the strategy. The session is bound
//! anew, and the response sets a new cookie, in these cases:
//!
//! - The member is out of use (drained, down, ejected) or at its limit, fails the request, or reports that it
//!   has no room.
//! - The session is due to leave a member under alert.
//! - The member has as much work as it can process
//!   ([`Plan::is_at_limit`](plimsoll_brain::Plan::is_at_limit)), so that the load of a member is bounded
//!   despite returning clients.
//!
//! The last two happen only as often as sessions may move. The cookie holds the session's move state. The
//! session's random bits derive from its number, so concurrent requests of one client get the same decision.
//!
//! If the group is configured so, a drained member keeps its sessions until their cookies expire
//! ([`PlanView::draining_at`]).
//!
//! All of this is out of line: requests of other listeners carry nothing of it.

use std::rc::Rc;
use std::time::Duration;

use plimsoll_brain::{MemberId, MoveHistory, Time, may_session_escape, mix, should_session_move};
use plimsoll_wire::affinity::{AffinityToken, TokenSigner, cookies_in_head};

use super::{ByteStream, HttpSession, ParsedRequest};
use crate::AffinitySettings;
use crate::listener::session_binding::record_cookie_move;
use crate::upstream::affinity_cache::{AffinityTarget, unix_seconds};
use crate::upstream::in_flight::InFlight;
use crate::upstream::pool::{AdmissionOutcome, GroupPool, PlanView};
use crate::upstream::request_record::ChoiceReason;

/// The back-off of sessions that leave a busy member; alerts use the period of reports instead.
const MOVE_BACKOFF: Duration = Duration::from_secs(1);

/// The session state in a client's cookie.
struct CookieState {
    /// The token in the cookie, or a new one.
    token: AffinityToken,
    /// Whether the cookie is valid.
    valid: bool,
    /// Whether the cookie was signed with an older key.
    signed_with_old_key: bool,
    /// The member that the cookie names, if this core has ever encountered it.
    bound_member: Option<AffinityTarget>,
    unix: u32,
}

impl<S: ByteStream> HttpSession<S> {
    /// Replaces [`try_admit`](crate::upstream::admission::try_admit) for a client with a cookie.
    #[cold]
    #[inline(never)]
    pub(super) fn admit_sticky(
        &mut self,
        affinity: &AffinitySettings,
        pool: &Rc<GroupPool>,
        view: Rc<PlanView>,
        request: &ParsedRequest,
        tried: &[MemberId],
        now: Time,
    ) -> AdmissionOutcome {
        // Every member is at its limit, and other requests came first.
        if pool.has_waiting() {
            return AdmissionOutcome::Full;
        }
        let mut cookie_state = self.read_cookie(affinity, &view, request);
        if let Some(in_flight) = admit_to_drained(&cookie_state, pool, &view, tried, now) {
            if let Some(binding) = &self.binding {
                let binding = &mut *binding.borrow_mut();
                // The cookie is not renewed: a session without an end would keep the member forever.
                (binding.cookie, binding.choice) = (None, ChoiceReason::Cookie);
            }
            return AdmissionOutcome::Admitted(in_flight);
        }
        let mut in_flight = None;
        let mut choice_reason = ChoiceReason::Strategy;
        let bound_index = cookie_state.bound_member.as_ref().and_then(|target| target.place);
        if let Some(index) =
            bound_index.filter(|index| !tried.contains(&view.published.plan.members()[*index].id))
        {
            if tried.is_empty() {
                in_flight = move_from_busy(&mut cookie_state, pool, &view, request, index, now);
            }
            choice_reason = ChoiceReason::Moved;
            if in_flight.is_none() {
                in_flight = pool.admit_to(&view, index, now);
                choice_reason =
                    if in_flight.is_some() { ChoiceReason::Cookie } else { ChoiceReason::Strategy };
            }
        }
        let admission = match in_flight {
            Some(in_flight) => AdmissionOutcome::Admitted(in_flight),
            // As in `admit::at_once`.
            None if pool.group.wait_queue.has_urgent() => AdmissionOutcome::Overloaded,
            None => pool.admit_in_view(
                view,
                request.key,
                self.core.random_bits(),
                now,
                tried,
                request.work().binding(),
            ),
        };
        if let Some(binding) = &self.binding {
            binding.borrow_mut().choice = choice_reason;
        }
        if let AdmissionOutcome::Admitted(in_flight) = &admission {
            self.add_cookie(affinity, in_flight, cookie_state);
        }
        admission
    }

    /// Binds a client that has waited to the member of its request in flight.
    #[cold]
    pub(super) fn bind_cookie_after_wait(
        &self,
        affinity: &AffinitySettings,
        request: &ParsedRequest,
        in_flight: &InFlight,
    ) {
        let cookie_state = self.read_cookie(affinity, in_flight.view(), request);
        self.add_cookie(affinity, in_flight, cookie_state);
    }

    /// Reads the client's cookie from the head for the member.
    fn read_cookie(
        &self,
        affinity: &AffinitySettings,
        view: &PlanView,
        request: &ParsedRequest,
    ) -> CookieState {
        let unix = unix_seconds();
        let mut targets = self.listener.affinity.borrow_mut();
        targets.update(&affinity.signer, view);
        let values = || cookies_in_head(&request.outgoing, &affinity.cookie);
        // A forged or expired cookie counts as none: its client is new here.
        let verify_with = |signer: &TokenSigner| values().find_map(|value| signer.verify(value, unix).ok());
        if let Some(token) = verify_with(&affinity.signer) {
            return CookieState {
                bound_member: targets.find(token.member),
                token,
                valid: true,
                signed_with_old_key: false,
                unix,
            };
        }
        for signer in &affinity.older {
            let Some(mut token) = verify_with(signer) else { continue };
            let matched = targets.find_by_older_key(signer, token.member);
            let target = matched.map(|(tag, target)| {
                token.member = tag;
                target
            });
            return CookieState { bound_member: target, token, valid: true, signed_with_old_key: true, unix };
        }
        let session = self.core.random_bits();
        let token = AffinityToken { session, member: [0; 8], expires: 0, moved: 0, moves: 0 };
        CookieState { token, valid: false, signed_with_old_key: false, bound_member: None, unix }
    }

    /// Adds a cookie for the client's member to the response, unless the client's cookie is recent and names
    /// it.
    fn add_cookie(&self, affinity: &AffinitySettings, in_flight: &InFlight, cookie_state: CookieState) {
        if let Some(binding) = &self.binding {
            binding.borrow_mut().cookie = self.renewed_cookie(affinity, in_flight, cookie_state);
        }
    }

    fn renewed_cookie(
        &self,
        affinity: &AffinitySettings,
        in_flight: &InFlight,
        cookie_state: CookieState,
    ) -> Option<Box<[u8]>> {
        let tag = self.listener.affinity.borrow().tag(in_flight.place())?;
        let CookieState { mut token, valid, signed_with_old_key, bound_member, unix } = cookie_state;
        let ttl = u32::try_from(affinity.ttl.as_secs()).unwrap_or(u32::MAX);
        let same_member = valid && token.member == tag;
        // A cookie without an end was issued by other settings.
        let fresh = if ttl == 0 { token.expires == 0 } else { token.expires > unix.saturating_add(ttl / 2) };
        if same_member && fresh && !signed_with_old_key {
            return None;
        }
        if let Some(previous_target) = bound_member.filter(|_| !same_member) {
            record_cookie_move(&self.listener, &previous_target.record, in_flight.member());
        }
        token.member = tag;
        token.expires = if ttl == 0 { 0 } else { unix.saturating_add(ttl) };
        Some(set_cookie_line(affinity, &token, ttl, self.stream.scheme() == "https"))
    }
}

/// Returns a place at the session's own member, if that is drained and keeps its sessions until they end.
fn admit_to_drained(
    cookie_state: &CookieState,
    pool: &Rc<GroupPool>,
    view: &PlanView,
    tried: &[MemberId],
    now: Time,
) -> Option<InFlight> {
    let target = cookie_state.bound_member.as_ref().filter(|target| target.place.is_none())?;
    let (draining_view, index) =
        view.draining_at(&target.record).filter(|_| !tried.contains(&target.record.id))?;
    pool.admit_to(draining_view, index, now)
}

/// Returns a place at another member, if the session's own, at `place` of the plan, is overloaded and the
/// session may move.
fn move_from_busy(
    cookie_state: &mut CookieState,
    pool: &Rc<GroupPool>,
    view: &Rc<PlanView>,
    request: &ParsedRequest,
    index: usize,
    now: Time,
) -> Option<InFlight> {
    let plan = &view.published.plan;
    let member = &plan.members()[index];
    if plan.members().len() < 2 {
        return None;
    }
    let token = &mut cookie_state.token;
    let time_since_move = Duration::from_secs(u64::from(cookie_state.unix.saturating_sub(token.moved)));
    let mut moves = MoveHistory::restored(token.moves, now - time_since_move);
    let chance = mix(token.session ^ mix(u64::from(member.shed.epoch)));
    let should_move = should_session_move(member.shed, &mut moves, chance, now)
        || plan.is_at_limit(index, now) && may_session_escape(&mut moves, MOVE_BACKOFF, now);
    if !should_move {
        return None;
    }
    let tried = [member.id];
    // Not the same bits that decided on the move.
    let chance = mix(chance);
    let moved = plan.target(chance, &tried, now).and_then(|index| pool.admit_to(view, index, now));
    let moved = moved.or_else(|| {
        match pool.admit_in_view(Rc::clone(view), request.key, chance, now, &tried, request.work()) {
            AdmissionOutcome::Admitted(in_flight) => Some(in_flight),
            AdmissionOutcome::Full | AdmissionOutcome::Overloaded | AdmissionOutcome::NoCandidate => None,
        }
    })?;
    (token.moves, token.moved) = (moves.count(), cookie_state.unix);
    Some(moved)
}

/// Returns the header line that sets a cookie. Scripts of a page cannot read it, and other sites' pages do
/// not send it.
fn set_cookie_line(affinity: &AffinitySettings, token: &AffinityToken, ttl: u32, secure: bool) -> Box<[u8]> {
    let mut line = format!("Set-Cookie: {}={}; Path=/", affinity.cookie, affinity.signer.sign(token));
    if ttl > 0 {
        line.push_str(&format!("; Max-Age={ttl}"));
    }
    line.push_str("; HttpOnly; SameSite=Lax");
    line.push_str(if secure { "; Secure\r\n" } else { "\r\n" });
    line.into_bytes().into_boxed_slice()
}
