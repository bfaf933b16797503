//! The store as a whole: its status, and its events.

use std::time::Instant;

use plimsoll_brain::status::StoreStatus;
use plimsoll_brain::{Event, EventKind};
use plimsoll_cluster::store::StoreHealth;

use super::BalancerRuntime;

impl BalancerRuntime {
    /// Returns the status of the store; `None` for one that forgets.
    pub(super) fn store_status(&self) -> Option<StoreStatus> {
        if self.store.kind() == "memory" {
            return None;
        }
        let (health, snapshot) = (self.store.health(), self.store.snapshot());
        let seconds_since = |instant: Instant| instant.elapsed().as_secs_f64();
        let (doubt_reason, doubted_at) = self.doubt_reason(&health).unzip();
        let (error, failed_at) = health.problem.unzip();
        Some(StoreStatus {
            kind: self.store.kind().to_owned(),
            place: self.store.location(),
            revision: snapshot.revision,
            entries: snapshot.entries.len(),
            failures: health.failures,
            conflicts: health.conflicts,
            reads: health.reads,
            error,
            failing_seconds: failed_at.map(seconds_since),
            doubt: doubt_reason,
            doubted_seconds: doubted_at.map(seconds_since),
        })
    }

    /// Returns the reason why the content of the store is doubted, to be read behind its name, and since
    /// when.
    fn doubt_reason(&self, health: &StoreHealth) -> Option<(String, Instant)> {
        health.distrust.clone().or_else(|| self.missing_shared_config())
    }

    /// Publishes events if the store is lost or has lost entries, or is back.
    pub(crate) fn report_store_health(&self, faults: &mut StoreFaults) {
        let health = self.store.health();
        let name = || format!("the store in {} {}", self.store.kind(), self.store.location());
        let record_event = |kind, reason: String, seconds: Option<f64>| {
            let inputs = seconds.map(|seconds| ("seconds".to_owned(), seconds)).into_iter().collect();
            self.engine.write_event(Event { kind, group: "".into(), member: None, why: reason, inputs });
        };
        match (&health.problem, faults.lost_since) {
            (Some((reason, lost_at)), None) => {
                faults.lost_since = Some(*lost_at);
                let reason = format!(
                    "{} cannot be used: {reason}; what is known stays in force, and what operators do is \
                     refused until it can",
                    name()
                );
                record_event(EventKind::StoreLost, reason, None);
            }
            (None, Some(lost_at)) => {
                faults.lost_since = None;
                let seconds = lost_at.elapsed().as_secs_f64();
                let reason = format!("{} can be used again, after {seconds:.1} s", name());
                record_event(EventKind::StoreRecovered, reason, Some(seconds));
            }
            _ => {}
        }
        match (self.doubt_reason(&health), faults.doubted_since) {
            // The missing entries may differ from those a moment ago.
            (Some((reason, doubted_at)), previous_doubt) if previous_doubt != Some(doubted_at) => {
                faults.doubted_since = Some(doubted_at);
                record_event(EventKind::StoreLost, format!("{} {reason}", name()), None);
            }
            (None, Some(doubted_at)) => {
                faults.doubted_since = None;
                let seconds = doubted_at.elapsed().as_secs_f64();
                let reason = format!("{} is believed again, after {seconds:.1} s", name());
                record_event(EventKind::StoreRecovered, reason, Some(seconds));
            }
            _ => {}
        }
    }
}

/// The times since when the store has its published faults.
#[derive(Debug, Default)]
pub(crate) struct StoreFaults {
    /// The time since when it cannot be used.
    lost_since: Option<Instant>,
    /// The time since when its content is doubted.
    doubted_since: Option<Instant>,
}
