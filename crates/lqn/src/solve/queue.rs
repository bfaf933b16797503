//! Waiting at one station: a birth and death chain of the requests that are there.
//!
//! Requests come from sources. What a source does elsewhere is one thing to this station (Chandy, Herzog and Woo's
//! equivalent, 1975): it comes at a rate that depends on how many are elsewhere. If they wait for nobody there, the rate
//! is proportional to their number; if they queue, more of them do not come more often. `crowding` is the part of their
//! time elsewhere that is queueing; the rate of `n` of them is taken to be that of a balanced network, `n / (d + a (n - 1))`
//! (Zahorjan and others, Balanced job bound analysis, 1982), through the point at which the system is.
//!
//! A request sees what is there when it comes: the chain, weighed by the rate at which its own source comes in each
//! state. So a source never waits for itself. With a task of one thread that goes on after it has answered, the state
//! says whether it has ([`phased`](super::phased)). Where service varies otherwise than the exponential
//! distribution the wait is corrected by [`spread`](super::spread).

use super::mix::Mix;
use super::{phased, spread, uneven};

/// Requests of one origin at a station.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Source {
    /// Requests per unit of time.
    pub(super) rate: f64,
    /// Mean of the time that one holds a server, and mean of its square.
    pub(super) mean: f64,
    pub(super) square: f64,
    /// How many there can be; infinite from outside.
    pub(super) limit: f64,
    /// By whose threads they come, and how many those are.
    pub(super) holder: usize,
    pub(super) threads: f64,
    /// Of those threads, how many have nothing to do in the mean, and how many more ask for one of them than there are.
    pub(super) idle: f64,
    pub(super) beyond: f64,
    /// How many are here in the mean, waiting or not answered yet.
    pub(super) held: f64,
    /// Of a task that goes on after it has answered: the part of them that comes while what the same thread asked for
    /// before still goes on, and how long it does so then.
    pub(super) back: f64,
    pub(super) left: f64,
    /// Found: mean and variance of the waiting time.
    pub(super) wait: f64,
    pub(super) variance: f64,
}

/// A station.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) servers: usize,
    /// Requests that can be here at a time.
    pub(super) most: f64,
    /// Of the time that a server is held, the parts before and after the answer.
    pub(super) phases: [f64; 2],
    /// Time that a server is held when it is the only one at work; it grows by `slope` with each other one, and is never
    /// less than `floor` times their number.
    pub(super) alone: f64,
    pub(super) slope: f64,
    pub(super) floor: f64,
    /// Of those elsewhere, how many wait there.
    pub(super) waiting: f64,
    /// Does the variation of service matter?
    pub(super) fifo: bool,
}

/// What else was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    /// By how much the rate of those elsewhere is above that of their mean number, because their number varies.
    pub(super) level: f64,
    /// Servers at work as one of them sees it, itself included.
    pub(super) crew: f64,
    /// More comes from outside than can be served.
    pub(super) overloaded: bool,
}

impl Default for Memory {
    fn default() -> Self {
        Self { level: 1.0, crew: 1.0, overloaded: false }
    }
}

/// Requests at most; a chain ends there.
const LONGEST: f64 = 20_000.0;

/// Rates of the sources as a function of how many requests are here.
pub(super) struct Rates<'s> {
    pub(super) sources: &'s [Source],
    mix: Mix,
    /// Per source: its rate for each of its group's that is elsewhere; its own rate if it is from outside.
    each: Vec<f64>,
    pub(super) closed: f64,
    /// All that their limits add up to.
    all: f64,
    /// Part of those here that is not from outside.
    share: f64,
    /// Sum of the rates from outside.
    pub(super) outside: f64,
    crowding: f64,
    reference: f64,
    level: f64,
    fewer: f64,
}

