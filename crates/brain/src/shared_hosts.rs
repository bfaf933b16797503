//! Members of several groups on one host.
//!
//! A load report of a host covers all its work. Two groups that both use it chase each other. Both see that
//! one host is fuller than another, and both send their work to the other. Then both see that *that* host is
//! fuller, and so on for ever, each correcting what the other has just corrected as well. If loads are
//! reported at each step and corrected in full, the error changes its sign at every step and never shrinks;
//! with more than two groups it grows.
//!
//! So a load is divided. The group's own part, which it knows, it corrects at once. The others' part it
//! follows slowly, by `1 / (2 n)` of the difference with each report if `n` groups are on the host. All
//! groups together then correct half of a common error at each step, and it vanishes without changing its
//! sign ([`LoadAttribution`]; `tests/neighbours.rs` shows both).
//!
//! The parts are those of the mean requests at work there ([`SharedHosts`]). That assumes equal costs for the
//! requests of all groups. A balancer cannot see more without asking the host's processes.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::{Event, EventKind, Time};

/// The work of a group's members on a host.
#[derive(Clone, Debug)]
pub struct HostWork {
    /// The host.
    pub host: Arc<str>,
    /// The group.
    pub group: Arc<str>,
    /// The mean number of requests in progress there since the previous look; 0 or more.
    pub mean_in_progress: f64,
}

/// The groups on each host.
#[derive(Clone, Debug, Default)]
pub struct SharedHosts {
    /// The parts by host and group, of the hosts that several groups share.
    shares: BTreeMap<Arc<str>, BTreeMap<Arc<str>, HostShare>>,
    observed_at: Option<Time>,
    events: Vec<Event>,
}

#[derive(Clone, Copy, Debug)]
struct HostShare {
    mean_busy: f64,
    /// Whether the event that the others matter was sent.
    notified: bool,
}

impl SharedHosts {
    /// Takes a look at all groups: the work of their members since the previous look.
    pub fn observe(&mut self, work: &[HostWork], now: Time) {
        let seconds = self.observed_at.replace(now).map_or(0.0, |previous| now.since(previous).as_secs_f64());
        let decay = libm::exp2(-seconds / HALF_LIFE);
        let mut busy_by_host: BTreeMap<Arc<str>, BTreeMap<Arc<str>, f64>> = BTreeMap::new();
        for host_work in work
            .iter()
            .filter(|host_work| host_work.mean_in_progress.is_finite() && host_work.mean_in_progress >= 0.0)
        {
            let group = busy_by_host.entry(Arc::clone(&host_work.host)).or_default();
            *group.entry(Arc::clone(&host_work.group)).or_default() += host_work.mean_in_progress;
        }
        busy_by_host.retain(|_, groups| groups.len() > 1);
        let mut previous_shares = core::mem::take(&mut self.shares);
        for (host, groups) in busy_by_host {
            let previous_groups = previous_shares.remove(&host).unwrap_or_default();
            let share_of = |(group, mean_busy): (Arc<str>, f64)| {
                let host_share = previous_groups.get(&group).map_or(
                    HostShare { mean_busy, notified: false },
                    |previous| HostShare {
                        mean_busy: mean_busy + (previous.mean_busy - mean_busy) * decay,
                        ..*previous
                    },
                );
                (group, host_share)
            };
            self.shares.insert(host, groups.into_iter().map(share_of).collect());
        }
        // The host belongs to one group again.
        for (host, groups) in previous_shares {
            for (group, _) in groups.iter().filter(|(_, host_share)| host_share.notified) {
                self.events.push(event(group, format!("has {host} to itself again"), Vec::new()));
            }
        }
        self.emit_events();
    }

    /// Returns the group's part of the work on a host, above 0 and at most 1, and the number of groups there.
    pub fn share(&self, host: &str, group: &str) -> (f64, u32) {
        let Some(groups) = self.shares.get(host) else { return (1.0, 1) };
        let count = groups.len() as f64;
        let total_busy: f64 = groups.values().map(|host_share| host_share.mean_busy).sum();
        let Some(group_share) = groups.get(group) else { return (1.0, 1) };
        // On a nearly idle host all have the same part.
        let share = (group_share.mean_busy + IDLE_LOAD) / (total_busy + count * IDLE_LOAD);
        (share.clamp(MIN_SHARE, 1.0), groups.len() as u32)
    }

