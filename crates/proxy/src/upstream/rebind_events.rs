//! Sessions that left a member under alert: counted by the cores, reported as events.
//!
//! Moves are rare but come in bursts: one decision of the brain may move thousands of sessions. Cores count
//! the target of each move. Once per second, an event is written for each member that sessions left since. It
//! contains their number, their targets, and the figures that led to the alert. Nothing is lost, so the sum
//! over the events equals the counter of moves.

use std::collections::BTreeMap;
use std::sync::Mutex;

use plimsoll_brain::{Event, EventKind, LoadAlert, MemberId};

use crate::runtime::sync::lock;

/// One core's counts of the targets of a member's sessions since the last event. `None` stands for sessions
/// that were closed, to return and be bound anew.
#[derive(Debug, Default)]
pub(crate) struct RebindCounts(Mutex<RebindTargets>);

/// Numbers of sessions by target.
pub(crate) type RebindTargets = BTreeMap<Option<MemberId>, u64>;

impl RebindCounts {
    /// Counts one session.
    pub(crate) fn record(&self, target: Option<MemberId>) {
        *lock(&self.0).entry(target).or_default() += 1;
    }

    /// Adds the counts since the last call to `sum`.
    pub(crate) fn drain_into(&self, sum: &mut RebindTargets) {
        for (target, count) in std::mem::take(&mut *lock(&self.0)) {
            *sum.entry(target).or_default() += count;
        }
    }
}

/// Returns the event for sessions that left a member. `alert` is the cause, if the member is still known;
/// `total` is the number of all sessions that have left it so far; `name` returns members' names.
pub(crate) fn rebind_event(
    (group, member): (&str, &str),
    targets: &RebindTargets,
    alert: Option<&LoadAlert>,
    session_total: u64,
    name_of: impl Fn(MemberId) -> Option<String>,
) -> Event {
    let sessions: u64 = targets.values().sum();
    let mut by_count: Vec<(u64, String)> = targets
        .iter()
        .map(|(target, count)| match target {
            Some(id) => {
                (*count, format!("to {}", name_of(*id).unwrap_or_else(|| "a member that left".into())))
            }
            None => (*count, "closed, to be bound anew".to_owned()),
        })
        .collect();
    by_count.sort_by(|left, right| right.0.cmp(&left.0).then_with(|| left.1.cmp(&right.1)));
    let unnamed: u64 = by_count.iter().skip(MAX_NAMED).map(|(count, _)| count).sum();
    let mut parts: Vec<String> = by_count
        .iter()
        .take(MAX_NAMED)
        .map(|(count, destination)| format!("{count} {destination}"))
        .collect();
    if unnamed > 0 {
        parts.push(format!("{unnamed} to others"));
    }
    let noun = if sessions == 1 { "session" } else { "sessions" };
    let mut inputs =
        vec![("sessions".to_owned(), sessions as f64), ("sessions_so_far".to_owned(), session_total as f64)];
    if let Some(alert) = alert {
        inputs.push(("share".to_owned(), f64::from(alert.shed.share)));
        inputs.push(("decision".to_owned(), f64::from(alert.shed.epoch)));
        let alert_inputs = alert.inputs.iter().filter(|(name, _)| *name != "share");
        inputs.extend(alert_inputs.map(|(name, value)| ((*name).to_owned(), *value)));
    }
    Event {
        kind: EventKind::Moved,
        group: group.into(),
        member: Some(member.into()),
        why: format!("{sessions} {noun} left: {}", parts.join(", ")),
        inputs,
    }
}

/// The maximum number of members that an event names.
const MAX_NAMED: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_says_how_many_went_where() {
        let cores = [RebindCounts::default(), RebindCounts::default()];
        for target in 0..8 {
            for round in 0..=target {
                cores[round as usize % 2].record(Some(MemberId(target)));
            }
        }
        cores[0].record(None);
        let mut targets = RebindTargets::new();
        cores.iter().for_each(|core| core.drain_into(&mut targets));
        let name_of = |id: MemberId| (id.0 != 7).then(|| format!("10.0.0.{}:80", id.0));
        let event = rebind_event(("web", "10.0.1.1:80"), &targets, None, 100, name_of);
        assert_eq!(
            event.why,
            "37 sessions left: 8 to a member that left, 7 to 10.0.0.6:80, 6 to 10.0.0.5:80, 5 to \
             10.0.0.4:80, \
             4 to 10.0.0.3:80, 7 to others"
        );
        assert_eq!(event.inputs, [("sessions".to_owned(), 37.0), ("sessions_so_far".to_owned(), 100.0)]);
        let mut drained = RebindTargets::new();
        cores.iter().for_each(|core| core.drain_into(&mut drained));
        assert!(drained.is_empty(), "what was taken is gone");
    }
}
