//! Alerts: a balancer that finds the server overloaded adds to its answer to a report the share of the
//! server's connections that is to move elsewhere.
//!
//! ```text
//! {"shed": {"share": 0.3, "epoch": 7}}
//! ```
//!
//! A balancer repeats its decision until the alert is over; the epoch distinguishes a new decision from one
//! that was applied. Several balancers see the same overload, and each asks for the whole surplus to move,
//! which must happen only once. So one balancer's decisions are applied at a time, and those of the others
//! count as applied with them.

use std::time::Duration;

use serde::Deserialize;
use tokio::sync::watch;

/// The time without an answer after which a balancer's alert ends.
const ALERT_TIMEOUT: Duration = Duration::from_secs(10);

/// The share of the server's load to shed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ShedAlert {
    /// The share of the connections to shed, 0 to 1; 0 without an alert.
    pub share: f64,
    /// A counter of the changes.
    pub change_count: u64,
}

/// The least change of the share since the last log line that is logged again. Decisions get new epochs
/// several times a second while an alert lasts.
const MIN_LOGGED_CHANGE: f64 = 0.1;

/// An event worth a log line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum AlertEvent {
    /// An alert begins with this share, or its share has changed by at least [`MIN_LOGGED_CHANGE`].
    Shed(f64),
    /// The alert is over.
    Ended,
}

/// The decisions of the balancers.
#[derive(Debug)]
pub(crate) struct AlertState {
    /// The epoch that was last applied, for each target.
    applied_epochs: Vec<Option<u64>>,
    /// The target whose decision applies, and the time of its last repetition.
    holder: Option<(usize, Duration)>,
    /// The share that was logged last, while there is an alert.
    logged_share: Option<f64>,
    sender: watch::Sender<ShedAlert>,
}

/// A balancer's decision.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub(crate) struct ShedDecision {
    share: f64,
    epoch: u64,
}

/// Parses the body of an answer. Returns `None` if it holds no valid decision.
pub(crate) fn parse_decision(response_body: &[u8]) -> Option<ShedDecision> {
    #[derive(Deserialize)]
    struct ReportAnswer {
        shed: Option<ShedDecision>,
    }
    let decision = serde_json::from_slice::<ReportAnswer>(response_body).ok()?.shed?;
    (decision.share > 0.0 && decision.share <= 1.0).then_some(decision)
}

