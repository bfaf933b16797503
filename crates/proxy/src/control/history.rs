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
    last: Option<GroupTotals>,
    /// The latency histograms at the end of each of the last samples.
    latencies: VecDeque<Vec<u64>>,
    members: BTreeMap<MemberId, MemberHistory>,
    /// For members that may have a chart line: the number of samples before their first.
    idle_before: BTreeMap<MemberId, u64>,
    /// The number of samples so far.
    count: u64,
}

/// The sample of one second.
#[derive(Clone, Copy, Debug, PartialEq)]
struct HistorySample {
    at: Time,
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
    at: Time,
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
    at: Time,
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
    line: VecDeque<MemberSecond>,
    times: Option<DecayingHistogram>,
}

/// A latency histogram in which old requests weigh less.
struct DecayingHistogram {
    last: Vec<u64>,
    counts: Vec<f32>,
}

impl DecayingHistogram {
    fn new(counts: &[u64]) -> Self {
        Self { last: counts.to_vec(), counts: vec![0.0; counts.len()] }
    }

    fn add(&mut self, counts: &[u64], seconds: f64) {
        let kept = (-seconds / HALF_LIFE).exp2() as f32;
        for ((own, last), count) in self.counts.iter_mut().zip(&mut self.last).zip(counts) {
            *own = *own * kept + count.wrapping_sub(*last) as f32;
            *last = *count;
        }
    }

    fn fade(&mut self, seconds: f64) {
        let kept = (-seconds / HALF_LIFE).exp2() as f32;
        self.counts.iter_mut().for_each(|own| *own *= kept);
    }

    fn quantile(&self, share: f64, middles: &[f64]) -> Option<f64> {
        quantile(self.counts.iter().map(|count| f64::from(*count)), share, middles)
    }
}

/// Returns a quantile of a histogram, in seconds; `None` with less than half a request.
fn quantile(counts: impl Iterator<Item = f64> + Clone, share: f64, middles: &[f64]) -> Option<f64> {
    let all: f64 = counts.clone().sum();
    if all < 0.5 {
        return None;
    }
    let mut seen = 0.0;
    let found = counts.zip(middles).find(|(count, _)| {
        seen += count;
        seen >= share * all && *count > 0.0
    });
    found.map(|(_, middle)| *middle)
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
        now: GroupTotals,
        latencies: &[u64],
        members: Vec<MemberSample>,
        most: usize,
        middles: &[f64],
    ) {
        let before = self.last;
        if let Some(before) = before
            && now.at.since(before.at).as_secs_f64() < MIN_SAMPLE_INTERVAL
        {
            return;
        }
        self.finish_second(before, now, latencies.to_vec(), middles);
        let here: BTreeSet<MemberId> = members.iter().map(|seen| seen.id).collect();
        self.members.retain(|id, _| here.contains(id));
        // Another group may have been added, so that this one may have fewer lines.
        let draws: BTreeSet<MemberId> = members.iter().take(most).map(|seen| seen.id).collect();
        self.idle_before.retain(|id, _| draws.contains(id));
        let length = self.samples.len();
        for (place, seen) in members.into_iter().enumerate() {
            let drawn = place < most;
            let came = drawn.then(|| *self.idle_before.entry(seen.id).or_insert(self.count));
            let since = self.count - came.unwrap_or(self.count);
            let track = match self.members.entry(seen.id) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(_) if !seen.is_active() => continue,
                Entry::Vacant(fresh) => {
                    fresh.insert(MemberHistory::new_idle(since, &seen, before.map(|before| before.at)))
                }
            };
            track.add(&seen, drawn.then_some(length));
        }
    }

    /// Adds a sample in which nothing happened.
    pub(crate) fn add_idle(&mut self, middles: &[f64], now: Time) {
        let Some(before) =
            self.last.filter(|before| now.since(before.at).as_secs_f64() >= MIN_SAMPLE_INTERVAL)
        else {
            return;
        };
        let latencies = self.latencies.back().cloned().unwrap_or_default();
        self.finish_second(Some(before), GroupTotals { at: now, ..before }, latencies, middles);
        let length = self.samples.len();
        self.members.values_mut().for_each(|track| track.add_idle(now, length));
    }

    /// Ends a second; it is the first if there is no `before`.
    fn finish_second(
        &mut self,
        before: Option<GroupTotals>,
        now: GroupTotals,
        latencies: Vec<u64>,
        middles: &[f64],
    ) {
        self.last = Some(now);
        self.latencies.push_back(latencies);
        if let Some(before) = before {
            let sample = self.sample(before, now, middles);
            push(&mut self.samples, sample, SECONDS);
            self.count += 1;
        }
        if self.latencies.len() > LATENCY_SAMPLES {
            self.latencies.pop_front();
        }
    }

    fn sample(&self, before: GroupTotals, now: GroupTotals, middles: &[f64]) -> HistorySample {
        let seconds = now.at.since(before.at).as_secs_f64();
        let rate = |count: u64| (count as f64 / seconds) as f32;
        let [ended, failures, rejected] = [
            now.ended.saturating_sub(before.ended),
            now.failures.saturating_sub(before.failures),
            now.rejected.saturating_sub(before.rejected),
        ];
        // A member that left takes its counters with it; the work in flight may have decreased.
        let came = (ended + rejected + now.in_flight).saturating_sub(before.in_flight);
        let (first, last) = (self.latencies.front(), self.latencies.back());
        let of = |share| {
            let counts = last?.iter().zip(first?).map(|(last, first)| last.wrapping_sub(*first) as f64);
            quantile(counts, share, middles).map(|seconds| seconds as f32)
        };
        HistorySample {
            at: now.at,
            offered: rate(came),
            completed: rate(ended.saturating_sub(failures)),
            failed: rate(failures + rejected),
            refused: rate(now.refused.saturating_sub(before.refused)),
            p50: of(0.5),
            p99: of(0.99),
        }
    }

    fn recent(&self, now: Time) -> Vec<RecentSecond> {
        let second = |sample: &HistorySample| RecentSecond {
            age_seconds: now.since(sample.at).as_secs_f64(),
            offered: f64::from(sample.offered),
            completed: f64::from(sample.completed),
            failed: f64::from(sample.failed),
            refused: f64::from(sample.refused),
            p50: sample.p50.map(f64::from),
            p99: sample.p99.map(f64::from),
        };
        self.samples.iter().map(second).collect()
    }

    /// Returns the number of a member's requests that ended in the last minute. Also returns the median of
    /// about the last ten seconds, if there are enough requests.
    pub(crate) fn response_times(&self, id: MemberId, middles: &[f64]) -> (u64, Option<f64>) {
        let Some(track) = self.members.get(&id) else { return (0, None) };
        let (Some(first), Some(last)) = (track.counts.front(), track.counts.back()) else { return (0, None) };
        let times =
            track.times.as_ref().filter(|times| times.counts.iter().sum::<f32>() >= MIN_MEDIAN_WEIGHT);
        (last.requests.saturating_sub(first.requests), times.and_then(|times| times.quantile(0.5, middles)))
    }

    fn member(&self, id: MemberId, name: &str, middles: &[f64]) -> MemberRecent {
        let Some(track) = self.members.get(&id) else {
            let drawn = self.idle_before.get(&id);
            let since = drawn.map_or(0, |came| usize::try_from(self.count - came).unwrap_or(usize::MAX));
            let seconds = (0..if drawn.is_some() { self.samples.len() } else { 0 })
                .rev()
                .map(|age| if age < since { IDLE_SECOND } else { MemberSecond::default() });
            return MemberRecent {
                name: name.to_owned(),
                seconds: seconds.collect(),
                ..MemberRecent::default()
            };
        };
        let mut line: VecDeque<MemberSecond> = track.line.clone();
        // A member that was added later has no past.
        while !line.is_empty() && line.len() < self.samples.len() {
            line.push_front(MemberSecond::default());
        }
        MemberRecent { seconds: line.into(), ..track.recent(name, middles) }
    }
}