impl<'s> Rates<'s> {
    fn new(sources: &'s [Source], case: &Case, memory: &Memory) -> Self {
        let typical = {
            let total: f64 = sources.iter().map(|source| source.rate).sum();
            sources.iter().map(|source| source.held - source.rate * source.mean).sum::<f64>().max(0.0) / total
        };
        let mut mix = Mix::new(sources, if case.fifo { typical } else { 0.0 });
        let all: f64 = mix.groups.iter().map(|group| group.limit).sum();
        let closed = all.min(case.most).min(LONGEST);
        let held: f64 = mix.groups.iter().map(|group| group.held).sum();
        let everything: f64 = sources.iter().map(|source| source.held).sum();
        let away = (closed - held).max(0.001 * closed);
        mix.tabulate(closed);
        // Where fewer can come than the limits add up to, fewer of each are elsewhere.
        let fewer = if all > closed { away / (all - held).max(away) } else { 1.0 };
        let each = sources.iter().zip(&mix.of).map(|(source, group)| match group {
            None => source.rate,
            Some(group) => {
                let group = &mix.groups[*group];
                if source.rate > 0.0 { source.rate / group.away } else { 0.0 }
            }
        });
        let each = each.collect();
        let reference = away * (closed - 1.0) / closed.max(1.0);
        // Of hardly any it makes no difference whether they wait.
        let crowding = (case.waiting / away).clamp(0.0, 0.98) * ((reference - 0.1) / 0.3).clamp(0.0, 1.0);
        let inside: f64 =
            sources.iter().filter(|source| source.limit.is_finite()).map(|source| source.held).sum();
        let share = if everything > 0.0 { inside / everything } else { 1.0 };
        let outside =
            sources.iter().zip(&mix.of).filter(|(_, group)| group.is_none()).map(|(own, _)| own.rate).sum();
        Self {
            sources,
            mix,
            each,
            closed,
            all,
            share,
            outside,
            crowding,
            reference,
            level: memory.level,
            fewer,
        }
    }

    /// How much slower or faster each comes with so many of the sources here than it would in the mean.
    fn pace(&self, here: f64) -> f64 {
        if self.crowding <= 0.0 {
            return self.level;
        }
        let away = (self.closed - here - 1.0).max(0.0);
        self.level / ((1.0 - self.crowding) + self.crowding * away / self.reference)
    }

    /// Rate of each source; their sum, and what it would be without crowding.
    pub(super) fn at(&self, here: f64, out: &mut [f64]) -> (f64, f64) {
        let here = here * self.share;
        let full = here >= self.closed - 1e-9;
        let pace = self.pace(here);
        // Of those that their limits would let come, the part that can.
        let can =
            if self.all > self.closed { (self.closed - here) / (self.all - here) / self.fewer } else { 1.0 };
        let (mut sum, mut plain) = (0.0, 0.0);
        for (place, out) in (0..self.sources.len()).zip(out) {
            *out = match self.mix.of[place] {
                None => self.each[place],
                Some(_) if full => 0.0,
                Some(group) => {
                    let away = self.mix.away(group, here);
                    let rate = self.each[place] * away * can;
                    plain += rate;
                    rate * pace * self.mix.groups[group].eager(away)
                }
            };
            sum += *out;
        }
        (sum, plain)
    }
}

/// What is summed up over the states.
pub(super) struct Sums {
    pub(super) rates: Vec<f64>,
    /// Per source: arrivals, their waiting in services, its square.
    pub(super) seen: Vec<[f64; 3]>,
    /// The same of those that come back while what their thread asked for before still goes on.
    pub(super) back: Vec<[f64; 3]>,
    pub(super) norm: f64,
    pub(super) crew: [f64; 2],
    pub(super) plain: f64,
    pub(super) paced: f64,
}

impl Sums {
    fn new(count: usize) -> Self {
        Self {
            rates: vec![0.0; count],
            seen: vec![[0.0; 3]; count],
            back: vec![[0.0; 3]; count],
            norm: 0.0,
            crew: [0.0; 2],
            plain: 0.0,
            paced: 0.0,
        }
    }

    pub(super) fn add(&mut self, p: f64, wait: f64, square: f64) {
        for (rate, seen) in self.rates.iter().zip(&mut self.seen) {
            let weight = p * rate;
            *seen = [seen[0] + weight, seen[1] + weight * wait, seen[2] + weight * square];
        }
    }

    pub(super) fn add_back(&mut self, p: f64, wait: f64, square: f64) {
        for (rate, seen) in self.rates.iter().zip(&mut self.back) {
            let weight = p * rate;
            *seen = [seen[0] + weight, seen[1] + weight * wait, seen[2] + weight * square];
        }
    }

    pub(super) fn scale(&mut self, by: f64) {
        self.seen.iter_mut().chain(&mut self.back).flatten().for_each(|sum| *sum *= by);
        self.crew.iter_mut().for_each(|sum| *sum *= by);
        self.norm *= by;
        self.plain *= by;
        self.paced *= by;
    }
}

