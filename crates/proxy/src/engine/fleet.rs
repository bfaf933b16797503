//! The engine's interface for the fleet: balancers that act together.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use plimsoll_brain::Time;
use plimsoll_brain::fleet::{FleetGroup, FleetUpdate};
use tokio::sync::mpsc;

use super::Engine;
use crate::control::fleet_notifier::{self, FleetNotice};
use crate::runtime::sync::lock;

impl Engine {
    /// Returns the time by the clock of the data plane.
    pub fn now(&self) -> Time {
        self.0.clock.now()
    }

    /// Returns the receiver of further notices for other balancers; notices not received in time are dropped.
    /// There is one receiver: that of the last call.
    pub fn notices(&self) -> mpsc::Receiver<FleetNotice> {
        lock(&self.0.control).event_log.fleet.subscribe()
    }

    /// Returns a number that changes whenever the result of [`listed_groups`](Self::listed_groups) would.
    pub fn version(&self) -> u64 {
        self.0.version.load(Relaxed)
    }

    /// Returns the groups in force and their members, with the figures of other balancers that choices use.
    pub fn listed_groups(&self) -> Vec<FleetGroup> {
        fleet_notifier::list_groups(&lock(&self.0.control))
    }

    /// Returns the number of requests that wait for a member below its limit, for groups whose members have
    /// one.
    pub fn waiting(&self) -> Vec<(Arc<str>, u32)> {
        fleet_notifier::waiting_counts(&lock(&self.0.control))
    }

    /// Applies a finding about a member by the balancer `by`, or a result of all balancers' findings. Ignores
    /// findings about unknown members.
    pub fn apply_fleet_update(&self, update: &FleetUpdate, sender: &str) {
        fleet_notifier::apply_update(&self.0, update, sender, self.0.clock.now());
    }
}
