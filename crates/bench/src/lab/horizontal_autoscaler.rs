//! A scaler that uses only the current processor use: the algorithm of Kubernetes' horizontal pod autoscaler
//! with one metric of the kind `Resource`, as in its documentation and `pkg/controller/podautoscaler`.
//!
//! Every period it computes
//!
//! ```text
//! wanted members = ceil(members * use / wanted use)
//! ```
//!
//! and ignores changes within the tolerance. Members that do not serve yet count as idle when more would be
//! wanted, so that they are not started twice. It scales out at once, at most to twice the number or by four.
//! It scales in only as far as no decision of the last window wanted more.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use super::experiment::HpaSettings;

/// The maximum number of remembered decisions.
const MAX_DECISIONS: usize = 4096;

/// The scaler. Times are seconds since the load began.
#[derive(Debug)]
pub(super) struct HorizontalAutoscaler {
    settings: HpaSettings,
    /// The target for the use of a processor.
    target_utilization: f64,
    min: u32,
    max: u32,
    /// The current number of members.
    count: u32,
    next_decision: f64,
    /// The time at which a member was last asked, and its busy seconds until then.
    last_readings: BTreeMap<SocketAddr, (f64, f64)>,
    /// The wanted number of each decision in the window.
    recent_decisions: VecDeque<(f64, u32)>,
}

impl HorizontalAutoscaler {
    /// Creates the scaler of a group of `min` members.
    pub(super) fn new(settings: HpaSettings, target_utilization: f64, min: u32, max: u32) -> Self {
        let (last_readings, recent_decisions) = (BTreeMap::new(), VecDeque::new());
        Self {
            settings,
            target_utilization,
            min,
            max,
            count: min,
            next_decision: 0.0,
            last_readings,
            recent_decisions,
        }
    }

    /// Returns `true` if a decision is due.
    pub(super) fn is_due(&self, now: f64) -> bool {
        now >= self.next_decision
    }

    /// Decides by the busy times of the members that serve; returns the number of members if it changes.
    pub(super) fn decide(&mut self, now: f64, busy: Vec<(SocketAddr, f64)>) -> Option<u32> {
        // After a late decision the next one is not due at once.
        let period = self.settings.period.0.as_secs_f64();
        self.next_decision = (self.next_decision + period).max(now);
        let (mut cores_in_use, mut ready_members) = (0.0, 0);
        for (address, seconds) in &busy {
            if let Some((read_at, previous_seconds)) = self.last_readings.get(address)
                && now > *read_at
                // A lower value belongs to another member with the same port.
                && seconds >= previous_seconds
            {
                cores_in_use += (seconds - previous_seconds) / (now - read_at);
                ready_members += 1;
            }
        }
        self.last_readings = busy.into_iter().map(|(address, seconds)| (address, (now, seconds))).collect();
        let desired = self.desired_members(cores_in_use, ready_members);
        while self
            .recent_decisions
            .front()
            .is_some_and(|(decided_at, _)| now - decided_at > self.settings.window.0.as_secs_f64())
            || self.recent_decisions.len() >= MAX_DECISIONS
        {
            self.recent_decisions.pop_front();
        }
        self.recent_decisions.push_back((now, desired));
        // With an incomplete window, the decisions so far count.
        let recent_maximum =
            self.recent_decisions.iter().map(|(_, desired)| *desired).max().unwrap_or(desired);
        let stabilized = desired.max(recent_maximum.min(self.count));
        let max_count = (2 * self.count).max(self.count + 4);
        let count = stabilized.min(max_count).clamp(self.min, self.max);
        (std::mem::replace(&mut self.count, count) != count).then_some(count)
    }

    /// Returns the number of members for the use of those that serve.
    fn desired_members(&self, cores_in_use: f64, ready_members: u32) -> u32 {
        if ready_members == 0 {
            return self.count;
        }
        let is_within_tolerance = |ratio: f64| (ratio - 1.0).abs() <= self.settings.tolerance;
        let ratio = cores_in_use / (f64::from(ready_members) * self.target_utilization);
        let starting_members = self.count.saturating_sub(ready_members);
        if ratio <= 1.0 || starting_members == 0 {
            return if is_within_tolerance(ratio) {
                self.count
            } else {
                ceil_members(ratio * f64::from(ready_members))
            };
        }
        // Starting members are idle; if fewer would be wanted with them, the number stays.
        let all_members = f64::from(ready_members + starting_members);
        let ratio = cores_in_use / (all_members * self.target_utilization);
        if ratio < 1.0 || is_within_tolerance(ratio) { self.count } else { ceil_members(ratio * all_members) }
    }
}

fn ceil_members(count: f64) -> u32 {
    (count - 1e-9).ceil().max(0.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn autoscaler(min: u32) -> HorizontalAutoscaler {
        let settings: HpaSettings = toml::from_str("period = \"15s\"\nwindow = \"60s\"").unwrap();
        HorizontalAutoscaler::new(settings, 0.5, min, 20)
    }

    /// Returns `count` members that have each been busy for `seconds`.
    fn busy_readings(count: u16, seconds: f64) -> Vec<(SocketAddr, f64)> {
        (1..=count).map(|port| (SocketAddr::from(([127, 0, 0, 1], port)), seconds)).collect()
    }

    #[test]
    fn it_follows_the_use_of_processors_up_at_once_and_down_after_its_window() {
        let mut autoscaler = autoscaler(2);
        assert!(autoscaler.is_due(0.0));
        assert_eq!(autoscaler.decide(0.0, busy_readings(2, 0.0)), None, "nothing is known yet");
        assert!(!autoscaler.is_due(14.9) && autoscaler.is_due(15.0));
        // 90 % in use where 50 are wanted: 2 * 0.9 / 0.5 = 3.6.
        assert_eq!(autoscaler.decide(15.0, busy_readings(2, 13.5)), Some(4));
        // The two that start count as idle: still 3.6.
        assert_eq!(autoscaler.decide(30.0, busy_readings(2, 27.0)), None);
        // 10 % in use: no fewer until no decision of a minute wants more.
        assert_eq!(autoscaler.decide(45.0, busy_readings(4, 28.5)), None);
        for (now, busy_seconds) in [(60.0, 28.5), (75.0, 28.5), (90.0, 28.5)] {
            assert_eq!(autoscaler.decide(now, busy_readings(4, busy_seconds)), None, "{now}");
        }
        assert_eq!(autoscaler.decide(105.0, busy_readings(4, 28.5)), Some(2));
    }

    #[test]
    fn a_tenth_more_is_nothing_and_no_more_than_twice_as_many_come_at_once() {
        let mut large = autoscaler(10);
        large.decide(0.0, busy_readings(10, 0.0));
        assert_eq!(large.decide(10.0, busy_readings(10, 5.4)), None);
        assert_eq!(large.decide(20.0, busy_readings(10, 5.4 + 6.0)), Some(12));
        let mut small = autoscaler(1);
        small.target_utilization = 0.1;
        small.decide(0.0, busy_readings(1, 0.0));
        assert_eq!(small.decide(10.0, busy_readings(1, 10.0)), Some(5), "not ten");
    }
}
