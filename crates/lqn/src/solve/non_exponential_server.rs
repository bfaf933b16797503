//! One server with service that is not exponential, and arrival rates that depend on the number of requests.
//!
//! Two phases suffice for the relevant effect, the change of waiting with the variation. They are two
//! consecutive exponentials (a squared variation of 1/2) or a hyperexponential with balanced means (2). Both
//! chains are solved level by level without subtraction of nearly equal numbers.
//! [`variance_correction`](super::variance_correction) gives the waiting time for any variation if sources do
//! not queue elsewhere; the change is taken to be proportional.

/// The results of a chain, as means over its states.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ServerResults {
    /// The mean waiting time of an arrival.
    pub(super) wait: f64,
    /// The arrival rates without and with crowding.
    pub(super) unpaced: f64,
    pub(super) paced: f64,
}

/// Returns the squared coefficient of variation of the chain for service that varies less or more than the
/// exponential.
pub(super) fn reference_variation(variation: f64) -> f64 {
    if variation < 1.0 { 0.5 } else { 2.0 }
}

/// Solves the chain with a squared coefficient of variation of 1/2, 1 or 2. `rates` returns the arrival rate
/// with a number of requests, and that without crowding. There are no arrivals with `most` requests.
pub(super) fn solve_server(
    rates: &mut dyn FnMut(usize) -> (f64, f64),
    max_requests: usize,
    mean: f64,
    variation: f64,
) -> ServerResults {
    let mut sums = ServerSums::default();
    let (mut rate, unpaced_rate) = rates(0);
    sums.add(1.0, rate, unpaced_rate, 0.0);
    // The weights of both phases with one request less, and the rate there.
    let (mut last_probabilities, mut last_rate) = ([0.0; 2], rate);
    let is_hyperexponential = variation > 1.0;
    let first = 0.5 * (1.0 + (1.0_f64 / 3.0).sqrt());
    let parts = [first, 1.0 - first];
    let means = if is_hyperexponential { parts.map(|part| 0.5 * mean / part) } else { [0.5 * mean; 2] };
    let mut total_probability = 1.0;
    for n in 1..=max_requests {
        let unpaced_rate;
        (rate, unpaced_rate) = if n == max_requests { (0.0, 0.0) } else { rates(n) };
        let inflow = if n == 1 {
            parts.map(|part| part * last_rate)
        } else {
            last_probabilities.map(|probability| probability * last_rate)
        };
        let probabilities = if variation == 1.0 {
            [last_rate * total_probability * mean, 0.0]
        } else if is_hyperexponential {
            // The flows into each phase from below, and from above, which equal those upwards.
            let [first_outflow, second_outflow] = [0, 1].map(|phase| rate + 1.0 / means[phase]);
            let (p, q) = (parts[0] * rate, parts[1] * rate);
            let determinant = (first_outflow - p) * (second_outflow - q) - p * q;
            [
                (inflow[0] * (second_outflow - q) + p * inflow[1]) / determinant,
                (inflow[1] * (first_outflow - p) + q * inflow[0]) / determinant,
            ]
        } else {
            let second = last_rate * total_probability * means[1];
            let previous = if n == 1 { last_rate } else { last_probabilities[0] * last_rate };
            [second * rate * means[0] + previous * means[0], second]
        };
        total_probability = probabilities[0] + probabilities[1];
        let waiting_times = if is_hyperexponential {
            means.map(|left| (n as f64 - 1.0) * mean + left)
        } else {
            // Of two consecutive phases, the second is left, or both.
            [n as f64 * mean, (n as f64 - 0.5) * mean]
        };
        sums.add(probabilities[0], rate, unpaced_rate, waiting_times[0]);
        sums.add(probabilities[1], rate, unpaced_rate, waiting_times[1]);
        if rate <= 0.0
            || (total_probability < 1e-13 * sums.norm && rate * mean < 1.0)
            || !total_probability.is_finite()
        {
            break;
        }
        (last_probabilities, last_rate) = (probabilities, rate);
        if total_probability > 1e200 {
            sums.scale(1e-200);
            last_probabilities = last_probabilities.map(|probability| probability * 1e-200);
            total_probability *= 1e-200;
        }
    }
    let share = |sum: f64, total: f64| if total > 0.0 { sum / total } else { 0.0 };
    ServerResults {
        wait: share(sums.waited, sums.paced),
        unpaced: share(sums.unpaced, sums.norm),
        paced: share(sums.paced, sums.norm),
    }
}

#[derive(Default)]
struct ServerSums {
    norm: f64,
    unpaced: f64,
    paced: f64,
    waited: f64,
}

impl ServerSums {
    fn add(&mut self, p: f64, rate: f64, unpaced_rate: f64, wait: f64) {
        self.norm += p;
        self.unpaced += p * unpaced_rate;
        self.paced += p * rate;
        self.waited += p * rate * wait;
    }

    fn scale(&mut self, factor: f64) {
        for sum in [&mut self.norm, &mut self.unpaced, &mut self.paced, &mut self.waited] {
            *sum *= factor;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::variance_correction;
    use super::*;

    #[test]
    fn it_is_exact_where_sources_wait_for_nobody_elsewhere() {
        for variation in [0.5, 1.0, 2.0] {
            for (sources, rate) in [(2, 0.4), (6, 0.3), (20, 0.08)] {
                let mut rates = |n: usize| {
                    let rate = f64::from(sources - n as i32) * rate;
                    (rate, rate)
                };
                let results = solve_server(&mut rates, sources as usize, 1.0, variation);
                // Two consecutive phases are the gamma distribution with variation 1/2, so Takács' formula is
                // exact.
                let expected = variance_correction::mean_waiting(f64::from(sources), rate, 1.0, variation);
                assert!(
                    (results.wait / expected - 1.0).abs() < 1e-6,
                    "{variation} {sources}: {results:?}, not {expected}"
                );
            }
        }
    }
}
