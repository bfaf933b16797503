//! The immutable result of the slow path: the eligible members, their weights, and the table that the
//! strategy prepared to make each choice cheap.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use core::time::Duration;

use crate::fleet::PeerPresence;
use crate::member::failure_detector;
use crate::meter::Reading;
use crate::strategy::record_mean_latency;
use crate::time::nanos;
use crate::{DrainRate, Member, MemberId, PickRequest, PickerState, Strategy, StrategyParams, Time, Vitals};

mod admission;
mod rebind_target;
mod share;

pub use admission::RefusalReason;

/// The data that a strategy computes when members change, to save work per request.
#[derive(Clone, Debug)]
pub enum StrategyTable {
    /// No prepared data.
    None,
    /// A round that holds each member as often as its weight demands, spread evenly.
    Schedule(Vec<u32>),
    /// The index of a member for each remainder of a key.
    Slots(Vec<u32>),
    /// Walker's alias table. Each column holds its chance (out of 2^32) to stay, and the index to use
    /// otherwise.
    Alias(Vec<(u32, u32)>),
    /// The seed and the weight of each member (1 if all are equal), side by side for a fast scan.
    Seeds {
        /// The pairs in the order of the members.
        seeds: Vec<(u64, f64)>,
        /// Whether all members have the same weight.
        equal_weights: bool,
        /// The sum of the members' weights.
        weight_sum: f64,
    },
}

/// The outcome of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// An index into [`Plan::members`].
    Member(usize),
    /// Every remaining member is at its limit: the request waits.
    Full,
    /// One more request would overload each remaining member: the request is rejected.
    Shed,
    /// No member is left.
    NoMember,
}

/// The eligible members of a group and how to choose among them. It is swapped atomically and never changed.
#[derive(Clone, Debug)]
pub struct Plan {
    strategy: &'static Strategy,
    params: StrategyParams,
    members: Vec<Member>,
    table: StrategyTable,
    /// A serial number by which a [`PickerState`] distinguishes plans.
    serial: u64,
    /// The number of eligible members of the group when the plan was made.
    member_count: usize,
    /// The log-likelihood ratio at which a member is ejected.
    ejection_threshold: f64,
    /// Whether members are kept within their concurrency limits (`admission`).
    admission: bool,
    /// Whether the plan enforces `admission`, because the strategy does not.
    enforces_admission: bool,
    /// The latency objective of the clients.
    objective: Option<Duration>,
    /// The limit of this balancer's requests at all members together while one is in force; else 0.
    group_limit: Arc<AtomicU32>,
    /// The state of the other balancers.
    peers: Arc<PeerPresence>,
}

impl Plan {
    /// Makes a plan over `members`, all of them eligible, in the order of the configuration. Knobs that are
    /// missing or out of range are brought into it.
    pub fn new(strategy: &'static Strategy, params: StrategyParams, members: Vec<Member>) -> Self {
        let params = params.fit(strategy);
        let table = (strategy.prepare)(&members, &params);
        let member_count = members.len();
        let plan = Self {
            strategy,
            params,
            members,
            table,
            serial: 0,
            member_count,
            ejection_threshold: f64::INFINITY,
            admission: false,
            enforces_admission: false,
            objective: None,
            group_limit: Arc::default(),
            peers: Arc::default(),
        };
        plan.with_admission(strategy.enforces_limits)
    }

    /// Returns a plan with the same rules and no members.
    pub fn without_members(&self) -> Self {
        let plan = Self::new(self.strategy, self.params.clone(), Vec::new()).with_admission(self.admission);
        Self {
            ejection_threshold: self.ejection_threshold,
            member_count: self.member_count,
            objective: self.objective,
            ..plan
        }
    }

    /// Sets the serial number, which no other plan of the group has.
    pub(crate) fn with_serial(self, serial: u64) -> Self {
        Self { serial, ..self }
    }

    /// Shares a limit of the whole group, which can change while the plan is in use.
    pub(crate) fn with_group_limit(self, group_limit: Arc<AtomicU32>) -> Self {
        Self { group_limit, ..self }
    }

    /// Shares the state of other balancers, which can change while the plan is in use.
    pub fn with_peers(self, peers: Arc<PeerPresence>) -> Self {
        Self { peers, ..self }
    }

    /// Returns the load of a member by its requests in flight, from here and from elsewhere.
    ///
    /// The unit is requests of all balancers, if each had sent as many as this one. Without other balancers
    /// it is this balancer's requests in flight.
    #[inline]
    pub(crate) fn member_load(&self, member: &Member) -> f64 {
        f64::from(member.in_flight()) * self.peers.own_request_weight() + member.vitals.peer_in_flight()
    }

    /// Returns the expected requests in flight of all balancers at a member. It is the mean of two figures:
    /// the known requests, and the requests if each balancer had as many there as this one.
    #[inline]
    pub(crate) fn expected_in_flight(&self, member: &Member) -> f64 {
        f64::midpoint(self.member_load(member), f64::from(member.in_flight()))
    }

