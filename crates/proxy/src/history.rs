//! The last ten minutes of a group, one sample a second: for charts, and for rates and times of late beside those since the start.
//!
//! Counts only grow, so what a second brought is a difference. Times of a group are those of the last five seconds: fewer requests make
//! no 99th percentile. Those of a member fade with a half life of five seconds. All of it is bounded: [`SECONDS`] samples, [`DRAWN`] members of which there are
//! lines, [`TIMED`] of which there are times of late. Of a member that has nothing to do nothing is kept, but since when it is there.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering::Relaxed;

use plimsoll_brain::status::{MemberRecent, MemberSecond, Recent, RecentSecond};
use plimsoll_brain::{MemberId, Time};

use crate::control::{Refusals, Ruled};
use crate::group::{Record, Stripe, Tally};
use crate::load_line::MIDDLES;
use crate::stats::{Count, Merged};

/// Samples that are kept: ten minutes.
pub(crate) const SECONDS: usize = 600;
/// Members of a group of which there are lines, and times of late: the first of them.
pub(crate) const DRAWN: usize = 32;
pub(crate) const TIMED: usize = 256;
/// Samples that times of a group are of.
const TIMES: usize = 5;
/// Samples that rates of a member are of, and what was moved.
const RATES: usize = 10;
const MINUTE: usize = 60;
/// Half life of a member's times, seconds.
const HALF: f64 = 5.0;
/// Answers that a median has to rest on for a member to be compared by it; old ones count less.
const STEADY: f32 = 5.0;
/// A sample that comes sooner after the last is left out.
const SOONEST: f64 = 0.5;

/// The last ten minutes of one group.
#[derive(Default)]
pub(crate) struct History {
    samples: VecDeque<Sample>,
    last: Option<Totals>,
    /// Times of requests, as counted at the end of each of the last samples.
    latencies: VecDeque<Vec<u64>>,
    members: BTreeMap<MemberId, Track>,
    /// Of members that may have a line: when they were seen first, in samples so far.
    came: BTreeMap<MemberId, u64>,
    /// Samples so far.
    count: u64,
}

/// One second.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    at: Time,
    offered: f32,
    completed: f32,
    failed: f32,
    refused: f32,
    p50: Option<f32>,
    p99: Option<f32>,
}

/// What was counted of a group so far, and what is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Totals {
    at: Time,
    ended: u64,
    failures: u64,
    rejected: u64,
    /// Those of the rejected for which no member had room.
    refused: u64,
    under_way: u64,
}

/// What was counted of a member so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    at: Time,
    requests: u64,
    failures: u64,
    moved: u64,
    /// Seconds that requests took, added up.
    seconds: f64,
}

/// One member.
#[derive(Default)]
struct Track {
    /// At the ends of the last samples, a minute at most.
    counts: VecDeque<Counts>,
    /// Its line, as long as the group's samples.
    line: VecDeque<MemberSecond>,
    times: Option<Fading>,
}

/// Requests by how long they took, of which old ones count less.
struct Fading {
    last: Vec<u64>,
    counts: Vec<f32>,
}

impl Fading {
    fn new(counts: &[u64]) -> Self {
        Self { last: counts.to_vec(), counts: vec![0.0; counts.len()] }
    }

    fn add(&mut self, counts: &[u64], seconds: f64) {
        let kept = (-seconds / HALF).exp2() as f32;
        for ((own, last), count) in self.counts.iter_mut().zip(&mut self.last).zip(counts) {
            *own = *own * kept + count.wrapping_sub(*last) as f32;
            *last = *count;
        }
    }

    fn fade(&mut self, seconds: f64) {
        let kept = (-seconds / HALF).exp2() as f32;
        self.counts.iter_mut().for_each(|own| *own *= kept);
    }

    fn quantile(&self, share: f64, middles: &[f64]) -> Option<f64> {
        quantile(self.counts.iter().map(|count| f64::from(*count)), share, middles)
    }
}

/// Seconds below which a share of what was counted lies; `None` of less than half a request.
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

/// Of a member, at the end of a second.
struct Seen {
    id: MemberId,
    counts: Counts,
    in_flight: u32,
    load: Option<f64>,
    /// Only of those that are timed.
    latencies: Option<Vec<u64>>,
}

impl Seen {
    /// Has it ever done anything, as far as this process knows?
    fn stirs(&self) -> bool {
        self.counts.requests > 0 || self.counts.moved > 0 || self.in_flight > 0 || self.load.is_some()
    }
}

