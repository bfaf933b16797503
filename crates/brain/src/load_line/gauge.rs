//! The capacity of one member from all its evidence, weighed.
//!
//! There are three sources, each with an interval: the processors by an agent's report (`busy`), the knee and
//! the work of a request by the member's own meter, and response times by requests in flight (`knee`). The
//! narrowest interval counts, within those of the others. If another interval lies wholly below, that one
//! holds: a request needs threads *and* processors, and the scarcer resource decides. Processors bound a
//! member only from above if a request's processor time is a small part of its time alone: the rest may have
//! a limit of its own that was not reached yet.
//!
//! `host` handles reports of a whole host, which include other work; `busy` those of the server alone.
//! Members that share a host have a part of it each: that of their requests in all balanced requests there. A
//! request of another member counts as more in proportion to its longer time.
//!
//! Requests of other balancers use its processors as well. The cost of a request follows from all of them,
//! and the remainder is this balancer's. Response times by requests in flight from here account for the
//! others by themselves.
//!
//! The rate of a window is a lower end whatever the sources. A member without a source has no other evidence
//! here; `peers` estimates the rest from other members.

use alloc::vec::Vec;

use super::busy::{Bound, Busy, Cpu};
use super::curve::Shape;
use super::host::{Found, Host, MUCH};
use super::knee;
use super::levels::Table;
use super::{Beside, MemberSeen, Said, keep};
use crate::Time;

/// The evidence of one member.
#[derive(Clone, Debug, Default)]
pub(super) struct Gauge {
    /// The requests, failures and seconds at the last look.
    last: Option<(u64, u64, f64)>,
    table: Table,
    busy: Busy,
    host: Host,
    /// Whether the last report was that of a whole host.
    whole: bool,
    /// The work of others that share its host, up to the last look and recently, and its own requests and
    /// their seconds.
    beside: Beside,
    shared: [f64; 4],
    /// The recent requests a second that other balancers send to it.
    elsewhere: f64,
    /// The share of its host that other work keeps busy, and whether that varies.
    other: Option<f64>,
    restless: bool,
    /// Whether there is certainly hardly any other work, or no report of a host.
    alone: bool,
    said: Option<Said>,
    /// The time of measurement of the last report of the processors.
    told: Option<Time>,
    window: Window,
    /// The requests, their seconds, and the seconds, over the last seconds.
    recent: [f64; 3],
    /// The requests over the last minutes, since the last change of the members.
    pub(super) long: f64,
    /// The recent maximum of the requests a second served for a window.
    peak: f64,
    pub(super) base: Base,
    pub(super) estimate: Option<Estimate>,
}

/// The counts of a window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    pub(super) seconds: f64,
    pub(super) requests: f64,
    /// The seconds that the requests took.
    pub(super) took: f64,
    /// The requests a second of the looks in it.
    least: f64,
    most: f64,
    looks: f64,
    unsound: bool,
    /// The requests of others that share its host, and of other balancers.
    beside: f64,
    elsewhere: f64,
    shares: f64,
    reports: f64,
    processors: Option<f64>,
}

/// The seconds that a request takes alone, averaged over windows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Base {
    sum: f64,
    weight: f64,
}

/// The capacity of a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Estimate {
    /// The requests a second; the upper end may be infinite.
    pub(super) low: f64,
    pub(super) best: f64,
    pub(super) high: f64,
    /// The simultaneous requests without waiting.
    pub(super) servers: f64,
    pub(super) shared: bool,
    /// The source, for display.
    pub(super) source: &'static str,
}

impl Estimate {
    /// Returns `true` if it is narrow enough for a number.
    pub(super) fn known(&self) -> bool {
        self.high <= WIDE * self.low
    }
}

impl Base {
    /// Adds the result of a window.
    pub(super) fn add(&mut self, seconds: f64, weight: f64, kept: f64) {
        self.sum = self.sum * kept + seconds * weight;
        self.weight = self.weight * kept + weight;
    }

    pub(super) fn seconds(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }
}

impl Window {
    /// Adds a look of `seconds`.
    pub(super) fn add(&mut self, requests: f64, took: f64, seconds: f64, sound: bool) {
        let rate = requests / seconds;
        self.least = if self.looks > 0.0 { self.least.min(rate) } else { rate };
        self.most = self.most.max(rate);
        self.looks += 1.0;
        self.seconds += seconds;
        self.requests += requests;
        self.took += took;
        self.unsound |= !sound;
    }

    /// Returns the requests a second.
    pub(super) fn rate(&self) -> f64 {
        self.requests / self.seconds.max(1e-9)
    }

    /// Returns `true` if the load was constant, except for chance, and requests succeeded.
    pub(super) fn steady(&self) -> bool {
        let chance = libm::sqrt(self.rate() * self.looks / self.seconds.max(1e-9));
        !self.unsound && self.most - self.least <= SAME * self.rate() + CHANCE * chance
    }
}

