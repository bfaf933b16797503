//! Load shedding events: the begin and the end of a time in which a group rejects requests for lack of room,
//! and the number of rejected requests.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use plimsoll_brain::{Event, EventKind, MemberId, Time};

use crate::net::reason::Reason;

/// The quiet time after which shedding has ended; also the window of the share of rejected requests.
const QUIET_PERIOD: Duration = Duration::from_secs(10);

/// The number of rejected requests for each of [`SheddingTracker::REASONS`].
pub(crate) type RejectionCounts = [u64; SheddingTracker::REASONS.len()];

/// The requests of a group that were rejected for lack of room, as far as events have reported them.
#[derive(Debug, Default)]
pub(crate) struct SheddingTracker {
    /// The last samples: of ten seconds, or since shedding began. Only the last one while nothing is shed.
    samples: VecDeque<SheddingSample>,
    period: Option<SheddingPeriod>,
    /// The requests rejected while a member took none, by the reason why it took none.
    members: BTreeMap<MemberId, BTreeMap<&'static str, u64>>,
}

/// The counts at a point in time.
#[derive(Clone, Copy, Debug, Default)]
struct SheddingSample {
    at: Time,
    rejected: RejectionCounts,
    /// The requests that members completed.
    completed: u64,
}

/// A time in which requests are shed.
#[derive(Debug)]
struct SheddingPeriod {
    since: Time,
    last_rejection: Time,
    count: u64,
    /// The most frequent reason at the last sample with rejections; `None` before this process has rejected
    /// any.
    reason: Option<Reason>,
}

impl SheddingTracker {
    /// The reasons for which a request finds no room.
    pub(crate) const REASONS: [Reason; 3] = [Reason::Shed, Reason::QueueFull, Reason::QueueTimeout];

    /// The kinds of events: the begin and the end.
    pub(crate) const KINDS: [EventKind; 2] = [EventKind::Shedding, EventKind::ShedEnded];

    /// Continues after the previous process, whose last event of these kinds is `last`. If that process
    /// reported the begin, this one reports the end.
    pub(crate) fn resume(&mut self, last_event: Option<EventKind>, now: Time) {
        if last_event == Some(EventKind::Shedding) {
            self.period.get_or_insert(SheddingPeriod {
                since: now,
                last_rejection: now,
                count: 0,
                reason: None,
            });
        }
    }

    /// Returns the time at which the current shedding began.
    pub(crate) fn since(&self) -> Option<Time> {
        self.period.as_ref().map(|period| period.since)
    }

    /// Returns the share of requests rejected in the last ten seconds, 0 to 1, or since shedding began.
    /// Returns `None` while nothing is shed.
    pub(crate) fn share(&self) -> Option<f64> {
        self.period.as_ref()?;
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else { return Some(0.0) };
        let refused: u64 = rejections_between(first, last).iter().sum();
        let total = refused + last.completed.saturating_sub(first.completed);
        Some(if total > 0 { refused as f64 / total as f64 } else { 0.0 })
    }

    /// Returns the most frequent reason.
    pub(crate) fn reason(&self) -> Option<Reason> {
        self.period.as_ref()?.reason
    }

    /// Returns the number of requests rejected between the last two samples.
    pub(crate) fn recent_count(&self) -> u64 {
        let mut samples = self.samples.iter().rev();
        let (Some(latest), Some(previous)) = (samples.next(), samples.next()) else { return 0 };
        rejections_between(previous, latest).iter().sum()
    }

