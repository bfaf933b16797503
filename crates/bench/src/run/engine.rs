//! The thread of a run: it handles each request when it is due, carries it, and records its result.
//!
//! A turn of its loop handles a batch each of due requests, deadlines and socket events. The record is shared
//! with the owner of the run and locked once a turn, not once a request.

mod ending;
mod leaving;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::event::epoll::{Event, EventFlags};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags};
use rustix::time::{ClockId, clock_gettime};

use super::deadlines::Deadlines;
use super::picks::Picks;
use super::poll::{PICKER, Poll};
use super::slots::{Key, Slots};
use super::{Limits, Shared};
use crate::pick::Picker;
use crate::record::{Fault, Record};
use crate::target::{Ask, Step, Target, Transport};

/// The requests sent between two polls for events: half a millisecond's work if each needs a new connection.
const BATCH: usize = 16;
/// The reads of one answer before others, and requests that are due, get their turn.
const READS: usize = 2;
/// The time before a due time at which the thread stops sleeping and polls. The kernel wakes a thread about
/// 20 µs late, which would be in every latency. This costs at most that much CPU per request.
const SPIN: Duration = Duration::from_micros(20);
/// The time between two readings of the thread's CPU time.
const AUDIT: Duration = Duration::from_millis(50);
/// The pause of a client of a closed loop after a request without an answer, so that it does not spin on a
/// missing server.
const PAUSE: Duration = Duration::from_millis(10);

/// The times at which requests are due.
pub(super) enum When<P> {
    /// Fixed times since the start.
    Open(P),
    /// A request of each of `clients` clients when its last one has ended, until the end of the run.
    Closed { clients: usize, end: Instant },
}

/// The whole state of a run.
pub(super) struct Engine<T: Target, P> {
    target: T,
    when: When<P>,
    pub(super) limits: Limits,
    /// The maximum number of connections, busy and idle.
    most: usize,
    shared: Arc<Shared>,
    poll: Poll,
    pub(super) slots: Slots<T::State>,
    pub(super) in_flight: usize,
    /// The requests that are due and wait for a connection, in order.
    pub(super) waiting: VecDeque<Waiting<T::State>>,
    /// The picker and the requests that wait for it, if the target does not choose the destination.
    pub(super) picks: Option<Picks<T::State>>,
    /// The slots of connections that may have more to read.
    unread: VecDeque<u32>,
    /// The times at which clients of a closed loop that failed, or think, continue; in order, as all wait
    /// equally long.
    paused: VecDeque<Instant>,
    connects: Deadlines,
    requests: Deadlines,
    buffer: Box<[u8]>,
    /// The thread's CPU time that has been counted, and the time of that reading.
    cpu: Duration,
    audit: Instant,
}

/// A request that has not been sent.
#[derive(Debug)]
pub(super) struct Waiting<S> {
    pub(super) due: Instant,
    /// The time at which the picker was asked, if it was: the request began then.
    pub(super) asked: Option<Instant>,
    /// The number of members that it could not be sent to.
    pub(super) tries: u8,
    pub(super) ask: Ask<S>,
}

impl<T: Target, P: Iterator<Item = Duration>> Engine<T, P> {
    pub(super) fn new(
        target: T,
        picker: Option<Box<dyn Picker>>,
        when: When<P>,
        limits: Limits,
        shared: Arc<Shared>,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let routes = if picker.is_some() { 0 } else { target.addresses().len() };
        let picks = picker.map(Picks::new);
        if let Some(picks) = &picks {
            poll.watch(&picks.descriptor())?;
        }
        Ok(Self {
            poll,
            slots: Slots::new(routes),
            picks,
            in_flight: 0,
            waiting: VecDeque::new(),
            unread: VecDeque::new(),
            paused: VecDeque::new(),
            connects: Deadlines::default(),
            requests: Deadlines::default(),
            buffer: vec![0; 64 * 1024].into(),
            cpu: Duration::ZERO,
            audit: shared.start,
            target,
            when,
            most: limits.connections.unwrap_or(limits.in_flight),
            limits,
            shared,
        })
    }

