//! The workers: a bounded queue, first come first served, before a fixed number of service slots; or
//! processors that all requests in service share.

use std::cell::{Cell, RefCell};
use std::io;
use std::time::{Duration, Instant};

use rustix::time::ClockId;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::processor::SharedProcessor;
use super::steps::StepServer;
use super::timer::TaskTimer;
use super::{MemberSpec, ServiceSteps, ServiceTime, Slowdown, shuffle};
use crate::rng::SplitMix64;

/// The workers of one member.
pub(super) struct WorkerPool {
    service: ServiceTime,
    /// The service time of dynamic pages.
    dynamic: Option<ServiceTime>,
    rng: RefCell<SplitMix64>,
    /// The workers; the semaphore is fair and serves waiters in the order of arrival.
    workers: Semaphore,
    /// The number of workers.
    count: usize,
    /// The time for which workers were held; then the number of those held now with the sum of their begins.
    released_hold_time: Cell<Duration>,
    current_holds: Cell<(u32, Duration)>,
    waiting: Cell<usize>,
    queue_limit: usize,
    burns_cpu: bool,
    session_cost: Duration,
    timer: TaskTimer,
    start: Instant,
    slowdown: Cell<f64>,
    later_slowdown: Option<Slowdown>,
    /// The processors, in place of the workers.
    processor: Option<SharedProcessor>,
    /// The steps, in place of the service time; those of a received message need no worker.
    service_steps: Option<ServiceSteps>,
    receive_steps: Option<ServiceSteps>,
    step_server: StepServer,
    /// Whether there is only one worker.
    has_single_worker: bool,
}

/// The error of a full queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueFull;

/// The maximum factor of a slowdown.
pub(super) const MAX_SLOW: f64 = 1e6;

impl WorkerPool {
    pub(super) fn new(spec: &MemberSpec) -> io::Result<Self> {
        Ok(Self {
            service: spec.service,
            dynamic: spec.dynamic,
            rng: RefCell::new(SplitMix64::new(spec.seed)),
            workers: Semaphore::new(spec.workers.clamp(1, Semaphore::MAX_PERMITS)),
            count: spec.workers.clamp(1, Semaphore::MAX_PERMITS),
            released_hold_time: Cell::default(),
            current_holds: Cell::default(),
            waiting: Cell::new(0),
            queue_limit: spec.queue_limit,
            burns_cpu: spec.burn,
            session_cost: spec.session_cost,
            timer: TaskTimer::new()?,
            start: Instant::now(),
            slowdown: Cell::new(1.0),
            later_slowdown: spec.slowdown,
            processor: spec.cores.map(|cores| SharedProcessor::new(spec, cores)).transpose()?,
            service_steps: spec.steps.clone(),
            receive_steps: spec.receive_steps.clone(),
            step_server: StepServer::new(),
            has_single_worker: spec.workers <= 1,
        })
    }

    /// Returns `true` if a request, the `first` of its connection or another, takes no time at all.
    pub(super) fn is_instant(&self, is_first: bool) -> bool {
        self.service_steps.is_none()
            && self.service == ServiceTime::None
            && (!is_first || self.session_cost.is_zero())
    }

    /// Receives a message, which needs no worker.
    pub(super) async fn receive(&self) {
        if let Some(steps) = &self.receive_steps {
            self.step_server
                .perform(Instant::now(), steps, &self.rng, &self.timer, self.slowdown_factor())
                .await;
        }
    }

    /// Returns the busy times of the workers (summed) and of the steps' processor, in seconds.
    pub(super) fn busy_times(&self) -> (f64, f64) {
        self.step_server.busy_times()
    }

    /// Waits for a worker and holds it for a service time; longer if the request is the `first` of its
    /// connection. Dropping the future releases the worker, or its share of the processors.
    pub(super) async fn serve(&self, is_first: bool) -> Result<(), QueueFull> {
        self.hold_worker(self.service, is_first).await
    }

    /// Waits for a worker and releases it at once: for answers that the server gives without the program.
    pub(super) async fn wait_for_worker(&self) -> Result<(), QueueFull> {
        if self.processor.is_some() { Ok(()) } else { self.acquire_worker().await.map(drop) }
    }

    /// Serves a request like [`Self::serve`], for a page: it takes the time of dynamic pages if it is
    /// `dynamic`.
    pub(super) async fn serve_page(&self, is_first: bool, is_dynamic: bool) -> Result<(), QueueFull> {
        self.hold_worker(self.dynamic.filter(|_| is_dynamic).unwrap_or(self.service), is_first).await
    }

