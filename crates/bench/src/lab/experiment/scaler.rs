//! `[scaler]`: members that are started and stopped by load, in place of a fixed number.
//!
//! The lab starts none of `[members]`: plimsoll starts and stops them as its own processes
//! (`[group.scaler.process]`). Plimsoll decides by itself or, for comparison, the lab does so like
//! Kubernetes' horizontal autoscaler.

use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

use super::DurationValue;

/// The settings of the scaler, and the goal by which it is rated. Times are those of a full run; in a quick
/// run all of them are shortened in proportion to its duration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScalerSettings {
    /// The decider, where `scaler` is no factor.
    #[serde(default)]
    pub by: ScalingPolicy,
    /// The minimum number of members.
    pub min: u32,
    /// The maximum number of members.
    pub max: u32,
    /// The time that a member sleeps before it listens.
    pub start: DurationValue,
    /// The first goal: this part of the capacity of the serving members is free, by the rate of the load's
    /// curve without its random variation.
    pub headroom: f64,
    /// The second goal: the mean response time of a `tick` is at most this.
    pub response: DurationValue,
    /// The time between two decisions of plimsoll.
    #[serde(default = "second")]
    pub interval: DurationValue,
    /// The time for which a member must be superfluous before it is stopped.
    pub stabilize: DurationValue,
    /// The time after a change before a member is stopped.
    pub cool_down: DurationValue,
    /// The maximum number of members that are started, and stopped, at once.
    pub step: ScalingStep,
    /// The settings of the reactive decider.
    #[serde(default)]
    pub reactive: HpaSettings,
}

/// The maximum number of members at once.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScalingStep {
    /// The number of members to start.
    pub scale_out: u32,
    /// The number of members to stop.
    pub scale_in: u32,
}

/// Kubernetes' horizontal autoscaler, with its documented defaults.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HpaSettings {
    /// The time between two decisions, over which the use of processors is averaged.
    pub period: DurationValue,
    /// The time for which fewer members must suffice before some are stopped.
    pub window: DurationValue,
    /// The tolerance: no action is taken while the use deviates from the target by at most this part of it.
    pub tolerance: f64,
}

impl Default for HpaSettings {
    fn default() -> Self {
        let (period, window) = (Duration::from_secs(15), Duration::from_mins(5));
        Self { period: DurationValue(period), window: DurationValue(window), tolerance: 0.1 }
    }
}

/// The decider of the number of members.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum ScalingPolicy {
    /// Plimsoll, which keeps the goal's headroom free by the load line.
    #[default]
    HeadRoom,
    /// Plimsoll, which keeps as much free by the members' reports on their processors.
    Utilization,
    /// The lab, like Kubernetes' horizontal autoscaler, with this target for the use of processors.
    Reactive(f64),
}

impl FromStr for ScalingPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse_share = |text: &str| text.parse().ok().filter(|share: &f64| (0.05..=0.95).contains(share));
        match text.split_once(':') {
            None if text == "headroom" => Ok(Self::HeadRoom),
            None if text == "utilization" => Ok(Self::Utilization),
            Some(("reactive", utilization)) if parse_share(utilization).is_some() => {
                Ok(Self::Reactive(parse_share(utilization).unwrap_or_default()))
            }
            _ => Err(format!(
                "`{text}`: expected `headroom`, `utilization` or `reactive:0.7`, with a part from 0.05 to \
                 0.95"
            )),
        }
    }
}

impl<'de> Deserialize<'de> for ScalingPolicy {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The scaler of one point, with the times of the run.
#[derive(Clone, Debug)]
pub struct PointScaler {
    /// The decider.
    pub policy: ScalingPolicy,
    /// The settings of the file, with the times of this run.
    pub settings: ScalerSettings,
    /// The requests per second of one member.
    pub member_rate: f64,
}

impl ScalerSettings {
    /// Creates the scaler of a run in which all times are `part` of a full run's. `level` is the decider,
    /// where it is varied.
    pub(crate) fn for_run(&self, level: Option<&str>, scale: f64, member_rate: f64) -> PointScaler {
        let scaled = |DurationValue(time): DurationValue| DurationValue(time.mul_f64(scale));
        let settings = Self {
            start: scaled(self.start),
            interval: scaled(self.interval),
            stabilize: scaled(self.stabilize),
            cool_down: scaled(self.cool_down),
            reactive: HpaSettings {
                period: scaled(self.reactive.period),
                window: scaled(self.reactive.window),
                ..self.reactive
            },
            ..self.clone()
        };
        let policy = level.and_then(|level| level.parse().ok()).unwrap_or(self.by);
        PointScaler { policy, settings, member_rate }
    }

