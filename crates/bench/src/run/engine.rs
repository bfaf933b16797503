//! The thread of a run: it handles each request when it is due, carries it, and records its result.
//!
//! A turn of its loop handles a batch each of due requests, deadlines and socket events. The record is shared
//! with the owner of the run and locked once a turn, not once a request.

mod completion;
mod sending;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::event::epoll::{Event, EventFlags};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags};
use rustix::time::{ClockId, clock_gettime};

use super::connection_slots::{ConnectionSlots, SlotKey};
use super::deadlines::DeadlineQueue;
use super::pending_picks::PendingPicks;
use super::reactor::{EpollReactor, PICKER};
use super::{RunLimits, SharedRun};
use crate::pick::MemberPicker;
use crate::record::{FailureKind, RunRecord};
use crate::target::{AnswerProgress, RequestTarget, TargetRequest, Transport};

/// The requests sent between two polls for events: half a millisecond's work if each needs a new connection.
const MAX_BATCH: usize = 16;
/// The reads of one answer before others, and requests that are due, get their turn.
const MAX_READS: usize = 2;
/// The time before a due time at which the thread stops sleeping and polls. The kernel wakes a thread about
/// 20 µs late, which would be in every latency. This costs at most that much CPU per request.
const SPIN_TIME: Duration = Duration::from_micros(20);
/// The time between two readings of the thread's CPU time.
const CPU_ACCOUNTING_INTERVAL: Duration = Duration::from_millis(50);
/// The pause of a client of a closed loop after a request without an answer, so that it does not spin on a
/// missing server.
const FAILURE_PAUSE: Duration = Duration::from_millis(10);

/// The times at which requests are due.
pub(super) enum RequestSchedule<P> {
    /// Fixed times since the start.
    Open(P),
    /// A request of each of `clients` clients when its last one has ended, until the end of the run.
    Closed { clients: usize, end: Instant },
}

/// The whole state of a run.
pub(super) struct Engine<T: RequestTarget, P> {
    target: T,
    schedule: RequestSchedule<P>,
    pub(super) limits: RunLimits,
    /// The maximum number of connections, busy and idle.
    max_connections: usize,
    shared: Arc<SharedRun>,
    reactor: EpollReactor,
    pub(super) slots: ConnectionSlots<T::State>,
    pub(super) in_flight: usize,
    /// The requests that are due and wait for a connection, in order.
    pub(super) waiting: VecDeque<PendingRequest<T::State>>,
    /// The picker and the requests that wait for it, if the target does not choose the destination.
    pub(super) pending_picks: Option<PendingPicks<T::State>>,
    /// The slots of connections that may have more to read.
    unread_slots: VecDeque<u32>,
    /// The times at which clients of a closed loop that failed, or think, continue; in order, as all wait
    /// equally long.
    paused_clients: VecDeque<Instant>,
    connect_deadlines: DeadlineQueue,
    request_deadlines: DeadlineQueue,
    buffer: Box<[u8]>,
    /// The thread's CPU time that has been counted, and the time of that reading.
    counted_cpu: Duration,
    cpu_counted_at: Instant,
}

/// A request that has not been sent.
#[derive(Debug)]
pub(super) struct PendingRequest<S> {
    pub(super) due: Instant,
    /// The time at which the picker was asked, if it was: the request began then.
    pub(super) picker_asked_at: Option<Instant>,
    /// The number of members that it could not be sent to.
    pub(super) failed_picks: u8,
    pub(super) request: TargetRequest<S>,
}

impl<T: RequestTarget, P: Iterator<Item = Duration>> Engine<T, P> {
    pub(super) fn new(
        target: T,
        picker: Option<Box<dyn MemberPicker>>,
        schedule: RequestSchedule<P>,
        limits: RunLimits,
        shared: Arc<SharedRun>,
    ) -> io::Result<Self> {
        let reactor = EpollReactor::new()?;
        let routes = if picker.is_some() { 0 } else { target.addresses().len() };
        let pending_picks = picker.map(PendingPicks::new);
        if let Some(pending_picks) = &pending_picks {
            reactor.add_picker(&pending_picks.descriptor())?;
        }
        Ok(Self {
            reactor,
            slots: ConnectionSlots::new(routes),
            pending_picks,
            in_flight: 0,
            waiting: VecDeque::new(),
            unread_slots: VecDeque::new(),
            paused_clients: VecDeque::new(),
            connect_deadlines: DeadlineQueue::default(),
            request_deadlines: DeadlineQueue::default(),
            buffer: vec![0; 64 * 1024].into(),
            counted_cpu: Duration::ZERO,
            cpu_counted_at: shared.start,
            target,
            schedule,
            max_connections: limits.max_connections.unwrap_or(limits.max_in_flight),
            limits,
            shared,
        })
    }

