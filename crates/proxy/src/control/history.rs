//! The last ten minutes of a group, one sample per second: for charts, and for recent rates and latencies
//! beside those since the start.
//!
//! Counters only grow, so the result of a second is a difference. Latencies of a group are those of the last
//! five seconds, as fewer requests make no 99th percentile. Those of a member decay with a half-life of five
//! seconds.
//!
//! All of it is bounded: [`SECONDS`] samples, [`MAX_CHARTED`] members with a chart line, [`MAX_TIMED`]
//! members with recent latencies. For an idle member, only the time of its first sample is kept.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering::Relaxed;

use plimsoll_brain::status::{GroupRecent, MemberRecent, MemberSecond, RecentSecond};
use plimsoll_brain::{MemberId, Time};

use crate::control::load_line::MIDDLES;
use crate::control::{GroupState, SheddingTracker};
use crate::upstream::group::{GroupCounters, MemberCoreCounters, MemberRecord};
use crate::upstream::stats::{Counter, HistogramSum};

/// The number of samples that are kept: ten minutes.
pub(crate) const SECONDS: usize = 600;
/// The maximum number of a group's members with a chart line, and with recent latencies; the first of them
/// are shown.
pub(crate) const MAX_CHARTED: usize = 32;
pub(crate) const MAX_TIMED: usize = 256;
/// The number of samples for the latencies of a group.
const LATENCY_SAMPLES: usize = 5;
/// The number of samples for the rates of a member, and for its moved sessions.
const RATE_SAMPLES: usize = 10;
const MINUTE: usize = 60;
/// The half-life of a member's latencies, in seconds.
const HALF_LIFE: f64 = 5.0;
/// The minimum of weighted responses for a median by which a member is compared; old ones weigh less.
const MIN_MEDIAN_WEIGHT: f32 = 5.0;
/// A sample that follows the last one sooner than this is left out.
const MIN_SAMPLE_INTERVAL: f64 = 0.5;

/// The last ten minutes of one group.
#[derive(Default)]
pub(crate) struct GroupHistory {
    samples: VecDeque<HistorySample>,
    last_totals: Option<GroupTotals>,
    /// The latency histograms at the end of each of the last samples.
    latencies: VecDeque<Vec<u64>>,
    members: BTreeMap<MemberId, MemberHistory>,
    /// For members that may have a chart line: the number of samples before their first.
    idle_since_sample: BTreeMap<MemberId, u64>,
    /// The number of samples so far.
    count: u64,
}

/// The sample of one second.
#[derive(Clone, Copy, Debug, PartialEq)]
struct HistorySample {
    sampled_at: Time,
    offered: f32,
    completed: f32,
    failed: f32,
    refused: f32,
    p50: Option<f32>,
    p99: Option<f32>,
}

/// The counters of a group so far, and its work in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct GroupTotals {
    sampled_at: Time,
    ended: u64,
    failures: u64,
    rejected: u64,
    /// The rejected requests for which no member had room.
    refused: u64,
    in_flight: u64,
}

/// The counters of a member so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct MemberTotals {
    sampled_at: Time,
    requests: u64,
    failures: u64,
    moved: u64,
    /// The sum of the requests' latencies, in seconds.
    seconds: f64,
}

/// The history of one member.
#[derive(Default)]
struct MemberHistory {
    /// The counters at the ends of the last samples, a minute at most.
    counts: VecDeque<MemberTotals>,
    /// The chart line, as long as the group's samples.
    seconds: VecDeque<MemberSecond>,
    response_times: Option<DecayingHistogram>,
}

/// A latency histogram in which old requests weigh less.
struct DecayingHistogram {
    last_counts: Vec<u64>,
    counts: Vec<f32>,
}

impl DecayingHistogram {
    fn new(counts: &[u64]) -> Self {
        Self { last_counts: counts.to_vec(), counts: vec![0.0; counts.len()] }
    }

