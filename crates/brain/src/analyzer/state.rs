//! The derivation of states: a member's from its facts, and the group's from its members.

use alloc::format;
use alloc::string::ToString;
use core::mem;
use core::time::Duration;

use super::health::HealthVerdict;
use super::{Analyzer, WhenAllDown, slow_start};
use crate::{EventKind, MemberState, Time};

impl Analyzer {
    /// Takes one step of a slow start, or ends it.
    pub(super) fn advance_slow_start(&mut self, place: usize, since: Time) {
        let window = self.spec.slow_start;
        if self.now.since(since) >= window {
            self.entries[place].ramp = None;
            let why = "its slow start is over".to_string();
            self.emit_member_event(place, EventKind::FullShare, why, &[("seconds", window.as_secs_f64())]);
            self.derive_state(place);
        } else {
            self.schedule_timeout((self.now + slow_start::step(window)).min(since + window));
        }
        self.stale = true;
    }

    pub(super) fn schedule_timeout(&mut self, time: Time) {
        self.next_timeout = Some(self.next_timeout.map_or(time, |wake| wake.min(time)));
    }

    /// Derives a member's state from its facts.
    pub(super) fn derive_state(&mut self, place: usize) {
        let slow = self.spec.slow_start;
        let placed = self.spec.members[place].has_address();
        let entry = &mut self.entries[place];
        let before = entry.state;
        let barred = match entry.health.verdict {
            _ if entry.disabled => Some(MemberState::Disabled),
            _ if entry.is_draining() => Some(MemberState::Draining),
            _ if !placed => Some(MemberState::Down),
            HealthVerdict::Unchecked => Some(MemberState::Unchecked),
            HealthVerdict::Down => Some(MemberState::Down),
            HealthVerdict::Up => entry.ejection.until.map(|_| MemberState::Ejected),
        };
        let mut begins = false;
        if let Some(barred) = barred {
            entry.ramp = None;
            entry.original &= barred == MemberState::Unchecked;
        } else if !before.is_eligible() {
            // Its history from before it was out of use is outdated.
            entry.vitals.reset_history();
            if before != MemberState::Ejected {
                entry.vitals.failure_detector.forget();
            }
            entry.totals = None;
            begins = !mem::take(&mut entry.original) && slow > Duration::ZERO;
            entry.ramp = begins.then_some(self.now);
        }
        let usual = if entry.ramp.is_some() { MemberState::SlowStart } else { MemberState::Up };
        entry.state = barred.unwrap_or(usual);
        if entry.state == before {
            // It may have become able, or unable, to serve the clients that are bound to it.
            self.stale |= before == MemberState::Draining;
            return;
        }
        entry.vitals.declare_down(entry.state == MemberState::Down);
        entry.since = self.now;
        self.stale = true;
        let out = !entry.state.is_eligible();
        self.usable =
            self.usable + usize::from(entry.state.is_eligible()) - usize::from(before.is_eligible());
        if begins {
            let why = format!("takes a growing part of its share for {} s", slow.as_secs_f64());
            self.emit_member_event(place, EventKind::SlowStart, why, &[("seconds", slow.as_secs_f64())]);
            self.schedule_timeout((self.now + slow_start::step(slow)).min(self.now + slow));
        }
        if out {
            self.forget_load(place);
        }
    }

    /// Rebuilds the indices after a change to the list of members.
    pub(super) fn rebuild_index(&mut self) {
        self.index_by_id = self.entries.iter().enumerate().map(|(place, entry)| (entry.id, place)).collect();
        self.usable = self.entries.iter().filter(|entry| entry.state.is_eligible()).count();
        self.ejected_count = self.entries.iter().filter(|entry| entry.ejection.until.is_some()).count();
    }

    /// Derives all states after a change to the rules.
    pub(super) fn derive_all_states(&mut self) {
        for place in 0..self.entries.len() {
            self.derive_state(place);
            if let Some(since) = self.entries[place].ramp {
                self.advance_slow_start(place, since);
            }
        }
        self.derive_group_state();
    }

    /// Derives the state of the group. If no member is usable, ejected ones are readmitted, because a suspect
    /// member is better than none. The loss and the return of the last member are events.
    pub(super) fn derive_group_state(&mut self) {
        if self.usable == 0 {
            for place in 0..self.entries.len() {
                if self.entries[place].state == MemberState::Ejected {
                    self.readmit(place, "no other member can be used");
                }
            }
        }
        self.started |= self.usable > 0;
        let down = self.usable == 0 && (self.started || !self.awaits_checks());
        if down && !self.all_down {
            let then = match self.spec.when_all_down {
                WhenAllDown::Reject => "requests are refused",
                WhenAllDown::FailOpen => "requests go to all of them but the draining and disabled ones",
            };
            let why = format!("no member can be used ({}); {then}", self.verdict());
            self.emit_event(EventKind::AllDown, None, why, &[("members", self.entries.len() as f64)]);
        } else if self.usable > 0 && self.all_down {
            let inputs = [("usable", self.usable as f64), ("members", self.entries.len() as f64)];
            self.emit_event(EventKind::Recovered, None, self.verdict(), &inputs);
        }
        self.all_down = self.usable == 0 && (down || self.all_down);
    }
}
