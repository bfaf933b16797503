//! Session affinity: clients return to their member by a signed cookie that identifies no person
//! ([`plimsoll_wire::affinity`]).
//!
//! A request with a valid cookie goes to its member without a choice by the strategy. The session is bound
//! anew, and the response sets a new cookie, in these cases:
//!
//! - The member is out of use (drained, down, ejected) or at its limit, fails the request, or reports that it
//!   has no room.
//! - The session is due to leave a member under alert.
//! - The member has as much work as it can process ([`Plan::busy`](plimsoll_brain::Plan::busy)), so that the
//!   load of a member is bounded despite returning clients.
//!
//! The last two happen only as often as sessions may move. The cookie holds the session's move state. The
//! session's random bits derive from its number, so concurrent requests of one client get the same decision.
//!
//! If the group is configured so, a drained member keeps its sessions until their cookies expire
//! ([`View::kept_at`]).
//!
//! All of this is out of line: requests of other listeners carry nothing of it.

use std::rc::Rc;
use std::time::Duration;

use plimsoll_brain::{MemberId, Moves, Time, mix, session_escapes, session_moves};
use plimsoll_wire::affinity::{Signer, Token, cookies_of_head};

use super::{Asked, Session, Stream};
use crate::AffinitySettings;
use crate::account::Choice;
use crate::affinity::{Home, unix_seconds};
use crate::bond::sent_away;
use crate::pool::{Admission, Pool, View};
use crate::trip::Trip;

/// The back-off of sessions that leave a busy member; alerts use the period of reports instead.
const APART: Duration = Duration::from_secs(1);

/// The session state in a client's cookie.
struct Brought {
    /// The token in the cookie, or a new one.
    token: Token,
    /// Whether the cookie is valid.
    counts: bool,
    /// Whether the cookie was signed with an older key.
    old: bool,
    /// The member that the cookie names, if this core has ever encountered it.
    home: Option<Home>,
    unix: u32,
}

impl<S: Stream> Session<S> {
    /// Replaces [`admit::at_once`](crate::admit::at_once) for a client with a cookie.
    #[cold]
    #[inline(never)]
    pub(super) fn admit_affine(
        &mut self,
        affinity: &AffinitySettings,
        pool: &Rc<Pool>,
        view: Rc<View>,
        asked: &Asked,
        tried: &[MemberId],
        now: Time,
    ) -> Admission {
        // Every member is at its limit, and other requests came first.
        if pool.contended() {
            return Admission::Full;
        }
        let mut brought = self.brought(affinity, &view, asked);
        if let Some(trip) = stays(&brought, pool, &view, tried, now) {
            if let Some(bond) = &self.bond {
                let bond = &mut *bond.borrow_mut();
                // The cookie is not renewed: a session without an end would keep the member forever.
                (bond.cookie, bond.how) = (None, Choice::Cookie);
            }
            return Admission::Trip(trip);
        }
        let mut trip = None;
        let mut how = Choice::Strategy;
        let own = brought.home.as_ref().and_then(|home| home.place);
        if let Some(place) = own.filter(|place| !tried.contains(&view.published.plan.members()[*place].id)) {
            if tried.is_empty() {
                trip = escape(&mut brought, pool, &view, asked, place, now);
            }
            how = Choice::Moved;
            if trip.is_none() {
                trip = pool.admit_to(&view, place, now);
                how = if trip.is_some() { Choice::Cookie } else { Choice::Strategy };
            }
        }
        let admission = match trip {
            Some(trip) => Admission::Trip(trip),
            // As in `admit::at_once`.
            None if pool.group.room.ranked() => Admission::Shed,
            None => pool.admit_by(view, asked.key, self.core.chance(), now, tried, asked.work().binding()),
        };
        if let Some(bond) = &self.bond {
            bond.borrow_mut().how = how;
        }
        if let Admission::Trip(trip) = &admission {
            self.give(affinity, trip, brought);
        }
        admission
    }

    /// Binds a client that has waited to the member of its trip.
    #[cold]
    pub(super) fn settle(&self, affinity: &AffinitySettings, asked: &Asked, trip: &Trip) {
        let brought = self.brought(affinity, trip.view(), asked);
        self.give(affinity, trip, brought);
    }

