//! Findings of other balancers about members (`[fleet]`), and the conditions under which they count.

use alloc::format;
use core::time::Duration;

use crate::{MemberId, ReportedLoad, Time};

use super::{Analyzer, HealthVerdict};

impl Analyzer {
    /// Follows another balancer's ejection of this member, for `left` from now on, if the ejection budget
    /// allows.
    pub fn handle_peer_ejection(&mut self, member: MemberId, remaining: Duration, balancer: &str, now: Time) {
        self.advance(now);
        let Some(&index) = self.index_by_id.get(&member) else { return };
        self.eject_by(
            index,
            format!("balancer {balancer} has ejected it"),
            &[("told", 1.0)],
            |ejection, outlier, now| {
                ejection.begin_from_peer(remaining.min(outlier.max_ejection.max(outlier.ejection)), now)
            },
        );
        self.derive_group_state();
    }

    /// Records another balancer's health check of a member.
    ///
    /// A pass counts unless requests from here fail. A failure counts if the member is already down. Returns
    /// `false` if this balancer must check by itself, now.
    pub fn handle_peer_check(&mut self, member: MemberId, passed: bool, balancer: &str, now: Time) -> bool {
        let Some(entry) = self.index_by_id.get(&member).map(|index| &self.entries[*index]) else {
            return true;
        };
        let is_contradicted = match passed {
            true => entry.vitals.streak() > 0,
            false => entry.health.verdict != HealthVerdict::Down,
        };
        if is_contradicted {
            return false;
        }
        let reason = format!("balancer {balancer} says so");
        self.handle_probe(member, if passed { Ok(()) } else { Err(&*reason) }, now);
        true
    }

    /// Records a load report that another balancer received.
    pub fn handle_peer_load(&mut self, member: MemberId, load: ReportedLoad) {
        let last_load = self.index_by_id.get(&member).and_then(|index| self.entries[*index].load);
        if last_load.is_none_or(|last| load.at > last.at) {
            self.handle_load(member, load);
        }
    }
}
