//! Experiments as data: files that name servers, balancer, load, factors, faults and claims; a runner that
//! works through them unattended; a report that says which claims the results bear out.
//!
//! [`experiment`] reads the file and [`plan`] makes points of its factors. [`runner`] measures what must be
//! known before ([`Before`]), then runs each point with processes of its own in a folder of its own, and skips
//! on resumption what has been done with the same experiment and binary. [`table`] gathers the points, with
//! confidence intervals ([`statistics`]); [`claim`] decides and [`report`] tells.

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

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// Something did not work: what, where and what to do.
    #[error("{0}")]
    Failed(String),
    /// What was asked for would harm something, so that nothing was done.
    #[error("{0}")]
    Refused(String),
    /// It was told to end; what is done is kept.
    #[error("interrupted; `--resume` goes on from here")]
    Interrupted,
}

impl Trouble {
    pub(crate) fn failed(why: impl Into<String>) -> Self {
        Self::Failed(why.into())
    }
}

/// Who watches a run.
pub trait Watch {
    /// What is measured before the first point; then a sentence with what came of it.
    fn before(&mut self, what: &str);

    /// A point begins: so many are done of so many, and the rest takes about so long.
    fn begins(&mut self, done: usize, all: usize, left: Duration, name: &str);

    /// A point has ended, with the numbers worth a line.
    fn ended(&mut self, name: &str, numbers: &str);

    /// Shall the run end?
    fn interrupted(&self) -> bool;
}
