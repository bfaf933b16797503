//! The watch on the balancer over its control socket, on a thread of its own: the view never waits for it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use plimsoll_admin::Entry;
use plimsoll_brain::status::{GroupStatus, Status};

use crate::control::Balancer;

/// The time between two looks.
const PACE: Duration = Duration::from_millis(250);

/// The status of the balancer.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// The demo's group; `None` before the first look.
    pub(super) group: Option<GroupStatus>,
    /// Events since the last [`Watch::look`].
    pub(super) events: Vec<Entry>,
}

/// A thread that looks. It ends soon after this is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
}

impl Watch {
    /// Starts the thread; earlier events are passed over.
    pub(super) fn start(balancer: Balancer) -> Self {
        let (seen, stop) = (Arc::new(Mutex::new(Seen::default())), Arc::new(AtomicBool::new(false)));
        let watch = Self { seen: seen.clone(), stop: stop.clone() };
        let mut last = events(&balancer, 0).last().map_or(0, |entry| entry.seq);
        std::thread::spawn(move || {
            while !stop.load(Relaxed) {
                let group = group(&balancer);
                let fresh = events(&balancer, last);
                last = fresh.last().map_or(last, |entry| entry.seq);
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.group = group.or_else(|| seen.group.take());
                seen.events.extend(fresh);
                drop(seen);
                std::thread::sleep(PACE);
            }
        });
        watch
    }

    /// Returns the last status; each event once.
    pub(super) fn look(&self) -> Seen {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        Seen { group: seen.group.clone(), events: std::mem::take(&mut seen.events) }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

/// Returns the demo's group now. A balancer that does not answer now may do so next time.
pub(super) fn group(balancer: &Balancer) -> Option<GroupStatus> {
    balancer.get::<Status>("/status").ok()?.groups.pop()
}

fn events(balancer: &Balancer, since: u64) -> Vec<Entry> {
    balancer.get(&format!("/events?follow=0&since={since}")).unwrap_or_default()
}
