//! The return of a member: the surge it receives at first, and whether it regains its share.

use super::experiment::{Experiment, FaultAction, FaultInjection, RunLength};
use super::point::TimelineTick;

/// The seconds beyond its slow start in which a returned member is watched for a surge. They begin when the
/// member receives the share `USED` of its usual requests again.
const SURGE_SECONDS: f64 = 5.0;
const USED_SHARE: f64 = 0.05;
/// The seconds from the beginning of the tick in which its use begins that contain its first whole second of
/// use.
const FIRST_SECONDS: f64 = 2.0;
/// The maximum seconds until it is used again. After that and its slow start, its requests are counted for
/// `COUNTED` seconds.
const REGAINED_AFTER: f64 = 10.0;
const REGAINED_SECONDS: f64 = 5.0;
/// Rates of arrivals at a member after a restart, or after it rejoined the network, over its usual rate
/// before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MemberRecovery {
    /// The maximum rate during the return.
    pub(super) surge: f64,
    /// The maximum rate of the ticks with its first whole second of use; 0 if it is not used any more.
    pub(super) first_second: f64,
    /// The rate after the return; `None` if the run ended before.
    pub(super) regained_share: Option<f64>,
}

/// Computes the return of the member that a fault brings back; `None` if there is none, or it was not used
/// before.
pub(super) fn measure_recovery(
    experiment: &Experiment,
    mode: RunLength,
    timeline: &[TimelineTick],
) -> Option<MemberRecovery> {
    let faults = &experiment.faults;
    let return_fault =
        faults.iter().find(|fault| matches!(fault.act, FaultAction::Start | FaultAction::Join))?;
    let loss_action =
        if return_fault.act == FaultAction::Start { FaultAction::Kill } else { FaultAction::CutOff };
    let loss_fault =
        faults.iter().find(|fault| fault.act == loss_action && fault.member == return_fault.member)?;
    let fault_seconds = |fault: &FaultInjection| fault.at.for_length(mode).0.as_secs_f64();
    let name = format!("m{}", return_fault.member);
    // The end, beginning and rate of each tick in which the count is known.
    let arrival_rates: Vec<(f64, f64, f64)> = timeline
        .iter()
        .filter(|tick| tick.seconds > 0.0)
        .filter_map(|t| Some((t.at, t.at - t.seconds, *t.arrived.get(&name)? as f64 / t.seconds)))
        .collect();
    let mean_rate = |is_counted: &dyn Fn(f64, f64) -> bool| {
        let counted_rates: Vec<f64> = arrival_rates
            .iter()
            .filter(|(end, begin, _)| is_counted(*end, *begin))
            .map(|(_, _, rate)| *rate)
            .collect();
        (!counted_rates.is_empty()).then(|| counted_rates.iter().sum::<f64>() / counted_rates.len() as f64)
    };
    let warmup = experiment.plan.warmup.for_length(mode).0.as_secs_f64();
    let usual_rate = mean_rate(&|end, begin| begin >= warmup - 0.1 && end <= fault_seconds(loss_fault))
        .filter(|rate| *rate > 0.0)?;
    let slow_start = experiment.balancer.slow_start.map_or(0.0, |duration| duration.0.as_secs_f64());
    // The balancer may need time: the first seconds are those in which it uses the member again.
    let rates_after_return = || arrival_rates.iter().filter(|(end, ..)| *end > fault_seconds(return_fault));
    let used_since = rates_after_return()
        .find(|(_, _, rate)| *rate >= USED_SHARE * usual_rate)
        .map(|(_, begin, _)| *begin);
    // The maximum rate within `seconds` from `from`.
    let max_rate = |since: f64, seconds: f64| {
        let watched_rates =
            rates_after_return().filter(|(_, begin, _)| *begin >= since && *begin < since + seconds);
        watched_rates.map(|(_, _, rate)| *rate).fold(0.0, f64::max)
    };
    let (surge, first_second) = used_since.map_or((0.0, 0.0), |since| {
        (max_rate(since, slow_start + SURGE_SECONDS), max_rate(since, FIRST_SECONDS - 0.1))
    });
    let regained_start = fault_seconds(return_fault) + slow_start + REGAINED_AFTER;
    let long_enough =
        arrival_rates.last().is_some_and(|(end, ..)| *end >= regained_start + REGAINED_SECONDS - 0.5);
    let regained_rate = mean_rate(&|end, begin| {
        begin >= regained_start - 0.1 && end <= regained_start + REGAINED_SECONDS + 0.5
    });
    let (surge, first_second) = (surge / usual_rate, first_second / usual_rate);
    Some(MemberRecovery {
        surge,
        first_second,
        regained_share: regained_rate.filter(|_| long_enough).map(|rate| rate / usual_rate),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::lab::fixture::TEXT;

    fn experiment_with_faults() -> Experiment {
        let fault = |act, at| {
            format!(
                "[[fault]]\nact = \"{act}\"\nat = {{ full = \"{at}s\", quick = \"{at}s\" }}\nmember = 2\n"
            )
        };
        // Both members are there in every point, for long enough.
        let text = TEXT.replace("full = \"3s\", quick = \"1s\"", "full = \"15s\", quick = \"15s\"");
        let text = text.replace("full = [0, 2]", "full = [2]").replace("quick = [1]", "quick = [2]");
        let text = format!("{text}{}{}", fault("kill", 4), fault("start", 6));
        Experiment::parse(&text).unwrap_or_else(|errors| panic!("{errors:?}"))
    }

    /// Arrivals at member 2 in each second.
    fn timeline(arrivals: &[u64]) -> Vec<TimelineTick> {
        let tick = |(second, count): (usize, &u64)| TimelineTick {
            at: (second + 1) as f64,
            seconds: 1.0,
            arrived: BTreeMap::from([("m2".to_owned(), *count)]),
            ..TimelineTick::default()
        };
        arrivals.iter().enumerate().map(tick).collect()
    }

    #[test]
    fn a_surge_is_seen_in_the_first_seconds_in_which_the_member_is_used_again() {
        let surge = |arrivals: &[u64]| {
            measure_recovery(&experiment_with_faults(), RunLength::Full, &timeline(arrivals)).unwrap().surge
        };
        // The first second is the warm-up; the usual rate is 100.
        assert_eq!(surge(&[900, 100, 110, 90, 0, 0, 300, 100, 100]), 3.0);
        assert_eq!(surge(&[900, 100, 100, 100, 0, 0, 1, 1, 1, 1, 1, 1, 50, 250, 100]), 2.5);
        assert_eq!(surge(&[900, 100, 100, 100, 0, 0, 10, 50, 100, 100, 100, 400]), 1.0);
        assert_eq!(surge(&[900, 100, 100, 100, 0, 0, 0, 0, 0]), 0.0);
        // The slow start is watched to its end.
        let mut with_slow_start = experiment_with_faults();
        with_slow_start.balancer.slow_start =
            Some(crate::lab::experiment::DurationValue(Duration::from_secs(3)));
        let late_surge = timeline(&[900, 100, 100, 100, 0, 0, 10, 50, 100, 100, 100, 400]);
        assert_eq!(measure_recovery(&with_slow_start, RunLength::Full, &late_surge).unwrap().surge, 4.0);
    }

    #[test]
    fn the_first_second_is_that_in_which_it_is_used_again() {
        let first = |arrivals: &[u64]| {
            measure_recovery(&experiment_with_faults(), RunLength::Full, &timeline(arrivals))
                .unwrap()
                .first_second
        };
        // A tick whose end alone has arrivals, and the one after that.
        assert_eq!(first(&[900, 100, 110, 90, 0, 0, 0, 30, 320, 100]), 3.2);
        assert_eq!(first(&[900, 100, 110, 90, 0, 0, 0, 30, 40, 500]), 0.4);
        assert_eq!(first(&[900, 100, 100, 100, 0, 0, 0, 0, 0]), 0.0);
    }

    #[test]
    fn one_that_joins_the_network_again_returns_as_well() {
        let mut with_cut_off = experiment_with_faults();
        with_cut_off.faults[0].act = FaultAction::CutOff;
        with_cut_off.faults[1].act = FaultAction::Join;
        let surge = |experiment: &Experiment| {
            measure_recovery(experiment, RunLength::Full, &timeline(&[900, 100, 100, 100, 0, 0, 250, 100]))
        };
        assert_eq!(surge(&with_cut_off).unwrap().surge, 2.5);
        // A restart is not the return from a cut-off.
        with_cut_off.faults[1].act = FaultAction::Start;
        assert_eq!(surge(&with_cut_off), None);
    }

    #[test]
    fn a_member_that_never_gets_its_requests_back_is_told() {
        let regained = |after: [u64; 15]| {
            let all_arrivals = [[900, 100, 110, 90, 0, 0].as_slice(), &after].concat();
            measure_recovery(&experiment_with_faults(), RunLength::Full, &timeline(&all_arrivals))
                .unwrap()
                .regained_share
        };
        assert_eq!(regained([0; 15]), Some(0.0));
        assert_eq!(regained([1, 2, 5, 100, 100, 100, 100, 100, 100, 100, 90, 90, 90, 90, 90]), Some(0.9));
        // The run ended too early.
        let short_timeline = timeline(&[900, 100, 110, 90, 0, 0, 100, 100, 100]);
        assert_eq!(
            measure_recovery(&experiment_with_faults(), RunLength::Full, &short_timeline)
                .unwrap()
                .regained_share,
            None
        );
    }
}
