//! The load line of a group: its capacity, the free part, and the accuracy of such predictions.
//!
//! It is a value driven from outside, about once a second. The input is counts that exist anyway (requests,
//! their times, and the requests in flight at their start) and agents' reports
//! (`CapacityEstimator::observe`). Every `WINDOW` it computes these:
//!
//! 1. the requests a second that each member can serve (`member_estimate`: processors, the member's own
//!    reports, response times, each with an interval);
//! 2. the capacity of the members together (`group_capacity`), bounded by that of the balancer itself;
//! 3. by the response curve (`curve`), the times at other loads, with one member less or more, and with twice
//!    the traffic.
//!
//! Percentiles are anchored: the measured one, times the ratio of the curve at the other load and at this
//! one.
//!
//! The result is `unknown` if the data do not suffice. Predictions are kept and compared with later
//! measurements (`accuracy`). The load line is for display and for the autoscaler (`autoscale`): no request
//! is placed by it.
//!
//! `tests/load_line` runs it against members in virtual time.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::ToString;
use alloc::vec::Vec;
use core::time::Duration;

use crate::status::{LoadLine, MemberLoadLine};
use crate::{MemberId, Time};
use accuracy::PredictionAccuracy;
use balancer_capacity::BalancerCapacity;
use curve::{ServiceDistribution, Station};
use group_capacity::GroupCapacity;
use member_estimate::{BaseServiceTime, LoadWindow, MAX_FAILURE_SHARE, MemberEstimator};

mod accuracy;
mod balancer_capacity;
mod build_group;
mod concurrency;
mod curve;
mod group_capacity;
mod host_regression;
mod knee_fit;
mod member_estimate;
mod peer_capacity;
mod report;
mod utilization;

pub use concurrency::{CONCURRENCY_LEVELS, concurrency_level};
pub use utilization::CpuUtilization;

/// The state of a group in a look. All counts only grow while a member stays.
#[derive(Clone, Debug)]
pub struct GroupLoadSample<'a> {
    /// Whether the whole traffic is requests, which end by themselves. Sessions as long as their clients want
    /// have no service time.
    pub only_requests: bool,
    /// Whether the strategy sends less to a member with more load.
    pub by_load: bool,
    /// Whether, if not, each member gets its share of the weights, except for chance.
    pub by_weight: bool,
    /// All members of the group.
    pub members: &'a [MemberLoadSample<'a>],
    /// The numbers of whole requests by time; `bucket_middles` has the seconds of each.
    pub latencies: &'a [u64],
    /// The seconds of each count in `latencies`, ascending.
    pub bucket_middles: &'a [f64],
    /// The balancer's own process.
    pub process: ProcessUsage,
}

/// A member in a look.
#[derive(Clone, Debug)]
pub struct MemberLoadSample<'a> {
    /// The member.
    pub id: MemberId,
    /// Whether it may be chosen.
    pub usable: bool,
    /// Its weight among the usable members; 0 or more.
    pub weight: f64,
    /// Its configured capacity; above 0.
    pub capacity: f64,
    /// The ended requests.
    pub requests: u64,
    /// The failed ones among them.
    pub failures: u64,
    /// The time of all of them, seconds.
    pub seconds: f64,
    /// By [`concurrency_level`]: successful requests, and their nanoseconds. It may be empty if
    /// [`CapacityEstimator::is_current`] them.
    pub levels: &'a [[u64; 2]],
    /// Its own load report, if there is one.
    pub meter_report: Option<MeterReport>,
    /// The last report of its processors, and the time of the measurement.
    pub cpu: Option<(CpuUtilization, Time)>,
    /// The work of the members that share its host.
    pub cohosted: CohostedWork,
    /// The requests a second that other balancers send to it, whose part of its capacity this one does not
    /// have.
    pub rate_elsewhere: f64,
}

/// The work of other members on the same host, of any group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CohostedWork {
    /// Their number; a member that joins or leaves changes the counts at once.
    pub members: usize,
    /// The ended requests.
    pub requests: u64,
    /// The time of all of them, seconds.
    pub seconds: f64,
}

impl MemberLoadSample<'_> {
    /// Returns `true` if it has any data. Nothing is kept of a thousand unused members.
    fn has_data(&self) -> bool {
        self.requests > 0 || self.meter_report.is_some() || self.cpu.is_some()
    }
}

/// The report of a member's own meter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeterReport {
    /// The number of requests that it can work on at once before they slow one another down.
    pub knee: f64,
    /// The seconds that a request takes alone.
    pub work: f64,
}

/// The balancer's own process, all groups together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessUsage {
    /// The processor seconds so far.
    pub cpu_seconds: f64,
    /// The ended requests so far.
    pub requests: u64,
    /// The traffic that is no request, in any unit: bytes of sessions, datagrams. A look in which this has
    /// changed shows no cost of a request.
    pub other_traffic: u64,
    /// The processors that its threads can use.
    pub processors: f64,
}

