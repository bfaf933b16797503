//! A daemon's view of its own services and of the others: for display, not for the draw.

use alloc::vec::Vec;
use core::net::SocketAddr;

use super::Daemon;
use crate::Time;
use crate::lottery::message::{Share, Standing, UNKNOWN};

/// A daemon's view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Its own state.
    pub state: Standing,
    /// Its own services, in the order of its configuration.
    pub services: Vec<Own>,
    /// The others that are not down, by their numbers.
    pub members: Vec<Other>,
}

/// A service of the server beside a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    /// Whether the server can serve it now.
    pub ready: bool,
    /// Whether an operator holds it, so that no client is sent to it.
    pub held: bool,
    /// Its content in a report made now.
    pub share: Share,
}

/// Another daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// Its number.
    pub member: u16,
    /// Its address.
    pub address: SocketAddr,
    /// The state in its last report; `None` without one.
    pub state: Option<Standing>,
    /// Whether it was quiet for three reports.
    pub suspect: bool,
    /// Whether its last report had another digest than ours when it arrived.
    pub differs: bool,
    /// The services in its report.
    pub shares: Vec<Share>,
}

impl Daemon {
    /// Returns its view at `now`.
    pub fn view(&self, now: Time) -> View {
        let services = self.services.iter().map(|local| Own {
            ready: local.ready,
            held: local.held,
            share: Share {
                service: local.service,
                capacity: local.capacity,
                weight: local.weight(self.since, now, self.config.slow_start),
                load: local.gauge.load(now).unwrap_or(UNKNOWN),
                in_flight: local.in_flight,
            },
        });
        View { state: self.state, services: services.collect(), members: self.table.view(self.read(now)) }
    }
}
