//! The load line of a group: how much it can carry, how far below that it sails, and how good such predictions were.
//!
//! A value driven from outside, about once a second, with counts that exist anyway (requests, how long they took, how many their
//! member had when they began) and what agents tell (`Estimator::observe`). Every `WINDOW` it works out anew, for each
//! member, how many requests a second that can do (`gauge`: processors, the member's own word, response times, each with an
//! interval), puts the members together (`crew`), bounds that by what the balancer itself can do, and reads off the response
//! curve (`curve`) what times are to be expected at other loads, with one member less or more, with twice the traffic.
//! Percentiles are anchored: what was measured now, times what the curve says of the other load over what it says of this one.
//!
//! It says `unknown` where the data cannot tell, and it keeps what it predicted and holds that against what came (`record`).
//! Nothing is ever decided by it: it is for people.
//!
//! `tests/load_line` runs it against members in virtual time.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::ToString;
use alloc::vec::Vec;
use core::time::Duration;

use crate::status::{LoadLine, MemberLoadLine};
use crate::{MemberId, Time};
use balancer::Balancer;
use crew::Crew;
use curve::{Shape, Station};
use gauge::{Base, FAILING, Gauge, Window};
use record::Record;

mod balancer;
mod busy;
mod crew;
mod curve;
mod gauge;
mod host;
mod knee;
mod levels;
mod muster;
mod peers;
mod record;
mod say;

pub use busy::Cpu;
pub use levels::{LEVELS, level};

/// What a look at a group finds. All counts only grow while a member stays.
#[derive(Clone, Debug)]
pub struct Seen<'a> {
    /// Is all that is carried requests, which end by themselves? What lasts as long as its client likes has no service time.
    pub requests: bool,
    /// Does the strategy send less to a member that has more to do?
    pub by_load: bool,
    /// If not: does each member get its share of the weights, but for chance?
    pub by_weight: bool,
    /// All members of the group.
    pub members: &'a [MemberSeen<'a>],
    /// Whole requests by how long they took, and the seconds that each count stands for.
    pub latencies: &'a [u64],
    /// As long as `latencies`; ascending.
    pub middles: &'a [f64],
    /// The balancer's own process.
    pub own: Own,
}

/// A member in it.
#[derive(Clone, Debug)]
pub struct MemberSeen<'a> {
    /// Who.
    pub id: MemberId,
    /// May it be chosen?
    pub usable: bool,
    /// Its weight among those that may; 0 or more.
    pub weight: f64,
    /// Its configured capacity; above 0.
    pub capacity: f64,
    /// Requests ended.
    pub requests: u64,
    /// Those that failed.
    pub failures: u64,
    /// How long all took.
    pub seconds: f64,
    /// By [`level`]: requests that succeeded, and nanoseconds that they took. May be empty where [`Estimator::knows`] them.
    pub levels: &'a [[u64; 2]],
    /// What it says of itself, if it does.
    pub said: Option<Said>,
    /// What was last told of its processors, and when that was measured.
    pub cpu: Option<(Cpu, Time)>,
    /// What the members did that share its host with it.
    pub beside: Beside,
    /// Requests a second that other balancers send to it: what it can do for them is not there for this one.
    pub elsewhere: f64,
}

/// What other members at the same host did, of whatever group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Beside {
    /// How many they are; who comes or goes changes the counts at once.
    pub members: usize,
    /// Requests ended.
    pub requests: u64,
    /// How long all took.
    pub seconds: f64,
}

impl MemberSeen<'_> {
    /// Is anything known of it? Of a thousand members that nobody uses nothing is kept.
    fn tells(&self) -> bool {
        self.requests > 0 || self.said.is_some() || self.cpu.is_some()
    }
}

/// What a member's own meter says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Said {
    /// Requests it can work on at once before they slow one another down.
    pub knee: f64,
    /// Seconds that a request takes alone.
    pub work: f64,
}

