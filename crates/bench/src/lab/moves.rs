//! The rate of session moves: counted by the balancer or, over iiop, by clients.
//!
//! Over iiop a forwarded client connects to a member directly, which only the client can count. Its first
//! forward binds it and is no move.

use std::cell::Cell;

use super::experiment::{Experiment, Protocol};
use super::plan::{Offer, Point};
use super::stage::Stage;

/// The counter of moves of one repetition.
#[derive(Debug)]
pub(super) struct Moves {
    sessions: u64,
    protocol: Protocol,
    forwarded: Cell<u64>,
}

impl Moves {
    /// Creates the counter for the point's sessions; `None` if the experiment does not use it, or the load
    /// has no sessions.
    pub(super) fn of(experiment: &Experiment, point: &Point) -> Option<Self> {
        let sessions = match point.offer {
            Offer::Concurrency(clients) => clients,
            _ => experiment.load.each(0).len(),
        };
        let asked = experiment.follows() && sessions > 0;
        asked.then(|| Self { sessions: sessions as u64, protocol: point.protocol, forwarded: Cell::new(0) })
    }

    /// Counts `count` forwards of clients.
    pub(super) fn forwarded(&self, count: u64) {
        self.forwarded.set(self.forwarded.get() + count);
    }

    /// Returns the moves per session since the load began; `None` if a balancer does not report them.
    pub(super) fn so_far(&self, stage: &Stage) -> Option<f64> {
        let count = match self.protocol {
            Protocol::Http => stage.moved()?,
            Protocol::Iiop => self.forwarded.get().saturating_sub(self.sessions),
        };
        Some(count as f64 / self.sessions as f64)
    }
}
