//! The handoff of leases from one process to the next: clients renew them there by the same numbers.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::{MoveHistory, Time};
use serde::{Deserialize, Serialize};

use super::table::{HeldLease, InFlightSlot};
use super::{LONGEST_LEASE, MAX_LEASES, SHORTEST_LEASE};
use crate::control::ControlPlane;

/// One lease.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LeaseSnapshot {
    /// 32 hexadecimal digits.
    id: String,
    group: String,
    member: String,
    address: SocketAddr,
    span: Duration,
    until: Time,
    client: Option<u64>,
    from: Option<IpAddr>,
    #[serde(default)]
    moves: MoveHistory,
}

impl ControlPlane {
    /// Returns all leases in force.
    pub(crate) fn lease_snapshots(&self) -> Vec<LeaseSnapshot> {
        let left = |(id, loan): (&u128, &HeldLease)| LeaseSnapshot {
            id: format!("{id:032x}"),
            group: loan.group.name.to_string(),
            member: loan.name.to_string(),
            address: loan.address,
            span: loan.span,
            until: loan.until,
            client: loan.client,
            from: loan.from,
            moves: loan.moves,
        };
        self.lease_table.all().map(left).collect()
    }

    /// Continues the leases of the previous process, except for those of removed groups and members.
    pub(crate) fn resume_leases(&mut self, left: impl Iterator<Item = LeaseSnapshot>, now: Time) {
        for lease in left.take(MAX_LEASES) {
            let Ok(id) = u128::from_str_radix(&lease.id, 16) else { continue };
            let Some(ruled) = self.groups.get(&*lease.group) else { continue };
            let Some(record) = ruled.id(&lease.member).and_then(|id| ruled.record(id)) else { continue };
            record.vitals.begin();
            let group = Arc::clone(&ruled.group);
            let span = lease.span.clamp(SHORTEST_LEASE, LONGEST_LEASE);
            let loan = HeldLease {
                slot: InFlightSlot::from_counted(&group, record),
                name: lease.member.as_str().into(),
                address: lease.address,
                span,
                until: lease.until.min(now + span),
                client: lease.client,
                from: lease.from,
                moves: lease.moves,
                group,
            };
            self.lease_table.insert(id, loan);
        }
        let names: Vec<_> = self.groups.keys().cloned().collect();
        for name in names {
            self.update_has_leases(&name, now);
        }
    }
}
