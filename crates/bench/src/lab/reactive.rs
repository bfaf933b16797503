//! A scaler that goes by processors alone and looks at nothing but now: the algorithm of Kubernetes' horizontal pod autoscaler with one
//! metric of the kind `Resource`, as its documentation and `pkg/controller/podautoscaler` have it.
//!
//! Every period `wanted members = ceil(members * use / wanted use)`, nothing within the tolerance. Members that do not serve yet count as
//! idle where more would be wanted, so that they are not started twice. More at once, but at most twice as many or four more; fewer only
//! as far as no decision of the last window wanted more.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use super::experiment::Pods;

/// Most decisions that are remembered.
const MOST: usize = 4096;

/// What decides. Times are seconds since the load began.
#[derive(Debug)]
pub(super) struct Reactive {
    rules: Pods,
    /// Part of a processor that is to be in use.
    wanted: f64,
    min: u32,
    max: u32,
    /// How many there are to be.
    count: u32,
    due: f64,
    /// When a member was asked last, and for how many seconds it had been busy.
    before: BTreeMap<SocketAddr, (f64, f64)>,
    /// What each look of the window would have.
    asked: VecDeque<(f64, u32)>,
}

impl Reactive {
    /// Of a group of `min` members.
    pub(super) fn new(rules: Pods, wanted: f64, min: u32, max: u32) -> Self {
        let (before, asked) = (BTreeMap::new(), VecDeque::new());
        Self { rules, wanted, min, max, count: min, due: 0.0, before, asked }
    }

    /// Is it time to decide?
    pub(super) fn is_due(&self, now: f64) -> bool {
        now >= self.due
    }

    /// Decides, by how long each of the members that serve has been busy; how many there are to be, if that is news.
    pub(super) fn decide(&mut self, now: f64, busy: Vec<(SocketAddr, f64)>) -> Option<u32> {
        // Looks that are late do not follow one another at once.
        let period = self.rules.period.0.as_secs_f64();
        self.due = (self.due + period).max(now);
        let (mut used, mut ready) = (0.0, 0);
        for (address, seconds) in &busy {
            if let Some((at, before)) = self.before.get(address)
                && now > *at
                // Another one that has the port.
                && seconds >= before
            {
                used += (seconds - before) / (now - at);
                ready += 1;
            }
        }
        self.before = busy.into_iter().map(|(address, seconds)| (address, (now, seconds))).collect();
        let desired = self.wants(used, ready);
        while self.asked.front().is_some_and(|(at, _)| now - at > self.rules.window.0.as_secs_f64())
            || self.asked.len() >= MOST
        {
            self.asked.pop_front();
        }
        self.asked.push_back((now, desired));
        // Before there was a window nobody knows that fewer are enough.
        let floor = self.asked.iter().map(|(_, desired)| *desired).max().unwrap_or(desired);
        let steadied = desired.max(floor.min(self.count));
        let most = (2 * self.count).max(self.count + 4);
        let count = steadied.min(most).clamp(self.min, self.max);
        (std::mem::replace(&mut self.count, count) != count).then_some(count)
    }

    /// What the use of the members that serve asks for.
    fn wants(&self, used: f64, ready: u32) -> u32 {
        if ready == 0 {
            return self.count;
        }
        let slight = |ratio: f64| (ratio - 1.0).abs() <= self.rules.tolerance;
        let ratio = used / (f64::from(ready) * self.wanted);
        let coming = self.count.saturating_sub(ready);
        if ratio <= 1.0 || coming == 0 {
            return if slight(ratio) { self.count } else { members(ratio * f64::from(ready)) };
        }
        // Those that come are idle; if fewer were wanted then, nothing is done.
        let all = f64::from(ready + coming);
        let ratio = used / (all * self.wanted);
        if ratio < 1.0 || slight(ratio) { self.count } else { members(ratio * all) }
    }
}

fn members(count: f64) -> u32 {
    (count - 1e-9).ceil().max(0.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reactive(min: u32) -> Reactive {
        let rules: Pods = toml::from_str("period = \"15s\"\nwindow = \"60s\"").unwrap();
        Reactive::new(rules, 0.5, min, 20)
    }

    /// So many members that have each been busy for so long.
    fn busy(count: u16, seconds: f64) -> Vec<(SocketAddr, f64)> {
        (1..=count).map(|port| (SocketAddr::from(([127, 0, 0, 1], port)), seconds)).collect()
    }

    #[test]
    fn it_follows_the_use_of_processors_up_at_once_and_down_after_its_window() {
        let mut reactive = reactive(2);
        assert!(reactive.is_due(0.0));
        assert_eq!(reactive.decide(0.0, busy(2, 0.0)), None, "nothing is known yet");
        assert!(!reactive.is_due(14.9) && reactive.is_due(15.0));
        // 90 % in use where 50 are wanted: 2 * 0.9 / 0.5 = 3.6.
        assert_eq!(reactive.decide(15.0, busy(2, 13.5)), Some(4));
        // The two that come count as idle: still 3.6.
        assert_eq!(reactive.decide(30.0, busy(2, 27.0)), None);
        // One in ten: no fewer until nobody wanted more for a minute.
        assert_eq!(reactive.decide(45.0, busy(4, 28.5)), None);
        for (at, told) in [(60.0, 28.5), (75.0, 28.5), (90.0, 28.5)] {
            assert_eq!(reactive.decide(at, busy(4, told)), None, "{at}");
        }
        assert_eq!(reactive.decide(105.0, busy(4, 28.5)), Some(2));
    }

    #[test]
    fn a_tenth_more_is_nothing_and_no_more_than_twice_as_many_come_at_once() {
        let mut one = reactive(10);
        one.decide(0.0, busy(10, 0.0));
        assert_eq!(one.decide(10.0, busy(10, 5.4)), None);
        assert_eq!(one.decide(20.0, busy(10, 5.4 + 6.0)), Some(12));
        let mut other = reactive(1);
        other.wanted = 0.1;
        other.decide(0.0, busy(1, 0.0));
        assert_eq!(other.decide(10.0, busy(1, 10.0)), Some(5), "not ten");
    }
}
