//! An alarm on a timerfd, precise to microseconds, and sleeping tasks: a heap of deadlines over one alarm.
//!
//! The runtime's own timers count whole milliseconds, which would turn a service time of 2 ms into one of 3
//! ms and falsify every figure.

use std::cell::{Cell, RefCell};
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

/// An alarm for one time.
pub(super) struct TimerFd(AsyncFd<OwnedFd>);

impl TimerFd {
    /// Creates an alarm that is not set.
    ///
    /// # Errors
    /// Fails if the kernel grants no timer.
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let descriptor = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        #[expect(
            deprecated,
            reason = "sound with an OwnedFd, which stays open and the same; its heir is unsafe"
        )]
        let descriptor = AsyncFd::with_interest(descriptor, Interest::READABLE)?;
        Ok(Self(descriptor))
    }

    /// Sets the alarm, in place of the previous time. The time is less than a million years away.
    pub(super) fn set(&self, deadline: Instant) {
        // Zero would turn the timer off.
        let timeout = deadline.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let it_value =
            Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        let timer_spec = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        rustix::time::timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &timer_spec)
            .expect("the descriptor is a timer and the time is in range");
    }

    /// Waits until the alarm fires; forever if the runtime ends.
    pub(super) async fn expired(&self) {
        loop {
            let Ok(mut guard) = self.0.readable().await else { return std::future::pending().await };
            let mut expirations = [0u8; 8];
            if let Ok(Ok(_)) = guard.try_io(|descriptor| Ok(rustix::io::read(descriptor, &mut expirations)?))
            {
                // One read takes all there is; a second one would only confirm that.
                return guard.clear_ready();
            }
        }
    }
}

/// A timer that wakes tasks of one thread.
#[derive(Clone)]
pub(super) struct TaskTimer(Rc<TimerInner>);

struct TimerInner {
    timer: TimerFd,
    sleepers: RefCell<BinaryHeap<Reverse<SleepingTask>>>,
    sleep_count: Cell<u64>,
}

struct SleepingTask {
    deadline: Instant,
    /// The number that orders sleepers with the same time.
    number: u64,
    wake_sender: oneshot::Sender<()>,
}

impl TaskTimer {
    /// Starts the timer in a task of the current local runtime.
    ///
    /// # Errors
    /// Fails if the kernel grants no timer.
    pub(super) fn new() -> io::Result<Self> {
        let timer = Self(Rc::new(TimerInner {
            timer: TimerFd::new()?,
            sleepers: RefCell::default(),
            sleep_count: Cell::new(0),
        }));
        tokio::task::spawn_local(timer.clone().tick());
        Ok(timer)
    }

    /// Sleeps until `until`.
    pub(super) async fn sleep(&self, deadline: Instant) {
        let (wake_sender, woken) = oneshot::channel();
        let number = self.0.sleep_count.replace(self.0.sleep_count.get() + 1);
        self.0.sleepers.borrow_mut().push(Reverse(SleepingTask { deadline, number, wake_sender }));
        self.arm();
        // The sender is lost only with the runtime.
        let _ = woken.await;
    }

    /// Sets the alarm for the first sleeper: at most an hour of service, slowed down.
    fn arm(&self) {
        if let Some(Reverse(first)) = self.0.sleepers.borrow().peek() {
            self.0.timer.set(first.deadline);
        }
    }

    /// Wakes the sleepers that are due each time the alarm fires.
    async fn tick(self) {
        loop {
            self.0.timer.expired().await;
            let now = Instant::now();
            let mut sleepers = self.0.sleepers.borrow_mut();
            while sleepers.peek().is_some_and(|Reverse(first)| first.deadline <= now) {
                if let Some(Reverse(sleeper)) = sleepers.pop() {
                    // The receiver may have given up.
                    let _ = sleeper.wake_sender.send(());
                }
            }
            drop(sleepers);
            self.arm();
        }
    }
}

impl Ord for SleepingTask {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.deadline, self.number).cmp(&(other.deadline, other.number))
    }
}

impl PartialOrd for SleepingTask {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for SleepingTask {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for SleepingTask {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_is_set_to_the_nanosecond() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        let timer = TimerFd::new().unwrap();
        let deadline = Instant::now() + Duration::new(3600, 1_500_001);
        let set_started = Instant::now();
        timer.set(deadline);
        let set_duration = set_started.elapsed();
        let read_started = Instant::now();
        let remaining_spec = rustix::time::timerfd_gettime(&timer.0).unwrap().it_value;
        let remaining = Duration::new(remaining_spec.tv_sec as u64, remaining_spec.tv_nsec as u32);
        assert!(Instant::now() + remaining >= deadline, "{remaining:?}");
        // bound: as long as it took to set it
        assert!(read_started + remaining <= deadline + set_duration, "{remaining:?} in {set_duration:?}");
    }
}
