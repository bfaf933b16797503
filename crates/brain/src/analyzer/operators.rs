//! What operators do with members: drained and disabled ones get nothing new.

use alloc::string::{String, ToString};

use core::mem;

use crate::{EventKind, Time};

use super::Analyzer;

impl Analyzer {
    /// An error if there is no such member.
    pub fn has(&self, member: &str) -> Result<(), String> {
        let found = self.spec.members.iter().any(|spec| &*spec.name == member);
        if found { Ok(()) } else { Err(self.no_such(member)) }
    }

    /// Gives a member nothing new from now on. An error if there is no such member; nothing if it is draining.
    pub fn drain(&mut self, member: &str, now: Time) -> Result<(), String> {
        self.set_draining(member, true, now)
    }

    /// Takes a member back. An error if there is no such member; nothing if it is not draining.
    pub fn undrain(&mut self, member: &str, now: Time) -> Result<(), String> {
        self.set_draining(member, false, now)
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

    fn set_draining(&mut self, member: &str, draining: bool, now: Time) -> Result<(), String> {
        self.advance(now);
        let Some(place) = self.spec.members.iter().position(|spec| &*spec.name == member) else {
            return Err(self.no_such(member));
        };
        let entry = &mut self.entries[place];
        if mem::replace(&mut entry.draining, draining) != draining {
            let in_flight = f64::from(entry.vitals.in_flight());
            let (kind, why) = match draining {
                true => (EventKind::Draining, "drained by an operator"),
                false => (EventKind::Undrained, "taken back by an operator"),
            };
            self.tell_of(place, kind, why.to_string(), &[("in_flight", in_flight)]);
            self.settle(place);
            self.survey();
        }
        Ok(())
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
