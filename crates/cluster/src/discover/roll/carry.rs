//! What the sources of a group said last, for another process that goes on with it: believed until they say something themselves, as
//! if they had failed there.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::super::{Kind, Listed, MOST};
use super::{Kept, Roll};

/// Whom a source had. Which one it is, is told by how it is called: its other settings may be other ones in another process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Last {
    /// [`Kind::name`].
    kind: String,
    /// [`Kind::what`].
    what: String,
    members: Vec<Member>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Member {
    name: String,
    address: SocketAddr,
    capacity: f64,
    #[serde(default)]
    limit: Option<u32>,
    #[serde(default)]
    leaving: bool,
    /// It is not listed any more, and goes in so many seconds.
    #[serde(default)]
    left_seconds: Option<f64>,
}

impl Member {
    fn of(kept: &Kept, now: Instant) -> Self {
        let Listed { name, address, capacity, limit, leaving } = &kept.member;
        Self {
            name: name.to_string(),
            address: *address,
            capacity: *capacity,
            limit: *limit,
            leaving: *leaving,
            left_seconds: kept.until.map(|until| until.saturating_duration_since(now).as_secs_f64()),
        }
    }

    /// `None` for what no source of ours would list.
    fn kept(self, now: Instant) -> Option<Kept> {
        let Self { name, address, capacity, limit, leaving, left_seconds } = self;
        let usable = capacity.is_finite() && capacity > 0.0 && address.port() != 0 && !name.is_empty();
        let left = left_seconds.map(|left| Duration::try_from_secs_f64(left).unwrap_or_default());
        let member = Listed { name: name.into(), address, capacity, limit, leaving };
        // Some time that cannot be reached is for ever, as for one that is listed.
        usable.then(|| Kept { member, until: left.and_then(|left| now.checked_add(left)) })
    }
}

impl Kind {
    /// Does another process have to be told what it said? Not where somebody else tells it: the store, or whoever scales.
    fn carried(&self) -> bool {
        !matches!(self, Self::Registered(_) | Self::Scaler(_))
    }
}

impl Roll {
    /// What the sources said last that are in the configuration and have members.
    pub fn last(&self, now: Instant) -> Vec<Last> {
        let current = self.entries.iter().filter(|entry| entry.former.is_none());
        let current = current.filter(|entry| entry.source.kind.carried() && !entry.members.is_empty());
        let last = current.map(|entry| Last {
            kind: entry.source.kind.name().to_owned(),
            what: entry.source.kind.what(),
            members: entry.members.iter().map(|kept| Member::of(kept, now)).collect(),
        });
        last.collect()
    }

    /// Goes on with what the same sources said to another process. They were not heard here: whatever one says itself counts.
    pub fn recall(&mut self, mut lasts: Vec<Last>, now: Instant) {
        let unheard =
            self.entries.iter_mut().filter(|entry| entry.heard.is_none() && entry.members.is_empty());
        for entry in unheard.filter(|entry| entry.former.is_none() && entry.source.kind.carried()) {
            let (kind, what) = (entry.source.kind.name(), entry.source.kind.what());
            let same = |last: &Last| last.kind == kind && last.what == what;
            // Of several that are called the same each has its own, in their order.
            let Some(place) = lasts.iter().position(same) else { continue };
            let members = lasts.remove(place).members.into_iter().take(2 * MOST);
            entry.members = members.filter_map(|member| member.kept(now)).collect();
        }
    }
}
