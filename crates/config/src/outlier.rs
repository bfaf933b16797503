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
    /// On.
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

/// Taking members out whose traffic fails. Each ejection ends by itself and is an event with its reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OutlierSettings {
    /// A member is taken out, for 2 s at first, as soon as the chance that it only had bad luck is below
    /// this, which takes two or three failures in a row where the others hardly fail. 0 for off.
    #[schemars(range(min = 0.0, max = 0.1))]
    pub false_alarm: f64,

    /// Failures in a row that take a member out. 0 for off.
    #[schemars(range(min = 0, max = 10_000))]
    pub consecutive: u32,

    /// How often success rates are compared.
    #[schemars(extend("x-minimum" = "100ms"))]
    pub interval: TimeSpan,

    /// A member is taken out whose success rate lies this many standard deviations below the mean of the
    /// others, if chance alone explains it less than once in a million. 0 for off.
    #[schemars(range(min = 0.0, max = 10.0))]
    pub deviations: f64,

    /// Requests within an interval below which a member's success rate says nothing.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub min_requests: u64,

    /// Length of the first ejection; the k-th in a row lasts k times as long.
    #[schemars(extend("x-minimum" = "1ms"))]
    pub ejection: TimeSpan,

    /// Longest ejection.
    #[schemars(extend("x-minimum" = "1ms"))]
    pub max_ejection: TimeSpan,

    /// Largest share of the members that may be out at once. One always may, unless it is the only one.
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