    /// Adds rejected requests to the members that took none, each with the reason why it took none.
    pub(crate) fn attribute(&mut self, refused: u64, members: &[(MemberId, &'static str)]) {
        for (id, reason) in members {
            *self.members.entry(*id).or_default().entry(reason).or_default() += refused;
        }
    }

    /// Returns the number of requests rejected while a member took none, by the reason why it took none.
    pub(crate) fn member_rejections(&self, id: MemberId) -> BTreeMap<String, u64> {
        let counts = self.members.get(&id).into_iter().flatten();
        counts.map(|(reason, count)| ((*reason).to_owned(), *count)).collect()
    }

    /// Adds a sample of the requests rejected, and completed by members, so far. Returns the event to report,
    /// if any. `in_flight` is the number of requests in flight at the members.
    pub(crate) fn sample(
        &mut self,
        (rejected, completed): (RejectionCounts, u64),
        in_flight: u32,
        group: &str,
        now: Time,
    ) -> Option<Event> {
        let sample = SheddingSample { at: now, rejected, completed };
        let previous = self.samples.back().copied().unwrap_or_default();
        let new_rejections = rejections_between(&previous, &sample);
        let new_count: u64 = new_rejections.iter().sum();
        if self.period.is_none() {
            self.samples.clear();
            self.samples.push_back(previous);
        }
        self.samples.push_back(sample);
        // The first sample is at most as old as the window of the share.
        while self.samples.get(1).is_some_and(|second| now.since(second.at) >= QUIET_PERIOD) {
            self.samples.pop_front();
        }
        let most_frequent = Self::REASONS.into_iter().zip(new_rejections).max_by_key(|(_, count)| *count);
        let reason = most_frequent.map(|(reason, _)| reason).filter(|_| new_count > 0);
        let new_event = |kind, why, inputs: [(&str, f64); 2]| {
            let inputs = inputs.map(|(name, value)| (name.to_owned(), value)).to_vec();
            Some(Event { kind, group: group.into(), member: None, why, inputs })
        };
        match &mut self.period {
            None if new_count == 0 => None,
            None => {
                self.period =
                    Some(SheddingPeriod { since: now, last_rejection: now, count: new_count, reason });
                let requests_text = if new_count == 1 {
                    "1 request was".to_owned()
                } else {
                    format!("{new_count} requests were")
                };
                let cause = match reason {
                    Some(Reason::Shed) | None => "its members have as many as they can work on",
                    Some(reason) => reason.sentence(),
                };
                let message = format!("{requests_text} refused: {cause}");
                new_event(
                    EventKind::Shedding,
                    message,
                    [("refused", new_count as f64), ("in_flight", f64::from(in_flight))],
                )
            }
            Some(period) if new_count > 0 => {
                period.last_rejection = now;
                period.count += new_count;
                period.reason = reason;
                None
            }
            Some(period) if now.since(period.last_rejection) >= QUIET_PERIOD => {
                let duration = period.last_rejection.since(period.since).as_secs_f64() + 1.0;
                let count = period.count;
                self.period = None;
                let quiet_seconds = QUIET_PERIOD.as_secs();
                let previous_count = match count {
                    // The number of requests that the previous process rejected is unknown.
                    0 => String::new(),
                    1 => format!("; 1 was in {duration:.0} s before"),
                    _ => format!("; {count} were in {duration:.0} s before"),
                };
                let message = format!("no request was refused for {quiet_seconds} s{previous_count}");
                new_event(EventKind::ShedEnded, message, [("refused", count as f64), ("seconds", duration)])
            }
            Some(_) => None,
        }
    }
}

/// Returns the number of rejections between two samples, by reason.
fn rejections_between(first: &SheddingSample, last: &SheddingSample) -> RejectionCounts {
    let mut counts = last.rejected;
    counts.iter_mut().zip(first.rejected).for_each(|(count, earlier)| *count = count.saturating_sub(earlier));
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Time {
        Time(0) + Duration::from_secs(second)
    }

    #[test]
    fn it_is_told_once_that_it_begins_and_once_that_it_is_over() {
        let mut tracker = SheddingTracker::default();
        let mut events = Vec::new();
        let mut rejected = 0;
        for second in 0..40 {
            rejected += match second {
                3 => 7,
                4 | 9 => 1,
                _ => 0,
            };
            let event = tracker.sample(([rejected, 0, 0], 0), 12, "web", at(second));
            events.extend(event.map(|event| (second, event.kind, event.why)));
            let expected_since = (3..19).contains(&second).then_some(at(3));
            assert_eq!(tracker.since(), expected_since, "at {second} s");
        }
        let owned = |text: &str| text.to_owned();
        assert_eq!(
            events,
            [
                (
                    3,
                    EventKind::Shedding,
                    owned("7 requests were refused: its members have as many as they can work on")
                ),
                (19, EventKind::ShedEnded, owned("no request was refused for 10 s; 9 were in 7 s before")),
            ]
        );
    }

    #[test]
    fn members_have_the_reasons_for_which_they_took_none() {
        let mut tracker = SheddingTracker::default();
        let [first, second] = [MemberId(1), MemberId(2)];
        tracker.attribute(3, &[(first, "limit"), (second, "down")]);
        tracker.attribute(2, &[(first, "member_full")]);
        let expected = |counts: &[(&str, u64)]| {
            counts.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect::<BTreeMap<_, _>>()
        };
        assert_eq!(tracker.member_rejections(first), expected(&[("limit", 3), ("member_full", 2)]));
        assert_eq!(tracker.member_rejections(second), expected(&[("down", 3)]));
        assert_eq!(tracker.member_rejections(MemberId(3)), expected(&[]));
    }

    #[test]
    fn the_share_is_of_ten_seconds_or_since_it_began() {
        let mut tracker = SheddingTracker::default();
        let mut counts = ([0, 0, 0], 0);
        for second in 0..30 {
            // A hundred requests per second; from the fifth second on 20 are rejected, from the tenth on 60,
            // for another reason.
            let rejected = match second {
                0..5 => [0, 0, 0],
                5..10 => [20, 0, 0],
                _ => [20, 60, 0],
            };
            counts.0.iter_mut().zip(rejected).for_each(|(total, new)| *total += new);
            counts.1 += 100 - rejected.iter().sum::<u64>();
            tracker.sample(counts, 12, "web", at(second));
            let (share, reason) = match second {
                0..5 => (None, None),
                5..10 => (Some(0.2), Some(Reason::Shed)),
                // Five seconds with the first reason, and as many with the second.
                10..15 => {
                    let seconds = (second - 9) as f64;
                    (Some((5.0 * 0.2 + seconds * 0.8) / (5.0 + seconds)), Some(Reason::QueueFull))
                }
                15..20 => {
                    let seconds = (second - 9) as f64;
                    (Some(((10.0 - seconds) * 0.2 + seconds * 0.8) / 10.0), Some(Reason::QueueFull))
                }
                _ => (Some(0.8), Some(Reason::QueueFull)),
            };
            let matches = match (tracker.share(), share) {
                (Some(actual), Some(expected)) => (actual - expected).abs() < 1e-9,
                (actual, expected) => actual == expected,
            };
            assert!(matches, "at {second} s: {:?}, not {share:?}", tracker.share());
            assert_eq!(tracker.reason(), reason, "at {second} s");
            assert_eq!(tracker.recent_count(), rejected.iter().sum::<u64>(), "at {second} s");
            assert!(tracker.samples.len() <= 11, "bounded");
        }
        // Nothing is rejected and nothing arrives: the last share stays until shedding has ended.
        (30..39).for_each(|second| assert_eq!(tracker.sample(counts, 0, "web", at(second)), None));
        assert_eq!((tracker.share(), tracker.reason()), (Some(0.8), Some(Reason::QueueFull)));
        assert!(tracker.sample(counts, 0, "web", at(39)).is_some());
        assert_eq!((tracker.share(), tracker.reason()), (None, None));
    }

    #[test]
    fn what_the_process_before_has_begun_this_one_ends() {
        let mut tracker = SheddingTracker::default();
        let no_counts = ([0, 0, 0], 0);
        tracker.resume(Some(EventKind::ShedEnded), at(0));
        assert_eq!(tracker.sample(no_counts, 0, "web", at(60)), None);
        tracker.resume(Some(EventKind::Shedding), at(60));
        assert_eq!((tracker.share(), tracker.reason()), (Some(0.0), None));
        assert_eq!(tracker.sample(no_counts, 0, "web", at(69)), None);
        let ended = tracker.sample(no_counts, 0, "web", at(70)).map(|event| (event.kind, event.why));
        assert_eq!(ended, Some((EventKind::ShedEnded, "no request was refused for 10 s".to_owned())));
    }
}
