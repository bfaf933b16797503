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
        exact_estimate(if self.rate > 0.0 { sum / self.rate } else { 0.0 })
    }
}

fn exact_estimate(mean: f64) -> Estimate {
    Estimate { mean: if mean.is_finite() { mean } else { 0.0 }, half_width: 0.0 }
}

/// Computes the results of all activities, and of all calls: those of each activity, then those that each
/// entry forwards.
pub(super) fn activity_results(
    net: &SolverNetwork<'_>,
    state: &SolverState,
) -> (Vec<ActivityResults>, Vec<CallResults>) {
    let model = net.model;
    let mut activity_sums = vec![WeightedSum::default(); model.activities.len()];
    let mut count = 0;
    let mut reserve = |length: usize| {
        count += length;
        count - length
    };
    let call_starts: Vec<usize> =
        model.activities.iter().map(|activity| reserve(activity.calls.len())).collect();
    let forward_starts: Vec<usize> =
        model.entries.iter().map(|entry| reserve(entry.forwards.len())).collect();
    let mut call_sums = vec![WeightedSum::default(); count];
    for (row, rate) in net.rows.iter().zip(&state.rates) {
        if *rate <= 0.0 {
            continue;
        }
        let stretch = cycle_stretch(net, state, row.task, row.origin);
        let mut record_call = |index: usize, rate: f64, to: usize| {
            let wait = state.slots[net.rows[to].queue].wait;
            call_sums[index].add(rate, wait, state.times[to].response.mean);
        };
        for step in &row.activities {
            for side in step.sides.iter().filter(|side| side.executions > 0.0) {
                let time = service_times::activity_time(net, state, step.activity, side);
                activity_sums[step.activity].add(rate * side.executions, stretch * time.mean, 0.0);
                for (index, (to, count, _)) in side.calls.iter().enumerate() {
                    record_call(call_starts[step.activity] + index, rate * side.executions * count, *to);
                }
            }
        }
        // Rows have no targets with probability 0.
        let forwards =
            model.entries[row.entry].forwards.iter().enumerate().filter(|(_, (_, share))| *share > 0.0);
        for ((index, _), (to, share)) in forwards.zip(&row.forwards) {
            record_call(forward_starts[row.entry] + index, rate * share, *to);
        }
    }
    let activities = model.activities.iter().zip(&activity_sums).map(|(activity, sum)| ActivityResults {
        name: activity.name.clone(),
        throughput: exact_estimate(sum.rate),
        service: sum.mean(sum.first),
    });
    let name = |to: usize| model.entries[to].name.clone();
    let calls = model
        .activities
        .iter()
        .flat_map(|activity| activity.calls.iter().map(|call| (activity.name.clone(), name(call.entry.0))));
    let forwards = model
        .entries
        .iter()
        .flat_map(|entry| entry.forwards.iter().map(|(to, _)| (entry.name.clone(), name(to.0))));
    let calls = calls.chain(forwards).zip(&call_sums).map(|((from, to), sum)| CallResults {
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
    let (throughput, response_sum) = (state.throughputs[origin], state.response(net, origin));
    let cycle_response = net.active_threads[task] / throughput - think(net.model, task);
    if cycle_response > response_sum && response_sum > 0.0 && cycle_response.is_finite() {
        cycle_response / response_sum
    } else {
        1.0
    }
}
