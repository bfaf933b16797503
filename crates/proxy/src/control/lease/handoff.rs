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
        let snapshot = |(id, held_lease): (&u128, &HeldLease)| LeaseSnapshot {
            id: format!("{id:032x}"),
            group: held_lease.group.name.to_string(),
            member: held_lease.name.to_string(),
            address: held_lease.address,
            span: held_lease.span,
            until: held_lease.expires_at,
            client: held_lease.client,
            from: held_lease.from,
            moves: held_lease.moves,
        };
        self.lease_table.all().map(snapshot).collect()
    }

    /// Continues the leases of the previous process, except for those of removed groups and members.
    pub(crate) fn resume_leases(&mut self, snapshots: impl Iterator<Item = LeaseSnapshot>, now: Time) {
        for snapshot in snapshots.take(MAX_LEASES) {
            let Ok(id) = u128::from_str_radix(&snapshot.id, 16) else { continue };
            let Some(group_state) = self.groups.get(&*snapshot.group) else { continue };
            let Some(record) = group_state.id(&snapshot.member).and_then(|id| group_state.record(id)) else {
                continue;
            };
            record.vitals.begin();
            let group = Arc::clone(&group_state.group);
            let duration = snapshot.span.clamp(SHORTEST_LEASE, LONGEST_LEASE);
            let held_lease = HeldLease {
                slot: InFlightSlot::from_counted(&group, record),
                name: snapshot.member.as_str().into(),
                address: snapshot.address,
                span: duration,
                expires_at: snapshot.until.min(now + duration),
                client: snapshot.client,
                from: snapshot.from,
                moves: snapshot.moves,
                group,
            };
            self.lease_table.insert(id, held_lease);
        }
        let names: Vec<_> = self.groups.keys().cloned().collect();
        for name in names {
            self.update_has_leases(&name, now);
        }
    }
}
