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
        let mut found = BTreeMap::<_, (usize, Time)>::new();
        for loan in self.lease_table.leases().filter(|loan| *loan.group.name == *group) {
            let (leases, until) = found.entry((&loan.name, loan.from)).or_insert((0, loan.until));
            (*leases, *until) = (*leases + 1, loan.until.max(*until));
        }
        let lines = found.into_iter().map(|((member, from), (leases, until))| LeaseHolder {
            member: Some(Arc::clone(member)),
            from,
            leases,
            remaining: until.since(now),
        });
        let mut lines: Vec<LeaseHolder> = lines.collect();
        // Holders with most leases first.
        lines.sort_by_key(|line| std::cmp::Reverse(line.leases));
        if lines.len() > MAX_LINES {
            let others = lines.split_off(MAX_LINES);
            let left = others.iter().map(|line| line.remaining).max().unwrap_or_default();
            let leases = others.iter().map(|line| line.leases).sum();
            lines.push(LeaseHolder { member: None, from: None, leases, remaining: left });
        }
        Ok(lines)
    }

    /// Implements [`Engine::end_leases`](crate::Engine::end_leases).
    pub(crate) fn end_leases_of(
        &mut self,
        group: &str,
        member: Option<&str>,
        from: Option<IpAddr>,
        now: Time,
    ) -> Result<usize, LeaseError> {
        self.lease_table.sweep(now);
        let name = Arc::clone(&self.group_state(group)?.group.name);
        let meant = |loan: &HeldLease| {
            *loan.group.name == *name
                && member.is_none_or(|member| *loan.name == *member)
                && (from.is_none() || loan.from == from)
        };
        let ended = self.lease_table.end(meant);
        // A removed member may have had leases; an unknown name is a typing error.
        if ended == 0
            && let Some(member) = member
            && self.group_state(group)?.id(member).is_none()
        {
            return Err(LeaseError::Unknown(format!("group {group} has no member {member}")));
        }
        if ended > 0 {
            let of = member.map_or_else(String::new, |member| format!(" of {member}"));
            let at = from.map_or_else(String::new, |from| format!(" of clients at {from}"));
            let why = format!("an operator ended {ended} leases{of}{at}");
            let inputs = vec![("leases".into(), ended as f64)];
            let member = member.map(Arc::from);
            self.event_log.write(Event { kind: EventKind::Changed, group: name, member, why, inputs });
        }
        self.end_expired_leases(now);
        Ok(ended)
    }
}
