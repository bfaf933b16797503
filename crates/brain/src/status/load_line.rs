//! The reported load line of a group.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

/// The capacity of a group, its free part, and the accuracy of such predictions. Predictions hold for the
/// present mix of requests only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadLine {
    /// The recent requests a second that end.
    pub requests_per_second: f64,
    /// The predicted requests a second above which they pile up; `None` if the data show nothing or only a
    /// range.
    pub capacity: Option<f64>,
    /// The lower end of the capacity: the greatest observed rate, if nothing else is known.
    pub capacity_low: Option<f64>,
    /// The upper end of the capacity, as far as the data bound it.
    pub capacity_high: Option<f64>,
    /// The capacity of the balancer's own processors for the group; `None` while it has too little load to
    /// measure.
    pub balancer_capacity: Option<f64>,
    /// `members` or `balancer`; empty without a capacity.
    pub limited_by: String,
    /// The free part of the capacity; below 0 above it. `None` without a capacity.
    pub headroom: Option<f64>,
    /// The verdict:
    ///
    /// | verdict | meaning |
    /// |---|---|
    /// | `good` | the error is at most 10 % |
    /// | `fair` | the error is at most 25 % |
    /// | `poor` | the error is greater |
    /// | `unproven` | no prediction was checked at half of the capacity or more yet |
    /// | `range` | no number, but both ends of an interval |
    /// | `unknown` | neither |
    pub verdict: String,
    /// The sources of the number, or the reason why there is none or only a range, for display.
    pub why: String,
    /// The mean relative error of the throughput of past predictions, new ones with weight 1/8; `None` before
    /// the first check.
    pub error: Option<f64>,
    /// The past predictions that met a load of at least 1.2 times that at which they were made.
    pub predictions_checked: u64,
    /// The greatest part of the capacity at which one was checked.
    pub checked_up_to: f64,
    /// The seconds since all but `requests_per_second` and `headroom` was computed: usually at most five.
    #[serde(default)]
    pub age_seconds: f64,
    /// The response times at 0.5, 0.8 and 0.95 of the capacity.
    pub predicted: Vec<PredictedLatency>,
    /// The effects of `minus_one`, `plus_one`, `double`.
    pub what_if: Vec<WhatIf>,
}

impl LoadLine {
    /// Returns the lower and the upper end if it is a range and no number.
    pub fn range(&self) -> Option<(f64, f64)> {
        self.capacity_low.zip(self.capacity_high).filter(|_| self.capacity.is_none())
    }
}

/// The response times at a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PredictedLatency {
    /// The load as a part of the capacity.
    pub load: f64,
    /// The load in requests a second.
    pub requests_per_second: f64,
    /// The median, seconds; `None` if a member is saturated.
    pub p50: Option<f64>,
    /// The 99th percentile, seconds.
    pub p99: Option<f64>,
}

/// The effect of a change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WhatIf {
    /// `minus_one` (in a group of one member nothing is left), `plus_one` or `double`.
    pub change: String,
    /// The change, for display.
    pub about: String,
    /// The requests a second above which they would pile up; `None` if that is a range.
    pub capacity: Option<f64>,
    /// The part of it that would be free; below 0 above it. `None` without a capacity.
    pub headroom: Option<f64>,
    /// `true` above the load line, `false` below it; `None` if unknown.
    pub over: Option<bool>,
    /// The resulting 99th percentile, seconds; `None` above the load line.
    pub p99: Option<f64>,
}

/// The capacity of one member.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberLoadLine {
    /// The recent requests a second that end there.
    pub requests_per_second: f64,
    /// The predicted maximum; `None` if the data do not show it.
    pub capacity: Option<f64>,
    /// The lower end of the capacity.
    pub capacity_low: Option<f64>,
    /// The upper end of the capacity; `None` if nothing bounds it.
    pub capacity_high: Option<f64>,
    /// The used part of its capacity.
    pub used: Option<f64>,
    /// The source of the figure, for display.
    pub source: Option<String>,
}
