//! Session binding: the member of a client's session, the time to leave it, and the next member.
//!
//! A session (a client's HTTP connection, a TCP connection, a datagram flow) keeps its member while that is
//! usable. Where clients are bound on demand, the brain raises an alert for an overloaded member, with the
//! share of its sessions that should move. Each such decision asks each session once, at a moment that the
//! client does not notice ([`Bond::leaves`]). A session that moves is bound in proportion to the load that
//! the other members lack (`algorithms.md` 6.8; [`plimsoll_brain::session_moves`],
//! [`plimsoll_brain::Plan::target`]). If the reports show no lack, the strategy chooses.
//!
//! The share of its member's requests is known for each HTTP connection, so that connections move in order of
//! size ([`plimsoll_brain::sized_session_moves`]). If requests show the session's share of the member's load
//! ([`SessionLoad`](crate::SessionLoad)), the session stays where a move would not improve the balance.
//!
//! Sessions are counted for each listener and member ([`Ties`]): each core writes its own counts.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use plimsoll_brain::{
    Member, MemberId, Moves, Size, Swap, Time, session_escapes, session_moves, sized_session_moves,
};

use crate::Binding;
use crate::account::Choice;
use crate::group::Record;
use crate::inner::lock;
use crate::listener::Listener;
use crate::pool::{Admission, Pool, View, Work};
use crate::settings::SessionLoad;
use crate::stats::Count;
use crate::trip::Trip;

mod part;

use part::{Asked, Part};

/// One member as seen by the sessions of one listener.
pub(crate) struct Tie {
    record: Arc<Record>,
    /// The counts of each core.
    counts: Box<[TieCount]>,
    /// The counts of the previous process, whose sessions may still be bound; the control plane writes them.
    before: TieCount,
}

/// One core's counts.
#[derive(Default)]
#[repr(align(128))]
struct TieCount {
    bound: Count,
    moved: Count,
}

/// The members that sessions of a listener are or were bound to, by the address of their record in memory.
/// Each tie holds its record, so that the address is not reused.
#[derive(Default)]
pub(crate) struct Ties(Mutex<BTreeMap<usize, Arc<Tie>>>);

/// One core's copy of the ties, which avoids the lock.
pub(crate) type Known = BTreeMap<usize, Arc<Tie>>;

impl Ties {
    /// Returns the tie to a member.
    pub(crate) fn tie(&self, known: &mut Known, record: &Arc<Record>, cores: usize) -> Arc<Tie> {
        let place = Arc::as_ptr(record) as usize;
        if let Some(tie) = known.get(&place) {
            return Arc::clone(tie);
        }
        known.retain(|_, tie| !tie.gone());
        let tie = self.common(record, cores);
        known.insert(place, Arc::clone(&tie));
        tie
    }

    /// Returns the shared tie, for a core without a copy.
    fn common(&self, record: &Arc<Record>, cores: usize) -> Arc<Tie> {
        let mut all = lock(&self.0);
        all.retain(|_, tie| !tie.gone());
        let tie = all.entry(Arc::as_ptr(record) as usize).or_insert_with(|| {
            let counts = (0..cores).map(|_| TieCount::default()).collect();
            Arc::new(Tie { record: Arc::clone(record), counts, before: TieCount::default() })
        });
        Arc::clone(tie)
    }

    /// Records the counts of the previous process: `bound` sessions that a member has now, and `moved`
    /// further sessions that moved elsewhere. For one caller at a time.
    pub(crate) fn told(&self, record: &Arc<Record>, cores: usize, bound: u64, moved: u64) {
        let Tie { before, .. } = &*self.common(record, cores);
        before.bound.sub(before.bound.value());
        before.bound.add(bound);
        before.moved.add(moved);
    }

    /// Records that the previous process has ended, and its sessions with it.
    pub(crate) fn ended(&self) {
        for tie in lock(&self.0).values() {
            tie.before.bound.sub(tie.before.bound.value());
        }
    }

    /// Returns the number of sessions bound to a member now, and the number that moved elsewhere so far.
    pub(crate) fn counts(&self, record: &Arc<Record>) -> (u64, u64) {
        let Some(tie) = lock(&self.0).get(&(Arc::as_ptr(record) as usize)).cloned() else { return (0, 0) };
        let all = || tie.counts.iter().chain(std::iter::once(&tie.before));
        let sum = |count: fn(&TieCount) -> &Count| all().map(|of| count(of).value()).sum();
        (sum(|of| &of.bound), sum(|of| &of.moved))
    }
}

