//! Operators' commands: drained and disabled members get nothing new. Neither do members that leave, by the
//! configuration.

use alloc::format;
use alloc::string::{String, ToString};

use core::mem;

use serde::{Deserialize, Serialize};

use crate::{EventKind, Time};

use super::health::HealthVerdict;
use super::{AnalyzedMember, Analyzer};

/// The reason why a member drains without a command.
pub(super) const LEAVING_REASON: &str = "it is about to end, its source of members says";

/// The actor that drains a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrainInitiator {
    /// A person, or a program on behalf of one.
    #[default]
    Operator,
    /// The group's scaler, which needs the member no more.
    Scaler,
}

impl DrainInitiator {
    /// Returns the reason of the drain, for display.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Operator => "drained by an operator",
            Self::Scaler => "drained by the scaler",
        }
    }
}

impl Analyzer {
    /// Returns an error if there is no such member.
    pub fn ensure_exists(&self, member: &str) -> Result<(), String> {
        let exists = self.spec.members.iter().any(|spec| &*spec.name == member);
        if exists { Ok(()) } else { Err(self.unknown_member_error(member)) }
    }

    /// Drains a member on behalf of an operator: it gets nothing new. Returns an error if there is no such
    /// member; does nothing if it is draining.
    pub fn drain(&mut self, member: &str, now: Time) -> Result<(), String> {
        self.drain_by(member, DrainInitiator::Operator, now)
    }

    /// Drains a member on behalf of the given actor, which the event names.
    pub fn drain_by(&mut self, member: &str, initiator: DrainInitiator, now: Time) -> Result<(), String> {
        self.set_draining(member, Some(initiator), now)
    }

    /// Ends the drain of a member. Returns an error if there is no such member; does nothing if it is not
    /// draining.
    pub fn undrain(&mut self, member: &str, now: Time) -> Result<(), String> {
        self.set_draining(member, None, now)
    }

    /// Disables a member at once, without a notification: it gets nothing new, and keeps its work. Returns an
    /// error if there is no such member; does nothing if it is disabled.
    pub fn disable(&mut self, member: &str, now: Time) -> Result<(), String> {
        self.set_disabled(member, true, now)
    }

    /// Enables a member. Returns an error if there is no such member; does nothing if it is not disabled.
    pub fn enable(&mut self, member: &str, now: Time) -> Result<(), String> {
        self.set_disabled(member, false, now)
    }

    fn set_draining(
        &mut self,
        member: &str,
        initiator: Option<DrainInitiator>,
        now: Time,
    ) -> Result<(), String> {
        self.advance(now);
        let Some(index) = self.spec.members.iter().position(|spec| &*spec.name == member) else {
            return Err(self.unknown_member_error(member));
        };
        let entry = &mut self.entries[index];
        if mem::replace(&mut entry.draining, initiator.is_some()) != initiator.is_some() {
            let in_flight = f64::from(entry.vitals.in_flight());
            entry.drained_by = initiator.unwrap_or_default();
            let (kind, reason) = match initiator {
                Some(initiator) => (EventKind::Draining, initiator.reason()),
                None => (EventKind::Undrained, "taken back by an operator"),
            };
            self.emit_member_event(index, kind, reason.to_string(), &[("in_flight", in_flight)]);
            self.derive_state(index);
            self.derive_group_state();
        }
        Ok(())
    }

    /// Returns the entry of a new member, or of one at a new address. The state of another server of that
    /// name does not count for it, but operators' commands apply to the name.
    pub(super) fn entry_for_newcomer(
        &mut self,
        index: usize,
        previous: Option<AnalyzedMember>,
    ) -> AnalyzedMember {
        let name = self.spec.members[index].name.clone();
        let new_entry = self.entry(index, false);
        let (reason, entry) = match previous {
            Some(previous) => {
                if let Some(alerts) = &mut self.alerts {
                    alerts.forget(previous.id);
                }
                let reason = format!("{name} is at another address now");
                let AnalyzedMember { draining, drained_by, disabled, health, .. } = previous;
                let keeps_health = self.spec.members[index].checked
                    && self.spec.health.is_some()
                    && health.verdict == HealthVerdict::Up;
                let (health, original) = match keeps_health {
                    true => (health, true),
                    false => (new_entry.health, new_entry.original),
                };
                (reason, AnalyzedMember { draining, drained_by, disabled, health, original, ..new_entry })
            }
            None => (format!("{name} joined the group"), new_entry),
        };
        self.emit_event(EventKind::Joined, Some(name), reason, &[]);
        entry
    }

    /// Follows the configuration on whether the member at `place` is about to leave; the caller derives its
    /// state.
    pub(super) fn update_leaving(&mut self, index: usize) {
        let leaving = self.spec.members[index].leaving;
        let entry = &mut self.entries[index];
        if mem::replace(&mut entry.leaving, leaving) != leaving {
            let in_flight = f64::from(entry.vitals.in_flight());
            let (kind, reason) = match leaving {
                true => (EventKind::Draining, LEAVING_REASON),
                false => (EventKind::Undrained, "it stays, its source of members says"),
            };
            self.emit_member_event(index, kind, reason.to_string(), &[("in_flight", in_flight)]);
        }
    }

    fn set_disabled(&mut self, member: &str, disabled: bool, now: Time) -> Result<(), String> {
        self.advance(now);
        let Some(index) = self.spec.members.iter().position(|spec| &*spec.name == member) else {
            return Err(self.unknown_member_error(member));
        };
        let entry = &mut self.entries[index];
        if mem::replace(&mut entry.disabled, disabled) != disabled {
            let in_flight = f64::from(entry.vitals.in_flight());
            let (kind, reason) = match disabled {
                true => (EventKind::Disabled, "disabled by an operator"),
                false => (EventKind::Enabled, "enabled by an operator"),
            };
            self.emit_member_event(index, kind, reason.to_string(), &[("in_flight", in_flight)]);
            self.derive_state(index);
            self.derive_group_state();
        }
        Ok(())
    }
}

impl AnalyzedMember {
    /// Returns `true` if it gets nothing new and keeps its work.
    pub(super) fn is_draining(&self) -> bool {
        self.draining || self.leaving
    }
}