    fn add(&mut self, counts: &[u64], seconds: f64) {
        let decay = (-seconds / HALF_LIFE).exp2() as f32;
        for ((decayed, last_count), count) in self.counts.iter_mut().zip(&mut self.last_counts).zip(counts) {
            *decayed = *decayed * decay + count.wrapping_sub(*last_count) as f32;
            *last_count = *count;
        }
    }

    fn fade(&mut self, seconds: f64) {
        let decay = (-seconds / HALF_LIFE).exp2() as f32;
        self.counts.iter_mut().for_each(|decayed| *decayed *= decay);
    }

    fn quantile(&self, share: f64, middles: &[f64]) -> Option<f64> {
        quantile(self.counts.iter().map(|count| f64::from(*count)), share, middles)
    }
}

/// Returns a quantile of a histogram, in seconds; `None` with less than half a request.
fn quantile(counts: impl Iterator<Item = f64> + Clone, share: f64, middles: &[f64]) -> Option<f64> {
    let total: f64 = counts.clone().sum();
    if total < 0.5 {
        return None;
    }
    let mut seen = 0.0;
    let bucket = counts.zip(middles).find(|(count, _)| {
        seen += count;
        seen >= share * total && *count > 0.0
    });
    bucket.map(|(_, middle)| *middle)
}

/// A member's counters and gauges at the end of a second.
struct MemberSample {
    id: MemberId,
    counts: MemberTotals,
    in_flight: u32,
    load: Option<f64>,
    /// The latency histogram; only for members with recent latencies.
    latencies: Option<Vec<u64>>,
}

impl MemberSample {
    /// Returns `true` if the member has ever done anything, as far as this process knows.
    fn is_active(&self) -> bool {
        self.counts.requests > 0 || self.counts.moved > 0 || self.in_flight > 0 || self.load.is_some()
    }
}

