//! Waiting for sockets and for a time, to the nanosecond.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::connection_slots::SlotKey;

/// The maximum sleep, which bounds the delay until a stop is noticed.
const MAX_WAIT: Duration = Duration::from_millis(20);
/// The maximum number of events taken at once.
const MAX_EVENTS: usize = 64;

/// An epoll instance with an alarm.
#[derive(Debug)]
pub(super) struct EpollReactor {
    epoll: OwnedFd,
    /// The timer that ends the wait at the next due time. The time-out of epoll counts whole milliseconds on
    /// older kernels, and is late by the timer slack of the thread on all.
    timer: OwnedFd,
    /// The time to which the timer is set.
    armed_until: Option<Instant>,
}

impl EpollReactor {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        // Edge-triggered: it need not be read.
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER.into()), EventFlags::IN | EventFlags::ET)?;
        Ok(Self { epoll, timer, armed_until: None })
    }

    /// Registers all events of a socket, edge-triggered, until it is closed.
    pub(super) fn add(&self, socket: &impl AsFd, key: SlotKey) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(key.into()), flags)?)
    }

    /// Registers a descriptor level-triggered while it is readable, under the key [`PICKER`].
    pub(super) fn add_picker(&self, readable: &impl AsFd) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, readable, EventData::new_u64(PICKER.into()), EventFlags::IN)?)
    }

    /// Waits for events, until `wake` and no longer than a nap.
    pub(super) fn wait(
        &mut self,
        events: &mut Vec<Event>,
        deadline: Option<Instant>,
        now: Instant,
    ) -> io::Result<()> {
        let mut timeout = MAX_WAIT;
        if let Some(deadline) = deadline {
            let remaining = deadline.saturating_duration_since(now);
            if remaining.is_zero() {
                timeout = remaining;
            } else if remaining < MAX_WAIT && self.armed_until != Some(deadline) {
                timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &oneshot_timer(remaining))?;
                self.armed_until = Some(deadline);
            }
        }
        events.clear();
        events.reserve(MAX_EVENTS);
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(timeout.subsec_nanos()) };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The key of the timer; no slot has this number.
const TIMER: SlotKey = SlotKey { slot: u32::MAX, serial: 0 };
/// The key of the picker.
pub(super) const PICKER: SlotKey = SlotKey { slot: u32::MAX - 1, serial: 0 };

/// Returns a one-shot timer that ends after `wait`, which is not zero.
fn oneshot_timer(wait: Duration) -> Itimerspec {
    let it_value = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
    Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value }
}
