//! Waiting at one station: a birth-death chain of the number of requests.
//!
//! Requests come from sources. All that a source does elsewhere is one server to this station (the equivalent
//! of Chandy, Herzog and Woo, 1975): its arrival rate depends on the number of requests elsewhere. Without
//! queueing there, the rate is proportional to the number; with queueing, it grows less. `crowding` is the
//! queueing share of their time elsewhere. The rate of `n` requests is that of a balanced network,
//! `n / (d + a (n - 1))` (Zahorjan and others, Balanced job bound analysis, 1982), fitted to the present
//! operating point.
//!
//! An arriving request sees the chain weighted by its own source's arrival rate in each state. So a source
//! never waits for itself. For a task with one thread that continues after its reply, the state includes the
//! phase ([`phased`]). If the variation of service is not that of the exponential
//! distribution, [`variance_correction`] corrects the waiting time.

use super::population_mix::PopulationMix;
use super::{non_exponential_server, phased, variance_correction};

/// The requests of one origin at a station.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RequestSource {
    /// The rate of requests.
    pub(super) rate: f64,
    /// The mean time for which a request holds a server, and the mean of its square.
    pub(super) mean: f64,
    pub(super) square: f64,
    /// The largest number of requests; infinite from outside.
    pub(super) limit: f64,
    /// The task by whose threads they come, and the number of those.
    pub(super) holder: usize,
    pub(super) threads: f64,
    /// The mean number of idle ones of those threads, and the number of requests for them beyond the number
    /// of threads.
    pub(super) idle: f64,
    pub(super) excess_requests: f64,
    /// The mean number of requests here, waiting or without a reply yet.
    pub(super) held: f64,
    /// For a task that continues after its reply: the share of requests that arrive during the second phase
    /// of their thread's previous request, and its mean remaining time.
    pub(super) overtaking: f64,
    pub(super) overtaking_remaining: f64,
    /// The results: the mean and the variance of the waiting time.
    pub(super) wait: f64,
    pub(super) variance: f64,
}

/// The parameters of a station.
#[derive(Clone, Copy, Debug)]
pub(super) struct StationParameters {
    pub(super) servers: usize,
    /// The largest number of requests at a time.
    pub(super) max_requests: f64,
    /// The mean service time before and after the reply.
    pub(super) phases: [f64; 2],
    /// The time for which a server is held if it is the only busy one. It grows by `holding_slope` with each
    /// other one, and is at least `holding_min` times their number.
    pub(super) holding_alone: f64,
    pub(super) holding_slope: f64,
    pub(super) holding_min: f64,
    /// The number of requests that wait elsewhere.
    pub(super) waiting: f64,
    /// Whether the variation of service matters.
    pub(super) fifo: bool,
}

/// Further results, kept between iterations.
#[derive(Clone, Copy, Debug)]
pub(super) struct StationMemory {
    /// The factor of the rate of requests elsewhere over that of their mean number, caused by the variation
    /// of the number.
    pub(super) level: f64,
    /// The mean number of busy servers as seen by one of them, including itself.
    pub(super) busy_as_seen: f64,
    /// Whether the arrivals from outside exceed the capacity.
    pub(super) overloaded: bool,
}

impl Default for StationMemory {
    fn default() -> Self {
        Self { level: 1.0, busy_as_seen: 1.0, overloaded: false }
    }
}

/// The largest number of requests of closed sources; a chain ends at twice as many.
const LONGEST: f64 = 20_000.0;

/// The arrival rates of the sources as functions of the number of requests here.
pub(super) struct ArrivalRates<'s> {
    pub(super) sources: &'s [RequestSource],
    mix: PopulationMix,
    /// The rate of each source per request of its group elsewhere, or its own rate if it is from outside.
    each: Vec<f64>,
    pub(super) closed: f64,
    /// The sum of the limits of all groups.
    total_limit: f64,
    /// The share of the requests here that is not from outside.
    share: f64,
    /// The sum of the rates from outside.
    pub(super) outside: f64,
    crowding: f64,
    reference: f64,
    level: f64,
    fewer: f64,
}

