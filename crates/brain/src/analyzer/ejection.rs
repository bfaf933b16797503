//! Ejecting and readmitting members: the ejection budget, and the events. `outlier` or the caller finds the
//! members to eject.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::outlier::{self, EjectionState};
use super::{Analyzer, OutlierSpec};
use crate::member::failure_detector::TRIAL_TIMEOUT;
use crate::{EventKind, MemberState, Time, event};

impl Analyzer {
    /// Ejects a member in use, unless too many are ejected already or it is the last usable one.
    pub(super) fn eject(&mut self, index: usize, reason: String, inputs: &[(&str, f64)]) {
        let reason = self.with_failure_cause(index, reason);
        self.eject_by(index, reason, inputs, EjectionState::begin);
    }

    /// Returns `why` with the reason of the last failure, if it is known.
    pub(super) fn with_failure_cause(&self, index: usize, reason: String) -> String {
        match self.entries[index].last_failure.as_str() {
            "" => reason,
            cause => format!("{reason}, the last one: {cause}"),
        }
    }

    pub(super) fn eject_by(
        &mut self,
        index: usize,
        reason: String,
        inputs: &[(&str, f64)],
        begin_ejection: impl FnOnce(&mut EjectionState, &OutlierSpec, Time) -> (u32, Duration),
    ) {
        let Some(outlier) = &self.spec.outlier else { return };
        let max_ejected = outlier::max_ejections(outlier, self.entries.len());
        let entry = &mut self.entries[index];
        if !entry.state.is_eligible() || self.usable <= 1 || self.ejected_count >= max_ejected {
            return;
        }
        let (consecutive_ejections, duration) = begin_ejection(&mut entry.ejection, outlier, self.now);
        self.ejected_count += 1;
        let reason = format!("{reason}; out for {} s", duration.as_secs_f64());
        entry.ejection.why.clone_from(&reason);
        let mut inputs = inputs.to_vec();
        inputs.extend([
            ("seconds", duration.as_secs_f64()),
            ("ejections_in_a_row", f64::from(consecutive_ejections)),
            ("members_out", self.ejected_count as f64),
            ("members_allowed_out", max_ejected as f64),
        ]);
        self.schedule_timeout(self.now + duration);
        self.emit_member_event(index, EventKind::Ejected, reason, &inputs);
        self.derive_state(index);
    }

    pub(super) fn readmit(&mut self, index: usize, reason: &str) {
        self.entries[index].ejection.end(self.now);
        let vitals = &self.entries[index].vitals;
        vitals.failure_detector.begin_probation(vitals.in_flight(), self.now);
        self.schedule_timeout(self.now + TRIAL_TIMEOUT);
        self.ejected_count -= 1;
        let inputs = [("failures_in_a_row", f64::from(self.entries[index].vitals.streak()))];
        let suffix = match self.entries[index].state {
            MemberState::Down => event::STILL_OUT_SUFFIXES[0],
            MemberState::Draining => event::STILL_OUT_SUFFIXES[1],
            MemberState::Disabled => event::STILL_OUT_SUFFIXES[2],
            _ => "",
        };
        self.emit_member_event(index, EventKind::Readmitted, format!("{reason}{suffix}"), &inputs);
        self.derive_state(index);
    }

    /// Applies the ejection budget of a new configuration: surplus ejections end, the one nearest to its end
    /// first.
    pub(super) fn bound_ejections(&mut self) {
        let max_ejected = self
            .spec
            .outlier
            .as_ref()
            .map_or(0, |outlier| outlier::max_ejections(outlier, self.entries.len()));
        let mut ejected: Vec<(Time, usize)> = self
            .entries
            .iter()
            .enumerate()
            .filter_map(|(index, entry)| entry.ejection.until.map(|until| (until, index)))
            .collect();
        ejected.sort_unstable();
        for (_, index) in &ejected[..ejected.len().saturating_sub(max_ejected)] {
            self.readmit(*index, "the new configuration does not allow its ejection");
        }
    }
}
