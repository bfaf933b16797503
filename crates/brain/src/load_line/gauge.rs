//! What one member can do: everything that is known of it, weighed.
//!
//! Three sources, each with an interval: the processors that an agent tells (`busy`), what the member's own meter says of its
//! knee and the work of a request, and response times by how many were there (`knee`). The narrowest counts, within what the
//! others leave of it; where another one finds a lower limit that lies wholly below, that one holds: a request needs threads
//! *and* processors, and the scarcer decides. Processors bound a member only from above where a request's processor time is a
//! small part of how long it takes alone: what takes the rest may have a limit of its own that nobody has met yet.
//!
//! What is told of a whole host is read by `host`, which knows of other work; what is told of the server alone by `busy`. Of members
//! that share a host each has its part of it: what its requests make of all that balanced requests do there, a request of another
//! one being as much dearer as it takes longer.
//!
//! What other balancers send to it keeps its processors busy as well: what a request costs follows from all of them, and what is left of
//! that is this balancer's. Response times by how many are here know by themselves what others leave.
//!
//! The rate of a window is a lower end whatever the sources say. For a member without a source nothing else
//! is known here; `peers` estimates the rest from other members.

use alloc::vec::Vec;

use super::busy::{Bound, Busy, Cpu};
use super::curve::Shape;
use super::host::{Found, Host, MUCH};
use super::knee;
use super::levels::Table;
use super::{Beside, MemberSeen, Said, keep};
use crate::Time;

/// One member.
#[derive(Clone, Debug, Default)]
pub(super) struct Gauge {
    /// Requests, failures, seconds at the last look.
    last: Option<(u64, u64, f64)>,
    table: Table,
    busy: Busy,
    host: Host,
    /// Is what was last told of a whole host?
    whole: bool,
    /// What others that share its host did up to the last look, and did of late; and its own requests and their seconds.
    beside: Beside,
    shared: [f64; 4],
    /// Requests a second that other balancers send to it, of late.
    elsewhere: f64,
    /// Share of its host that other work keeps busy; and does that come and go?
    other: Option<f64>,
    restless: bool,
    /// Is it sure that there is hardly any, or that nothing is told of a host?
    alone: bool,
    said: Option<Said>,
    /// When the last report on the processors was measured.
    told: Option<Time>,
    window: Window,
    /// Requests, their seconds, and seconds, over the last seconds.
    recent: [f64; 3],
    /// Requests over the last minutes, since the members were others.
    pub(super) long: f64,
    /// Most requests a second that were served for a window, of late.
    peak: f64,
    pub(super) base: Base,
    pub(super) estimate: Option<Estimate>,
}

/// Some seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    pub(super) seconds: f64,
    pub(super) requests: f64,
    /// Seconds that these took.
    pub(super) took: f64,
    /// Of the looks in it, requests a second.
    least: f64,
    most: f64,
    looks: f64,
    unsound: bool,
    /// Requests of others that share its host, and of other balancers.
    beside: f64,
    elsewhere: f64,
    shares: f64,
    reports: f64,
    processors: Option<f64>,
}

/// Seconds that a request takes alone, averaged over windows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Base {
    sum: f64,
    weight: f64,
}

/// What a member can do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Estimate {
    /// Requests a second; the upper end may be infinite.
    pub(super) low: f64,
    pub(super) best: f64,
    pub(super) high: f64,
    /// Requests at once without waiting.
    pub(super) servers: f64,
    pub(super) shared: bool,
    /// For people.
    pub(super) source: &'static str,
}

impl Estimate {
    /// Is it worth a number?
    pub(super) fn known(&self) -> bool {
        self.high <= WIDE * self.low
    }
}

impl Base {
    /// Takes what a window says.
    pub(super) fn add(&mut self, seconds: f64, weight: f64, kept: f64) {
        self.sum = self.sum * kept + seconds * weight;
        self.weight = self.weight * kept + weight;
    }

    pub(super) fn seconds(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }
}

impl Window {
    /// Takes a look of so many seconds.
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

    /// Requests a second.
    pub(super) fn rate(&self) -> f64 {
        self.requests / self.seconds.max(1e-9)
    }

    /// Was the load one and the same, as far as chance lets it be, and did requests succeed?
    pub(super) fn steady(&self) -> bool {
        let chance = libm::sqrt(self.rate() * self.looks / self.seconds.max(1e-9));
        !self.unsound && self.most - self.least <= SAME * self.rate() + CHANCE * chance
    }
}

impl Gauge {
    /// Takes a look after so many seconds: requests that ended, how long they took, and those that failed.
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
        // What is counted a moment before its request is, is seen with the next that ends.
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
        // Who joins brings all that it ever did.
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

