//! How often sessions were sent to another member: what the balancer counts or, over iiop, what clients are told.
//!
//! Over iiop a client that is forwarded goes to a member by itself, which only the client can count. Its first forward binds
//! it and is no move.

use std::cell::Cell;

use super::experiment::{Experiment, Protocol};
use super::plan::{Offer, Point};
use super::stage::Stage;

/// Counts the moves of one repetition.
#[derive(Debug)]
pub(super) struct Moves {
    sessions: u64,
    protocol: Protocol,
    forwarded: Cell<u64>,
}

impl Moves {
    /// Of the point's sessions; `None` if the experiment does not ask, or the load is not one of sessions.
    pub(super) fn of(experiment: &Experiment, point: &Point) -> Option<Self> {
        let sessions = match point.offer {
            Offer::Concurrency(clients) => clients,
            _ => experiment.load.each(0).len(),
        };
        let asked = experiment.follows() && sessions > 0;
        asked.then(|| Self { sessions: sessions as u64, protocol: point.protocol, forwarded: Cell::new(0) })
    }

    /// Clients were forwarded so often.
    pub(super) fn forwarded(&self, count: u64) {
        self.forwarded.set(self.forwarded.get() + count);
    }

    /// Moves per session since the load began; `None` if nobody says.
    pub(super) fn so_far(&self, stage: &Stage) -> Option<f64> {
        let count = match self.protocol {
            Protocol::Http => stage.moved()?,
            Protocol::Iiop => self.forwarded.get().saturating_sub(self.sessions),
        };
        Some(count as f64 / self.sessions as f64)
    }
}
