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
    queried: Vec<AtomicU64>,
    /// The longest delay since the last sample, in nanoseconds.
    longest: AtomicU64,
}

impl LagMeter {
    /// Creates a meter for this number of workers.
    pub(crate) fn new(workers: usize) -> Arc<Self> {
        let asked = (0..workers).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { queried: asked, longest: AtomicU64::new(0) })
    }

    /// Returns the longest delay since the last sample, and queries all workers again. This sample was
    /// planned for `due`.
    pub(crate) fn sample(self: &Arc<Self>, workers: &[WorkerHandle], due: Time, now: Time) -> Duration {
        let mut longest = Duration::from_nanos(self.longest.swap(0, Relaxed)).max(now.since(due));
        for (worker, asked) in workers.iter().zip(&self.queried) {
            match asked.load(Relaxed) {
                0 => {
                    asked.store(now.0.max(1), Relaxed);
                    if !worker.send(WorkerCommand::MeasureLag(Arc::clone(self))) {
                        asked.store(0, Relaxed);
                    }
                }
                before => longest = longest.max(now.since(Time(before))),
            }
        }
        longest
    }

    /// Records that a worker has received its query.
    pub(crate) fn answer(&self, worker: usize, now: Time) {
        let Some(asked) = self.queried.get(worker) else { return };
        let asked = asked.swap(0, Relaxed);
        if asked != 0 {
            self.longest.fetch_max(now.0.saturating_sub(asked), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_answer_counts_once_and_a_late_look_as_well() {
        let meter = LagMeter::new(2);
        let millis = |millis: u64| Time(millis * 1_000_000);
        meter.queried[1].store(millis(100).0, Relaxed);
        meter.answer(1, millis(130));
        meter.answer(1, millis(900));
        meter.answer(7, millis(900));
        assert_eq!(meter.sample(&[], millis(200), millis(200)), Duration::from_millis(30));
        assert_eq!(meter.sample(&[], millis(300), millis(300)), Duration::ZERO);
        assert_eq!(meter.sample(&[], millis(400), millis(700)), Duration::from_millis(300));
    }
}
