//! The event log, and the page of one decision: its figures, the events around it, and the current state.

use serde::Serialize;

use super::place::Place;
use super::view::{Base, EventView, Eye};
use super::words::{self, ago};
use crate::Entry;

/// The number of events on the page of the log.
const LOG: usize = 200;
/// The number of other events on the page of one.
const AROUND: usize = 10;

/// The event log.
#[derive(Debug, Serialize)]
pub(super) struct Events {
    base: Base,
    events: Vec<EventView>,
    all: usize,
}

pub(super) fn events(eye: &Eye<'_>, path: &str) -> Events {
    let entries = eye.events();
    let events = EventView::all(eye, &entries, LOG);
    Events { base: eye.base("Events", &Place::Events, path), events, all: entries.len() }
}

/// One decision.
#[derive(Debug, Serialize)]
pub(super) struct Event {
    base: Base,
    event: EventView,
    /// The current state of the member or group.
    now: Option<String>,
    /// The other events of the same around that time.
    around: Vec<EventView>,
}

/// Returns the page of an event; `None` if it is no longer kept, or the caller may not see it.
pub(super) fn event(eye: &Eye<'_>, seq: u64, path: &str) -> Option<Event> {
    let entries = eye.events();
    let entry = entries.iter().find(|entry| entry.seq == seq)?;
    let same = |other: &&Entry| {
        other.seq != seq
            && other.group == entry.group
            && (entry.member.is_none() || other.member == entry.member)
    };
    let mut around: Vec<Entry> = entries.iter().filter(same).cloned().collect();
    // The nearest ones, newest first.
    around.sort_by_key(|other| other.seq.abs_diff(seq));
    around.truncate(AROUND);
    around.sort_by_key(|other| std::cmp::Reverse(other.seq));
    let now = eye.group(&entry.group).map(|group| match &entry.member {
        Some(name) => match group.members.iter().find(|member| member.name == *name) {
            Some(member) => {
                let (glyph, word, _) = words::state(member.state);
                format!("{glyph} {word} for {}: {}", ago(member.since_seconds), member.why)
            }
            None => "it is no longer a member".to_owned(),
        },
        None => words::Verdict::of(group, &[]).sentence(),
    });
    let view = EventView::new(eye, entry);
    let title = format!("Event {seq}");
    Some(Event {
        base: eye.base(&title, &Place::Event(seq), path),
        event: view,
        now,
        around: EventView::all(eye, &around, AROUND),
    })
}