/// The load line of one group.
#[derive(Clone, Debug, Default)]
pub struct CapacityEstimator {
    last_observed: Option<Time>,
    estimators: BTreeMap<MemberId, MemberEstimator>,
    /// The usable members at the last window.
    usable: Vec<MemberId>,
    window: LoadWindow,
    /// The recent requests and seconds.
    recent: [f64; 2],
    /// The counts at the last look; the requests by time; and the requests and seconds that those cover.
    last_latencies: Vec<u64>,
    latency_counts: Vec<f64>,
    timed_totals: [f64; 2],
    distribution: Option<ServiceDistribution>,
    /// The base time of the members together.
    base: BaseServiceTime,
    /// The ratio of the measured quantile to that of the curve, for each of [`QUANTILES`].
    anchors: [f64; 2],
    /// The time of the last computation.
    closed_at: Option<Time>,
    balancer: BalancerCapacity,
    accuracy: PredictionAccuracy,
    /// The next member to compute, if there are many.
    next_member: usize,
    load_line: Option<LoadLine>,
    /// `true` if the present rate is a lower end of the capacity.
    rate_is_floor: bool,
    /// `true` if many requests failed in this window.
    has_failures: bool,
    /// The windows for which the rate still includes that of a member that has left.
    stale_rate_windows: u32,
}

impl CapacityEstimator {
    /// Takes a look. At most two a second have an effect.
    pub fn observe(&mut self, sample: &GroupLoadSample<'_>, now: Time) {
        let Some(last_observed_at) =
            self.last_observed.filter(|observed_at| now.since(*observed_at) < MAX_SAMPLE_GAP)
        else {
            // The first look after a long break: only later traffic counts.
            let accuracy = core::mem::take(&mut self.accuracy);
            *self = Self {
                accuracy,
                load_line: self.load_line.take().filter(|_| !sample.only_requests),
                ..Self::default()
            };
            self.accuracy.forget();
            (self.last_observed, self.last_latencies) = (Some(now), sample.latencies.to_vec());
            self.balancer = BalancerCapacity::new(sample.process);
            for member in sample.members.iter().filter(|member| member.has_data()) {
                self.estimators.entry(member.id).or_default().observe(member, 1.0);
            }
            return;
        };
        let seconds = now.since(last_observed_at).as_secs_f64();
        if seconds < MIN_SAMPLE_SECONDS {
            return;
        }
        self.last_observed = Some(now);
        if !sample.only_requests {
            let reason = "it carries sessions, which last as long as they like";
            *self = Self { load_line: Some(report::unknown(0.0, 0.0, reason)), ..Self::default() };
            return;
        }
        if !self.estimators.is_empty() {
            let current_ids: BTreeSet<MemberId> = sample.members.iter().map(|member| member.id).collect();
            self.estimators.retain(|id, _| current_ids.contains(id));
        }
        let (mut total_requests, mut total_seconds, mut total_failures) = (0.0, 0.0, 0.0);
        for member in sample.members {
            if !member.has_data() && !self.estimators.contains_key(&member.id) {
                continue;
            }
            // It had no data at the last look, so it had done nothing.
            let totals = self
                .estimators
                .entry(member.id)
                .or_insert_with(MemberEstimator::idle)
                .observe(member, seconds);
            total_requests += totals.0;
            total_seconds += totals.1;
            total_failures += totals.2;
        }
        let is_sound = total_failures <= MAX_FAILURE_SHARE * total_requests;
        self.has_failures |= !is_sound;
        self.window.add(total_requests, total_seconds, seconds, true);
        let decay = decay_factor(seconds, RECENT_HALF_LIFE);
        for (recent, increment) in self.recent.iter_mut().zip([total_requests, seconds]) {
            *recent = *recent * decay + increment;
        }
        let decay = decay_factor(seconds, LATENCY_HALF_LIFE);
        for (timed, increment) in self.timed_totals.iter_mut().zip([total_requests, seconds]) {
            *timed = *timed * decay + increment;
        }
        self.record_latencies(sample, decay);
        self.balancer.observe(sample.process, seconds);
        if self.window.seconds >= WINDOW {
            self.close_window(sample, now);
        }
        let rate = self.rate();
        if let Some(load_line) = &mut self.load_line {
            load_line.requests_per_second = rate;
            if self.rate_is_floor && is_sound {
                let capacities =
                    [&mut load_line.capacity_low, &mut load_line.capacity, &mut load_line.capacity_high];
                capacities.into_iter().flatten().for_each(|capacity| *capacity = capacity.max(rate));
            }
            load_line.headroom = load_line.capacity.map(|capacity| 1.0 - rate / capacity);
            load_line.age_seconds =
                self.closed_at.map_or(0.0, |closed_at| now.since(closed_at).as_secs_f64());
        }
    }

