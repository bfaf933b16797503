//! The engine's interface for the fleet: balancers that act together.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use plimsoll_brain::Time;
use plimsoll_brain::fleet::{Listed, News};
use tokio::sync::mpsc;

use super::Engine;
use crate::fellows::{self, Notice};
use crate::inner::lock;

impl Engine {
    /// Returns the time by the clock of the data plane.
    pub fn now(&self) -> Time {
        self.0.clock.now()
    }

    /// Returns the receiver of further notices for other balancers; notices not received in time are dropped.
    /// There is one receiver: that of the last call.
    pub fn notices(&self) -> mpsc::Receiver<Notice> {
        lock(&self.0.control).journal.fellows.listen()
    }

    /// Returns a number that changes whenever the result of [`listed`](Self::listed) would.
    pub fn version(&self) -> u64 {
        self.0.version.load(Relaxed)
    }

    /// Returns the groups in force and their members, with the figures of other balancers that choices use.
    pub fn listed(&self) -> Vec<Listed> {
        fellows::listed(&lock(&self.0.control))
    }

    /// Returns the number of requests that wait for a member below its limit, for groups whose members have
    /// one.
    pub fn waiting(&self) -> Vec<(Arc<str>, u32)> {
        fellows::waiting(&lock(&self.0.control))
    }

    /// Applies a finding about a member by the balancer `by`, or a result of all balancers' findings. Ignores
    /// findings about unknown members.
    pub fn take_news(&self, news: &News, by: &str) {
        fellows::take(&self.0, news, by, self.0.clock.now());
    }
}
