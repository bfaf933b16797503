//! How a daemon sees its own services and the others: for people, not for the draw.

use alloc::vec::Vec;
use core::net::SocketAddr;

use super::Daemon;
use crate::Time;
use crate::lottery::message::{Share, Standing, UNKNOWN};

/// How a daemon sees things.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// What it is about itself.
    pub state: Standing,
    /// Its own services, in the order of its configuration.
    pub services: Vec<Own>,
    /// The others that are not down, by their numbers.
    pub members: Vec<Other>,
}

/// A service of the server beside a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    /// Can the server do it now?
    pub ready: bool,
    /// Is nobody sent to it, as somebody said so?
    pub held: bool,
    /// What it would say of it in a report made now.
    pub share: Share,
}

/// Another daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// Its number.
    pub member: u16,
    /// Where it is.
    pub address: SocketAddr,
    /// What it is about by its last report; none if there was none.
    pub state: Option<Standing>,
    /// Was it quiet for three reports?
    pub suspect: bool,
    /// Was its last report of another view than ours when it came?
    pub differs: bool,
    /// What it said of its services.
    pub shares: Vec<Share>,
}

impl Daemon {
    /// How it sees things at `now`.
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
