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
    pub(crate) fn record(&self, to: Option<MemberId>) {
        *lock(&self.0).entry(to).or_default() += 1;
    }

    /// Adds the counts since the last call to `sum`.
    pub(crate) fn drain_into(&self, sum: &mut RebindTargets) {
        for (to, count) in std::mem::take(&mut *lock(&self.0)) {
            *sum.entry(to).or_default() += count;
        }
    }
}

/// Returns the event for sessions that left a member. `alert` is the cause, if the member is still known;
/// `total` is the number of all sessions that have left it so far; `name` returns members' names.
pub(crate) fn rebind_event(
    (group, from): (&str, &str),
    targets: &RebindTargets,
    alert: Option<&LoadAlert>,
    total: u64,
    name: impl Fn(MemberId) -> Option<String>,
) -> Event {
    let sessions: u64 = targets.values().sum();
    let mut most: Vec<(u64, String)> = targets
        .iter()
        .map(|(to, count)| match to {
            Some(to) => (*count, format!("to {}", name(*to).unwrap_or_else(|| "a member that left".into()))),
            None => (*count, "closed, to be bound anew".to_owned()),
        })
        .collect();
    most.sort_by(|one, other| other.0.cmp(&one.0).then_with(|| one.1.cmp(&other.1)));
    let rest: u64 = most.iter().skip(MAX_NAMED).map(|(count, _)| count).sum();
    let mut parts: Vec<String> =
        most.iter().take(MAX_NAMED).map(|(count, where_to)| format!("{count} {where_to}")).collect();
    if rest > 0 {
        parts.push(format!("{rest} to others"));
    }
    let noun = if sessions == 1 { "session" } else { "sessions" };
    let mut inputs =
        vec![("sessions".to_owned(), sessions as f64), ("sessions_so_far".to_owned(), total as f64)];
    if let Some(alert) = alert {
        inputs.push(("share".to_owned(), f64::from(alert.shed.share)));
        inputs.push(("decision".to_owned(), f64::from(alert.shed.epoch)));
        let known = alert.inputs.iter().filter(|(name, _)| *name != "share");
        inputs.extend(known.map(|(name, value)| ((*name).to_owned(), *value)));
    }
    Event {
        kind: EventKind::Moved,
        group: group.into(),
        member: Some(from.into()),
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
        for to in 0..8 {
            for turn in 0..=to {
                cores[turn as usize % 2].record(Some(MemberId(to)));
            }
        }
        cores[0].record(None);
        let mut targets = RebindTargets::new();
        cores.iter().for_each(|core| core.drain_into(&mut targets));
        let name = |id: MemberId| (id.0 != 7).then(|| format!("10.0.0.{}:80", id.0));
        let event = rebind_event(("web", "10.0.1.1:80"), &targets, None, 100, name);
        assert_eq!(
            event.why,
            "37 sessions left: 8 to a member that left, 7 to 10.0.0.6:80, 6 to 10.0.0.5:80, 5 to \
             10.0.0.4:80, \
             4 to 10.0.0.3:80, 7 to others"
        );
        assert_eq!(event.inputs, [("sessions".to_owned(), 37.0), ("sessions_so_far".to_owned(), 100.0)]);
        let mut none = RebindTargets::new();
        cores.iter().for_each(|core| core.drain_into(&mut none));
        assert!(none.is_empty(), "what was taken is gone");
    }
}
