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
        let (health, view) = (self.store.health(), self.store.snapshot());
        let since = |at: Instant| at.elapsed().as_secs_f64();
        let (doubt, doubted) = self.doubt_reason(&health).unzip();
        let (error, at) = health.problem.unzip();
        Some(StoreStatus {
            kind: self.store.kind().to_owned(),
            place: self.store.location(),
            revision: view.revision,
            entries: view.entries.len(),
            failures: health.failures,
            conflicts: health.conflicts,
            reads: health.reads,
            error,
            failing_seconds: at.map(since),
            doubt,
            doubted_seconds: doubted.map(since),
        })
    }

    /// Returns the reason why the content of the store is doubted, to be read behind its name, and since
    /// when.
    fn doubt_reason(&self, health: &StoreHealth) -> Option<(String, Instant)> {
        health.distrust.clone().or_else(|| self.missing_shared_config())
    }

    /// Publishes events if the store is lost or has lost entries, or is back.
    pub(crate) fn report_store_health(&self, told: &mut StoreFaults) {
        let health = self.store.health();
        let name = || format!("the store in {} {}", self.store.kind(), self.store.location());
        let tell = |kind, why: String, seconds: Option<f64>| {
            let inputs = seconds.map(|seconds| ("seconds".to_owned(), seconds)).into_iter().collect();
            self.engine.write_event(Event { kind, group: "".into(), member: None, why, inputs });
        };
        match (&health.problem, told.lost_since) {
            (Some((why, since)), None) => {
                told.lost_since = Some(*since);
                let why = format!(
                    "{} cannot be used: {why}; what is known stays in force, and what operators do is \
                     refused until it can",
                    name()
                );
                tell(EventKind::StoreLost, why, None);
            }
            (None, Some(since)) => {
                told.lost_since = None;
                let seconds = since.elapsed().as_secs_f64();
                let why = format!("{} can be used again, after {seconds:.1} s", name());
                tell(EventKind::StoreRecovered, why, Some(seconds));
            }
            _ => {}
        }
        match (self.doubt_reason(&health), told.doubted_since) {
            // The missing entries may differ from those a moment ago.
            (Some((why, since)), before) if before != Some(since) => {
                told.doubted_since = Some(since);
                tell(EventKind::StoreLost, format!("{} {why}", name()), None);
            }
            (None, Some(since)) => {
                told.doubted_since = None;
                let seconds = since.elapsed().as_secs_f64();
                let why = format!("{} is believed again, after {seconds:.1} s", name());
                tell(EventKind::StoreRecovered, why, Some(seconds));
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