impl History {
    /// Another second is over; lines are drawn of so many members at `most`.
    fn add(&mut self, now: Totals, latencies: &[u64], members: Vec<Seen>, most: usize, middles: &[f64]) {
        let before = self.last;
        if let Some(before) = before
            && now.at.since(before.at).as_secs_f64() < SOONEST
        {
            return;
        }
        self.end(before, now, latencies.to_vec(), middles);
        let here: BTreeSet<MemberId> = members.iter().map(|seen| seen.id).collect();
        self.members.retain(|id, _| here.contains(id));
        // Another group may have come, and this one have fewer lines for it.
        let draws: BTreeSet<MemberId> = members.iter().take(most).map(|seen| seen.id).collect();
        self.came.retain(|id, _| draws.contains(id));
        let length = self.samples.len();
        for (place, seen) in members.into_iter().enumerate() {
            let drawn = place < most;
            let came = drawn.then(|| *self.came.entry(seen.id).or_insert(self.count));
            let since = self.count - came.unwrap_or(self.count);
            let track = match self.members.entry(seen.id) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(_) if !seen.stirs() => continue,
                Entry::Vacant(fresh) => {
                    fresh.insert(Track::idle(since, &seen, before.map(|before| before.at)))
                }
            };
            track.add(&seen, drawn.then_some(length));
        }
    }

    /// Another second is over, in which nothing happened.
    pub(crate) fn rest(&mut self, middles: &[f64], now: Time) {
        let Some(before) = self.last.filter(|before| now.since(before.at).as_secs_f64() >= SOONEST) else {
            return;
        };
        let latencies = self.latencies.back().cloned().unwrap_or_default();
        self.end(Some(before), Totals { at: now, ..before }, latencies, middles);
        let length = self.samples.len();
        self.members.values_mut().for_each(|track| track.rest(now, length));
    }

    /// A second has ended, the first if there is none before.
    fn end(&mut self, before: Option<Totals>, now: Totals, latencies: Vec<u64>, middles: &[f64]) {
        self.last = Some(now);
        self.latencies.push_back(latencies);
        if let Some(before) = before {
            let sample = self.sample(before, now, middles);
            push(&mut self.samples, sample, SECONDS);
            self.count += 1;
        }
        if self.latencies.len() > TIMES {
            self.latencies.pop_front();
        }
    }

    fn sample(&self, before: Totals, now: Totals, middles: &[f64]) -> Sample {
        let seconds = now.at.since(before.at).as_secs_f64();
        let rate = |count: u64| (count as f64 / seconds) as f32;
        let [ended, failures, rejected] = [
            now.ended.saturating_sub(before.ended),
            now.failures.saturating_sub(before.failures),
            now.rejected.saturating_sub(before.rejected),
        ];
        // A member that left takes its counts with it; what is under way may be less than before.
        let came = (ended + rejected + now.under_way).saturating_sub(before.under_way);
        let (first, last) = (self.latencies.front(), self.latencies.back());
        let of = |share| {
            let counts = last?.iter().zip(first?).map(|(last, first)| last.wrapping_sub(*first) as f64);
            quantile(counts, share, middles).map(|seconds| seconds as f32)
        };
        Sample {
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
        let second = |sample: &Sample| RecentSecond {
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

    /// Returns how many requests ended with a member in the last minute, and the median of about the last ten
    /// seconds where it rests on enough of them.
    pub(crate) fn pace(&self, id: MemberId, middles: &[f64]) -> (u64, Option<f64>) {
        let Some(track) = self.members.get(&id) else { return (0, None) };
        let (Some(first), Some(last)) = (track.counts.front(), track.counts.back()) else { return (0, None) };
        let times = track.times.as_ref().filter(|times| times.counts.iter().sum::<f32>() >= STEADY);
        (last.requests.saturating_sub(first.requests), times.and_then(|times| times.quantile(0.5, middles)))
    }

    fn member(&self, id: MemberId, name: &str, middles: &[f64]) -> MemberRecent {
        let Some(track) = self.members.get(&id) else {
            let drawn = self.came.get(&id);
            let since = drawn.map_or(0, |came| usize::try_from(self.count - came).unwrap_or(usize::MAX));
            let seconds = (0..if drawn.is_some() { self.samples.len() } else { 0 })
                .rev()
                .map(|age| if age < since { NOTHING } else { MemberSecond::default() });
            return MemberRecent {
                name: name.to_owned(),
                seconds: seconds.collect(),
                ..MemberRecent::default()
            };
        };
        let mut line: VecDeque<MemberSecond> = track.line.clone();
        // One that came later has no past.
        while !line.is_empty() && line.len() < self.samples.len() {
            line.push_front(MemberSecond::default());
        }
        MemberRecent { seconds: line.into(), ..track.recent(name, middles) }
    }
}

/// A second in which a member did nothing.
const NOTHING: MemberSecond =
    MemberSecond { requests_per_second: Some(0.0), load: None, in_flight: Some(0.0) };

impl Track {
    /// Of a member that has done nothing for so many samples, up to the one before.
    fn idle(samples: u64, seen: &Seen, before: Option<Time>) -> Self {
        let line = (1..samples.min(SECONDS as u64)).map(|_| NOTHING).collect();
        // What it did in its first second is a difference, too.
        let counts = before.filter(|_| samples > 0).map(|at| Counts { at, ..Counts::default() });
        let times = seen.latencies.as_ref().filter(|_| counts.is_some());
        let times = times.map(|latencies| Fading::new(&vec![0; latencies.len()]));
        Self { counts: counts.into_iter().collect(), line, times }
    }

    /// Nothing happened in the second that is over.
    fn rest(&mut self, now: Time, length: usize) {
        let Some(before) = self.counts.back().copied() else { return };
        push(&mut self.counts, Counts { at: now, ..before }, MINUTE + 1);
        if let Some(times) = &mut self.times {
            times.fade(now.since(before.at).as_secs_f64());
        }
        if !self.line.is_empty() {
            push(&mut self.line, NOTHING, length.max(1));
        }
    }

    /// `drawn`: of how many samples there are lines, if there is one of this member.
    fn add(&mut self, seen: &Seen, drawn: Option<usize>) {
        let before = self.counts.back().copied();
        push(&mut self.counts, seen.counts, MINUTE + 1);
        let seconds = before.map_or(0.0, |before| seen.counts.at.since(before.at).as_secs_f64());
        if let Some(latencies) = &seen.latencies {
            match &mut self.times {
                Some(times) => times.add(latencies, seconds),
                None => self.times = Some(Fading::new(latencies)),
            }
        }
        let Some(length) = drawn else { return self.line.clear() };
        let Some(before) = before else { return };
        let requests = seen.counts.requests.saturating_sub(before.requests);
        let second = MemberSecond {
            requests_per_second: Some((requests as f64 / seconds.max(SOONEST)) as f32),
            load: seen.load.map(|load| load as f32),
            in_flight: Some(seen.in_flight as f32),
        };
        push(&mut self.line, second, length.max(1));
    }

    fn recent(&self, name: &str, middles: &[f64]) -> MemberRecent {
        let name = name.to_owned();
        let Some(now) = self.counts.back() else { return MemberRecent { name, ..MemberRecent::default() } };
        let back = |samples: usize| self.counts[self.counts.len().saturating_sub(samples + 1)];
        let (then, minute) = (back(RATES), back(MINUTE));
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

impl Ruled {
    /// Writes down what the last second brought, with lines of so many members at most.
    pub(crate) fn remember(&mut self, drawn: usize, now: Time) {
        // A process before this one has counted what is not of the last ten minutes here.
        let latencies = Merged::of(self.group.tallies.iter().map(|tally| &tally.latency));
        let sum = |count: &dyn Fn(&Tally) -> u64| -> u64 { self.group.tallies.iter().map(count).sum() };
        let rejected = sum(&|tally| tally.rejected.iter().map(Count::value).fold(0, u64::wrapping_add));
        let refused = Refusals::REASONS.map(|reason| self.group.rejected(reason)).iter().sum();
        let under_way = self.group.room.waiting();
        let mut all = Totals { at: now, rejected, refused, under_way, ..Totals::default() };
        let members: Vec<_> =
            self.analyzer.members().map(|(id, _, vitals)| (id, vitals.in_flight())).collect();
        let mut seen = Vec::with_capacity(members.len());
        for (place, (id, in_flight)) in members.into_iter().enumerate() {
            let Some(record) = self.record(id) else { continue };
            let counts = counts(record, now);
            all.ended += counts.requests;
            all.failures += counts.failures;
            all.under_way += u64::from(in_flight);
            let timed = || Merged::of(record.own().map(|stripe| &stripe.latency)).counts().to_vec();
            let load = (place < drawn).then(|| self.analyzer.effective(id, now)).flatten();
            let latencies = (place < TIMED && counts.requests > 0).then(timed);
            seen.push(Seen { id, counts, in_flight, load, latencies });
        }
        self.history.add(all, latencies.counts(), seen, drawn, &MIDDLES);
    }

    /// See [`Engine::recent`](crate::Engine::recent).
    pub(crate) fn recent(&self, now: Time) -> Recent {
        let middles = &*MIDDLES;
        // The one mark that an operator sets by its name; the others are the strategy's own.
        let spec = &self.settings.spec;
        let reject = spec.strategy.knobs.iter().position(|knob| knob.name == "reject");
        let reject_above =
            reject.and_then(|place| spec.knobs.0.get(place).copied()).filter(|mark| *mark > 0.0);
        let members = self.analyzer.members().enumerate().map(|(place, (id, spec, _))| MemberRecent {
            alert_above: (place < TIMED).then(|| self.analyzer.alert_above(id)).flatten(),
            reject_above,
            ..self.history.member(id, &spec.name, middles)
        });
        Recent { seconds: self.history.recent(now), members: members.collect() }
    }
}

fn counts(record: &Record, at: Time) -> Counts {
    let sum = |count: fn(&Stripe) -> &Count| -> u64 {
        record.own().map(|stripe| count(stripe).value()).fold(0, u64::wrapping_add)
    };
    Counts {
        at,
        requests: sum(|stripe| &stripe.requests),
        failures: sum(|stripe| &stripe.failures),
        moved: sum(|stripe| &stripe.moved) + record.lent.moved.load(Relaxed),
        seconds: record.own().map(|stripe| stripe.latency.seconds()).sum(),
    }
}

#[cfg(test)]
mod tests;
