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
    pub(super) fn eject(&mut self, place: usize, why: String, inputs: &[(&str, f64)]) {
        let why = self.with_failure_cause(place, why);
        self.eject_by(place, why, inputs, EjectionState::begin);
    }

    /// Returns `why` with the reason of the last failure, if it is known.
    pub(super) fn with_failure_cause(&self, place: usize, why: String) -> String {
        match self.entries[place].last_failure.as_str() {
            "" => why,
            blame => format!("{why}, the last one: {blame}"),
        }
    }

    pub(super) fn eject_by(
        &mut self,
        place: usize,
        why: String,
        inputs: &[(&str, f64)],
        begin: impl FnOnce(&mut EjectionState, &OutlierSpec, Time) -> (u32, Duration),
    ) {
        let Some(outlier) = &self.spec.outlier else { return };
        let allowed = outlier::max_ejections(outlier, self.entries.len());
        let entry = &mut self.entries[place];
        if !entry.state.is_eligible() || self.usable <= 1 || self.ejected_count >= allowed {
            return;
        }
        let (row, length) = begin(&mut entry.ejection, outlier, self.now);
        self.ejected_count += 1;
        let why = format!("{why}; out for {} s", length.as_secs_f64());
        entry.ejection.why.clone_from(&why);
        let mut inputs = inputs.to_vec();
        inputs.extend([
            ("seconds", length.as_secs_f64()),
            ("ejections_in_a_row", f64::from(row)),
            ("members_out", self.ejected_count as f64),
            ("members_allowed_out", allowed as f64),
        ]);
        self.schedule_timeout(self.now + length);
        self.emit_member_event(place, EventKind::Ejected, why, &inputs);
        self.derive_state(place);
    }

    pub(super) fn readmit(&mut self, place: usize, why: &str) {
        self.entries[place].ejection.end(self.now);
        let vitals = &self.entries[place].vitals;
        vitals.failure_detector.begin_probation(vitals.in_flight(), self.now);
        self.schedule_timeout(self.now + TRIAL_TIMEOUT);
        self.ejected_count -= 1;
        let row = [("failures_in_a_row", f64::from(self.entries[place].vitals.streak()))];
        let still = match self.entries[place].state {
            MemberState::Down => event::STILL_OUT[0],
            MemberState::Draining => event::STILL_OUT[1],
            MemberState::Disabled => event::STILL_OUT[2],
            _ => "",
        };
        self.emit_member_event(place, EventKind::Readmitted, format!("{why}{still}"), &row);
        self.derive_state(place);
    }

    /// Applies the ejection budget of a new configuration: surplus ejections end, the one nearest to its end
    /// first.
    pub(super) fn bound_ejections(&mut self) {
        let allowed = self
            .spec
            .outlier
            .as_ref()
            .map_or(0, |outlier| outlier::max_ejections(outlier, self.entries.len()));
        let mut out: Vec<(Time, usize)> = self
            .entries
            .iter()
            .enumerate()
            .filter_map(|(place, entry)| entry.ejection.until.map(|until| (until, place)))
            .collect();
        out.sort_unstable();
        for (_, place) in &out[..out.len().saturating_sub(allowed)] {
            self.readmit(*place, "the new configuration does not allow its ejection");
        }
    }
}
