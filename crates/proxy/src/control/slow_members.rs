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
const SILENCE: Duration = Duration::from_secs(60);

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
    last: Time,
}

impl SlowMembers {
    /// The kinds of events: the begin and the end.
    pub(crate) const KINDS: [EventKind; 2] = [EventKind::Slow, EventKind::SlowEnded];

    /// Restores the members that the previous process found slow.
    pub(crate) fn resume(&mut self, members: impl IntoIterator<Item = MemberId>, now: Time) {
        self.periods.extend(members.into_iter().map(|member| (member, SlowPeriod { since: now, last: now })));
    }

    /// Returns the time since which a member is slow, if it is.
    pub(crate) fn since(&self, member: MemberId) -> Option<Time> {
        self.periods.get(&member).map(|mark| mark.since)
    }

    /// Compares the members of a group and returns the events to report.
    pub(crate) fn compare(&mut self, paces: &[ResponseTimes], group: &str, now: Time) -> Vec<Event> {
        let here: BTreeSet<MemberId> = paces.iter().map(|pace| pace.member).collect();
        self.periods.retain(|member, _| here.contains(member));
        let usual = group_median(paces);
        let mut events = Vec::new();
        for pace in paces {
            let (median, usual) = match (pace.reliable_median(), usual) {
                (Some(median), Some(usual)) => (Some(median), usual),
                // A member without others to compare with, or a silent one.
                _ => (None, 0.0),
            };
            let slow = median.map(|median| median >= SLOW_RATIO * usual && median - usual >= MIN_DIFFERENCE);
            let event = |kind, why| {
                let inputs = |median| vec![("median".to_owned(), median), ("group_median".to_owned(), usual)];
                let inputs = median.map(inputs).unwrap_or_default();
                Event { kind, group: group.into(), member: Some(Arc::clone(&pace.name)), why, inputs }
            };
            match (self.periods.get_mut(&pace.member), slow) {
                (None, Some(true)) => {
                    self.periods.insert(pace.member, SlowPeriod { since: now, last: now });
                    let median = median.unwrap_or_default();
                    let why = format!(
                        "half of its answers take {} or longer, where its group takes {}",
                        format_seconds(median),
                        format_seconds(usual)
                    );
                    events.push(event(EventKind::Slow, why));
                }
                (Some(mark), Some(true)) => mark.last = now,
                (Some(mark), Some(false)) if now.since(mark.last) >= QUIET_PERIOD => {
                    let lasted = mark.last.since(mark.since).as_secs();
                    self.periods.remove(&pace.member);
                    let why = format!(
                        "was not slow for {} s; it was for {lasted} s before",
                        QUIET_PERIOD.as_secs()
                    );
                    events.push(event(EventKind::SlowEnded, why));
                }
                (Some(mark), None) if now.since(mark.last) >= SILENCE => {
                    self.periods.remove(&pace.member);
                    let why =
                        format!("has answered too little for {} s to be called slow", SILENCE.as_secs());
                    events.push(event(EventKind::SlowEnded, why));
                }
                _ => {}
            }
        }
        events
    }
}

/// Returns the median of the members' medians, the lower of two middle ones. Returns `None` if fewer than two
/// can be compared.
fn group_median(paces: &[ResponseTimes]) -> Option<f64> {
    let mut medians: Vec<f64> = paces.iter().filter_map(ResponseTimes::reliable_median).collect();
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

    fn pace(nth: u32, answers: u64, median: f64) -> ResponseTimes {
        ResponseTimes {
            member: MemberId(nth),
            name: format!("m{nth}").into(),
            responses: answers,
            median: Some(median).filter(|median| *median > 0.0),
        }
    }

    const NOBODY: [u32; 0] = [];

    /// Returns the members with these responses and medians that are slow.
    fn slow(members: &[(u64, f64)]) -> Vec<u32> {
        let paces: Vec<ResponseTimes> =
            (0..).zip(members).map(|(nth, (answers, median))| pace(nth, *answers, *median)).collect();
        let mut slow = SlowMembers::default();
        let events = slow.compare(&paces, "web", at(1));
        assert_eq!(events.len(), slow.periods.len());
        slow.periods.keys().map(|member| member.0).collect()
    }

    #[test]
    fn slow_is_ten_times_the_group_and_fifty_milliseconds() {
        assert_eq!(slow(&[(100, 0.01), (100, 0.01), (100, 0.1)]), [2]);
        assert_eq!(slow(&[(100, 0.01), (100, 0.01), (100, 0.099)]), NOBODY, "not ten times");
        assert_eq!(slow(&[(100, 0.001), (100, 0.001), (100, 0.05)]), NOBODY, "49 ms");
        assert_eq!(slow(&[(100, 0.001), (100, 0.001), (100, 0.052)]), [2]);
        assert_eq!(slow(&[(100, 0.01), (100, 0.01), (19, 0.5)]), NOBODY, "too few answers");
        assert_eq!(slow(&[(100, 0.01), (100, 0.5)]), [1], "of two");
        assert_eq!(slow(&[(100, 0.01), (100, 0.5), (100, 0.5), (100, 0.01)]), [1, 2], "of half");
        assert_eq!(slow(&[(100, 0.01), (100, 0.5), (100, 0.5)]), NOBODY, "then that is what the group takes");
        assert_eq!(slow(&[(100, 0.5)]), NOBODY, "alone");
        assert_eq!(slow(&[(100, 0.5), (3, 0.01)]), NOBODY, "as good as alone");
        assert_eq!(slow(&[]), NOBODY);
    }

    #[test]
    fn it_is_told_once_that_it_begins_and_once_that_it_is_over() {
        let mut slow = SlowMembers::default();
        let mut said = Vec::new();
        for second in 0..120 {
            let (answers, median) = match second {
                5..20 | 25 | 40..50 => (100, 0.8),
                50..115 => (3, 0.8),
                _ => (100, 0.01),
            };
            let paces = [pace(0, 900, 0.01), pace(1, answers, median)];
            for event in slow.compare(&paces, "web", at(second)) {
                said.push((second, event.member.unwrap().to_string(), event.kind, event.why));
            }
            let since = match second {
                5..35 => Some(at(5)),
                40..109 => Some(at(40)),
                _ => None,
            };
            assert_eq!(slow.since(MemberId(1)), since, "at {second} s");
            assert_eq!(slow.since(MemberId(0)), None);
        }
        let one = |second, kind, why: &str| (second, "m1".to_owned(), kind, why.to_owned());
        let begins = "half of its answers take 800 ms or longer, where its group takes 10 ms";
        assert_eq!(
            said,
            [
                one(5, EventKind::Slow, begins),
                one(35, EventKind::SlowEnded, "was not slow for 10 s; it was for 20 s before"),
                one(40, EventKind::Slow, begins),
                one(109, EventKind::SlowEnded, "has answered too little for 60 s to be called slow"),
            ]
        );
    }

    #[test]
    fn the_mark_is_handed_on_and_goes_with_its_member() {
        let mut slow = SlowMembers::default();
        slow.resume([MemberId(1), MemberId(2)], at(0));
        let paces = [pace(0, 900, 0.01), pace(1, 900, 0.01)];
        assert!(slow.compare(&paces, "web", at(9)).is_empty());
        assert_eq!((slow.since(MemberId(1)), slow.since(MemberId(2))), (Some(at(0)), None));
        let over = slow.compare(&paces, "web", at(10));
        assert_eq!(over.iter().map(|event| event.kind).collect::<Vec<_>>(), [EventKind::SlowEnded]);
    }
}