/// A second in which a member did nothing.
const IDLE_SECOND: MemberSecond =
    MemberSecond { requests_per_second: Some(0.0), load: None, in_flight: Some(0.0) };

impl MemberHistory {
    /// Creates the history of a member that has been idle for `samples` samples, up to the previous one.
    fn new_idle(samples: u64, seen: &MemberSample, before: Option<Time>) -> Self {
        let line = (1..samples.min(SECONDS as u64)).map(|_| IDLE_SECOND).collect();
        // The result of its first active second is a difference, too.
        let counts = before.filter(|_| samples > 0).map(|at| MemberTotals { at, ..MemberTotals::default() });
        let times = seen.latencies.as_ref().filter(|_| counts.is_some());
        let times = times.map(|latencies| DecayingHistogram::new(&vec![0; latencies.len()]));
        Self { counts: counts.into_iter().collect(), line, times }
    }

    /// Adds a second in which nothing happened.
    fn add_idle(&mut self, now: Time, length: usize) {
        let Some(before) = self.counts.back().copied() else { return };
        push(&mut self.counts, MemberTotals { at: now, ..before }, MINUTE + 1);
        if let Some(times) = &mut self.times {
            times.fade(now.since(before.at).as_secs_f64());
        }
        if !self.line.is_empty() {
            push(&mut self.line, IDLE_SECOND, length.max(1));
        }
    }

    /// Adds a sample. `drawn` is the length of chart lines, if this member has one.
    fn add(&mut self, seen: &MemberSample, drawn: Option<usize>) {
        let before = self.counts.back().copied();
        push(&mut self.counts, seen.counts, MINUTE + 1);
        let seconds = before.map_or(0.0, |before| seen.counts.at.since(before.at).as_secs_f64());
        if let Some(latencies) = &seen.latencies {
            match &mut self.times {
                Some(times) => times.add(latencies, seconds),
                None => self.times = Some(DecayingHistogram::new(latencies)),
            }
        }
        let Some(length) = drawn else { return self.line.clear() };
        let Some(before) = before else { return };
        let requests = seen.counts.requests.saturating_sub(before.requests);
        let second = MemberSecond {
            requests_per_second: Some((requests as f64 / seconds.max(MIN_SAMPLE_INTERVAL)) as f32),
            load: seen.load.map(|load| load as f32),
            in_flight: Some(seen.in_flight as f32),
        };
        push(&mut self.line, second, length.max(1));
    }

