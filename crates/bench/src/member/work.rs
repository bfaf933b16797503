//! The workers: a bounded queue, first come first served, before a fixed number of service slots; or
//! processors that all requests in service share.

use std::cell::{Cell, RefCell};
use std::io;
use std::time::{Duration, Instant};

use rustix::time::ClockId;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::processor::Processor;
use super::steps::Server;
use super::timer::Timer;
use super::{Service, Slowdown, Spec, Steps, shuffle};
use crate::chance::Chance;

/// The workers of one member.
pub(super) struct Work {
    service: Service,
    /// The service time of dynamic pages.
    dynamic: Option<Service>,
    chance: RefCell<Chance>,
    /// The workers; the semaphore is fair and serves waiters in the order of arrival.
    workers: Semaphore,
    /// The number of workers.
    count: usize,
    /// The time for which workers were held; then the number of those held now with the sum of their begins.
    held: Cell<Duration>,
    holding: Cell<(u32, Duration)>,
    waiting: Cell<usize>,
    queue: usize,
    burn: bool,
    session: Duration,
    timer: Timer,
    start: Instant,
    slow: Cell<f64>,
    slow_after: Option<Slowdown>,
    /// The processors, in place of the workers.
    processor: Option<Processor>,
    /// The steps, in place of the service time; those of a received message need no worker.
    steps: Option<Steps>,
    receive: Option<Steps>,
    server: Server,
    /// Whether there is only one worker.
    only: bool,
}

/// The error of a full queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Full;

/// The maximum factor of a slowdown.
pub(super) const MAX_SLOW: f64 = 1e6;

impl Work {
    pub(super) fn new(spec: &Spec) -> io::Result<Self> {
        Ok(Self {
            service: spec.service,
            dynamic: spec.dynamic,
            chance: RefCell::new(Chance::new(spec.seed)),
            workers: Semaphore::new(spec.workers.clamp(1, Semaphore::MAX_PERMITS)),
            count: spec.workers.clamp(1, Semaphore::MAX_PERMITS),
            held: Cell::default(),
            holding: Cell::default(),
            waiting: Cell::new(0),
            queue: spec.queue,
            burn: spec.burn,
            session: spec.session,
            timer: Timer::new()?,
            start: Instant::now(),
            slow: Cell::new(1.0),
            slow_after: spec.slow_after,
            processor: spec.cores.map(|cores| Processor::new(spec, cores)).transpose()?,
            steps: spec.steps.clone(),
            receive: spec.receive.clone(),
            server: Server::new(),
            only: spec.workers <= 1,
        })
    }

    /// Returns `true` if a request, the `first` of its connection or another, takes no time at all.
    pub(super) fn is_instant(&self, first: bool) -> bool {
        self.steps.is_none() && self.service == Service::None && (!first || self.session.is_zero())
    }

    /// Receives a message, which needs no worker.
    pub(super) async fn receive(&self) {
        if let Some(steps) = &self.receive {
            self.server.run(Instant::now(), steps, &self.chance, &self.timer, self.factor()).await;
        }
    }

    /// Returns the busy times of the workers (summed) and of the steps' processor, in seconds.
    pub(super) fn used(&self) -> (f64, f64) {
        self.server.used()
    }

    /// Waits for a worker and holds it for a service time; longer if the request is the `first` of its
    /// connection. Dropping the future releases the worker, or its share of the processors.
    pub(super) async fn serve(&self, first: bool) -> Result<(), Full> {
        self.hold(self.service, first).await
    }

    /// Waits for a worker and releases it at once: for answers that the server gives without the program.
    pub(super) async fn turn(&self) -> Result<(), Full> {
        if self.processor.is_some() { Ok(()) } else { self.worker().await.map(drop) }
    }

    /// Serves a request like [`Self::serve`], for a page: it takes the time of dynamic pages if it is
    /// `dynamic`.
    pub(super) async fn page(&self, first: bool, dynamic: bool) -> Result<(), Full> {
        self.hold(self.dynamic.filter(|_| dynamic).unwrap_or(self.service), first).await
    }

