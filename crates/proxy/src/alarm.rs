//! One moment to be woken at: a timerfd.
//!
//! Workers run without tokio's timer driver, which reads the clock twice each time the thread goes to sleep:
//! a tenth of what a small request costs.

use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};

use plimsoll_brain::Time;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use crate::clock::Clock;

/// Wakes its task at one moment.
pub(crate) struct Alarm {
    clock: Clock,
    timer: AsyncFd<OwnedFd>,
}

impl Alarm {
    /// An alarm that is not set.
    ///
    /// # Errors
    /// The process has no file descriptor left.
    pub(crate) fn new(clock: Clock) -> io::Result<Self> {
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        #[expect(
            deprecated,
            reason = "the safe way is deprecated for types that may close early; an OwnedFd does not"
        )]
        let timer = AsyncFd::new(timer)?;
        Ok(Self { clock, timer })
    }

    /// Rings at `time`, at once if that has passed; forgets the moment set before.
    pub(crate) fn set(&self, time: Time) {
        let nanos = self.clock.monotonic(time);
        let it_value =
            Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A valid descriptor and time: the call has no way to fail.
        let _ = timerfd_settime(
            &self.timer,
            TimerfdTimerFlags::ABSTIME,
            &Itimerspec { it_interval: never, it_value },
        );
    }

    /// Ready once after it rang.
    pub(crate) fn poll_rung(&self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let Ok(mut guard) = ready!(self.timer.poll_read_ready(cx)) else { return Poll::Pending };
            let rung = guard.try_io(|timer| Ok(rustix::io::read(timer, &mut [0; 8])?));
            if let Ok(Ok(_)) = rung {
                return Poll::Ready(());
            }
        }
    }
}