impl Tie {
    /// Returns `true` if no other owner holds the member's record. Then its sessions are gone as well, as
    /// they would hold it.
    fn gone(&self) -> bool {
        Arc::strong_count(&self.record) == 1
    }
}

/// Counts a session that returns with its cookie as moved elsewhere by its former member.
pub(crate) fn sent_away(listener: &Listener, from: &Arc<Record>, to: MemberId) {
    listener.tie(from).counts[listener.core].moved.add(1);
    let stripe = from.stripe(listener.core);
    stripe.moved.add(1);
    stripe.moves.note(Some(to));
}

/// A session's side of its binding.
#[derive(Default)]
pub(crate) struct Bond {
    seat: Option<Seat>,
    /// Whether the member, under alert, has closed the connection of its last response.
    closed: bool,
    moves: Moves,
    part: Part,
    /// The header line for the response to the current request: the cookie by which the client returns.
    pub(crate) cookie: Option<Box<[u8]>>,
    /// The reason why the current request got its member, as far as the session decided it.
    pub(crate) how: Choice,
}

/// The state carried over when a session moves to another member.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Luggage {
    /// The load in units of capacity × load; 0 if unknown. Where the session's share is unknown, this assumes
    /// that all load comes from this process.
    load: f32,
    /// Set if the session is as large as the gap: it changes places with another.
    swap: Option<Swap>,
}

/// A session as counted with its member.
struct Seat {
    tie: Arc<Tie>,
    core: usize,
    /// The member's index in the plan at the last lookup.
    place: usize,
}

impl Seat {
    fn count(&self) -> &TieCount {
        &self.tie.counts[self.core]
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.count().bound.sub(1);
    }
}

impl Bond {
    /// Binds the session to the member of a trip; does nothing if it is already bound to it.
    pub(crate) fn hold(&mut self, listener: &Listener, trip: &Trip) {
        let record = &trip.upstream.record;
        self.closed = false;
        if self.seat.as_ref().is_some_and(|seat| Arc::ptr_eq(&seat.tie.record, record)) {
            if let Binding::OnDemand(_) = listener.settings().binding {
                self.part.asks(record.vitals.begun_here(), trip.begun);
            }
            return;
        }
        self.part = Part::begin(record.vitals.begun_here(), trip.begun);
        let tie = listener.tie(record);
        let seat = Seat { tie, core: listener.core, place: trip.place() };
        seat.count().bound.add(1);
        self.seat = Some(seat);
    }

    /// Returns the index in the plan of the session's member, if it may still be chosen.
    fn place(&mut self, view: &View) -> Option<usize> {
        let seat = self.seat.as_mut()?;
        let records = &view.published.records;
        let own = |record: &Arc<Record>| Arc::ptr_eq(record, &seat.tie.record);
        if !records.get(seat.place).is_some_and(own) {
            seat.place = records.iter().position(own)?;
        }
        Some(seat.place)
    }

    /// Returns `true` if the session leaves its member now, which is under alert and not the only one. Each
    /// decision asks a session once; if the result is `true`, the move has been recorded.
    pub(crate) fn leaves(&mut self, view: &View, chance: u64, now: Time) -> bool {
        let Some(place) = self.place(view) else { return false };
        let members = view.published.plan.members();
        members.len() > 1 && session_moves(members[place].shed, &mut self.moves, chance, now)
    }

    /// Decides as [`Bond::leaves`] for a session of many requests, whose size is known from them. If
    /// `is_led`, the balancer chooses its next member, so the session may change places with another.
    pub(crate) fn leaves_with(
        &mut self,
        view: &View,
        is_led: bool,
        chance: u64,
        now: Time,
    ) -> Option<Luggage> {
        let place = self.place(view)?;
        let plan = &view.published.plan;
        let Member { shed, vitals, capacity, .. } = &plan.members()[place];
        if plan.members().len() < 2 {
            return None;
        }
        let (part, mut luggage) = (&self.part, Luggage::default());
        let asked = || part.is(vitals.begun_here(), now);
        if chance.is_multiple_of(TELLS)
            && let Some(Asked { rate, .. }) = asked()
        {
            vitals.flow.asked(rate);
        }
        let size = || {
            let Asked { here, rate } = asked()?;
            // The session's share of the load is at most its share of what this process sends, whatever
            // members report.
            let of_load = match view.published.settings.session_load {
                SessionLoad::Unknown => None,
                SessionLoad::Own => Some(here),
                SessionLoad::Rate => Some(here.min(rate / shed.load)),
                SessionLoad::RateForSize => Some(here.min(rate / (shed.load * *capacity as f32))),
            };
            luggage.load = of_load.unwrap_or(here) * shed.load * *capacity as f32;
            let swap = of_load.filter(|_| is_led).and_then(|part| Swap::of(part, rate, shed));
            luggage.swap =
                swap.filter(|swap| plan.target_for(*swap, luggage.load, chance, place, now).is_some());
            Some(Size { here, load: of_load, swaps: luggage.swap.is_some() })
        };
        sized_session_moves(*shed, &vitals.flow, size, &mut self.moves, chance, now).then_some(luggage)
    }