    /// Sends until the pacer ends or the owner stops the run, then waits for requests in flight.
    pub(super) fn run(mut self) -> io::Result<()> {
        let shared = self.shared.clone();
        let mut next = self.after(shared.start);
        let mut events = Vec::new();
        let mut last_call = None;
        loop {
            let mut record = shared.turn();
            let mut now = Instant::now();
            for _ in 0..BATCH {
                let Some(due) = next.filter(|due| *due <= now) else { break };
                self.due(&mut record, due, now);
                next = self.after(shared.start);
                now = Instant::now();
            }
            if last_call.is_none() && shared.stop.load(Relaxed) {
                next = None;
                if let When::Closed { end, .. } = &mut self.when {
                    *end = now;
                }
                last_call = Some(now + self.limits.grace);
            }
            self.expire(&mut record, now);
            if self.picks.as_ref().is_some_and(Picks::is_due) {
                self.take_picks(&mut record);
            }
            // Long answers are read in small parts, so that none delays a due request.
            for _ in 0..self.unread.len() {
                let Some(slot) = self.unread.pop_front() else { break };
                if let Some(connection) = self.slots.connection(slot) {
                    connection.unread = false;
                    self.read(&mut record, slot);
                }
            }
            let more = self.serve(&mut record) || !self.unread.is_empty();
            let left = self.on_their_way();
            shared.in_flight.store(left, Relaxed);
            let over = next.is_none() && self.closed_over(now);
            let ended = over && (left == 0 || last_call.is_some_and(|end| end <= now));
            if ended || now - self.audit >= AUDIT {
                self.audit(&mut record, now);
            }
            if ended {
                let jobs = self.slots.jobs().map(|job| job.due);
                let waiting = self.waiting.iter().map(|waiting| waiting.due);
                for due in jobs.chain(waiting).chain(self.picks.iter().flat_map(Picks::dues)) {
                    record.cut(now.saturating_duration_since(due));
                }
                return Ok(());
            }
            drop(record);
            let paused = self.paused.front().copied();
            let asked = self.picks.as_ref().and_then(Picks::due);
            let deadlines =
                [self.connects.next(), self.requests.next(), self.first_waiting_ends(), paused, asked];
            let soon = if more { Some(now) } else { next.map(|due| due.checked_sub(SPIN).unwrap_or(due)) };
            let wake = deadlines.into_iter().flatten().chain(soon).min();
            self.poll.wait(&mut events, wake, now)?;
            if !events.is_empty() {
                let mut record = shared.turn();
                for event in &events {
                    if Key::from(event.data.u64()) == PICKER {
                        self.take_picks(&mut record);
                    } else {
                        self.ready(&mut record, *event);
                    }
                    self.serve(&mut record);
                }
            }
        }
    }

    /// Returns the number of requests that have begun and not ended.
    fn on_their_way(&self) -> usize {
        self.in_flight + self.waiting.len() + self.picks.as_ref().map_or(0, Picks::len)
    }

    /// Returns the time at which the next request of an open loop is due.
    fn after(&mut self, start: Instant) -> Option<Instant> {
        match &mut self.when {
            // A time beyond the range of the clock is never due.
            When::Open(pace) => pace.next().and_then(|offset| start.checked_add(offset)),
            When::Closed { .. } => None,
        }
    }

    /// Returns `true` if the time of the clients of a closed loop is over.
    fn closed_over(&self, now: Instant) -> bool {
        match &self.when {
            When::Open(_) => true,
            When::Closed { end, .. } => *end <= now,
        }
    }

