//! The last ten minutes, second by second, for charts and for rates.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

/// The last ten minutes of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupRecent {
    /// The seconds, oldest first; at most 600.
    pub seconds: Vec<RecentSecond>,
    /// The members, in the order of the configuration.
    pub members: Vec<MemberRecent>,
}

/// One second of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecentSecond {
    /// The seconds since it ended.
    pub age_seconds: f64,
    /// The arrived requests a second: those that were answered, and the increase of those in flight.
    pub offered: f64,
    /// The requests a second that members ended without a failure.
    pub completed: f64,
    /// The requests a second that failed at a member, or that the balancer answered itself.
    pub failed: f64,
    /// Those of them a second that were rejected because no member had room.
    #[serde(default)]
    pub refused: f64,
    /// The median of the five seconds up to then, seconds; `None` if nothing ended.
    pub p50: Option<f64>,
    /// The 99th percentile of them, seconds.
    pub p99: Option<f64>,
}

/// The recent past of a member.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberRecent {
    /// The configured name: `host:port`.
    pub name: String,
    /// The requests a second that ended there, over the last ten seconds.
    pub requests_per_second: f64,
    /// The failed ones among them.
    pub failures_per_second: f64,
    /// The sessions moved elsewhere in the last minute.
    pub moved: u64,
    /// The mean number of requests in flight over the last ten seconds.
    pub in_flight: f64,
    /// The median of about the last ten seconds, seconds; `None` if nothing ended, and for members beyond the
    /// first 256 of a group.
    pub p50: Option<f64>,
    /// The 99th percentile, under the same conditions.
    pub p99: Option<f64>,
    /// The load above which part of its sessions is to move, in the unit of the group's metric: the
    /// configured one, or that of the rule; `None` without one, or if too little is known.
    pub alert_above: Option<f64>,
    /// The load from which it gets nothing new, in the same unit; `None` if the strategy has no such
    /// threshold.
    pub reject_above: Option<f64>,
    /// The requests a second, the reported load and the requests in flight for each of the group's seconds;
    /// empty for members beyond the first 32 of a group.
    pub seconds: Vec<MemberSecond>,
}

/// One second of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberSecond {
    /// The requests a second that ended there; `None` if it was not in the group yet.
    pub requests_per_second: Option<f32>,
    /// The effective load; `None` without a report that counts.
    pub load: Option<f32>,
    /// The requests in flight at the end of that second.
    pub in_flight: Option<f32>,
}
