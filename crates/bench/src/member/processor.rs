//! The processors of an emulated server: [`Sharing`] in real time, with a neighbour and slow-downs.
//!
//! What happens at a time of its own (a job ends, the neighbour comes or goes, the server becomes slower) is computed
//! for that time however late the alarm is noticed, so that a busy machine makes answers late but no capacity is lost.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::antagonist::Neighbour;
use super::sharing::{Sharing, Ticket};
use super::timer::Alarm;
use super::work::{Full, MAX_SLOW};
use super::{Slowdown, Spec};

/// The processors of one member.
#[derive(Clone)]
pub(super) struct Processor(Rc<Inner>);

struct Inner {
    cores: f64,
    alarm: Alarm,
    start: Instant,
    /// Most jobs at once.
    most: usize,
    state: RefCell<State>,
}

struct State {
    sharing: Sharing<oneshot::Sender<()>>,
    /// When the alarm rings.
    armed: f64,
    speed: f64,
    slow: f64,
    later: Option<Slowdown>,
    neighbour: Option<Neighbour>,
}

/// Longest that the alarm is set for: the kernel's clock has a last second.
const FAR: f64 = 1e9;

impl Processor {
    /// Of a member with so many cores, in a task of the current local runtime.
    ///
    /// # Errors
    /// If the kernel grants no timer.
    pub(super) fn new(spec: &Spec, cores: f64) -> io::Result<Self> {
        let mut state = State {
            sharing: Sharing::new(cores, spec.speed),
            armed: f64::INFINITY,
            speed: spec.speed,
            slow: 1.0,
            later: spec.slow_after,
            // Neither the seed of the service times nor that of the failures.
            neighbour: spec
                .antagonist
                .map(|antagonist| Neighbour::new(antagonist, spec.seed ^ 0xa27a_6041_57c0_ffee)),
        };
        state.change(0.0);
        let processor = Self(Rc::new(Inner {
            cores,
            alarm: Alarm::new()?,
            start: Instant::now(),
            most: spec.queue.max(1),
            state: RefCell::new(state),
        }));
        processor.settle();
        tokio::task::spawn_local(processor.clone().run());
        Ok(processor)
    }

    /// Does so much work, among others. Dropped before it has ended, it is taken back.
    pub(super) async fn serve(&self, work: Duration) -> Result<(), Full> {
        let now = self.settle();
        let (wake, woken) = oneshot::channel();
        let job = {
            let mut state = self.0.state.borrow_mut();
            if state.sharing.len() >= self.0.most {
                return Err(Full);
            }
            let ticket = state.sharing.begin(now, work.as_secs_f64(), wake);
            self.arm(&mut state);
            Job { processor: self, ticket }
        };
        // The sender is lost only with the runtime.
        let _ = woken.await;
        drop(job);
        Ok(())
    }

    /// How many there are.
    pub(super) fn cores(&self) -> f64 {
        self.0.cores
    }

    /// Core seconds in which cores were in use so far.
    pub(super) fn busy(&self) -> f64 {
        self.settle();
        self.0.state.borrow().sharing.busy()
    }

    /// Everything takes `factor` times as long from now on.
    pub(super) fn slow(&self, factor: f64) {
        let now = self.settle();
        let mut state = self.0.state.borrow_mut();
        state.slow = factor;
        state.change(now);
        self.arm(&mut state);
    }

    /// Catches up with all that has happened until now, and says what time it is.
    fn settle(&self) -> f64 {
        let now = self.0.start.elapsed().as_secs_f64();
        let mut state = self.0.state.borrow_mut();
        while let Some(turn) = state.turn().filter(|turn| *turn <= now) {
            state.finish(turn);
            if let Some(neighbour) = state.neighbour.as_mut().filter(|neighbour| neighbour.until <= turn) {
                neighbour.turn();
            }
            if let Some(later) = state.later.take_if(|later| later.after.as_secs_f64() <= turn) {
                state.speed /= later.factor.max(1.0 / MAX_SLOW);
            }
            state.change(turn);
        }
        state.finish(now);
        self.arm(&mut state);
        now
    }

    /// Sets the alarm if something happens before it rings. That it may ring for nothing costs less than to set it
    /// anew whenever jobs get slower.
    fn arm(&self, state: &mut State) {
        let next = [state.sharing.next(), state.turn()].into_iter().flatten().fold(f64::INFINITY, f64::min);
        if next < state.armed && next.is_finite() {
            state.armed = next;
            self.0.alarm.set(self.0.start + Duration::from_secs_f64(next.min(FAR)));
        }
    }

    async fn run(self) {
        loop {
            self.0.alarm.rings().await;
            self.0.state.borrow_mut().armed = f64::INFINITY;
            self.settle();
        }
    }
}

impl State {
    /// When the speed changes by itself.
    fn turn(&self) -> Option<f64> {
        let neighbour = self.neighbour.as_ref().map(|neighbour| neighbour.until);
        let later = self.later.map(|later| later.after.as_secs_f64());
        [neighbour, later].into_iter().flatten().min_by(f64::total_cmp)
    }

    /// Ends what has ended by `now`.
    fn finish(&mut self, now: f64) {
        while let Some(wake) = self.sharing.ended(now) {
            // It may have given up.
            let _ = wake.send(());
        }
    }

