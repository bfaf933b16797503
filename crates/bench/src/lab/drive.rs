//! The load of a point: the open or the closed loop of [`run`](crate::run), on a thread of its own.

use std::net::SocketAddr;
use std::time::Duration;

use super::Trouble;
use super::experiment::Load;
use crate::pace::Pace;
use crate::run::{self, Limits, Run};
use crate::target::Http;

/// What the clients do, with every share of a capacity worked out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Drive {
    /// Requests per second.
    Open(f64),
    /// Clients that each wait for their answer.
    Closed(usize),
}

/// Starts the load on `address`, for so long.
pub(super) fn start(
    load: &Load,
    drive: Drive,
    address: SocketAddr,
    duration: Duration,
    seed: u64,
) -> Result<Run, Trouble> {
    let failed = |error: &dyn std::fmt::Display| Trouble::failed(format!("cannot send load: {error}"));
    let body: Vec<u8> = (0..load.body.map_or(0, |body| body.0)).map(|n| n as u8).collect();
    let method = if load.body.is_some() { "POST" } else { "GET" };
    let close: &[(&str, &str)] = if load.keep_alive { &[] } else { &[("connection", "close")] };
    let target =
        Http::new(method, &format!("http://{address}/"), close, &body).map_err(|error| failed(&error))?;
    let limits = Limits { timeout: load.timeout.0, reuse: load.keep_alive, ..Limits::default() };
    let run = match drive {
        Drive::Open(rate) => run::start(target, Pace::new(load.arrival, rate, duration, seed), limits),
        Drive::Closed(clients) => run::closed(target, clients, duration, limits),
    };
    run.map_err(|error| failed(&error))
}
