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
    last: Time,
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
    pub(crate) fn resume(&mut self, last: Option<EventKind>, now: Time) {
        if last == Some(EventKind::Shedding) {
            self.period.get_or_insert(SheddingPeriod { since: now, last: now, count: 0, reason: None });
        }
    }

    /// Returns the time at which the current shedding began.
    pub(crate) fn since(&self) -> Option<Time> {
        self.period.as_ref().map(|spell| spell.since)
    }

    /// Returns the share of requests rejected in the last ten seconds, 0 to 1, or since shedding began.
    /// Returns `None` while nothing is shed.
    pub(crate) fn share(&self) -> Option<f64> {
        self.period.as_ref()?;
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else { return Some(0.0) };
        let refused: u64 = between(first, last).iter().sum();
        let all = refused + last.completed.saturating_sub(first.completed);
        Some(if all > 0 { refused as f64 / all as f64 } else { 0.0 })
    }

    /// Returns the most frequent reason.
    pub(crate) fn reason(&self) -> Option<Reason> {
        self.period.as_ref()?.reason
    }

    /// Returns the number of requests rejected between the last two samples.
    pub(crate) fn recent_count(&self) -> u64 {
        let mut looks = self.samples.iter().rev();
        let (Some(last), Some(before)) = (looks.next(), looks.next()) else { return 0 };
        between(before, last).iter().sum()
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
        (refused, ended): (RejectionCounts, u64),
        in_flight: u32,
        group: &str,
        now: Time,
    ) -> Option<Event> {
        let look = SheddingSample { at: now, rejected: refused, completed: ended };
        let before = self.samples.back().copied().unwrap_or_default();
        let lately = between(&before, &look);
        let new: u64 = lately.iter().sum();
        if self.period.is_none() {
            self.samples.clear();
            self.samples.push_back(before);
        }
        self.samples.push_back(look);
        // The first sample is at most as old as the window of the share.
        while self.samples.get(1).is_some_and(|next| now.since(next.at) >= QUIET_PERIOD) {
            self.samples.pop_front();
        }
        let most = Self::REASONS.into_iter().zip(lately).max_by_key(|(_, count)| *count);
        let reason = most.map(|(reason, _)| reason).filter(|_| new > 0);
        let event = |kind, why, inputs: [(&str, f64); 2]| {
            let inputs = inputs.map(|(name, value)| (name.to_owned(), value)).to_vec();
            Some(Event { kind, group: group.into(), member: None, why, inputs })
        };
        match &mut self.period {
            None if new == 0 => None,
            None => {
                self.period = Some(SheddingPeriod { since: now, last: now, count: new, reason });
                let requests =
                    if new == 1 { "1 request was".to_owned() } else { format!("{new} requests were") };
                let full = match reason {
                    Some(Reason::Shed) | None => "its members have as many as they can work on",
                    Some(other) => other.sentence(),
                };
                let why = format!("{requests} refused: {full}");
                event(
                    EventKind::Shedding,
                    why,
                    [("refused", new as f64), ("in_flight", f64::from(in_flight))],
                )
            }
            Some(spell) if new > 0 => {
                spell.last = now;
                spell.count += new;
                spell.reason = reason;
                None
            }
            Some(spell) if now.since(spell.last) >= QUIET_PERIOD => {
                let lasted = spell.last.since(spell.since).as_secs_f64() + 1.0;
                let count = spell.count;
                self.period = None;
                let calm = QUIET_PERIOD.as_secs();
                let before = match count {
                    // The number of requests that the previous process rejected is unknown.
                    0 => String::new(),
                    1 => format!("; 1 was in {lasted:.0} s before"),
                    _ => format!("; {count} were in {lasted:.0} s before"),
                };
                let why = format!("no request was refused for {calm} s{before}");
                event(EventKind::ShedEnded, why, [("refused", count as f64), ("seconds", lasted)])
            }
            Some(_) => None,
        }
    }
}

