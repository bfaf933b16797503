//! One look at a balancer: its status, the thresholds of strategies that have some, and what happened since the last one.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use plimsoll_admin::Entry;
use plimsoll_brain::status::{GroupExplanation, Status};
use plimsoll_brain::strategy;

use crate::control::{Balancer, Trouble};

/// Loads at which a strategy stops giving a member work, and takes some away; in the unit of the group's metric.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Thresholds {
    pub(super) reject: Option<f64>,
    pub(super) critical: Option<f64>,
}

/// What was seen at one moment.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub(super) at: Instant,
    /// By our clock, milliseconds since 1970.
    pub(super) unix_ms: u64,
    /// Whom it is of.
    pub(super) whom: String,
    pub(super) status: Status,
    /// By group, where there are some.
    pub(super) thresholds: BTreeMap<String, Thresholds>,
    /// Since the last look, oldest first; all that are kept with the first.
    pub(super) events: Vec<Entry>,
}

/// Looks, and remembers how far it has read.
#[derive(Debug)]
pub(super) struct Eye {
    balancer: Balancer,
    pid: u32,
    last: u64,
}

impl Eye {
    pub(super) fn new(balancer: Balancer) -> Self {
        Self { balancer, pid: 0, last: 0 }
    }

    /// Asks, and waits for the answers.
    ///
    /// # Errors
    /// Nobody answers.
    pub(super) fn look(&mut self) -> Result<Look, Trouble> {
        let (_, status) = self.balancer.status()?;
        if status.pid != self.pid {
            // Another process counts its events anew.
            (self.pid, self.last) = (status.pid, 0);
        }
        // Who may see the status may not see everything: what is refused is left out.
        let events: Vec<Entry> =
            self.balancer.get(&format!("/events?follow=0&since={}", self.last)).unwrap_or_default();
        self.last = events.last().map_or(self.last, |entry| entry.seq);
        let with_thresholds = status.groups.iter().filter(|group| has_thresholds(&group.strategy));
        let thresholds = with_thresholds
            .filter_map(|group| Some((group.name.clone(), self.thresholds(&group.name)?)))
            .collect();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Look {
            at: Instant::now(),
            unix_ms: u64::try_from(unix.as_millis()).unwrap_or(u64::MAX),
            whom: self.balancer.to_string(),
            status,
            thresholds,
            events,
        })
    }

    fn thresholds(&self, group: &str) -> Option<Thresholds> {
        let explained: GroupExplanation = self.balancer.get(&format!("/v1/groups/{group}/explain")).ok()?;
        // 0 is for none.
        let knob = |name: &str| explained.knobs.get(name).copied().filter(|value| *value > 0.0);
        Some(Thresholds { reject: knob("reject"), critical: knob("critical") })
    }
}

fn has_thresholds(name: &str) -> bool {
    strategy::find(name).is_some_and(|found| found.knobs.iter().any(|knob| knob.name == "critical"))
}