    /// Returns the other groups on a host with their parts, the greatest first.
    pub fn others(&self, host: &str, group: &str) -> Vec<(Arc<str>, f64)> {
        let Some(groups) = self.shares.get(host) else { return Vec::new() };
        let others = groups.keys().filter(|name| ***name != *group);
        let mut others: Vec<_> = others.map(|name| (Arc::clone(name), self.share(host, name).0)).collect();
        others.sort_by(|left, right| right.1.total_cmp(&left.1));
        others
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        (!self.events.is_empty()).then(|| self.events.remove(0))
    }

    /// Records events for the groups to which others begin or cease to matter.
    fn emit_events(&mut self) {
        let mut changes = Vec::new();
        for (host, groups) in &self.shares {
            for (group, host_share) in groups {
                let (share, _) = self.share(host, group);
                let idle = groups.values().map(|host_share| host_share.mean_busy).sum::<f64>() < MIN_BUSY;
                let is_notable = match host_share.notified {
                    false => 1.0 - share >= NOTABLE_OTHERS && !idle,
                    true => 1.0 - share >= MINOR_OTHERS,
                };
                if is_notable != host_share.notified {
                    changes.push((Arc::clone(host), Arc::clone(group), share));
                }
            }
        }
        for (host, group, share) in changes {
            let others = self.others(&host, &group);
            let names = others
                .iter()
                .take(MAX_NAMED)
                .map(|(name, other_share)| format!("{name} {:.0}%", other_share * 100.0));
            let names: Vec<String> = names.collect();
            let changed_share = self.shares.get_mut(&host).and_then(|groups| groups.get_mut(&group));
            let Some(changed_share) = changed_share else { continue };
            changed_share.notified = !changed_share.notified;
            let reason = match changed_share.notified {
                true => format!(
                    "shares {host} with other groups, which do much of the work there: {}",
                    names.join(", ")
                ),
                false => format!(
                    "shares {host} with other groups, which do little work there: {}",
                    names.join(", ")
                ),
            };
            let mut inputs = Vec::from([("own_share".to_string(), share)]);
            inputs.extend(
                others
                    .iter()
                    .take(MAX_NAMED)
                    .map(|(name, other_share)| (format!("share_of_{name}"), *other_share)),
            );
            self.events.push(event(&group, reason, inputs));
        }
    }
}

fn event(group: &Arc<str>, reason: String, inputs: Vec<(String, f64)>) -> Event {
    Event { kind: EventKind::HostShared, group: Arc::clone(group), member: None, why: reason, inputs }
}

/// A divided load: the group follows its own part at once, and that of others slowly.
#[derive(Clone, Copy, Debug)]
pub struct LoadAttribution {
    share: f64,
    groups: u32,
    /// The smoothed load of others.
    others: Option<f64>,
}

impl Default for LoadAttribution {
    fn default() -> Self {
        Self { share: 1.0, groups: 1, others: None }
    }
}

impl LoadAttribution {
    /// Sets the group's part of the work there, and the number of groups there: [`SharedHosts::share`].
    pub fn set_share(&mut self, (share, groups): (f64, u32)) {
        (self.share, self.groups) = (share.clamp(MIN_SHARE, 1.0), groups.max(1));
        if self.groups == 1 {
            (self.share, self.others) = (1.0, None);
        }
    }

    /// Discards the smoothed load, because earlier reports do not apply to later ones.
    pub fn forget(&mut self) {
        self.others = None;
    }

    /// Returns the load to use, if `load` is that of the whole host.
    pub fn attributed_load(&mut self, load: f64) -> f64 {
        if self.groups == 1 {
            return load;
        }
        let attributed = load * self.share;
        let others = load - attributed;
        let smoothed_others = match self.others {
            Some(smoothed) => smoothed + (others - smoothed) / (2.0 * f64::from(self.groups)),
            None => others,
        };
        self.others = Some(smoothed_others);
        attributed + smoothed_others
    }

    /// Returns the part of the load that is the group's own, 0 to 1.
    pub fn share(&self) -> f64 {
        self.share
    }
}

/// The seconds after which an observation counts for half.
const HALF_LIFE: f64 = 5.0;

/// The number of requests added to each group, so that on an idle host all have the same part.
const IDLE_LOAD: f64 = 0.01;

/// The minimum part of a group: with less it would never learn its effect.
const MIN_SHARE: f64 = 0.02;

/// The requests in progress on a host below which the parts do not matter.
const MIN_BUSY: f64 = 0.5;

/// The part of others from which they matter, and down to which they continue to.
const NOTABLE_OTHERS: f64 = 0.25;
const MINOR_OTHERS: f64 = 0.1;

/// The number of groups named in an event.
const MAX_NAMED: usize = 4;
