//! The processors of an emulated server: [`ProcessorSharing`] in real time, with an antagonist and slowdowns.
//!
//! Every timed event (a job ends, the antagonist starts or stops, the server slows down) is computed for its
//! own time, however late the alarm fires. A busy machine therefore makes answers late, but no capacity is
//! lost.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::antagonist::ActiveAntagonist;
use super::sharing::{JobTicket, ProcessorSharing};
use super::timer::TimerFd;
use super::workers::{MAX_SLOW, QueueFull};
use super::{MemberSpec, Slowdown};

/// The processors of one member.
#[derive(Clone)]
pub(super) struct SharedProcessor(Rc<ProcessorInner>);

struct ProcessorInner {
    cores: f64,
    alarm: TimerFd,
    start: Instant,
    /// The maximum number of jobs at once.
    max_jobs: usize,
    state: RefCell<ProcessorState>,
}

struct ProcessorState {
    sharing: ProcessorSharing<oneshot::Sender<()>>,
    /// The time for which the alarm is set.
    alarm_at: f64,
    speed: f64,
    slowdown: f64,
    pending_slowdown: Option<Slowdown>,
    antagonist: Option<ActiveAntagonist>,
}

/// The maximum time for which the alarm is set, in seconds: the kernel's clock has a last second.
const FAR: f64 = 1e9;

impl SharedProcessor {
    /// Creates the processors of a member with `cores` cores, driven by a task of the current local runtime.
    ///
    /// # Errors
    /// Fails if the kernel grants no timer.
    pub(super) fn new(spec: &MemberSpec, cores: f64) -> io::Result<Self> {
        let processor = Self(Rc::new(ProcessorInner {
            cores,
            alarm: TimerFd::new()?,
            start: Instant::now(),
            max_jobs: spec.queue_limit.max(1),
            state: RefCell::new(ProcessorState::new(spec, cores)),
        }));
        processor.process_events();
        tokio::task::spawn_local(processor.clone().run());
        Ok(processor)
    }

    /// Performs an amount of work, concurrently with other jobs. Dropping the future before its end cancels
    /// the job.
    pub(super) async fn serve(&self, work: Duration) -> Result<(), QueueFull> {
        let now = self.process_events();
        let (wake, woken) = oneshot::channel();
        let job = {
            let mut state = self.0.state.borrow_mut();
            if state.sharing.len() >= self.0.max_jobs {
                return Err(QueueFull);
            }
            let ticket = state.sharing.begin(now, work.as_secs_f64(), wake);
            self.set_alarm(&mut state);
            ProcessorJob { processor: self, ticket }
        };
        // The sender is lost only with the runtime.
        let _ = woken.await;
        drop(job);
        Ok(())
    }

    /// Returns the number of cores.
    pub(super) fn cores(&self) -> f64 {
        self.0.cores
    }

    /// Returns the core seconds in use so far.
    pub(super) fn core_seconds(&self) -> f64 {
        self.process_events();
        self.0.state.borrow().sharing.core_seconds()
    }

    /// Multiplies service times by `factor` from now on.
    pub(super) fn set_slowdown(&self, factor: f64) {
        let now = self.process_events();
        let mut state = self.0.state.borrow_mut();
        state.slowdown = factor;
        state.update_speed(now);
        self.set_alarm(&mut state);
    }

    /// Processes all events until now; returns the current time in seconds.
    fn process_events(&self) -> f64 {
        let now = self.0.start.elapsed().as_secs_f64();
        let mut state = self.0.state.borrow_mut();
        state.process_events(now);
        self.set_alarm(&mut state);
        now
    }

    fn set_alarm(&self, state: &mut ProcessorState) {
        if let Some(next) = state.next_alarm() {
            self.0.alarm.set(self.0.start + Duration::from_secs_f64(next.min(FAR)));
        }
    }

    async fn run(self) {
        loop {
            self.0.alarm.expired().await;
            self.0.state.borrow_mut().alarm_at = f64::INFINITY;
            self.process_events();
        }
    }
}

/// Times are seconds since the processors began and never go back.
impl ProcessorState {
    fn new(spec: &MemberSpec, cores: f64) -> Self {
        let mut state = Self {
            sharing: ProcessorSharing::new(cores, spec.speed),
            alarm_at: f64::INFINITY,
            speed: spec.speed,
            slowdown: 1.0,
            pending_slowdown: spec.slowdown,
            // This seed is neither that of the service times nor that of the failures.
            antagonist: spec
                .antagonist
                .map(|antagonist| ActiveAntagonist::new(antagonist, spec.seed ^ 0xa27a_6041_57c0_ffee)),
        };
        state.update_speed(0.0);
        state
    }

