//! Session binding: the member of a client's session, the time to leave it, and the next member.
//!
//! A session (a client's HTTP connection, a TCP connection, a datagram flow) keeps its member while that is
//! usable. Where clients are bound on demand, the brain raises an alert for an overloaded member, with the
//! share of its sessions that should move. Each such decision asks each session once, at a moment that the
//! client does not notice ([`SessionBinding::should_leave`]). A session that moves is bound in proportion to
//! the load that the other members lack (`algorithms.md` 6.8; [`plimsoll_brain::should_session_move`],
//! [`plimsoll_brain::Plan::target`]). If the reports show no lack, the strategy chooses.
//!
//! The share of its member's requests is known for each HTTP connection, so that connections move in order of
//! size ([`plimsoll_brain::should_sized_session_move`]). If requests show the session's share of the member's
//! load ([`SessionLoad`]), the session stays where a move would not improve the balance.
//!
//! Sessions are counted for each listener and member ([`ListenerBindings`]): each core writes its own counts.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use plimsoll_brain::{
    Member, MemberId, MoveHistory, SessionExchange, SessionSize, Time, may_session_escape,
    should_session_move, should_sized_session_move,
};

use crate::BindingMode;
use crate::listener::Listener;
use crate::runtime::sync::lock;
use crate::settings::SessionLoad;
use crate::upstream::group::MemberRecord;
use crate::upstream::in_flight::InFlight;
use crate::upstream::pool::{AdmissionOutcome, GroupPool, PlanView, WorkKind};
use crate::upstream::request_record::ChoiceReason;
use crate::upstream::stats::Counter;

mod session_share;

use session_share::{ShareCounter, ShareEstimate};

/// One member as seen by the sessions of one listener.
pub(crate) struct MemberBindings {
    record: Arc<MemberRecord>,
    /// The counts of each core.
    counts: Box<[BindingCounters]>,
    /// The counts of the previous process, whose sessions may still be bound; the control plane writes them.
    predecessor: BindingCounters,
}

/// One core's counts.
#[derive(Default)]
#[repr(align(128))]
struct BindingCounters {
    bound: Counter,
    moved: Counter,
}

/// The members that sessions of a listener are or were bound to, by the address of their record in memory.
/// Each entry holds its record, so that the address is not reused.
#[derive(Default)]
pub(crate) struct ListenerBindings(Mutex<BTreeMap<usize, Arc<MemberBindings>>>);

/// One core's copy of the entries, which avoids the lock.
pub(crate) type BindingCache = BTreeMap<usize, Arc<MemberBindings>>;

impl ListenerBindings {
    /// Returns the bindings to a member.
    pub(crate) fn for_member(
        &self,
        cache: &mut BindingCache,
        record: &Arc<MemberRecord>,
        cores: usize,
    ) -> Arc<MemberBindings> {
        let key = Arc::as_ptr(record) as usize;
        if let Some(bindings) = cache.get(&key) {
            return Arc::clone(bindings);
        }
        cache.retain(|_, bindings| !bindings.is_orphaned());
        let bindings = self.for_member_uncached(record, cores);
        cache.insert(key, Arc::clone(&bindings));
        bindings
    }

    /// Returns the shared bindings to a member, for a core without a copy.
    fn for_member_uncached(&self, record: &Arc<MemberRecord>, cores: usize) -> Arc<MemberBindings> {
        let mut by_record = lock(&self.0);
        by_record.retain(|_, bindings| !bindings.is_orphaned());
        let bindings = by_record.entry(Arc::as_ptr(record) as usize).or_insert_with(|| {
            let counts = (0..cores).map(|_| BindingCounters::default()).collect();
            Arc::new(MemberBindings {
                record: Arc::clone(record),
                counts,
                predecessor: BindingCounters::default(),
            })
        });
        Arc::clone(bindings)
    }

