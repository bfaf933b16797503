//! The event log: a ring buffer of the last thousand events, and a channel for subscribers.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use plimsoll_brain::{Event, EventKind};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

use crate::control::fleet_notifier::FleetNotifier;

/// The number of events that are kept.
const HISTORY_LEN: usize = 1000;

/// An event with its sequence number and time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SequencedEvent {
    /// The sequence number; counts from 1 without gaps.
    pub seq: u64,
    /// Milliseconds since 1970, UTC.
    pub unix_ms: u64,
    /// The event itself.
    pub event: Event,
}

/// The events so far, and the channel for subscribers.
pub(crate) struct EventLog {
    history: VecDeque<SequencedEvent>,
    seq: u64,
    sender: broadcast::Sender<SequencedEvent>,
    /// The events that are not in the process log yet, which begins with the listening addresses. They are
    /// known once the process is prepared.
    unlogged: Option<Vec<Event>>,
    /// The notifier of the fleet's other balancers.
    pub(crate) fleet: FleetNotifier,
}

impl EventLog {
    pub(crate) fn new() -> Self {
        let fleet = FleetNotifier::default();
        let sender = broadcast::channel(HISTORY_LEN).0;
        Self { history: VecDeque::new(), seq: 0, sender, unlogged: Some(Vec::new()), fleet }
    }

    /// Writes the events so far to the process log, and each further event at once.
    pub(crate) fn start_logging(&mut self) {
        self.unlogged.take().iter().flatten().for_each(log_event);
    }

    pub(crate) fn write(&mut self, event: Event) {
        self.seq += 1;
        let unix_time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let sequenced = SequencedEvent { seq: self.seq, unix_ms: unix_time.as_millis() as u64, event };
        match &mut self.unlogged {
            None => log_event(&sequenced.event),
            Some(unlogged) if unlogged.len() < HISTORY_LEN => unlogged.push(sequenced.event.clone()),
            Some(_) => {}
        }
        self.fleet.notify_event(&sequenced.event);
        if self.history.len() == HISTORY_LEN {
            self.history.pop_front();
        }
        self.history.push_back(sequenced.clone());
        // There may be no subscriber.
        let _ = self.sender.send(sequenced);
    }

    /// Returns the sequence number of the last event, and all kept events.
    pub(crate) fn snapshot(&self) -> (u64, &VecDeque<SequencedEvent>) {
        (self.seq, &self.history)
    }

    /// Returns the kind of a group's last event among these kinds.
    pub(crate) fn last_kind(&self, group: &str, kinds: &[EventKind]) -> Option<EventKind> {
        let is_match = |sequenced: &&SequencedEvent| {
            &*sequenced.event.group == group && kinds.contains(&sequenced.event.kind)
        };
        self.history.iter().rev().find(is_match).map(|sequenced| sequenced.event.kind)
    }

    /// Returns the members of a group whose condition has begun and has not ended, by its two kinds of
    /// events.
    pub(crate) fn active_members(
        &self,
        group: &str,
        [begin_kind, end_kind]: [EventKind; 2],
    ) -> BTreeSet<Arc<str>> {
        let mut active = BTreeSet::new();
        for SequencedEvent { event, .. } in
            self.history.iter().filter(|sequenced| &*sequenced.event.group == group)
        {
            let Some(member) = &event.member else { continue };
            if event.kind == begin_kind {
                active.insert(Arc::clone(member));
            } else if event.kind == end_kind || event.kind == EventKind::Left {
                active.remove(member);
            }
        }
        active
    }

    /// Continues the previous process's log: the events of this process follow those of the previous one.
    pub(crate) fn resume(&mut self, seq: u64, previous: Vec<SequencedEvent>) {
        let own_history = std::mem::take(&mut self.history);
        self.seq = seq.max(previous.last().map_or(0, |latest| latest.seq));
        self.history.extend(previous.into_iter().rev().take(HISTORY_LEN).rev());
        for mut sequenced in own_history {
            self.seq += 1;
            sequenced.seq = self.seq;
            self.history.push_back(sequenced);
        }
        while self.history.len() > HISTORY_LEN {
            self.history.pop_front();
        }
    }

