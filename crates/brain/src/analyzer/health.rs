//! The verdict of active health checks: rise and fall, as HAProxy and most others count them.
//!
//! A member that was never checked is not used, so its first check decides at once, either way. The first
//! pass of its life brings it up even after failures, because there is no past to distrust. After that it
//! takes `fall` failures in a row to go down and `rise` passes in a row to come up.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;

use serde::{Deserialize, Serialize};

use super::HealthSpec;

/// The checks of one member so far.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HealthStatus {
    /// The verdict.
    pub verdict: HealthVerdict,
    /// The reason, for display.
    pub why: String,
    /// The checks in a row that contradict the verdict.
    against: u32,
    /// Whether a check ever passed.
    passed: bool,
}

/// The verdict of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthVerdict {
    /// No check has ended: the member is not used.
    Unchecked,
    /// The member may be used.
    Up,
    /// The member may not be used.
    Down,
}

impl HealthStatus {
    /// Returns the health before the first check.
    pub fn unchecked() -> Self {
        Self {
            verdict: HealthVerdict::Unchecked,
            why: "not checked yet".to_owned(),
            against: 0,
            passed: false,
        }
    }

    /// Returns the health of a member whose name has no address: it is down.
    pub fn unresolved() -> Self {
        Self {
            verdict: HealthVerdict::Down,
            why: "its name has no address".to_owned(),
            against: 0,
            passed: false,
        }
    }

    /// Returns the health of a member without checks.
    pub fn assumed() -> Self {
        Self { verdict: HealthVerdict::Up, why: "no health checks".to_owned(), against: 0, passed: true }
    }

    /// Records a check. Returns the number of checks in a row that changed the verdict, if it changed.
    pub fn record(&mut self, outcome: Result<(), &str>, spec: &HealthSpec) -> Option<u32> {
        let agrees = outcome.is_ok() == (self.verdict == HealthVerdict::Up)
            && self.verdict != HealthVerdict::Unchecked;
        self.against = if agrees { 0 } else { self.against.saturating_add(1) };
        let threshold = match outcome {
            Ok(()) if self.passed => spec.rise,
            Err(_) if self.verdict == HealthVerdict::Up => spec.fall,
            _ => 1,
        };
        self.passed |= outcome.is_ok();
        let consecutive_checks = self.against;
        let verdict_changed = !agrees && consecutive_checks >= threshold.max(1);
        if verdict_changed {
            self.against = 0;
            self.verdict = if outcome.is_ok() { HealthVerdict::Up } else { HealthVerdict::Down };
        }
        if verdict_changed || agrees {
            self.why = match outcome {
                Ok(()) => "its health check passes".to_owned(),
                Err(reason) => format!("its health check fails: {reason}"),
            };
        }
        verdict_changed.then_some(consecutive_checks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: HealthSpec = HealthSpec { rise: 2, fall: 3 };

    /// Records the checks, `+` for a pass and `-` for a failure, and compares the verdict after each: U, D or
    /// ?.
    #[track_caller]
    fn run(mut health: HealthStatus, checks: &str, verdicts: &str) {
        let mut verdicts_seen = String::new();
        for check in checks.chars() {
            let previous_verdict = health.verdict;
            let consecutive_checks = health.record(if check == '+' { Ok(()) } else { Err("refused") }, &SPEC);
            assert_eq!(consecutive_checks.is_some(), previous_verdict != health.verdict);
            verdicts_seen.push(match health.verdict {
                HealthVerdict::Unchecked => '?',
                HealthVerdict::Up => 'U',
                HealthVerdict::Down => 'D',
            });
        }
        assert_eq!(verdicts_seen, verdicts, "after {checks}");
    }

    #[test]
    fn the_first_check_decides() {
        run(HealthStatus::unchecked(), "+", "U");
        run(HealthStatus::unchecked(), "-", "D");
    }

    #[test]
    fn the_first_pass_is_enough_even_late() {
        run(HealthStatus::unchecked(), "---+", "DDDU");
    }

    #[test]
    fn fall_and_rise_count_in_a_row() {
        run(HealthStatus::unchecked(), "+--+---+-++", "UUUUUUDDDDU");
        run(HealthStatus::assumed(), "--+---++", "UUUUUDDU");
    }

    #[test]
    fn zero_counts_as_one() {
        let mut health = HealthStatus::assumed();
        let spec = HealthSpec { rise: 0, fall: 0 };
        assert_eq!(health.record(Err("timeout"), &spec), Some(1));
        assert_eq!(health.why, "its health check fails: timeout");
        assert_eq!(health.record(Ok(()), &spec), Some(1));
        assert_eq!(health.verdict, HealthVerdict::Up);
    }
}
