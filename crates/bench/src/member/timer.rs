//! Sleeps that end within microseconds of their time: a heap of deadlines over one timerfd.
//!
//! The runtime's own timers count whole milliseconds, which would turn a service time of 2 ms into one of
//! 3 ms and every figure drawn from it into a lie.

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

/// Wakes tasks of one thread.
#[derive(Clone)]
pub(super) struct Timer(Rc<Inner>);

struct Inner {
    descriptor: AsyncFd<OwnedFd>,
    sleepers: RefCell<BinaryHeap<Reverse<Sleeper>>>,
    count: Cell<u64>,
}

struct Sleeper {
    until: Instant,
    /// Tells apart those of one instant, and keeps them in order.
    number: u64,
    wake: oneshot::Sender<()>,
}

impl Timer {
    /// Begins to keep time, in a task of the current local runtime.
    ///
    /// # Errors
    /// If the kernel grants no timer.
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let descriptor = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        #[expect(
            deprecated,
            reason = "sound with an OwnedFd, which stays open and the same; its heir is unsafe"
        )]
        let descriptor = AsyncFd::with_interest(descriptor, Interest::READABLE)?;
        let timer = Self(Rc::new(Inner { descriptor, sleepers: RefCell::default(), count: Cell::new(0) }));
        tokio::task::spawn_local(timer.clone().tick());
        Ok(timer)
    }

    /// Sleeps until `until`.
    pub(super) async fn sleep(&self, until: Instant) {
        let (wake, woken) = oneshot::channel();
        let number = self.0.count.replace(self.0.count.get() + 1);
        self.0.sleepers.borrow_mut().push(Reverse(Sleeper { until, number, wake }));
        self.arm();
        // The sender is lost only with the runtime.
        let _ = woken.await;
    }

    /// Sets the timer for the first to wake.
    fn arm(&self) {
        let sleepers = self.0.sleepers.borrow();
        let Some(Reverse(first)) = sleepers.peek() else { return };
        // Zero would turn the timer off.
        let wait = first.until.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let it_value = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        rustix::time::timerfd_settime(&self.0.descriptor, TimerfdTimerFlags::empty(), &once)
            .expect("the descriptor is a timer and the time is in range: at most an hour of service, slowed");
    }

    /// Wakes those whose time has come, each time the timer ends.
    async fn tick(self) {
        while let Ok(mut guard) = self.0.descriptor.readable().await {
            let mut expirations = [0u8; 8];
            let _ = guard.try_io(|descriptor| Ok(rustix::io::read(descriptor, &mut expirations)?));
            let now = Instant::now();
            let mut sleepers = self.0.sleepers.borrow_mut();
            while sleepers.peek().is_some_and(|Reverse(first)| first.until <= now) {
                if let Some(Reverse(sleeper)) = sleepers.pop() {
                    // It may have given up.
                    let _ = sleeper.wake.send(());
                }
            }
            drop(sleepers);
            self.arm();
        }
    }
}

impl Ord for Sleeper {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.until, self.number).cmp(&(other.until, other.number))
    }
}

impl PartialOrd for Sleeper {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Sleeper {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Sleeper {}
