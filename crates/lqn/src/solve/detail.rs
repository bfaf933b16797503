//! The results of each phase, activity and call, as means over all origins.

use super::network::{SolverNetwork, WorkOrigin};
use super::{SolverState, service_times, think};
use crate::simulate::{ActivityResults, CallResults, Estimate};

/// A rate, with the weighted sums of two times.
#[derive(Clone, Copy, Default)]
struct WeightedSum {
    rate: f64,
    first: f64,
    second: f64,
}

impl WeightedSum {
    fn add(&mut self, rate: f64, first: f64, second: f64) {
        self.rate += rate;
        self.first += rate * first;
        self.second += rate * second;
    }

    fn mean(self, sum: f64) -> Estimate {
        sure(if self.rate > 0.0 { sum / self.rate } else { 0.0 })
    }
}

fn sure(mean: f64) -> Estimate {
    Estimate { mean: if mean.is_finite() { mean } else { 0.0 }, half_width: 0.0 }
}

/// Computes the results of all activities, and of all calls: those of each activity, then those that each
/// entry forwards.
pub(super) fn activity_results(
    net: &SolverNetwork<'_>,
    state: &SolverState,
) -> (Vec<ActivityResults>, Vec<CallResults>) {
    let model = net.model;
    let mut done = vec![WeightedSum::default(); model.activities.len()];
    let mut count = 0;
    let mut places = |own: usize| {
        count += own;
        count - own
    };
    let called: Vec<usize> = model.activities.iter().map(|own| places(own.calls.len())).collect();
    let forwarded: Vec<usize> = model.entries.iter().map(|own| places(own.forwards.len())).collect();
    let mut asked = vec![WeightedSum::default(); count];
    for (row, rate) in net.rows.iter().zip(&state.rates) {
        if *rate <= 0.0 {
            continue;
        }
        let longer = cycle_stretch(net, state, row.task, row.origin);
        let mut ask = |place: usize, rate: f64, to: usize| {
            let wait = state.slots[net.rows[to].queue].wait;
            asked[place].add(rate, wait, state.times[to].response.mean);
        };
        for step in &row.activities {
            for side in step.sides.iter().filter(|side| side.executions > 0.0) {
                let span = service_times::activity_time(net, state, step.activity, side);
                done[step.activity].add(rate * side.executions, longer * span.mean, 0.0);
                for (place, (to, count, _)) in side.calls.iter().enumerate() {
                    ask(called[step.activity] + place, rate * side.executions * count, *to);
                }
            }
        }
        // Rows have no targets with probability 0.
        let some = model.entries[row.entry].forwards.iter().enumerate().filter(|(_, (_, part))| *part > 0.0);
        for ((place, _), (to, part)) in some.zip(&row.forwards) {
            ask(forwarded[row.entry] + place, rate * part, *to);
        }
    }
    let activities = model.activities.iter().zip(&done).map(|(own, sum)| ActivityResults {
        name: own.name.clone(),
        throughput: sure(sum.rate),
        service: sum.mean(sum.first),
    });
    let name = |to: usize| model.entries[to].name.clone();
    let calls = model
        .activities
        .iter()
        .flat_map(|own| own.calls.iter().map(|call| (own.name.clone(), name(call.entry.0))));
    let forwards = model
        .entries
        .iter()
        .flat_map(|own| own.forwards.iter().map(|(to, _)| (own.name.clone(), name(to.0))));
    let calls = calls.chain(forwards).zip(&asked).map(|((from, to), sum)| CallResults {
        from,
        to,
        waiting: sum.mean(sum.first),
        response: sum.mean(sum.second),
    });
    (activities.collect(), calls.collect())
}

/// Returns the ratio of a client's cycle time to the sum of its parts, after throughputs were reduced to the
/// capacity.
fn cycle_stretch(net: &SolverNetwork<'_>, state: &SolverState, task: usize, origin: usize) -> f64 {
    if net.origins[origin] != WorkOrigin::Client(task) {
        return 1.0;
    }
    let (throughput, parts) = (state.throughputs[origin], state.response(net, origin));
    let whole = net.active_threads[task] / throughput - think(net.model, task);
    if whole > parts && parts > 0.0 && whole.is_finite() { whole / parts } else { 1.0 }
}
