//! The return of a member: the surge it receives at first, and whether it regains its share.

use super::experiment::{Experiment, FaultAction, FaultInjection, RunLength};
use super::point::TimelineTick;

/// The seconds beyond its slow start in which a returned member is watched for a surge. They begin when the
/// member receives the share `USED` of its usual requests again.
const RETURN: f64 = 5.0;
const USED: f64 = 0.05;
/// The seconds from the beginning of the tick in which its use begins that contain its first whole second of
/// use.
const FIRST: f64 = 2.0;
/// The maximum seconds until it is used again. After that and its slow start, its requests are counted for
/// `COUNTED` seconds.
const CHECKED: f64 = 10.0;
const COUNTED: f64 = 5.0;
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
    let start = faults.iter().find(|fault| matches!(fault.act, FaultAction::Start | FaultAction::Join))?;
    let away = if start.act == FaultAction::Start { FaultAction::Kill } else { FaultAction::CutOff };
    let kill = faults.iter().find(|fault| fault.act == away && fault.member == start.member)?;
    let seconds = |fault: &FaultInjection| fault.at.for_length(mode).0.as_secs_f64();
    let name = format!("m{}", start.member);
    // The end, beginning and rate of each tick in which the count is known.
    let rates: Vec<(f64, f64, f64)> = timeline
        .iter()
        .filter(|tick| tick.seconds > 0.0)
        .filter_map(|t| Some((t.at, t.at - t.seconds, *t.arrived.get(&name)? as f64 / t.seconds)))
        .collect();
    let mean = |keep: &dyn Fn(f64, f64) -> bool| {
        let kept: Vec<f64> =
            rates.iter().filter(|(end, begin, _)| keep(*end, *begin)).map(|(_, _, rate)| *rate).collect();
        (!kept.is_empty()).then(|| kept.iter().sum::<f64>() / kept.len() as f64)
    };
    let warm = experiment.plan.warmup.for_length(mode).0.as_secs_f64();
    let usual =
        mean(&|end, begin| begin >= warm - 0.1 && end <= seconds(kill)).filter(|usual| *usual > 0.0)?;
    let slow_start = experiment.balancer.slow_start.map_or(0.0, |span| span.0.as_secs_f64());
    // The balancer may need time: the first seconds are those in which it uses the member again.
    let after = || rates.iter().filter(|(end, ..)| *end > seconds(start));
    let used = after().find(|(_, _, rate)| *rate >= USED * usual).map(|(_, begin, _)| *begin);
    // The maximum rate within `seconds` from `from`.
    let most = |from: f64, seconds: f64| {
        let watched = after().filter(|(_, begin, _)| *begin >= from && *begin < from + seconds);
        watched.map(|(_, _, rate)| *rate).fold(0.0, f64::max)
    };
    let (surge, first) =
        used.map_or((0.0, 0.0), |used| (most(used, slow_start + RETURN), most(used, FIRST - 0.1)));
    let from = seconds(start) + slow_start + CHECKED;
    let long_enough = rates.last().is_some_and(|(end, ..)| *end >= from + COUNTED - 0.5);
    let regained = mean(&|end, begin| begin >= from - 0.1 && end <= from + COUNTED + 0.5);
    let (surge, first) = (surge / usual, first / usual);
    Some(MemberRecovery {
        surge,
        first_second: first,
        regained_share: regained.filter(|_| long_enough).map(|rate| rate / usual),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::lab::fixture::TEXT;

    fn faulty() -> Experiment {
        let fault = |act, at| {
            format!(
                "[[fault]]\nact = \"{act}\"\nat = {{ full = \"{at}s\", quick = \"{at}s\" }}\nmember = 2\n"
            )
        };
        // Both members are there in every point, for long enough.
        let text = TEXT.replace("full = \"3s\", quick = \"1s\"", "full = \"15s\", quick = \"15s\"");
        let text = text.replace("full = [0, 2]", "full = [2]").replace("quick = [1]", "quick = [2]");
        let text = format!("{text}{}{}", fault("kill", 4), fault("start", 6));
        Experiment::parse(&text).unwrap_or_else(|wrong| panic!("{wrong:?}"))
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
            measure_recovery(&faulty(), RunLength::Full, &timeline(arrivals)).unwrap().surge
        };
        // The first second is the warm-up; the usual rate is 100.
        assert_eq!(surge(&[900, 100, 110, 90, 0, 0, 300, 100, 100]), 3.0);
        assert_eq!(surge(&[900, 100, 100, 100, 0, 0, 1, 1, 1, 1, 1, 1, 50, 250, 100]), 2.5);
        assert_eq!(surge(&[900, 100, 100, 100, 0, 0, 10, 50, 100, 100, 100, 400]), 1.0);
        assert_eq!(surge(&[900, 100, 100, 100, 0, 0, 0, 0, 0]), 0.0);
        // The slow start is watched to its end.
        let mut slow = faulty();
        slow.balancer.slow_start = Some(crate::lab::experiment::DurationValue(Duration::from_secs(3)));
        let late = timeline(&[900, 100, 100, 100, 0, 0, 10, 50, 100, 100, 100, 400]);
        assert_eq!(measure_recovery(&slow, RunLength::Full, &late).unwrap().surge, 4.0);
    }

    #[test]
    fn the_first_second_is_that_in_which_it_is_used_again() {
        let first = |arrivals: &[u64]| {
            measure_recovery(&faulty(), RunLength::Full, &timeline(arrivals)).unwrap().first_second
        };
        // A tick whose end alone has arrivals, and the one after that.
        assert_eq!(first(&[900, 100, 110, 90, 0, 0, 0, 30, 320, 100]), 3.2);
        assert_eq!(first(&[900, 100, 110, 90, 0, 0, 0, 30, 40, 500]), 0.4);
        assert_eq!(first(&[900, 100, 100, 100, 0, 0, 0, 0, 0]), 0.0);
    }

    #[test]
    fn one_that_joins_the_network_again_returns_as_well() {
        let mut cut = faulty();
        cut.faults[0].act = FaultAction::CutOff;
        cut.faults[1].act = FaultAction::Join;
        let surge = |experiment: &Experiment| {
            measure_recovery(experiment, RunLength::Full, &timeline(&[900, 100, 100, 100, 0, 0, 250, 100]))
        };
        assert_eq!(surge(&cut).unwrap().surge, 2.5);
        // A restart is not the return from a cut-off.
        cut.faults[1].act = FaultAction::Start;
        assert_eq!(surge(&cut), None);
    }

    #[test]
    fn a_member_that_never_gets_its_requests_back_is_told() {
        let regained = |after: [u64; 15]| {
            let arrivals = [[900, 100, 110, 90, 0, 0].as_slice(), &after].concat();
            measure_recovery(&faulty(), RunLength::Full, &timeline(&arrivals)).unwrap().regained_share
        };
        assert_eq!(regained([0; 15]), Some(0.0));
        assert_eq!(regained([1, 2, 5, 100, 100, 100, 100, 100, 100, 100, 90, 90, 90, 90, 90]), Some(0.9));
        // The run ended too early.
        let short = timeline(&[900, 100, 110, 90, 0, 0, 100, 100, 100]);
        assert_eq!(measure_recovery(&faulty(), RunLength::Full, &short).unwrap().regained_share, None);
    }
}
