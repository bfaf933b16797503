//! A timer wheel: the deadlines of all connections of one core, on one timerfd.
//!
//! A hashed wheel with lazy re-arming. Extending a deadline, which every request does, is one store. The slot
//! is visited at the old time, finds the new deadline and moves the timer. (Varghese and Lauck's hashed
//! wheel, with timers re-armed at expiry as in Linux before 4.8.)
//!
//! A timer fires after a round of I/O that began when it was due (`executor`). So a process that was
//! suspended reads the bytes that have arrived before any deadline passes.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use plimsoll_brain::Time;

use crate::runtime::clock::Clock;
use crate::runtime::slab::Slab;
use crate::runtime::timer_fd::TimerFd;

/// The nanoseconds in a tick, as a shift: 16.8 ms. A deadline fires up to one tick late, never early.
const TICK_BITS: u32 = 24;
const SLOTS: usize = 512;

/// The timers of one core.
pub(crate) struct TimerWheel {
    clock: Clock,
    timers: RefCell<Slab<Rc<TimerEntry>>>,
    slots: RefCell<Vec<Vec<u32>>>,
    /// The last tick that was visited.
    visited: Cell<u64>,
    /// The tick until which the driver sleeps.
    wake_at: Cell<u64>,
    driver: RefCell<Option<Waker>>,
}

/// The state of a timer, shared by the wheel and the timer: each request sets and reads it several times.
struct TimerEntry {
    /// The first tick at which the deadline has passed; `u64::MAX` for none.
    due: Cell<u64>,
    /// The tick of the slot that will be visited for it; `u64::MAX` for none.
    armed: Cell<u64>,
    fired: Cell<bool>,
    /// The waker of its task, once that is known.
    waker: OnceCell<Waker>,
}

impl TimerWheel {
    pub(crate) fn new(clock: Clock) -> Rc<Self> {
        Rc::new(Self {
            clock,
            timers: RefCell::default(),
            slots: RefCell::new(vec![Vec::new(); SLOTS]),
            visited: Cell::new(clock.now().0 >> TICK_BITS),
            wake_at: Cell::new(u64::MAX),
            driver: RefCell::default(),
        })
    }

    /// Creates a timer that wakes the task of `waker`.
    pub(crate) fn timer(self: &Rc<Self>, waker: &Waker) -> Timer {
        let timer = self.timer_without_task();
        timer.set_waker(waker);
        timer
    }

    /// Creates a timer that wakes no task before [`Timer::set_waker`].
    pub(crate) fn timer_without_task(self: &Rc<Self>) -> Timer {
        let (due, armed) = (Cell::new(u64::MAX), Cell::new(u64::MAX));
        let entry = Rc::new(TimerEntry { due, armed, fired: Cell::new(false), waker: OnceCell::new() });
        let key = self.timers.borrow_mut().insert_with(|_| Rc::clone(&entry));
        Timer { wheel: Rc::clone(self), entry, key }
    }

    /// Visits slots as time passes, while the core runs. `round` waits until all that had arrived at the
    /// sockets was handled.
    ///
    /// No timer fires before such a round that began after its deadline. So bytes that arrived in time are
    /// never late, however long the process was suspended: by a signal, a migrated machine, or a cgroup
    /// without processor time.
    pub(crate) async fn drive(self: Rc<Self>, timer_fd: TimerFd, complete_round: impl AsyncFn()) {
        loop {
            // Timers that become due during this round have their own.
            let now = self.clock.now().0 >> TICK_BITS;
            if self.next_tick() <= now {
                complete_round().await;
            }
            self.visit(now);
            // Woken by the alarm, or because an earlier deadline was set.
            let mut has_slept = false;
            poll_fn(|cx| {
                if std::mem::replace(&mut has_slept, true) {
                    let _ = timer_fd.poll_fired(cx);
                    return Poll::Ready(());
                }
                let next = self.next_tick();
                self.wake_at.set(next);
                *self.driver.borrow_mut() = Some(cx.waker().clone());
                if next != u64::MAX {
                    timer_fd.set(Time(next << TICK_BITS));
                }
                timer_fd.poll_fired(cx)
            })
            .await;
        }
    }

