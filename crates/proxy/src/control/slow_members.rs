//! Events for members that respond ten times slower than their group: the begin and the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::{Event, EventKind, MemberId, Time};

/// The minimum ratio of a slow member's median to that of its group.
const SLOW_RATIO: f64 = 10.0;
/// The minimum difference of the medians, in seconds: a fast member is not slow just because others are
/// faster.
const MIN_DIFFERENCE: f64 = 0.05;
/// The minimum number of responses in the last minute for a verdict on a member.
const MIN_RESPONSES: u64 = 20;
/// The condition ends when the member was not slow for this long.
const QUIET_PERIOD: Duration = Duration::from_secs(10);
/// The condition also ends when the member has sent hardly any response for this long.
const SILENT_PERIOD: Duration = Duration::from_secs(60);

/// The response times of a member.
#[derive(Clone, Debug)]
pub(crate) struct ResponseTimes {
    pub(crate) member: MemberId,
    pub(crate) name: Arc<str>,
    /// The responses in the last minute.
    pub(crate) responses: u64,
    /// The median of about the last ten seconds, in seconds; `None` with too few responses.
    pub(crate) median: Option<f64>,
}

impl ResponseTimes {
    /// Returns the median, if there are enough responses.
    fn reliable_median(&self) -> Option<f64> {
        self.median.filter(|_| self.responses >= MIN_RESPONSES)
    }
}

/// The slow members of a group, as far as events have reported them.
#[derive(Debug, Default)]
pub(crate) struct SlowMembers {
    periods: BTreeMap<MemberId, SlowPeriod>,
}

/// The begin of a member's slow time, and the last time at which it was found slow.
#[derive(Debug)]
struct SlowPeriod {
    since: Time,
    last_slow: Time,
}

impl SlowMembers {
    /// The kinds of events: the begin and the end.
    pub(crate) const KINDS: [EventKind; 2] = [EventKind::Slow, EventKind::SlowEnded];

    /// Restores the members that the previous process found slow.
    pub(crate) fn resume(&mut self, members: impl IntoIterator<Item = MemberId>, now: Time) {
        self.periods
            .extend(members.into_iter().map(|member| (member, SlowPeriod { since: now, last_slow: now })));
    }

    /// Returns the time since which a member is slow, if it is.
    pub(crate) fn since(&self, member: MemberId) -> Option<Time> {
        self.periods.get(&member).map(|period| period.since)
    }

    /// Compares the members of a group and returns the events to report.
    pub(crate) fn compare(&mut self, all_times: &[ResponseTimes], group: &str, now: Time) -> Vec<Event> {
        let present: BTreeSet<MemberId> = all_times.iter().map(|times| times.member).collect();
        self.periods.retain(|member, _| present.contains(member));
        let median_of_group = group_median(all_times);
        let mut events = Vec::new();
        for times in all_times {
            let (median, typical) = match (times.reliable_median(), median_of_group) {
                (Some(median), Some(typical)) => (Some(median), typical),
                // A member without others to compare with, or a silent one.
                _ => (None, 0.0),
            };
            let is_slow =
                median.map(|median| median >= SLOW_RATIO * typical && median - typical >= MIN_DIFFERENCE);
            let new_event = |kind, message| {
                let to_inputs =
                    |median| vec![("median".to_owned(), median), ("group_median".to_owned(), typical)];
                let inputs = median.map(to_inputs).unwrap_or_default();
                Event {
                    kind,
                    group: group.into(),
                    member: Some(Arc::clone(&times.name)),
                    why: message,
                    inputs,
                }
            };
            match (self.periods.get_mut(&times.member), is_slow) {
                (None, Some(true)) => {
                    self.periods.insert(times.member, SlowPeriod { since: now, last_slow: now });
                    let median = median.unwrap_or_default();
                    let message = format!(
                        "half of its answers take {} or longer, where its group takes {}",
                        format_seconds(median),
                        format_seconds(typical)
                    );
                    events.push(new_event(EventKind::Slow, message));
                }
                (Some(period), Some(true)) => period.last_slow = now,
                (Some(period), Some(false)) if now.since(period.last_slow) >= QUIET_PERIOD => {
                    let slow_seconds = period.last_slow.since(period.since).as_secs();
                    self.periods.remove(&times.member);
                    let message = format!(
                        "was not slow for {} s; it was for {slow_seconds} s before",
                        QUIET_PERIOD.as_secs()
                    );
                    events.push(new_event(EventKind::SlowEnded, message));
                }
                (Some(period), None) if now.since(period.last_slow) >= SILENT_PERIOD => {
                    self.periods.remove(&times.member);
                    let message = format!(
                        "has answered too little for {} s to be called slow",
                        SILENT_PERIOD.as_secs()
                    );
                    events.push(new_event(EventKind::SlowEnded, message));
                }
                _ => {}
            }
        }
        events
    }
}

/// Returns the median of the members' medians, the lower of two middle ones. Returns `None` if fewer than two
/// can be compared.
fn group_median(all_times: &[ResponseTimes]) -> Option<f64> {
    let mut medians: Vec<f64> = all_times.iter().filter_map(ResponseTimes::reliable_median).collect();
    medians.sort_by(f64::total_cmp);
    let middle = medians.len().checked_sub(1)? / 2;
    (medians.len() > 1).then(|| medians[middle])
}

