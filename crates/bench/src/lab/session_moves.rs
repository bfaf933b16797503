//! The rate of session moves: counted by the balancer or, over iiop, by clients.
//!
//! Over iiop a forwarded client connects to a member directly, which only the client can count. Its first
//! forward binds it and is no move.

use std::cell::Cell;

use super::experiment::{Experiment, LoadProtocol};
use super::plan::{ExperimentPoint, OfferedLoad};
use super::testbed::Testbed;

/// The counter of moves of one repetition.
#[derive(Debug)]
pub(super) struct SessionMoves {
    sessions: u64,
    protocol: LoadProtocol,
    forwarded: Cell<u64>,
}

impl SessionMoves {
    /// Creates the counter for the point's sessions; `None` if the experiment does not use it, or the load
    /// has no sessions.
    pub(super) fn of(experiment: &Experiment, point: &ExperimentPoint) -> Option<Self> {
        let sessions = match point.load {
            OfferedLoad::Concurrency(clients) => clients,
            _ => experiment.load.client_groups(0).len(),
        };
        let is_needed = experiment.needs_session_moves() && sessions > 0;
        is_needed.then(|| Self {
            sessions: sessions as u64,
            protocol: point.protocol,
            forwarded: Cell::new(0),
        })
    }

    /// Counts `count` forwards of clients.
    pub(super) fn record_forwards(&self, count: u64) {
        self.forwarded.set(self.forwarded.get() + count);
    }

    /// Returns the moves per session since the load began; `None` if a balancer does not report them.
    pub(super) fn moves_per_session(&self, testbed: &Testbed) -> Option<f64> {
        let count = match self.protocol {
            LoadProtocol::Http => testbed.moved_sessions()?,
            LoadProtocol::Iiop => self.forwarded.get().saturating_sub(self.sessions),
        };
        Some(count as f64 / self.sessions as f64)
    }
}