impl<'s> ArrivalRates<'s> {
    fn new(sources: &'s [RequestSource], case: &StationParameters, memory: &StationMemory) -> Self {
        let typical = {
            let total: f64 = sources.iter().map(|source| source.rate).sum();
            sources.iter().map(|source| source.held - source.rate * source.mean).sum::<f64>().max(0.0) / total
        };
        let mut mix = PopulationMix::new(sources, if case.fifo { typical } else { 0.0 });
        let total_limit: f64 = mix.groups.iter().map(|group| group.limit).sum();
        let closed = total_limit.min(case.max_requests).min(LONGEST);
        let held: f64 = mix.groups.iter().map(|group| group.held).sum();
        let everything: f64 = sources.iter().map(|source| source.held).sum();
        let away = (closed - held).max(0.001 * closed);
        mix.tabulate(closed);
        // If fewer can come than the sum of the limits, the numbers elsewhere are reduced proportionally.
        let fewer = if total_limit > closed { away / (total_limit - held).max(away) } else { 1.0 };
        let each = sources.iter().zip(&mix.group_of).map(|(source, group)| match group {
            None => source.rate,
            Some(group) => {
                let group = &mix.groups[*group];
                if source.rate > 0.0 { source.rate / group.elsewhere } else { 0.0 }
            }
        });
        let each = each.collect();
        let reference = away * (closed - 1.0) / closed.max(1.0);
        // For less than about one request, queueing elsewhere makes no difference.
        let crowding = (case.waiting / away).clamp(0.0, 0.98) * ((reference - 0.1) / 0.3).clamp(0.0, 1.0);
        let inside: f64 =
            sources.iter().filter(|source| source.limit.is_finite()).map(|source| source.held).sum();
        let share = if everything > 0.0 { inside / everything } else { 1.0 };
        let outside = sources
            .iter()
            .zip(&mix.group_of)
            .filter(|(_, group)| group.is_none())
            .map(|(own, _)| own.rate)
            .sum();
        Self {
            sources,
            mix,
            each,
            closed,
            total_limit,
            share,
            outside,
            crowding,
            reference,
            level: memory.level,
            fewer,
        }
    }

    /// Returns the factor of the rate with `here` requests at the station, relative to that of mean
    /// conditions.
    fn pace(&self, here: f64) -> f64 {
        if self.crowding <= 0.0 {
            return self.level;
        }
        let away = (self.closed - here - 1.0).max(0.0);
        self.level / ((1.0 - self.crowding) + self.crowding * away / self.reference)
    }

    /// Computes the rate of each source; returns their sum, and the sum without crowding (closed sources
    /// only).
    pub(super) fn at(&self, here: f64, out: &mut [f64]) -> (f64, f64) {
        let here = here * self.share;
        let full = here >= self.closed - 1e-9;
        let pace = self.pace(here);
        // The share of the requests that the limits allow and that can come.
        let can = if self.total_limit > self.closed {
            (self.closed - here) / (self.total_limit - here) / self.fewer
        } else {
            1.0
        };
        let (mut sum, mut plain) = (0.0, 0.0);
        for (place, out) in (0..self.sources.len()).zip(out) {
            *out = match self.mix.group_of[place] {
                None => self.each[place],
                Some(_) if full => 0.0,
                Some(group) => {
                    let away = self.mix.requests_elsewhere(group, here);
                    let rate = self.each[place] * away * can;
                    plain += rate;
                    rate * pace * self.mix.groups[group].arrival_speedup(away)
                }
            };
            sum += *out;
        }
        (sum, plain)
    }
}

/// The sums over the states of a chain.
pub(super) struct ChainSums {
    pub(super) rates: Vec<f64>,
    /// The arrivals of each source, their waiting in units of service, and its square.
    pub(super) arrivals: Vec<[f64; 3]>,
    /// The same for requests that return during the second phase of their thread's previous request.
    pub(super) overtaking: Vec<[f64; 3]>,
    pub(super) norm: f64,
    pub(super) busy_as_seen: [f64; 2],
    pub(super) plain: f64,
    pub(super) paced: f64,
}

