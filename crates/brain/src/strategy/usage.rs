//! Weights from members' reports of their work (gRPC proposal A58, client-side weighted round robin).
//!
//! A member that completes `rps` requests a second at utilization u would complete rps / u if it were fully
//! used: that is its weight. Failures are no work: each failed part of its requests counts as that much more
//! utilization, times a penalty, or a member that fails fast would look strong. Members without reports get
//! the mean of the others. With fewer than two reports there is nothing to compare, and the configured
//! capacities hold.
//!
//! A member that exaggerates its strength would attract everything: a weight counts for at most ten times the
//! median and no less than a tenth of it.

use alloc::vec::Vec;

use crate::{Member, UsageReport};

/// Returns the weight of each member: by report, or else the configured one, with slow start in either case.
pub(super) fn weights(members: &[Member], penalty: f64) -> Vec<f64> {
    let reported_weights: Vec<Option<f64>> =
        members.iter().map(|member| weight(member.usage.as_ref()?, penalty)).collect();
    let mut known_weights: Vec<f64> = reported_weights.iter().filter_map(|weight| *weight).collect();
    if known_weights.len() < 2 {
        return members.iter().map(|member| member.weight).collect();
    }
    known_weights.sort_by(f64::total_cmp);
    let median = known_weights[known_weights.len() / 2];
    let bounded_weight = |weight: f64| weight.clamp(median / MAX_MEDIAN_RATIO, median * MAX_MEDIAN_RATIO);
    let mean = known_weights.iter().map(|weight| bounded_weight(*weight) / known_weights.len() as f64).sum();
    let slow_start_share = |member: &Member| member.weight / member.capacity;
    members
        .iter()
        .zip(reported_weights)
        .map(|(member, reported)| reported.map_or(mean, bounded_weight) * slow_start_share(member))
        .collect()
}

/// Returns the requests a second that it could complete; `None` if nothing was done or used, which is no
/// information.
fn weight(usage: &UsageReport, penalty: f64) -> Option<f64> {
    let failure_cost = usage.eps / usage.rps * penalty;
    let weight = usage.rps / (usage.utilization + failure_cost);
    (usage.rps > 0.0 && usage.utilization > 0.0 && weight.is_normal()).then_some(weight)
}

/// The maximum factor between a weight and the median.
const MAX_MEDIAN_RATIO: f64 = 10.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Time;
    use crate::plan::tests::members;

    fn usage(rps: f64, utilization: f64, eps: f64) -> UsageReport {
        UsageReport { rps, utilization, eps, at: Time(0) }
    }

    #[test]
    fn a_weight_is_what_a_member_could_do() {
        assert_eq!(weight(&usage(100.0, 0.5, 0.0), 1.0), Some(200.0));
        assert_eq!(weight(&usage(100.0, 0.5, 50.0), 1.0), Some(100.0), "failures count as use");
        assert_eq!(weight(&usage(100.0, 0.5, 50.0), 0.0), Some(200.0));
        assert_eq!(weight(&usage(100.0, 1.5, 50.0), 3.0), Some(100.0 / 3.0));
        for unusable in
            [usage(0.0, 0.5, 0.0), usage(0.0, 0.0, 0.0), usage(9.0, 0.0, 0.0), usage(0.0, 1.0, 5.0)]
        {
            assert_eq!(weight(&unusable, 1.0), None, "{unusable:?}");
        }
        assert_eq!(weight(&usage(1e308, 1e-308, 0.0), 1.0), None);
    }

    #[test]
    fn the_unknown_get_the_mean_and_slow_start_counts() {
        let mut group = members(&[1.0, 5.0, 1.0]);
        group[0].usage = Some(usage(100.0, 0.5, 0.0));
        assert_eq!(weights(&group, 1.0), [1.0, 5.0, 1.0], "one alone says nothing");
        group[1].usage = Some(usage(100.0, 0.25, 0.0));
        assert_eq!(weights(&group, 1.0), [200.0, 400.0, 300.0]);
        group[2].weight = 0.1;
        assert_eq!(weights(&group, 1.0), [200.0, 400.0, 30.0]);
    }

    #[test]
    fn a_liar_is_bounded() {
        let mut group = members(&[1.0; 5]);
        for (member, rps) in group.iter_mut().zip([100.0, 100.0, 100.0, 1e15, 1e-9]) {
            member.usage = Some(usage(rps, 1.0, 0.0));
        }
        assert_eq!(weights(&group, 1.0), [100.0, 100.0, 100.0, 1000.0, 10.0]);
    }
}
