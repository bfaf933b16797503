//! The last members of a group's sources, for another process that continues with them. They count until the
//! sources respond there, as if the sources had failed.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::super::{Kind, Listed, MOST};
use super::{Kept, Roll};

/// The members of a source. Kind and name identify it, since its other settings may differ in another
/// process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Last {
    /// The result of [`Kind::name`].
    kind: String,
    /// The result of [`Kind::what`].
    what: String,
    members: Vec<Member>,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Member {
    name: String,
    address: SocketAddr,
    capacity: f64,
    #[serde(default)]
    limit: Option<u32>,
    #[serde(default)]
    leaving: bool,
    /// The number of seconds until the member goes, if it is no longer listed.
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

    /// Converts the member; `None` if it is invalid.
    fn kept(self, now: Instant) -> Option<Kept> {
        let Self { name, address, capacity, limit, leaving, left_seconds } = self;
        let usable = capacity.is_finite() && capacity > 0.0 && address.port() != 0 && !name.is_empty();
        let left = left_seconds.map(|left| Duration::try_from_secs_f64(left).unwrap_or_default());
        let member = Listed { name: name.into(), address, capacity, limit, leaving };
        // A time beyond the clock's range counts as unlimited, as for a listed member.
        usable.then(|| Kept { member, until: left.and_then(|left| now.checked_add(left)) })
    }
}

impl Kind {
    /// Returns `true` if the members must be handed over. The store or the scaler provides the others.
    fn carried(&self) -> bool {
        !matches!(self, Self::Registered(_) | Self::Scaler(_))
    }
}

impl Roll {
    /// Returns the last members of the configured sources that have any.
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

    /// Applies the members from another process to the same sources. Sources that have already responded keep
    /// their own.
    pub fn recall(&mut self, mut lasts: Vec<Last>, now: Instant) {
        let unheard =
            self.entries.iter_mut().filter(|entry| entry.heard.is_none() && entry.members.is_empty());
        for entry in unheard.filter(|entry| entry.former.is_none() && entry.source.kind.carried()) {
            let (kind, what) = (entry.source.kind.name(), entry.source.kind.what());
            let same = |last: &Last| last.kind == kind && last.what == what;
            // Sources with equal names receive their own members, in order.
            let Some(place) = lasts.iter().position(same) else { continue };
            let members = lasts.remove(place).members.into_iter().take(2 * MOST);
            entry.members = members.filter_map(|member| member.kept(now)).collect();
        }
    }
}
