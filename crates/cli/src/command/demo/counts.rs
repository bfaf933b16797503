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
        let mut tally = Self { phases: Vec::new(), events: Vec::new(), window: VecDeque::new() };
        tally.begin_phase(Duration::ZERO, phase);
        tally
    }

    /// Begins another phase.
    pub(super) fn begin_phase(&mut self, at: Duration, name: &str) {
        self.phases.push(DemoPhase { name: name.to_owned(), start: at, end: at, record: RunRecord::new() });
    }

    /// Adds the requests that ended since the last time.
    pub(super) fn add(&mut self, at: Duration, part: RunRecord) {
        if let Some(phase) = self.phases.last_mut() {
            phase.end = at;
            phase.record.merge(&part);
        }
        self.window.push_back((at, part));
        while self.window.front().is_some_and(|(then, _)| *then + WINDOW < at) {
            self.window.pop_front();
        }
    }

    /// Returns the last two seconds, or as much as there is, and their length.
    pub(super) fn recent(&self) -> (Duration, RunRecord) {
        let mut sum = RunRecord::new();
        // The first marks the beginning: its requests ended before.
        let mut parts = self.window.iter();
        let first = parts.next().map_or(Duration::ZERO, |(at, _)| *at);
        let mut last = first;
        for (at, part) in parts {
            sum.merge(part);
            last = *at;
        }
        (last - first, sum)
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
    pub(super) fn add_event(&mut self, at: Duration, by: &'static str, what: String) {
        self.events.push(DemoEvent { at: at.as_secs_f64(), by, what });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(ok: u64) -> RunRecord {
        RunRecord { ok, ..RunRecord::new() }
    }

    #[test]
    fn phases_and_the_window_see_what_is_theirs() {
        let mut tally = RunCounts::new("all is well");
        for second in 0..5 {
            tally.add(Duration::from_secs(second), part(1));
        }
        tally.begin_phase(Duration::from_secs(5), "worse");
        tally.add(Duration::from_secs(5), part(10));
        assert_eq!(tally.phases.iter().map(|phase| phase.record.ok).collect::<Vec<_>>(), [5, 10]);
        assert_eq!(tally.total().ok, 15);
        // The parts were taken at 3 s (the mark), 4 s and 5 s.
        let (span, recent) = tally.recent();
        assert_eq!((span, recent.ok), (Duration::from_secs(2), 11));
    }

    #[test]
    fn an_empty_window_is_no_division_by_zero() {
        let (span, recent) = RunCounts::new("x").recent();
        assert_eq!((span, recent.ok), (Duration::ZERO, 0));
    }
}
