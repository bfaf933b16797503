//! Alerts: balancers that find the server overloaded say so in their answers to reports, and which share of the
//! server's connections is to go elsewhere.
//!
//! ```text
//! {"shed": {"share": 0.3, "epoch": 7}}
//! ```
//!
//! A balancer repeats its decision until the alert is over; the epoch tells a new decision from one that was obeyed.
//! Several balancers see the same overload. Each of them wants the surplus gone, and once is enough: while one is
//! obeyed the decisions of the others count as obeyed with it.

use std::time::Duration;

use serde::Deserialize;
use tokio::sync::watch;

/// A balancer that says nothing for so long has no say any more.
const SILENCE: Duration = Duration::from_secs(10);

/// What a server is to do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Alert {
    /// Share of the connections that is to go, 0 to 1; 0 when there is no alert.
    pub share: f64,
    /// Counts the changes.
    pub number: u64,
}

/// What balancers decided.
#[derive(Debug)]
pub(crate) struct Alerts {
    /// For each target, the epoch that was obeyed last.
    obeyed: Vec<Option<u64>>,
    /// The target whose decision holds, and when it was last repeated.
    holder: Option<(usize, Duration)>,
    said: watch::Sender<Alert>,
}

/// A balancer's decision.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub(crate) struct Decision {
    share: f64,
    epoch: u64,
}

/// Reads the body of an answer. What says nothing of this kind, or nonsense, says nothing.
pub(crate) fn decision(answer: &[u8]) -> Option<Decision> {
    #[derive(Deserialize)]
    struct Answer {
        shed: Option<Decision>,
    }
    let decision = serde_json::from_slice::<Answer>(answer).ok()?.shed?;
    (decision.share > 0.0 && decision.share <= 1.0).then_some(decision)
}

impl Alerts {
    pub(crate) fn new(targets: usize) -> Self {
        Self { obeyed: vec![None; targets], holder: None, said: watch::Sender::new(Alert::default()) }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Alert> {
        self.said.subscribe()
    }

    /// What a target's answer to a report said; the share to shed if that is news.
    pub(crate) fn heard(&mut self, target: usize, decision: Option<Decision>, now: Duration) -> Option<f64> {
        self.forget(now);
        let Some(Decision { share, epoch }) = decision else {
            if self.holder.is_some_and(|(holder, _)| holder == target) {
                self.clear();
            }
            return None;
        };
        let new = self.obeyed.get_mut(target)?.replace(epoch) != Some(epoch);
        let holder = self.holder.get_or_insert((target, now));
        if holder.0 != target {
            return None;
        }
        holder.1 = now;
        if new {
            self.say(share);
        }
        new.then_some(share)
    }

    /// Ends the alert of a balancer that is silent.
    pub(crate) fn forget(&mut self, now: Duration) {
        if self.holder.is_some_and(|(_, heard)| now.saturating_sub(heard) >= SILENCE) {
            self.clear();
        }
    }

    fn clear(&mut self) {
        self.holder = None;
        if self.said.borrow().share > 0.0 {
            self.say(0.0);
        }
    }

    fn say(&self, share: f64) {
        self.said.send_modify(|alert| *alert = Alert { share, number: alert.number + 1 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn of(share: f64, epoch: u64) -> Option<Decision> {
        Some(Decision { share, epoch })
    }

    #[test]
    fn answers_say_what_to_shed_or_nothing() {
        assert_eq!(decision(br#"{"shed": {"share": 0.3, "epoch": 7}, "more": 1}"#), of(0.3, 7));
        for nothing in [
            "",
            "ok",
            "{}",
            r#"{"shed": null}"#,
            r#"{"shed": {"share": 0.3}}"#,
            r#"{"shed": {"share": 0, "epoch": 1}}"#,
            r#"{"shed": {"share": 1.5, "epoch": 1}}"#,
            r#"{"shed": {"share": -1, "epoch": 1}}"#,
            r#"{"shed": {"share": 0.3, "epoch": -1}}"#,
        ] {
            assert_eq!(decision(nothing.as_bytes()), None, "{nothing}");
        }
    }

    #[test]
    fn a_decision_is_obeyed_once_and_taken_back_when_it_is_over() {
        let mut alerts = Alerts::new(1);
        let said = alerts.subscribe();
        let now = || *said.borrow();
        assert_eq!(alerts.heard(0, None, SECOND), None);
        assert_eq!(now(), Alert::default());
        assert_eq!(alerts.heard(0, of(0.3, 7), SECOND), Some(0.3));
        assert_eq!(alerts.heard(0, of(0.3, 7), 2 * SECOND), None);
        assert_eq!(now(), Alert { share: 0.3, number: 1 });
        assert_eq!(alerts.heard(0, of(0.2, 8), 3 * SECOND), Some(0.2));
        assert_eq!(alerts.heard(0, None, 4 * SECOND), None);
        assert_eq!(now(), Alert { share: 0.0, number: 3 });
        assert_eq!(alerts.heard(0, of(0.2, 8), 5 * SECOND), None, "obeyed already");
    }

    #[test]
    fn the_surplus_is_shed_once_however_many_see_it() {
        let mut alerts = Alerts::new(2);
        assert_eq!(alerts.heard(0, of(0.3, 1), SECOND), Some(0.3));
        assert_eq!(alerts.heard(1, of(0.4, 9), SECOND), None);
        // The first is silent: from now on the other is obeyed, but not in what is done.
        assert_eq!(alerts.heard(1, of(0.4, 9), 12 * SECOND), None);
        assert_eq!(alerts.subscribe().borrow().share, 0.0);
        assert_eq!(alerts.heard(1, of(0.1, 10), 13 * SECOND), Some(0.1));
        assert_eq!(alerts.heard(0, None, 14 * SECOND), None);
        assert_eq!(alerts.subscribe().borrow().share, 0.1);
        assert_eq!(alerts.heard(5, of(0.1, 1), 14 * SECOND), None);
    }
}
