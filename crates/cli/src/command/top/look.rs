//! One look at a balancer: its status, what each group did of late, and what happened since the last look.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use plimsoll_admin::Entry;
use plimsoll_brain::status::{GroupExplanation, Recent, Status};
use serde::de::DeserializeOwned;

use crate::control::{Balancer, Trouble};

/// Groups that are asked what they did of late, and members of one that is asked for limits: of more, a look would cost the balancer
/// more than it is worth.
const ASKED: usize = 64;
const MANY: usize = 500;
/// It finds limits by itself.
const ADAPTIVE: &str = "adaptive";

/// What was seen at one moment.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub(super) at: Instant,
    /// By our clock, milliseconds since 1970.
    pub(super) unix_ms: u64,
    /// Whom it is of.
    pub(super) whom: String,
    pub(super) status: Status,
    /// What they did of late, by group; not of all, see [`ASKED`].
    pub(super) recent: BTreeMap<String, Recent>,
    /// What strategies that find limits by themselves say of their members, likewise.
    pub(super) explained: BTreeMap<String, GroupExplanation>,
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

    /// What is asked of a group by itself; none where it is refused, or an older balancer does not know it.
    fn of<T: DeserializeOwned>(&self, group: &str, what: &str) -> Option<T> {
        self.balancer.get(&format!("/v1/groups/{}/{what}", encoded(group))).ok()
    }
}

/// A name as a part of a path.
fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:[]".contains(&byte);
    name.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