impl ChainSums {
    fn new(count: usize) -> Self {
        Self {
            rates: vec![0.0; count],
            arrivals: vec![[0.0; 3]; count],
            overtaking: vec![[0.0; 3]; count],
            norm: 0.0,
            busy_as_seen: [0.0; 2],
            plain: 0.0,
            paced: 0.0,
        }
    }

    pub(super) fn add(&mut self, p: f64, wait: f64, square: f64) {
        for (rate, seen) in self.rates.iter().zip(&mut self.arrivals) {
            let weight = p * rate;
            *seen = [seen[0] + weight, seen[1] + weight * wait, seen[2] + weight * square];
        }
    }

    pub(super) fn add_overtaking(&mut self, p: f64, wait: f64, square: f64) {
        for (rate, seen) in self.rates.iter().zip(&mut self.overtaking) {
            let weight = p * rate;
            *seen = [seen[0] + weight, seen[1] + weight * wait, seen[2] + weight * square];
        }
    }

    pub(super) fn scale(&mut self, by: f64) {
        self.arrivals.iter_mut().chain(&mut self.overtaking).flatten().for_each(|sum| *sum *= by);
        self.busy_as_seen.iter_mut().for_each(|sum| *sum *= by);
        self.norm *= by;
        self.plain *= by;
        self.paced *= by;
    }
}

