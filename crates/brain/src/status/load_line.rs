//! What a group can carry, as it is told.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

/// How much a group can carry, how far below that it is, and how good such predictions were. Predictions are of the traffic as it
/// is: other requests, other numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadLine {
    /// Requests that end a second, of late.
    pub requests_per_second: f64,
    /// Requests a second above which they pile up, as predicted; none where the data tell nothing or only a
    /// range.
    pub capacity: Option<f64>,
    /// Lower end of the capacity: what was seen to be done, where nothing else is known.
    pub capacity_low: Option<f64>,
    /// Upper end of the capacity, as far as the data bound it.
    pub capacity_high: Option<f64>,
    /// What the balancer's own processors can do for the group; none while it has too little to do to tell.
    pub balancer_capacity: Option<f64>,
    /// `members` or `balancer`; empty without a capacity.
    pub limited_by: String,
    /// Part of the capacity that is free; below 0 above it. None without a capacity.
    pub headroom: Option<f64>,
    /// `good` (its error is at most 10 %), `fair` (25 %), `poor`, `unproven` (no prediction was checked at half of the capacity or
    /// more yet), `range` (no number, but both ends of an interval), `unknown` (neither).
    pub verdict: String,
    /// The sources of the number, or the reason why there is none or only a range, for a person.
    pub why: String,
    /// Of past predictions: mean relative error of the throughput, new ones with weight 1/8; none before the first check.
    pub error: Option<f64>,
    /// Past predictions that met a load of 1.2 times that at which they were made, or more.
    pub predictions_checked: u64,
    /// Greatest part of the capacity at which one was checked.
    pub checked_up_to: f64,
    /// Seconds since all but `requests_per_second` and `headroom` was worked out: some five at most.
    #[serde(default)]
    pub age_seconds: f64,
    /// At 0.5, 0.8 and 0.95 of the capacity.
    pub predicted: Vec<Predicted>,
    /// `minus_one`, `plus_one`, `double`.
    pub what_if: Vec<WhatIf>,
}

impl LoadLine {
    /// Returns lower and upper end where it is a range and no number.
    pub fn range(&self) -> Option<(f64, f64)> {
        self.capacity_low.zip(self.capacity_high).filter(|_| self.capacity.is_none())
    }
}

/// Response times at a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    /// As a part of the capacity.
    pub load: f64,
    /// The same in requests a second.
    pub requests_per_second: f64,
    /// Median, seconds; none where a member is saturated.
    pub p50: Option<f64>,
    /// 99th percentile, seconds.
    pub p99: Option<f64>,
}

/// The effect of a change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WhatIf {
    /// `minus_one` (of a group of one member: nothing is left), `plus_one` or `double`.
    pub change: String,
    /// The same for a person.
    pub about: String,
    /// Requests a second above which they would pile up; none where that is a range.
    pub capacity: Option<f64>,
    /// Part of it that would be free; below 0 above it. None without a capacity.
    pub headroom: Option<f64>,
    /// `true` over the load line, `false` below it; none where that is not known.
    pub over: Option<bool>,
    /// 99th percentile then, seconds; none over the load line.
    pub p99: Option<f64>,
}

/// What one member can do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberLoadLine {
    /// Requests that end there a second, of late.
    pub requests_per_second: f64,
    /// At most, as predicted; none where the data cannot tell.
    pub capacity: Option<f64>,
    /// What it is at least.
    pub capacity_low: Option<f64>,
    /// What it is at most; none where nothing bounds it.
    pub capacity_high: Option<f64>,
    /// Part of its capacity that is in use.
    pub used: Option<f64>,
    /// Where it is known from, for a person.
    pub source: Option<String>,
}