    /// Sends until the pacer ends or the owner stops the run, then waits for requests in flight.
    pub(super) fn run(mut self) -> io::Result<()> {
        let shared = self.shared.clone();
        let mut next = self.next_due(shared.start);
        let mut events = Vec::new();
        let mut stop_deadline = None;
        loop {
            let mut record = shared.lock_for_turn();
            let mut now = Instant::now();
            for _ in 0..MAX_BATCH {
                let Some(due) = next.filter(|due| *due <= now) else { break };
                self.handle_due(&mut record, due, now);
                next = self.next_due(shared.start);
                now = Instant::now();
            }
            if stop_deadline.is_none() && shared.stop.load(Relaxed) {
                next = None;
                if let RequestSchedule::Closed { end, .. } = &mut self.schedule {
                    *end = now;
                }
                stop_deadline = Some(now + self.limits.grace);
            }
            self.expire_waiting(&mut record, now);
            if self.pending_picks.as_ref().is_some_and(PendingPicks::is_due) {
                self.take_picks(&mut record);
            }
            // Long answers are read in small parts, so that none delays a due request.
            for _ in 0..self.unread_slots.len() {
                let Some(slot) = self.unread_slots.pop_front() else { break };
                if let Some(connection) = self.slots.connection(slot) {
                    connection.unread = false;
                    self.read_answer(&mut record, slot);
                }
            }
            let has_backlog = self.serve_waiting(&mut record) || !self.unread_slots.is_empty();
            let outstanding = self.outstanding();
            shared.in_flight.store(outstanding, Relaxed);
            let schedule_ended = next.is_none() && self.is_closed_loop_over(now);
            let run_ended =
                schedule_ended && (outstanding == 0 || stop_deadline.is_some_and(|end| end <= now));
            if run_ended || now - self.cpu_counted_at >= CPU_ACCOUNTING_INTERVAL {
                self.count_cpu_time(&mut record, now);
            }
            if run_ended {
                let active_due_times = self.slots.requests().map(|request| request.due);
                let waiting_due_times = self.waiting.iter().map(|pending| pending.due);
                for due in active_due_times
                    .chain(waiting_due_times)
                    .chain(self.pending_picks.iter().flat_map(PendingPicks::due_times))
                {
                    record.record_cut(now.saturating_duration_since(due));
                }
                return Ok(());
            }
            drop(record);
            let client_resumes_at = self.paused_clients.front().copied();
            let picker_deadline = self.pending_picks.as_ref().and_then(PendingPicks::next_due);
            let deadlines = [
                self.connect_deadlines.next_deadline(),
                self.request_deadlines.next_deadline(),
                self.first_waiting_deadline(),
                client_resumes_at,
                picker_deadline,
            ];
            let next_send = if has_backlog {
                Some(now)
            } else {
                next.map(|due| due.checked_sub(SPIN_TIME).unwrap_or(due))
            };
            let wake_at = deadlines.into_iter().flatten().chain(next_send).min();
            self.reactor.wait(&mut events, wake_at, now)?;
            if !events.is_empty() {
                let mut record = shared.lock_for_turn();
                for event in &events {
                    if SlotKey::from(event.data.u64()) == PICKER {
                        self.take_picks(&mut record);
                    } else {
                        self.handle_event(&mut record, *event);
                    }
                    self.serve_waiting(&mut record);
                }
            }
        }
    }

    /// Returns the number of requests that have begun and not ended.
    fn outstanding(&self) -> usize {
        self.in_flight + self.waiting.len() + self.pending_picks.as_ref().map_or(0, PendingPicks::len)
    }

    /// Returns the time at which the next request of an open loop is due.
    fn next_due(&mut self, start: Instant) -> Option<Instant> {
        match &mut self.schedule {
            // A time beyond the range of the clock is never due.
            RequestSchedule::Open(due_times) => due_times.next().and_then(|offset| start.checked_add(offset)),
            RequestSchedule::Closed { .. } => None,
        }
    }

