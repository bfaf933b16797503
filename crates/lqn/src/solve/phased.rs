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
    let (mut all, mut closed, mut back) = (0.0, 0.0, 0.0);
    for source in rates.sources {
        all += source.rate;
        if source.limit.is_finite() {
            closed += source.rate;
            back += source.rate * source.overtaking;
        }
    }
    if closed <= 0.0 { (0.0, 0.0) } else { (closed / all, (back / closed).min(0.999)) }
}

/// Solves the chain of one thread with two phases.
pub(super) fn solve_one_thread(
    case: &StationParameters,
    rates: &ArrivalRates<'_>,
    sums: &mut ChainSums,
) -> (f64, bool) {
    let [first, second] = case.phases;
    let whole = first + second;
    let (inside, back) = returning_shares(rates);
    // The rate at which a caller returns during the second phase.
    let soon = back / ((1.0 - back) * second);
    // The weights of the idle state, and of states with `n` requests in the first phase.
    let (mut idle, mut working) = (1.0_f64, 0.0_f64);
    let mut while_away = sums.rates.clone();
    let mut n = 0.0;
    // The rates of each source without requests that return during the second phase.
    let at = |n: f64, out: &mut [f64]| {
        let (_, plain) = rates.at(n, out);
        let mut sum = 0.0;
        for (rate, source) in out.iter_mut().zip(rates.sources) {
            *rate *= 1.0 - source.overtaking.min(0.999);
            sum += *rate;
        }
        (sum, plain)
    };
    // The flows from states with one request less.
    let mut more = [0.0; 2];
    loop {
        // The rates of others while the caller is elsewhere.
        let (others, _) = at(n + 1.0, &mut while_away);
        let (rate, plain) = at(n, &mut sums.rates);
        let leaves = 1.0 / second;
        let soon = if n + 1.0 > rates.closed + 1e-9 { 0.0 } else { soon };
        // The balance equations of the second phase, with the caller elsewhere and with it back.
        let quiet = rate * (idle + working);
        let a = [others + soon + leaves - inside * (others + soon), -inside * rate];
        let b = [-(1.0 - inside) * (others + soon), rate + leaves - (1.0 - inside) * rate];
        let right = [inside * quiet + more[0], (1.0 - inside) * quiet + more[1]];
        let det = a[0] * b[1] - a[1] * b[0];
        let away = ((right[0] * b[1] - a[1] * right[1]) / det).max(0.0);
        let again = ((a[0] * right[1] - b[0] * right[0]) / det).max(0.0);
        let here = idle + working + away + again;
        sums.norm += here;
        // In units of the whole service time.
        let late = n + second / whole;
        sums.add(idle, 0.0, 0.0);
        sums.add(working, n, n * (n + 1.0));
        sums.add(again, late, late * (late + 1.0));
        sums.plain += here * plain;
        sums.paced += (idle + working + again) * (rate - rates.outside)
            + away * ((others - rates.outside).max(0.0) + soon);
        // The more other requests are here, the less likely the caller is one that is seldom elsewhere.
        sums.add_overtaking(away * soon, n, n * (n + 1.0));
        std::mem::swap(&mut sums.rates, &mut while_away);
        sums.add(away, late, late * (late + 1.0));
        let up = rate * (idle + working + again) + (others + soon) * away;
        if up <= 0.0 {
            break;
        }
        let ratio = rate * whole;
        if rate - rates.outside <= 0.0 && n > 2.0 && ratio >= 0.9999 {
            return (whole, true);
        }
        more = [others * away, soon * away + rate * again];
        (working, idle) = (first * up, 0.0);
        n += 1.0;
        if here > 1e200 {
            sums.scale(1e-200);
            working *= 1e-200;
            more.iter_mut().for_each(|flow| *flow *= 1e-200);
        }
        if (here < 1e-13 * sums.norm && rate * whole < 1.0) || n > 40_000.0 {
            break;
        }
    }
    sums.busy_as_seen = [1.0, 1.0];
    (whole, false)
}