    /// Returns the known number of balancers.
    #[inline]
    pub(crate) fn balancer_count(&self) -> f64 {
        self.peers.own_request_weight()
    }

    /// Returns `true` if other balancers are known.
    pub(crate) fn has_peers(&self) -> bool {
        self.peers.own_request_weight() > 1.0
    }

    /// Returns `true` if a member sent a load report to another balancer.
    pub(crate) fn has_peer_reports(&self) -> bool {
        self.peers.has_relayed_reports()
    }

    /// Enables ejection by request outcomes, with this chance of a false alarm.
    pub(crate) fn with_outcome_ejection(self, false_alarm: f64) -> Self {
        Self { ejection_threshold: failure_detector::threshold(false_alarm), ..self }
    }

    /// Chooses a member for one request, never one in `tried` and never one at its limit.
    ///
    /// Between the choice and [`Vitals::begin`] another core may take the last place. If a limit must hold
    /// exactly, check the result of `begin`.
    pub fn choose(&self, picker: &mut PickerState, request: &PickRequest, tried: &[MemberId]) -> Choice {
        if self.members.is_empty() {
            return Choice::NoMember;
        }
        picker.sync_members(self.serial, &self.members);
        let first = (self.strategy.choose)(self, picker, request);
        let is_excluded = |member: &Member| {
            member.is_full()
                || tried.contains(&member.id)
                || (request.single_attempt && member.is_on_trial(request.now))
                || (self.enforces_admission && self.is_barred(member, request))
        };
        match self.members.get(first) {
            Some(member) if !is_excluded(member) => Choice::Member(first),
            _ => self.second_best(picker, request, tried),
        }
    }

    /// Returns how fast places become free, for a request that got [`Choice::Shed`] and may wait in
    /// [`WaitQueues`](crate::WaitQueues). The source is the time that requests from this core took, or else
    /// the recent latencies of the members.
    #[cold]
    pub fn drain_rate(&self, picker: &PickerState) -> DrainRate {
        let in_flight = self.sampled(|member| member.vitals.awaiting());
        let sojourn = picker.sojourn();
        if !sojourn.is_zero() {
            return DrainRate::new(sojourn, in_flight, self.objective);
        }
        let step = self.members.len().div_ceil(MAX_SAMPLED_MEMBERS).max(1);
        let latencies = self.members.iter().step_by(step).filter_map(|member| member.vitals.mean_latency());
        let (sum, count) = latencies.fold((0.0, 0.0), |(sum, count), nanos| (sum + nanos, count + 1.0));
        let sojourn = if count > 0.0 { Duration::from_nanos((sum / count) as u64) } else { Duration::ZERO };
        DrainRate::new(sojourn, in_flight, self.objective)
    }

    /// Returns the shortest latency to expect: the work of one request by the members' load reports, or else
    /// the recent latencies. Returns zero if nothing is known. A request with less time left waits in vain.
    #[cold]
    pub fn min_latency(&self, now: Time) -> Duration {
        let step = self.members.len().div_ceil(MAX_SAMPLED_MEMBERS).max(1);
        let service_time = |member: &Member| match member.current_report(now) {
            Some(report) => Some(report.reading.work),
            None => member.vitals.mean_latency().map(|nanos| nanos * 1e-9),
        };
        let min_seconds = self.members.iter().step_by(step).filter_map(service_time).reduce(f32::min);
        Duration::try_from_secs_f32(min_seconds.unwrap_or_default()).unwrap_or_default()
    }

    /// Returns the sum of a count of the members; in a large group, an estimate from a sample.
    fn sampled(&self, count_of: impl Fn(&Member) -> u32) -> u32 {
        let step = self.members.len().div_ceil(MAX_SAMPLED_MEMBERS).max(1);
        let sampled_sum: u32 = self.members.iter().step_by(step).map(count_of).fold(0, u32::saturating_add);
        sampled_sum.saturating_mul(step as u32)
    }

    /// Records the end of a request that this plan or an earlier one placed: the time from the choice to the
    /// end of the answer, and whether it failed. Returns `true` if the member's outcomes are bad enough to
    /// eject it; the caller then calls [`Analyzer::handle_suspicion`](crate::Analyzer::handle_suspicion).
    pub fn observe(
        &self,
        picker: &mut PickerState,
        vitals: &Vitals,
        latency: Duration,
        failed: bool,
        now: Time,
    ) -> bool {
        // While a limit is in force, a request may fail only because of too many requests.
        let is_limited = vitals.concurrency_limit().is_some() || self.group_limit.load(Relaxed) != 0;
        let overload_failure = failed && is_limited && vitals.is_longer(latency);
        self.record_latency(vitals, latency, failed, now);
        picker.record_latency(latency);
        if failed {
            vitals.record_unserved();
        }
        // Such a failure shows that there are too many requests, and nothing about the member.
        if overload_failure {
            return false;
        }
        let sum = vitals.failure_detector.record(failed, picker.failing());
        picker.record_outcome(failed, core::ptr::from_ref(vitals).addr(), self.member_count);
        failed && sum >= self.ejection_threshold
    }