impl Gauge {
    /// Takes a look after `seconds`. Returns the ended requests, the time that they took, and the failed
    /// ones.
    pub(super) fn look(&mut self, seen: &MemberSeen<'_>, seconds: f64) -> (f64, f64, f64) {
        let counts = (seen.requests, seen.failures, seen.seconds);
        let beside = core::mem::replace(&mut self.beside, seen.beside);
        let Some((requests, failures, took)) = self.last.replace(counts) else {
            self.table.look(seen.levels, 1.0, false);
            return (0.0, 0.0, 0.0);
        };
        let ended = seen.requests.wrapping_sub(requests) as f64;
        let failed = seen.failures.wrapping_sub(failures) as f64;
        let took = (seen.seconds - took).max(0.0);
        let sound = failed <= FAILING * ended;
        // A level that is counted a moment before its request shows with the next request that ends.
        if ended > 0.0 {
            self.table.look(seen.levels, keep(seconds, super::MEMORY), sound);
        }
        self.window.add(ended, took, seconds, sound);
        self.window.elsewhere += seen.elsewhere * seconds;
        let kept = keep(seconds, super::RECENT);
        self.elsewhere = self.elsewhere * kept + seen.elsewhere * (1.0 - kept);
        self.said = seen.said;
        if let Some((cpu, at)) = seen.cpu.filter(|(_, at)| self.told.is_none_or(|told| *at > told)) {
            self.told = Some(at);
            self.whole = cpu.whole;
            self.window.shares += cpu.share;
            self.window.reports += 1.0;
            self.window.processors = cpu.processors;
        }
        self.long = self.long * keep(seconds, super::MEMORY) + ended;
        let others = seen.beside.requests.wrapping_sub(beside.requests) as f64;
        let theirs = (seen.beside.seconds - beside.seconds).max(0.0);
        // A new member brings all its earlier counts.
        let others = if seen.beside.members == beside.members { [others, theirs] } else { [0.0; 2] };
        self.window.beside += others[0];
        let kept = keep(seconds, super::MEMORY);
        for (shared, fresh) in self.shared.iter_mut().zip([ended, took, others[0], others[1]]) {
            *shared = *shared * kept + fresh;
        }
        let kept = keep(seconds, super::RECENT);
        for (recent, fresh) in self.recent.iter_mut().zip([ended, took, seconds]) {
            *recent = *recent * kept + fresh;
        }
        (ended, took, failed)
    }

    /// Returns the evidence of a member that has done nothing so far.
    pub(super) fn idle() -> Self {
        Self { last: Some((0, 0, 0.0)), table: Table::idle(), ..Self::default() }
    }

    /// Returns `true` if that many requests were counted at the last look.
    pub(super) fn knows(&self, requests: u64) -> bool {
        self.last.is_some_and(|(known, ..)| known == requests)
    }

    /// Restarts its share after a change of the members.
    pub(super) fn share_anew(&mut self) {
        self.long = 0.0;
    }

    /// Returns `true` if an agent ever reported its processors.
    pub(super) fn is_told(&self) -> bool {
        self.told.is_some()
    }

    /// Returns the recent requests a second.
    pub(super) fn rate(&self) -> f64 {
        self.recent[0] / self.recent[2].max(1e-9)
    }

    /// Ends a window and returns it.
    pub(super) fn close(&mut self) -> Window {
        let window = core::mem::take(&mut self.window);
        let kept = keep(window.seconds, super::MEMORY);
        self.host.pass(window.seconds);
        self.peak *= kept;
        if !window.steady() || window.requests <= 0.0 {
            return window;
        }
        self.peak = self.peak.max(window.rate());
        if window.reports > 0.0 {
            let (share, processors) = (window.shares / window.reports, window.processors);
            // The requests of all balancers.
            let all = window.rate() + window.elsewhere / window.seconds.max(1e-9);
            if self.whole {
                let others = window.beside / window.seconds.max(1e-9);
                self.host.add(all + others * self.dearer(), share, processors);
            } else {
                self.busy.add(all, Cpu { share, processors, whole: false }, window.seconds, kept);
            }
        }
        window
    }

    /// Returns the time of requests of others that share its host, as a multiple of its own.
    fn dearer(&self) -> f64 {
        let [requests, took, others, theirs] = self.shared;
        if took > 0.0 && others > 0.0 { theirs / others / (took / requests) } else { 0.0 }
    }

    /// Returns its part of the work of balanced requests on its host.
    fn part(&self) -> f64 {
        let [_, took, _, theirs] = self.shared;
        if took > 0.0 && theirs > 0.0 { took / (took + theirs) } else { 1.0 }
    }

