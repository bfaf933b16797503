//! The store as a whole: its status, and its events.

use std::time::Instant;

use plimsoll_brain::status::StoreStatus;
use plimsoll_brain::{Event, EventKind};
use plimsoll_cluster::store::Health;

use super::Running;

impl Running {
    /// Returns the status of the store; `None` for one that forgets.
    pub(super) fn store_status(&self) -> Option<StoreStatus> {
        if self.store.kind() == "memory" {
            return None;
        }
        let (health, view) = (self.store.health(), self.store.view());
        let since = |at: Instant| at.elapsed().as_secs_f64();
        let (doubt, doubted) = self.doubt(&health).unzip();
        let (error, at) = health.trouble.unzip();
        Some(StoreStatus {
            kind: self.store.kind().to_owned(),
            place: self.store.place(),
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
    fn doubt(&self, health: &Health) -> Option<(String, Instant)> {
        health.doubt.clone().or_else(|| self.document_gone())
    }

    /// Publishes events if the store is lost or has lost entries, or is back.
    pub(crate) fn tell_of_store(&self, told: &mut Told) {
        let health = self.store.health();
        let name = || format!("the store in {} {}", self.store.kind(), self.store.place());
        let tell = |kind, why: String, seconds: Option<f64>| {
            let inputs = seconds.map(|seconds| ("seconds".to_owned(), seconds)).into_iter().collect();
            self.engine.tell(Event { kind, group: "".into(), member: None, why, inputs });
        };
        match (&health.trouble, told.lost) {
            (Some((why, since)), None) => {
                told.lost = Some(*since);
                let why = format!(
                    "{} cannot be used: {why}; what is known stays in force, and what operators do is refused until it can",
                    name()
                );
                tell(EventKind::StoreLost, why, None);
            }
            (None, Some(since)) => {
                told.lost = None;
                let seconds = since.elapsed().as_secs_f64();
                let why = format!("{} can be used again, after {seconds:.1} s", name());
                tell(EventKind::StoreRecovered, why, Some(seconds));
            }
            _ => {}
        }
        match (self.doubt(&health), told.doubted) {
            // The missing entries may differ from those a moment ago.
            (Some((why, since)), before) if before != Some(since) => {
                told.doubted = Some(since);
                tell(EventKind::StoreLost, format!("{} {why}", name()), None);
            }
            (None, Some(since)) => {
                told.doubted = None;
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
pub(crate) struct Told {
    /// The time since when it cannot be used.
    lost: Option<Instant>,
    /// The time since when its content is doubted.
    doubted: Option<Instant>,
}
