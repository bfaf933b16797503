//! The probe pool of `prequal`: one core's recent results about some members, and the quantiles that make
//! members hot.
//!
//! A result is used as long as it is young, and only a limited number of times. Both keep an outdated result
//! from being used long after the member has changed. With each choice one result is removed in any case, in
//! turn the oldest and the worst, because good results are used up and bad ones would stay.

use alloc::vec::Vec;
use core::time::Duration;

use crate::hash::unit;
use crate::meter::Reading;
use crate::{Member, MemberId, Time};

/// The results of one core, at most `room`.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProbePool {
    probes: Vec<ProbeResult>,
    capacity: usize,
    /// The number of times that a result may be used.
    max_uses: f64,
    /// The loads of members without load reports, and of those with them. The former count requests in flight
    /// from here, the latter those of all balancers.
    loads: [LoadQuantile; 2],
    /// Whether the worst is removed next, and not the oldest.
    remove_worst_next: bool,
}

/// The loads of the last results, for the quantile.
#[derive(Clone, Debug, Default)]
struct LoadQuantile {
    recent: Vec<f64>,
    /// The index in `recent` of the next one.
    next: usize,
    /// The quantile of `recent` when it was last computed, and the number of results since.
    threshold: f64,
    samples_since_update: usize,
}

/// The loads above which members are hot.
#[derive(Clone, Copy)]
pub(super) struct HotThresholds([f64; 2]);

impl HotThresholds {
    /// Returns a member's load as a multiple of the load above which it is hot.
    pub(super) fn load_ratio(&self, probe: &ProbeResult, member: &Member, now: Time) -> f64 {
        probe.load(member, now) / self.0[usize::from(probe.report.is_some())]
    }
}

/// A result.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbeResult {
    /// The index in the plan of the time; another member may have it now.
    pub(super) index: usize,
    pub(super) member: MemberId,
    pub(super) at: Time,
    /// The member's load report; `None` without one, when the requests in flight from here decide.
    pub(super) report: Option<Reading>,
    /// The requests begun at the member by then.
    pub(super) begun: u32,
    /// The recent latency of a member without load reports, seconds; 0 if nothing is known.
    pub(super) latency: f64,
    /// The remaining uses, which the pool sets.
    pub(super) remaining_uses: f64,
}

impl ProbeResult {
    pub(super) fn new(index: usize, member: &Member, at: Time) -> Self {
        let begun = member.vitals.begun();
        Self { index, member: member.id, at, report: None, begun, latency: 0.0, remaining_uses: 0.0 }
    }

    /// Returns the requests in flight there with one more. It is the reported number, which fades into the
    /// mean within the time of a request, and the requests sent since.
    pub(super) fn queue(&self, member: &Member, now: Time) -> f64 {
        let own_in_flight = f64::from(member.in_flight());
        let Some(reading) = &self.report else { return own_in_flight + 1.0 };
        let decay = libm::exp(-now.since(self.at).as_secs_f64() / f64::from(reading.sojourn));
        let mean = f64::from(reading.mean_in_flight);
        let in_flight = mean + (f64::from(reading.in_flight) - mean) * decay;
        (in_flight + f64::from(member.vitals.begun().wrapping_sub(self.begun))).max(own_in_flight) + 1.0
    }

    /// Returns the requests in flight there with one more, divided by the weight.
    pub(super) fn load(&self, member: &Member, now: Time) -> f64 {
        self.queue(member, now) / member.weight
    }

    /// Returns the expected latency of a request there at its present load, seconds.
    pub(super) fn latency(&self, member: &Member, now: Time) -> f64 {
        self.report.as_ref().map_or(self.latency, |reading| {
            f64::from(reading.work) * (self.queue(member, now) / f64::from(reading.knee)).max(1.0)
        })
    }
}

impl ProbePool {
    /// Applies the settings of a plan.
    pub(super) fn set(&mut self, capacity: usize, uses: f64) {
        (self.capacity, self.max_uses) = (capacity, uses);
        if self.probes.len() > capacity {
            self.probes.drain(..self.probes.len() - capacity);
        }
    }

    /// Removes results that are too old, and those of a member that has left its index.
    pub(super) fn expire(&mut self, members: &[Member], now: Time, max_age: Duration) {
        self.probes.retain(|probe| {
            members.get(probe.index).is_some_and(|member| member.id == probe.member)
                && now.since(probe.at) <= max_age
        });
    }