    fn recent(&self, name: &str, middles: &[f64]) -> MemberRecent {
        let name = name.to_owned();
        let Some(now) = self.counts.back() else { return MemberRecent { name, ..MemberRecent::default() } };
        let back = |samples: usize| self.counts[self.counts.len().saturating_sub(samples + 1)];
        let (then, minute) = (back(RATE_SAMPLES), back(MINUTE));
        let seconds = now.at.since(then.at).as_secs_f64();
        let rate = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        let timed = |share| self.times.as_ref()?.quantile(share, middles);
        MemberRecent {
            name,
            requests_per_second: rate(now.requests.saturating_sub(then.requests) as f64),
            failures_per_second: rate(now.failures.saturating_sub(then.failures) as f64),
            moved: now.moved.saturating_sub(minute.moved),
            in_flight: rate((now.seconds - then.seconds).max(0.0)),
            p50: timed(0.5),
            p99: timed(0.99),
            alert_above: None,
            reject_above: None,
            seconds: Vec::new(),
        }
    }
}

fn push<T>(ring: &mut VecDeque<T>, one: T, most: usize) {
    while ring.len() >= most {
        ring.pop_front();
    }
    ring.push_back(one);
}

impl GroupState {
    /// Records the last second, with chart lines for at most `drawn` members.
    pub(crate) fn record_second(&mut self, drawn: usize, now: Time) {
        // The counters of the previous process do not belong to the last ten minutes of this one.
        let latencies = HistogramSum::merge(self.group.counters.iter().map(|tally| &tally.latency));
        let sum =
            |count: &dyn Fn(&GroupCounters) -> u64| -> u64 { self.group.counters.iter().map(count).sum() };
        let rejected = sum(&|tally| tally.rejected.iter().map(Counter::value).fold(0, u64::wrapping_add));
        let refused = SheddingTracker::REASONS.map(|reason| self.group.rejected(reason)).iter().sum();
        let under_way = self.group.wait_queue.waiting();
        let mut all =
            GroupTotals { at: now, rejected, refused, in_flight: under_way, ..GroupTotals::default() };
        let members: Vec<_> =
            self.analyzer.members().map(|(id, _, vitals)| (id, vitals.in_flight())).collect();
        let mut seen = Vec::with_capacity(members.len());
        for (place, (id, in_flight)) in members.into_iter().enumerate() {
            let Some(record) = self.record(id) else { continue };
            let counts = counts(record, now);
            all.ended += counts.requests;
            all.failures += counts.failures;
            all.in_flight += u64::from(in_flight);
            let timed =
                || HistogramSum::merge(record.own_counters().map(|stripe| &stripe.latency)).counts().to_vec();
            let load = (place < drawn).then(|| self.analyzer.effective_load(id, now)).flatten();
            let latencies = (place < MAX_TIMED && counts.requests > 0).then(timed);
            seen.push(MemberSample { id, counts, in_flight, load, latencies });
        }
        self.history.add(all, latencies.counts(), seen, drawn, &MIDDLES);
    }

    /// Implements [`Engine::recent`](crate::Engine::recent).
    pub(crate) fn recent(&self, now: Time) -> GroupRecent {
        let middles = &*MIDDLES;
        // The one threshold that an operator sets by name; the others are the strategy's own.
        let spec = &self.settings.spec;
        let reject = spec.strategy.params.iter().position(|knob| knob.name == "reject");
        let reject_above =
            reject.and_then(|place| spec.params.0.get(place).copied()).filter(|mark| *mark > 0.0);
        let members = self.analyzer.members().enumerate().map(|(place, (id, spec, _))| MemberRecent {
            alert_above: (place < MAX_TIMED).then(|| self.analyzer.alert_threshold(id)).flatten(),
            reject_above,
            ..self.history.member(id, &spec.name, middles)
        });
        GroupRecent { seconds: self.history.recent(now), members: members.collect() }
    }
}

fn counts(record: &MemberRecord, at: Time) -> MemberTotals {
    let sum = |count: fn(&MemberCoreCounters) -> &Counter| -> u64 {
        record.own_counters().map(|stripe| count(stripe).value()).fold(0, u64::wrapping_add)
    };
    MemberTotals {
        at,
        requests: sum(|stripe| &stripe.requests),
        failures: sum(|stripe| &stripe.failures),
        moved: sum(|stripe| &stripe.moved) + record.leases.moved.load(Relaxed),
        seconds: record.own_counters().map(|stripe| stripe.latency.seconds()).sum(),
    }
}

#[cfg(test)]
mod tests;
