//! One core's view of a group: the current plan, and connection pools to its members.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use plimsoll_brain::{Choice, DrainRate, MemberId, PickRequest, PickerState, RetryBudget, Time};

use crate::net::byte_stream::ByteStream as _;
use crate::net::connection::PeerConnection;
use crate::protocol::http2::H2Pool;
use crate::protocol::iiop;
use crate::upstream::group::{GroupCounters, MemberCoreCounters, MemberRecord, PublishedPlan, SharedGroup};
use crate::upstream::in_flight::InFlight;

/// The version before the first: a core that has never used a group has nothing for its members.
const UNSEEN: u64 = 0;

/// One core's side of a group.
pub(crate) struct GroupPool {
    pub(crate) group: Arc<SharedGroup>,
    core: usize,
    seen_version: Cell<u64>,
    view: RefCell<Rc<PlanView>>,
    upstreams: RefCell<BTreeMap<MemberId, Rc<Upstream>>>,
    round: Cell<u64>,
    budget: RefCell<RetryBudget>,
    picker: Rc<RefCell<PickerState>>,
    /// The state of a group whose members speak GIOP.
    pub(crate) iiop: iiop::GiopGroupState,
}

/// The last publication, with this core's upstreams in the order of the plan's members.
pub(crate) struct PlanView {
    pub(crate) published: Arc<PublishedPlan>,
    upstreams: Vec<Rc<Upstream>>,
    /// Whether a member is under alert, so that its sessions should move.
    pub(crate) alert: bool,
    /// The view of drained members, for sessions bound to them.
    pub(crate) draining: Option<Rc<Self>>,
    /// The view without members; `None` in that view itself.
    empty_view: Option<Rc<Self>>,
}

/// One core's connections to one member.
pub(crate) struct Upstream {
    pub(crate) record: Arc<MemberRecord>,
    counters: Arc<MemberCoreCounters>,
    pub(crate) address: Cell<SocketAddr>,
    /// The strategy's state of this core, for the whole group.
    pub(crate) picker: Rc<RefCell<PickerState>>,
    /// A stack: the last connection in is the first out, so that those not needed age and are closed.
    idle: RefCell<Vec<IdleConnection>>,
    /// The pool of HTTP/2 connections, if the member speaks HTTP/2.
    pub(crate) http2_pool: H2Pool,
}

struct IdleConnection {
    stream: PeerConnection,
    since: Time,
}

/// The kind of work for which a member is chosen.
#[derive(Clone, Copy)]
pub(crate) enum WorkKind {
    /// A session with any amount of work, for any time.
    Session,
    Request {
        /// Whether a failure after the member may have processed the request is final.
        at_most_once: bool,
        /// Whether the request can be sent to another member after a refusal.
        resendable: bool,
        /// Whether its client's later requests go to the same member.
        binds: bool,
    },
}

impl WorkKind {
    /// Returns the same work, for a request that binds its client.
    pub(crate) fn binding(self) -> Self {
        match self {
            Self::Request { at_most_once, resendable, .. } => {
                Self::Request { at_most_once, resendable, binds: true }
            }
            Self::Session => Self::Session,
        }
    }
}

/// The result of a request for a member.
pub(crate) enum AdmissionOutcome {
    /// Admitted and counted at a member.
    Admitted(InFlight),
    /// Every member is at its limit.
    Full,
    /// Every member has as many requests in flight as it can process.
    Overloaded,
    /// There is no usable member.
    NoCandidate,
}

impl GroupPool {
    pub(crate) fn new(group: Arc<SharedGroup>, core: usize) -> Rc<Self> {
        let published = group.published();
        Rc::new(Self {
            core,
            seen_version: Cell::new(UNSEEN),
            view: RefCell::new(PlanView::new_empty(&published)),
            upstreams: RefCell::default(),
            // Cores begin at different members, so that they do not all choose the same sequence.
            round: Cell::new(core as u64),
            picker: Rc::new(RefCell::new(PickerState::new(initial_offset(core, group.counters.len())))),
            budget: RefCell::new(budget(&published, group.counters.len())),
            iiop: iiop::GiopGroupState::default(),
            group,
        })
    }