/// The balancer's own process, all groups together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Own {
    /// Processor seconds so far.
    pub cpu_seconds: f64,
    /// Requests ended so far.
    pub requests: u64,
    /// What it carried that is no request, in any unit: bytes of sessions, datagrams. No look at which this has changed says
    /// what a request costs.
    pub others: u64,
    /// Processors that its threads can use.
    pub processors: f64,
}

/// The load line of one group.
#[derive(Clone, Debug, Default)]
pub struct Estimator {
    at: Option<Time>,
    gauges: BTreeMap<MemberId, Gauge>,
    /// Who was usable at the last window.
    crew: Vec<MemberId>,
    window: Window,
    /// Requests and seconds, of late.
    recent: [f64; 2],
    /// Counts at the last look; requests by how long they took, and requests and seconds in which those are.
    last: Vec<u64>,
    times: Vec<f64>,
    timed: [f64; 2],
    shape: Option<Shape>,
    /// Of the members together.
    base: Base,
    /// What was measured over what the curve says, for each of [`QUANTILES`].
    anchors: [f64; 2],
    /// When all that was last worked out.
    closed: Option<Time>,
    balancer: Balancer,
    record: Record,
    /// Whose turn it is to be worked out anew, where there are many.
    turn: usize,
    said: Option<LoadLine>,
    /// `true` if the present rate is a lower end of the capacity.
    floors: bool,
    /// `true` if many requests failed in this window.
    unsound: bool,
    /// Windows for which the rate still includes that of a member that has left.
    left: u32,
}

impl Estimator {
    /// Takes a look. At most twice a second something comes of it.
    pub fn observe(&mut self, seen: &Seen<'_>, now: Time) {
        let Some(at) = self.at.filter(|at| now.since(*at) < AWAY) else {
            // The first for long: only what comes from now on can be told.
            let record = core::mem::take(&mut self.record);
            *self = Self { record, said: self.said.take().filter(|_| !seen.requests), ..Self::default() };
            self.record.forget();
            (self.at, self.last) = (Some(now), seen.latencies.to_vec());
            self.balancer = Balancer::new(seen.own);
            for member in seen.members.iter().filter(|member| member.tells()) {
                self.gauges.entry(member.id).or_default().look(member, 1.0);
            }
            return;
        };
        let seconds = now.since(at).as_secs_f64();
        if seconds < SOONEST {
            return;
        }
        self.at = Some(now);
        if !seen.requests {
            let why = "it carries sessions, which last as long as they like";
            *self = Self { said: Some(say::unknown(0.0, 0.0, why)), ..Self::default() };
            return;
        }
        if !self.gauges.is_empty() {
            let here: BTreeSet<MemberId> = seen.members.iter().map(|member| member.id).collect();
            self.gauges.retain(|id, _| here.contains(id));
        }
        let (mut ended, mut took, mut failed) = (0.0, 0.0, 0.0);
        for member in seen.members {
            if !member.tells() && !self.gauges.contains_key(&member.id) {
                continue;
            }
            // Nothing was known of it at the last look, so it had done nothing.
            let of = self.gauges.entry(member.id).or_insert_with(Gauge::idle).look(member, seconds);
            ended += of.0;
            took += of.1;
            failed += of.2;
        }
        let sound = failed <= FAILING * ended;
        self.unsound |= !sound;
        self.window.add(ended, took, seconds, true);
        let kept = keep(seconds, RECENT);
        for (recent, fresh) in self.recent.iter_mut().zip([ended, seconds]) {
            *recent = *recent * kept + fresh;
        }
        let kept = keep(seconds, TIMES);
        for (timed, fresh) in self.timed.iter_mut().zip([ended, seconds]) {
            *timed = *timed * kept + fresh;
        }
        self.count(seen, kept);
        self.balancer.spend(seen.own, seconds);
        if self.window.seconds >= WINDOW {
            self.close(seen, now);
        }
        let rate = self.rate();
        if let Some(said) = &mut self.said {
            said.requests_per_second = rate;
            if self.floors && sound {
                let ends = [&mut said.capacity_low, &mut said.capacity, &mut said.capacity_high];
                ends.into_iter().flatten().for_each(|end| *end = end.max(rate));
            }
            said.headroom = said.capacity.map(|capacity| 1.0 - rate / capacity);
            said.age_seconds = self.closed.map_or(0.0, |closed| now.since(closed).as_secs_f64());
        }
    }

