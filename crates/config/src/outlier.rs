//! `[group.outlier]`: the ejection of members whose traffic fails.

use plimsoll_brain::OutlierSpec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::TimeSpan;

/// A switch, or the settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum OutlierConfig {
    /// `false` for off, `true` for the defaults.
    Switch(bool),
    /// Enabled, with these settings.
    Table(OutlierSettings),
}

impl OutlierConfig {
    /// Returns the settings; `None` for off.
    pub fn table(&self) -> Option<OutlierSettings> {
        match self {
            Self::Switch(false) => None,
            Self::Switch(true) => Some(OutlierSettings::default()),
            Self::Table(table) => Some(table.clone()),
        }
    }

    /// Returns the settings for the brain.
    pub(super) fn spec(&self) -> Option<OutlierSpec> {
        self.table().map(|outlier| OutlierSpec {
            false_alarm: outlier.false_alarm,
            consecutive: outlier.consecutive,
            interval: outlier.interval.0,
            deviations: outlier.deviations,
            min_requests: outlier.min_requests,
            ejection: outlier.ejection.0,
            max_ejection: outlier.max_ejection.0,
            max_ejected: outlier.max_ejected,
        })
    }
}

impl Default for OutlierConfig {
    fn default() -> Self {
        Self::Table(OutlierSettings::default())
    }
}

/// Outlier detection: ejects members whose traffic fails. Each ejection ends by itself and is an event with
/// its reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OutlierSettings {
    /// Threshold of the probability that a member's failures are chance. Below it the member is ejected, for
    /// 2 s at first. That takes two or three consecutive failures if the others hardly fail. 0 for off.
    #[schemars(range(min = 0.0, max = 0.1))]
    pub false_alarm: f64,

    /// Number of consecutive failures that eject a member. 0 for off.
    #[schemars(range(min = 0, max = 10_000))]
    pub consecutive: u32,

    /// Interval between two comparisons of success rates.
    #[schemars(extend("x-minimum" = "100ms"))]
    pub interval: TimeSpan,

    /// Number of standard deviations below the mean of the others at which a member's success rate ejects it.
    /// Chance alone must explain the difference less than once in a million. 0 for off.
    #[schemars(range(min = 0.0, max = 10.0))]
    pub deviations: f64,

    /// Minimum number of requests within an interval for a member's success rate to count.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub min_requests: u64,

    /// Duration of the first ejection; the k-th in a row lasts k times as long.
    #[schemars(extend("x-minimum" = "1ms"))]
    pub ejection: TimeSpan,

    /// Maximum duration of an ejection.
    #[schemars(extend("x-minimum" = "1ms"))]
    pub max_ejection: TimeSpan,

    /// Maximum share of the members that are ejected at once. One always may be, unless it is the only one.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub max_ejected: f64,
}

impl Default for OutlierSettings {
    fn default() -> Self {
        Self {
            false_alarm: 1e-6,
            consecutive: 5,
            interval: TimeSpan::millis(10_000),
            deviations: 1.9,
            min_requests: 100,
            ejection: TimeSpan::millis(10_000),
            max_ejection: TimeSpan::millis(300_000),
            max_ejected: 0.5,
        }
    }
}