impl GroupHistory {
    /// Adds a sample, with chart lines for at most `most` members.
    fn add(
        &mut self,
        totals: GroupTotals,
        latencies: &[u64],
        members: Vec<MemberSample>,
        max_charted: usize,
        middles: &[f64],
    ) {
        let previous = self.last_totals;
        if let Some(previous) = previous
            && totals.sampled_at.since(previous.sampled_at).as_secs_f64() < MIN_SAMPLE_INTERVAL
        {
            return;
        }
        self.finish_second(previous, totals, latencies.to_vec(), middles);
        let present: BTreeSet<MemberId> = members.iter().map(|sample| sample.id).collect();
        self.members.retain(|id, _| present.contains(id));
        // Another group may have been added, so that this one may have fewer lines.
        let charted: BTreeSet<MemberId> = members.iter().take(max_charted).map(|sample| sample.id).collect();
        self.idle_since_sample.retain(|id, _| charted.contains(id));
        let length = self.samples.len();
        for (index, sample) in members.into_iter().enumerate() {
            let is_charted = index < max_charted;
            let idle_since =
                is_charted.then(|| *self.idle_since_sample.entry(sample.id).or_insert(self.count));
            let idle_samples = self.count - idle_since.unwrap_or(self.count);
            let history = match self.members.entry(sample.id) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(_) if !sample.is_active() => continue,
                Entry::Vacant(entry) => entry.insert(MemberHistory::new_idle(
                    idle_samples,
                    &sample,
                    previous.map(|previous| previous.sampled_at),
                )),
            };
            history.add(&sample, is_charted.then_some(length));
        }
    }

    /// Adds a sample in which nothing happened.
    pub(crate) fn add_idle(&mut self, middles: &[f64], now: Time) {
        let Some(previous) = self
            .last_totals
            .filter(|previous| now.since(previous.sampled_at).as_secs_f64() >= MIN_SAMPLE_INTERVAL)
        else {
            return;
        };
        let latencies = self.latencies.back().cloned().unwrap_or_default();
        self.finish_second(Some(previous), GroupTotals { sampled_at: now, ..previous }, latencies, middles);
        let length = self.samples.len();
        self.members.values_mut().for_each(|history| history.add_idle(now, length));
    }

    /// Ends a second; it is the first if there is no `before`.
    fn finish_second(
        &mut self,
        previous: Option<GroupTotals>,
        now: GroupTotals,
        latencies: Vec<u64>,
        middles: &[f64],
    ) {
        self.last_totals = Some(now);
        self.latencies.push_back(latencies);
        if let Some(previous) = previous {
            let sample = self.sample(previous, now, middles);
            push(&mut self.samples, sample, SECONDS);
            self.count += 1;
        }
        if self.latencies.len() > LATENCY_SAMPLES {
            self.latencies.pop_front();
        }
    }

    fn sample(&self, previous: GroupTotals, now: GroupTotals, middles: &[f64]) -> HistorySample {
        let seconds = now.sampled_at.since(previous.sampled_at).as_secs_f64();
        let rate = |count: u64| (count as f64 / seconds) as f32;
        let [ended, failures, rejected] = [
            now.ended.saturating_sub(previous.ended),
            now.failures.saturating_sub(previous.failures),
            now.rejected.saturating_sub(previous.rejected),
        ];
        // A member that left takes its counters with it; the work in flight may have decreased.
        let offered = (ended + rejected + now.in_flight).saturating_sub(previous.in_flight);
        let (first, last) = (self.latencies.front(), self.latencies.back());
        let quantile_of = |share| {
            let counts = last?.iter().zip(first?).map(|(latest, oldest)| latest.wrapping_sub(*oldest) as f64);
            quantile(counts, share, middles).map(|seconds| seconds as f32)
        };
        HistorySample {
            sampled_at: now.sampled_at,
            offered: rate(offered),
            completed: rate(ended.saturating_sub(failures)),
            failed: rate(failures + rejected),
            refused: rate(now.refused.saturating_sub(previous.refused)),
            p50: quantile_of(0.5),
            p99: quantile_of(0.99),
        }
    }

    fn recent(&self, now: Time) -> Vec<RecentSecond> {
        let recent_second = |sample: &HistorySample| RecentSecond {
            age_seconds: now.since(sample.sampled_at).as_secs_f64(),
            offered: f64::from(sample.offered),
            completed: f64::from(sample.completed),
            failed: f64::from(sample.failed),
            refused: f64::from(sample.refused),
            p50: sample.p50.map(f64::from),
            p99: sample.p99.map(f64::from),
        };
        self.samples.iter().map(recent_second).collect()
    }

    /// Returns the number of a member's requests that ended in the last minute. Also returns the median of
    /// about the last ten seconds, if there are enough requests.
    pub(crate) fn response_times(&self, id: MemberId, middles: &[f64]) -> (u64, Option<f64>) {
        let Some(history) = self.members.get(&id) else { return (0, None) };
        let (Some(first), Some(last)) = (history.counts.front(), history.counts.back()) else {
            return (0, None);
        };
        let response_times = history
            .response_times
            .as_ref()
            .filter(|histogram| histogram.counts.iter().sum::<f32>() >= MIN_MEDIAN_WEIGHT);
        (
            last.requests.saturating_sub(first.requests),
            response_times.and_then(|histogram| histogram.quantile(0.5, middles)),
        )
    }

    fn member(&self, id: MemberId, name: &str, middles: &[f64]) -> MemberRecent {
        let Some(history) = self.members.get(&id) else {
            let idle_since = self.idle_since_sample.get(&id);
            let idle_seconds =
                idle_since.map_or(0, |sample| usize::try_from(self.count - sample).unwrap_or(usize::MAX));
            let seconds = (0..if idle_since.is_some() { self.samples.len() } else { 0 })
                .rev()
                .map(|age| if age < idle_seconds { IDLE_SECOND } else { MemberSecond::default() });
            return MemberRecent {
                name: name.to_owned(),
                seconds: seconds.collect(),
                ..MemberRecent::default()
            };
        };
        let mut seconds: VecDeque<MemberSecond> = history.seconds.clone();
        // A member that was added later has no past.
        while !seconds.is_empty() && seconds.len() < self.samples.len() {
            seconds.push_front(MemberSecond::default());
        }
        MemberRecent { seconds: seconds.into(), ..history.recent(name, middles) }
    }
}

