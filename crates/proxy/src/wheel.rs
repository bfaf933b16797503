//! Deadlines of all connections of one core, on one alarm.
//!
//! A hashed wheel with lazy re-arming: moving a deadline further away, which every request does, is one
//! store; the slot is visited at the old time, finds the new deadline and moves on (Varghese and Lauck's
//! hashed wheel, with timers re-armed at expiry as in Linux before 4.8).
//!
//! A timer fires after a round of I/O that began when it was due (`sessions`), so that a process that stood
//! still reads what has arrived before any deadline passes.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use plimsoll_brain::Time;

use crate::alarm::Alarm;
use crate::chunks::Chunks;
use crate::clock::Clock;

/// Nanoseconds in a tick, as a shift: 16.8 ms. A deadline fires up to one tick late, never early.
const TICK: u32 = 24;
const SLOTS: usize = 512;

/// The timers of one core.
pub(crate) struct Wheel {
    clock: Clock,
    timers: RefCell<Chunks<Rc<Entry>>>,
    slots: RefCell<Vec<Vec<u32>>>,
    /// Last tick that was visited.
    visited: Cell<u64>,
    /// Tick the driver sleeps until.
    wake_at: Cell<u64>,
    driver: RefCell<Option<Waker>>,
}

/// What the wheel knows of a timer, and the timer itself: each request sets it and looks at it several times.
struct Entry {
    /// First tick at which the deadline has passed; `u64::MAX` for none.
    due: Cell<u64>,
    /// Tick of the slot that will be visited for it; `u64::MAX` for none.
    armed: Cell<u64>,
    fired: Cell<bool>,
    /// Of the task that it wakes, once that is known.
    waker: OnceCell<Waker>,
}

impl Wheel {
    pub(crate) fn new(clock: Clock) -> Rc<Self> {
        Rc::new(Self {
            clock,
            timers: RefCell::default(),
            slots: RefCell::new(vec![Vec::new(); SLOTS]),
            visited: Cell::new(clock.now().0 >> TICK),
            wake_at: Cell::new(u64::MAX),
            driver: RefCell::default(),
        })
    }

    /// A timer that wakes the task of `waker`.
    pub(crate) fn timer(self: &Rc<Self>, waker: &Waker) -> Timer {
        let timer = self.timer_of_nobody();
        timer.wakes(waker);
        timer
    }

    /// A timer that wakes nobody before [`Timer::wakes`].
    pub(crate) fn timer_of_nobody(self: &Rc<Self>) -> Timer {
        let (due, armed) = (Cell::new(u64::MAX), Cell::new(u64::MAX));
        let entry = Rc::new(Entry { due, armed, fired: Cell::new(false), waker: OnceCell::new() });
        let key = self.timers.borrow_mut().insert_with(|_| Rc::clone(&entry));
        Timer { wheel: Rc::clone(self), entry, key }
    }

    /// Visits slots as time passes; runs as long as the core. `round` waits until all that had arrived at the sockets has been
    /// seen to.
    ///
    /// No timer fires before such a round that began after its deadline. What arrived in time is therefore never late, however long
    /// the process stood still: a stopped process, a machine that was moved, a cgroup without processor time.
    pub(crate) async fn drive(self: Rc<Self>, alarm: Alarm, round: impl AsyncFn()) {
        loop {
            // What becomes due while this round lasts has its own.
            let now = self.clock.now().0 >> TICK;
            if self.next() <= now {
                round().await;
            }
            self.visit(now);
            // Woken by the alarm, or because a deadline was set that is earlier than that.
            let mut slept = false;
            poll_fn(|cx| {
                if std::mem::replace(&mut slept, true) {
                    let _ = alarm.poll_rung(cx);
                    return Poll::Ready(());
                }
                let next = self.next();
                self.wake_at.set(next);
                *self.driver.borrow_mut() = Some(cx.waker().clone());
                if next != u64::MAX {
                    alarm.set(Time(next << TICK));
                }
                alarm.poll_rung(cx)
            })
            .await;
        }
    }