    /// Is nothing new said by a member of which so many requests have ended? Then its levels need not be told.
    pub fn knows(&self, id: MemberId, requests: u64, now: Time) -> bool {
        let anew = self.at.is_none_or(|at| now.since(at) >= AWAY);
        requests == 0 || (!anew && self.gauges.get(&id).is_some_and(|gauge| gauge.knows(requests)))
    }

    /// Requests a second, now.
    fn rate(&self) -> f64 {
        self.recent[0] / self.recent[1].max(1e-9)
    }

    /// What it has to say; `None` before the first window is over.
    pub fn status(&self) -> Option<LoadLine> {
        self.said.clone()
    }

    /// What a member can do; `None` if it never had a request.
    pub fn member(&self, id: MemberId) -> Option<MemberLoadLine> {
        let gauge = self.gauges.get(&id)?;
        self.said.as_ref()?;
        let rate = gauge.rate();
        let estimate = gauge.estimate;
        let known = estimate.filter(|estimate| estimate.known());
        Some(MemberLoadLine {
            requests_per_second: rate,
            capacity: known.map(|estimate| estimate.best),
            capacity_low: estimate.map(|estimate| estimate.low),
            capacity_high: estimate.map(|estimate| estimate.high).filter(|high| high.is_finite()),
            used: known.map(|estimate| rate / estimate.best),
            source: known.map(|estimate| estimate.source.to_string()),
        })
    }

    /// How long requests of the group took.
    fn count(&mut self, seen: &Seen<'_>, kept: f64) {
        self.times.resize(seen.latencies.len(), 0.0);
        self.last.resize(seen.latencies.len(), 0);
        for ((time, last), count) in self.times.iter_mut().zip(&mut self.last).zip(seen.latencies) {
            *time = *time * kept + count.wrapping_sub(*last) as f64;
            *last = *count;
        }
    }

    /// A window is over.
    fn close(&mut self, seen: &Seen<'_>, now: Time) {
        let window = core::mem::take(&mut self.window);
        let windows: BTreeMap<MemberId, Window> =
            self.gauges.iter_mut().map(|(id, gauge)| (*id, gauge.close())).collect();
        let shape = self.shape.clone().unwrap_or_else(Shape::exponential);
        let count = self.gauges.len().max(1);
        let turn = self.turn;
        for (place, gauge) in self.gauges.values_mut().enumerate() {
            if (place + count - turn % count) % count < AT_ONCE {
                gauge.weigh(&shape);
            }
        }
        self.turn = if count > AT_ONCE { (turn + AT_ONCE) % count } else { 0 };
        let crew: Vec<MemberId> =
            seen.members.iter().filter(|member| member.usable).map(|member| member.id).collect();
        self.left = self.left.saturating_sub(1);
        if crew != self.crew {
            self.record.forget();
            self.gauges.values_mut().for_each(Gauge::share_anew);
            let here: BTreeSet<&MemberId> = crew.iter().collect();
            if self.crew.iter().any(|id| !here.contains(id)) {
                self.left = FORGOTTEN;
            }
            self.crew = crew;
        }
        self.closed = Some(now);
        let rate = self.rate();
        let balancer = self.balancer.capacity(rate);
        let crew = self.muster(seen, &windows, &shape);
        let Some(reach) = crew.reach(balancer) else {
            self.said = Some(say::unknown(rate, 0.0, "no member can be used"));
            return;
        };
        // The served rate is a lower end, unless a full member hides behind others that go on.
        let sound = !core::mem::take(&mut self.unsound);
        self.floors = sound && self.left == 0 && (seen.by_load || !self.is_any_full(&crew));
        let served = if self.floors { window.rate().max(rate) } else { 0.0 };
        if reach.high > WIDEST * reach.low.max(served) {
            let why = say::why_unknown(self.crew.iter().filter_map(|id| self.gauges.get(id)));
            self.said = Some(say::unknown(rate, reach.low.max(served), &why));
            return;
        }
        let stations = crew.stations();
        let most = crew::saturation(&stations).unwrap_or(reach.best);
        if reach.proven && window.steady() && window.requests >= FEW {
            self.record.check(&window, &shape, most.min(balancer), now);
            self.record.keep(window.rate(), &stations, balancer, now);
        }
        self.anchor(&stations, &window, most, &shape, seen.middles);
        let mut source = self.source(seen);
        if self.balancer.is_mixed() {
            source.push_str(say::MIXED);
        }
        let outlook =
            say::Outlook { crew: &crew, shape: &shape, anchors: self.anchors, rate, balancer, served };
        self.said = Some(outlook.said(reach, &self.record, &source));
    }