/// Works the waiting of each source out.
pub(super) fn wait(case: &Case, sources: &mut [Source], memory: &mut Memory) {
    let total: f64 = sources.iter().map(|source| source.rate).sum();
    sources.iter_mut().for_each(|source| (source.wait, source.variance) = (0.0, 0.0));
    let mean = sources.iter().map(|source| source.rate * source.mean).sum::<f64>() / total;
    if total.is_nan() || total <= 0.0 || mean.is_nan() || mean <= 0.0 || case.servers == 0 {
        return;
    }
    let rates = Rates::new(sources, case, memory);
    let open = rates.outside > 0.0;
    let after = case.phases[1] > 1e-9 * mean;
    if !open && !after && rates.closed <= case.servers as f64 + 1e-9 {
        return;
    }
    let mut sums = Sums::new(sources.len());
    let overtaken = after && case.servers == 1;
    let (each, overloaded) = if overtaken {
        phased::one_thread(case, &rates, &mut sums)
    } else {
        chain(case, &rates, mean, &mut sums)
    };
    memory.overloaded = overloaded;
    if sums.crew[0] > 0.0 {
        memory.crew = sums.crew[1] / sums.crew[0];
    }
    let base = if overtaken {
        let [first, second] = case.phases;
        (first * first + second * second) / (first + second).powi(2)
    } else {
        1.0
    };
    let beyond = rates.closed - (case.servers as f64 - 1.0) + if overtaken { 0.5 } else { 0.0 };
    let (all, _) = rates.at(case.servers as f64 - 1.0, &mut sums.rates);
    let outside = rates.outside;
    let per_source = if beyond > 0.0 { (all - outside).max(0.0) / beyond } else { 0.0 };
    let bend = if case.fifo && !overtaken && outside <= 0.0 && beyond > 1.0 {
        let square = sources.iter().map(|source| source.rate * source.square).sum::<f64>() / total;
        Some(bend(case, &rates, &mut sums, [beyond, per_source, each], square / (mean * mean) - 1.0))
    } else {
        None
    };
    if sums.paced > 0.0 {
        let aim: f64 = sums.plain / sums.paced;
        memory.level = (memory.level * aim.sqrt()).clamp(0.2, 20.0);
    }
    let found: Vec<(f64, f64)> = (0..sources.len())
        .map(|place| {
            let [came, waited, squared] = sums.seen[place];
            if came <= 0.0 {
                return (0.0, 0.0);
            }
            let (mut long, mut square) = (each * waited / came, each * each * squared / came);
            let mut factor = 1.0;
            // Whom it meets: the others, and of its own all but itself.
            let (mut met, mut work, mut works) = (0.0, 0.0, 0.0);
            for (other, source) in sources.iter().enumerate() {
                let rate = match (rates.mix.of[other], rates.mix.of[place]) {
                    (Some(one), Some(own)) if one == own => {
                        source.rate * (1.0 - 1.0 / rates.mix.groups[own].limit).max(0.0)
                    }
                    _ => source.rate,
                };
                met += rate;
                work += rate * source.mean;
                works += rate * source.square;
            }
            if met > 0.0 && work > 0.0 {
                let typical = work / met;
                let variation = (works / met / (typical * typical) - 1.0).clamp(0.0, 100.0);
                let mut by = typical / mean;
                if case.fifo {
                    let part = outside / (all.max(outside));
                    let ratio = spread::ratio(beyond, per_source, each, variation, base, part);
                    by *= match bend {
                        Some((below, bend)) if below == (variation < 1.0) => {
                            (1.0 + (ratio - 1.0) * bend).max(0.1)
                        }
                        _ => ratio,
                    };
                }
                long *= by;
                square *= by * by;
                factor = by;
            }
            let own = sources[place];
            let [came, waited, squared] = sums.back[place];
            if overtaken && own.back > 0.0 && came > 0.0 {
                // Whom it meets behind what it left there itself.
                let mut met = each * factor * waited / came;
                let mets = (each * factor).powi(2) * squared / came + own.left * (2.0 * own.left + 2.0 * met);
                met += own.left;
                long += own.back * (met - long);
                square += own.back * (mets - square);
            }
            (long, (square - long * long).max(0.0))
        })
        .collect();
    for (source, (long, variance)) in sources.iter_mut().zip(found) {
        (source.wait, source.variance) = (long, variance);
    }
}

