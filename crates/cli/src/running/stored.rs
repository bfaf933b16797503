//! The store as a whole: how it is, and what is to be told of that.

use std::time::Instant;

use plimsoll_brain::status::StoreStatus;
use plimsoll_brain::{Event, EventKind};

use super::Running;

impl Running {
    /// How the store is; `None` for one that forgets.
    pub(super) fn store_status(&self) -> Option<StoreStatus> {
        if self.store.kind() == "memory" {
            return None;
        }
        let (health, view) = (self.store.health(), self.store.view());
        let since = |at: Instant| at.elapsed().as_secs_f64();
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
        })
    }

    /// Tells it if the store is lost, or is back. `lost` is since when it is, as it was told.
    pub(crate) fn tell_of_store(&self, lost: &mut Option<Instant>) {
        let trouble = self.store.health().trouble;
        let name = || format!("the store in {} {}", self.store.kind(), self.store.place());
        let (kind, why, inputs) = match (&trouble, lost.take()) {
            (Some((why, _)), None) => {
                let why = format!(
                    "{} cannot be used: {why}; what is known stays in force, and what operators do is refused until it can",
                    name()
                );
                (EventKind::StoreLost, why, Vec::new())
            }
            (None, Some(since)) => {
                let seconds = since.elapsed().as_secs_f64();
                let why = format!("{} can be used again, after {seconds:.1} s", name());
                (EventKind::StoreRecovered, why, vec![("seconds".to_owned(), seconds)])
            }
            (now, before) => {
                *lost = now.as_ref().and(before);
                return;
            }
        };
        *lost = trouble.map(|(_, since)| since);
        self.engine.tell(Event { kind, group: "".into(), member: None, why, inputs });
    }
}
