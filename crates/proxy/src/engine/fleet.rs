//! What a balancer that acts together with others lends them a hand with.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use plimsoll_brain::Time;
use plimsoll_brain::fleet::{Listed, News};
use tokio::sync::mpsc;

use super::Engine;
use crate::fellows::{self, Notice};
use crate::inner::lock;

impl Engine {
    /// The time by the clock of the data plane.
    pub fn now(&self) -> Time {
        self.0.clock.now()
    }

    /// What others are to be told from now on; what is not taken out in time is dropped. There is one who takes it: whoever
    /// asked last.
    pub fn notices(&self) -> mpsc::Receiver<Notice> {
        lock(&self.0.control).journal.fellows.listen()
    }

    /// Changes whenever [`listed`](Self::listed) would say something else.
    pub fn version(&self) -> u64 {
        self.0.version.load(Relaxed)
    }

    /// The groups in force and their members, with what choices read of other balancers.
    pub fn listed(&self) -> Vec<Listed> {
        fellows::listed(&lock(&self.0.control))
    }

    /// Requests that wait for a member below its limit, of groups whose members have one.
    pub fn waiting(&self) -> Vec<(Arc<str>, u32)> {
        fellows::waiting(&lock(&self.0.control))
    }

    /// Puts in force what the balancer `by` said of a member, or what follows from what all said. What is of a member that is
    /// not there is ignored.
    pub fn take_news(&self, news: &News, by: &str) {
        fellows::take(&self.0, news, by, self.0.clock.now());
    }
}