    /// Returns `true` if the time of the clients of a closed loop is over.
    fn is_closed_loop_over(&self, now: Instant) -> bool {
        match &self.schedule {
            RequestSchedule::Open(_) => true,
            RequestSchedule::Closed { end, .. } => *end <= now,
        }
    }

    /// Counts the CPU time of this thread.
    fn count_cpu_time(&mut self, record: &mut RunRecord, now: Instant) {
        let cpu_clock = clock_gettime(ClockId::ThreadCPUTime);
        let cpu = Duration::new(cpu_clock.tv_sec.unsigned_abs(), cpu_clock.tv_nsec.unsigned_abs() as u32);
        record.cpu += cpu.saturating_sub(self.counted_cpu);
        self.counted_cpu = cpu;
        self.cpu_counted_at = now;
    }

    /// Handles a request that is due: sends it, or queues it for a connection.
    fn handle_due(&mut self, record: &mut RunRecord, due: Instant, now: Instant) {
        // The target advances even if the request cannot be sent: the next one belongs to the next due time.
        let request = self.target.next_request();
        if self.outstanding() >= self.limits.max_in_flight {
            return self.count_unsent(record);
        }
        let lateness = now.saturating_duration_since(due);
        let pending = PendingRequest { due, picker_asked_at: None, failed_picks: 0, request };
        if self.pending_picks.is_some() {
            record.record_departure(lateness, self.limits.tolerance);
            self.pick_member(record, PendingRequest { picker_asked_at: Some(now), ..pending });
        } else if !self.waiting.is_empty() || !self.has_room() {
            record.record_departure(lateness, self.limits.tolerance);
            record.waited += 1;
            self.waiting.push_back(pending);
        } else if self.send(record, pending, now) {
            record.record_departure(lateness, self.limits.tolerance);
        } else {
            self.count_unsent(record);
        }
    }

    /// Counts a request that cannot be sent at all.
    fn count_unsent(&mut self, record: &mut RunRecord) {
        record.record_unsent(self.limits.timeout);
        self.pause_client();
    }

    /// Pauses a client of a closed loop that has not been answered.
    pub(super) fn pause_client(&mut self) {
        self.delay_client(if self.limits.think_time.is_zero() {
            FAILURE_PAUSE
        } else {
            self.limits.think_time
        });
    }

    /// Delays the next request of a client of a closed loop.
    fn delay_client(&mut self, delay: Duration) {
        if matches!(self.schedule, RequestSchedule::Closed { .. }) && !delay.is_zero() {
            self.paused_clients.push_back(Instant::now() + delay);
        }
    }

    /// Sends requests that wait for a connection, as far as there are any, and the next requests of closed
    /// loops; a batch at most. Returns `true` if there is more to do at once.
    fn serve_waiting(&mut self, record: &mut RunRecord) -> bool {
        for _ in 0..MAX_BATCH {
            if self.has_room()
                && let Some(pending) = self.waiting.pop_front()
            {
                let due = pending.due;
                if !self.send(record, pending, Instant::now()) {
                    record.record_failure(None, FailureKind::Unsent, due.elapsed().max(self.limits.timeout));
                }
                continue;
            }
            let RequestSchedule::Closed { clients, end } = &self.schedule else { return false };
            if self.outstanding() + self.paused_clients.len() >= *clients {
                return false;
            }
            let now = Instant::now();
            if now >= *end {
                return false;
            }
            self.handle_due(record, now, now);
        }
        true
    }

    /// Returns `true` if a request may take or open a connection.
    pub(super) fn has_room(&self) -> bool {
        self.slots.connection_count() < self.max_connections || self.slots.has_idle()
    }

    /// Returns the time at which the first waiting request times out.
    fn first_waiting_deadline(&self) -> Option<Instant> {
        self.waiting.front().map(|pending| pending.due + self.limits.timeout)
    }

