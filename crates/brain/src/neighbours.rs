//! Members of several groups on one host.
//!
//! What is told of a host is of all that goes on there. Two groups that both go by it chase each other: both see that one host is
//! fuller than another, both send their work to the other, both see that *that* is fuller now, and so on for ever, each correcting
//! what the other has just corrected as well. With loads that are told at each step and corrected in full the error changes its sign
//! at every step and never gets less; with more than two groups it grows.
//!
//! So a load is told apart: the group's own part, which it knows and can change at once, and what the others cause, which it follows
//! slowly, by `1 / (2 n)` of the difference with each report where `n` groups are on the host. Each group then corrects its own
//! doing at once and the others' a little at a time: of an error that all see, all together correct one half at each step, and it
//! is gone without changing its sign ([`Apart`]; `tests/neighbours.rs` shows both).
//!
//! What part is whose goes by the requests at work there, averaged ([`Neighbours`]). That takes a request of one group for as
//! dear as one of another, and is all that a balancer can see without asking the host's processes.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::{Event, EventKind, Time};

/// What the members of a group on a host do.
#[derive(Clone, Debug)]
pub struct Stake {
    /// Which host.
    pub host: Arc<str>,
    /// Whose members.
    pub group: Arc<str>,
    /// Requests that they work on, on average since the look before; 0 or more.
    pub busy: f64,
}

/// Who is where.
#[derive(Clone, Debug, Default)]
pub struct Neighbours {
    /// By host and group, of those hosts that several groups have.
    parts: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Part>>,
    at: Option<Time>,
    events: Vec<Event>,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    busy: f64,
    /// It was told that the others matter to it.
    told: bool,
}

impl Neighbours {
    /// Takes a look at all groups: what their members did since the look before.
    pub fn observe(&mut self, stakes: &[Stake], now: Time) {
        let seconds = self.at.replace(now).map_or(0.0, |at| now.since(at).as_secs_f64());
        let kept = libm::exp2(-seconds / HALF_LIFE);
        let mut seen: BTreeMap<Arc<str>, BTreeMap<Arc<str>, f64>> = BTreeMap::new();
        for stake in stakes.iter().filter(|stake| stake.busy.is_finite() && stake.busy >= 0.0) {
            let group = seen.entry(Arc::clone(&stake.host)).or_default();
            *group.entry(Arc::clone(&stake.group)).or_default() += stake.busy;
        }
        seen.retain(|_, groups| groups.len() > 1);
        let mut before = core::mem::take(&mut self.parts);
        for (host, groups) in seen {
            let known = before.remove(&host).unwrap_or_default();
            let part = |(group, busy): (Arc<str>, f64)| {
                let part = known.get(&group).map_or(Part { busy, told: false }, |part| Part {
                    busy: busy + (part.busy - busy) * kept,
                    ..*part
                });
                (group, part)
            };
            self.parts.insert(host, groups.into_iter().map(part).collect());
        }
        // Of a host that is nobody else's any more.
        for (host, groups) in before {
            for (group, _) in groups.iter().filter(|(_, part)| part.told) {
                self.events.push(event(group, format!("has {host} to itself again"), Vec::new()));
            }
        }
        self.tell();
    }

    /// The group's part of what goes on at a host, above 0 and at most 1; and how many groups are there.
    pub fn share(&self, host: &str, group: &str) -> (f64, u32) {
        let Some(groups) = self.parts.get(host) else { return (1.0, 1) };
        let count = groups.len() as f64;
        let all: f64 = groups.values().map(|part| part.busy).sum();
        let Some(own) = groups.get(group) else { return (1.0, 1) };
        // Where hardly anything is done nobody has more than the others.
        let share = (own.busy + IDLE) / (all + count * IDLE);
        (share.clamp(LEAST, 1.0), groups.len() as u32)
    }

    /// The other groups on a host with their parts, the greatest first.
    pub fn others(&self, host: &str, group: &str) -> Vec<(Arc<str>, f64)> {
        let Some(groups) = self.parts.get(host) else { return Vec::new() };
        let others = groups.keys().filter(|name| ***name != *group);
        let mut others: Vec<_> = others.map(|name| (Arc::clone(name), self.share(host, name).0)).collect();
        others.sort_by(|one, other| other.1.total_cmp(&one.1));
        others
    }