    /// Writes an event of the whole process.
    pub(crate) fn write_process_event(&mut self, kind: EventKind, message: String) {
        self.write(Event { kind, group: "".into(), member: None, why: message, inputs: Vec::new() });
    }

    pub(crate) fn history(&self) -> Vec<SequencedEvent> {
        self.history.iter().cloned().collect()
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<SequencedEvent> {
        self.sender.subscribe()
    }
}

/// Writes one line to the process log.
fn log_event(event: &Event) {
    match (&*event.group, event.member.as_deref()) {
        _ if event.kind == EventKind::ReloadRefused => {
            tracing::warn!("reload refused, the configuration before stays in force: {}", event.why);
        }
        ("", _)
            if matches!(
                event.kind,
                EventKind::CertificateFailed | EventKind::StoreLost | EventKind::UpgradeFailed
            ) =>
        {
            tracing::warn!("{}", event.why)
        }
        ("", _) if event.kind == EventKind::Reloaded => tracing::info!("reloaded: {}", event.why),
        ("", _) => tracing::info!("{}", event.why),
        (group, None) => tracing::info!("group {group}: {}", event.why),
        (group, Some(member)) => tracing::info!("group {group}: member {member}: {}", event.why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_says_nothing_before_it_is_to() {
        let mut event_log = EventLog::new();
        (0..HISTORY_LEN + 5)
            .for_each(|count| event_log.write_process_event(EventKind::Changed, count.to_string()));
        assert_eq!(event_log.unlogged.as_ref().map(Vec::len), Some(HISTORY_LEN), "bounded");
        assert_eq!(event_log.history().len(), HISTORY_LEN, "whoever asks is told at once");
        event_log.start_logging();
        event_log.write_process_event(EventKind::Changed, "now".into());
        assert_eq!(event_log.unlogged, None);
    }

    #[test]
    fn what_has_begun_goes_on_until_it_is_over_or_the_member_has_left() {
        let mut event_log = EventLog::new();
        let kinds = [EventKind::Slow, EventKind::SlowEnded];
        for (group, member, kind) in [
            ("web", "a", EventKind::Slow),
            ("web", "b", EventKind::Slow),
            ("web", "c", EventKind::Slow),
            ("api", "d", EventKind::Slow),
            ("web", "b", EventKind::SlowEnded),
            ("web", "c", EventKind::Left),
            ("web", "a", EventKind::Down),
        ] {
            let (message, inputs) = (String::new(), Vec::new());
            event_log.write(Event {
                kind,
                group: group.into(),
                member: Some(member.into()),
                why: message,
                inputs,
            });
        }
        assert_eq!(event_log.active_members("web", kinds), BTreeSet::from(["a".into()]));
    }

    #[test]
    fn what_happened_in_the_process_before_comes_first() {
        let mut old_log = EventLog::new();
        (0..HISTORY_LEN + 5)
            .for_each(|count| old_log.write_process_event(EventKind::Changed, count.to_string()));
        let mut new_log = EventLog::new();
        new_log.write_process_event(EventKind::Joined, "own".into());
        let (seq, history) = old_log.snapshot();
        new_log.resume(seq, history.iter().cloned().collect());
        new_log.write_process_event(EventKind::Upgraded, "last".into());
        let events = new_log.history();
        assert_eq!(events.len(), HISTORY_LEN);
        let seqs: Vec<u64> = events.iter().map(|sequenced| sequenced.seq).collect();
        assert!(seqs.is_sorted_by(|previous, next| previous + 1 == *next), "{seqs:?}");
        assert_eq!(events[HISTORY_LEN - 2].event.why, "own");
        assert_eq!(events[HISTORY_LEN - 1].seq, seq + 2);
    }
}