impl AlertState {
    pub(crate) fn new(target_count: usize) -> Self {
        Self {
            applied_epochs: vec![None; target_count],
            holder: None,
            logged_share: None,
            sender: watch::Sender::new(ShedAlert::default()),
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<ShedAlert> {
        self.sender.subscribe()
    }

    /// Records the decision in a target's answer to a report. Returns an event to log, if any.
    pub(crate) fn record_decision(
        &mut self,
        target: usize,
        decision: Option<ShedDecision>,
        now: Duration,
    ) -> Option<AlertEvent> {
        let expired_event = self.expire(now);
        let Some(ShedDecision { share, epoch }) = decision else {
            let ended_event = self.holder.filter(|(holder, _)| *holder == target).and_then(|_| self.clear());
            return expired_event.or(ended_event);
        };
        let is_new_epoch = self.applied_epochs.get_mut(target)?.replace(epoch) != Some(epoch);
        let holder = self.holder.get_or_insert((target, now));
        if holder.0 != target {
            return expired_event;
        }
        holder.1 = now;
        if !is_new_epoch {
            return expired_event;
        }
        self.publish(share);
        if self.logged_share.is_some_and(|logged| (share - logged).abs() < MIN_LOGGED_CHANGE) {
            return None;
        }
        self.logged_share = Some(share);
        Some(AlertEvent::Shed(share))
    }

    /// Ends the alert of a balancer that has not answered for [`ALERT_TIMEOUT`].
    pub(crate) fn expire(&mut self, now: Duration) -> Option<AlertEvent> {
        let timed_out =
            self.holder.is_some_and(|(_, last_heard)| now.saturating_sub(last_heard) >= ALERT_TIMEOUT);
        if timed_out { self.clear() } else { None }
    }

    fn clear(&mut self) -> Option<AlertEvent> {
        self.holder = None;
        if self.sender.borrow().share > 0.0 {
            self.publish(0.0);
        }
        self.logged_share.take().map(|_| AlertEvent::Ended)
    }

    fn publish(&self, share: f64) {
        self.sender.send_modify(|alert| *alert = ShedAlert { share, change_count: alert.change_count + 1 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn decision(share: f64, epoch: u64) -> Option<ShedDecision> {
        Some(ShedDecision { share, epoch })
    }

    fn shed_event(share: f64) -> Option<AlertEvent> {
        Some(AlertEvent::Shed(share))
    }

    #[test]
    fn answers_say_what_to_shed_or_nothing() {
        assert_eq!(parse_decision(br#"{"shed": {"share": 0.3, "epoch": 7}, "more": 1}"#), decision(0.3, 7));
        for body in [
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
            assert_eq!(parse_decision(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn a_decision_is_obeyed_once_and_taken_back_when_it_is_over() {
        let mut alerts = AlertState::new(1);
        let receiver = alerts.subscribe();
        let current_alert = || *receiver.borrow();
        assert_eq!(alerts.record_decision(0, None, SECOND), None);
        assert_eq!(current_alert(), ShedAlert::default());
        assert_eq!(alerts.record_decision(0, decision(0.3, 7), SECOND), shed_event(0.3));
        assert_eq!(alerts.record_decision(0, decision(0.3, 7), 2 * SECOND), None);
        assert_eq!(current_alert(), ShedAlert { share: 0.3, change_count: 1 });
        assert_eq!(alerts.record_decision(0, decision(0.1, 8), 3 * SECOND), shed_event(0.1));
        assert_eq!(alerts.record_decision(0, None, 4 * SECOND), Some(AlertEvent::Ended));
        assert_eq!(current_alert(), ShedAlert { share: 0.0, change_count: 3 });
        assert_eq!(alerts.record_decision(0, decision(0.1, 8), 5 * SECOND), None, "obeyed already");
    }

    #[test]
    fn the_surplus_is_shed_once_however_many_see_it() {
        let mut alerts = AlertState::new(2);
        assert_eq!(alerts.record_decision(0, decision(0.3, 1), SECOND), shed_event(0.3));
        assert_eq!(alerts.record_decision(1, decision(0.4, 9), SECOND), None);
        // The first balancer is silent: the other one's decisions apply from now on, except the one that
        // counts as applied.
        assert_eq!(alerts.record_decision(1, decision(0.4, 9), 12 * SECOND), Some(AlertEvent::Ended));
        assert_eq!(alerts.subscribe().borrow().share, 0.0);
        assert_eq!(alerts.record_decision(1, decision(0.1, 10), 13 * SECOND), shed_event(0.1));
        assert_eq!(alerts.record_decision(0, None, 14 * SECOND), None);
        assert_eq!(alerts.subscribe().borrow().share, 0.1);
        assert_eq!(alerts.record_decision(5, decision(0.1, 1), 14 * SECOND), None);
    }

    #[test]
    fn an_alert_is_told_when_it_begins_or_changes_by_much_and_when_it_is_over() {
        let mut alerts = AlertState::new(1);
        let time_at = |tenth: u32| Duration::from_millis(100) * tenth;
        let mut events = Vec::new();
        for tenth in 0..40_u32 {
            let share = if tenth < 20 { 0.25 } else { 0.5 } + f64::from(tenth % 2) / 100.0;
            events.extend(alerts.record_decision(0, decision(share, tenth.into()), time_at(tenth)));
        }
        assert_eq!(alerts.subscribe().borrow().change_count, 40, "each is obeyed");
        events.extend(alerts.record_decision(0, None, time_at(40)));
        events.extend(alerts.record_decision(0, None, time_at(41)));
        assert_eq!(events, [AlertEvent::Shed(0.25), AlertEvent::Shed(0.5), AlertEvent::Ended]);
        // The alert of a balancer that stops answering ends too.
        assert_eq!(alerts.record_decision(0, decision(0.25, 99), time_at(50)), shed_event(0.25));
        assert_eq!(alerts.expire(time_at(149)), None);
        assert_eq!(alerts.expire(time_at(150)), Some(AlertEvent::Ended));
        assert_eq!(alerts.expire(time_at(300)), None);
    }
}