    /// Returns `true` if a member with this number of ended requests has no new data. Its levels may then be
    /// omitted.
    pub fn is_current(&self, id: MemberId, requests: u64, now: Time) -> bool {
        let is_expired =
            self.last_observed.is_none_or(|observed_at| now.since(observed_at) >= MAX_SAMPLE_GAP);
        requests == 0
            || (!is_expired
                && self.estimators.get(&id).is_some_and(|estimator| estimator.is_current(requests)))
    }

    /// Returns the present requests a second.
    fn rate(&self) -> f64 {
        self.recent[0] / self.recent[1].max(1e-9)
    }

    /// Returns the load line; `None` before the first window is over.
    pub fn status(&self) -> Option<LoadLine> {
        self.load_line.clone()
    }

    /// Returns the capacity of a member; `None` if it never had a request.
    pub fn member(&self, id: MemberId) -> Option<MemberLoadLine> {
        let estimator = self.estimators.get(&id)?;
        self.load_line.as_ref()?;
        let rate = estimator.rate();
        let estimate = estimator.estimate;
        let known_estimate = estimate.filter(|estimate| estimate.known());
        Some(MemberLoadLine {
            requests_per_second: rate,
            capacity: known_estimate.map(|estimate| estimate.best),
            capacity_low: estimate.map(|estimate| estimate.low),
            capacity_high: estimate.map(|estimate| estimate.high).filter(|high| high.is_finite()),
            used: known_estimate.map(|estimate| rate / estimate.best),
            source: known_estimate.map(|estimate| estimate.source.to_string()),
        })
    }

    /// Records the times of the group's requests.
    fn record_latencies(&mut self, sample: &GroupLoadSample<'_>, decay: f64) {
        self.latency_counts.resize(sample.latencies.len(), 0.0);
        self.last_latencies.resize(sample.latencies.len(), 0);
        for ((time, last), count) in
            self.latency_counts.iter_mut().zip(&mut self.last_latencies).zip(sample.latencies)
        {
            *time = *time * decay + count.wrapping_sub(*last) as f64;
            *last = *count;
        }
    }

    /// Ends a window.
    fn close_window(&mut self, sample: &GroupLoadSample<'_>, now: Time) {
        let window = core::mem::take(&mut self.window);
        let windows: BTreeMap<MemberId, LoadWindow> =
            self.estimators.iter_mut().map(|(id, estimator)| (*id, estimator.close_window())).collect();
        let shape = self.distribution.clone().unwrap_or_else(ServiceDistribution::exponential);
        let count = self.estimators.len().max(1);
        let first_member = self.next_member;
        for (index, estimator) in self.estimators.values_mut().enumerate() {
            if (index + count - first_member % count) % count < UPDATES_PER_WINDOW {
                estimator.update_estimate(&shape);
            }
        }
        self.next_member =
            if count > UPDATES_PER_WINDOW { (first_member + UPDATES_PER_WINDOW) % count } else { 0 };
        let usable_members: Vec<MemberId> =
            sample.members.iter().filter(|member| member.usable).map(|member| member.id).collect();
        self.stale_rate_windows = self.stale_rate_windows.saturating_sub(1);
        if usable_members != self.usable {
            self.accuracy.forget();
            self.estimators.values_mut().for_each(MemberEstimator::restart_share);
            let current_ids: BTreeSet<&MemberId> = usable_members.iter().collect();
            if self.usable.iter().any(|id| !current_ids.contains(id)) {
                self.stale_rate_windows = STALE_RATE_WINDOWS;
            }
            self.usable = usable_members;
        }
        self.closed_at = Some(now);
        let rate = self.rate();
        let balancer = self.balancer.capacity(rate);
        let group = self.build_group(sample, &windows, &shape);
        let Some(capacity_range) = group.capacity_range(balancer) else {
            self.load_line = Some(report::unknown(rate, 0.0, "no member can be used"));
            return;
        };
        // The served rate is a lower end, unless a full member hides behind others that continue.
        let is_sound = !core::mem::take(&mut self.has_failures);
        self.rate_is_floor =
            is_sound && self.stale_rate_windows == 0 && (sample.by_load || !self.is_any_full(&group));
        let served_rate = if self.rate_is_floor { window.rate().max(rate) } else { 0.0 };
        if capacity_range.high > MAX_CAPACITY_RATIO * capacity_range.low.max(served_rate) {
            let reason = report::unknown_reason(self.usable.iter().filter_map(|id| self.estimators.get(id)));
            self.load_line = Some(report::unknown(rate, capacity_range.low.max(served_rate), &reason));
            return;
        }
        let stations = group.stations();
        let saturation_rate = group_capacity::saturation(&stations).unwrap_or(capacity_range.best);
        if capacity_range.proven && window.is_steady() && window.requests >= MIN_REQUESTS {
            self.accuracy.check(&window, &shape, saturation_rate.min(balancer), now);
            self.accuracy.keep_prediction(window.rate(), &stations, balancer, now);
        }
        self.anchor(&stations, &window, saturation_rate, &shape, sample.bucket_middles);
        let mut source = self.capacity_source(sample);
        if self.balancer.is_mixed() {
            source.push_str(report::MIXED_TRAFFIC_NOTE);
        }
        let inputs = report::LoadLineInputs {
            group: &group,
            shape: &shape,
            anchors: self.anchors,
            rate,
            balancer,
            served: served_rate,
        };
        self.load_line = Some(inputs.load_line(capacity_range, &self.accuracy, &source));
    }