    /// Returns the share of its host that other work keeps busy, if the report is that of a host and it is
    /// large.
    pub(super) fn other(&self) -> Option<f64> {
        self.other.filter(|other| *other >= MUCH)
    }

    /// Returns the share of its host that other work keeps busy, or 0, if it is not certainly small and its
    /// capacity is unknown.
    pub(super) fn unsure_of(&self) -> Option<f64> {
        let unknown = self.estimate.is_none_or(|estimate| !estimate.known());
        self.other.filter(|_| unknown && !self.alone)
    }

    /// Returns `true` if nothing is known although the cost of a request is: the rest of its time may have a
    /// limit of its own.
    pub(super) fn waits(&self) -> bool {
        self.estimate.is_none()
    }

    /// Returns the bound of its processors, as far as that is known.
    fn processors(&mut self) -> Option<Bound> {
        (self.other, self.restless, self.alone) = (None, false, true);
        if !self.whole {
            return self.busy.bound();
        }
        let Found { bound, other, restless, alone } = self.host.found(self.quickest())?;
        (self.other, self.restless, self.alone) = (Some(other), restless, alone);
        let part = self.part();
        let processors = bound.processors.map(|(count, demand)| (count * part, demand));
        let (low, best, high) = (bound.low * part, bound.best * part, bound.high * part);
        Some(Bound { low, best, high, processors })
    }

    /// Returns the maximum seconds that a request takes at low concurrency.
    fn quickest(&self) -> Option<f64> {
        self.table.quickest(self.host.processors().unwrap_or(1.0), ALONE)
    }

    /// Returns the seconds that a request takes at the lowest concurrency seen.
    pub(super) fn alone(&self) -> Option<f64> {
        self.table.quickest(1.0, LEAST_ALONE)
    }

    /// Returns the bounds of its capacity that its own requests show.
    pub(super) fn ends(&self) -> (f64, f64) {
        self.estimate.map_or((self.peak, f64::INFINITY), |estimate| (estimate.low, estimate.high))
    }

    /// Computes its capacity.
    pub(super) fn weigh(&mut self, shape: &Shape) {
        let fit = knee::fit(&self.table.rows(LEAST), shape.variation, self.rate());
        let mut known: Vec<Estimate> = Vec::new();
        let processors = self.processors().map(|bound| {
            let (low, best, high) = (self.own(bound.low), self.own(bound.best), self.own(bound.high));
            Bound { low, best, high, ..bound }
        });
        let mut above = f64::INFINITY;
        let lines = fit.is_some_and(|fit| !fit.shared && fit.high <= WIDE * fit.low);
        if let Some(bound) = processors {
            match self.bounds(&bound) {
                Some((servers, ..)) => known.push(Estimate {
                    low: bound.low,
                    best: bound.best,
                    high: bound.high,
                    servers,
                    shared: !lines,
                    source: match self.other() {
                        Some(_) => "how busy its host's processors are, less what is other work there",
                        None => "how busy its processors are",
                    },
                }),
                None => above = bound.high,
            }
        }
        if let Some(Said { knee, work }) = self.said.filter(|said| said.knee >= 1.0 && said.work > 0.0) {
            let best = self.own(knee / work);
            let (low, high) = (best / METER.0, best * METER.1);
            let source = "what it says of itself with its answers";
            known.push(Estimate { low, best, high, servers: knee, shared: !lines, source });
        }
        // With varying other work on the processors, times do not grow with the requests alone.
        if let Some(fit) = fit.filter(|_| !self.restless && self.other().is_none()) {
            known.push(Estimate {
                low: fit.low,
                best: fit.best.max(fit.low),
                high: fit.high,
                servers: fit.servers.max(1.0),
                shared: fit.shared,
                source: "how its response times grow with the requests that it has",
            });
        }
        // The rate served during less other work is no lower end.
        let peak = if self.restless { 0.0 } else { self.peak };
        self.estimate = weighed(&known).map(|estimate| bounded(estimate, above, peak));
    }

    /// Returns the part of its total capacity that other balancers leave, and at least its present rate for
    /// this one.
    fn own(&self, all: f64) -> f64 {
        (all - self.elsewhere).max(self.rate().min(all))
    }

    /// Returns the processors and the processor seconds of a request, if those are a significant part of its
    /// time.
    fn bounds(&self, bound: &Bound) -> Option<(f64, f64)> {
        let (processors, demand) = bound.processors?;
        let alone = self.table.mean_up_to(processors, LEAST_ALONE).or_else(|| {
            let (requests, took) = (self.recent[0], self.recent[1]);
            (requests > LEAST_ALONE).then(|| took / requests)
        })?;
        // Other work prolongs all of it.
        let alone = alone * (1.0 - self.other.unwrap_or(0.0));
        (demand >= PART * alone).then_some((processors.max(1.0), demand))
    }
}