/// By what factor the variation of service changes waiting more, or less, where those elsewhere queue there than where they
/// do not, and whether that is for service that varies less than the exponential. What is summed up over the states is
/// moved to what it is with that variation.
fn bend(
    case: &Case,
    rates: &Rates<'_>,
    sums: &mut Sums,
    [beyond, per_source, each]: [f64; 3],
    variation: f64,
) -> (bool, f64) {
    let below = variation < 1.0;
    let reference = uneven::reference(variation);
    let plain = spread::ratio(beyond, per_source, each, reference, 1.0, 0.0);
    let whole = spread::ratio(beyond, per_source, each, variation.max(0.0), 1.0, 0.0);
    if (plain - 1.0).abs() < 1e-6 {
        return (below, 1.0);
    }
    let mut out = vec![0.0; rates.sources.len()];
    let mut at = |n: usize| rates.at(n as f64 + case.servers as f64 - 1.0, &mut out);
    let most = beyond.ceil() as usize;
    let even = uneven::seen(&mut at, most, each, 1.0);
    let uneven = uneven::seen(&mut at, most, each, reference);
    let part = (whole - 1.0) / (plain - 1.0);
    if sums.norm > 0.0 && even.paced > 0.0 {
        sums.plain += sums.norm * part * (uneven.plain - even.plain);
        sums.paced += sums.norm * part * (uneven.paced - even.paced);
    }
    let found = if even.wait > 1e-9 * each { uneven.wait / even.wait } else { plain };
    (below, (found - 1.0) / (plain - 1.0))
}

/// Requests that wait or are served, one number.
fn chain(case: &Case, rates: &Rates<'_>, mean: f64, sums: &mut Sums) -> (f64, bool) {
    let servers = case.servers;
    let scale = if case.alone > 0.0 { 1.0 } else { 0.0 };
    let holds = |busy: f64| {
        if scale > 0.0 { (case.alone + case.slope * (busy - 1.0)).max(case.floor * busy) } else { mean }
    };
    let each = holds(servers as f64) / servers as f64;
    let [first, second] = case.phases;
    let answered = if first + second > 0.0 { second / (first + second) } else { 0.0 };
    let (mut p, mut k) = (1.0_f64, 0_usize);
    let mut overloaded = false;
    loop {
        let busy = k.min(servers) as f64;
        let here = k as f64 - answered * busy;
        let (rate, plain) = rates.at(here, &mut sums.rates);
        let before = (k + 1).saturating_sub(servers) as f64;
        sums.norm += p;
        sums.crew = [sums.crew[0] + p * busy, sums.crew[1] + p * busy * busy];
        let closed = rate - rates.outside;
        sums.plain += p * plain;
        sums.paced += p * closed;
        sums.add(p, before, before * (before + 1.0));
        if rate <= 0.0 {
            break;
        }
        let next = (k + 1).min(servers) as f64;
        let ratio = rate * holds(next) / next;
        if closed <= 0.0 && k >= servers {
            // From here on every state is the last one's, times the same.
            overloaded = ratio >= 0.9999;
            let r = ratio.min(0.9999);
            let tail = [r / (1.0 - r), r / (1.0 - r).powi(2), r * (1.0 + r) / (1.0 - r).powi(3)];
            let wait = before * tail[0] + tail[1];
            let square = before * (before + 1.0) * tail[0] + (2.0 * before + 1.0) * tail[1] + tail[2];
            sums.norm += p * tail[0];
            for (rate, seen) in sums.rates.iter().zip(&mut sums.seen) {
                let weight = p * rate;
                *seen = [seen[0] + weight * tail[0], seen[1] + weight * wait, seen[2] + weight * square];
            }
            let busy = servers as f64;
            sums.crew[0] += p * busy * tail[0];
            sums.crew[1] += p * busy * busy * tail[0];
            break;
        }
        p *= ratio;
        k += 1;
        if p > 1e200 {
            sums.scale(1e-200);
            p *= 1e-200;
        }
        if (ratio < 1.0 && p < 1e-13 * sums.norm) || k as f64 > 2.0 * LONGEST {
            break;
        }
    }
    (each, overloaded)
}
