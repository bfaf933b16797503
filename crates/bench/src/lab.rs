//! Experiments as data: files that define servers, balancer, load, factors, faults and claims; a runner that
//! executes them unattended; a report that lists which claims the results support.
//!
//! [`experiment`] reads the file and [`plan`] makes points of its factors. [`runner`] takes the measurements
//! that precede the first point ([`Calibration`]). It then runs each point with its own processes in its own
//! folder. On resumption it skips points that are complete with the same experiment and binary. [`table`]
//! gathers the points, with confidence intervals ([`statistics`]). [`claim`] decides and [`report`] presents
//! the results.

use std::time::Duration;

mod app_clients;
mod app_utilization;
mod arrivals;
mod calibration;
mod child_process;
pub mod claim;
pub mod compare;
mod cpu_time;
pub mod experiment;
mod figure;
mod fleet;
mod horizontal_autoscaler;
pub mod library;
mod load_driver;
mod lottery;
pub mod metric;
pub mod model;
mod network;
pub mod plan;
mod point;
mod ports;
mod proxy_under_test;
mod recovery;
pub mod report;
pub mod result_source;
pub mod runner;
mod scaling;
mod session_moves;
mod shared_servers;
mod side_car;
pub mod statistics;
pub mod store;
pub mod table;
mod testbed;

#[cfg(test)]
mod fixture;

pub use calibration::{Calibration, WireTimes};
pub use child_process::ProcessLauncher;
pub use point::{PointOutcome, TimelineTick};
pub use scaling::MemberCounts;

/// The reason why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
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

impl LabError {
    pub(crate) fn failed(reason: impl Into<String>) -> Self {
        Self::Failed(reason.into())
    }
}

/// An observer of a run.
pub trait RunObserver {
    /// Reports what is measured before the first point; then a sentence with the results.
    fn on_calibration(&mut self, activity: &str);

    /// Reports the begin of a point: the numbers of complete points and of all, and the estimated time left.
    fn on_point_start(&mut self, done: usize, total: usize, remaining: Duration, name: &str);

    /// Reports the end of a point, with its main numbers.
    fn on_point_end(&mut self, name: &str, results: &str);

    /// Returns `true` if the run is to end.
    fn is_interrupted(&self) -> bool;
}
