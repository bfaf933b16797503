//! A provider that only counts. It is asked for the wanted number itself, as others may have set that, or a
//! process before this one. So a balancer that knows no members yet removes none, and an increase never
//! reduces the number.

use std::time::Duration;

use plimsoll_brain::EventKind;
use plimsoll_cluster::scaler::Hands;
use plimsoll_proxy::GroupLook;
use tokio::time::Instant;

use super::Charge;

/// The time between two questions for the wanted number.
const COUNTS_APART: Duration = Duration::from_secs(5);

/// The known state of the provider.
#[derive(Debug, Default)]
pub(super) struct Count {
    replicas: Option<u32>,
    /// The time since when fewer are found than that.
    behind: Option<Instant>,
    /// Whether a change is being sent.
    pub(super) busy: bool,
    /// The number of changes that were sent: an answer from before the last is out of date.
    pub(super) told: u64,
    /// The reason why it could not be asked.
    pub(super) trouble: Option<String>,
}

impl Count {
    /// Takes the answer with the wanted number.
    pub(super) fn heard(&mut self, replicas: u32) {
        if self.replicas.is_none_or(|before| before < replicas) {
            self.behind = None;
        }
        (self.replicas, self.trouble) = (Some(replicas), None);
    }

    /// Returns `true` if the wanted number is known.
    pub(super) fn known(&self) -> bool {
        self.replicas.is_some()
    }

    /// Returns how many of the wanted members are still to come if `found` are there; `None` if the number is
    /// unknown. After `deadline` they are given up, unless no member is found: then the source knows nothing.
    pub(super) fn awaited(&mut self, found: u32, at: Instant, deadline: Duration) -> Option<u32> {
        let missing = self.replicas?.saturating_sub(found);
        if missing == 0 {
            self.behind = None;
            return Some(0);
        }
        let since = *self.behind.get_or_insert(at);
        let late = at.duration_since(since) >= deadline;
        Some(if late && found > 0 { 0 } else { missing })
    }

    /// Returns the new wanted number and the old one, if they differ.
    pub(super) fn next(&self, add: u32, remove: u32, least: u32, most: u32) -> Option<(u32, u32)> {
        let now = self.replicas?;
        let next = match add {
            0 => now.saturating_sub(remove).max(least).min(now),
            add => now.saturating_add(add).min(most).max(now),
        };
        (next != now).then_some((next, now))
    }
}

impl Charge {
    /// Returns the number of members that no source finds.
    pub(super) fn fixed(&self) -> u32 {
        self.running.listed(&self.scaling.group).len() as u32
    }

    /// Returns how many members of a provider that only counts are still to come. `None` if too little is
    /// known for a decision: a source that fails does not know the members.
    pub(super) fn awaited(&mut self, look: &GroupLook, at: Instant) -> Option<u32> {
        let found = (look.status.members.len() as u32).saturating_sub(self.fixed());
        match &self.hands {
            Hands::Each(_) => Some(0),
            Hands::Count(_) => self.count.awaited(found, at, self.scaling.crew.start_deadline),
            Hands::None => {
                let group = &self.scaling.group;
                let sought = self.running.discoveries().iter().any(|one| one.group == *group);
                (found > 0 || !sought).then_some(0)
            }
        }
    }

    /// Takes the result of the question for the wanted number.
    pub(super) fn replicas(&mut self, told: u64, outcome: Result<u32, String>) {
        let at = Instant::now();
        self.present = Some(at + COUNTS_APART);
        match outcome {
            Ok(replicas) if told == self.count.told => {
                if !self.count.known() {
                    self.due = at;
                }
                self.count.heard(replicas);
            }
            Ok(_) => {}
            Err(why) => {
                if self.count.trouble.as_ref() != Some(&why) {
                    self.tell(EventKind::ScalerFailed, None, format!("kubernetes: {why}"), Vec::new());
                }
                self.count.trouble = Some(why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_are_never_fewer_and_nobody_is_taken_away_unseen() {
        let (at, deadline) = (Instant::now(), Duration::from_secs(60));
        let mut count = Count::default();
        assert_eq!(
            (count.awaited(0, at, deadline), count.next(2, 0, 2, 20)),
            (None, None),
            "nothing is known"
        );
        count.heard(12);
        assert_eq!(count.awaited(0, at + 10 * deadline, deadline), Some(12), "the source fails");
        // Five of twelve cannot be used, and three more are wanted: not ten.
        assert_eq!(count.next(3, 0, 2, 20), Some((15, 12)));
        assert_eq!(count.next(30, 0, 2, 20), Some((20, 12)));
        assert_eq!(count.next(3, 0, 2, 10), None, "somebody wanted more than the most");
        assert_eq!(count.next(0, 3, 2, 20), Some((9, 12)));
        assert_eq!(count.next(0, 30, 2, 20), Some((2, 12)));
        assert_eq!(count.next(0, 3, 20, 30), None, "nor the other way round");
    }

    #[test]
    fn those_who_do_not_come_are_waited_for_no_longer_than_that() {
        let (at, deadline) = (Instant::now(), Duration::from_secs(60));
        let mut count = Count::default();
        count.heard(5);
        assert_eq!(count.awaited(3, at, deadline), Some(2));
        assert_eq!(count.awaited(3, at + deadline, deadline), Some(0));
        count.heard(7);
        assert_eq!(count.awaited(3, at + deadline, deadline), Some(4), "they were only just asked for");
        assert_eq!(count.awaited(9, at + deadline, deadline), Some(0));
        assert_eq!(count.awaited(6, at + 3 * deadline, deadline), Some(1), "one went");
    }
}