    /// Counts the CPU time of this thread.
    fn audit(&mut self, record: &mut Record, now: Instant) {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        let cpu = Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32);
        record.cpu += cpu.saturating_sub(self.cpu);
        self.cpu = cpu;
        self.audit = now;
    }

    /// Handles a request that is due: sends it, or queues it for a connection.
    fn due(&mut self, record: &mut Record, due: Instant, now: Instant) {
        // The target advances even if the request cannot be sent: the next one belongs to the next due time.
        let ask = self.target.request();
        if self.on_their_way() >= self.limits.in_flight {
            return self.unsent(record);
        }
        let late = now.saturating_duration_since(due);
        let waiting = Waiting { due, asked: None, tries: 0, ask };
        if self.picks.is_some() {
            record.left(late, self.limits.tolerance);
            self.ask(record, Waiting { asked: Some(now), ..waiting });
        } else if !self.waiting.is_empty() || !self.has_room() {
            record.left(late, self.limits.tolerance);
            record.waited += 1;
            self.waiting.push_back(waiting);
        } else if self.send(record, waiting, now) {
            record.left(late, self.limits.tolerance);
        } else {
            self.unsent(record);
        }
    }

    /// Counts a request that cannot be sent at all.
    fn unsent(&mut self, record: &mut Record) {
        record.unsent(self.limits.timeout);
        self.pause();
    }

    /// Pauses a client of a closed loop that has not been answered.
    pub(super) fn pause(&mut self) {
        self.rest(if self.limits.think.is_zero() { PAUSE } else { self.limits.think });
    }

    /// Delays the next request of a client of a closed loop.
    fn rest(&mut self, time: Duration) {
        if matches!(self.when, When::Closed { .. }) && !time.is_zero() {
            self.paused.push_back(Instant::now() + time);
        }
    }

    /// Sends requests that wait for a connection, as far as there are any, and the next requests of closed
    /// loops; a batch at most. Returns `true` if there is more to do at once.
    fn serve(&mut self, record: &mut Record) -> bool {
        for _ in 0..BATCH {
            if self.has_room()
                && let Some(first) = self.waiting.pop_front()
            {
                let due = first.due;
                if !self.send(record, first, Instant::now()) {
                    record.failed(None, Fault::Unsent, due.elapsed().max(self.limits.timeout));
                }
                continue;
            }
            let When::Closed { clients, end } = &self.when else { return false };
            if self.on_their_way() + self.paused.len() >= *clients {
                return false;
            }
            let now = Instant::now();
            if now >= *end {
                return false;
            }
            self.due(record, now, now);
        }
        true
    }

    /// Returns `true` if a request may take or open a connection.
    pub(super) fn has_room(&self) -> bool {
        self.slots.open() < self.most || self.slots.has_idle()
    }

    /// Returns the time at which the first waiting request times out.
    fn first_waiting_ends(&self) -> Option<Instant> {
        self.waiting.front().map(|first| first.due + self.limits.timeout)
    }

    /// Fails requests that have waited too long.
    fn expire(&mut self, record: &mut Record, now: Instant) {
        loop {
            let slots = &self.slots;
            let Some(key) = self.connects.over(now, |key| is_up(slots, key)) else { break };
            // A connection that came up while this thread stood still has an event for that.
            let connection = self.slots.connection(key.slot);
            if connection.is_none_or(|connection| net::getpeername(&connection.socket).is_err()) {
                self.fail(record, key.slot, Fault::ConnectTimeout);
            }
        }
        loop {
            let slots = &self.slots;
            let Some(key) = self.requests.over(now, |key| slots.job(key).is_none()) else { break };
            self.fail(record, key.slot, Fault::Timeout);
        }
        while self.paused.pop_front_if(|until| *until <= now).is_some() {}
        let timeout = self.limits.timeout;
        while let Some(first) = self.waiting.pop_front_if(|first| first.due + timeout <= now) {
            record.failed(None, Fault::Timeout, now.saturating_duration_since(first.due).max(timeout));
        }
    }

    /// Handles an event of a connection.
    fn ready(&mut self, record: &mut Record, event: Event) {
        let (key, flags) = (Key::from(event.data.u64()), event.flags);
        let Some(connection) = self.slots.registered(key) else { return };
        let ended = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        connection.half_closed |= ended || flags.contains(EventFlags::RDHUP);
        let readable = ended || flags.intersects(EventFlags::IN | EventFlags::RDHUP);
        let Some(job) = &mut connection.job else {
            // No request is open: the peer closes the connection, or breaks the protocol.
            if readable {
                self.cut_off(record, key.slot);
            }
            return;
        };
        if job.connecting {
            if ended {
                return self.fail(record, key.slot, Fault::Connect);
            }
            if !flags.contains(EventFlags::OUT) {
                return;
            }
            job.connecting = false;
        }
        if flags.contains(EventFlags::OUT) && !job.write(&connection.socket) {
            // There may still be an answer to read.
            connection.half_closed = true;
        }
        if readable {
            self.read(record, key.slot);
        }
    }

    /// Reads available bytes of an answer.
    fn read(&mut self, record: &mut Record, slot: u32) {
        let datagrams = self.target.transport() == Transport::Udp;
        for _ in 0..READS {
            let Some(connection) = self.slots.connection(slot) else { return };
            let Some(job) = &mut connection.job else { return };
            let step = match net::recv(&connection.socket, &mut *self.buffer, RecvFlags::empty()) {
                Ok((_, 0)) if !datagrams => self
                    .target
                    .end(&mut job.state)
                    .map_or(Err(Fault::Closed), |answer| Ok(Step::Done(answer))),
                Ok((_, count)) => {
                    let step = self.target.answer(&mut job.state, &self.buffer[..count]);
                    // A short read has emptied a stream; another event follows when there is more.
                    let emptied = count < self.buffer.len() && !datagrams && !connection.half_closed;
                    if step == Step::More && emptied {
                        return;
                    }
                    Ok(step)
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => continue,
                Err(Errno::CONNREFUSED) => Err(Fault::Connect),
                Err(_) => Err(Fault::Closed),
            };
            match step {
                Ok(Step::More) => {}
                Ok(Step::Done(answer)) => return self.done(record, slot, &answer),
                Ok(Step::Malformed) => return self.fail(record, slot, Fault::Malformed),
                Ok(Step::Elsewhere(place)) => {
                    record.forwarded += 1;
                    return self.go(record, slot, Some(place), Fault::Exception);
                }
                Ok(Step::Back) => return self.go(record, slot, None, Fault::Closed),
                Err(fault) => return self.fail(record, slot, fault),
            }
        }
        // There may be more, without a further event.
        if let Some(connection) = self.slots.connection(slot)
            && !std::mem::replace(&mut connection.unread, true)
        {
            self.unread.push_back(slot);
        }
    }
}

/// Returns `true` if the connection of this request is established, or the request has ended.
fn is_up<S>(slots: &Slots<S>, key: Key) -> bool {
    slots.job(key).is_none_or(|job| !job.connecting)
}
