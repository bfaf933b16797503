//! Arrivals at each member per tick, from the counts that the members keep.
//!
//! The count of a member that does not answer in time is unknown in that tick. The requests that arrived
//! since its last answer are spread evenly over the ticks in between; otherwise they would look like a surge.
//! Only a process that was restarted counts from zero again.

use std::collections::BTreeMap;

use super::point::TimelineTick;

/// The known count of a member at the end of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArrivalCount {
    /// The number of requests of this process; `incarnation` numbers the member's processes.
    Reported { incarnation: u32, requests: u64 },
    /// The process is dead or stopped: no request can have arrived.
    NotRunning,
    /// The member did not answer.
    NoAnswer,
}

#[derive(Clone, Copy, Debug)]
struct LastCount {
    incarnation: u32,
    requests: u64,
    counted_at: f64,
}

/// The last known count of each member.
#[derive(Debug, Default)]
pub(super) struct ArrivalCounter {
    last_counts: BTreeMap<String, LastCount>,
}

impl ArrivalCounter {
    /// Returns the requests that arrived at the member in a tick of `seconds` that ends `now`; `None` if
    /// unknown.
    pub(super) fn count_tick(
        &mut self,
        name: &str,
        count: ArrivalCount,
        now: f64,
        seconds: f64,
    ) -> Option<u64> {
        match count {
            ArrivalCount::NoAnswer => None,
            ArrivalCount::NotRunning => {
                if let Some(last_count) = self.last_counts.get_mut(name) {
                    last_count.counted_at = now;
                }
                Some(0)
            }
            ArrivalCount::Reported { incarnation, requests } => {
                let previous = self
                    .last_counts
                    .insert(name.to_owned(), LastCount { incarnation, requests, counted_at: now });
                let (previous_requests, previous_at) = match previous {
                    Some(previous) if previous.incarnation == incarnation => {
                        (previous.requests, previous.counted_at)
                    }
                    _ => (0, now - seconds),
                };
                let new_requests = requests.saturating_sub(previous_requests) as f64;
                let share = if now - previous_at > seconds { seconds / (now - previous_at) } else { 1.0 };
                Some((new_requests * share).round() as u64)
            }
        }
    }
}

/// Returns the dispersion of the arrivals over the members in these ticks, standard deviation over mean;
/// `None` if a member did not answer, or nothing arrived.
pub(super) fn dispersion(ticks: &[TimelineTick]) -> Option<f64> {
    let first_tick = ticks.first()?;
    let mut counts = Vec::new();
    for member in first_tick.arrived.keys() {
        let arrivals: Option<u64> = ticks.iter().map(|tick| tick.arrived.get(member).copied()).sum();
        counts.push(arrivals? as f64);
    }
    let mean = counts.iter().sum::<f64>() / counts.len() as f64;
    let variance = counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / counts.len() as f64;
    (mean > 0.0).then(|| variance.sqrt() / mean)
}

/// Returns the swing over these ticks. A member's swing is the standard deviation of its part of the arrivals
/// over the mean of that part. The result is the mean over the members that receive requests; `None` if one
/// of them did not answer, or a tick has no arrivals.
pub(super) fn swing(ticks: &[TimelineTick]) -> Option<f64> {
    let first_tick = ticks.first()?;
    let (mut sum, mut count) = (0.0, 0.0);
    for member in first_tick.arrived.keys() {
        let arrival_shares = |tick: &TimelineTick| {
            let total: u64 = tick.arrived.values().sum();
            let arrivals = *tick.arrived.get(member)?;
            (total > 0).then(|| arrivals as f64 / total as f64)
        };
        let shares = ticks.iter().map(arrival_shares).collect::<Option<Vec<f64>>>()?;
        let mean = shares.iter().sum::<f64>() / shares.len() as f64;
        let variance = shares.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / shares.len() as f64;
        if mean > 0.0 {
            (sum, count) = (sum + variance.sqrt() / mean, count + 1.0);
        }
    }
    (count > 0.0).then(|| sum / count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dispersion_is_over_members_and_needs_all_of_them() {
        let tick = |counts: &[(&str, u64)]| TimelineTick {
            arrived: counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
            ..TimelineTick::default()
        };
        let equal = [tick(&[("m1", 10), ("m2", 30)]), tick(&[("m1", 30), ("m2", 10)])];
        assert_eq!(dispersion(&equal), Some(0.0));
        assert_eq!(dispersion(&equal[..1]), Some(0.5));
        assert_eq!(dispersion(&[equal[0].clone(), tick(&[("m1", 10)])]), None);
        assert_eq!(dispersion(&[]), None);
    }

    #[test]
    fn what_goes_to_and_fro_swings_and_what_grows_for_all_does_not() {
        let tick = |first: u64, second: u64| TimelineTick {
            arrived: [("m1".to_owned(), first), ("m2".to_owned(), second)].into(),
            ..TimelineTick::default()
        };
        assert_eq!(swing(&[tick(10, 30), tick(20, 60)]), Some(0.0));
        assert_eq!(swing(&[tick(10, 0), tick(0, 20)]), Some(1.0));
        // One quarter and three quarters in turn: half of the mean.
        assert_eq!(swing(&[tick(5, 15), tick(15, 5)]), Some(0.5));
        assert_eq!((swing(&[]), swing(&[tick(1, 1), tick(0, 0)])), (None, None));
        assert_eq!(swing(&[tick(0, 2), tick(0, 5)]), Some(0.0), "one gets nothing, which is no swing");
    }

    #[test]
    fn silence_is_no_surge_and_a_new_life_counts_from_nothing() {
        let mut arrivals = ArrivalCounter::default();
        let reported = |incarnation, requests| ArrivalCount::Reported { incarnation, requests };
        let mut tick = |now: f64, count| arrivals.count_tick("m1", count, now, 1.0);
        assert_eq!(tick(1.0, reported(1, 1000)), Some(1000));
        assert_eq!(tick(2.0, reported(1, 1100)), Some(100));
        assert_eq!(tick(3.0, ArrivalCount::NoAnswer), None);
        assert_eq!(tick(4.0, reported(1, 1300)), Some(100));
        // Stopped: requests counted when it continues arrived then.
        assert_eq!(tick(5.0, ArrivalCount::NotRunning), Some(0));
        assert_eq!(tick(6.0, ArrivalCount::NotRunning), Some(0));
        assert_eq!(tick(7.0, reported(1, 1360)), Some(60));
        assert_eq!(tick(8.0, reported(2, 30)), Some(30));
        assert_eq!(tick(9.0, reported(2, 70)), Some(40));
        // A further process, with a higher count than the one before.
        assert_eq!(tick(10.0, reported(3, 90)), Some(90));
    }
}