    /// Records that this member has closed the connection of its response to the session.
    pub(crate) fn closed_by(&mut self, member: MemberId, view: &View) {
        self.closed = self.is_to(member) && self.sheds(view);
    }

    /// Returns `true` if the session's member is under alert and not the only one.
    fn sheds(&mut self, view: &View) -> bool {
        let Some(place) = self.place(view) else { return false };
        let members = view.published.plan.members();
        members.len() > 1 && members[place].shed.share > 0.0
    }

    /// Returns the carried-over state if the member has sent the session away. Members that act on alerts
    /// themselves do so by closing the connection of their last response. Returns `None` if the member is
    /// under no alert or is the only one. Also `None` if the session has moved recently, since a member may
    /// close all its connections.
    pub(crate) fn is_sent_away(&mut self, view: &View, now: Time) -> Option<Luggage> {
        if !std::mem::take(&mut self.closed) || !self.sheds(view) {
            return None;
        }
        let place = self.place(view)?;
        let period = view.published.plan.members()[place].shed.period;
        session_escapes(&mut self.moves, period, now).then(Luggage::default)
    }

    /// Finds a place at a member other than the session's own, for a session with this state; `None` if it
    /// has to stay.
    pub(crate) fn elsewhere(
        &mut self,
        pool: &Pool,
        view: &Rc<View>,
        (key, chance): (u64, u64),
        work: Work,
        Luggage { load, swap }: Luggage,
        now: Time,
    ) -> Option<Trip> {
        let own = self.place(view)?;
        let plan = &view.published.plan;
        let tried = [plan.members()[own].id];
        let target = match swap {
            // No other member would improve the balance.
            Some(swap) => Some(plan.target_for(swap, load, chance, own, now)?),
            None if load > 0.0 => plan.target_of(load, chance, &tried, now),
            None => plan.target(chance, &tried, now),
        };
        let trip = match target.and_then(|place| pool.admit_to(view, place, now)) {
            Some(trip) => trip,
            None if swap.is_some() => return None,
            None => match pool.admit_by(Rc::clone(view), key, chance, now, &tried, work) {
                Admission::Trip(trip) => trip,
                Admission::Full | Admission::Shed | Admission::Nobody => return None,
            },
        };
        trip.upstream.record.vitals.flow.comes(load);
        Some(trip)
    }

    /// Returns a place at the session's own member, even a draining one if its sessions stay. Returns `None`
    /// if the member is unusable or has no room.
    pub(crate) fn own(&mut self, pool: &Pool, view: &Rc<View>, now: Time) -> Option<Trip> {
        match self.place(view) {
            Some(place) => pool.admit_to(view, place, now),
            None => {
                let (kept, place) = view.kept_at(&self.seat.as_ref()?.tie.record)?;
                pool.admit_to(kept, place, now)
            }
        }
    }

    /// Appends the header lines for the client's response.
    #[cold]
    pub(crate) fn told(&self, lines: &mut Vec<u8>) {
        lines.extend_from_slice(self.cookie.as_deref().unwrap_or_default());
    }

    /// Returns `true` if the session has a member.
    pub(crate) fn is_bound(&self) -> bool {
        self.seat.is_some()
    }

    /// Returns `true` if the session is bound to this member.
    pub(crate) fn is_to(&self, member: MemberId) -> bool {
        self.seat.as_ref().is_some_and(|seat| seat.tie.record.id == member)
    }

    /// Counts the session as moved elsewhere by its member: to another one, or to return by itself.
    pub(crate) fn moved(&self, to: Option<&Trip>) {
        if let Some(seat) = &self.seat {
            seat.count().moved.add(1);
            let stripe = seat.tie.record.stripe(seat.core);
            stripe.moved.add(1);
            stripe.moves.note(to.map(Trip::member));
        }
    }
}

/// One in this many requests updates the session's size: often enough, as a member has many requests.
const TELLS: u64 = 16;