    /// Records the counts of the previous process: `bound` sessions that a member has now, and `moved`
    /// further sessions that moved elsewhere. For one caller at a time.
    pub(crate) fn record_predecessor(
        &self,
        record: &Arc<MemberRecord>,
        cores: usize,
        bound: u64,
        moved: u64,
    ) {
        let MemberBindings { predecessor, .. } = &*self.for_member_uncached(record, cores);
        predecessor.bound.sub(predecessor.bound.value());
        predecessor.bound.add(bound);
        predecessor.moved.add(moved);
    }

    /// Records that the previous process has ended, and its sessions with it.
    pub(crate) fn clear_predecessor(&self) {
        for bindings in lock(&self.0).values() {
            bindings.predecessor.bound.sub(bindings.predecessor.bound.value());
        }
    }

    /// Returns the number of sessions bound to a member now, and the number that moved elsewhere so far.
    pub(crate) fn counts(&self, record: &Arc<MemberRecord>) -> (u64, u64) {
        let Some(bindings) = lock(&self.0).get(&(Arc::as_ptr(record) as usize)).cloned() else {
            return (0, 0);
        };
        let all_counters = || bindings.counts.iter().chain(std::iter::once(&bindings.predecessor));
        let sum = |count: fn(&BindingCounters) -> &Counter| {
            all_counters().map(|counters| count(counters).value()).sum()
        };
        (sum(|counters| &counters.bound), sum(|counters| &counters.moved))
    }
}

impl MemberBindings {
    /// Returns `true` if no other owner holds the member's record. Then its sessions are gone as well, as
    /// they would hold it.
    fn is_orphaned(&self) -> bool {
        Arc::strong_count(&self.record) == 1
    }
}

/// Counts a session that returns with its cookie as moved elsewhere by its former member.
pub(crate) fn record_cookie_move(listener: &Listener, old_record: &Arc<MemberRecord>, new_member: MemberId) {
    listener.bindings_of(old_record).counts[listener.core].moved.add(1);
    let counters = old_record.core_counters(listener.core);
    counters.moved.add(1);
    counters.rebinds.record(Some(new_member));
}

/// A session's side of its binding.
#[derive(Default)]
pub(crate) struct SessionBinding {
    binding: Option<BindingGuard>,
    /// Whether the member, under alert, has closed the connection of its last response.
    closed_by_member: bool,
    moves: MoveHistory,
    share: ShareCounter,
    /// The header line for the response to the current request: the cookie by which the client returns.
    pub(crate) cookie: Option<Box<[u8]>>,
    /// The reason why the current request got its member, as far as the session decided it.
    pub(crate) choice: ChoiceReason,
}

/// The state carried over when a session moves to another member.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MovedSession {
    /// The load in units of capacity × load; 0 if unknown. Where the session's share is unknown, this assumes
    /// that all load comes from this process.
    load: f32,
    /// Set if the session is as large as the gap: it changes places with another.
    exchange: Option<SessionExchange>,
}

/// A session as counted with its member.
struct BindingGuard {
    bindings: Arc<MemberBindings>,
    core: usize,
    /// The member's index in the plan at the last lookup.
    index: usize,
}

impl BindingGuard {
    fn count(&self) -> &BindingCounters {
        &self.bindings.counts[self.core]
    }
}

impl Drop for BindingGuard {
    fn drop(&mut self) {
        self.count().bound.sub(1);
    }
}

impl SessionBinding {
    /// Binds the session to the member of the request in flight; does nothing if it is already bound to it.
    pub(crate) fn hold(&mut self, listener: &Listener, in_flight: &InFlight) {
        let record = &in_flight.upstream.record;
        self.closed_by_member = false;
        if self.binding.as_ref().is_some_and(|guard| Arc::ptr_eq(&guard.bindings.record, record)) {
            if let BindingMode::OnDemand(_) = listener.settings().binding {
                self.share.record_request(record.vitals.begun_here(), in_flight.begun);
            }
            return;
        }
        self.share = ShareCounter::begin(record.vitals.begun_here(), in_flight.begun);
        let bindings = listener.bindings_of(record);
        let guard = BindingGuard { bindings, core: listener.core, index: in_flight.place() };
        guard.count().bound.add(1);
        self.binding = Some(guard);
    }