    /// Adds a result in place of the member's previous one.
    pub(super) fn add(&mut self, probe: ProbeResult, member: &Member, random_bits: u64, now: Time) {
        if let Some(position) = self.probes.iter().position(|existing| existing.member == probe.member) {
            if probe.at <= self.probes[position].at && probe.report.is_some() {
                return;
            }
            self.probes.remove(position);
        }
        self.loads[usize::from(probe.report.is_some())].record(probe.load(member, now));
        if self.probes.len() >= self.capacity.max(1) {
            self.remove_oldest();
        }
        // A bound that is no whole number is met on average.
        let uses = if self.max_uses.is_finite() {
            libm::floor(self.max_uses + unit(random_bits))
        } else {
            self.max_uses
        };
        self.probes.push(ProbeResult { remaining_uses: uses, ..probe });
    }

    /// Returns the loads above which members are hot: this quantile of the recent ones. 1 for none.
    pub(super) fn hot_thresholds(&mut self, quantile: f64) -> HotThresholds {
        let [unreported, reported] = &mut self.loads;
        HotThresholds([unreported.quantile(quantile), reported.quantile(quantile)])
    }

    /// Returns the results.
    pub(super) fn probes(&self) -> &[ProbeResult] {
        &self.probes
    }

    /// Uses the result at `index`.
    pub(super) fn use_result(&mut self, index: usize) {
        let probe = &mut self.probes[index];
        probe.remaining_uses -= 1.0;
        if probe.remaining_uses < 1.0 {
            self.probes.remove(index);
        }
    }

    /// Removes a result, if enough are left and good ones are used up. In turn it is the oldest or the worst:
    /// the hot one with the most load, or else the slowest.
    pub(super) fn remove_one(&mut self, members: &[Member], thresholds: &HotThresholds, now: Time) {
        if self.probes.len() <= MIN_PROBES || self.max_uses.is_infinite() {
            return;
        }
        self.remove_worst_next = !self.remove_worst_next;
        if !self.remove_worst_next {
            self.remove_oldest();
            return;
        }
        let rank = |probe: &ProbeResult| {
            let Some(member) = members.get(probe.index) else { return (true, f64::INFINITY) };
            let load = thresholds.load_ratio(probe, member, now);
            if load > 1.0 { (true, load) } else { (false, probe.latency(member, now)) }
        };
        let ranked = self.probes.iter().map(rank).enumerate();
        let worst =
            ranked.max_by(|(_, left), (_, right)| left.0.cmp(&right.0).then(left.1.total_cmp(&right.1)));
        if let Some((index, _)) = worst {
            self.probes.remove(index);
        }
    }

    fn remove_oldest(&mut self) {
        let oldest = self.probes.iter().enumerate().min_by_key(|(_, probe)| probe.at);
        if let Some(index) = oldest.map(|(index, _)| index) {
            self.probes.remove(index);
        }
    }
}

impl LoadQuantile {
    fn record(&mut self, load: f64) {
        self.samples_since_update += 1;
        if self.recent.len() < MAX_SAMPLES {
            self.recent.push(load);
        } else {
            self.recent[self.next] = load;
            self.next = (self.next + 1) % MAX_SAMPLES;
        }
    }

    fn quantile(&mut self, quantile: f64) -> f64 {
        if quantile >= 1.0 || self.recent.is_empty() {
            return f64::INFINITY;
        }
        if self.samples_since_update >= UPDATE_INTERVAL.min(self.recent.len()) {
            self.samples_since_update = 0;
            let mut sorted = [0.0; MAX_SAMPLES];
            let sorted = &mut sorted[..self.recent.len()];
            sorted.copy_from_slice(&self.recent);
            let rank = ((quantile * sorted.len() as f64) as usize).min(sorted.len() - 1);
            self.threshold = *sorted.select_nth_unstable_by(rank, f64::total_cmp).1;
        }
        self.threshold
    }
}

/// The number of results for the quantile.
const MAX_SAMPLES: usize = 64;

/// The number of results after which the quantile is computed again.
const UPDATE_INTERVAL: usize = 8;

/// The number of results that are always kept: with fewer there is nothing to compare.
const MIN_PROBES: usize = 2;
