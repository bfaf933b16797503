//! A request from its coming to what its client gets.

use plimsoll_brain::Urgency;
use plimsoll_brain::meter::{Job, Reading};

/// More so than others, which are so by default.
pub(super) const URGENT: u8 = 1;

/// A request under way.
pub(super) struct Flight {
    pub(super) who: usize,
    pub(super) member: usize,
    pub(super) came: f64,
    pub(super) sent: f64,
    pub(super) work: f64,
    pub(super) urgency: Urgency,
    pub(super) job: Option<Job>,
    pub(super) reading: Option<Reading>,
    /// Jobs found at the member, and when.
    pub(super) met: usize,
    pub(super) reached: f64,
    pub(super) state: State,
    pub(super) failed: bool,
    /// By the member, which is full.
    pub(super) refused: bool,
    pub(super) tries: u32,
    /// When it found no room for the first time.
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
    /// With the balancer, for want of a member.
    Queued,
    Travelling,
    Waiting,
    Running,
    /// Left the member, or was taken from it.
    Gone,
    /// Its client has what it gets.
    Over,
}