/// A second in which a member did nothing.
const IDLE_SECOND: MemberSecond =
    MemberSecond { requests_per_second: Some(0.0), load: None, in_flight: Some(0.0) };

impl MemberHistory {
    /// Creates the history of a member that has been idle for `samples` samples, up to the previous one.
    fn new_idle(samples: u64, sample: &MemberSample, previous_time: Option<Time>) -> Self {
        let seconds = (1..samples.min(SECONDS as u64)).map(|_| IDLE_SECOND).collect();
        // The result of its first active second is a difference, too.
        let counts = previous_time
            .filter(|_| samples > 0)
            .map(|at| MemberTotals { sampled_at: at, ..MemberTotals::default() });
        let latencies = sample.latencies.as_ref().filter(|_| counts.is_some());
        let response_times = latencies.map(|latencies| DecayingHistogram::new(&vec![0; latencies.len()]));
        Self { counts: counts.into_iter().collect(), seconds, response_times }
    }

    /// Adds a second in which nothing happened.
    fn add_idle(&mut self, now: Time, length: usize) {
        let Some(previous) = self.counts.back().copied() else { return };
        push(&mut self.counts, MemberTotals { sampled_at: now, ..previous }, MINUTE + 1);
        if let Some(response_times) = &mut self.response_times {
            response_times.fade(now.since(previous.sampled_at).as_secs_f64());
        }
        if !self.seconds.is_empty() {
            push(&mut self.seconds, IDLE_SECOND, length.max(1));
        }
    }

    /// Adds a sample. `drawn` is the length of chart lines, if this member has one.
    fn add(&mut self, sample: &MemberSample, charted_length: Option<usize>) {
        let previous = self.counts.back().copied();
        push(&mut self.counts, sample.counts, MINUTE + 1);
        let seconds = previous
            .map_or(0.0, |previous| sample.counts.sampled_at.since(previous.sampled_at).as_secs_f64());
        if let Some(latencies) = &sample.latencies {
            match &mut self.response_times {
                Some(histogram) => histogram.add(latencies, seconds),
                None => self.response_times = Some(DecayingHistogram::new(latencies)),
            }
        }
        let Some(length) = charted_length else { return self.seconds.clear() };
        let Some(previous) = previous else { return };
        let requests = sample.counts.requests.saturating_sub(previous.requests);
        let second = MemberSecond {
            requests_per_second: Some((requests as f64 / seconds.max(MIN_SAMPLE_INTERVAL)) as f32),
            load: sample.load.map(|load| load as f32),
            in_flight: Some(sample.in_flight as f32),
        };
        push(&mut self.seconds, second, length.max(1));
    }

    fn recent(&self, name: &str, middles: &[f64]) -> MemberRecent {
        let name = name.to_owned();
        let Some(now) = self.counts.back() else { return MemberRecent { name, ..MemberRecent::default() } };
        let sample_before = |age: usize| self.counts[self.counts.len().saturating_sub(age + 1)];
        let (rate_base, minute_ago) = (sample_before(RATE_SAMPLES), sample_before(MINUTE));
        let seconds = now.sampled_at.since(rate_base.sampled_at).as_secs_f64();
        let rate = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        let quantile_of = |share| self.response_times.as_ref()?.quantile(share, middles);
        MemberRecent {
            name,
            requests_per_second: rate(now.requests.saturating_sub(rate_base.requests) as f64),
            failures_per_second: rate(now.failures.saturating_sub(rate_base.failures) as f64),
            moved: now.moved.saturating_sub(minute_ago.moved),
            in_flight: rate((now.seconds - rate_base.seconds).max(0.0)),
            p50: quantile_of(0.5),
            p99: quantile_of(0.99),
            alert_above: None,
            reject_above: None,
            seconds: Vec::new(),
        }
    }
}

