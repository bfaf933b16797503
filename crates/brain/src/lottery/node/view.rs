//! A daemon's view of its own services and of the others: for display, not for the draw.

use alloc::vec::Vec;
use core::net::SocketAddr;

use super::LotteryNode;
use crate::Time;
use crate::lottery::message::{NodeState, ServiceState, UNKNOWN_LOAD};

/// A daemon's view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Its own state.
    pub state: NodeState,
    /// Its own services, in the order of its configuration.
    pub services: Vec<ServiceView>,
    /// The others that are not down, by their numbers.
    pub members: Vec<PeerView>,
}

/// A service of the server beside a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceView {
    /// Whether the server can serve it now.
    pub ready: bool,
    /// Whether an operator holds it, so that no client is sent to it.
    pub held: bool,
    /// Its content in a report made now.
    pub share: ServiceState,
}

/// Another daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerView {
    /// Its number.
    pub member: u16,
    /// Its address.
    pub address: SocketAddr,
    /// The state in its last report; `None` without one.
    pub state: Option<NodeState>,
    /// Whether it was quiet for three reports.
    pub is_suspect: bool,
    /// Whether its last report had another digest than ours when it arrived.
    pub digest_differs: bool,
    /// The services in its report.
    pub shares: Vec<ServiceState>,
}

impl LotteryNode {
    /// Returns its view at `now`.
    pub fn view(&self, now: Time) -> NodeView {
        let services = self.services.iter().map(|local_service| ServiceView {
            ready: local_service.ready,
            held: local_service.held,
            share: ServiceState {
                service: local_service.service,
                capacity: local_service.capacity,
                weight: local_service.weight(self.since, now, self.config.slow_start),
                load: local_service.gauge.load(now).unwrap_or(UNKNOWN_LOAD),
                in_flight: local_service.in_flight,
            },
        });
        NodeView {
            state: self.state,
            services: services.collect(),
            members: self.table.view(self.read_until(now)),
        }
    }
}
