//! What operators do with members: drained and disabled ones get nothing new. Nor do those of which the configuration says that they
//! are about to leave.

use alloc::format;
use alloc::string::{String, ToString};

use core::mem;

use serde::{Deserialize, Serialize};

use crate::{EventKind, Time};

use super::health::Verdict;
use super::{Analyzer, Entry};

/// Why a member is draining that nobody drains.
pub(super) const LEAVING: &str = "it is about to end, its source of members says";

/// Who lets a member's work end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Drainer {
    /// A person, or what acts for one.
    #[default]
    Operator,
    /// The group's scaler, which has no use for it any more.
    Scaler,
}

impl Drainer {
    /// Why a member is drained, for a person.
    pub(super) fn why(self) -> &'static str {
        match self {
            Self::Operator => "drained by an operator",
            Self::Scaler => "drained by the scaler",
        }
    }
}

impl Analyzer {
    /// An error if there is no such member.
    pub fn has(&self, member: &str) -> Result<(), String> {
        let found = self.spec.members.iter().any(|spec| &*spec.name == member);
        if found { Ok(()) } else { Err(self.no_such(member)) }
    }

    /// Gives a member nothing new from now on, as an operator says. An error if there is no such member; nothing if it is draining.
    pub fn drain(&mut self, member: &str, now: Time) -> Result<(), String> {
        self.drain_by(member, Drainer::Operator, now)
    }

    /// The same, as somebody says who is named in what is told of it.
    pub fn drain_by(&mut self, member: &str, who: Drainer, now: Time) -> Result<(), String> {
        self.set_draining(member, Some(who), now)
    }

    /// Takes a member back. An error if there is no such member; nothing if it is not draining.
    pub fn undrain(&mut self, member: &str, now: Time) -> Result<(), String> {
        self.set_draining(member, None, now)
    }

    /// Takes a member out of use, at once and without telling anybody: it gets nothing new, and keeps what it has. An error
    /// if there is no such member; nothing if it is disabled.
    pub fn disable(&mut self, member: &str, now: Time) -> Result<(), String> {
        self.set_disabled(member, true, now)
    }

    /// Puts a member back in use. An error if there is no such member; nothing if it is not disabled.
    pub fn enable(&mut self, member: &str, now: Time) -> Result<(), String> {
        self.set_disabled(member, false, now)
    }

    fn set_draining(&mut self, member: &str, who: Option<Drainer>, now: Time) -> Result<(), String> {
        self.advance(now);
        let Some(place) = self.spec.members.iter().position(|spec| &*spec.name == member) else {
            return Err(self.no_such(member));
        };
        let entry = &mut self.entries[place];
        if mem::replace(&mut entry.draining, who.is_some()) != who.is_some() {
            let in_flight = f64::from(entry.vitals.in_flight());
            entry.drainer = who.unwrap_or_default();
            let (kind, why) = match who {
                Some(who) => (EventKind::Draining, who.why()),
                None => (EventKind::Undrained, "taken back by an operator"),
            };
            self.tell_of(place, kind, why.to_string(), &[("in_flight", in_flight)]);
            self.settle(place);
            self.survey();
        }
        Ok(())
    }

    /// A member that was not there, or not at this address: what is known of another server by its name says nothing of it. What operators
    /// said they said of the name.
    pub(super) fn newcomer(&mut self, place: usize, before: Option<Entry>) -> Entry {
        let name = self.spec.members[place].name.clone();
        let fresh = self.entry(place, false);
        let (why, entry) = match before {
            Some(before) => {
                if let Some(rebind) = &mut self.rebind {
                    rebind.forget(before.id);
                }
                let why = format!("{name} is at another address now");
                let Entry { draining, drainer, disabled, health, .. } = before;
                let stays = self.spec.members[place].checked
                    && self.spec.health.is_some()
                    && health.verdict == Verdict::Up;
                let (health, original) = match stays {
                    true => (health, true),
                    false => (fresh.health, fresh.original),
                };
                (why, Entry { draining, drainer, disabled, health, original, ..fresh })
            }
            None => (format!("{name} joined the group"), fresh),
        };
        self.tell(EventKind::Joined, Some(name), why, &[]);
        entry
    }

    /// Whether the member at `place` is about to leave follows from the configuration; its state is settled by the caller.
    pub(super) fn follow_leaving(&mut self, place: usize) {
        let leaving = self.spec.members[place].leaving;
        let entry = &mut self.entries[place];
        if mem::replace(&mut entry.leaving, leaving) != leaving {
            let in_flight = f64::from(entry.vitals.in_flight());
            let (kind, why) = match leaving {
                true => (EventKind::Draining, LEAVING),
                false => (EventKind::Undrained, "it stays, its source of members says"),
            };
            self.tell_of(place, kind, why.to_string(), &[("in_flight", in_flight)]);
        }
    }

    fn set_disabled(&mut self, member: &str, disabled: bool, now: Time) -> Result<(), String> {
        self.advance(now);
        let Some(place) = self.spec.members.iter().position(|spec| &*spec.name == member) else {
            return Err(self.no_such(member));
        };
        let entry = &mut self.entries[place];
        if mem::replace(&mut entry.disabled, disabled) != disabled {
            let in_flight = f64::from(entry.vitals.in_flight());
            let (kind, why) = match disabled {
                true => (EventKind::Disabled, "disabled by an operator"),
                false => (EventKind::Enabled, "enabled by an operator"),
            };
            self.tell_of(place, kind, why.to_string(), &[("in_flight", in_flight)]);
            self.settle(place);
            self.survey();
        }
        Ok(())
    }
}

impl Entry {
    /// Does it get nothing new and keep what it has?
    pub(super) fn drained(&self) -> bool {
        self.draining || self.leaving
    }
}