/// Returns the narrowest interval, within the others; or another that lies wholly below.
fn weighed(known: &[Estimate]) -> Option<Estimate> {
    let wide = |estimate: &Estimate| estimate.high / estimate.low;
    let mut chosen = *known.iter().min_by(|one, other| wide(one).total_cmp(&wide(other)))?;
    for other in known {
        if other.high * CLEARLY < chosen.low {
            chosen = *other;
        } else if other.low <= chosen.high && other.high >= chosen.low {
            (chosen.low, chosen.high) = (chosen.low.max(other.low), chosen.high.min(other.high));
            chosen.best = chosen.best.clamp(chosen.low, chosen.high);
        }
    }
    Some(chosen)
}

/// Limits an estimate to at most `above`, and at least the served rate.
fn bounded(mut estimate: Estimate, above: f64, peak: f64) -> Estimate {
    for end in [&mut estimate.low, &mut estimate.best, &mut estimate.high] {
        *end = end.min(above).max(peak);
    }
    estimate
}

/// The greatest ratio of the ends of an interval that counts as a number.
const WIDE: f64 = 3.0;

/// The errors of members' knees: within a third for processors, and between half and one and a half for
/// queues (docs/decisions/0004). They may be too large by the first factor. They may be too small by two,
/// which is reduced here so that [`WIDE`] still accepts it as a number.
const METER: (f64, f64) = (1.5, 1.98);

/// The minimum share of processor time in a request's time alone if processors are the limit.
const PART: f64 = 0.3;

/// The factor by which the upper end of a source must lie below another to overrule it.
const CLEARLY: f64 = 1.25;

/// The number of requests at a level, and of those alone, that make a mean.
const LEAST: f64 = 3.0;
const LEAST_ALONE: f64 = 20.0;

/// The number of requests that make a mean of the time that bounds the cost of one.
const ALONE: f64 = 100.0;

/// The share of failures above which response times do not count: rejections are fast.
pub(super) const FAILING: f64 = 0.05;

/// The difference of looks under a constant load: a share of it, and a multiple of chance.
const SAME: f64 = 0.3;
const CHANCE: f64 = 5.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemberId;

    fn estimate(low: f64, best: f64, high: f64) -> Estimate {
        Estimate { low, best, high, servers: 2.0, shared: true, source: "" }
    }

    #[test]
    fn the_narrowest_counts_within_the_others_and_a_lower_limit_overrules_it() {
        let cpu = estimate(90.0, 95.0, 105.0);
        assert_eq!(weighed(&[estimate(93.0, 120.0, f64::INFINITY), cpu]), Some(estimate(93.0, 95.0, 105.0)));
        assert_eq!(weighed(&[cpu, estimate(40.0, 50.0, 60.0)]), Some(estimate(40.0, 50.0, 60.0)));
        assert_eq!(weighed(&[cpu, estimate(70.0, 75.0, 85.0)]), Some(cpu), "not clearly lower");
        assert_eq!(weighed(&[]), None);
    }

    /// Returns the evidence after two minutes of 50 requests a second from here, at a server of two
    /// processors that can serve 200. The reported utilization is the last argument.
    fn minutes(elsewhere: f64, told: f64) -> Gauge {
        let mut gauge = Gauge::idle();
        for second in 1..=120_u64 {
            let seen = MemberSeen {
                id: MemberId(1),
                usable: true,
                weight: 1.0,
                capacity: 1.0,
                requests: 50 * second,
                failures: 0,
                seconds: 0.5 * second as f64,
                levels: &[],
                said: None,
                cpu: Some((
                    Cpu { share: told, processors: Some(2.0), whole: false },
                    Time(1_000_000_000 * second),
                )),
                beside: Beside::default(),
                elsewhere,
            };
            gauge.look(&seen, 1.0);
            if second % 5 == 0 {
                gauge.close();
                gauge.weigh(&Shape::exponential());
            }
        }
        gauge
    }

    #[test]
    fn what_other_balancers_send_is_not_there_for_this_one() {
        let alone = minutes(0.0, 0.25).estimate.unwrap();
        assert!((alone.best / 200.0 - 1.0).abs() < 0.05, "{alone:?}");
        // 120 a second keep it busy, of which these are 50.
        let one_of_two = minutes(70.0, 0.6).estimate.unwrap();
        assert!((one_of_two.best / 130.0 - 1.0).abs() < 0.08, "{one_of_two:?}");
    }

    #[test]
    fn what_was_served_is_a_lower_end() {
        assert_eq!(bounded(estimate(90.0, 95.0, 100.0), 98.0, 97.0), estimate(97.0, 97.0, 98.0));
        assert!(estimate(90.0, 95.0, 105.0).known() && !estimate(10.0, 20.0, 40.0).known());
        assert!(!estimate(10.0, 20.0, f64::INFINITY).known());
    }
}