    /// Fails requests that have waited too long.
    fn expire_waiting(&mut self, record: &mut RunRecord, now: Instant) {
        loop {
            let slots = &self.slots;
            let Some(key) = self.connect_deadlines.pop_expired(now, |key| is_established(slots, key)) else {
                break;
            };
            // A connection that came up while this thread stood still has an event for that.
            let connection = self.slots.connection(key.slot);
            if connection.is_none_or(|connection| net::getpeername(&connection.socket).is_err()) {
                self.fail_request(record, key.slot, FailureKind::ConnectTimeout);
            }
        }
        loop {
            let slots = &self.slots;
            let Some(key) = self.request_deadlines.pop_expired(now, |key| slots.request(key).is_none())
            else {
                break;
            };
            self.fail_request(record, key.slot, FailureKind::Timeout);
        }
        while self.paused_clients.pop_front_if(|until| *until <= now).is_some() {}
        let timeout = self.limits.timeout;
        while let Some(pending) = self.waiting.pop_front_if(|pending| pending.due + timeout <= now) {
            record.record_failure(
                None,
                FailureKind::Timeout,
                now.saturating_duration_since(pending.due).max(timeout),
            );
        }
    }

    /// Handles an event of a connection.
    fn handle_event(&mut self, record: &mut RunRecord, event: Event) {
        let (key, flags) = (SlotKey::from(event.data.u64()), event.flags);
        let Some(connection) = self.slots.registered(key) else { return };
        let has_ended = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        connection.half_closed |= has_ended || flags.contains(EventFlags::RDHUP);
        let readable = has_ended || flags.intersects(EventFlags::IN | EventFlags::RDHUP);
        let Some(request) = &mut connection.request else {
            // No request is open: the peer closes the connection, or breaks the protocol.
            if readable {
                self.remove_connection(record, key.slot);
            }
            return;
        };
        if request.is_connecting {
            if has_ended {
                return self.fail_request(record, key.slot, FailureKind::Connect);
            }
            if !flags.contains(EventFlags::OUT) {
                return;
            }
            request.is_connecting = false;
        }
        if flags.contains(EventFlags::OUT) && !request.write(&connection.socket) {
            // There may still be an answer to read.
            connection.half_closed = true;
        }
        if readable {
            self.read_answer(record, key.slot);
        }
    }

    /// Reads available bytes of an answer.
    fn read_answer(&mut self, record: &mut RunRecord, slot: u32) {
        let is_udp = self.target.transport() == Transport::Udp;
        for _ in 0..MAX_READS {
            let Some(connection) = self.slots.connection(slot) else { return };
            let Some(request) = &mut connection.request else { return };
            let progress = match net::recv(&connection.socket, &mut *self.buffer, RecvFlags::empty()) {
                Ok((_, 0)) if !is_udp => self
                    .target
                    .connection_ended(&mut request.state)
                    .map_or(Err(FailureKind::Closed), |answer| Ok(AnswerProgress::Complete(answer))),
                Ok((_, count)) => {
                    let progress = self.target.consume_answer(&mut request.state, &self.buffer[..count]);
                    // A short read has emptied a stream; another event follows when there is more.
                    let is_drained = count < self.buffer.len() && !is_udp && !connection.half_closed;
                    if progress == AnswerProgress::Incomplete && is_drained {
                        return;
                    }
                    Ok(progress)
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => continue,
                Err(Errno::CONNREFUSED) => Err(FailureKind::Connect),
                Err(_) => Err(FailureKind::Closed),
            };
            match progress {
                Ok(AnswerProgress::Incomplete) => {}
                Ok(AnswerProgress::Complete(answer)) => return self.complete(record, slot, &answer),
                Ok(AnswerProgress::Malformed) => {
                    return self.fail_request(record, slot, FailureKind::Malformed);
                }
                Ok(AnswerProgress::Redirected(address_index)) => {
                    record.forwarded += 1;
                    return self.redirect(record, slot, Some(address_index), FailureKind::Exception);
                }
                Ok(AnswerProgress::ReturnedToOrigin) => {
                    return self.redirect(record, slot, None, FailureKind::Closed);
                }
                Err(failure) => return self.fail_request(record, slot, failure),
            }
        }
        // There may be more, without a further event.
        if let Some(connection) = self.slots.connection(slot)
            && !std::mem::replace(&mut connection.unread, true)
        {
            self.unread_slots.push_back(slot);
        }
    }
}

/// Returns `true` if the connection of this request is established, or the request has ended.
fn is_established<S>(slots: &ConnectionSlots<S>, key: SlotKey) -> bool {
    slots.request(key).is_none_or(|request| !request.is_connecting)
}
