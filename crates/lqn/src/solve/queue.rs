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
const MAX_CHAIN_LENGTH: f64 = 20_000.0;

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
    fn new(sources: &'s [RequestSource], parameters: &StationParameters, memory: &StationMemory) -> Self {
        let typical_wait = {
            let total: f64 = sources.iter().map(|source| source.rate).sum();
            sources.iter().map(|source| source.held - source.rate * source.mean).sum::<f64>().max(0.0) / total
        };
        let mut mix = PopulationMix::new(sources, if parameters.fifo { typical_wait } else { 0.0 });
        let total_limit: f64 = mix.groups.iter().map(|group| group.limit).sum();
        let closed = total_limit.min(parameters.max_requests).min(MAX_CHAIN_LENGTH);
        let closed_held: f64 = mix.groups.iter().map(|group| group.held).sum();
        let total_held: f64 = sources.iter().map(|source| source.held).sum();
        let away = (closed - closed_held).max(0.001 * closed);
        mix.tabulate(closed);
        // If fewer can come than the sum of the limits, the numbers elsewhere are reduced proportionally.
        let coverage = if total_limit > closed { away / (total_limit - closed_held).max(away) } else { 1.0 };
        let source_rate = sources.iter().zip(&mix.group_of).map(|(source, group)| match group {
            None => source.rate,
            Some(group) => {
                let group = &mix.groups[*group];
                if source.rate > 0.0 { source.rate / group.elsewhere } else { 0.0 }
            }
        });
        let source_rates = source_rate.collect();
        let reference = away * (closed - 1.0) / closed.max(1.0);
        // For less than about one request, queueing elsewhere makes no difference.
        let crowding =
            (parameters.waiting / away).clamp(0.0, 0.98) * ((reference - 0.1) / 0.3).clamp(0.0, 1.0);
        let closed_sources_held: f64 =
            sources.iter().filter(|source| source.limit.is_finite()).map(|source| source.held).sum();
        let share = if total_held > 0.0 { closed_sources_held / total_held } else { 1.0 };
        let outside = sources
            .iter()
            .zip(&mix.group_of)
            .filter(|(_, group)| group.is_none())
            .map(|(source, _)| source.rate)
            .sum();
        Self {
            sources,
            mix,
            each: source_rates,
            closed,
            total_limit,
            share,
            outside,
            crowding,
            reference,
            level: memory.level,
            fewer: coverage,
        }
    }

    /// Returns the factor of the rate with `here` requests at the station, relative to that of mean
    /// conditions.
    fn pace(&self, present: f64) -> f64 {
        if self.crowding <= 0.0 {
            return self.level;
        }
        let away = (self.closed - present - 1.0).max(0.0);
        self.level / ((1.0 - self.crowding) + self.crowding * away / self.reference)
    }

    /// Computes the rate of each source; returns their sum, and the sum without crowding (closed sources
    /// only).
    pub(super) fn at(&self, present: f64, out: &mut [f64]) -> (f64, f64) {
        let closed_present = present * self.share;
        let is_full = closed_present >= self.closed - 1e-9;
        let pace = self.pace(closed_present);
        // The share of the requests that the limits allow and that can come.
        let admission = if self.total_limit > self.closed {
            (self.closed - closed_present) / (self.total_limit - closed_present) / self.fewer
        } else {
            1.0
        };
        let (mut total, mut unpaced_sum) = (0.0, 0.0);
        for (index, source_rate) in (0..self.sources.len()).zip(out) {
            *source_rate = match self.mix.group_of[index] {
                None => self.each[index],
                Some(_) if is_full => 0.0,
                Some(group) => {
                    let away = self.mix.requests_elsewhere(group, closed_present);
                    let rate = self.each[index] * away * admission;
                    unpaced_sum += rate;
                    rate * pace * self.mix.groups[group].arrival_speedup(away)
                }
            };
            total += *source_rate;
        }
        (total, unpaced_sum)
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
    pub(super) unpaced: f64,
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
            unpaced: 0.0,
            paced: 0.0,
        }
    }

    pub(super) fn add(&mut self, p: f64, wait: f64, square: f64) {
        for (rate, sums) in self.rates.iter().zip(&mut self.arrivals) {
            let weight = p * rate;
            *sums = [sums[0] + weight, sums[1] + weight * wait, sums[2] + weight * square];
        }
    }

    pub(super) fn add_overtaking(&mut self, p: f64, wait: f64, square: f64) {
        for (rate, sums) in self.rates.iter().zip(&mut self.overtaking) {
            let weight = p * rate;
            *sums = [sums[0] + weight, sums[1] + weight * wait, sums[2] + weight * square];
        }
    }

    pub(super) fn scale(&mut self, factor: f64) {
        self.arrivals.iter_mut().chain(&mut self.overtaking).flatten().for_each(|sum| *sum *= factor);
        self.busy_as_seen.iter_mut().for_each(|sum| *sum *= factor);
        self.norm *= factor;
        self.unpaced *= factor;
        self.paced *= factor;
    }
}