/// Formats seconds for people.
fn format_seconds(seconds: f64) -> String {
    match seconds {
        ..0.000_999_5 => format!("{:.0} µs", seconds * 1e6),
        ..0.009_995 => format!("{:.1} ms", seconds * 1e3),
        ..0.9995 => format!("{:.0} ms", seconds * 1e3),
        _ => format!("{seconds:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Time {
        Time(0) + Duration::from_secs(second)
    }

    fn response_times(index: u32, responses: u64, median: f64) -> ResponseTimes {
        ResponseTimes {
            member: MemberId(index),
            name: format!("m{index}").into(),
            responses,
            median: Some(median).filter(|median| *median > 0.0),
        }
    }

    const NONE_SLOW: [u32; 0] = [];

    /// Returns the members with these responses and medians that are slow.
    fn slow_indices(members: &[(u64, f64)]) -> Vec<u32> {
        let all_times: Vec<ResponseTimes> = (0..)
            .zip(members)
            .map(|(index, (responses, median))| response_times(index, *responses, *median))
            .collect();
        let mut slow_members = SlowMembers::default();
        let events = slow_members.compare(&all_times, "web", at(1));
        assert_eq!(events.len(), slow_members.periods.len());
        slow_members.periods.keys().map(|member| member.0).collect()
    }

    #[test]
    fn slow_is_ten_times_the_group_and_fifty_milliseconds() {
        assert_eq!(slow_indices(&[(100, 0.01), (100, 0.01), (100, 0.1)]), [2]);
        assert_eq!(slow_indices(&[(100, 0.01), (100, 0.01), (100, 0.099)]), NONE_SLOW, "not ten times");
        assert_eq!(slow_indices(&[(100, 0.001), (100, 0.001), (100, 0.05)]), NONE_SLOW, "49 ms");
        assert_eq!(slow_indices(&[(100, 0.001), (100, 0.001), (100, 0.052)]), [2]);
        assert_eq!(slow_indices(&[(100, 0.01), (100, 0.01), (19, 0.5)]), NONE_SLOW, "too few answers");
        assert_eq!(slow_indices(&[(100, 0.01), (100, 0.5)]), [1], "of two");
        assert_eq!(slow_indices(&[(100, 0.01), (100, 0.5), (100, 0.5), (100, 0.01)]), [1, 2], "of half");
        assert_eq!(
            slow_indices(&[(100, 0.01), (100, 0.5), (100, 0.5)]),
            NONE_SLOW,
            "then that is what the group takes"
        );
        assert_eq!(slow_indices(&[(100, 0.5)]), NONE_SLOW, "alone");
        assert_eq!(slow_indices(&[(100, 0.5), (3, 0.01)]), NONE_SLOW, "as good as alone");
        assert_eq!(slow_indices(&[]), NONE_SLOW);
    }

    #[test]
    fn it_is_told_once_that_it_begins_and_once_that_it_is_over() {
        let mut slow_members = SlowMembers::default();
        let mut reported = Vec::new();
        for second in 0..120 {
            let (responses, median) = match second {
                5..20 | 25 | 40..50 => (100, 0.8),
                50..115 => (3, 0.8),
                _ => (100, 0.01),
            };
            let all_times = [response_times(0, 900, 0.01), response_times(1, responses, median)];
            for event in slow_members.compare(&all_times, "web", at(second)) {
                reported.push((second, event.member.unwrap().to_string(), event.kind, event.why));
            }
            let since = match second {
                5..35 => Some(at(5)),
                40..109 => Some(at(40)),
                _ => None,
            };
            assert_eq!(slow_members.since(MemberId(1)), since, "at {second} s");
            assert_eq!(slow_members.since(MemberId(0)), None);
        }
        let reported_event =
            |second, kind, message: &str| (second, "m1".to_owned(), kind, message.to_owned());
        let begin_text = "half of its answers take 800 ms or longer, where its group takes 10 ms";
        assert_eq!(
            reported,
            [
                reported_event(5, EventKind::Slow, begin_text),
                reported_event(35, EventKind::SlowEnded, "was not slow for 10 s; it was for 20 s before"),
                reported_event(40, EventKind::Slow, begin_text),
                reported_event(
                    109,
                    EventKind::SlowEnded,
                    "has answered too little for 60 s to be called slow"
                ),
            ]
        );
    }

    #[test]
    fn the_mark_is_handed_on_and_goes_with_its_member() {
        let mut slow_members = SlowMembers::default();
        slow_members.resume([MemberId(1), MemberId(2)], at(0));
        let all_times = [response_times(0, 900, 0.01), response_times(1, 900, 0.01)];
        assert!(slow_members.compare(&all_times, "web", at(9)).is_empty());
        assert_eq!((slow_members.since(MemberId(1)), slow_members.since(MemberId(2))), (Some(at(0)), None));
        let ended = slow_members.compare(&all_times, "web", at(10));
        assert_eq!(ended.iter().map(|event| event.kind).collect::<Vec<_>>(), [EventKind::SlowEnded]);
    }
}