    async fn hold(&self, service: Service, first: bool) -> Result<(), Full> {
        if let Some(steps) = &self.steps {
            let came = Instant::now();
            let _worker = self.worker().await?;
            let _busy = self.server.thread();
            let begin = self.server.begin(came, self.only);
            let end = self.server.run(begin, steps, &self.chance, &self.timer, self.factor()).await;
            self.server.end(end);
            return Ok(());
        }
        if service == Service::None && (!first || self.session.is_zero()) {
            return Ok(());
        }
        let session = if first { self.session } else { Duration::ZERO };
        // Drawn on arrival: the n-th request of a run has the n-th service time in any order of service.
        let time = service.draw(&mut self.chance.borrow_mut()) + session;
        if let Some(processor) = &self.processor {
            return processor.serve(time).await;
        }
        let worker = self.worker().await?;
        let _held = Held::new(self);
        let time = time.mul_f64(self.factor());
        if self.burn {
            let _ = tokio::task::spawn_blocking(move || burn(time)).await;
        } else {
            self.timer.sleep(Instant::now() + time).await;
        }
        drop(worker);
        Ok(())
    }

    /// Returns the number of cores or workers, and the seconds in which they were in use so far, summed.
    pub(super) fn busy(&self) -> (f64, f64) {
        if let Some(processor) = &self.processor {
            return (processor.cores(), processor.busy());
        }
        let (holding, since) = self.holding.get();
        let now = holding * self.start.elapsed();
        (self.count as f64, (self.held.get() + now.saturating_sub(since)).as_secs_f64())
    }

    /// Waits for `time`, without a worker.
    pub(super) async fn wait(&self, time: Duration) {
        self.timer.sleep(Instant::now() + time).await;
    }

    /// Waits for a worker, which swaps integers of `bytes` on a separate thread.
    pub(super) async fn shuffle(&self, mut bytes: Vec<u8>, swaps: u32) -> Result<Vec<u8>, Full> {
        let seed = self.chance.borrow_mut().bits();
        let _worker = self.worker().await?;
        let shuffled = tokio::task::spawn_blocking(move || {
            shuffle(&mut bytes, swaps, &mut Chance::new(seed));
            bytes
        });
        shuffled.await.map_err(|_| Full)
    }

    /// Waits for a worker, unless the queue is full.
    async fn worker(&self) -> Result<SemaphorePermit<'_>, Full> {
        match self.workers.try_acquire() {
            Ok(worker) => Ok(worker),
            Err(_) if self.waiting.get() >= self.queue => Err(Full),
            Err(_) => {
                self.waiting.set(self.waiting.get() + 1);
                let worker = self.workers.acquire().await;
                self.waiting.set(self.waiting.get() - 1);
                worker.map_err(|_| Full)
            }
        }
    }

    /// Returns the current factor of service times.
    pub(super) fn factor(&self) -> f64 {
        let later = self.slow_after.filter(|slowdown| self.start.elapsed() >= slowdown.after);
        let factor = self.slow.get() * later.map_or(1.0, |slowdown| slowdown.factor);
        if factor.is_finite() { factor.clamp(0.0, MAX_SLOW) } else { MAX_SLOW }
    }

    /// Multiplies configured service times by `factor` from now on.
    pub(super) fn slow(&self, factor: f64) {
        self.slow.set(factor);
        if let Some(processor) = &self.processor {
            processor.slow(factor);
        }
    }
}

/// A worker that is held.
struct Held<'a> {
    work: &'a Work,
    since: Duration,
}

impl<'a> Held<'a> {
    fn new(work: &'a Work) -> Self {
        let since = work.start.elapsed();
        let (count, sum) = work.holding.get();
        work.holding.set((count + 1, sum + since));
        Self { work, since }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let work = self.work;
        let (count, sum) = work.holding.get();
        work.holding.set((count.saturating_sub(1), sum.saturating_sub(self.since)));
        work.held.set(work.held.get() + work.start.elapsed().saturating_sub(self.since));
    }
}

/// Uses `time` of the processor, which takes longer if other threads compete for it.
fn burn(time: Duration) {
    let clock = || {
        let now = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
    };
    let end = clock() + time;
    let mut sum = 0u64;
    while clock() < end {
        for n in 0..1000 {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(n));
        }
    }
}