    /// Reads the client's cookie from the head for the member.
    fn brought(&self, affinity: &AffinitySettings, view: &View, asked: &Asked) -> Brought {
        let unix = unix_seconds();
        let mut homes = self.listener.homes.borrow_mut();
        homes.follow(&affinity.signer, view);
        let values = || cookies_of_head(&asked.out, &affinity.cookie);
        // A forged or expired cookie counts as none: its client is new here.
        let by = |signer: &Signer| values().find_map(|value| signer.read(value, unix).ok());
        if let Some(token) = by(&affinity.signer) {
            return Brought { home: homes.find(token.member), token, counts: true, old: false, unix };
        }
        for signer in &affinity.older {
            let Some(mut token) = by(signer) else { continue };
            let found = homes.find_by(signer, token.member);
            let home = found.map(|(tag, home)| {
                token.member = tag;
                home
            });
            return Brought { home, token, counts: true, old: true, unix };
        }
        let session = self.core.chance();
        let token = Token { session, member: [0; 8], expires: 0, moved: 0, moves: 0 };
        Brought { token, counts: false, old: false, home: None, unix }
    }

    /// Adds a cookie for the client's member to the response, unless the client's cookie is recent and names
    /// it.
    fn give(&self, affinity: &AffinitySettings, trip: &Trip, brought: Brought) {
        if let Some(bond) = &self.bond {
            bond.borrow_mut().cookie = self.cookie(affinity, trip, brought);
        }
    }

    fn cookie(&self, affinity: &AffinitySettings, trip: &Trip, brought: Brought) -> Option<Box<[u8]>> {
        let tag = self.listener.homes.borrow().tag(trip.place())?;
        let Brought { mut token, counts, old, home, unix } = brought;
        let ttl = u32::try_from(affinity.ttl.as_secs()).unwrap_or(u32::MAX);
        let stays = counts && token.member == tag;
        // A cookie without an end was issued by other settings.
        let young = if ttl == 0 { token.expires == 0 } else { token.expires > unix.saturating_add(ttl / 2) };
        if stays && young && !old {
            return None;
        }
        if let Some(home) = home.filter(|_| !stays) {
            sent_away(&self.listener, &home.record, trip.member());
        }
        token.member = tag;
        token.expires = if ttl == 0 { 0 } else { unix.saturating_add(ttl) };
        Some(line(affinity, &token, ttl, self.stream.scheme() == "https"))
    }
}

/// Returns a place at the session's own member, if that is drained and keeps its sessions until they end.
fn stays(brought: &Brought, pool: &Rc<Pool>, view: &View, tried: &[MemberId], now: Time) -> Option<Trip> {
    let home = brought.home.as_ref().filter(|home| home.place.is_none())?;
    let (kept, place) = view.kept_at(&home.record).filter(|_| !tried.contains(&home.record.id))?;
    pool.admit_to(kept, place, now)
}

/// Returns a place at another member, if the session's own, at `place` of the plan, is overloaded and the
/// session may move.
fn escape(
    brought: &mut Brought,
    pool: &Rc<Pool>,
    view: &Rc<View>,
    asked: &Asked,
    place: usize,
    now: Time,
) -> Option<Trip> {
    let plan = &view.published.plan;
    let member = &plan.members()[place];
    if plan.members().len() < 2 {
        return None;
    }
    let token = &mut brought.token;
    let rested = Duration::from_secs(u64::from(brought.unix.saturating_sub(token.moved)));
    let mut moves = Moves::recalled(token.moves, now - rested);
    let chance = mix(token.session ^ mix(u64::from(member.shed.epoch)));
    let goes = session_moves(member.shed, &mut moves, chance, now)
        || plan.busy(place, now) && session_escapes(&mut moves, APART, now);
    if !goes {
        return None;
    }
    let tried = [member.id];
    // Not the same bits that decided on the move.
    let chance = mix(chance);
    let there = plan.target(chance, &tried, now).and_then(|place| pool.admit_to(view, place, now));
    let there = there.or_else(|| {
        match pool.admit_by(Rc::clone(view), asked.key, chance, now, &tried, asked.work()) {
            Admission::Trip(trip) => Some(trip),
            Admission::Full | Admission::Shed | Admission::Nobody => None,
        }
    })?;
    (token.moves, token.moved) = (moves.count(), brought.unix);
    Some(there)
}

/// Returns the header line that sets a cookie. Scripts of a page cannot read it, and other sites' pages do
/// not send it.
fn line(affinity: &AffinitySettings, token: &Token, ttl: u32, secure: bool) -> Box<[u8]> {
    let mut line = format!("Set-Cookie: {}={}; Path=/", affinity.cookie, affinity.signer.sign(token));
    if ttl > 0 {
        line.push_str(&format!("; Max-Age={ttl}"));
    }
    line.push_str("; HttpOnly; SameSite=Lax");
    line.push_str(if secure { "; Secure\r\n" } else { "\r\n" });
    line.into_bytes().into_boxed_slice()
}
