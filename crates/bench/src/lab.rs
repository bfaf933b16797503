//! Experiments as data: files that define servers, balancer, load, factors, faults and claims; a runner that
//! executes them unattended; a report that lists which claims the results support.
//!
//! [`experiment`] reads the file and [`plan`] makes points of its factors. [`runner`] takes the measurements
//! that precede the first point ([`Before`]). It then runs each point with its own processes in its own
//! folder. On resumption it skips points that are complete with the same experiment and binary. [`table`]
//! gathers the points, with confidence intervals ([`statistics`]). [`claim`] decides and [`report`] presents
//! the results.

use std::time::Duration;

mod arrivals;
mod back;
mod child;
pub mod claim;
pub mod column;
pub mod compare;
mod crew;
mod cycle;
mod doors;
mod drive;
pub mod experiment;
mod fellows;
mod figure;
mod front;
pub mod library;
mod lottery;
mod measure;
pub mod metric;
pub mod model;
mod moves;
mod network;
pub mod plan;
mod point;
mod ports;
mod reactive;
pub mod report;
pub mod runner;
mod served;
mod side_car;
mod stage;
pub mod statistics;
pub mod store;
pub mod table;
mod usage;

#[cfg(test)]
mod fixture;

pub use child::Tie;
pub use crew::Roll;
pub use measure::{Before, Wire};
pub use point::{Outcome, Tick};

/// The reason why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// A failure: what, where and what to do.
    #[error("{0}")]
    Failed(String),
    /// The request would do harm, so nothing was done.
    #[error("{0}")]
    Refused(String),
    /// The run was interrupted; completed points are kept.
    #[error("interrupted; `--resume` goes on from here")]
    Interrupted,
}

impl Trouble {
    pub(crate) fn failed(why: impl Into<String>) -> Self {
        Self::Failed(why.into())
    }
}

/// An observer of a run.
pub trait Watch {
    /// Reports what is measured before the first point; then a sentence with the results.
    fn before(&mut self, what: &str);

    /// Reports the begin of a point: the numbers of complete points and of all, and the estimated time left.
    fn begins(&mut self, done: usize, all: usize, left: Duration, name: &str);

    /// Reports the end of a point, with its main numbers.
    fn ended(&mut self, name: &str, numbers: &str);

    /// Returns `true` if the run is to end.
    fn interrupted(&self) -> bool;
}