    /// Processes all events until `now`.
    fn process_events(&mut self, now: f64) {
        while let Some(turn) = self.next_speed_change().filter(|turn| *turn <= now) {
            self.finish(turn);
            if let Some(neighbour) =
                self.antagonist.as_mut().filter(|neighbour| neighbour.next_change <= turn)
            {
                neighbour.toggle();
            }
            if let Some(later) = self.pending_slowdown.take_if(|later| later.after.as_secs_f64() <= turn) {
                self.speed /= later.factor.max(1.0 / MAX_SLOW);
            }
            self.update_speed(turn);
        }
        self.finish(now);
    }

    /// Returns the time to set the alarm to, if an event precedes the time it is set to. An alarm that fires
    /// in vain costs less than one that is set anew whenever jobs slow down.
    fn next_alarm(&mut self) -> Option<f64> {
        let next = [self.sharing.next_end(), self.next_speed_change()]
            .into_iter()
            .flatten()
            .fold(f64::INFINITY, f64::min);
        (next < self.alarm_at && next.is_finite()).then(|| {
            self.alarm_at = next;
            next
        })
    }

    /// Returns the time at which the speed changes next by itself.
    fn next_speed_change(&self) -> Option<f64> {
        let neighbour = self.antagonist.as_ref().map(|neighbour| neighbour.next_change);
        let later = self.pending_slowdown.map(|later| later.after.as_secs_f64());
        [neighbour, later].into_iter().flatten().min_by(f64::total_cmp)
    }

    /// Wakes the jobs that have ended by `now`.
    fn finish(&mut self, now: f64) {
        while let Some(wake) = self.sharing.pop_ended(now) {
            // The receiver may have given up.
            let _ = wake.send(());
        }
    }

    fn update_speed(&mut self, now: f64) {
        let left = self.antagonist.as_ref().map_or(1.0, |neighbour| neighbour.remaining_share);
        self.sharing.set_speed(now, self.speed * left / self.slowdown.clamp(1.0 / MAX_SLOW, MAX_SLOW));
    }
}

/// A job that is cancelled when it is dropped.
struct ProcessorJob<'a> {
    processor: &'a SharedProcessor,
    ticket: JobTicket,
}

