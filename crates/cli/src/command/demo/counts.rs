//! The clients' results, by phase of the demo and over the last moments.

use std::collections::VecDeque;
use std::time::Duration;

use plimsoll_bench::record::RunRecord;

/// The time that the live view covers.
const WINDOW: Duration = Duration::from_secs(2);

/// A stretch of the run between two faults.
#[derive(Debug)]
pub(super) struct DemoPhase {
    /// The name of the phase's fault.
    pub(super) name: String,
    /// The beginning, since the start of the run.
    pub(super) start: Duration,
    /// Its end, or the present in the current phase.
    pub(super) end: Duration,
    /// The requests that ended in it.
    pub(super) record: RunRecord,
}

/// An event of the run.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct DemoEvent {
    /// Seconds since the start of the run.
    pub(super) at: f64,
    /// The source: `demo` for faults of members, `balancer` for its reactions.
    pub(super) by: &'static str,
    /// One sentence.
    pub(super) what: String,
}

/// All of the run so far.
#[derive(Debug)]
pub(super) struct RunCounts {
    /// The phases, at least one.
    pub(super) phases: Vec<DemoPhase>,
    /// The notes, in order of time.
    pub(super) events: Vec<DemoEvent>,
    /// The time at which each part was taken, and the part.
    window: VecDeque<(Duration, RunRecord)>,
}

impl RunCounts {
    /// Begins with a phase of this name.
    pub(super) fn new(phase: &str) -> Self {
        let mut counts = Self { phases: Vec::new(), events: Vec::new(), window: VecDeque::new() };
        counts.begin_phase(Duration::ZERO, phase);
        counts
    }

    /// Begins another phase.
    pub(super) fn begin_phase(&mut self, elapsed: Duration, name: &str) {
        self.phases.push(DemoPhase {
            name: name.to_owned(),
            start: elapsed,
            end: elapsed,
            record: RunRecord::new(),
        });
    }

    /// Adds the requests that ended since the last time.
    pub(super) fn add(&mut self, elapsed: Duration, record: RunRecord) {
        if let Some(phase) = self.phases.last_mut() {
            phase.end = elapsed;
            phase.record.merge(&record);
        }
        self.window.push_back((elapsed, record));
        while self.window.front().is_some_and(|(added_at, _)| *added_at + WINDOW < elapsed) {
            self.window.pop_front();
        }
    }

    /// Returns the last two seconds, or as much as there is, and their length.
    pub(super) fn recent(&self) -> (Duration, RunRecord) {
        let mut sum = RunRecord::new();
        // The first marks the beginning: its requests ended before.
        let mut records = self.window.iter();
        let start = records.next().map_or(Duration::ZERO, |(at, _)| *at);
        let mut end = start;
        for (elapsed, record) in records {
            sum.merge(record);
            end = *elapsed;
        }
        (end - start, sum)
    }

    /// Returns the record of the whole run.
    pub(super) fn total(&self) -> RunRecord {
        let mut sum = RunRecord::new();
        for phase in &self.phases {
            sum.merge(&phase.record);
        }
        sum
    }

    /// Keeps a note.
    pub(super) fn add_event(&mut self, elapsed: Duration, source: &'static str, message: String) {
        self.events.push(DemoEvent { at: elapsed.as_secs_f64(), by: source, what: message });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(ok: u64) -> RunRecord {
        RunRecord { ok, ..RunRecord::new() }
    }

    #[test]
    fn phases_and_the_window_see_what_is_theirs() {
        let mut counts = RunCounts::new("all is well");
        for second in 0..5 {
            counts.add(Duration::from_secs(second), answered(1));
        }
        counts.begin_phase(Duration::from_secs(5), "worse");
        counts.add(Duration::from_secs(5), answered(10));
        assert_eq!(counts.phases.iter().map(|phase| phase.record.ok).collect::<Vec<_>>(), [5, 10]);
        assert_eq!(counts.total().ok, 15);
        // The parts were taken at 3 s (the mark), 4 s and 5 s.
        let (span, recent) = counts.recent();
        assert_eq!((span, recent.ok), (Duration::from_secs(2), 11));
    }

    #[test]
    fn an_empty_window_is_no_division_by_zero() {
        let (span, recent) = RunCounts::new("x").recent();
        assert_eq!((span, recent.ok), (Duration::ZERO, 0));
    }
}