    /// Returns the current view.
    #[inline]
    pub(crate) fn view(&self) -> Rc<PlanView> {
        if self.group.version() != self.seen_version.get() {
            self.refresh();
        }
        Rc::clone(&self.view.borrow())
    }

    /// Updates the view to the last publication.
    #[cold]
    fn refresh(&self) {
        self.seen_version.set(self.group.version());
        self.apply_publication(self.group.published());
    }

    pub(crate) fn counters(&self) -> &GroupCounters {
        &self.group.counters[self.core]
    }

    /// Chooses a member and counts the request there.
    pub(crate) fn admit(
        &self,
        key: u64,
        random_bits: u64,
        now: Time,
        tried: &[MemberId],
        work: WorkKind,
    ) -> AdmissionOutcome {
        self.admit_in_view(self.view(), key, random_bits, now, tried, work)
    }

    /// Chooses a member whatever its limits, for a waiting request when none was served for a while; counts
    /// the request there.
    #[cold]
    pub(crate) fn admit_regardless(
        &self,
        key: u64,
        random_bits: u64,
        now: Time,
        tried: &[MemberId],
        work: WorkKind,
    ) -> AdmissionOutcome {
        self.choose(
            self.view(),
            PickRequest { key, random_bits, now, ignores_learnt_limits: true, ..PickRequest::default() },
            tried,
            work,
        )
    }

    /// Returns the member that would be chosen, to be given to a client without being counted.
    pub(crate) fn peek(
        &self,
        key: u64,
        random_bits: u64,
        now: Time,
        tried: &[MemberId],
    ) -> Option<(MemberId, SocketAddr)> {
        let view = self.view();
        let plan = &view.published.plan;
        let round = self.round.replace(self.round.get().wrapping_add(1));
        match plan.choose(
            &mut self.picker.borrow_mut(),
            &PickRequest { turn: round, random_bits, key, now, is_session: true, ..PickRequest::default() },
            tried,
        ) {
            Choice::Member(index) => plan.members().get(index).map(|member| (member.id, member.address)),
            Choice::Full | Choice::Shed | Choice::NoMember => None,
        }
    }

    /// Returns the expected minimum duration of a request; zero if unknown.
    pub(crate) fn min_duration(&self, now: Time) -> Duration {
        self.view().published.plan.min_latency(now)
    }

    /// Returns the time after which a request without room should be retried: the recent duration of
    /// requests, in whole seconds, as `Retry-After` requires.
    #[cold]
    pub(crate) fn retry_after_seconds(&self) -> u64 {
        whole_seconds(self.drain_rate().sojourn)
    }

    /// Returns a copy of this core's state between choices.
    pub(crate) fn picker(&self) -> PickerState {
        self.picker.borrow().clone()
    }

    /// Makes the next choice one for a session: those have turns over all cores.
    pub(crate) fn begin_session_choice(&self) {
        self.round.set(self.group.turn());
    }

    /// Chooses a member by the given view.
    pub(crate) fn admit_in_view(
        &self,
        view: Rc<PlanView>,
        key: u64,
        random_bits: u64,
        now: Time,
        tried: &[MemberId],
        work: WorkKind,
    ) -> AdmissionOutcome {
        self.choose(view, PickRequest { key, random_bits, now, ..PickRequest::default() }, tried, work)
    }