    /// Returns `true` if a member has about as much load as it can serve.
    fn is_any_full(&self, group: &GroupCapacity) -> bool {
        let rates = self.usable.iter().map(|id| self.estimators.get(id).map_or(0.0, MemberEstimator::rate));
        rates
            .zip(&group.members)
            .any(|(rate, member)| !member.from_peers && rate >= FULL_UTILIZATION * member.capacity)
    }

    /// Compares measured percentiles with the curve's, while there is enough room for a reliable curve.
    fn anchor(
        &mut self,
        stations: &[Station],
        window: &LoadWindow,
        saturation_rate: f64,
        distribution: &ServiceDistribution,
        bucket_middles: &[f64],
    ) {
        let rate = self.timed_totals[0] / self.timed_totals[1].max(1e-9);
        // Times of another load would be taken for those of this one.
        let is_steady_rate = (window.rate() - rate).abs() <= SIMILAR_RATE_TOLERANCE * rate;
        if rate <= 0.0
            || rate > MAX_ANCHOR_UTILIZATION * saturation_rate
            || !is_steady_rate
            || !window.is_steady()
        {
            return;
        }
        let pairs: Vec<(f64, f64)> =
            bucket_middles.iter().copied().zip(self.latency_counts.iter().copied()).collect();
        let total_count: f64 = self.latency_counts.iter().sum();
        if total_count < MIN_REQUESTS {
            return;
        }
        for (anchor, share) in self.anchors.iter_mut().zip(QUANTILES) {
            let mut sample = 0.0;
            let measured = pairs.iter().find(|(_, count)| {
                sample += count;
                sample >= share * total_count
            });
            let predicted = curve::quantile(stations, rate, distribution, share);
            if let (Some((measured, _)), Some(predicted)) = (measured, predicted) {
                *anchor = (measured / predicted.max(1e-12)).clamp(1.0 / MAX_ANCHOR_FACTOR, MAX_ANCHOR_FACTOR);
            }
        }
        if self.distribution.is_none() || rate < CALM_UTILIZATION * saturation_rate {
            self.distribution = ServiceDistribution::of(&pairs).or_else(|| self.distribution.take());
        }
    }
}

/// Returns the remaining weight of data that are `seconds` old, with the half life `half`.
fn decay_factor(seconds: f64, half_life: f64) -> f64 {
    libm::exp2(-seconds / half_life)
}

/// The predicted percentiles.
const QUANTILES: [f64; 2] = [0.5, 0.99];

/// The seconds of a window.
const WINDOW: f64 = 5.0;

/// The minimum seconds between looks that count, and the break after which everything restarts.
const MIN_SAMPLE_SECONDS: f64 = 0.5;
const MAX_SAMPLE_GAP: Duration = Duration::from_secs(60);

/// The half lives, in seconds: of the demands, and of the present load.
const LONG_HALF_LIFE: f64 = 120.0;
const RECENT_HALF_LIFE: f64 = 4.0;

/// The half life of the times of requests, and the part by which the load may differ from its mean of that
/// time.
const LATENCY_HALF_LIFE: f64 = 20.0;
const SIMILAR_RATE_TOLERANCE: f64 = 0.2;

/// The number of members computed in a window.
const UPDATES_PER_WINDOW: usize = 32;

/// The greatest ratio of the ends of a range.
const MAX_CAPACITY_RATIO: f64 = 10.0;

/// The windows after which the rate hardly includes that of a member that has left.
const STALE_RATE_WINDOWS: u32 = 3;

/// The utilization from which a member is full.
const FULL_UTILIZATION: f64 = 0.9;

/// The requests of a window below which it does not count.
const MIN_REQUESTS: f64 = 30.0;

/// The utilization up to which percentiles are anchored, and up to which times are those of services.
const MAX_ANCHOR_UTILIZATION: f64 = 0.85;
const CALM_UTILIZATION: f64 = 0.7;

/// The maximum factor by which an anchor changes a percentile.
const MAX_ANCHOR_FACTOR: f64 = 4.0;
