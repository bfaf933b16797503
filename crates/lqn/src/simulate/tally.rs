//! The statistics of a run.

use super::percentiles::Percentiles;
use crate::Model;

/// The sums since the run began, and the percentiles since the last [`Tally::forget`].
pub(super) struct Tally {
    pub(super) tasks: Vec<TaskTally>,
    pub(super) entries: Vec<EntryTally>,
    pub(super) activities: Vec<ActivityTally>,
}

#[derive(Clone, Default)]
pub(super) struct ActivityTally {
    /// The number of executions and their total time: demand, waiting for the processor, calls and think
    /// time.
    pub(super) done: u64,
    pub(super) took: f64,
}

#[derive(Clone, Default)]
pub(super) struct TaskTally {
    pub(super) busy: i64,
    counted: f64,
    /// The integral of busy threads, or of clients that do not think, over time.
    pub(super) area: f64,
    /// The number of client cycles, and their total time.
    pub(super) cycles: u64,
    pub(super) response: f64,
    /// The number of cycles without a failed call.
    pub(super) good: u64,
    pub(super) spread: Percentiles,
}

#[derive(Clone, Default)]
pub(super) struct EntryTally {
    /// The number of requests taken by a thread, and their total waiting time.
    pub(super) taken: u64,
    pub(super) waited: f64,
    /// The number of requests replied to or forwarded, and their total time on a thread until then.
    pub(super) served: u64,
    pub(super) service: f64,
    /// The number of threads that ended, and their total time including later phases.
    pub(super) over: u64,
    pub(super) whole: f64,
    /// The number of requests from outside with a reply, and their total response time.
    pub(super) answered: u64,
    pub(super) response: f64,
    /// The number of those without a failed call.
    pub(super) good: u64,
    /// The numbers of requests that arrived and that were refused, and of calls to the entry that timed out
    /// and that were retried.
    pub(super) came: u64,
    pub(super) refused: u64,
    pub(super) timed_out: u64,
    pub(super) retried: u64,
    pub(super) spread: Percentiles,
}

impl Tally {
    pub(super) fn new(model: &Model) -> Self {
        Self {
            tasks: vec![TaskTally::default(); model.tasks.len()],
            entries: vec![EntryTally::default(); model.entries.len()],
            activities: vec![ActivityTally::default(); model.activities.len()],
        }
    }

    /// Updates time integrals to the present.
    pub(super) fn count(&mut self, now: f64) {
        self.tasks.iter_mut().for_each(|task| task.count(now));
    }

    /// Resets the percentiles at the end of the warm-up.
    pub(super) fn forget(&mut self) {
        self.tasks.iter_mut().for_each(|task| task.spread = Percentiles::default());
        self.entries.iter_mut().for_each(|entry| entry.spread = Percentiles::default());
    }

    pub(super) fn busy(&mut self, task: usize, more: i64, now: f64) {
        let own = &mut self.tasks[task];
        own.count(now);
        own.busy += more;
    }

    pub(super) fn done(&mut self, activity: usize, took: f64) {
        let own = &mut self.activities[activity];
        own.done += 1;
        own.took += took;
    }

    pub(super) fn cycle(&mut self, task: usize, took: f64, good: bool) {
        let own = &mut self.tasks[task];
        own.cycles += 1;
        own.good += u64::from(good);
        own.response += took;
        own.spread.add(took);
    }

    pub(super) fn waited(&mut self, entry: usize, time: f64) {
        let own = &mut self.entries[entry];
        own.taken += 1;
        own.waited += time;
    }

    pub(super) fn served(&mut self, entry: usize, took: f64) {
        let own = &mut self.entries[entry];
        own.served += 1;
        own.service += took;
    }

    pub(super) fn over(&mut self, entry: usize, took: f64) {
        let own = &mut self.entries[entry];
        own.over += 1;
        own.whole += took;
    }

    pub(super) fn came(&mut self, entry: usize) {
        self.entries[entry].came += 1;
    }

    pub(super) fn refused(&mut self, entry: usize) {
        self.entries[entry].refused += 1;
    }

    pub(super) fn timed_out(&mut self, entry: usize) {
        self.entries[entry].timed_out += 1;
    }

    pub(super) fn retried(&mut self, entry: usize) {
        self.entries[entry].retried += 1;
    }

    pub(super) fn answered(&mut self, entry: usize, took: f64, good: bool) {
        let own = &mut self.entries[entry];
        own.answered += 1;
        own.good += u64::from(good);
        own.response += took;
        own.spread.add(took);
    }
}

impl TaskTally {
    fn count(&mut self, now: f64) {
        self.area += self.busy as f64 * (now - self.counted);
        self.counted = now;
    }
}