    #[inline]
    fn choose(
        &self,
        view: Rc<PlanView>,
        pick_request: PickRequest,
        tried: &[MemberId],
        work: WorkKind,
    ) -> AdmissionOutcome {
        let plan = &view.published.plan;
        let (at_most_once, is_session, resendable, binds_client) = match work {
            WorkKind::Session => (false, true, false, true),
            WorkKind::Request { at_most_once, resendable, binds } => (at_most_once, false, resendable, binds),
        };
        // At the first attempt only: each refusal costs a member time. Not for a session that looks for
        // another member, either. Its own member is among those in `tried`, and it had better stay.
        let may_try_stale = resendable && tried.is_empty() && self.group.wait_queue.is_empty();
        let (pick_request, now) = (
            PickRequest {
                single_attempt: at_most_once,
                is_session,
                binds_client,
                may_try_stale,
                ..pick_request
            },
            pick_request.now,
        );
        loop {
            let round = self.round.replace(self.round.get().wrapping_add(1));
            let choice = plan.choose(
                &mut self.picker.borrow_mut(),
                &PickRequest { turn: round, ..pick_request },
                tried,
            );
            match choice {
                Choice::Member(index) => {
                    let member = &plan.members()[index];
                    // Another core may have taken the last place in the meantime.
                    let level = member.vitals.begin_at(now);
                    if level > member.max_in_flight() {
                        member.vitals.end();
                        continue;
                    }
                    let upstream = Rc::clone(&view.upstreams[index]);
                    let group = Arc::clone(&self.group);
                    self.counters().begun.add(1);
                    return AdmissionOutcome::Admitted(InFlight::begin(
                        group, view, upstream, index, level, now,
                    ));
                }
                Choice::Full => return AdmissionOutcome::Full,
                Choice::Shed => return AdmissionOutcome::Overloaded,
                Choice::NoMember => return AdmissionOutcome::NoCandidate,
            }
        }
    }

    /// Counts the request at the member with this index in the plan, if that has room.
    pub(crate) fn admit_to(&self, view: &Rc<PlanView>, index: usize, now: Time) -> Option<InFlight> {
        let member = view.published.plan.members().get(index).filter(|member| !member.is_full())?;
        let level = member.vitals.begin_at(now);
        if level > member.max_in_flight() {
            member.vitals.end();
            return None;
        }
        let upstream = Rc::clone(&view.upstreams[index]);
        self.counters().begun.add(1);
        Some(InFlight::begin(Arc::clone(&self.group), Rc::clone(view), upstream, index, level, now))
    }

    /// Returns `true` if a member may keep its work, because it is in use or draining.
    pub(crate) fn can_keep(&self, member: MemberId) -> bool {
        let published = &self.view().published;
        self.upstreams.borrow().contains_key(&member) || published.draining.contains(&member)
    }

    /// Returns the rate at which room becomes free.
    pub(crate) fn drain_rate(&self) -> DrainRate {
        self.view().published.plan.drain_rate(&self.picker.borrow())
    }

    /// Returns `true` if requests wait for a member below its limit.
    pub(crate) fn has_waiting(&self) -> bool {
        self.group.wait_queue.queued() > 0
    }

    /// Counts a request towards the retry budget.
    pub(crate) fn deposit(&self, now: Time) {
        self.budget.borrow_mut().deposit(now);
    }

    /// Returns `true` if the retry budget allows another attempt, and takes it.
    pub(crate) fn withdraw(&self, now: Time) -> bool {
        let allowed = self.budget.borrow_mut().withdraw(now);
        let counters = self.counters();
        if allowed {
            counters.retries.add(1)
        } else {
            counters.retries_denied.add(1)
        }
        allowed
    }

    /// Closes idle connections that are too old, that the member closed, or whose member is no longer used.
    pub(crate) fn sweep(&self, now: Time) {
        if self.seen_version.get() == UNSEEN {
            return;
        }
        let view = self.view();
        let oldest = now - view.published.settings.pool_idle;
        for upstream in self.upstreams.borrow().values() {
            upstream.retain(|idle| idle.since >= oldest && idle.stream.is_idle());
            upstream.http2_pool.close_idle(oldest);
        }
    }

    /// Closes idle connections to free their descriptors.
    #[cold]
    pub(crate) fn close_idle(&self) {
        for upstream in self.upstreams.borrow().values() {
            upstream.retain(|_| false);
            upstream.http2_pool.close_idle(Time(u64::MAX));
        }
    }

    /// Closes all idle connections.
    pub(crate) fn close(&self) {
        self.upstreams.borrow().values().for_each(|upstream| upstream.clear());
        self.iiop.close_idle();
    }

