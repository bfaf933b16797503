//! Which member a client's session is bound to, when it leaves it, and where to.
//!
//! A session (a client's http connection, a tcp connection, a flow of datagrams) keeps its member while that may be
//! used. Where clients are bound on demand the brain raises an alert for a member that has too much, and says which
//! part of its sessions is to go; each session is asked once by each such decision, at a moment at which nobody notices
//! ([`Bond::leaves`]), and is bound anew in proportion to what the other members lack (`algorithms.md` 6.8;
//! [`plimsoll_brain::session_moves`], [`plimsoll_brain::Plan::target`]). Where the reports show no lack the strategy
//! chooses.
//!
//! Of a connection of http it is known how many of its member's requests it sends, so that they take turns
//! ([`plimsoll_brain::sized_session_moves`]); and where its requests say what part of the member's load it is
//! ([`SessionLoad`](crate::SessionLoad)), it stays if nothing is the better for its going.
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

/// One member as the sessions of one listener see it.
pub(crate) struct Tie {
    record: Arc<Record>,
    /// One for each core.
    counts: Box<[TieCount]>,
    /// What a process before this one counted, and has bound still; the control plane writes it.
    before: TieCount,
}

/// One core's counts.
#[derive(Default)]
#[repr(align(128))]
struct TieCount {
    bound: Count,
    moved: Count,
}

/// The members that sessions of a listener are or were bound to, by the place of their record in memory. Each tie
/// holds its record, so that no other can come to lie there.
#[derive(Default)]
pub(crate) struct Ties(Mutex<BTreeMap<usize, Arc<Tie>>>);

/// What one core knows of them, so that it need not lock.
pub(crate) type Known = BTreeMap<usize, Arc<Tie>>;

impl Ties {
    /// The tie to a member.
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

    /// The same, for whoever knows of none.
    fn common(&self, record: &Arc<Record>, cores: usize) -> Arc<Tie> {
        let mut all = lock(&self.0);
        all.retain(|_, tie| !tie.gone());
        let tie = all.entry(Arc::as_ptr(record) as usize).or_insert_with(|| {
            let counts = (0..cores).map(|_| TieCount::default()).collect();
            Arc::new(Tie { record: Arc::clone(record), counts, before: TieCount::default() })
        });
        Arc::clone(tie)
    }

    /// A process before this one has so many sessions bound to a member now, and sent so many more elsewhere. One at a time.
    pub(crate) fn told(&self, record: &Arc<Record>, cores: usize, bound: u64, moved: u64) {
        let Tie { before, .. } = &*self.common(record, cores);
        before.bound.sub(before.bound.value());
        before.bound.add(bound);
        before.moved.add(moved);
    }

    /// That process has ended, and with it its sessions.
    pub(crate) fn ended(&self) {
        for tie in lock(&self.0).values() {
            tie.before.bound.sub(tie.before.bound.value());
        }
    }

    /// Sessions bound to a member now, and how many were sent elsewhere so far.
    pub(crate) fn counts(&self, record: &Arc<Record>) -> (u64, u64) {
        let Some(tie) = lock(&self.0).get(&(Arc::as_ptr(record) as usize)).cloned() else { return (0, 0) };
        let all = || tie.counts.iter().chain(std::iter::once(&tie.before));
        let sum = |count: fn(&TieCount) -> &Count| all().map(|of| count(of).value()).sum();
        (sum(|of| &of.bound), sum(|of| &of.moved))
    }
}

impl Tie {
    /// A member that nobody else knows is gone, and so are its sessions, which would hold its record.
    fn gone(&self) -> bool {
        Arc::strong_count(&self.record) == 1
    }
}

/// Counts a session that comes by its cookie as sent elsewhere by the member that it had.
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
    /// Has its member, under alert, ended the connection that the last answer came by?
    closed: bool,
    moves: Moves,
    part: Part,
    /// A header line for the answer to the request at hand: the cookie of a client that comes back by one.
    pub(crate) cookie: Option<Box<[u8]>>,
    /// Why the request at hand got its member, as far as that is the session's affair.
    pub(crate) how: Choice,
}

