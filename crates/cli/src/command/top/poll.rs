//! One look at a balancer: its status, the recent figures of each group, and the events since the last look.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use plimsoll_admin::EventEntry;
use plimsoll_brain::status::{GroupExplanation, GroupRecent, StatusReport};
use serde::de::DeserializeOwned;

use crate::control::{ControlEndpoint, ControlError};

/// The number of groups that are asked for recent figures, and of members of one that is asked for limits.
/// With more the cost for the balancer would be too high.
const MAX_POLLED_GROUPS: usize = 64;
const MAX_EXPLAINED_MEMBERS: usize = 500;
/// The strategy that learns limits by itself.
const ADAPTIVE: &str = "adaptive";

/// The data of one moment.
#[derive(Clone, Debug)]
pub(super) struct PollResult {
    pub(super) at: Instant,
    /// The time by this machine's clock, in milliseconds since 1970.
    pub(super) unix_ms: u64,
    /// The name of the balancer.
    pub(super) balancer_name: String,
    pub(super) status: StatusReport,
    /// The recent figures, by group; not of all, see [`MAX_POLLED_GROUPS`].
    pub(super) recent: BTreeMap<String, GroupRecent>,
    /// The explanations of strategies that learn limits by themselves, likewise.
    pub(super) explanations: BTreeMap<String, GroupExplanation>,
    /// The events since the last look, oldest first; with the first look all that are kept.
    pub(super) events: Vec<EventEntry>,
}

/// A client that looks, and remembers its place in the events.
#[derive(Debug)]
pub(super) struct BalancerPoller {
    balancer: ControlEndpoint,
    pid: u32,
    last_seq: u64,
}

impl BalancerPoller {
    pub(super) fn new(balancer: ControlEndpoint) -> Self {
        Self { balancer, pid: 0, last_seq: 0 }
    }

    /// Asks, and waits for the answers.
    ///
    /// # Errors
    /// Fails if the balancer does not answer.
    pub(super) fn poll(&mut self) -> Result<PollResult, ControlError> {
        let (_, status) = self.balancer.status()?;
        if status.pid != self.pid {
            // Another process counts its events anew.
            (self.pid, self.last_seq) = (status.pid, 0);
        }
        // The right to see the status does not include all: what is refused is left out.
        let events: Vec<EventEntry> =
            self.balancer.get(&format!("/events?follow=0&since={}", self.last_seq)).unwrap_or_default();
        self.last_seq = events.last().map_or(self.last_seq, |entry| entry.seq);
        let polled_groups = || status.groups.iter().take(MAX_POLLED_GROUPS);
        let recent = polled_groups()
            .filter_map(|group| Some((group.name.clone(), self.fetch(&group.name, "recent")?)));
        let recent = recent.collect();
        let limits = polled_groups()
            .filter(|group| group.strategy == ADAPTIVE && group.members.len() <= MAX_EXPLAINED_MEMBERS);
        let explanations =
            limits.filter_map(|group| Some((group.name.clone(), self.fetch(&group.name, "explain")?)));
        let explanations = explanations.collect();
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(PollResult {
            at: Instant::now(),
            unix_ms: u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX),
            balancer_name: self.balancer.to_string(),
            status,
            recent,
            explanations,
            events,
        })
    }

    /// Returns a document of a single group; `None` if it is refused, or an older balancer does not know it.
    fn fetch<T: DeserializeOwned>(&self, group: &str, resource: &str) -> Option<T> {
        self.balancer.get(&format!("/v1/groups/{}/{resource}", encoded(group))).ok()
    }
}

/// Returns a name as a part of a path.
fn encoded(name: &str) -> String {
    let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:[]".contains(&byte);
    name.bytes()
        .map(|byte| if is_unreserved(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