    /// Returns an error in the settings.
    pub(super) fn error(&self) -> Option<&'static str> {
        let is_share = |share: f64| share > 0.0 && share < 1.0;
        let max_time = Duration::from_hours(1);
        let times = [self.start, self.interval, self.stabilize, self.cool_down, self.response];
        let reactive_times = [self.reactive.period, self.reactive.window];
        if self.min == 0 || self.min > self.max || self.max > MAX_MEMBERS {
            return Some("[scaler] `min` and `max`: from 1 to 64, and `min` no more than `max`");
        }
        if !is_share(self.headroom) || !is_share(self.reactive.tolerance) {
            return Some("[scaler] `headroom` and `tolerance` are parts, above 0 and below 1");
        }
        if times.iter().chain(&reactive_times).any(|time| time.0 > max_time) {
            return Some("[scaler] times are an hour each at most");
        }
        if [self.start, self.interval, self.response, reactive_times[0]].iter().any(|time| time.0.is_zero()) {
            return Some("[scaler] `start`, `interval`, `response` and `period` are above 0");
        }
        (self.step.scale_out == 0 || self.step.scale_in == 0).then_some("[scaler] `step`: from 1 on")
    }
}

impl PointScaler {
    /// Returns the number of serving members that meets the goal at this rate.
    pub(crate) fn needed_members(&self, rate: f64) -> u32 {
        let rate_per_member = self.member_rate * (1.0 - self.settings.headroom);
        // The cast saturates; a value slightly above a whole number counts as that number.
        (rate / rate_per_member - 1e-9).ceil().max(1.0) as u32
    }
}

/// The maximum number of members: each is a process.
const MAX_MEMBERS: u32 = 64;

fn second() -> DurationValue {
    DurationValue(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_say_who_decides() {
        assert_eq!("headroom".parse(), Ok(ScalingPolicy::HeadRoom));
        assert_eq!("reactive:0.7".parse(), Ok(ScalingPolicy::Reactive(0.7)));
        for text in ["reactive", "reactive:2", "headroom:0.2", "keda"] {
            assert!(text.parse::<ScalingPolicy>().unwrap_err().contains("expected `headroom`"), "{text}");
        }
    }

    #[test]
    fn times_are_those_of_the_run_and_the_goal_says_how_many_it_takes() {
        let text = "min = 2\nmax = 9\nstart = \"3s\"\nheadroom = 0.25\nresponse = \"160ms\"\nstabilize = \
                    \"5s\"\ncool_down = \"2s\"\n\
                    step = { scale_out = 4, scale_in = 1 }";
        let scaler: ScalerSettings = toml::from_str(text).unwrap();
        assert_eq!(scaler.error(), None);
        let point_scaler = scaler.for_run(Some("reactive:0.5"), 0.4, 25.0);
        assert_eq!(point_scaler.policy, ScalingPolicy::Reactive(0.5));
        assert_eq!(point_scaler.settings.start.0, Duration::from_millis(1200));
        assert_eq!(point_scaler.settings.reactive.period.0, Duration::from_secs(6));
        assert_eq!(
            point_scaler.settings.response.0,
            Duration::from_millis(160),
            "members are no faster in a quick run"
        );
        assert_eq!([0.0, 18.75, 18.76, 200.0].map(|rate| point_scaler.needed_members(rate)), [1, 1, 2, 11]);
        assert!(ScalerSettings { max: 1, ..scaler.clone() }.error().is_some());
        assert!(ScalerSettings { start: DurationValue::default(), ..scaler }.error().is_some());
    }
}