/// Computes the waiting time of each source.
pub(super) fn update_waiting_times(
    case: &StationParameters,
    sources: &mut [RequestSource],
    memory: &mut StationMemory,
) {
    let total: f64 = sources.iter().map(|source| source.rate).sum();
    sources.iter_mut().for_each(|source| (source.wait, source.variance) = (0.0, 0.0));
    let mean = sources.iter().map(|source| source.rate * source.mean).sum::<f64>() / total;
    if total.is_nan() || total <= 0.0 || mean.is_nan() || mean <= 0.0 || case.servers == 0 {
        return;
    }
    let rates = ArrivalRates::new(sources, case, memory);
    let open = rates.outside > 0.0;
    let after = case.phases[1] > 1e-9 * mean;
    if !open && !after && rates.closed <= case.servers as f64 + 1e-9 {
        return;
    }
    let mut sums = ChainSums::new(sources.len());
    let overtaken = after && case.servers == 1;
    let (each, overloaded) = if overtaken {
        phased::solve_one_thread(case, &rates, &mut sums)
    } else {
        chain(case, &rates, mean, &mut sums)
    };
    memory.overloaded = overloaded;
    if sums.busy_as_seen[0] > 0.0 {
        memory.busy_as_seen = sums.busy_as_seen[1] / sums.busy_as_seen[0];
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
        Some(variation_effect(
            case,
            &rates,
            &mut sums,
            [beyond, per_source, each],
            square / (mean * mean) - 1.0,
        ))
    } else {
        None
    };
    if sums.paced > 0.0 {
        let aim: f64 = sums.plain / sums.paced;
        memory.level = (memory.level * aim.sqrt()).clamp(0.2, 20.0);
    }
    let found: Vec<(f64, f64)> = (0..sources.len())
        .map(|place| {
            let [came, waited, squared] = sums.arrivals[place];
            if came <= 0.0 {
                return (0.0, 0.0);
            }
            let (mut long, mut square) = (each * waited / came, each * each * squared / came);
            let mut factor = 1.0;
            // The mean service of the requests that it meets: the others, and of its own group all but
            // itself.
            let (mut met, mut work, mut works) = (0.0, 0.0, 0.0);
            for (other, source) in sources.iter().enumerate() {
                let rate = match (rates.mix.group_of[other], rates.mix.group_of[place]) {
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
                    let ratio =
                        variance_correction::waiting_ratio(beyond, per_source, each, variation, base, part);
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
            let [came, waited, squared] = sums.overtaking[place];
            if overtaken && own.overtaking > 0.0 && came > 0.0 {
                // The waiting of requests that arrive behind their own previous one.
                let mut met = each * factor * waited / came;
                let mets = (each * factor).powi(2) * squared / came
                    + own.overtaking_remaining * (2.0 * own.overtaking_remaining + 2.0 * met);
                met += own.overtaking_remaining;
                long += own.overtaking * (met - long);
                square += own.overtaking * (mets - square);
            }
            (long, (square - long * long).max(0.0))
        })
        .collect();
    for (source, (long, variance)) in sources.iter_mut().zip(found) {
        (source.wait, source.variance) = (long, variance);
    }
}

/// Returns the ratio of the effect of variation on waiting with and without queueing elsewhere, and whether
/// the variation is below that of the exponential. Shifts the sums over the states to those with the
/// variation.
fn variation_effect(
    case: &StationParameters,
    rates: &ArrivalRates<'_>,
    sums: &mut ChainSums,
    [beyond, per_source, each]: [f64; 3],
    variation: f64,
) -> (bool, f64) {
    let below = variation < 1.0;
    let reference = non_exponential_server::reference_variation(variation);
    let plain = variance_correction::waiting_ratio(beyond, per_source, each, reference, 1.0, 0.0);
    let whole = variance_correction::waiting_ratio(beyond, per_source, each, variation.max(0.0), 1.0, 0.0);
    if (plain - 1.0).abs() < 1e-6 {
        return (below, 1.0);
    }
    let mut out = vec![0.0; rates.sources.len()];
    let mut at = |n: usize| rates.at(n as f64 + case.servers as f64 - 1.0, &mut out);
    let most = beyond.ceil() as usize;
    let even = non_exponential_server::solve_server(&mut at, most, each, 1.0);
    let uneven = non_exponential_server::solve_server(&mut at, most, each, reference);
    let part = (whole - 1.0) / (plain - 1.0);
    if sums.norm > 0.0 && even.paced > 0.0 {
        sums.plain += sums.norm * part * (uneven.plain - even.plain);
        sums.paced += sums.norm * part * (uneven.paced - even.paced);
    }
    let found = if even.wait > 1e-9 * each { uneven.wait / even.wait } else { plain };
    (below, (found - 1.0) / (plain - 1.0))
}

/// Solves the chain with the number of requests as its state.
fn chain(case: &StationParameters, rates: &ArrivalRates<'_>, mean: f64, sums: &mut ChainSums) -> (f64, bool) {
    let servers = case.servers;
    let scale = if case.holding_alone > 0.0 { 1.0 } else { 0.0 };
    let holds = |busy: f64| {
        if scale > 0.0 {
            (case.holding_alone + case.holding_slope * (busy - 1.0)).max(case.holding_min * busy)
        } else {
            mean
        }
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
        sums.busy_as_seen = [sums.busy_as_seen[0] + p * busy, sums.busy_as_seen[1] + p * busy * busy];
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
            // From here on the states are a geometric series.
            overloaded = ratio >= 0.9999;
            let r = ratio.min(0.9999);
            let tail = [r / (1.0 - r), r / (1.0 - r).powi(2), r * (1.0 + r) / (1.0 - r).powi(3)];
            let wait = before * tail[0] + tail[1];
            let square = before * (before + 1.0) * tail[0] + (2.0 * before + 1.0) * tail[1] + tail[2];
            sums.norm += p * tail[0];
            for (rate, seen) in sums.rates.iter().zip(&mut sums.arrivals) {
                let weight = p * rate;
                *seen = [seen[0] + weight * tail[0], seen[1] + weight * wait, seen[2] + weight * square];
            }
            let busy = servers as f64;
            sums.busy_as_seen[0] += p * busy * tail[0];
            sums.busy_as_seen[1] += p * busy * busy * tail[0];
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
