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
    integrated_until: f64,
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
        self.tasks.iter_mut().for_each(|task| task.update_integral(now));
    }

    /// Resets the percentiles at the end of the warm-up.
    pub(super) fn reset_percentiles(&mut self) {
        self.tasks.iter_mut().for_each(|task| task.response_times = TimeHistogram::default());
        self.entries.iter_mut().for_each(|entry| entry.response_times = TimeHistogram::default());
    }

    pub(super) fn change_busy(&mut self, task: usize, change: i64, now: f64) {
        let statistics = &mut self.tasks[task];
        statistics.update_integral(now);
        statistics.busy += change;
    }

    pub(super) fn record_execution(&mut self, activity: usize, duration: f64) {
        let statistics = &mut self.activities[activity];
        statistics.executions += 1;
        statistics.total_time += duration;
    }

    pub(super) fn record_cycle(&mut self, task: usize, duration: f64, is_successful: bool) {
        let statistics = &mut self.tasks[task];
        statistics.cycles += 1;
        statistics.successful += u64::from(is_successful);
        statistics.total_response += duration;
        statistics.response_times.record(duration);
    }

    pub(super) fn record_waiting(&mut self, entry: usize, time: f64) {
        let statistics = &mut self.entries[entry];
        statistics.started += 1;
        statistics.total_waiting += time;
    }

    pub(super) fn record_service(&mut self, entry: usize, duration: f64) {
        let statistics = &mut self.entries[entry];
        statistics.served += 1;
        statistics.total_service += duration;
    }

    pub(super) fn record_thread_end(&mut self, entry: usize, duration: f64) {
        let statistics = &mut self.entries[entry];
        statistics.threads_ended += 1;
        statistics.total_thread_time += duration;
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

    pub(super) fn record_external_reply(&mut self, entry: usize, duration: f64, is_successful: bool) {
        let statistics = &mut self.entries[entry];
        statistics.answered += 1;
        statistics.successful += u64::from(is_successful);
        statistics.total_response += duration;
        statistics.response_times.record(duration);
    }
}

impl TaskStatistics {
    fn update_integral(&mut self, now: f64) {
        self.busy_integral += self.busy as f64 * (now - self.integrated_until);
        self.integrated_until = now;
    }
}