/// What a session takes along that leaves its member.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Luggage {
    /// In units of capacity times load (as if all were sent from here, where its part of that is not known); 0 if nothing is known.
    load: f32,
    /// Where it is as large as the gap: it changes places.
    swap: Option<Swap>,
}

/// A session as it is counted with its member.
struct Seat {
    tie: Arc<Tie>,
    core: usize,
    /// Where the member was in the plan when it was last looked for.
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
    /// Binds the session to the member of a trip; nothing if it is bound to it already.
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

    /// Where in the plan the session's member is, if it may still be chosen.
    fn place(&mut self, view: &View) -> Option<usize> {
        let seat = self.seat.as_mut()?;
        let records = &view.published.records;
        let own = |record: &Arc<Record>| Arc::ptr_eq(record, &seat.tie.record);
        if !records.get(seat.place).is_some_and(own) {
            seat.place = records.iter().position(own)?;
        }
        Some(seat.place)
    }

    /// Does the session leave its member now, which is under alert and not the only one? Each decision asks it once;
    /// where the answer is yes the move has been noted.
    pub(crate) fn leaves(&mut self, view: &View, chance: u64, now: Time) -> bool {
        let Some(place) = self.place(view) else { return false };
        let members = view.published.plan.members();
        members.len() > 1 && session_moves(members[place].shed, &mut self.moves, chance, now)
    }

    /// The same of a session of many requests, which say how large it is. If it `is_led` to where it goes it may change places.
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
            // It is no more of the load than of what is sent from here, whatever members tell.
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

    /// This member has ended the connection that its answer to the session came by.
    pub(crate) fn closed_by(&mut self, member: MemberId, view: &View) {
        self.closed = self.is_to(member) && self.sheds(view);
    }

    /// Is its member under alert, and not the only one?
    fn sheds(&mut self, view: &View) -> bool {
        let Some(place) = self.place(view) else { return false };
        let members = view.published.plan.members();
        members.len() > 1 && members[place].shed.share > 0.0
    }

    /// Returns what the session takes along if its member has sent it away, as members do that obey alerts themselves: by ending the
    /// connection that their last answer came by. Nothing if the member is under no alert, or the only one, or if the session has moved
    /// lately: a member may close all its connections.
    pub(crate) fn is_sent_away(&mut self, view: &View, now: Time) -> Option<Luggage> {
        if !std::mem::take(&mut self.closed) || !self.sheds(view) {
            return None;
        }
        let place = self.place(view)?;
        let period = view.published.plan.members()[place].shed.period;
        session_escapes(&mut self.moves, period, now).then(Luggage::default)
    }

    /// A place with a member other than its own, for a session that takes this along; `None` if it has to stay.
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
            // It has nothing to gain anywhere else.
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

    /// A place with its own member, drained if its sessions stay then; `None` if that may not be used, or has no room.
    pub(crate) fn own(&mut self, pool: &Pool, view: &Rc<View>, now: Time) -> Option<Trip> {
        match self.place(view) {
            Some(place) => pool.admit_to(view, place, now),
            None => {
                let (kept, place) = view.kept_at(&self.seat.as_ref()?.tie.record)?;
                pool.admit_to(kept, place, now)
            }
        }
    }

    /// Adds what the client is to be told with its answer.
    #[cold]
    pub(crate) fn told(&self, lines: &mut Vec<u8>) {
        lines.extend_from_slice(self.cookie.as_deref().unwrap_or_default());
    }

    /// Has the session a member?
    pub(crate) fn is_bound(&self) -> bool {
        self.seat.is_some()
    }

    /// Is this the member it is bound to?
    pub(crate) fn is_to(&self, member: MemberId) -> bool {
        self.seat.as_ref().is_some_and(|seat| seat.tie.record.id == member)
    }

    /// Counts the session as sent elsewhere by the member it is bound to: to another one, or to come back by itself.
    pub(crate) fn moved(&self, to: Option<&Trip>) {
        if let Some(seat) = &self.seat {
            seat.count().moved.add(1);
            let stripe = seat.tie.record.stripe(seat.core);
            stripe.moved.add(1);
            stripe.moves.note(to.map(Trip::member));
        }
    }
}

/// One of so many requests tells how large its session is: often enough, as a member has many.
const TELLS: u64 = 16;
