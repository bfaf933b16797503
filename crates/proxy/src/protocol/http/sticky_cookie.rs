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
        asked: &ParsedRequest,
        tried: &[MemberId],
        now: Time,
    ) -> AdmissionOutcome {
        // Every member is at its limit, and other requests came first.
        if pool.has_waiting() {
            return AdmissionOutcome::Full;
        }
        let mut brought = self.read_cookie(affinity, &view, asked);
        if let Some(trip) = admit_to_drained(&brought, pool, &view, tried, now) {
            if let Some(bond) = &self.binding {
                let bond = &mut *bond.borrow_mut();
                // The cookie is not renewed: a session without an end would keep the member forever.
                (bond.cookie, bond.choice) = (None, ChoiceReason::Cookie);
            }
            return AdmissionOutcome::Admitted(trip);
        }
        let mut trip = None;
        let mut how = ChoiceReason::Strategy;
        let own = brought.bound_member.as_ref().and_then(|home| home.place);
        if let Some(place) = own.filter(|place| !tried.contains(&view.published.plan.members()[*place].id)) {
            if tried.is_empty() {
                trip = move_from_busy(&mut brought, pool, &view, asked, place, now);
            }
            how = ChoiceReason::Moved;
            if trip.is_none() {
                trip = pool.admit_to(&view, place, now);
                how = if trip.is_some() { ChoiceReason::Cookie } else { ChoiceReason::Strategy };
            }
        }
        let admission = match trip {
            Some(trip) => AdmissionOutcome::Admitted(trip),
            // As in `admit::at_once`.
            None if pool.group.wait_queue.has_urgent() => AdmissionOutcome::Overloaded,
            None => pool.admit_in_view(
                view,
                asked.key,
                self.core.random_bits(),
                now,
                tried,
                asked.work().binding(),
            ),
        };
        if let Some(bond) = &self.binding {
            bond.borrow_mut().choice = how;
        }
        if let AdmissionOutcome::Admitted(trip) = &admission {
            self.add_cookie(affinity, trip, brought);
        }
        admission
    }

    /// Binds a client that has waited to the member of its request in flight.
    #[cold]
    pub(super) fn bind_cookie_after_wait(
        &self,
        affinity: &AffinitySettings,
        asked: &ParsedRequest,
        trip: &InFlight,
    ) {
        let brought = self.read_cookie(affinity, trip.view(), asked);
        self.add_cookie(affinity, trip, brought);
    }

    /// Reads the client's cookie from the head for the member.
    fn read_cookie(
        &self,
        affinity: &AffinitySettings,
        view: &PlanView,
        asked: &ParsedRequest,
    ) -> CookieState {
        let unix = unix_seconds();
        let mut homes = self.listener.affinity.borrow_mut();
        homes.update(&affinity.signer, view);
        let values = || cookies_in_head(&asked.outgoing, &affinity.cookie);
        // A forged or expired cookie counts as none: its client is new here.
        let by = |signer: &TokenSigner| values().find_map(|value| signer.verify(value, unix).ok());
        if let Some(token) = by(&affinity.signer) {
            return CookieState {
                bound_member: homes.find(token.member),
                token,
                valid: true,
                signed_with_old_key: false,
                unix,
            };
        }
        for signer in &affinity.older {
            let Some(mut token) = by(signer) else { continue };
            let found = homes.find_by_older_key(signer, token.member);
            let home = found.map(|(tag, home)| {
                token.member = tag;
                home
            });
            return CookieState { bound_member: home, token, valid: true, signed_with_old_key: true, unix };
        }
        let session = self.core.random_bits();
        let token = AffinityToken { session, member: [0; 8], expires: 0, moved: 0, moves: 0 };
        CookieState { token, valid: false, signed_with_old_key: false, bound_member: None, unix }
    }

    /// Adds a cookie for the client's member to the response, unless the client's cookie is recent and names
    /// it.
    fn add_cookie(&self, affinity: &AffinitySettings, trip: &InFlight, brought: CookieState) {
        if let Some(bond) = &self.binding {
            bond.borrow_mut().cookie = self.renewed_cookie(affinity, trip, brought);
        }
    }

    fn renewed_cookie(
        &self,
        affinity: &AffinitySettings,
        trip: &InFlight,
        brought: CookieState,
    ) -> Option<Box<[u8]>> {
        let tag = self.listener.affinity.borrow().tag(trip.place())?;
        let CookieState { mut token, valid: counts, signed_with_old_key: old, bound_member: home, unix } =
            brought;
        let ttl = u32::try_from(affinity.ttl.as_secs()).unwrap_or(u32::MAX);
        let stays = counts && token.member == tag;
        // A cookie without an end was issued by other settings.
        let young = if ttl == 0 { token.expires == 0 } else { token.expires > unix.saturating_add(ttl / 2) };
        if stays && young && !old {
            return None;
        }
        if let Some(home) = home.filter(|_| !stays) {
            record_cookie_move(&self.listener, &home.record, trip.member());
        }
        token.member = tag;
        token.expires = if ttl == 0 { 0 } else { unix.saturating_add(ttl) };
        Some(set_cookie_line(affinity, &token, ttl, self.stream.scheme() == "https"))
    }
}

/// Returns a place at the session's own member, if that is drained and keeps its sessions until they end.
fn admit_to_drained(
    brought: &CookieState,
    pool: &Rc<GroupPool>,
    view: &PlanView,
    tried: &[MemberId],
    now: Time,
) -> Option<InFlight> {
    let home = brought.bound_member.as_ref().filter(|home| home.place.is_none())?;
    let (kept, place) = view.draining_at(&home.record).filter(|_| !tried.contains(&home.record.id))?;
    pool.admit_to(kept, place, now)
}

/// Returns a place at another member, if the session's own, at `place` of the plan, is overloaded and the
/// session may move.
fn move_from_busy(
    brought: &mut CookieState,
    pool: &Rc<GroupPool>,
    view: &Rc<PlanView>,
    asked: &ParsedRequest,
    place: usize,
    now: Time,
) -> Option<InFlight> {
    let plan = &view.published.plan;
    let member = &plan.members()[place];
    if plan.members().len() < 2 {
        return None;
    }
    let token = &mut brought.token;
    let rested = Duration::from_secs(u64::from(brought.unix.saturating_sub(token.moved)));
    let mut moves = MoveHistory::restored(token.moves, now - rested);
    let chance = mix(token.session ^ mix(u64::from(member.shed.epoch)));
    let goes = should_session_move(member.shed, &mut moves, chance, now)
        || plan.is_at_limit(place, now) && may_session_escape(&mut moves, MOVE_BACKOFF, now);
    if !goes {
        return None;
    }
    let tried = [member.id];
    // Not the same bits that decided on the move.
    let chance = mix(chance);
    let there = plan.target(chance, &tried, now).and_then(|place| pool.admit_to(view, place, now));
    let there = there.or_else(|| {
        match pool.admit_in_view(Rc::clone(view), asked.key, chance, now, &tried, asked.work()) {
            AdmissionOutcome::Admitted(trip) => Some(trip),
            AdmissionOutcome::Full | AdmissionOutcome::Overloaded | AdmissionOutcome::NoCandidate => None,
        }
    })?;
    (token.moves, token.moved) = (moves.count(), brought.unix);
    Some(there)
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
