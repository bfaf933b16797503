//! The chain of a task with one thread that continues after its reply: the state is the number of requests
//! and the phase of the thread.
//!
//! The caller that got the reply returns sooner or later than others do. [`overtake`](super::overtake)
//! provides the probability that it returns during the second phase of its own request. So the state includes
//! whether the caller has returned in that phase.

use super::queue::{ArrivalRates, ChainSums, StationParameters};

/// Returns the share of replies to threads that can return, and the share of those that return during the
/// second phase of their request.
fn returning_shares(rates: &ArrivalRates<'_>) -> (f64, f64) {
    let (mut total_rate, mut closed_rate, mut returning_rate) = (0.0, 0.0, 0.0);
    for source in rates.sources {
        total_rate += source.rate;
        if source.limit.is_finite() {
            closed_rate += source.rate;
            returning_rate += source.rate * source.overtaking;
        }
    }
    if closed_rate <= 0.0 {
        (0.0, 0.0)
    } else {
        (closed_rate / total_rate, (returning_rate / closed_rate).min(0.999))
    }
}

/// Solves the chain of one thread with two phases.
pub(super) fn solve_one_thread(
    parameters: &StationParameters,
    rates: &ArrivalRates<'_>,
    sums: &mut ChainSums,
) -> (f64, bool) {
    let [first, second] = parameters.phases;
    let holding_time = first + second;
    let (closed_share, returning_share) = returning_shares(rates);
    // The rate at which a caller returns during the second phase.
    let return_rate = returning_share / ((1.0 - returning_share) * second);
    // The weights of the idle state, and of states with `n` requests in the first phase.
    let (mut idle, mut working) = (1.0_f64, 0.0_f64);
    let mut while_away = sums.rates.clone();
    let mut n = 0.0;
    // The rates of each source without requests that return during the second phase.
    let others_rates = |n: f64, out: &mut [f64]| {
        let (_, unpaced_rate) = rates.at(n, out);
        let mut sum = 0.0;
        for (rate, source) in out.iter_mut().zip(rates.sources) {
            *rate *= 1.0 - source.overtaking.min(0.999);
            sum += *rate;
        }
        (sum, unpaced_rate)
    };
    // The flows from states with one request less.
    let mut inflows = [0.0; 2];
    loop {
        // The rates of others while the caller is elsewhere.
        let (others_rate, _) = others_rates(n + 1.0, &mut while_away);
        let (rate, unpaced_rate) = others_rates(n, &mut sums.rates);
        let end_rate = 1.0 / second;
        let current_return_rate = if n + 1.0 > rates.closed + 1e-9 { 0.0 } else { return_rate };
        // The balance equations of the second phase, with the caller elsewhere and with it back.
        let new_arrivals = rate * (idle + working);
        let a = [
            others_rate + current_return_rate + end_rate - closed_share * (others_rate + current_return_rate),
            -closed_share * rate,
        ];
        let b = [
            -(1.0 - closed_share) * (others_rate + current_return_rate),
            rate + end_rate - (1.0 - closed_share) * rate,
        ];
        let right_side =
            [closed_share * new_arrivals + inflows[0], (1.0 - closed_share) * new_arrivals + inflows[1]];
        let determinant = a[0] * b[1] - a[1] * b[0];
        let away = ((right_side[0] * b[1] - a[1] * right_side[1]) / determinant).max(0.0);
        let working_again = ((a[0] * right_side[1] - b[0] * right_side[0]) / determinant).max(0.0);
        let level_probability = idle + working + away + working_again;
        sums.norm += level_probability;
        // In units of the whole service time.
        let mean_remaining = n + second / holding_time;
        sums.add(idle, 0.0, 0.0);
        sums.add(working, n, n * (n + 1.0));
        sums.add(working_again, mean_remaining, mean_remaining * (mean_remaining + 1.0));
        sums.unpaced += level_probability * unpaced_rate;
        sums.paced += (idle + working + working_again) * (rate - rates.outside)
            + away * ((others_rate - rates.outside).max(0.0) + current_return_rate);
        // The more other requests are here, the less likely the caller is one that is seldom elsewhere.
        sums.add_overtaking(away * current_return_rate, n, n * (n + 1.0));
        std::mem::swap(&mut sums.rates, &mut while_away);
        sums.add(away, mean_remaining, mean_remaining * (mean_remaining + 1.0));
        let upward_flow =
            rate * (idle + working + working_again) + (others_rate + current_return_rate) * away;
        if upward_flow <= 0.0 {
            break;
        }
        let ratio = rate * holding_time;
        if rate - rates.outside <= 0.0 && n > 2.0 && ratio >= 0.9999 {
            return (holding_time, true);
        }
        inflows = [others_rate * away, current_return_rate * away + rate * working_again];
        (working, idle) = (first * upward_flow, 0.0);
        n += 1.0;
        if level_probability > 1e200 {
            sums.scale(1e-200);
            working *= 1e-200;
            inflows.iter_mut().for_each(|flow| *flow *= 1e-200);
        }
        if (level_probability < 1e-13 * sums.norm && rate * holding_time < 1.0) || n > 40_000.0 {
            break;
        }
    }
    sums.busy_as_seen = [1.0, 1.0];
    (holding_time, false)
}
