//! Which member a client's session is bound to, when it leaves it, and where to.
//!
//! A session (a client's http connection, a tcp connection, a flow of datagrams) keeps its member while that may be
//! used. Where clients are bound on demand the brain raises an alert for a member that has too much, and says which
//! part of its sessions is to go; each session draws once for each such decision, at a moment at which nobody notices
//! ([`Bond::leaves`]), and is bound anew in proportion to what the other members lack (`algorithms.md` 6.8;
//! [`plimsoll_brain::session_moves`], [`plimsoll_brain::Plan::target`]). Where the reports show no lack the strategy
//! chooses.
//!
//! A connection of http may be most of what its member has. Where loads are what this process counts, what part of its member's
//! requests it is says whether anything is the better for its going ([`Bond::helps`]).
//!
//! Sessions are counted for each listener and member ([`Ties`]): each core writes its own counts.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use plimsoll_brain::{MemberId, Moves, Time, session_moves};

use crate::account::Choice;
use crate::group::Record;
use crate::inner::lock;
use crate::listener::Listener;
use crate::pool::{Admission, Pool, View, Work};
use crate::stats::Count;
use crate::trip::Trip;

mod part;

use part::Part;

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
    moves: Moves,
    part: Part,
    /// The last decision that it was weighed for, and whether it helps if it goes.
    weighed: (u32, bool),
    /// A header line for the answer to the request at hand: the cookie of a client that comes back by one.
    pub(crate) cookie: Option<Box<[u8]>>,
    /// Why the request at hand got its member, as far as that is the session's affair.
    pub(crate) how: Choice,
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
        if self.seat.as_ref().is_some_and(|seat| Arc::ptr_eq(&seat.tie.record, record)) {
            self.part.asks();
            return;
        }
        self.part = Part::begin(record.vitals.begun_here());
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

    /// Would it help if the session left its member, which is under alert? Not if it is so much of what the member has that it takes along what
    /// is too much. For sessions of many requests; it does where nobody knows what part of the load they are.
    pub(crate) fn helps(&mut self, view: &View) -> bool {
        let Some(place) = self.place(view) else { return true };
        let shed = view.published.plan.members()[place].shed;
        if shed.share <= 0.0 || !view.published.settings.own_loads {
            return true;
        }
        if self.weighed.0 == shed.epoch {
            return self.weighed.1;
        }
        let part = self.part.of(view.published.records[place].vitals.begun_here());
        self.weighed = (shed.epoch, part.is_none_or(|part| shed.helps(part)));
        self.weighed.1
    }

    /// A place with a member other than its own; `None` if it has to stay.
    pub(crate) fn elsewhere(
        &mut self,
        pool: &Pool,
        view: &Rc<View>,
        (key, chance): (u64, u64),
        work: Work,
        now: Time,
    ) -> Option<Trip> {
        let own = self.place(view)?;
        let plan = &view.published.plan;
        let tried = [plan.members()[own].id];
        if let Some(trip) = plan.target(chance, &tried, now).and_then(|place| pool.admit_to(view, place, now))
        {
            return Some(trip);
        }
        match pool.admit_by(Rc::clone(view), key, chance, now, &tried, work) {
            Admission::Trip(trip) => Some(trip),
            Admission::Full | Admission::Shed | Admission::Nobody => None,
        }
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
