//! What is counted while a model runs.

use super::percentiles::Percentiles;
use crate::Model;

/// Sums since the run began, and percentiles since the last [`Tally::forget`].
pub(super) struct Tally {
    pub(super) tasks: Vec<TaskTally>,
    pub(super) entries: Vec<EntryTally>,
    pub(super) activities: Vec<ActivityTally>,
}

#[derive(Clone, Default)]
pub(super) struct ActivityTally {
    /// How often it was done, and how long that took: work, waiting for the processor, calls and time to think.
    pub(super) done: u64,
    pub(super) took: f64,
}

#[derive(Clone, Default)]
pub(super) struct TaskTally {
    pub(super) busy: i64,
    counted: f64,
    /// Busy threads times time; of clients, those that do not think.
    pub(super) area: f64,
    /// Rounds of clients, and the time they took.
    pub(super) cycles: u64,
    pub(super) response: f64,
    /// Rounds in which no call failed.
    pub(super) good: u64,
    pub(super) spread: Percentiles,
}

#[derive(Clone, Default)]
pub(super) struct EntryTally {
    /// Requests that a thread took, and how long they had waited for it.
    pub(super) taken: u64,
    pub(super) waited: f64,
    /// Requests that were answered or forwarded, and how long that took from when a thread took them.
    pub(super) served: u64,
    pub(super) service: f64,
    /// Threads that were done with all of it, and how long that took.
    pub(super) over: u64,
    pub(super) whole: f64,
    /// Requests from outside that were answered, and how long that took in all.
    pub(super) answered: u64,
    pub(super) response: f64,
    /// Those for which no call failed.
    pub(super) good: u64,
    /// Requests that came, were refused; calls of it that were given up, and that were made again.
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

    /// Brings sums over time up to now.
    pub(super) fn count(&mut self, now: f64) {
        self.tasks.iter_mut().for_each(|task| task.count(now));
    }

    /// The warm-up is over: its percentiles are forgotten.
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
