//! `[scaler]`: members that come and go by load, in place of a number that is fixed.
//!
//! Nobody of `[members]` is started by the lab: plimsoll has them started and stopped as processes of its own (`[group.scaler.process]`),
//! by what it finds out itself or, for comparison, by what is reckoned as Kubernetes' horizontal autoscaler does.

use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

use super::Span;

/// How members come and go, and by what that is judged. Times are those of a full run; in a quick one all of them are shortened as
/// its duration is.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scaler {
    /// How it is decided, where `scaler` is no factor.
    #[serde(default)]
    pub by: Decider,
    /// Fewest and most members.
    pub min: u32,
    /// See there.
    pub max: u32,
    /// A member sleeps for so long before it listens.
    pub start: Span,
    /// The goal: this part of what the members that serve can do is free, by the rate of the load's curve, not by what chance makes
    /// of it.
    pub head_room: f64,
    /// And the requests that were answered within a `tick` took no longer, in the mean.
    pub response: Span,
    /// Between two decisions of plimsoll.
    #[serde(default = "second")]
    pub interval: Span,
    /// A member goes only if it was too many for so long.
    pub stabilize: Span,
    /// After a change, before a member goes.
    pub cool_down: Span,
    /// Most members that are started, and taken away, at once.
    pub step: Step,
    /// How the reactive one decides.
    #[serde(default)]
    pub reactive: Pods,
}

/// Most members at once.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// That are started.
    pub up: u32,
    /// That are taken away.
    pub down: u32,
}

/// Kubernetes' horizontal autoscaler, by its documented defaults.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pods {
    /// Between two decisions, and of processors' use what is averaged.
    pub period: Span,
    /// Fewer only if it was so for so long.
    pub window: Span,
    /// Nothing is done as long as the use is no further from what is wanted, as a part of that.
    pub tolerance: f64,
}

impl Default for Pods {
    fn default() -> Self {
        let (period, window) = (Duration::from_secs(15), Duration::from_mins(5));
        Self { period: Span(period), window: Span(window), tolerance: 0.1 }
    }
}

/// Who decides how many members there are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Decider {
    /// Plimsoll, so that the goal's head room is free by the load line.
    #[default]
    HeadRoom,
    /// Plimsoll, so that as much is free by what members tell of their processors.
    Utilization,
    /// The lab, as Kubernetes' horizontal autoscaler would, so that this part of the processors is in use.
    Reactive(f64),
}

impl FromStr for Decider {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let part = |text: &str| text.parse().ok().filter(|part: &f64| (0.05..=0.95).contains(part));
        match text.split_once(':') {
            None if text == "head_room" => Ok(Self::HeadRoom),
            None if text == "utilization" => Ok(Self::Utilization),
            Some(("reactive", wanted)) if part(wanted).is_some() => {
                Ok(Self::Reactive(part(wanted).unwrap_or_default()))
            }
            _ => Err(format!(
                "`{text}`: expected `head_room`, `utilization` or `reactive:0.7`, with a part from 0.05 to 0.95"
            )),
        }
    }
}

impl<'de> Deserialize<'de> for Decider {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The scaler of one point: its times are those of the run.
#[derive(Clone, Debug)]
pub struct Crew {
    /// Who decides.
    pub by: Decider,
    /// As in the file, with times as they are in this run.
    pub rules: Scaler,
    /// Requests per second that a member can do.
    pub pace: f64,
}

impl Scaler {
    /// That of a run in which all times are `part` of a full run's. `level`: who decides, where that is varied.
    pub(crate) fn at(&self, level: Option<&str>, part: f64, pace: f64) -> Crew {
        let short = |Span(time): Span| Span(time.mul_f64(part));
        let rules = Self {
            start: short(self.start),
            interval: short(self.interval),
            stabilize: short(self.stabilize),
            cool_down: short(self.cool_down),
            reactive: Pods {
                period: short(self.reactive.period),
                window: short(self.reactive.window),
                ..self.reactive
            },
            ..self.clone()
        };
        let by = level.and_then(|level| level.parse().ok()).unwrap_or(self.by);
        Crew { by, rules, pace }
    }

    /// What is wrong with it.
    pub(super) fn wrong(&self) -> Option<&'static str> {
        let part = |part: f64| part > 0.0 && part < 1.0;
        let hour = Duration::from_hours(1);
        let times = [self.start, self.interval, self.stabilize, self.cool_down, self.response];
        let pods = [self.reactive.period, self.reactive.window];
        if self.min == 0 || self.min > self.max || self.max > MOST {
            return Some("[scaler] `min` and `max`: from 1 to 64, and `min` no more than `max`");
        }
        if !part(self.head_room) || !part(self.reactive.tolerance) {
            return Some("[scaler] `head_room` and `tolerance` are parts, above 0 and below 1");
        }
        if times.iter().chain(&pods).any(|time| time.0 > hour) {
            return Some("[scaler] times are an hour each at most");
        }
        if [self.start, self.interval, self.response, pods[0]].iter().any(|time| time.0.is_zero()) {
            return Some("[scaler] `start`, `interval`, `response` and `period` are above 0");
        }
        (self.step.up == 0 || self.step.down == 0).then_some("[scaler] `step`: from 1 on")
    }
}

impl Crew {
    /// Members that have to serve for the goal to be met at this rate.
    pub(crate) fn needed(&self, rate: f64) -> u32 {
        let each = self.pace * (1.0 - self.rules.head_room);
        // As a float saturates; a hair above a whole number is that number.
        (rate / each - 1e-9).ceil().max(1.0) as u32
    }
}

/// Most members: each is a process.
const MOST: u32 = 64;

fn second() -> Span {
    Span(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_say_who_decides() {
        assert_eq!("head_room".parse(), Ok(Decider::HeadRoom));
        assert_eq!("reactive:0.7".parse(), Ok(Decider::Reactive(0.7)));
        for wrong in ["reactive", "reactive:2", "head_room:0.2", "keda"] {
            assert!(wrong.parse::<Decider>().unwrap_err().contains("expected `head_room`"), "{wrong}");
        }
    }

    #[test]
    fn times_are_those_of_the_run_and_the_goal_says_how_many_it_takes() {
        let text = "min = 2\nmax = 9\nstart = \"3s\"\nhead_room = 0.25\nresponse = \"160ms\"\nstabilize = \"5s\"\ncool_down = \"2s\"\n\
                    step = { up = 4, down = 1 }";
        let scaler: Scaler = toml::from_str(text).unwrap();
        assert_eq!(scaler.wrong(), None);
        let crew = scaler.at(Some("reactive:0.5"), 0.4, 25.0);
        assert_eq!(crew.by, Decider::Reactive(0.5));
        assert_eq!(crew.rules.start.0, Duration::from_millis(1200));
        assert_eq!(crew.rules.reactive.period.0, Duration::from_secs(6));
        assert_eq!(crew.rules.response.0, Duration::from_millis(160), "members are no faster in a quick run");
        assert_eq!([0.0, 18.75, 18.76, 200.0].map(|rate| crew.needed(rate)), [1, 1, 2, 11]);
        assert!(Scaler { max: 1, ..scaler.clone() }.wrong().is_some());
        assert!(Scaler { start: Span::default(), ..scaler }.wrong().is_some());
    }
}