    /// Waits for so long.
    pub(crate) async fn sleep(self: &Rc<Self>, span: Duration) {
        let deadline = self.clock.now() + span;
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

    /// Fires what is due on a clock that a test holds; the alarm of the driver rings by the machine's clock.
    #[cfg(test)]
    pub(crate) fn turn(&self) {
        self.visit(self.clock.now().0 >> TICK);
    }

    /// Has the driver look at the clock, which a test has moved.
    #[cfg(test)]
    pub(crate) fn call(&self) {
        self.driver.borrow().iter().for_each(Waker::wake_by_ref);
    }

    /// Fires the timers whose deadline has passed at tick `now`.
    fn visit(&self, now: u64) {
        let from = (self.visited.get() + 1).max(now.saturating_sub(SLOTS as u64 - 1));
        self.visited.set(now.max(self.visited.get()));
        // All of them before any is placed anew: after a long sleep that may be in a slot that has passed as well.
        let mut keys = Vec::new();
        for tick in from..=now {
            keys.append(&mut self.slots.borrow_mut()[(tick % SLOTS as u64) as usize]);
        }
        for key in keys {
            self.visit_one(key, now);
        }
    }

    fn visit_one(&self, key: u32, now: u64) {
        let entry = self.timers.borrow().get(key as usize).map(Rc::clone);
        // A slot may name a timer that is gone, or one that was armed anew for another tick.
        let Some(entry) = entry.filter(|entry| entry.armed.get() <= now) else { return };
        entry.armed.set(u64::MAX);
        let due = entry.due.get();
        if due <= now {
            entry.due.set(u64::MAX);
            entry.fired.set(true);
            entry.waker.get().into_iter().for_each(Waker::wake_by_ref);
        } else if due != u64::MAX {
            entry.armed.set(self.place(key, due));
        }
    }

    /// Puts a timer in the slot of its deadline, or in the last one there is; the tick of that slot.
    fn place(&self, key: u32, due: u64) -> u64 {
        let visited = self.visited.get();
        let tick = due.clamp(visited + 1, visited + SLOTS as u64 - 1);
        self.slots.borrow_mut()[(tick % SLOTS as u64) as usize].push(key);
        tick
    }

    fn next(&self) -> u64 {
        let visited = self.visited.get();
        let slots = self.slots.borrow();
        let mut ticks = visited + 1..visited + SLOTS as u64;
        ticks.find(|tick| !slots[(tick % SLOTS as u64) as usize].is_empty()).unwrap_or(u64::MAX)
    }
}

/// One deadline, moved as often as one likes.
pub(crate) struct Timer {
    wheel: Rc<Wheel>,
    entry: Rc<Entry>,
    /// Where the wheel has it.
    key: usize,
}

impl Timer {
    /// Wakes the task of `waker` from now on, if it wakes none yet.
    pub(crate) fn wakes(&self, waker: &Waker) {
        self.entry.waker.get_or_init(|| waker.clone());
    }

    /// Fires at `deadline` unless set again before; forgets an earlier firing.
    #[inline]
    pub(crate) fn set(&self, deadline: Time) {
        let due = (deadline.0 >> TICK) + 1;
        self.entry.due.set(due);
        self.entry.fired.set(false);
        if due < self.entry.armed.get() {
            self.arm(due);
        }
    }

    /// It is to be visited earlier than it would be.
    fn arm(&self, due: u64) {
        let armed = self.wheel.place(self.key as u32, due);
        self.entry.armed.set(armed);
        if armed < self.wheel.wake_at.get() {
            self.wheel.wake_at.set(armed);
            if let Some(driver) = &*self.wheel.driver.borrow() {
                driver.wake_by_ref();
            }
        }
    }

    /// Has the deadline passed since it was set?
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
    use crate::clock::held;

    fn run<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_io().build().expect("runtime").block_on(future)
    }

    /// Waits until the timer fires; how long that took.
    async fn wait(wheel: &Rc<Wheel>, deadlines: &[u64]) -> Duration {
        let clock = wheel.clock;
        let begin = clock.now();
        let mut timer = None;
        poll_fn(|cx| {
            let timer = timer.get_or_insert_with(|| {
                let timer = wheel.timer(cx.waker());
                deadlines.iter().for_each(|millis| timer.set(begin + Duration::from_millis(*millis)));
                timer
            });
            if timer.fired() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        clock.now().since(begin)
    }

    #[test]
    fn the_last_deadline_set_is_the_one_that_counts() {
        run(async {
            let wheel = Wheel::new(Clock::start());
            let wait = async {
                // One of an hour ends no test.
                for (deadlines, expected) in
                    [(&[60][..], 60), (&[30, 120], 120), (&[3_600_000, 40], 40), (&[0], 0)]
                {
                    let took = wait(&wheel, deadlines).await.as_millis() as u64;
                    assert!(took >= expected, "{deadlines:?} took {took} ms");
                }
            };
            tokio::select! {
                () = Rc::clone(&wheel).drive(Alarm::new(wheel.clock).expect("an alarm"), async || {}) => {}
                () = wait => {}
            }
        });
    }

    #[test]
    fn timers_fire_on_time_however_long_the_thread_sleeps() {
        let _held = held::hold();
        let wheel = Wheel::new(Clock::start());
        let timers: Vec<Timer> = (0..50).map(|_| wheel.timer(Waker::noop())).collect();
        let mut deadlines = vec![None; timers.len()];
        let mut draws = 0_u64;
        let mut draw = |below: u64| {
            draws += 1;
            plimsoll_brain::hash(&draws.to_ne_bytes()) % below
        };
        for _ in 0..20_000 {
            let index = draw(50) as usize;
            // Up to three turns of the wheel ahead, mostly less.
            let most = if draw(4) == 0 { 25_000 } else { 3000 };
            let ahead = Duration::from_millis(draw(most));
            deadlines[index] = Some(wheel.clock.now() + ahead);
            timers[index].set(wheel.clock.now() + ahead);
            if draw(3) == 0 {
                let most = if draw(50) == 0 { 30_000 } else { 40 };
                held::advance(Duration::from_millis(draw(most)));
                wheel.turn();
            }
            let tick = wheel.visited.get();
            for (timer, deadline) in timers.iter().zip(&deadlines) {
                let passed = deadline.is_some_and(|deadline: Time| deadline.0 >> TICK < tick);
                assert_eq!(timer.fired(), passed, "a deadline at {deadline:?} at tick {tick}");
            }
        }
    }

    #[test]
    fn many_timers_come_and_go() {
        run(async {
            let wheel = Wheel::new(Clock::start());
            let waits = async {
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
                () = Rc::clone(&wheel).drive(Alarm::new(wheel.clock).expect("an alarm"), async || {}) => {}
                () = waits => {}
            }
        });
    }
}
