//! The event log, and the page of one decision: its figures, the events around it, and the current state.

use serde::Serialize;

use super::format::{self, ago};
use super::urls::PageUrl;
use super::view_models::{EventView, PageContext, PageFrame};
use crate::EventEntry;

/// The number of events on the page of the log.
const LOG_EVENTS: usize = 200;
/// The number of other events on the page of one.
const RELATED_EVENTS: usize = 10;

/// The event log.
#[derive(Debug, Serialize)]
pub(super) struct EventsPage {
    base: PageFrame,
    events: Vec<EventView>,
    all: usize,
}

pub(super) fn events_page(eye: &PageContext<'_>, path: &str) -> EventsPage {
    let entries = eye.events();
    let events = EventView::all(eye, &entries, LOG_EVENTS);
    EventsPage { base: eye.frame("Events", &PageUrl::Events, path), events, all: entries.len() }
}

/// One decision.
#[derive(Debug, Serialize)]
pub(super) struct EventPage {
    base: PageFrame,
    event: EventView,
    /// The current state of the member or group.
    now: Option<String>,
    /// The other events of the same around that time.
    around: Vec<EventView>,
}

/// Returns the page of an event; `None` if it is no longer kept, or the caller may not see it.
pub(super) fn event_page(eye: &PageContext<'_>, seq: u64, path: &str) -> Option<EventPage> {
    let entries = eye.events();
    let entry = entries.iter().find(|entry| entry.seq == seq)?;
    let same = |other: &&EventEntry| {
        other.seq != seq
            && other.group == entry.group
            && (entry.member.is_none() || other.member == entry.member)
    };
    let mut around: Vec<EventEntry> = entries.iter().filter(same).cloned().collect();
    // The nearest ones, newest first.
    around.sort_by_key(|other| other.seq.abs_diff(seq));
    around.truncate(RELATED_EVENTS);
    around.sort_by_key(|other| std::cmp::Reverse(other.seq));
    let now = eye.group(&entry.group).map(|group| match &entry.member {
        Some(name) => match group.members.iter().find(|member| member.name == *name) {
            Some(member) => {
                let (glyph, word, _) = format::state_words(member.state);
                format!("{glyph} {word} for {}: {}", ago(member.since_seconds), member.why)
            }
            None => "it is no longer a member".to_owned(),
        },
        None => format::GroupSummary::of(group, &[]).sentence(),
    });
    let view = EventView::new(eye, entry);
    let title = format!("Event {seq}");
    Some(EventPage {
        base: eye.frame(&title, &PageUrl::Event(seq), path),
        event: view,
        now,
        around: EventView::all(eye, &around, RELATED_EVENTS),
    })
}
