//! Jumps in the times of a log: a wrong clock, a line of another year, parts in the wrong order.
//!
//! A server logs a request when it has ended, often with the time at which it began, so a line may be some
//! minutes older than the one before. A log may also be silent in quiet nights. Larger jumps are reported,
//! because a replay keeps them: one line of a wrong year stretches the whole by years.

use std::fmt::{self, Display, Formatter};

/// The maximum seconds that a line may lie behind the one before, and ahead of it.
const MAX_BACKWARD: i64 = 10 * 60;
const MAX_FORWARD: i64 = 3600;

/// Two neighbouring lines with distant times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeJump {
    /// The second of the two lines, counted from 1.
    pub line: u64,
    /// The seconds by which it is later than the one before; negative if it is earlier.
    pub seconds: i64,
}

/// The jumps of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeJumps {
    /// The number of jumps.
    pub count: u64,
    /// The first jump with at least half the size of the largest.
    pub worst: Option<TimeJump>,
    last_second: Option<i64>,
}

impl TimeJumps {
    /// Adds the next line that has a time.
    pub(super) fn check_line(&mut self, line_number: u64, second: i64) {
        let Some(previous) = self.last_second.replace(second) else { return };
        let difference = second - previous;
        if (-MAX_BACKWARD..=MAX_FORWARD).contains(&difference) {
            return;
        }
        self.count += 1;
        // A wrong line makes two jumps of about the same size, and the first one leads to it.
        if self.worst.is_none_or(|worst| difference.abs() > 2 * worst.seconds.abs()) {
            self.worst = Some(TimeJump { line: line_number, seconds: difference });
        }
    }
}

impl Display for TimeJump {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let total_seconds = self.seconds.unsigned_abs();
        let components = [
            (total_seconds / 86_400, "d"),
            (total_seconds / 3600 % 24, "h"),
            (total_seconds / 60 % 60, "min"),
            (total_seconds % 60, "s"),
        ];
        // Two units are enough to find it.
        let components =
            components.iter().skip_while(|(count, _)| *count == 0).take(2).filter(|(count, _)| *count > 0);
        let formatted: Vec<String> = components.map(|(count, unit)| format!("{count} {unit}")).collect();
        let direction = if self.seconds < 0 { "before" } else { "after" };
        write!(f, "line {} is {} {direction} the line above it", self.line, formatted.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jumps(seconds: &[i64]) -> TimeJumps {
        let mut jumps = TimeJumps::default();
        for (line, second) in (1..).zip(seconds) {
            jumps.check_line(line, *second);
        }
        jumps
    }

    #[test]
    fn a_wrong_year_is_two_jumps_and_the_first_is_told() {
        let year = 365 * 86_400;
        let time_jumps = jumps(&[0, 1, 1 + year, 2, 3]);
        assert_eq!((time_jumps.count, time_jumps.worst), (2, Some(TimeJump { line: 3, seconds: year })));
        let time_jumps = jumps(&[0, 1, 2 - year - 7200, 3, 3 + 2 * MAX_FORWARD]);
        assert_eq!(
            (time_jumps.count, time_jumps.worst),
            (3, Some(TimeJump { line: 3, seconds: 1 - year - 7200 }))
        );
    }

    #[test]
    fn slow_requests_and_quiet_nights_are_none() {
        assert_eq!(jumps(&[]).count + jumps(&[5]).count, 0);
        assert_eq!(jumps(&[1000, 1000 - MAX_BACKWARD, 1000 - MAX_BACKWARD + MAX_FORWARD]).count, 0);
        assert_eq!(jumps(&[1000, 999 - MAX_BACKWARD]).count, 1);
        assert_eq!(jumps(&[1000, 1001 + MAX_FORWARD]).count, 1);
    }

    #[test]
    fn sizes_are_told_in_two_units() {
        let describe = |seconds| TimeJump { line: 7, seconds }.to_string();
        assert_eq!(describe(365 * 86_400 + 7205), "line 7 is 365 d 2 h after the line above it");
        assert_eq!(describe(-601), "line 7 is 10 min 1 s before the line above it");
        assert_eq!(describe(86_400), "line 7 is 1 d after the line above it");
    }
}
