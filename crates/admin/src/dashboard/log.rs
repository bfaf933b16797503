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

pub(super) fn events_page(page_context: &PageContext<'_>, path: &str) -> EventsPage {
    let entries = page_context.events();
    let events = EventView::all(page_context, &entries, LOG_EVENTS);
    EventsPage { base: page_context.frame("Events", &PageUrl::Events, path), events, all: entries.len() }
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
pub(super) fn event_page(page_context: &PageContext<'_>, seq: u64, path: &str) -> Option<EventPage> {
    let entries = page_context.events();
    let entry = entries.iter().find(|entry| entry.seq == seq)?;
    let is_related = |other: &&EventEntry| {
        other.seq != seq
            && other.group == entry.group
            && (entry.member.is_none() || other.member == entry.member)
    };
    let mut related: Vec<EventEntry> = entries.iter().filter(is_related).cloned().collect();
    // The nearest ones, newest first.
    related.sort_by_key(|other| other.seq.abs_diff(seq));
    related.truncate(RELATED_EVENTS);
    related.sort_by_key(|other| std::cmp::Reverse(other.seq));
    let current_state = page_context.group(&entry.group).map(|group| match &entry.member {
        Some(name) => match group.members.iter().find(|member| member.name == *name) {
            Some(member) => {
                let (glyph, label, _) = format::state_words(member.state);
                format!("{glyph} {label} for {}: {}", ago(member.since_seconds), member.why)
            }
            None => "it is no longer a member".to_owned(),
        },
        None => format::GroupSummary::of(group, &[]).sentence(),
    });
    let event_view = EventView::new(page_context, entry);
    let title = format!("Event {seq}");
    Some(EventPage {
        base: page_context.frame(&title, &PageUrl::Event(seq), path),
        event: event_view,
        now: current_state,
        around: EventView::all(page_context, &related, RELATED_EVENTS),
    })
}