    /// Records that the client of a request gave up after `latency`.
    ///
    /// The answer would have taken longer still, so the latency counts if it is longer than usual. If only
    /// answered requests counted, a member would seem the faster the more clients give up. It is no failure,
    /// because a client can give up at any time.
    pub fn client_left(&self, picker: &mut PickerState, vitals: &Vitals, latency: Duration, now: Time) {
        vitals.record_unserved();
        if vitals.mean_latency().is_some_and(|mean_latency| nanos(latency) > mean_latency) {
            self.record_latency(vitals, latency, false, now);
            picker.record_latency(latency);
        }
    }

    /// Records the latency of a request, without its outcome: the part of [`Plan::observe`] that needs no
    /// more.
    #[inline]
    pub fn record_latency(&self, vitals: &Vitals, latency: Duration, failed: bool, now: Time) {
        (self.strategy.observe)(&self.params, vitals, latency, failed, now);
        if self.enforces_admission && !self.strategy.reads_latency {
            record_mean_latency(&self.params, vitals, latency, failed, now);
        }
    }

    /// Records the load report that the member at `index` sent with an answer.
    pub fn record_report(&self, picker: &mut PickerState, index: usize, reading: &Reading, now: Time) {
        if let Some(member) = self.members.get(index) {
            if self.enforces_admission {
                picker.has_reports = true;
                member.vitals.last_report.record(reading, member.vitals.begun(), now);
            }
            (self.strategy.record_report)(picker, member, reading, now);
        }
    }

    /// Returns the figures by which the strategy and the admission judge a member of the plan, for display.
    pub fn explain(&self, member: &Member, now: Time) -> Vec<(&'static str, f64)> {
        let mut figures = (self.strategy.explain)(self, member, now);
        figures.extend(self.admission_figures(member, now));
        figures
    }

    /// Returns the eligible members in the order of the configuration.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns the data that the strategy prepared.
    pub fn table(&self) -> &StrategyTable {
        &self.table
    }

    /// Returns the strategy's settings: one number for each of its parameters, each within its range.
    pub fn params(&self) -> &StrategyParams {
        &self.params
    }

    /// Returns the strategy in force.
    pub fn strategy(&self) -> &'static Strategy {
        self.strategy
    }
}

/// The number of members whose requests are counted. In a larger group the counted members are evenly spread.
const MAX_SAMPLED_MEMBERS: usize = 64;

#[cfg(test)]
pub(crate) mod tests {
    use alloc::format;
    use alloc::sync::Arc;

    use super::*;
    use crate::{MemberState, ShedDecision, hash, mix, strategy};

    /// Returns members that are up and idle, one for each weight, without a limit.
    pub(crate) fn members(weights: &[f64]) -> Vec<Member> {
        let member = |(id, weight): (u8, &f64)| {
            let name = format!("10.0.0.{id}:80");
            Member {
                id: MemberId(u32::from(id)),
                address: name.parse().expect("an address"),
                seed: hash(name.as_bytes()),
                name: Arc::from(name),
                capacity: *weight,
                weight: *weight,
                limit: u32::MAX,
                state: MemberState::Up,
                load: None,
                effective: None,
                usage: None,
                shed: ShedDecision::default(),
                deficit: 0.0,
                vitals: Arc::default(),
            }
        };
        (0..).zip(weights).map(member).collect()
    }

    #[test]
    fn what_can_be_sent_only_once_is_no_trial() {
        for strategy in strategy::ALL {
            let plan = Plan::new(strategy, StrategyParams::defaults(strategy), members(&[1.0; 3]));
            let choice_counts = |plan: &Plan, single_attempt: bool| {
                let mut counts = [0_u32; 3];
                for turn in 0..300 {
                    let request = PickRequest {
                        turn,
                        random_bits: mix(turn),
                        key: mix(!turn),
                        now: Time(1),
                        single_attempt,
                        ..PickRequest::default()
                    };
                    match plan.choose(&mut PickerState::default(), &request, &[]) {
                        Choice::Member(index) => counts[index] += 1,
                        refusal => panic!("{}: {refusal:?}", strategy.name),
                    }
                }
                counts
            };
            plan.members()[0].vitals.failure_detector.begin_probation(0, Time(1));
            assert_eq!(choice_counts(&plan, true)[0], 0, "{}", strategy.name);
            assert_ne!(choice_counts(&plan, false)[0], 0, "{}: others are its trial", strategy.name);
            plan.members()
                .iter()
                .for_each(|member| member.vitals.failure_detector.begin_probation(0, Time(1)));
            assert_eq!(
                choice_counts(&plan, true).iter().sum::<u32>(),
                300,
                "{}: it is better than none",
                strategy.name
            );
        }
    }
}
