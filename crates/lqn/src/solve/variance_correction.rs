//! The effect of the variation of service on waiting, relative to exponential service.
//!
//! The model is one server with a finite number of sources, each of which returns after an exponential time.
//! Its utilization is known exactly for any distribution of service, from its Laplace transform (Takács,
//! Introduction to the theory of queues, 1962, chapter 5). The waiting time follows by Little's law.

/// The largest number of sources; more are replaced by this number with the same total rate.
const MAX_SOURCES: f64 = 200.0;

/// Returns the inverse of the Laplace transform of a service time with this mean and squared coefficient of
/// variation. The distribution is the simulator's: gamma below 1, hyperexponential with balanced means above.
fn inverse_transform(rate: f64, mean: f64, variation: f64) -> f64 {
    let x = rate * mean;
    if variation < 1e-6 {
        x.exp()
    } else if variation < 1.0 {
        (1.0 + x * variation).powf(1.0 / variation)
    } else {
        let first = 0.5 * (1.0 + ((variation - 1.0) / (variation + 1.0)).sqrt());
        let [first_part, second_part] =
            [first, 1.0 - first].map(|probability| probability / (1.0 + x * 0.5 / probability));
        1.0 / (first_part + second_part)
    }
}

/// Returns the mean waiting time at one server with this number of sources, each with this rate while it is
/// elsewhere.
pub(super) fn mean_waiting(sources: f64, rate: f64, mean: f64, variation: f64) -> f64 {
    if sources <= 1.0 || rate <= 0.0 || mean <= 0.0 {
        return 0.0;
    }
    let (n, rate) = if sources > MAX_SOURCES {
        (MAX_SOURCES, rate * sources / MAX_SOURCES)
    } else {
        (sources.round(), rate)
    };
    let (mut term, mut sum) = (1.0, 1.0);
    let mut i = 1.0;
    while i < n {
        term *= (n - i) / i * (inverse_transform(i * rate, mean, variation) - 1.0);
        sum += term;
        if sum > 1e200 || term < 1e-14 * sum {
            break;
        }
        i += 1.0;
    }
    let busy = 1.0 - 1.0 / (1.0 + n * rate * mean * sum);
    (n * mean / busy - 1.0 / rate - mean).max(0.0)
}

/// Returns the ratio of waiting with `variation` to that with `than`; `open` is the share of requests from
/// outside.
pub(super) fn waiting_ratio(
    sources: f64,
    rate: f64,
    mean: f64,
    variation: f64,
    reference: f64,
    open_share: f64,
) -> f64 {
    if (variation - reference).abs() < 1e-9 {
        return 1.0;
    }
    // The Pollaczek-Khinchine formula.
    let open_ratio = (1.0 + variation) / (1.0 + reference);
    if open_share >= 1.0 || sources <= 1.0 {
        return open_ratio;
    }
    let base = mean_waiting(sources, rate, mean, reference);
    let closed =
        if base > 1e-9 * mean { mean_waiting(sources, rate, mean, variation) / base } else { open_ratio };
    open_share * open_ratio + (1.0 - open_share) * closed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_service_is_that_of_the_machine_repairman() {
        // The expected value, from the balance equations of the states.
        for (sources, rate) in [(2, 0.3), (6, 0.25), (30, 0.02)] {
            let (mut p, mut sum, mut mean_present) = (1.0, 1.0, 0.0);
            for k in 1..=sources {
                p *= f64::from(sources - k + 1) * rate;
                sum += p;
                mean_present += f64::from(k) * p;
            }
            let throughput = 1.0 - 1.0 / sum;
            let expected = mean_present / sum / throughput - 1.0;
            let waiting = mean_waiting(f64::from(sources), rate, 1.0, 1.0 + 1e-9);
            assert!((waiting / expected - 1.0).abs() < 1e-6, "{sources}: {waiting}, not {expected}");
        }
    }

    #[test]
    fn many_sources_are_as_good_as_arrivals_from_outside() {
        for variation in [0.0, 0.5, 4.0] {
            let waiting = mean_waiting(200.0, 0.2 / 200.0, 1.0, variation);
            let expected = 0.2 * (1.0 + variation) / 2.0 / 0.8;
            assert!((waiting / expected - 1.0).abs() < 0.03, "{variation}: {waiting}, not {expected}");
        }
    }
}