/// Computes the waiting time of each source.
pub(super) fn update_waiting_times(
    parameters: &StationParameters,
    sources: &mut [RequestSource],
    memory: &mut StationMemory,
) {
    let total: f64 = sources.iter().map(|source| source.rate).sum();
    sources.iter_mut().for_each(|source| (source.wait, source.variance) = (0.0, 0.0));
    let mean = sources.iter().map(|source| source.rate * source.mean).sum::<f64>() / total;
    if total.is_nan() || total <= 0.0 || mean.is_nan() || mean <= 0.0 || parameters.servers == 0 {
        return;
    }
    let rates = ArrivalRates::new(sources, parameters, memory);
    let open = rates.outside > 0.0;
    let has_second_phase = parameters.phases[1] > 1e-9 * mean;
    if !open && !has_second_phase && rates.closed <= parameters.servers as f64 + 1e-9 {
        return;
    }
    let mut sums = ChainSums::new(sources.len());
    let is_overtaken = has_second_phase && parameters.servers == 1;
    let (service_interval, overloaded) = if is_overtaken {
        phased::solve_one_thread(parameters, &rates, &mut sums)
    } else {
        chain(parameters, &rates, mean, &mut sums)
    };
    memory.overloaded = overloaded;
    if sums.busy_as_seen[0] > 0.0 {
        memory.busy_as_seen = sums.busy_as_seen[1] / sums.busy_as_seen[0];
    }
    let base_variation = if is_overtaken {
        let [first, second] = parameters.phases;
        (first * first + second * second) / (first + second).powi(2)
    } else {
        1.0
    };
    let waiting_sources =
        rates.closed - (parameters.servers as f64 - 1.0) + if is_overtaken { 0.5 } else { 0.0 };
    let (full_rate, _) = rates.at(parameters.servers as f64 - 1.0, &mut sums.rates);
    let outside = rates.outside;
    let per_source =
        if waiting_sources > 0.0 { (full_rate - outside).max(0.0) / waiting_sources } else { 0.0 };
    let variation_bend = if parameters.fifo && !is_overtaken && outside <= 0.0 && waiting_sources > 1.0 {
        let square = sources.iter().map(|source| source.rate * source.square).sum::<f64>() / total;
        Some(variation_effect(
            parameters,
            &rates,
            &mut sums,
            [waiting_sources, per_source, service_interval],
            square / (mean * mean) - 1.0,
        ))
    } else {
        None
    };
    if sums.paced > 0.0 {
        let correction: f64 = sums.unpaced / sums.paced;
        memory.level = (memory.level * correction.sqrt()).clamp(0.2, 20.0);
    }
    let waiting_times: Vec<(f64, f64)> = (0..sources.len())
        .map(|index| {
            let [arrivals, waited, squared] = sums.arrivals[index];
            if arrivals <= 0.0 {
                return (0.0, 0.0);
            }
            let (mut mean_wait, mut square) = (
                service_interval * waited / arrivals,
                service_interval * service_interval * squared / arrivals,
            );
            let mut factor = 1.0;
            // The mean service of the requests that it meets: the others, and of its own group all but
            // itself.
            let (mut total_rate, mut work, mut work_squares) = (0.0, 0.0, 0.0);
            for (source_index, source) in sources.iter().enumerate() {
                let rate = match (rates.mix.group_of[source_index], rates.mix.group_of[index]) {
                    (Some(other_group), Some(own_group)) if other_group == own_group => {
                        source.rate * (1.0 - 1.0 / rates.mix.groups[own_group].limit).max(0.0)
                    }
                    _ => source.rate,
                };
                total_rate += rate;
                work += rate * source.mean;
                work_squares += rate * source.square;
            }
            if total_rate > 0.0 && work > 0.0 {
                let typical_work = work / total_rate;
                let variation =
                    (work_squares / total_rate / (typical_work * typical_work) - 1.0).clamp(0.0, 100.0);
                let mut scale = typical_work / mean;
                if parameters.fifo {
                    let open_share = outside / (full_rate.max(outside));
                    let ratio = variance_correction::waiting_ratio(
                        waiting_sources,
                        per_source,
                        service_interval,
                        variation,
                        base_variation,
                        open_share,
                    );
                    scale *= match variation_bend {
                        Some((is_below, factor_bend)) if is_below == (variation < 1.0) => {
                            (1.0 + (ratio - 1.0) * factor_bend).max(0.1)
                        }
                        _ => ratio,
                    };
                }
                mean_wait *= scale;
                square *= scale * scale;
                factor = scale;
            }
            let source = sources[index];
            let [overtakers, overtakers_waited, overtakers_squared] = sums.overtaking[index];
            if is_overtaken && source.overtaking > 0.0 && overtakers > 0.0 {
                // The waiting of requests that arrive behind their own previous one.
                let mut overtaken_wait = service_interval * factor * overtakers_waited / overtakers;
                let overtaken_square = (service_interval * factor).powi(2) * overtakers_squared / overtakers
                    + source.overtaking_remaining
                        * (2.0 * source.overtaking_remaining + 2.0 * overtaken_wait);
                overtaken_wait += source.overtaking_remaining;
                mean_wait += source.overtaking * (overtaken_wait - mean_wait);
                square += source.overtaking * (overtaken_square - square);
            }
            (mean_wait, (square - mean_wait * mean_wait).max(0.0))
        })
        .collect();
    for (source, (mean_wait, variance)) in sources.iter_mut().zip(waiting_times) {
        (source.wait, source.variance) = (mean_wait, variance);
    }
}