/// Returns the number of rejections between two samples, by reason.
fn between(first: &SheddingSample, last: &SheddingSample) -> RejectionCounts {
    let mut counts = last.rejected;
    counts.iter_mut().zip(first.rejected).for_each(|(count, before)| *count = count.saturating_sub(before));
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
        let mut refusals = SheddingTracker::default();
        let mut said = Vec::new();
        let mut refused = 0;
        for second in 0..40 {
            refused += match second {
                3 => 7,
                4 | 9 => 1,
                _ => 0,
            };
            let found = refusals.sample(([refused, 0, 0], 0), 12, "web", at(second));
            said.extend(found.map(|event| (second, event.kind, event.why)));
            let goes_on = (3..19).contains(&second).then_some(at(3));
            assert_eq!(refusals.since(), goes_on, "at {second} s");
        }
        let why = |text: &str| text.to_owned();
        assert_eq!(
            said,
            [
                (
                    3,
                    EventKind::Shedding,
                    why("7 requests were refused: its members have as many as they can work on")
                ),
                (19, EventKind::ShedEnded, why("no request was refused for 10 s; 9 were in 7 s before")),
            ]
        );
    }

    #[test]
    fn members_have_the_reasons_for_which_they_took_none() {
        let mut refusals = SheddingTracker::default();
        let [one, other] = [MemberId(1), MemberId(2)];
        refusals.attribute(3, &[(one, "limit"), (other, "down")]);
        refusals.attribute(2, &[(one, "member_full")]);
        let expected = |counts: &[(&str, u64)]| {
            counts.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect::<BTreeMap<_, _>>()
        };
        assert_eq!(refusals.member_rejections(one), expected(&[("limit", 3), ("member_full", 2)]));
        assert_eq!(refusals.member_rejections(other), expected(&[("down", 3)]));
        assert_eq!(refusals.member_rejections(MemberId(3)), expected(&[]));
    }

    #[test]
    fn the_share_is_of_ten_seconds_or_since_it_began() {
        let mut refusals = SheddingTracker::default();
        let mut counts = ([0, 0, 0], 0);
        for second in 0..30 {
            // A hundred requests per second; from the fifth second on 20 are rejected, from the tenth on 60,
            // for another reason.
            let refused = match second {
                0..5 => [0, 0, 0],
                5..10 => [20, 0, 0],
                _ => [20, 60, 0],
            };
            counts.0.iter_mut().zip(refused).for_each(|(all, new)| *all += new);
            counts.1 += 100 - refused.iter().sum::<u64>();
            refusals.sample(counts, 12, "web", at(second));
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
            let close = match (refusals.share(), share) {
                (Some(one), Some(other)) => (one - other).abs() < 1e-9,
                (one, other) => one == other,
            };
            assert!(close, "at {second} s: {:?}, not {share:?}", refusals.share());
            assert_eq!(refusals.reason(), reason, "at {second} s");
            assert_eq!(refusals.recent_count(), refused.iter().sum::<u64>(), "at {second} s");
            assert!(refusals.samples.len() <= 11, "bounded");
        }
        // Nothing is rejected and nothing arrives: the last share stays until shedding has ended.
        (30..39).for_each(|second| assert_eq!(refusals.sample(counts, 0, "web", at(second)), None));
        assert_eq!((refusals.share(), refusals.reason()), (Some(0.8), Some(Reason::QueueFull)));
        assert!(refusals.sample(counts, 0, "web", at(39)).is_some());
        assert_eq!((refusals.share(), refusals.reason()), (None, None));
    }

    #[test]
    fn what_the_process_before_has_begun_this_one_ends() {
        let mut refusals = SheddingTracker::default();
        let nothing = ([0, 0, 0], 0);
        refusals.resume(Some(EventKind::ShedEnded), at(0));
        assert_eq!(refusals.sample(nothing, 0, "web", at(60)), None);
        refusals.resume(Some(EventKind::Shedding), at(60));
        assert_eq!((refusals.share(), refusals.reason()), (Some(0.0), None));
        assert_eq!(refusals.sample(nothing, 0, "web", at(69)), None);
        let over = refusals.sample(nothing, 0, "web", at(70)).map(|event| (event.kind, event.why));
        assert_eq!(over, Some((EventKind::ShedEnded, "no request was refused for 10 s".to_owned())));
    }
}
