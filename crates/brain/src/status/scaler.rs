//! How many members a group is to have, as it is told.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::scale::Reason;
use crate::scale::crew::Stage;

/// What the scaler of a group wants, and why.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScalerStatus {
    /// Who starts and stops members: `process`, `systemd`, `exec`, `webhook`, `docker`, `kubernetes`, or `advice` for nobody.
    pub provider: String,
    /// What is aimed at: `utilization 0.7`, `response_time 0.05` (seconds), `head_room 0.3`.
    pub target: String,
    /// Members that the target asks for, between `min` and `max`.
    pub desired: u32,
    /// Members that are there and can be used, or are coming.
    pub members: u32,
    /// Those of them that are coming.
    pub coming: u32,
    /// Fewest.
    pub min: u32,
    /// Most.
    pub max: u32,
    /// Is only said what would be done?
    pub dry_run: bool,
    /// Has an operator paused it?
    pub paused: bool,
    /// Another balancer that decides, by what it is called; none where this one does.
    #[serde(default)]
    pub decides: Option<String>,
    /// Why, in one word.
    #[serde(default)]
    pub reason: Reason,
    /// What was decided last, and why, for a person.
    pub why: String,
    /// What that does, or would do if it were done: one line each.
    pub actions: Vec<String>,
    /// The numbers that it was decided on, by name.
    pub inputs: BTreeMap<String, f64>,
    /// Seconds since then; none before the first.
    pub age_seconds: Option<f64>,
    /// How long a member takes to start, as far as that is known.
    pub start_seconds: f64,
    /// Failures of starting and stopping, in a row.
    pub failures: u32,
    /// Why the last one was, if there are any.
    pub failure: Option<String>,
    /// Seconds until the next one is started after a failure.
    pub pause_seconds: f64,
    /// Members that it started, by number.
    pub started: Vec<ScaledMember>,
}

/// A member that was started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScaledMember {
    /// Its number.
    pub index: u32,
    /// By which its provider knows it; empty before it was started.
    pub id: String,
    /// Its name in the group: `host:port`.
    pub member: Option<String>,
    /// What it is doing.
    pub stage: Stage,
    /// Seconds since it does.
    pub since_seconds: f64,
}