/// Returns the ratio of the effect of variation on waiting with and without queueing elsewhere, and whether
/// the variation is below that of the exponential. Shifts the sums over the states to those with the
/// variation.
fn variation_effect(
    parameters: &StationParameters,
    rates: &ArrivalRates<'_>,
    sums: &mut ChainSums,
    [waiting_sources, per_source, service_interval]: [f64; 3],
    variation: f64,
) -> (bool, f64) {
    let is_below = variation < 1.0;
    let reference = non_exponential_server::reference_variation(variation);
    let reference_ratio = variance_correction::waiting_ratio(
        waiting_sources,
        per_source,
        service_interval,
        reference,
        1.0,
        0.0,
    );
    let full_ratio = variance_correction::waiting_ratio(
        waiting_sources,
        per_source,
        service_interval,
        variation.max(0.0),
        1.0,
        0.0,
    );
    if (reference_ratio - 1.0).abs() < 1e-6 {
        return (is_below, 1.0);
    }
    let mut out = vec![0.0; rates.sources.len()];
    let mut rates_at = |n: usize| rates.at(n as f64 + parameters.servers as f64 - 1.0, &mut out);
    let max_requests = waiting_sources.ceil() as usize;
    let exponential =
        non_exponential_server::solve_server(&mut rates_at, max_requests, service_interval, 1.0);
    let non_exponential =
        non_exponential_server::solve_server(&mut rates_at, max_requests, service_interval, reference);
    let effect_share = (full_ratio - 1.0) / (reference_ratio - 1.0);
    if sums.norm > 0.0 && exponential.paced > 0.0 {
        sums.unpaced += sums.norm * effect_share * (non_exponential.unpaced - exponential.unpaced);
        sums.paced += sums.norm * effect_share * (non_exponential.paced - exponential.paced);
    }
    let chain_ratio = if exponential.wait > 1e-9 * service_interval {
        non_exponential.wait / exponential.wait
    } else {
        reference_ratio
    };
    (is_below, (chain_ratio - 1.0) / (reference_ratio - 1.0))
}

