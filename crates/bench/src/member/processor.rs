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
    timer: TimerFd,
    start: Instant,
    /// The maximum number of jobs at once.
    max_jobs: usize,
    state: RefCell<ProcessorState>,
}

struct ProcessorState {
    sharing: ProcessorSharing<oneshot::Sender<()>>,
    /// The time for which the alarm is set.
    timer_deadline: f64,
    speed: f64,
    slowdown: f64,
    pending_slowdown: Option<Slowdown>,
    antagonist: Option<ActiveAntagonist>,
}

/// The maximum time for which the alarm is set, in seconds: the kernel's clock has a last second.
const MAX_TIMER_SECONDS: f64 = 1e9;

impl SharedProcessor {
    /// Creates the processors of a member with `cores` cores, driven by a task of the current local runtime.
    ///
    /// # Errors
    /// Fails if the kernel grants no timer.
    pub(super) fn new(spec: &MemberSpec, cores: f64) -> io::Result<Self> {
        let processor = Self(Rc::new(ProcessorInner {
            cores,
            timer: TimerFd::new()?,
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
    pub(super) async fn serve(&self, demand: Duration) -> Result<(), QueueFull> {
        let now = self.process_events();
        let (done_sender, done) = oneshot::channel();
        let job = {
            let mut state = self.0.state.borrow_mut();
            if state.sharing.len() >= self.0.max_jobs {
                return Err(QueueFull);
            }
            let ticket = state.sharing.begin(now, demand.as_secs_f64(), done_sender);
            self.arm_timer(&mut state);
            ProcessorJob { processor: self, ticket }
        };
        // The sender is lost only with the runtime.
        let _ = done.await;
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
        self.arm_timer(&mut state);
    }

    /// Processes all events until now; returns the current time in seconds.
    fn process_events(&self) -> f64 {
        let now = self.0.start.elapsed().as_secs_f64();
        let mut state = self.0.state.borrow_mut();
        state.process_events(now);
        self.arm_timer(&mut state);
        now
    }

    fn arm_timer(&self, state: &mut ProcessorState) {
        if let Some(next_deadline) = state.next_timer_deadline() {
            self.0.timer.set(self.0.start + Duration::from_secs_f64(next_deadline.min(MAX_TIMER_SECONDS)));
        }
    }

    async fn run(self) {
        loop {
            self.0.timer.expired().await;
            self.0.state.borrow_mut().timer_deadline = f64::INFINITY;
            self.process_events();
        }
    }
}

/// Times are seconds since the processors began and never go back.
impl ProcessorState {
    fn new(spec: &MemberSpec, cores: f64) -> Self {
        let mut state = Self {
            sharing: ProcessorSharing::new(cores, spec.speed),
            timer_deadline: f64::INFINITY,
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
        while let Some(change_at) = self.next_speed_change().filter(|change_at| *change_at <= now) {
            self.finish(change_at);
            if let Some(antagonist) =
                self.antagonist.as_mut().filter(|antagonist| antagonist.next_change <= change_at)
            {
                antagonist.toggle();
            }
            if let Some(slowdown) =
                self.pending_slowdown.take_if(|slowdown| slowdown.after.as_secs_f64() <= change_at)
            {
                self.speed /= slowdown.factor.max(1.0 / MAX_SLOW);
            }
            self.update_speed(change_at);
        }
        self.finish(now);
    }

    /// Returns the time to set the alarm to, if an event precedes the time it is set to. An alarm that fires
    /// in vain costs less than one that is set anew whenever jobs slow down.
    fn next_timer_deadline(&mut self) -> Option<f64> {
        let next_event = [self.sharing.next_end(), self.next_speed_change()]
            .into_iter()
            .flatten()
            .fold(f64::INFINITY, f64::min);
        (next_event < self.timer_deadline && next_event.is_finite()).then(|| {
            self.timer_deadline = next_event;
            next_event
        })
    }

    /// Returns the time at which the speed changes next by itself.
    fn next_speed_change(&self) -> Option<f64> {
        let antagonist_change = self.antagonist.as_ref().map(|antagonist| antagonist.next_change);
        let slowdown_start = self.pending_slowdown.map(|slowdown| slowdown.after.as_secs_f64());
        [antagonist_change, slowdown_start].into_iter().flatten().min_by(f64::total_cmp)
    }

    /// Wakes the jobs that have ended by `now`.
    fn finish(&mut self, now: f64) {
        while let Some(done_sender) = self.sharing.pop_ended(now) {
            // The receiver may have given up.
            let _ = done_sender.send(());
        }
    }

    fn update_speed(&mut self, now: f64) {
        let remaining_share = self.antagonist.as_ref().map_or(1.0, |antagonist| antagonist.remaining_share);
        self.sharing
            .set_speed(now, self.speed * remaining_share / self.slowdown.clamp(1.0 / MAX_SLOW, MAX_SLOW));
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
            self.processor.arm_timer(&mut state);
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
        started_jobs: usize,
    }

    impl VirtualProcessor {
        fn new(change: impl FnOnce(&mut MemberSpec)) -> Self {
            let mut state = ProcessorState::new(&spec(change), 4.0);
            state.next_timer_deadline();
            Self { state, jobs: Vec::new(), started_jobs: 0 }
        }

        /// Begins a job with `work` seconds of work, as an arriving request does.
        fn begin(&mut self, now: f64, work: f64) -> JobTicket {
            self.state.process_events(now);
            let (done_sender, done) = oneshot::channel();
            let ticket = self.state.sharing.begin(now, work, done_sender);
            self.state.next_timer_deadline();
            self.jobs.push((self.started_jobs, done));
            self.started_jobs += 1;
            ticket
        }

        /// Lets the alarm fire `late` seconds late each time until all jobs are done; returns when each was
        /// done.
        fn run(&mut self, delay: f64) -> Vec<(usize, f64)> {
            let mut finished = Vec::new();
            while !self.jobs.is_empty() {
                let now = self.state.timer_deadline + delay;
                self.state.timer_deadline = f64::INFINITY;
                self.state.process_events(now);
                self.state.next_timer_deadline();
                let ended_jobs =
                    self.jobs.extract_if(.., |(_, done_receiver)| done_receiver.try_recv().is_ok());
                finished.extend(ended_jobs.map(|(job, _)| (job, now)));
            }
            finished
        }
    }

    #[track_caller]
    fn assert_done(finished: &[(usize, f64)], expected: impl IntoIterator<Item = (usize, f64)>) {
        let expected: Vec<_> = expected.into_iter().collect();
        let matches_expected = |((job, end), (due_job, expected_end)): (&(usize, f64), &(usize, f64))| {
            job == due_job && (end - expected_end).abs() < 1e-9
        };
        assert!(
            finished.len() == expected.len() && finished.iter().zip(&expected).all(matches_expected),
            "{finished:?} {expected:?}"
        );
    }

    #[test]
    fn two_hundred_jobs_end_at_their_time() {
        let mut virtual_processor = VirtualProcessor::new(|_| {});
        for _ in 0..200 {
            virtual_processor.begin(0.0, 1e-3);
        }
        // 200 ms of work on four cores.
        assert_done(&virtual_processor.run(0.0), (0..200).map(|job| (job, 0.05)));
        assert!(
            (virtual_processor.state.sharing.core_seconds() - 0.2).abs() < 1e-9,
            "{}",
            virtual_processor.state.sharing.core_seconds()
        );
    }

    #[test]
    fn an_alarm_that_is_late_costs_no_capacity() {
        // Eight jobs share four cores for 20 ms; then each of the longer ones has a core for the 10 ms that
        // are left. The alarm is first set for the time at which the shorter ones would have ended without
        // the others.
        for (delay, short_end, long_end) in [(0.0, 0.02, 0.03), (0.007, 0.027, 0.037), (1.0, 1.01, 1.01)] {
            let mut virtual_processor = VirtualProcessor::new(|_| {});
            for work in [0.01, 0.02] {
                for _ in 0..4 {
                    virtual_processor.begin(0.0, work);
                }
            }
            assert_done(
                &virtual_processor.run(delay),
                (0..8).map(|job| (job, if job < 4 { short_end } else { long_end })),
            );
            assert!(
                (virtual_processor.state.sharing.core_seconds() - 0.12).abs() < 1e-9,
                "{}",
                virtual_processor.state.sharing.core_seconds()
            );
            // A job that arrives after all of that has a core at once.
            virtual_processor.begin(2.0, 0.01);
            assert_done(&virtual_processor.run(0.0), [(8, 2.01)]);
        }
    }

    #[test]
    fn in_real_time_no_job_ends_before_its_time() {
        on_four_cores(
            |_| {},
            async |processor| {
                let start = Instant::now();
                let task = |_| {
                    let processor = processor.clone();
                    tokio::task::spawn_local(async move { processor.serve(MS).await.unwrap() })
                };
                for task in (0..200).map(task).collect::<Vec<_>>() {
                    task.await.unwrap();
                }
                // 200 ms of work on four cores.
                assert!(start.elapsed() >= 50 * MS, "{:?}", start.elapsed());
                assert!((processor.core_seconds() - 0.2).abs() < 1e-9, "{}", processor.core_seconds());
            },
        );
    }

    #[test]
    fn what_is_dropped_leaves_its_share_to_the_others() {
        on_four_cores(
            |_| {},
            async |processor| {
                let endless = Duration::from_secs(1000);
                for _ in 0..40 {
                    assert!(tokio::time::timeout(MS, processor.serve(endless)).await.is_err());
                }
                assert_eq!(processor.0.state.borrow().sharing.len(), 0);
            },
        );
        let mut virtual_processor = VirtualProcessor::new(|_| {});
        let tickets: Vec<_> = (0..40).map(|_| virtual_processor.begin(0.0, 1000.0)).collect();
        for ticket in tickets {
            assert!(virtual_processor.state.sharing.cancel(0.001, ticket).is_some());
        }
        virtual_processor.jobs.clear();
        for _ in 0..4 {
            virtual_processor.begin(0.002, 0.05);
        }
        assert_done(&virtual_processor.run(0.0), (40..44).map(|job| (job, 0.052)));
    }

    #[test]
    fn slow_downs_meet_jobs_in_service() {
        let slow_down =
            |spec: &mut MemberSpec| spec.slowdown = Some(Slowdown { after: 20 * MS, factor: 10.0 });
        let mut virtual_processor = VirtualProcessor::new(slow_down);
        for _ in 0..2 {
            virtual_processor.begin(0.0, 0.03);
        }
        // 20 ms at full speed and the other 10 ms at a tenth of it.
        assert_done(&virtual_processor.run(0.0), [(0, 0.12), (1, 0.12)]);
        virtual_processor.state.slowdown = 0.1;
        virtual_processor.state.update_speed(0.2);
        virtual_processor.begin(0.2, 0.03);
        assert_done(&virtual_processor.run(0.0), [(2, 0.23)]);
        on_four_cores(slow_down, async |processor| {
            let start = Instant::now();
            assert!(processor.serve(30 * MS).await.is_ok());
            assert!(start.elapsed() >= 119 * MS, "{:?}", start.elapsed());
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