    fn apply_publication(&self, published: Arc<PublishedPlan>) {
        // Connections were made with the earlier settings for TLS and HTTP/2.
        let upstream_settings = |settings: &crate::GroupSettings| (settings.tls.clone(), settings.http2);
        let settings_changed = upstream_settings(&self.view.borrow().published.settings)
            != upstream_settings(&published.settings);
        let mut upstreams = self.upstreams.borrow_mut();
        let mut upstreams_of = |published: &PublishedPlan| -> Vec<Rc<Upstream>> {
            let members = published.plan.members().iter().zip(&published.records);
            let plan_upstreams = members.map(|(member, record)| {
                let upstream = upstreams.entry(member.id).or_insert_with(|| {
                    Rc::new(Upstream {
                        record: Arc::clone(record),
                        counters: Arc::clone(record.core_counters(self.core)),
                        address: Cell::new(member.address),
                        picker: Rc::clone(&self.picker),
                        idle: RefCell::default(),
                        http2_pool: H2Pool::default(),
                    })
                });
                if upstream.address.replace(member.address) != member.address || settings_changed {
                    upstream.clear();
                }
                Rc::clone(upstream)
            });
            plan_upstreams.collect()
        };
        let members = upstreams_of(&published);
        let draining = published
            .draining_plan
            .as_ref()
            .map(|draining_plan| (Arc::clone(draining_plan), upstreams_of(draining_plan)));
        let draining_upstreams = draining.iter().flat_map(|(_, plan_upstreams)| plan_upstreams);
        let used_ids: BTreeSet<MemberId> =
            members.iter().chain(draining_upstreams).map(|upstream| upstream.record.id).collect();
        upstreams.retain(|id, upstream| {
            let is_used = used_ids.contains(id);
            if !is_used {
                upstream.clear();
            }
            is_used
        });
        let previous_settings = Arc::clone(&self.view.borrow().published.settings);
        if previous_settings.retry != published.settings.retry {
            *self.budget.borrow_mut() = budget(&published, self.group.counters.len());
        }
        let empty_view = self.view.borrow().without_members();
        let settings_unchanged = Arc::ptr_eq(&empty_view.published.settings, &published.settings);
        let empty_view = Some(if settings_unchanged { empty_view } else { PlanView::new_empty(&published) });
        let alert = published.plan.members().iter().any(|member| member.shed.share > 0.0);
        let draining_view = draining.map(|(published, upstreams)| {
            Rc::new(PlanView {
                published,
                upstreams,
                alert: false,
                draining: None,
                empty_view: empty_view.clone(),
            })
        });
        *self.view.borrow_mut() =
            Rc::new(PlanView { published, upstreams: members, alert, draining: draining_view, empty_view });
    }
}

impl PlanView {
    /// Returns the view without members.
    pub(crate) fn without_members(self: &Rc<Self>) -> Rc<Self> {
        Rc::clone(self.empty_view.as_ref().unwrap_or(self))
    }

    fn new_empty(published: &PublishedPlan) -> Rc<Self> {
        let settings = Arc::clone(&published.settings);
        let plan = published.plan.without_members();
        let published = Arc::new(PublishedPlan {
            plan,
            records: Vec::new(),
            others: Vec::new(),
            draining: Vec::new(),
            draining_plan: None,
            settings,
        });
        Rc::new(Self { published, upstreams: Vec::new(), alert: false, draining: None, empty_view: None })
    }

    /// Returns the view and the index of a drained member that still accepts the sessions bound to it.
    pub(crate) fn draining_at(&self, record: &Arc<MemberRecord>) -> Option<(&Rc<Self>, usize)> {
        let draining_view = self.draining.as_ref()?;
        let index =
            draining_view.published.records.iter().position(|candidate| Arc::ptr_eq(candidate, record))?;
        Some((draining_view, index))
    }
}

/// Returns the starting point of a core: the cores of a process are evenly spread, from a random offset of
/// this process.
fn initial_offset(core: usize, cores: usize) -> u64 {
    process_seed().wrapping_add(u64::MAX / cores.max(1) as u64 * core as u64)
}

/// Rounds up to seconds, from 1 to 60, as a longer duration does not predict the future.
fn whole_seconds(duration: Duration) -> u64 {
    (duration.as_secs() + u64::from(duration.subsec_nanos() > 0)).clamp(1, 60)
}