/// Solves the chain with the number of requests as its state.
fn chain(
    parameters: &StationParameters,
    rates: &ArrivalRates<'_>,
    mean: f64,
    sums: &mut ChainSums,
) -> (f64, bool) {
    let servers = parameters.servers;
    let scale = if parameters.holding_alone > 0.0 { 1.0 } else { 0.0 };
    let holding_time = |busy: f64| {
        if scale > 0.0 {
            (parameters.holding_alone + parameters.holding_slope * (busy - 1.0))
                .max(parameters.holding_min * busy)
        } else {
            mean
        }
    };
    let service_interval = holding_time(servers as f64) / servers as f64;
    let [first, second] = parameters.phases;
    let second_phase_share = if first + second > 0.0 { second / (first + second) } else { 0.0 };
    let (mut probability, mut present) = (1.0_f64, 0_usize);
    let mut overloaded = false;
    loop {
        let busy = present.min(servers) as f64;
        let unanswered = present as f64 - second_phase_share * busy;
        let (rate, unpaced_rate) = rates.at(unanswered, &mut sums.rates);
        let waiting = (present + 1).saturating_sub(servers) as f64;
        sums.norm += probability;
        sums.busy_as_seen =
            [sums.busy_as_seen[0] + probability * busy, sums.busy_as_seen[1] + probability * busy * busy];
        let closed_rate = rate - rates.outside;
        sums.unpaced += probability * unpaced_rate;
        sums.paced += probability * closed_rate;
        sums.add(probability, waiting, waiting * (waiting + 1.0));
        if rate <= 0.0 {
            break;
        }
        let next_busy = (present + 1).min(servers) as f64;
        let ratio = rate * holding_time(next_busy) / next_busy;
        if closed_rate <= 0.0 && present >= servers {
            // From here on the states are a geometric series.
            overloaded = ratio >= 0.9999;
            let bounded_ratio = ratio.min(0.9999);
            let tail = [
                bounded_ratio / (1.0 - bounded_ratio),
                bounded_ratio / (1.0 - bounded_ratio).powi(2),
                bounded_ratio * (1.0 + bounded_ratio) / (1.0 - bounded_ratio).powi(3),
            ];
            let wait = waiting * tail[0] + tail[1];
            let square = waiting * (waiting + 1.0) * tail[0] + (2.0 * waiting + 1.0) * tail[1] + tail[2];
            sums.norm += probability * tail[0];
            for (rate, source_sums) in sums.rates.iter().zip(&mut sums.arrivals) {
                let weight = probability * rate;
                *source_sums = [
                    source_sums[0] + weight * tail[0],
                    source_sums[1] + weight * wait,
                    source_sums[2] + weight * square,
                ];
            }
            let busy = servers as f64;
            sums.busy_as_seen[0] += probability * busy * tail[0];
            sums.busy_as_seen[1] += probability * busy * busy * tail[0];
            break;
        }
        probability *= ratio;
        present += 1;
        if probability > 1e200 {
            sums.scale(1e-200);
            probability *= 1e-200;
        }
        if (ratio < 1.0 && probability < 1e-13 * sums.norm) || present as f64 > 2.0 * MAX_CHAIN_LENGTH {
            break;
        }
    }
    (service_interval, overloaded)
}
