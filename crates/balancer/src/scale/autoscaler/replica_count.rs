//! A provider that only counts. It is asked for the wanted number itself, as others may have set that, or a
//! process before this one. So a balancer that knows no members yet removes none, and an increase never
//! reduces the number.

use std::time::Duration;

use plimsoll_brain::EventKind;
use plimsoll_cluster::scaler::ProviderHandle;
use plimsoll_proxy::GroupSnapshot;
use tokio::time::Instant;

use super::GroupAutoscaler;

/// The time between two questions for the wanted number.
const REPLICA_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The known state of the provider.
#[derive(Debug, Default)]
pub(super) struct ReplicaCount {
    target: Option<u32>,
    /// The time since when fewer are found than that.
    behind_since: Option<Instant>,
    /// Whether a change is being sent.
    pub(super) is_changing: bool,
    /// The number of changes that were sent: an answer from before the last is out of date.
    pub(super) changes_sent: u64,
    /// The reason why it could not be asked.
    pub(super) last_error: Option<String>,
}

impl ReplicaCount {
    /// Takes the answer with the wanted number.
    pub(super) fn record_answer(&mut self, replicas: u32) {
        if self.target.is_none_or(|previous| previous < replicas) {
            self.behind_since = None;
        }
        (self.target, self.last_error) = (Some(replicas), None);
    }

    /// Returns `true` if the wanted number is known.
    pub(super) fn is_known(&self) -> bool {
        self.target.is_some()
    }

    /// Returns how many of the wanted members are still to come if `found` are there; `None` if the number is
    /// unknown. After `deadline` they are given up, unless no member is found: then the source knows nothing.
    pub(super) fn missing_replicas(&mut self, current: u32, now: Instant, deadline: Duration) -> Option<u32> {
        let missing = self.target?.saturating_sub(current);
        if missing == 0 {
            self.behind_since = None;
            return Some(0);
        }
        let behind_since = *self.behind_since.get_or_insert(now);
        let is_late = now.duration_since(behind_since) >= deadline;
        Some(if is_late && current > 0 { 0 } else { missing })
    }

    /// Returns the new wanted number and the old one, if they differ.
    pub(super) fn next_target(&self, add: u32, remove: u32, min: u32, max: u32) -> Option<(u32, u32)> {
        let current = self.target?;
        let target = match add {
            0 => current.saturating_sub(remove).max(min).min(current),
            add => current.saturating_add(add).min(max).max(current),
        };
        (target != current).then_some((target, current))
    }
}

impl GroupAutoscaler {
    /// Returns the number of members that no source finds.
    pub(super) fn static_members(&self) -> u32 {
        self.balancer.listed_members(&self.scaling.group).len() as u32
    }

    /// Returns how many members of a provider that only counts are still to come. `None` if too little is
    /// known for a decision: a source that fails does not know the members.
    pub(super) fn awaited_members(&mut self, snapshot: &GroupSnapshot, now: Instant) -> Option<u32> {
        let current = (snapshot.status.members.len() as u32).saturating_sub(self.static_members());
        match &self.provider {
            ProviderHandle::PerInstance(_) => Some(0),
            ProviderHandle::ReplicaCount(_) => {
                self.replica_count.missing_replicas(current, now, self.scaling.instance_rules.start_deadline)
            }
            ProviderHandle::None => {
                let group = &self.scaling.group;
                let has_discovery =
                    self.balancer.discoveries().iter().any(|discovery| discovery.group == *group);
                (current > 0 || !has_discovery).then_some(0)
            }
        }
    }

    /// Takes the result of the question for the wanted number.
    pub(super) fn handle_replicas(&mut self, changes_sent: u64, outcome: Result<u32, String>) {
        let now = Instant::now();
        self.next_listing_at = Some(now + REPLICA_POLL_INTERVAL);
        match outcome {
            Ok(replicas) if changes_sent == self.replica_count.changes_sent => {
                if !self.replica_count.is_known() {
                    self.next_decision_at = now;
                }
                self.replica_count.record_answer(replicas);
            }
            Ok(_) => {}
            Err(error) => {
                if self.replica_count.last_error.as_ref() != Some(&error) {
                    self.publish_event(
                        EventKind::ScalerFailed,
                        None,
                        format!("kubernetes: {error}"),
                        Vec::new(),
                    );
                }
                self.replica_count.last_error = Some(error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_are_never_fewer_and_nobody_is_taken_away_unseen() {
        let (now, deadline) = (Instant::now(), Duration::from_secs(60));
        let mut count = ReplicaCount::default();
        assert_eq!(
            (count.missing_replicas(0, now, deadline), count.next_target(2, 0, 2, 20)),
            (None, None),
            "nothing is known"
        );
        count.record_answer(12);
        assert_eq!(count.missing_replicas(0, now + 10 * deadline, deadline), Some(12), "the source fails");
        // Five of twelve cannot be used, and three more are wanted: not ten.
        assert_eq!(count.next_target(3, 0, 2, 20), Some((15, 12)));
        assert_eq!(count.next_target(30, 0, 2, 20), Some((20, 12)));
        assert_eq!(count.next_target(3, 0, 2, 10), None, "somebody wanted more than the most");
        assert_eq!(count.next_target(0, 3, 2, 20), Some((9, 12)));
        assert_eq!(count.next_target(0, 30, 2, 20), Some((2, 12)));
        assert_eq!(count.next_target(0, 3, 20, 30), None, "nor the other way round");
    }

    #[test]
    fn those_who_do_not_come_are_waited_for_no_longer_than_that() {
        let (now, deadline) = (Instant::now(), Duration::from_secs(60));
        let mut count = ReplicaCount::default();
        count.record_answer(5);
        assert_eq!(count.missing_replicas(3, now, deadline), Some(2));
        assert_eq!(count.missing_replicas(3, now + deadline, deadline), Some(0));
        count.record_answer(7);
        assert_eq!(
            count.missing_replicas(3, now + deadline, deadline),
            Some(4),
            "they were only just asked for"
        );
        assert_eq!(count.missing_replicas(9, now + deadline, deadline), Some(0));
        assert_eq!(count.missing_replicas(6, now + 3 * deadline, deadline), Some(1), "one went");
    }
}
