//! A timerfd that wakes a task at a given time.
//!
//! Workers run without tokio's timer driver, which reads the clock twice each time the thread goes to sleep:
//! a tenth of the cost of a small request.

use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};

use plimsoll_brain::Time;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use crate::runtime::clock::Clock;

/// Wakes its task at a given time.
pub(crate) struct TimerFd {
    clock: Clock,
    timer: AsyncFd<OwnedFd>,
}

impl TimerFd {
    /// Creates an alarm that is not set.
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

    /// Sets the alarm to `time`, and fires at once if that has passed. Replaces the previous setting.
    pub(crate) fn set(&self, time: Time) {
        let nanos = self.clock.monotonic(time);
        let it_value =
            Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 };
        let no_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        // The descriptor and the time are valid, so the call cannot fail.
        let _ = timerfd_settime(
            &self.timer,
            TimerfdTimerFlags::ABSTIME,
            &Itimerspec { it_interval: no_interval, it_value },
        );
    }

    /// Completes once after the alarm has fired.
    pub(crate) fn poll_fired(&self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let Ok(mut guard) = ready!(self.timer.poll_read_ready(cx)) else { return Poll::Pending };
            let expired = guard.try_io(|timer| Ok(rustix::io::read(timer, &mut [0; 8])?));
            if let Ok(Ok(_)) = expired {
                return Poll::Ready(());
            }
        }
    }
}
