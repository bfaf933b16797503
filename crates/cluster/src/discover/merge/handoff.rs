//! The last members of a group's sources, for another process that continues with them. They count until the
//! sources respond there, as if the sources had failed.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::super::{DiscoveredMember, MAX_MEMBERS, SourceKind};
use super::{KeptMember, MemberSet};

/// The members of a source. Kind and name identify it, since its other settings may differ in another
/// process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SourceHandoff {
    /// The result of [`SourceKind::name`].
    kind: String,
    /// The result of [`SourceKind::target`].
    what: String,
    members: Vec<HandoffMember>,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct HandoffMember {
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

impl HandoffMember {
    fn from_kept(kept: &KeptMember, now: Instant) -> Self {
        let DiscoveredMember { name, address, capacity, limit, leaving } = &kept.member;
        Self {
            name: name.to_string(),
            address: *address,
            capacity: *capacity,
            limit: *limit,
            leaving: *leaving,
            left_seconds: kept
                .expires_at
                .map(|expires_at| expires_at.saturating_duration_since(now).as_secs_f64()),
        }
    }

    /// Converts the member; `None` if it is invalid.
    fn into_kept(self, now: Instant) -> Option<KeptMember> {
        let Self { name, address, capacity, limit, leaving, left_seconds } = self;
        let is_valid = capacity.is_finite() && capacity > 0.0 && address.port() != 0 && !name.is_empty();
        let remaining = left_seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default());
        let member = DiscoveredMember { name: name.into(), address, capacity, limit, leaving };
        // A time beyond the clock's range counts as unlimited, as for a listed member.
        is_valid.then(|| KeptMember {
            member,
            expires_at: remaining.and_then(|remaining| now.checked_add(remaining)),
        })
    }
}

impl SourceKind {
    /// Returns `true` if the members must be handed over. The store or the scaler provides the others.
    fn needs_handoff(&self) -> bool {
        !matches!(self, Self::Registered(_) | Self::Scaler(_))
    }
}

impl MemberSet {
    /// Returns the last members of the configured sources that have any.
    pub fn handoff(&self, now: Instant) -> Vec<SourceHandoff> {
        let current = self.entries.iter().filter(|entry| entry.removed_at.is_none());
        let current = current.filter(|entry| entry.source.kind.needs_handoff() && !entry.members.is_empty());
        let handoffs = current.map(|entry| SourceHandoff {
            kind: entry.source.kind.name().to_owned(),
            what: entry.source.kind.target(),
            members: entry.members.iter().map(|kept| HandoffMember::from_kept(kept, now)).collect(),
        });
        handoffs.collect()
    }

    /// Applies the members from another process to the same sources. Sources that have already responded keep
    /// their own.
    pub fn restore(&mut self, mut handoffs: Vec<SourceHandoff>, now: Instant) {
        let unanswered =
            self.entries.iter_mut().filter(|entry| entry.last_list_at.is_none() && entry.members.is_empty());
        for entry in
            unanswered.filter(|entry| entry.removed_at.is_none() && entry.source.kind.needs_handoff())
        {
            let (kind, what) = (entry.source.kind.name(), entry.source.kind.target());
            let matches_source = |handoff: &SourceHandoff| handoff.kind == kind && handoff.what == what;
            // Sources with equal names receive their own members, in order.
            let Some(index) = handoffs.iter().position(matches_source) else { continue };
            let members = handoffs.remove(index).members.into_iter().take(2 * MAX_MEMBERS);
            entry.members = members.filter_map(|member| member.into_kept(now)).collect();
        }
    }
}