    async fn hold_worker(&self, service: ServiceTime, is_first: bool) -> Result<(), QueueFull> {
        if let Some(steps) = &self.service_steps {
            let arrived_at = Instant::now();
            let _worker = self.acquire_worker().await?;
            let _busy = self.step_server.occupy_thread();
            let begin_time = self.step_server.begin_time(arrived_at, self.has_single_worker);
            let end = self
                .step_server
                .perform(begin_time, steps, &self.rng, &self.timer, self.slowdown_factor())
                .await;
            self.step_server.set_thread_free(end);
            return Ok(());
        }
        if service == ServiceTime::None && (!is_first || self.session_cost.is_zero()) {
            return Ok(());
        }
        let session_cost = if is_first { self.session_cost } else { Duration::ZERO };
        // Drawn on arrival: the n-th request of a run has the n-th service time in any order of service.
        let service_time = service.draw(&mut self.rng.borrow_mut()) + session_cost;
        if let Some(processor) = &self.processor {
            return processor.serve(service_time).await;
        }
        let worker = self.acquire_worker().await?;
        let _held = HeldWorker::new(self);
        let service_time = service_time.mul_f64(self.slowdown_factor());
        if self.burns_cpu {
            let _ = tokio::task::spawn_blocking(move || burn_cpu(service_time)).await;
        } else {
            self.timer.sleep(Instant::now() + service_time).await;
        }
        drop(worker);
        Ok(())
    }

    /// Returns the number of cores or workers, and the seconds in which they were in use so far, summed.
    pub(super) fn capacity_and_busy(&self) -> (f64, f64) {
        if let Some(processor) = &self.processor {
            return (processor.cores(), processor.core_seconds());
        }
        let (held_workers, start_sum) = self.current_holds.get();
        let elapsed_sum = held_workers * self.start.elapsed();
        (
            self.count as f64,
            (self.released_hold_time.get() + elapsed_sum.saturating_sub(start_sum)).as_secs_f64(),
        )
    }

    /// Waits for `time`, without a worker.
    pub(super) async fn sleep(&self, time: Duration) {
        self.timer.sleep(Instant::now() + time).await;
    }

    /// Waits for a worker, which swaps integers of `bytes` on a separate thread.
    pub(super) async fn shuffle(&self, mut bytes: Vec<u8>, swaps: u32) -> Result<Vec<u8>, QueueFull> {
        let seed = self.rng.borrow_mut().bits();
        let _worker = self.acquire_worker().await?;
        let task = tokio::task::spawn_blocking(move || {
            shuffle(&mut bytes, swaps, &mut SplitMix64::new(seed));
            bytes
        });
        task.await.map_err(|_| QueueFull)
    }

    /// Waits for a worker, unless the queue is full.
    async fn acquire_worker(&self) -> Result<SemaphorePermit<'_>, QueueFull> {
        match self.workers.try_acquire() {
            Ok(worker) => Ok(worker),
            Err(_) if self.waiting.get() >= self.queue_limit => Err(QueueFull),
            Err(_) => {
                self.waiting.set(self.waiting.get() + 1);
                let worker = self.workers.acquire().await;
                self.waiting.set(self.waiting.get() - 1);
                worker.map_err(|_| QueueFull)
            }
        }
    }

    /// Returns the current factor of service times.
    pub(super) fn slowdown_factor(&self) -> f64 {
        let active_slowdown = self.later_slowdown.filter(|slowdown| self.start.elapsed() >= slowdown.after);
        let factor = self.slowdown.get() * active_slowdown.map_or(1.0, |slowdown| slowdown.factor);
        if factor.is_finite() { factor.clamp(0.0, MAX_SLOW) } else { MAX_SLOW }
    }

    /// Multiplies configured service times by `factor` from now on.
    pub(super) fn set_slowdown(&self, factor: f64) {
        self.slowdown.set(factor);
        if let Some(processor) = &self.processor {
            processor.set_slowdown(factor);
        }
    }
}

/// A worker that is held.
struct HeldWorker<'a> {
    pool: &'a WorkerPool,
    since: Duration,
}

impl<'a> HeldWorker<'a> {
    fn new(pool: &'a WorkerPool) -> Self {
        let since = pool.start.elapsed();
        let (count, start_sum) = pool.current_holds.get();
        pool.current_holds.set((count + 1, start_sum + since));
        Self { pool, since }
    }
}

impl Drop for HeldWorker<'_> {
    fn drop(&mut self) {
        let pool = self.pool;
        let (count, start_sum) = pool.current_holds.get();
        pool.current_holds.set((count.saturating_sub(1), start_sum.saturating_sub(self.since)));
        pool.released_hold_time
            .set(pool.released_hold_time.get() + pool.start.elapsed().saturating_sub(self.since));
    }
}

/// Uses `time` of the processor, which takes longer if other threads compete for it.
fn burn_cpu(time: Duration) {
    let thread_cpu_time = || {
        let cpu_clock = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(cpu_clock.tv_sec.unsigned_abs(), cpu_clock.tv_nsec.unsigned_abs() as u32)
    };
    let end = thread_cpu_time() + time;
    let mut sum = 0u64;
    while thread_cpu_time() < end {
        for n in 0..1000 {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(n));
        }
    }
}