    /// Returns the index in the plan of the session's member, if it may still be chosen.
    fn plan_index(&mut self, view: &PlanView) -> Option<usize> {
        let guard = self.binding.as_mut()?;
        let records = &view.published.records;
        let is_bound_record = |record: &Arc<MemberRecord>| Arc::ptr_eq(record, &guard.bindings.record);
        if !records.get(guard.index).is_some_and(is_bound_record) {
            guard.index = records.iter().position(is_bound_record)?;
        }
        Some(guard.index)
    }

    /// Returns `true` if the session leaves its member now, which is under alert and not the only one. Each
    /// decision asks a session once; if the result is `true`, the move has been recorded.
    pub(crate) fn should_leave(&mut self, view: &PlanView, random_bits: u64, now: Time) -> bool {
        let Some(index) = self.plan_index(view) else { return false };
        let members = view.published.plan.members();
        members.len() > 1 && should_session_move(members[index].shed, &mut self.moves, random_bits, now)
    }

    /// Decides as [`SessionBinding::should_leave`] for a session of many requests, whose size is known from
    /// them. If `is_led`, the balancer chooses its next member, so the session may change places with
    /// another.
    pub(crate) fn begin_move(
        &mut self,
        view: &PlanView,
        is_led: bool,
        random_bits: u64,
        now: Time,
    ) -> Option<MovedSession> {
        let index = self.plan_index(view)?;
        let plan = &view.published.plan;
        let Member { shed, vitals, capacity, .. } = &plan.members()[index];
        if plan.members().len() < 2 {
            return None;
        }
        let (share_counter, mut moved_session) = (&self.share, MovedSession::default());
        let share_estimate = || share_counter.estimate(vitals.begun_here(), now);
        if random_bits.is_multiple_of(SIZE_UPDATE_INTERVAL)
            && let Some(ShareEstimate { rate, .. }) = share_estimate()
        {
            vitals.migration.asked(rate);
        }
        let session_size = || {
            let ShareEstimate { member_share: process_share, rate } = share_estimate()?;
            // The session's share of the load is at most its share of what this process sends, whatever
            // members report.
            let load_share = match view.published.settings.session_load {
                SessionLoad::Unknown => None,
                SessionLoad::Own => Some(process_share),
                SessionLoad::Rate => Some(process_share.min(rate / shed.load)),
                SessionLoad::RateForSize => Some(process_share.min(rate / (shed.load * *capacity as f32))),
            };
            moved_session.load = load_share.unwrap_or(process_share) * shed.load * *capacity as f32;
            let exchange = load_share
                .filter(|_| is_led)
                .and_then(|load_share| SessionExchange::of(load_share, rate, shed));
            moved_session.exchange = exchange.filter(|exchange| {
                plan.exchange_partner(*exchange, moved_session.load, random_bits, index, now).is_some()
            });
            Some(SessionSize { process_share, load_share, can_exchange: moved_session.exchange.is_some() })
        };
        should_sized_session_move(*shed, &vitals.migration, session_size, &mut self.moves, random_bits, now)
            .then_some(moved_session)
    }

    /// Records that this member has closed the connection of its response to the session.
    pub(crate) fn record_closed_by(&mut self, member: MemberId, view: &PlanView) {
        self.closed_by_member = self.is_bound_to(member) && self.is_under_alert(view);
    }

    /// Returns `true` if the session's member is under alert and not the only one.
    fn is_under_alert(&mut self, view: &PlanView) -> bool {
        let Some(index) = self.plan_index(view) else { return false };
        let members = view.published.plan.members();
        members.len() > 1 && members[index].shed.share > 0.0
    }