    /// Waits for a time span.
    pub(crate) async fn sleep(self: &Rc<Self>, duration: Duration) {
        let deadline = self.clock.now() + duration;
        let mut timer = None;
        poll_fn(|cx| {
            let timer = timer.get_or_insert_with(|| {
                let timer = self.timer(cx.waker());
                timer.set(deadline);
                timer
            });
            if timer.fired() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Wakes every task that has a timer, without firing any.
    pub(crate) fn wake_all(&self) {
        let wakers: Vec<Waker> =
            self.timers.borrow().iter().filter_map(|entry| entry.waker.get().cloned()).collect();
        wakers.iter().for_each(Waker::wake_by_ref);
    }

    /// Fires due timers by a clock that a test stops; the driver's alarm uses the machine's clock.
    #[cfg(test)]
    pub(crate) fn turn(&self) {
        self.visit(self.clock.now().0 >> TICK_BITS);
    }

    /// Makes the driver read the clock, which a test has advanced.
    #[cfg(test)]
    pub(crate) fn call(&self) {
        self.driver.borrow().iter().for_each(Waker::wake_by_ref);
    }

    /// Fires the timers whose deadline has passed at tick `now`.
    fn visit(&self, now: u64) {
        let first_tick = (self.visited.get() + 1).max(now.saturating_sub(SLOTS as u64 - 1));
        self.visited.set(now.max(self.visited.get()));
        // All are taken before any is placed again: after a long sleep, that slot may have passed as well.
        let mut keys = Vec::new();
        for tick in first_tick..=now {
            keys.append(&mut self.slots.borrow_mut()[(tick % SLOTS as u64) as usize]);
        }
        for key in keys {
            self.visit_one(key, now);
        }
    }

    fn visit_one(&self, key: u32, now: u64) {
        let entry = self.timers.borrow().get(key as usize).map(Rc::clone);
        // A slot may name a timer that was dropped, or that was re-armed for another tick.
        let Some(entry) = entry.filter(|entry| entry.armed.get() <= now) else { return };
        entry.armed.set(u64::MAX);
        let due_tick = entry.due.get();
        if due_tick <= now {
            entry.due.set(u64::MAX);
            entry.fired.set(true);
            entry.waker.get().into_iter().for_each(Waker::wake_by_ref);
        } else if due_tick != u64::MAX {
            entry.armed.set(self.schedule(key, due_tick));
        }
    }

    /// Puts a timer into the slot of its deadline, or into the last slot, and returns that slot's tick.
    fn schedule(&self, key: u32, due_tick: u64) -> u64 {
        let visited = self.visited.get();
        let tick = due_tick.clamp(visited + 1, visited + SLOTS as u64 - 1);
        self.slots.borrow_mut()[(tick % SLOTS as u64) as usize].push(key);
        tick
    }

    fn next_tick(&self) -> u64 {
        let visited = self.visited.get();
        let slots = self.slots.borrow();
        let mut ticks = visited + 1..visited + SLOTS as u64;
        ticks.find(|tick| !slots[(tick % SLOTS as u64) as usize].is_empty()).unwrap_or(u64::MAX)
    }
}

/// One deadline, which may be moved any number of times.
pub(crate) struct Timer {
    wheel: Rc<TimerWheel>,
    entry: Rc<TimerEntry>,
    /// The key in the wheel.
    key: usize,
}

impl Timer {
    /// Wakes the task of `waker` from now on, if there is no task yet.
    pub(crate) fn set_waker(&self, waker: &Waker) {
        self.entry.waker.get_or_init(|| waker.clone());
    }

    /// Fires at `deadline` unless set again before; clears an earlier firing.
    #[inline]
    pub(crate) fn set(&self, deadline: Time) {
        let due_tick = (deadline.0 >> TICK_BITS) + 1;
        self.entry.due.set(due_tick);
        self.entry.fired.set(false);
        if due_tick < self.entry.armed.get() {
            self.arm(due_tick);
        }
    }

    /// Moves the next visit of the timer to an earlier time.
    fn arm(&self, due_tick: u64) {
        let armed_tick = self.wheel.schedule(self.key as u32, due_tick);
        self.entry.armed.set(armed_tick);
        if armed_tick < self.wheel.wake_at.get() {
            self.wheel.wake_at.set(armed_tick);
            if let Some(driver) = &*self.wheel.driver.borrow() {
                driver.wake_by_ref();
            }
        }
    }

    /// Returns `true` if the deadline has passed since it was set.
    #[inline]
    pub(crate) fn fired(&self) -> bool {
        self.entry.fired.get()
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.wheel.timers.borrow_mut().remove(self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::clock::held;

    fn run<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_io().build().expect("runtime").block_on(future)
    }

    /// Waits until the timer fires; returns the elapsed time.
    async fn wait(wheel: &Rc<TimerWheel>, deadlines: &[u64]) -> Duration {
        let clock = wheel.clock;
        let started_at = clock.now();
        let mut timer = None;
        poll_fn(|cx| {
            let timer = timer.get_or_insert_with(|| {
                let timer = wheel.timer(cx.waker());
                deadlines.iter().for_each(|millis| timer.set(started_at + Duration::from_millis(*millis)));
                timer
            });
            if timer.fired() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        clock.now().since(started_at)
    }

    #[test]
    fn the_last_deadline_set_is_the_one_that_counts() {
        run(async {
            let wheel = TimerWheel::new(Clock::start());
            let waiting = async {
                // A deadline of an hour ends no test.
                for (deadlines, expected) in
                    [(&[60][..], 60), (&[30, 120], 120), (&[3_600_000, 40], 40), (&[0], 0)]
                {
                    let elapsed_millis = wait(&wheel, deadlines).await.as_millis() as u64;
                    assert!(elapsed_millis >= expected, "{deadlines:?} took {elapsed_millis} ms");
                }
            };
            tokio::select! {
                () = Rc::clone(&wheel).drive(TimerFd::new(wheel.clock).expect("an alarm"), async || {}) => {}
                () = waiting => {}
            }
        });
    }

    #[test]
    fn timers_fire_on_time_however_long_the_thread_sleeps() {
        let _clock = held::hold();
        let wheel = TimerWheel::new(Clock::start());
        let timers: Vec<Timer> = (0..50).map(|_| wheel.timer(Waker::noop())).collect();
        let mut deadlines = vec![None; timers.len()];
        let mut draw_count = 0_u64;
        let mut random_below = |bound: u64| {
            draw_count += 1;
            plimsoll_brain::hash(&draw_count.to_ne_bytes()) % bound
        };
        for _ in 0..20_000 {
            let index = random_below(50) as usize;
            // Up to three rotations of the wheel ahead, mostly less.
            let max_millis = if random_below(4) == 0 { 25_000 } else { 3000 };
            let delay = Duration::from_millis(random_below(max_millis));
            deadlines[index] = Some(wheel.clock.now() + delay);
            timers[index].set(wheel.clock.now() + delay);
            if random_below(3) == 0 {
                let max_millis = if random_below(50) == 0 { 30_000 } else { 40 };
                held::advance(Duration::from_millis(random_below(max_millis)));
                wheel.turn();
            }
            let tick = wheel.visited.get();
            for (timer, deadline) in timers.iter().zip(&deadlines) {
                let is_past = deadline.is_some_and(|deadline: Time| deadline.0 >> TICK_BITS < tick);
                assert_eq!(timer.fired(), is_past, "a deadline at {deadline:?} at tick {tick}");
            }
        }
    }

    #[test]
    fn many_timers_come_and_go() {
        run(async {
            let wheel = TimerWheel::new(Clock::start());
            let waiting = async {
                for _ in 0..3 {
                    let timers: Vec<Timer> = (0..1000).map(|_| wheel.timer(Waker::noop())).collect();
                    for (index, timer) in timers.iter().enumerate() {
                        timer.set(wheel.clock.now() + Duration::from_millis(index as u64 % 50));
                    }
                    drop(timers.into_iter().step_by(2).collect::<Vec<_>>());
                    wait(&wheel, &[70]).await;
                }
                assert!(wheel.timers.borrow().is_empty());
            };
            tokio::select! {
                () = Rc::clone(&wheel).drive(TimerFd::new(wheel.clock).expect("an alarm"), async || {}) => {}
                () = waiting => {}
            }
        });
    }
}