fn push<T>(ring: &mut VecDeque<T>, item: T, max_len: usize) {
    while ring.len() >= max_len {
        ring.pop_front();
    }
    ring.push_back(item);
}

impl GroupState {
    /// Records the last second, with chart lines for at most `drawn` members.
    pub(crate) fn record_second(&mut self, max_charted: usize, now: Time) {
        // The counters of the previous process do not belong to the last ten minutes of this one.
        let latencies = HistogramSum::merge(self.group.counters.iter().map(|counters| &counters.latency));
        let sum =
            |count: &dyn Fn(&GroupCounters) -> u64| -> u64 { self.group.counters.iter().map(count).sum() };
        let rejected =
            sum(&|counters| counters.rejected.iter().map(Counter::value).fold(0, u64::wrapping_add));
        let refused = SheddingTracker::REASONS.map(|reason| self.group.rejected(reason)).iter().sum();
        let waiting = self.group.wait_queue.waiting();
        let mut totals =
            GroupTotals { sampled_at: now, rejected, refused, in_flight: waiting, ..GroupTotals::default() };
        let members: Vec<_> =
            self.analyzer.members().map(|(id, _, vitals)| (id, vitals.in_flight())).collect();
        let mut samples = Vec::with_capacity(members.len());
        for (index, (id, in_flight)) in members.into_iter().enumerate() {
            let Some(record) = self.record(id) else { continue };
            let counts = counts(record, now);
            totals.ended += counts.requests;
            totals.failures += counts.failures;
            totals.in_flight += u64::from(in_flight);
            let latency_counts = || {
                HistogramSum::merge(record.own_counters().map(|counters| &counters.latency)).counts().to_vec()
            };
            let load = (index < max_charted).then(|| self.analyzer.effective_load(id, now)).flatten();
            let latencies = (index < MAX_TIMED && counts.requests > 0).then(latency_counts);
            samples.push(MemberSample { id, counts, in_flight, load, latencies });
        }
        self.history.add(totals, latencies.counts(), samples, max_charted, &MIDDLES);
    }

    /// Implements [`Engine::recent`](crate::Engine::recent).
    pub(crate) fn recent(&self, now: Time) -> GroupRecent {
        let middles = &*MIDDLES;
        // The one threshold that an operator sets by name; the others are the strategy's own.
        let spec = &self.settings.spec;
        let reject_index = spec.strategy.params.iter().position(|param| param.name == "reject");
        let reject_above = reject_index
            .and_then(|index| spec.params.0.get(index).copied())
            .filter(|threshold| *threshold > 0.0);
        let members = self.analyzer.members().enumerate().map(|(index, (id, spec, _))| MemberRecent {
            alert_above: (index < MAX_TIMED).then(|| self.analyzer.alert_threshold(id)).flatten(),
            reject_above,
            ..self.history.member(id, &spec.name, middles)
        });
        GroupRecent { seconds: self.history.recent(now), members: members.collect() }
    }
}

fn counts(record: &MemberRecord, sampled_at: Time) -> MemberTotals {
    let sum = |count: fn(&MemberCoreCounters) -> &Counter| -> u64 {
        record.own_counters().map(|counters| count(counters).value()).fold(0, u64::wrapping_add)
    };
    MemberTotals {
        sampled_at,
        requests: sum(|counters| &counters.requests),
        failures: sum(|counters| &counters.failures),
        moved: sum(|counters| &counters.moved) + record.leases.moved.load(Relaxed),
        seconds: record.own_counters().map(|counters| counters.latency.seconds()).sum(),
    }
}

#[cfg(test)]
mod tests;