    /// Returns the carried-over state if the member has sent the session away. Members that act on alerts
    /// themselves do so by closing the connection of their last response. Returns `None` if the member is
    /// under no alert or is the only one. Also `None` if the session has moved recently, since a member may
    /// close all its connections.
    pub(crate) fn moved_by_member(&mut self, view: &PlanView, now: Time) -> Option<MovedSession> {
        if !std::mem::take(&mut self.closed_by_member) || !self.is_under_alert(view) {
            return None;
        }
        let index = self.plan_index(view)?;
        let period = view.published.plan.members()[index].shed.period;
        may_session_escape(&mut self.moves, period, now).then(MovedSession::default)
    }

    /// Finds a place at a member other than the session's own, for a session with this state; `None` if it
    /// has to stay.
    pub(crate) fn admit_elsewhere(
        &mut self,
        pool: &GroupPool,
        view: &Rc<PlanView>,
        (key, random_bits): (u64, u64),
        work: WorkKind,
        MovedSession { load, exchange }: MovedSession,
        now: Time,
    ) -> Option<InFlight> {
        let bound_index = self.plan_index(view)?;
        let plan = &view.published.plan;
        let tried = [plan.members()[bound_index].id];
        let target = match exchange {
            // No other member would improve the balance.
            Some(exchange) => Some(plan.exchange_partner(exchange, load, random_bits, bound_index, now)?),
            None if load > 0.0 => plan.sized_rebind_target(load, random_bits, &tried, now),
            None => plan.target(random_bits, &tried, now),
        };
        let in_flight = match target.and_then(|target_index| pool.admit_to(view, target_index, now)) {
            Some(in_flight) => in_flight,
            None if exchange.is_some() => return None,
            None => match pool.admit_in_view(Rc::clone(view), key, random_bits, now, &tried, work) {
                AdmissionOutcome::Admitted(in_flight) => in_flight,
                AdmissionOutcome::Full | AdmissionOutcome::Overloaded | AdmissionOutcome::NoCandidate => {
                    return None;
                }
            },
        };
        in_flight.upstream.record.vitals.migration.record_arrival(load);
        Some(in_flight)
    }

    /// Returns a place at the session's own member, even a draining one if its sessions stay. Returns `None`
    /// if the member is unusable or has no room.
    pub(crate) fn admit_to_own(
        &mut self,
        pool: &GroupPool,
        view: &Rc<PlanView>,
        now: Time,
    ) -> Option<InFlight> {
        match self.plan_index(view) {
            Some(index) => pool.admit_to(view, index, now),
            None => {
                let (draining_view, index) = view.draining_at(&self.binding.as_ref()?.bindings.record)?;
                pool.admit_to(draining_view, index, now)
            }
        }
    }

    /// Appends the header lines for the client's response.
    #[cold]
    pub(crate) fn append_headers(&self, header_lines: &mut Vec<u8>) {
        header_lines.extend_from_slice(self.cookie.as_deref().unwrap_or_default());
    }

    /// Returns `true` if the session has a member.
    pub(crate) fn is_bound(&self) -> bool {
        self.binding.is_some()
    }

    /// Returns `true` if the session is bound to this member.
    pub(crate) fn is_bound_to(&self, member: MemberId) -> bool {
        self.binding.as_ref().is_some_and(|guard| guard.bindings.record.id == member)
    }

    /// Counts the session as moved elsewhere by its member: to another one, or to return by itself.
    pub(crate) fn record_move(&self, target: Option<&InFlight>) {
        if let Some(guard) = &self.binding {
            guard.count().moved.add(1);
            let counters = guard.bindings.record.core_counters(guard.core);
            counters.moved.add(1);
            counters.rebinds.record(target.map(InFlight::member));
        }
    }
}

/// One in this many requests updates the session's size: often enough, as a member has many requests.
const SIZE_UPDATE_INTERVAL: u64 = 16;