    fn change(&mut self, now: f64) {
        let left = self.neighbour.as_ref().map_or(1.0, |neighbour| neighbour.left);
        self.sharing.change(now, self.speed * left / self.slow.clamp(1.0 / MAX_SLOW, MAX_SLOW));
    }
}

/// A job that is taken back when it is dropped.
struct Job<'a> {
    processor: &'a Processor,
    ticket: Ticket,
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        let now = self.processor.settle();
        let mut state = self.processor.0.state.borrow_mut();
        if state.sharing.cancel(now, self.ticket).is_some() {
            self.processor.arm(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, LocalOptions};

    use super::*;
    use crate::member::Spec;

    fn on_four_cores<F: Future>(
        change: impl FnOnce(&mut Spec),
        test: impl FnOnce(Processor) -> F,
    ) -> F::Output {
        let runtime =
            Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
        let mut spec = Spec::new("127.0.0.1:0".parse().unwrap());
        change(&mut spec);
        runtime.block_on(async { test(Processor::new(&spec, 4.0).unwrap()).await })
    }

    /// When each of so many jobs of so much work began and ended, that were begun at once.
    async fn together(processor: &Processor, jobs: usize, work: Duration) -> Vec<[Duration; 2]> {
        let start = Instant::now();
        let tasks: Vec<_> = (0..jobs)
            .map(|_| {
                let processor = processor.clone();
                tokio::task::spawn_local(async move {
                    let begin = start.elapsed();
                    processor.serve(work).await.unwrap();
                    [begin, start.elapsed()]
                })
            })
            .collect();
        let mut times = Vec::new();
        for task in tasks {
            times.push(task.await.unwrap());
        }
        times
    }

    /// How late the one in the middle was, and the last, against when four cores would have ended them.
    fn lateness(times: &[[Duration; 2]], work: Duration) -> [f64; 2] {
        let (mut sharing, mut due) = (Sharing::new(4.0, 1.0), vec![0.0; times.len()]);
        let mut end_by = |sharing: &mut Sharing<usize>, now: f64| {
            while let Some(end) = sharing.next().filter(|end| *end <= now) {
                let job = sharing.ended(end).expect("it is the next to end");
                due[job] = end;
            }
        };
        for (job, [begin, _]) in times.iter().enumerate() {
            end_by(&mut sharing, begin.as_secs_f64());
            sharing.begin(begin.as_secs_f64(), work.as_secs_f64(), job);
        }
        end_by(&mut sharing, f64::INFINITY);
        let mut late: Vec<_> =
            times.iter().zip(&due).map(|([_, end], due)| end.as_secs_f64() - due).collect();
        late.sort_by(f64::total_cmp);
        [late[late.len() / 2], late[late.len() - 1]]
    }

    #[test]
    fn two_hundred_jobs_end_within_a_millisecond_of_their_time() {
        let ms = Duration::from_millis(1);
        let rounds = on_four_cores(
            |_| {},
            async |processor| {
                let mut rounds = Vec::new();
                for _ in 0..10 {
                    // 200 ms of work on four cores.
                    let times = together(&processor, 200, ms).await;
                    let last = times.iter().map(|[_, end]| *end).max().unwrap();
                    assert!(last >= 50 * ms, "{last:?}");
                    rounds.push(lateness(&times, ms));
                }
                rounds
            },
        );
        // Others may have the machine in most of the rounds, not in all. To wake two hundred takes about a millisecond by itself where
        // nothing is optimized, which the last of them waits for.
        assert!(rounds.iter().any(|[middle, last]| *middle < 1e-3 && *last < 5e-3), "{rounds:?}");
    }

    #[test]
    fn what_is_dropped_leaves_its_share_to_the_others() {
        let ms = Duration::from_millis(1);
        on_four_cores(
            |_| {},
            async |processor| {
                let long = Duration::from_secs(1000);
                for _ in 0..40 {
                    assert!(tokio::time::timeout(ms, processor.serve(long)).await.is_err());
                }
                let [_, time] = together(&processor, 4, 50 * ms).await[0];
                assert!((50 * ms..500 * ms).contains(&time), "{time:?}");
            },
        );
    }

    #[test]
    fn slow_downs_meet_jobs_in_service_and_the_queue_is_bounded() {
        let ms = Duration::from_millis(1);
        let slower = |spec: &mut Spec| {
            spec.queue = 2;
            spec.slow_after = Some(Slowdown { after: 20 * ms, factor: 10.0 });
        };
        on_four_cores(slower, async |processor| {
            let first = processor.clone();
            let first = tokio::task::spawn_local(async move {
                let begin = Instant::now();
                first.serve(30 * ms).await.unwrap();
                begin.elapsed()
            });
            let second = processor.clone();
            let second = tokio::task::spawn_local(async move { second.serve(30 * ms).await });
            tokio::task::yield_now().await;
            assert!(processor.serve(ms).await.is_err());
            // 20 ms at full speed and the other 10 ms at a tenth of it.
            let time = first.await.unwrap();
            assert!(time >= 119 * ms && second.await.unwrap().is_ok(), "{time:?}");
            processor.slow(0.1);
            assert!(processor.serve(30 * ms).await.is_ok());
        });
    }
}
