//! What was in the last ten minutes, second by second, for charts and for rates.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

/// The last ten minutes of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recent {
    /// Oldest first; one a second, 600 at most.
    pub seconds: Vec<RecentSecond>,
    /// In the order of the configuration.
    pub members: Vec<MemberRecent>,
}

/// One second of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecentSecond {
    /// Seconds since it ended.
    pub age_seconds: f64,
    /// Requests that came, a second: those that were answered, and by how many more are under way than before.
    pub offered: f64,
    /// Requests that members ended without a failure, a second.
    pub completed: f64,
    /// Requests that failed at a member, or that the balancer answered itself, a second.
    pub failed: f64,
    /// Those of them that were refused because no member had room, a second.
    #[serde(default)]
    pub refused: f64,
    /// Median of the five seconds up to then, seconds; none where nothing ended.
    pub p50: Option<f64>,
    /// 99th percentile of them, seconds.
    pub p99: Option<f64>,
}

/// What a member did of late.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberRecent {
    /// As configured: `host:port`.
    pub name: String,
    /// Requests that ended there, a second, over the last ten seconds.
    pub requests_per_second: f64,
    /// Those of them that failed.
    pub failures_per_second: f64,
    /// Sessions that were sent elsewhere, in the last minute.
    pub moved: u64,
    /// Requests that it worked on at once over the last ten seconds, in the mean.
    pub in_flight: f64,
    /// Median of about the last ten seconds, seconds; none where nothing ended, and of members beyond the first 256 of a group.
    pub p50: Option<f64>,
    /// 99th percentile, likewise.
    pub p99: Option<f64>,
    /// Load above which part of its sessions is to go, in the unit of the group's metric: as configured, or as the rule sets it
    /// by itself; none where nothing does, or nothing is known.
    pub alert_above: Option<f64>,
    /// Load from which on it gets nothing new, in the same unit; none where the strategy has no such mark.
    pub reject_above: Option<f64>,
    /// Requests a second, load that it reported and requests under way, one for each of the group's seconds; empty for members beyond
    /// the first 32 of a group.
    pub seconds: Vec<MemberSecond>,
}

/// One second of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberSecond {
    /// Requests that ended there, a second; none where it was not there yet.
    pub requests_per_second: Option<f32>,
    /// Load that strategies went by; none without one that counts.
    pub load: Option<f32>,
    /// Requests that it worked on at the end of that second.
    pub in_flight: Option<f32>,
}