/// Returns a random number of this process.
pub(crate) fn process_seed() -> u64 {
    static PROCESS_SEED: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());
    *PROCESS_SEED
}

/// Returns the retry budget of a core, which holds its part of the minimum.
fn budget(published: &PublishedPlan, cores: usize) -> RetryBudget {
    let retry = &published.settings.retry;
    RetryBudget::new(retry.budget, retry.min_per_second / cores as f64)
}

impl Upstream {
    pub(crate) fn counters(&self) -> &MemberCoreCounters {
        &self.counters
    }

    /// Takes an idle connection, the last used first. Drops connections with unsolicited bytes, which would
    /// be taken for the response to the next request.
    pub(crate) fn check_out(&self) -> Option<PeerConnection> {
        let mut idle = self.idle.borrow_mut();
        while let Some(mut candidate) = idle.pop() {
            self.counters().idle.sub(1);
            if candidate.stream.is_idle() {
                return Some(candidate.stream);
            }
        }
        None
    }

    /// Keeps a connection for reuse, unless there are already `most`.
    #[inline(always)]
    pub(crate) fn check_in(&self, stream: PeerConnection, now: Time, max_idle: usize) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < max_idle {
            idle.push(IdleConnection { stream, since: now });
            self.counters().idle.add(1);
        }
    }

    /// Closes all idle connections, and lets no later request use the others.
    fn clear(&self) {
        self.retain(|_| false);
        self.http2_pool.retire_all();
    }

    fn retain(&self, keep: impl FnMut(&mut IdleConnection) -> bool) {
        let mut idle = self.idle.borrow_mut();
        let previous_len = idle.len();
        idle.retain_mut(keep);
        self.counters().idle.sub((previous_len - idle.len()) as u64);
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_brain::meter::Reading;

    use super::*;

    #[test]
    fn seconds_are_whole_ones_rounded_up() {
        let whole_seconds_of = |millis| whole_seconds(Duration::from_millis(millis));
        assert_eq!([0, 3, 1_000, 1_001, 2_500, 100_000].map(whole_seconds_of), [1, 1, 1, 2, 3, 60]);
    }

    #[test]
    fn who_was_full_a_while_ago_is_asked_by_a_request_that_can_be_sent_again_while_nobody_waits() {
        crate::test_util::run(async |core| {
            let (pool, _reports) = crate::test_util::pool_with_strategy(&core, None, "adaptive");
            let view = pool.view();
            let plan = &view.published.plan;
            // More than the few that are always allowed.
            let in_flight_requests =
                [(); 3].map(|()| pool.admit_to(&view, 0, Time(1)).expect("it has no limit"));
            let reading = Reading {
                in_flight: 9,
                knee: 4.0,
                work: 0.1,
                mean_in_flight: 9.0,
                sojourn: 0.1,
                ..Reading::default()
            };
            plan.record_report(&mut pool.picker.borrow_mut(), 0, &reading, Time(1));
            let admit = |work, tried: &[MemberId]| pool.admit(0, 0, Time(300_000_000), tried, work);
            let request = |resendable| WorkKind::Request { at_most_once: true, resendable, binds: false };
            let is_refused = |admission| matches!(admission, AdmissionOutcome::Overloaded);
            assert!(is_refused(admit(WorkKind::Session, &[])), "a session stays");
            assert!(is_refused(admit(request(false), &[])), "it would be lost");
            assert!(is_refused(admit(request(true), &[MemberId(7)])), "one has refused it");
            let queue_entry = pool.group.wait_queue.enter_queue(1);
            assert!(queue_entry.is_some() && is_refused(admit(request(true), &[])), "somebody is before it");
            drop(queue_entry);
            let AdmissionOutcome::Admitted(in_flight) = admit(request(true), &[]) else {
                panic!("it may have room by now")
            };
            assert!(is_refused(admit(request(true), &[])), "one at a time");
            in_flight.abandon();
            in_flight_requests.into_iter().for_each(InFlight::abandon);
        });
    }
}
