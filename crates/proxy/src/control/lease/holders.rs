//! Lists a group's lease holders for operators, who may also end leases. Lease numbers are not shown, as each
//! is its client's credential.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::{Event, EventKind, Time};

use super::LeaseError;
use super::table::HeldLease;
use crate::control::ControlPlane;

/// The maximum number of lines of a list; one more line sums up the rest.
const MAX_LINES: usize = 1000;

/// The leases of one member by clients at one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseHolder {
    /// The member, as configured; `None` for the rest of a long list.
    pub member: Option<Arc<str>>,
    /// The clients' address; `None` over a Unix socket, and for the rest of a long list.
    pub from: Option<IpAddr>,
    /// The number of leases.
    pub leases: usize,
    /// The time until the last of them ends, if none is renewed.
    pub remaining: Duration,
}

impl ControlPlane {
    /// Implements [`Engine::leases`](crate::Engine::leases).
    pub(crate) fn leases(&mut self, group: &str, now: Time) -> Result<Vec<LeaseHolder>, LeaseError> {
        self.lease_table.sweep(now);
        self.group_state(group)?;
        let mut by_holder = BTreeMap::<_, (usize, Time)>::new();
        for held_lease in self.lease_table.leases().filter(|held_lease| *held_lease.group.name == *group) {
            let (leases, latest_end) =
                by_holder.entry((&held_lease.name, held_lease.from)).or_insert((0, held_lease.expires_at));
            (*leases, *latest_end) = (*leases + 1, held_lease.expires_at.max(*latest_end));
        }
        let holders = by_holder.into_iter().map(|((member, from), (leases, latest_end))| LeaseHolder {
            member: Some(Arc::clone(member)),
            from,
            leases,
            remaining: latest_end.since(now),
        });
        let mut holders: Vec<LeaseHolder> = holders.collect();
        // Holders with most leases first.
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.leases));
        if holders.len() > MAX_LINES {
            let folded = holders.split_off(MAX_LINES);
            let remaining = folded.iter().map(|holder| holder.remaining).max().unwrap_or_default();
            let leases = folded.iter().map(|holder| holder.leases).sum();
            holders.push(LeaseHolder { member: None, from: None, leases, remaining });
        }
        Ok(holders)
    }

    /// Implements [`Engine::end_leases`](crate::Engine::end_leases).
    pub(crate) fn end_leases_of(
        &mut self,
        group: &str,
        member: Option<&str>,
        client: Option<IpAddr>,
        now: Time,
    ) -> Result<usize, LeaseError> {
        self.lease_table.sweep(now);
        let name = Arc::clone(&self.group_state(group)?.group.name);
        let matches_lease = |held_lease: &HeldLease| {
            *held_lease.group.name == *name
                && member.is_none_or(|member| *held_lease.name == *member)
                && (client.is_none() || held_lease.from == client)
        };
        let ended = self.lease_table.end(matches_lease);
        // A removed member may have had leases; an unknown name is a typing error.
        if ended == 0
            && let Some(member) = member
            && self.group_state(group)?.id(member).is_none()
        {
            return Err(LeaseError::Unknown(format!("group {group} has no member {member}")));
        }
        if ended > 0 {
            let member_text = member.map_or_else(String::new, |member| format!(" of {member}"));
            let client_text = client.map_or_else(String::new, |from| format!(" of clients at {from}"));
            let message = format!("an operator ended {ended} leases{member_text}{client_text}");
            let inputs = vec![("leases".into(), ended as f64)];
            let member = member.map(Arc::from);
            self.event_log.write(Event {
                kind: EventKind::Changed,
                group: name,
                member,
                why: message,
                inputs,
            });
        }
        self.end_expired_leases(now);
        Ok(ended)
    }
}