    /// Of a member that has done nothing so far.
    pub(super) fn idle() -> Self {
        Self { last: Some((0, 0, 0.0)), table: Table::idle(), ..Self::default() }
    }

    /// Were that many requests counted at the last look?
    pub(super) fn knows(&self, requests: u64) -> bool {
        self.last.is_some_and(|(known, ..)| known == requests)
    }

    /// The members are others: so are their shares.
    pub(super) fn share_anew(&mut self) {
        self.long = 0.0;
    }

    /// Did an agent ever tell how busy its processors are?
    pub(super) fn is_told(&self) -> bool {
        self.told.is_some()
    }

    /// Requests a second of late.
    pub(super) fn rate(&self) -> f64 {
        self.recent[0] / self.recent[2].max(1e-9)
    }

    /// A window is over: what it was.
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
            // Requests of all balancers.
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

    /// How many times as long as its own the requests of others take that share its host.
    fn dearer(&self) -> f64 {
        let [requests, took, others, theirs] = self.shared;
        if took > 0.0 && others > 0.0 { theirs / others / (took / requests) } else { 0.0 }
    }

    /// Its part of what balanced requests do at its host.
    fn part(&self) -> f64 {
        let [_, took, _, theirs] = self.shared;
        if took > 0.0 && theirs > 0.0 { took / (took + theirs) } else { 1.0 }
    }

    /// Share of its host that other work keeps busy, where what is told is of a host and it is much.
    pub(super) fn other(&self) -> Option<f64> {
        self.other.filter(|other| *other >= MUCH)
    }

    /// The same, or 0, where it is not sure that there is hardly any, and what the member can do is not known.
    pub(super) fn unsure_of(&self) -> Option<f64> {
        let unknown = self.estimate.is_none_or(|estimate| !estimate.known());
        self.other.filter(|_| unknown && !self.alone)
    }

    /// Is nothing known although it is known what a request costs? What takes the rest of its time may have a limit of its own.
    pub(super) fn waits(&self) -> bool {
        self.estimate.is_none()
    }

    /// What its processors bound, as far as that is known.
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

    /// Seconds that a request takes where few are there, at most.
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

    /// Works out anew what it can do.
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
        // Where other work takes processors away, and gives them back, times do not grow with the requests alone.
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
        // What was served while there was less other work is no lower end.
        let peak = if self.restless { 0.0 } else { self.peak };
        self.estimate = weighed(&known).map(|estimate| bounded(estimate, above, peak));
    }

    /// What other balancers leave of what it can do for all; what it does for this one at least.
    fn own(&self, all: f64) -> f64 {
        (all - self.elsewhere).max(self.rate().min(all))
    }

    /// Processors and processor seconds of a request, if those are a good part of what it takes.
    fn bounds(&self, bound: &Bound) -> Option<(f64, f64)> {
        let (processors, demand) = bound.processors?;
        let alone = self.table.mean_up_to(processors, LEAST_ALONE).or_else(|| {
            let (requests, took) = (self.recent[0], self.recent[1]);
            (requests > LEAST_ALONE).then(|| took / requests)
        })?;
        // Other work makes all of it take longer.
        let alone = alone * (1.0 - self.other.unwrap_or(0.0));
        (demand >= PART * alone).then_some((processors.max(1.0), demand))
    }
}

/// The narrowest, within the others; or another that lies wholly below.
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

/// Not more than `above`, nor less than what was served.
fn bounded(mut estimate: Estimate, above: f64, peak: f64) -> Estimate {
    for end in [&mut estimate.low, &mut estimate.best, &mut estimate.high] {
        *end = end.min(above).max(peak);
    }
    estimate
}

/// An interval whose ends differ by more than so many times is no number.
const WIDE: f64 = 3.0;

/// Knees that members say are found within a third of the truth for processors, between half and once and a half for queues
/// (docs/decisions/0004): they may be too large by so many times, and too small, which is twice but for what [`WIDE`] would call no number.
const METER: (f64, f64) = (1.5, 1.98);

/// Share of a request's time alone that its processor time has to be for processors to be what limits.
const PART: f64 = 0.3;

/// How far below another the upper end of a source has to lie to overrule it.
const CLEARLY: f64 = 1.25;

/// Requests at a level, and of those that were alone, that make a mean.
const LEAST: f64 = 3.0;
const LEAST_ALONE: f64 = 20.0;

/// The same for how long a request takes, which bounds what it costs.
const ALONE: f64 = 100.0;

/// Share of failures above which response times say nothing: refusals are quick.
pub(super) const FAILING: f64 = 0.05;

/// By how much looks of a steady load differ: a share of it, and what chance makes of it.
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

    /// Minutes of 50 requests a second from here, at a server of two processors that can do 200; so much is told of these.
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
