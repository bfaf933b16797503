//! The watch on the balancer over its control socket, on a thread of its own: the view never waits for it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use plimsoll_admin::EventEntry;
use plimsoll_brain::status::{GroupStatus, StatusReport};

use crate::control::ControlEndpoint;

/// The time between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The status of the balancer.
#[derive(Clone, Debug, Default)]
pub(super) struct PolledStatus {
    /// The demo's group; `None` before the first look.
    pub(super) group: Option<GroupStatus>,
    /// Events since the last [`StatusPoller::take_status`].
    pub(super) events: Vec<EventEntry>,
}

/// A thread that looks. It ends soon after this is dropped.
#[derive(Debug)]
pub(super) struct StatusPoller {
    polled: Arc<Mutex<PolledStatus>>,
    stop: Arc<AtomicBool>,
}

impl StatusPoller {
    /// Starts the thread; earlier events are passed over.
    pub(super) fn start(balancer: ControlEndpoint) -> Self {
        let (polled, stop) =
            (Arc::new(Mutex::new(PolledStatus::default())), Arc::new(AtomicBool::new(false)));
        let poller = Self { polled: polled.clone(), stop: stop.clone() };
        let mut last_seq = fetch_events(&balancer, 0).last().map_or(0, |entry| entry.seq);
        std::thread::spawn(move || {
            while !stop.load(Relaxed) {
                let group = fetch_group(&balancer);
                let new_events = fetch_events(&balancer, last_seq);
                last_seq = new_events.last().map_or(last_seq, |entry| entry.seq);
                let mut status = polled.lock().unwrap_or_else(PoisonError::into_inner);
                status.group = group.or_else(|| status.group.take());
                status.events.extend(new_events);
                drop(status);
                std::thread::sleep(POLL_INTERVAL);
            }
        });
        poller
    }

    /// Returns the last status; each event once.
    pub(super) fn take_status(&self) -> PolledStatus {
        let mut status = self.polled.lock().unwrap_or_else(PoisonError::into_inner);
        PolledStatus { group: status.group.clone(), events: std::mem::take(&mut status.events) }
    }
}

impl Drop for StatusPoller {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

/// Returns the demo's group now. A balancer that does not answer now may do so next time.
pub(super) fn fetch_group(balancer: &ControlEndpoint) -> Option<GroupStatus> {
    balancer.get::<StatusReport>("/status").ok()?.groups.pop()
}

fn fetch_events(balancer: &ControlEndpoint, since: u64) -> Vec<EventEntry> {
    balancer.get(&format!("/events?follow=0&since={since}")).unwrap_or_default()
}
