//! The statistics of a run.

use super::histogram::TimeHistogram;
use crate::Model;

/// The sums since the run began, and the percentiles since the last [`RunStatistics::reset_percentiles`].
pub(super) struct RunStatistics {
    pub(super) tasks: Vec<TaskStatistics>,
    pub(super) entries: Vec<EntryStatistics>,
    pub(super) activities: Vec<ActivityStatistics>,
}

#[derive(Clone, Default)]
pub(super) struct ActivityStatistics {
    /// The number of executions and their total time: demand, waiting for the processor, calls and think
    /// time.
    pub(super) executions: u64,
    pub(super) total_time: f64,
}

#[derive(Clone, Default)]
pub(super) struct TaskStatistics {
    pub(super) busy: i64,
    counted: f64,
    /// The integral of busy threads, or of clients that do not think, over time.
    pub(super) busy_integral: f64,
    /// The number of client cycles, and their total time.
    pub(super) cycles: u64,
    pub(super) total_response: f64,
    /// The number of cycles without a failed call.
    pub(super) successful: u64,
    pub(super) response_times: TimeHistogram,
}

#[derive(Clone, Default)]
pub(super) struct EntryStatistics {
    /// The number of requests taken by a thread, and their total waiting time.
    pub(super) started: u64,
    pub(super) total_waiting: f64,
    /// The number of requests replied to or forwarded, and their total time on a thread until then.
    pub(super) served: u64,
    pub(super) total_service: f64,
    /// The number of threads that ended, and their total time including later phases.
    pub(super) threads_ended: u64,
    pub(super) total_thread_time: f64,
    /// The number of requests from outside with a reply, and their total response time.
    pub(super) answered: u64,
    pub(super) total_response: f64,
    /// The number of those without a failed call.
    pub(super) successful: u64,
    /// The numbers of requests that arrived and that were refused, and of calls to the entry that timed out
    /// and that were retried.
    pub(super) arrived: u64,
    pub(super) refused: u64,
    pub(super) timed_out: u64,
    pub(super) retried: u64,
    pub(super) response_times: TimeHistogram,
}

impl RunStatistics {
    pub(super) fn new(model: &Model) -> Self {
        Self {
            tasks: vec![TaskStatistics::default(); model.tasks.len()],
            entries: vec![EntryStatistics::default(); model.entries.len()],
            activities: vec![ActivityStatistics::default(); model.activities.len()],
        }
    }

    /// Updates time integrals to the present.
    pub(super) fn update_integrals(&mut self, now: f64) {
        self.tasks.iter_mut().for_each(|task| task.count(now));
    }

    /// Resets the percentiles at the end of the warm-up.
    pub(super) fn reset_percentiles(&mut self) {
        self.tasks.iter_mut().for_each(|task| task.response_times = TimeHistogram::default());
        self.entries.iter_mut().for_each(|entry| entry.response_times = TimeHistogram::default());
    }

    pub(super) fn change_busy(&mut self, task: usize, more: i64, now: f64) {
        let own = &mut self.tasks[task];
        own.count(now);
        own.busy += more;
    }

    pub(super) fn record_execution(&mut self, activity: usize, took: f64) {
        let own = &mut self.activities[activity];
        own.executions += 1;
        own.total_time += took;
    }

    pub(super) fn record_cycle(&mut self, task: usize, took: f64, good: bool) {
        let own = &mut self.tasks[task];
        own.cycles += 1;
        own.successful += u64::from(good);
        own.total_response += took;
        own.response_times.record(took);
    }

    pub(super) fn record_waiting(&mut self, entry: usize, time: f64) {
        let own = &mut self.entries[entry];
        own.started += 1;
        own.total_waiting += time;
    }

    pub(super) fn record_service(&mut self, entry: usize, took: f64) {
        let own = &mut self.entries[entry];
        own.served += 1;
        own.total_service += took;
    }

    pub(super) fn record_thread_end(&mut self, entry: usize, took: f64) {
        let own = &mut self.entries[entry];
        own.threads_ended += 1;
        own.total_thread_time += took;
    }

    pub(super) fn record_arrival(&mut self, entry: usize) {
        self.entries[entry].arrived += 1;
    }

    pub(super) fn record_refusal(&mut self, entry: usize) {
        self.entries[entry].refused += 1;
    }

    pub(super) fn record_timeout(&mut self, entry: usize) {
        self.entries[entry].timed_out += 1;
    }

    pub(super) fn record_retry(&mut self, entry: usize) {
        self.entries[entry].retried += 1;
    }

    pub(super) fn record_external_reply(&mut self, entry: usize, took: f64, good: bool) {
        let own = &mut self.entries[entry];
        own.answered += 1;
        own.successful += u64::from(good);
        own.total_response += took;
        own.response_times.record(took);
    }
}

impl TaskStatistics {
    fn count(&mut self, now: f64) {
        self.busy_integral += self.busy as f64 * (now - self.counted);
        self.counted = now;
    }
}