impl Drop for ProcessorJob<'_> {
    fn drop(&mut self) {
        let now = self.processor.process_events();
        let mut state = self.processor.0.state.borrow_mut();
        if state.sharing.cancel(now, self.ticket).is_some() {
            self.processor.set_alarm(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, LocalOptions};
    use tokio::sync::oneshot::Receiver;

    use super::*;
    use crate::member::MemberSpec;

    const MS: Duration = Duration::from_millis(1);

    fn spec(change: impl FnOnce(&mut MemberSpec)) -> MemberSpec {
        let mut spec = MemberSpec::new("127.0.0.1:0".parse().unwrap());
        change(&mut spec);
        spec
    }

    fn on_four_cores<F: Future>(
        change: impl FnOnce(&mut MemberSpec),
        test: impl FnOnce(SharedProcessor) -> F,
    ) -> F::Output {
        let runtime =
            Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
        runtime.block_on(async { test(SharedProcessor::new(&spec(change), 4.0).unwrap()).await })
    }

    /// Four cores at times that are arguments, with their alarm and the jobs that are not done.
    struct VirtualProcessor {
        state: ProcessorState,
        jobs: Vec<(usize, Receiver<()>)>,
        begun: usize,
    }

    impl VirtualProcessor {
        fn new(change: impl FnOnce(&mut MemberSpec)) -> Self {
            let mut state = ProcessorState::new(&spec(change), 4.0);
            state.next_alarm();
            Self { state, jobs: Vec::new(), begun: 0 }
        }

        /// Begins a job with `work` seconds of work, as an arriving request does.
        fn begin(&mut self, now: f64, work: f64) -> JobTicket {
            self.state.process_events(now);
            let (wake, woken) = oneshot::channel();
            let ticket = self.state.sharing.begin(now, work, wake);
            self.state.next_alarm();
            self.jobs.push((self.begun, woken));
            self.begun += 1;
            ticket
        }

        /// Lets the alarm fire `late` seconds late each time until all jobs are done; returns when each was
        /// done.
        fn run(&mut self, late: f64) -> Vec<(usize, f64)> {
            let mut done = Vec::new();
            while !self.jobs.is_empty() {
                let now = self.state.alarm_at + late;
                self.state.alarm_at = f64::INFINITY;
                self.state.process_events(now);
                self.state.next_alarm();
                let ended = self.jobs.extract_if(.., |(_, woken)| woken.try_recv().is_ok());
                done.extend(ended.map(|(job, _)| (job, now)));
            }
            done
        }
    }

    #[track_caller]
    fn assert_done(done: &[(usize, f64)], expected: impl IntoIterator<Item = (usize, f64)>) {
        let expected: Vec<_> = expected.into_iter().collect();
        let near = |((job, at), (due_job, due)): (&(usize, f64), &(usize, f64))| {
            job == due_job && (at - due).abs() < 1e-9
        };
        assert!(
            done.len() == expected.len() && done.iter().zip(&expected).all(near),
            "{done:?} {expected:?}"
        );
    }

    #[test]
    fn two_hundred_jobs_end_at_their_time() {
        let mut computed = VirtualProcessor::new(|_| {});
        for _ in 0..200 {
            computed.begin(0.0, 1e-3);
        }
        // 200 ms of work on four cores.
        assert_done(&computed.run(0.0), (0..200).map(|job| (job, 0.05)));
        assert!(
            (computed.state.sharing.core_seconds() - 0.2).abs() < 1e-9,
            "{}",
            computed.state.sharing.core_seconds()
        );
    }

    #[test]
    fn an_alarm_that_is_late_costs_no_capacity() {
        // Eight jobs share four cores for 20 ms; then each of the longer ones has a core for the 10 ms that
        // are left. The alarm is first set for the time at which the shorter ones would have ended without
        // the others.
        for (late, short, long) in [(0.0, 0.02, 0.03), (0.007, 0.027, 0.037), (1.0, 1.01, 1.01)] {
            let mut computed = VirtualProcessor::new(|_| {});
            for work in [0.01, 0.02] {
                for _ in 0..4 {
                    computed.begin(0.0, work);
                }
            }
            assert_done(&computed.run(late), (0..8).map(|job| (job, if job < 4 { short } else { long })));
            assert!(
                (computed.state.sharing.core_seconds() - 0.12).abs() < 1e-9,
                "{}",
                computed.state.sharing.core_seconds()
            );
            // A job that arrives after all of that has a core at once.
            computed.begin(2.0, 0.01);
            assert_done(&computed.run(0.0), [(8, 2.01)]);
        }
    }

    #[test]
    fn in_real_time_no_job_ends_before_its_time() {
        on_four_cores(
            |_| {},
            async |processor| {
                let begin = Instant::now();
                let task = |_| {
                    let processor = processor.clone();
                    tokio::task::spawn_local(async move { processor.serve(MS).await.unwrap() })
                };
                for task in (0..200).map(task).collect::<Vec<_>>() {
                    task.await.unwrap();
                }
                // 200 ms of work on four cores.
                assert!(begin.elapsed() >= 50 * MS, "{:?}", begin.elapsed());
                assert!((processor.core_seconds() - 0.2).abs() < 1e-9, "{}", processor.core_seconds());
            },
        );
    }

    #[test]
    fn what_is_dropped_leaves_its_share_to_the_others() {
        on_four_cores(
            |_| {},
            async |processor| {
                let long = Duration::from_secs(1000);
                for _ in 0..40 {
                    assert!(tokio::time::timeout(MS, processor.serve(long)).await.is_err());
                }
                assert_eq!(processor.0.state.borrow().sharing.len(), 0);
            },
        );
        let mut computed = VirtualProcessor::new(|_| {});
        let tickets: Vec<_> = (0..40).map(|_| computed.begin(0.0, 1000.0)).collect();
        for ticket in tickets {
            assert!(computed.state.sharing.cancel(0.001, ticket).is_some());
        }
        computed.jobs.clear();
        for _ in 0..4 {
            computed.begin(0.002, 0.05);
        }
        assert_done(&computed.run(0.0), (40..44).map(|job| (job, 0.052)));
    }

    #[test]
    fn slow_downs_meet_jobs_in_service() {
        let slower = |spec: &mut MemberSpec| spec.slowdown = Some(Slowdown { after: 20 * MS, factor: 10.0 });
        let mut computed = VirtualProcessor::new(slower);
        for _ in 0..2 {
            computed.begin(0.0, 0.03);
        }
        // 20 ms at full speed and the other 10 ms at a tenth of it.
        assert_done(&computed.run(0.0), [(0, 0.12), (1, 0.12)]);
        computed.state.slowdown = 0.1;
        computed.state.update_speed(0.2);
        computed.begin(0.2, 0.03);
        assert_done(&computed.run(0.0), [(2, 0.23)]);
        on_four_cores(slower, async |processor| {
            let begin = Instant::now();
            assert!(processor.serve(30 * MS).await.is_ok());
            assert!(begin.elapsed() >= 119 * MS, "{:?}", begin.elapsed());
            processor.set_slowdown(0.1);
            assert!(processor.serve(30 * MS).await.is_ok());
        });
    }

    #[test]
    fn the_queue_is_bounded() {
        on_four_cores(
            |spec| spec.queue_limit = 2,
            async |processor| {
                for _ in 0..2 {
                    let processor = processor.clone();
                    tokio::task::spawn_local(async move { processor.serve(Duration::from_secs(1000)).await });
                }
                tokio::task::yield_now().await;
                assert!(processor.serve(MS).await.is_err());
            },
        );
    }
}