    /// What there is to be told next.
    pub fn poll_event(&mut self) -> Option<Event> {
        (!self.events.is_empty()).then(|| self.events.remove(0))
    }

    /// Says to whom it begins or ceases to matter who else is there.
    fn tell(&mut self) {
        let mut news = Vec::new();
        for (host, groups) in &self.parts {
            for (group, part) in groups {
                let (share, _) = self.share(host, group);
                let idle = groups.values().map(|part| part.busy).sum::<f64>() < BUSY;
                let matters = match part.told {
                    false => 1.0 - share >= MUCH && !idle,
                    true => 1.0 - share >= LITTLE,
                };
                if matters != part.told {
                    news.push((Arc::clone(host), Arc::clone(group), share));
                }
            }
        }
        for (host, group, share) in news {
            let others = self.others(&host, &group);
            let named = others.iter().take(NAMED).map(|(name, part)| format!("{name} {:.0}%", part * 100.0));
            let named: Vec<String> = named.collect();
            let told = self.parts.get_mut(&host).and_then(|groups| groups.get_mut(&group));
            let Some(told) = told else { continue };
            told.told = !told.told;
            let why = match told.told {
                true => format!(
                    "shares {host} with others, who do much of what is done there: {}",
                    named.join(", ")
                ),
                false => format!("shares {host} with others who do little there: {}", named.join(", ")),
            };
            let mut inputs = Vec::from([("own_share".to_string(), share)]);
            inputs.extend(others.iter().take(NAMED).map(|(name, part)| (format!("share_of_{name}"), *part)));
            self.events.push(event(&group, why, inputs));
        }
    }
}

fn event(group: &Arc<str>, why: String, inputs: Vec<(String, f64)>) -> Event {
    Event { kind: EventKind::HostShared, group: Arc::clone(group), member: None, why, inputs }
}

/// A load told apart: what the group itself does at once, what others do slowly.
#[derive(Clone, Copy, Debug)]
pub struct Apart {
    share: f64,
    groups: u32,
    /// What others cause, followed.
    others: Option<f64>,
}

impl Default for Apart {
    fn default() -> Self {
        Self { share: 1.0, groups: 1, others: None }
    }
}

impl Apart {
    /// The group's part of what goes on there, and how many groups are there: [`Neighbours::share`].
    pub fn set(&mut self, (share, groups): (f64, u32)) {
        (self.share, self.groups) = (share.clamp(LEAST, 1.0), groups.max(1));
        if self.groups == 1 {
            (self.share, self.others) = (1.0, None);
        }
    }

    /// What was told before says nothing of what comes now.
    pub fn forget(&mut self) {
        self.others = None;
    }

    /// The load to go by, where `load` is told of the host as a whole.
    pub fn load(&mut self, load: f64) -> f64 {
        if self.groups == 1 {
            return load;
        }
        let own = load * self.share;
        let others = load - own;
        let slow = match self.others {
            Some(slow) => slow + (others - slow) / (2.0 * f64::from(self.groups)),
            None => others,
        };
        self.others = Some(slow);
        own + slow
    }

    /// The part of the load that is the group's own, 0 to 1.
    pub fn share(&self) -> f64 {
        self.share
    }
}

/// Seconds after which half of what was done is forgotten.
const HALF_LIFE: f64 = 5.0;

/// Requests at work that are nobody's, so that where nothing is done all have the same.
const IDLE: f64 = 0.01;

/// Nobody's part is taken for less: it would never come to know what it does.
const LEAST: f64 = 0.02;

/// Requests at work at a host below which it matters to nobody whose they are.
const BUSY: f64 = 0.5;

/// From which part of what is done others matter, and down to which they go on to.
const MUCH: f64 = 0.25;
const LITTLE: f64 = 0.1;

/// Groups that are named.
const NAMED: usize = 4;
