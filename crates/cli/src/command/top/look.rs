//! One look at a balancer: its status, the recent figures of each group, and the events since the last look.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use plimsoll_admin::Entry;
use plimsoll_brain::status::{GroupExplanation, Recent, Status};
use serde::de::DeserializeOwned;

use crate::control::{Balancer, Trouble};

/// The number of groups that are asked for recent figures, and of members of one that is asked for limits.
/// With more the cost for the balancer would be too high.
const ASKED: usize = 64;
const MANY: usize = 500;
/// The strategy that learns limits by itself.
const ADAPTIVE: &str = "adaptive";

/// The data of one moment.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub(super) at: Instant,
    /// The time by this machine's clock, in milliseconds since 1970.
    pub(super) unix_ms: u64,
    /// The name of the balancer.
    pub(super) whom: String,
    pub(super) status: Status,
    /// The recent figures, by group; not of all, see [`ASKED`].
    pub(super) recent: BTreeMap<String, Recent>,
    /// The explanations of strategies that learn limits by themselves, likewise.
    pub(super) explained: BTreeMap<String, GroupExplanation>,
    /// The events since the last look, oldest first; with the first look all that are kept.
    pub(super) events: Vec<Entry>,
}

/// A client that looks, and remembers its place in the events.
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
    /// Fails if the balancer does not answer.
    pub(super) fn look(&mut self) -> Result<Look, Trouble> {
        let (_, status) = self.balancer.status()?;
        if status.pid != self.pid {
            // Another process counts its events anew.
            (self.pid, self.last) = (status.pid, 0);
        }
        // The right to see the status does not include all: what is refused is left out.
        let events: Vec<Entry> =
            self.balancer.get(&format!("/events?follow=0&since={}", self.last)).unwrap_or_default();
        self.last = events.last().map_or(self.last, |entry| entry.seq);
        let asked = || status.groups.iter().take(ASKED);
        let recent = asked().filter_map(|group| Some((group.name.clone(), self.of(&group.name, "recent")?)));
        let recent = recent.collect();
        let limits = asked().filter(|group| group.strategy == ADAPTIVE && group.members.len() <= MANY);
        let explained =
            limits.filter_map(|group| Some((group.name.clone(), self.of(&group.name, "explain")?)));
        let explained = explained.collect();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Look {
            at: Instant::now(),
            unix_ms: u64::try_from(unix.as_millis()).unwrap_or(u64::MAX),
            whom: self.balancer.to_string(),
            status,
            recent,
            explained,
            events,
        })
    }

    /// Returns a document of a single group; `None` if it is refused, or an older balancer does not know it.
    fn of<T: DeserializeOwned>(&self, group: &str, what: &str) -> Option<T> {
        self.balancer.get(&format!("/v1/groups/{}/{what}", encoded(group))).ok()
    }
}

/// Returns a name as a part of a path.
fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:[]".contains(&byte);
    name.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
