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
    pub(super) fn advance_slow_start(&mut self, index: usize, since: Time) {
        let window = self.spec.slow_start;
        if self.now.since(since) >= window {
            self.entries[index].ramp = None;
            let reason = "its slow start is over".to_string();
            self.emit_member_event(index, EventKind::FullShare, reason, &[("seconds", window.as_secs_f64())]);
            self.derive_state(index);
        } else {
            self.schedule_timeout((self.now + slow_start::step(window)).min(since + window));
        }
        self.stale = true;
    }

    pub(super) fn schedule_timeout(&mut self, time: Time) {
        self.next_timeout = Some(self.next_timeout.map_or(time, |timeout| timeout.min(time)));
    }

    /// Derives a member's state from its facts.
    pub(super) fn derive_state(&mut self, index: usize) {
        let slow_start = self.spec.slow_start;
        let has_address = self.spec.members[index].has_address();
        let entry = &mut self.entries[index];
        let previous_state = entry.state;
        let barred_state = match entry.health.verdict {
            _ if entry.disabled => Some(MemberState::Disabled),
            _ if entry.is_draining() => Some(MemberState::Draining),
            _ if !has_address => Some(MemberState::Down),
            HealthVerdict::Unchecked => Some(MemberState::Unchecked),
            HealthVerdict::Down => Some(MemberState::Down),
            HealthVerdict::Up => entry.ejection.until.map(|_| MemberState::Ejected),
        };
        let mut begins_slow_start = false;
        if let Some(barred_state) = barred_state {
            entry.ramp = None;
            entry.original &= barred_state == MemberState::Unchecked;
        } else if !previous_state.is_eligible() {
            // Its history from before it was out of use is outdated.
            entry.vitals.reset_history();
            if previous_state != MemberState::Ejected {
                entry.vitals.failure_detector.forget();
            }
            entry.totals = None;
            begins_slow_start = !mem::take(&mut entry.original) && slow_start > Duration::ZERO;
            entry.ramp = begins_slow_start.then_some(self.now);
        }
        let eligible_state = if entry.ramp.is_some() { MemberState::SlowStart } else { MemberState::Up };
        entry.state = barred_state.unwrap_or(eligible_state);
        if entry.state == previous_state {
            // It may have become able, or unable, to serve the clients that are bound to it.
            self.stale |= previous_state == MemberState::Draining;
            return;
        }
        entry.vitals.declare_down(entry.state == MemberState::Down);
        entry.since = self.now;
        self.stale = true;
        let is_ineligible = !entry.state.is_eligible();
        self.usable =
            self.usable + usize::from(entry.state.is_eligible()) - usize::from(previous_state.is_eligible());
        if begins_slow_start {
            let reason = format!("takes a growing part of its share for {} s", slow_start.as_secs_f64());
            self.emit_member_event(
                index,
                EventKind::SlowStart,
                reason,
                &[("seconds", slow_start.as_secs_f64())],
            );
            self.schedule_timeout((self.now + slow_start::step(slow_start)).min(self.now + slow_start));
        }
        if is_ineligible {
            self.forget_load(index);
        }
    }

    /// Rebuilds the indices after a change to the list of members.
    pub(super) fn rebuild_index(&mut self) {
        self.index_by_id = self.entries.iter().enumerate().map(|(index, entry)| (entry.id, index)).collect();
        self.usable = self.entries.iter().filter(|entry| entry.state.is_eligible()).count();
        self.ejected_count = self.entries.iter().filter(|entry| entry.ejection.until.is_some()).count();
    }

    /// Derives all states after a change to the rules.
    pub(super) fn derive_all_states(&mut self) {
        for index in 0..self.entries.len() {
            self.derive_state(index);
            if let Some(since) = self.entries[index].ramp {
                self.advance_slow_start(index, since);
            }
        }
        self.derive_group_state();
    }

    /// Derives the state of the group. If no member is usable, ejected ones are readmitted, because a suspect
    /// member is better than none. The loss and the return of the last member are events.
    pub(super) fn derive_group_state(&mut self) {
        if self.usable == 0 {
            for index in 0..self.entries.len() {
                if self.entries[index].state == MemberState::Ejected {
                    self.readmit(index, "no other member can be used");
                }
            }
        }
        self.started |= self.usable > 0;
        let all_down = self.usable == 0 && (self.started || !self.awaits_checks());
        if all_down && !self.all_down {
            let consequence = match self.spec.when_all_down {
                WhenAllDown::Reject => "requests are refused",
                WhenAllDown::FailOpen => "requests go to all of them but the draining and disabled ones",
            };
            let reason = format!("no member can be used ({}); {consequence}", self.verdict());
            self.emit_event(EventKind::AllDown, None, reason, &[("members", self.entries.len() as f64)]);
        } else if self.usable > 0 && self.all_down {
            let inputs = [("usable", self.usable as f64), ("members", self.entries.len() as f64)];
            self.emit_event(EventKind::Recovered, None, self.verdict(), &inputs);
        }
        self.all_down = self.usable == 0 && (all_down || self.all_down);
    }
}
