//! A request from its arrival to its client's answer.

use plimsoll_brain::Urgency;
use plimsoll_brain::meter::{MeteredRequest, Reading};

/// The urgency of urgent requests; the others have the default.
pub(super) const URGENT: u8 = 1;

/// A request in flight.
pub(super) struct Flight {
    pub(super) who: usize,
    pub(super) member: usize,
    pub(super) came: f64,
    pub(super) sent: f64,
    pub(super) work: f64,
    pub(super) urgency: Urgency,
    pub(super) job: Option<MeteredRequest>,
    pub(super) reading: Option<Reading>,
    /// The jobs found at the member, and the time.
    pub(super) met: usize,
    pub(super) reached: f64,
    pub(super) state: State,
    pub(super) failed: bool,
    /// Whether the member, which is full, rejected it.
    pub(super) refused: bool,
    pub(super) tries: u32,
    /// The time at which it found no room first.
    pub(super) full: Option<f64>,
    pub(super) measured: bool,
}

impl Flight {
    pub(super) fn urgent(&self) -> bool {
        self.urgency.value() == URGENT
    }
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum State {
    /// At the balancer, for want of a member.
    Queued,
    Travelling,
    Waiting,
    Running,
    /// It left the member, or was removed from it.
    Gone,
    /// Its client has its answer.
    Over,
}
