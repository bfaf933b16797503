//! The delay of the workers' event loops: the time for which an event waits before its worker handles it.
//!
//! The control thread sends each worker a query whenever it samples the traffic. A worker that is busy, and a
//! process that was suspended, answer late. By that delay, members' response times are this process's own and
//! show nothing about members.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use plimsoll_brain::Time;

use crate::worker::{WorkerCommand, WorkerHandle};

/// Measures the delay of all event loops of this process.
#[derive(Debug)]
pub(crate) struct LagMeter {
    /// For each worker the time of its unanswered query, in nanoseconds; 0 for none.
    queried_at: Vec<AtomicU64>,
    /// The longest delay since the last sample, in nanoseconds.
    longest: AtomicU64,
}

impl LagMeter {
    /// Creates a meter for this number of workers.
    pub(crate) fn new(workers: usize) -> Arc<Self> {
        let queried_at = (0..workers).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { queried_at, longest: AtomicU64::new(0) })
    }

    /// Returns the longest delay since the last sample, and queries all workers again. This sample was
    /// planned for `due`.
    pub(crate) fn sample(self: &Arc<Self>, workers: &[WorkerHandle], due_at: Time, now: Time) -> Duration {
        let mut longest = Duration::from_nanos(self.longest.swap(0, Relaxed)).max(now.since(due_at));
        for (worker, queried_at) in workers.iter().zip(&self.queried_at) {
            match queried_at.load(Relaxed) {
                0 => {
                    queried_at.store(now.0.max(1), Relaxed);
                    if !worker.send(WorkerCommand::MeasureLag(Arc::clone(self))) {
                        queried_at.store(0, Relaxed);
                    }
                }
                previous => longest = longest.max(now.since(Time(previous))),
            }
        }
        longest
    }

    /// Records that a worker has received its query.
    pub(crate) fn answer(&self, worker: usize, now: Time) {
        let Some(queried_at) = self.queried_at.get(worker) else { return };
        let queried_nanos = queried_at.swap(0, Relaxed);
        if queried_nanos != 0 {
            self.longest.fetch_max(now.0.saturating_sub(queried_nanos), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_answer_counts_once_and_a_late_look_as_well() {
        let meter = LagMeter::new(2);
        let time = |millis: u64| Time(millis * 1_000_000);
        meter.queried_at[1].store(time(100).0, Relaxed);
        meter.answer(1, time(130));
        meter.answer(1, time(900));
        meter.answer(7, time(900));
        assert_eq!(meter.sample(&[], time(200), time(200)), Duration::from_millis(30));
        assert_eq!(meter.sample(&[], time(300), time(300)), Duration::ZERO);
        assert_eq!(meter.sample(&[], time(400), time(700)), Duration::from_millis(300));
    }
}
