//! The reported state of an autoscaler.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::autoscale::ScaleReason;
use crate::autoscale::instances::InstanceState;

/// The desired state of a group's scaler, and the reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScalerStatus {
    /// The provider: `process`, `systemd`, `exec`, `webhook`, `docker`, `kubernetes`, or `advice` for none.
    pub provider: String,
    /// The target: `utilization 0.7`, `response_time 0.05` (seconds), `headroom 0.3`.
    pub target: String,
    /// The number of members that the target needs, between `min` and `max`.
    pub desired: u32,
    /// The number of members that are usable or coming.
    pub members: u32,
    /// The number of those that are coming.
    pub coming: u32,
    /// The minimum.
    pub min: u32,
    /// The maximum.
    pub max: u32,
    /// Whether it only reports the actions.
    pub dry_run: bool,
    /// Whether an operator has paused it.
    pub paused: bool,
    /// The name of another balancer that decides; `None` if this one does.
    #[serde(default)]
    pub decides: Option<String>,
    /// The reason as a keyword.
    #[serde(default)]
    pub reason: ScaleReason,
    /// The last decision and its reason, for display.
    pub why: String,
    /// The actions of that decision, performed or not: a line each.
    pub actions: Vec<String>,
    /// The numbers behind the decision, by name.
    pub inputs: BTreeMap<String, f64>,
    /// The seconds since the decision; `None` before the first.
    pub age_seconds: Option<f64>,
    /// The known time that a member takes to start, seconds.
    pub start_seconds: f64,
    /// The failures of starts and stops, in a row.
    pub failures: u32,
    /// The reason of the last failure, if there are any.
    pub failure: Option<String>,
    /// The seconds until the next start after a failure.
    pub pause_seconds: f64,
    /// The members that it started, by number.
    pub started: Vec<ScaledMember>,
}

/// A started member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScaledMember {
    /// Its number.
    pub index: u32,
    /// The provider's identifier; empty before the start.
    pub id: String,
    /// Its name in the group: `host:port`.
    pub member: Option<String>,
    /// The state.
    pub stage: InstanceState,
    /// The seconds since the last change of the state.
    pub since_seconds: f64,
}