    /// Returns `true` if a member has about as much as it can do.
    fn is_any_full(&self, crew: &Crew) -> bool {
        let rates = self.crew.iter().map(|id| self.gauges.get(id).map_or(0.0, Gauge::rate));
        rates.zip(&crew.mates).any(|(rate, mate)| !mate.guess && rate >= FULL * mate.capacity)
    }

    /// Compares measured percentiles with the curve's, while there is room enough for the curve to be sure of itself.
    fn anchor(&mut self, stations: &[Station], window: &Window, most: f64, shape: &Shape, middles: &[f64]) {
        let rate = self.timed[0] / self.timed[1].max(1e-9);
        // Times of another load would be taken for those of this one.
        let same = (window.rate() - rate).abs() <= ALIKE * rate;
        if rate <= 0.0 || rate > ANCHORED * most || !same || !window.steady() {
            return;
        }
        let pairs: Vec<(f64, f64)> = middles.iter().copied().zip(self.times.iter().copied()).collect();
        let all: f64 = self.times.iter().sum();
        if all < FEW {
            return;
        }
        for (anchor, share) in self.anchors.iter_mut().zip(QUANTILES) {
            let mut seen = 0.0;
            let measured = pairs.iter().find(|(_, count)| {
                seen += count;
                seen >= share * all
            });
            let predicted = curve::quantile(stations, rate, shape, share);
            if let (Some((measured, _)), Some(predicted)) = (measured, predicted) {
                *anchor = (measured / predicted.max(1e-12)).clamp(1.0 / FAR, FAR);
            }
        }
        if self.shape.is_none() || rate < CALM * most {
            self.shape = Shape::of(&pairs).or_else(|| self.shape.take());
        }
    }
}

/// What is left of the weight of what is `seconds` old, where half is left after `half`.
fn keep(seconds: f64, half: f64) -> f64 {
    libm::exp2(-seconds / half)
}

/// Percentiles that are predicted.
const QUANTILES: [f64; 2] = [0.5, 0.99];

/// Seconds of a window.
const WINDOW: f64 = 5.0;

/// Looks that come sooner are left out; after so long without one everything begins anew.
const SOONEST: f64 = 0.5;
const AWAY: Duration = Duration::from_secs(60);

/// Half lives, in seconds: of what is known of demands, and of how much there is to do now.
const MEMORY: f64 = 120.0;
const RECENT: f64 = 4.0;

/// The same of the times of requests; and by how much the load may differ from what it was on average meanwhile.
const TIMES: f64 = 20.0;
const ALIKE: f64 = 0.2;

/// Members that are worked out anew in a window.
const AT_ONCE: usize = 32;

/// Greatest ratio of the ends of a range.
const WIDEST: f64 = 10.0;

/// Windows after which the rate hardly includes that of a member that has left.
const FORGOTTEN: u32 = 3;

/// Utilization from which on a member is full.
const FULL: f64 = 0.9;

/// Requests of a window below which it says nothing.
const FEW: f64 = 30.0;

/// Utilization up to which percentiles are anchored, and up to which times are those of services.
const ANCHORED: f64 = 0.85;
const CALM: f64 = 0.7;

/// An anchor moves a percentile by no more than so many times.
const FAR: f64 = 4.0;
