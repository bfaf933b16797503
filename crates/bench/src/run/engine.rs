//! The thread of a run: due times, connections, deadlines.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use socket2::{Domain, Protocol, Socket, Type};

use super::{Limits, Shared};
use crate::record::Fault;
use crate::target::{Answer, Step, Target};

/// Longest sleep: how soon a request to stop is noticed.
const NAP: Duration = Duration::from_millis(20);
/// How long requests in flight may take to end after a stop.
const GRACE: Duration = Duration::from_secs(1);
/// Events handled between two looks at what is due, and requests sent between two looks at events: about a
/// quarter of a millisecond's work.
const BATCH: usize = 64;

/// All of a run.
pub(super) struct Engine<T: Target, P> {
    target: T,
    pace: P,
    limits: Limits,
    shared: Arc<Shared>,
    epoll: OwnedFd,
    /// Ends the wait at the next due time: epoll's own time-out may count whole milliseconds only.
    timer: OwnedFd,
    /// What the timer is set to.
    set: Option<Instant>,
    slots: Vec<Slot<T::State>>,
    /// Slots without a connection.
    free: Vec<u32>,
    /// Slots of connections that wait for a request, the one used last on top: few stay warm and the
    /// others may go.
    idle: Vec<u32>,
    in_flight: usize,
    /// Deadlines in the order they end, because each kind has one length; entries of what has ended are
    /// dropped when they come to the front.
    connects: VecDeque<(Instant, Key)>,
    requests: VecDeque<(Instant, Key)>,
    buffer: Box<[u8]>,
}

/// A slot and how often it has been used: names one request, or one connection while it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    slot: u32,
    serial: u32,
}

struct Slot<S> {
    /// Goes up with every request and every connection, so that what was meant for another is known.
    serial: u32,
    /// The serial that the connection was registered for events with.
    registered: u32,
    connection: Option<Connection<S>>,
}

struct Connection<S> {
    stream: TcpStream,
    /// The peer will send no more after what is in the socket.
    half_closed: bool,
    job: Option<Job<S>>,
}

/// A request on its connection.
struct Job<S> {
    /// Its connection is not up yet.
    connecting: bool,
    due: Instant,
    left: Instant,
    bytes: Arc<[u8]>,
    written: usize,
    state: S,
}

impl<T: Target, P: Iterator<Item = Duration>> Engine<T, P> {
    pub(super) fn new(target: T, pace: P, limits: Limits, shared: Arc<Shared>) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        // Edge-triggered: it need not be read.
        epoll::add(&epoll, &timer, EventData::new_u64(Key::TIMER.into()), EventFlags::IN | EventFlags::ET)?;
        Ok(Self {
            target,
            pace,
            limits,
            shared,
            epoll,
            timer,
            set: None,
            slots: Vec::new(),
            free: Vec::new(),
            idle: Vec::new(),
            in_flight: 0,
            connects: VecDeque::new(),
            requests: VecDeque::new(),
            buffer: vec![0; 64 * 1024].into(),
        })
    }

    /// Sends until the pacer ends or the owner stops the run, then waits for what is in flight.
    pub(super) fn run(mut self) -> io::Result<()> {
        let start = self.shared.start;
        let mut next = self.pace.next().map(|offset| start + offset);
        let mut events = Vec::with_capacity(BATCH);
        let mut last_call = None;
        loop {
            for _ in 0..BATCH {
                let Some(due) = next.filter(|due| *due <= Instant::now()) else { break };
                self.send(due);
                next = self.pace.next().map(|offset| start + offset);
            }
            let now = Instant::now();
            if last_call.is_none() && self.shared.stop.load(Relaxed) {
                next = None;
                last_call = Some(now + GRACE);
            }
            self.expire(now);
            self.shared.in_flight.store(self.in_flight, Relaxed);
            if next.is_none() && (self.in_flight == 0 || last_call.is_some_and(|end| end <= now)) {
                self.shared.record().cut += self.in_flight as u64;
                return Ok(());
            }
            let fronts = [self.connects.front(), self.requests.front()];
            let wake = fronts.into_iter().flatten().map(|(deadline, _)| *deadline).chain(next).min();
            self.wait(&mut events, wake, now)?;
            for event in events.drain(..) {
                self.ready(Key::from(event.data), event.flags);
            }
        }
    }

    /// Waits for events, until `wake` and no longer than a nap.
    fn wait(&mut self, events: &mut Vec<Event>, wake: Option<Instant>, now: Instant) -> io::Result<()> {
        let mut nap = NAP;
        if let Some(wake) = wake {
            let left = wake.saturating_duration_since(now);
            if left.is_zero() {
                nap = left;
            } else if left < NAP && self.set != Some(wake) {
                timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once(left))?;
                self.set = Some(wake);
            }
        }
        let nap = Timespec { tv_sec: 0, tv_nsec: i64::from(nap.subsec_nanos()) };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&nap)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a request that is due, on an idle connection or a new one.
    fn send(&mut self, due: Instant) {
        if self.in_flight >= self.limits.in_flight {
            self.shared.record().unsent(self.limits.timeout);
            return;
        }
        let bytes = self.target.request();
        while let Some(slot) = self.idle.pop() {
            // A connection that its peer has closed meanwhile has taken nothing: try another.
            if self.reuse(slot, due, &bytes) {
                return;
            }
            self.close(slot);
        }
        if self.open(due, bytes).is_err() {
            // No socket, no port or no memory on this side: nothing that the server could have helped.
            self.shared.record().unsent(self.limits.timeout);
        }
    }

    /// Writes a request to an idle connection; false if the connection is dead.
    fn reuse(&mut self, slot: u32, due: Instant, bytes: &Arc<[u8]>) -> bool {
        let Some(connection) = &mut self.slots[slot as usize].connection else { return false };
        let left = Instant::now();
        let written = match connection.stream.write(bytes) {
            Ok(written) => written,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(_) => return false,
        };
        let (bytes, state) = (bytes.clone(), T::State::default());
        connection.job = Some(Job { connecting: false, due, left, bytes, written, state });
        self.began(slot, due, left);
        true
    }

    /// Opens a connection for a request.
    fn open(&mut self, due: Instant, bytes: Arc<[u8]>) -> io::Result<()> {
        let address = self.target.address();
        let socket =
            Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
        socket.set_tcp_nodelay(true)?;
        let left = Instant::now();
        let refused = match socket.connect(&address.into()) {
            Ok(()) => false,
            Err(error) => match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
                Some(rustix::io::Errno::INPROGRESS) => false,
                Some(rustix::io::Errno::ADDRNOTAVAIL | rustix::io::Errno::AGAIN) => return Err(error),
                _ => true,
            },
        };
        let stream = TcpStream::from(socket);
        let job = Job { connecting: true, due, left, bytes, written: 0, state: T::State::default() };
        let connection = Connection { stream, half_closed: false, job: Some(job) };
        let slot = self.place(connection)?;
        let key = self.began(slot, due, left);
        self.connects.push_back((left + self.limits.connect_timeout, key));
        if refused {
            self.fail(slot, Fault::Connect);
        }
        Ok(())
    }

    /// Puts a connection into a slot and registers it for events.
    fn place(&mut self, connection: Connection<T::State>) -> io::Result<u32> {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { serial: 0, registered: 0, connection: None });
            self.slots.len() as u32 - 1
        });
        let place = &mut self.slots[slot as usize];
        place.serial = place.serial.wrapping_add(1);
        place.registered = place.serial;
        let key = Key { slot, serial: place.serial };
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        if let Err(error) = epoll::add(&self.epoll, &connection.stream, EventData::new_u64(key.into()), flags)
        {
            self.free.push(slot);
            return Err(error.into());
        }
        place.connection = Some(connection);
        Ok(slot)
    }

    /// Counts a request that has just left.
    fn began(&mut self, slot: u32, due: Instant, left: Instant) -> Key {
        self.in_flight += 1;
        self.shared.record().left(left.saturating_duration_since(due), self.limits.tolerance);
        let place = &mut self.slots[slot as usize];
        place.serial = place.serial.wrapping_add(1);
        let key = Key { slot, serial: place.serial };
        self.requests.push_back((due + self.limits.timeout, key));
        key
    }

    /// Fails what has waited too long.
    fn expire(&mut self, now: Instant) {
        while let Some((deadline, key)) = self.connects.front().copied() {
            let waiting = self.job(key).is_some_and(|job| job.connecting);
            if waiting && deadline > now {
                break;
            }
            self.connects.pop_front();
            if waiting {
                self.fail(key.slot, Fault::ConnectTimeout);
            }
        }
        while let Some((deadline, key)) = self.requests.front().copied() {
            let waiting = self.job(key).is_some();
            if waiting && deadline > now {
                break;
            }
            self.requests.pop_front();
            if waiting {
                self.fail(key.slot, Fault::Timeout);
            }
        }
    }

    /// The request that `key` names, unless it has ended.
    fn job(&self, key: Key) -> Option<&Job<T::State>> {
        let place = self.slots.get(key.slot as usize).filter(|place| place.serial == key.serial)?;
        place.connection.as_ref()?.job.as_ref()
    }

    /// Something happened on a connection.
    fn ready(&mut self, key: Key, flags: EventFlags) {
        let Some(place) =
            self.slots.get_mut(key.slot as usize).filter(|place| place.registered == key.serial)
        else {
            return;
        };
        let Some(connection) = &mut place.connection else { return };
        let ended = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        connection.half_closed |= ended || flags.contains(EventFlags::RDHUP);
        let Some(job) = &mut connection.job else {
            // Nobody asked for anything: the peer closes it, or breaks the protocol.
            if flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
                self.idle.retain(|slot| *slot != key.slot);
                self.close(key.slot);
            }
            return;
        };
        if job.connecting {
            if ended || !flags.contains(EventFlags::OUT) {
                return if ended {
                    self.fail(key.slot, Fault::Connect)
                };
            }
            job.connecting = false;
        }
        if flags.contains(EventFlags::OUT) && !job.write(&mut connection.stream) {
            connection.half_closed = true;
        }
        if flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
            self.read(key.slot);
        }
    }

    /// Reads what there is of an answer.
    fn read(&mut self, slot: u32) {
        loop {
            let Some(connection) = &mut self.slots[slot as usize].connection else { return };
            let Some(job) = &mut connection.job else { return };
            let step = match connection.stream.read(&mut self.buffer) {
                Ok(0) => self
                    .target
                    .end(&mut job.state)
                    .map_or(Err(Fault::Closed), |answer| Ok(Step::Done(answer))),
                Ok(count) => {
                    let step = self.target.answer(&mut job.state, &self.buffer[..count]);
                    // A short read has emptied the socket; another event tells when there is more.
                    if step == Step::More && count < self.buffer.len() && !connection.half_closed {
                        return;
                    }
                    Ok(step)
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => Err(Fault::Closed),
            };
            match step {
                Ok(Step::More) => {}
                Ok(Step::Done(answer)) => return self.done(slot, answer),
                Ok(Step::Malformed) => return self.fail(slot, Fault::Malformed),
                Err(fault) => return self.fail(slot, fault),
            }
        }
    }

    /// The answer is whole.
    fn done(&mut self, slot: u32, answer: Answer) {
        let Some(connection) = &mut self.slots[slot as usize].connection else { return };
        let Some(job) = connection.job.take() else { return };
        self.in_flight -= 1;
        let now = Instant::now();
        let latency = now.saturating_duration_since(job.due);
        let mut record = self.shared.record();
        match answer.fault {
            None => record.answered(answer.member.as_ref(), latency, now - job.left),
            Some(fault) => record.failed(answer.member.as_ref(), fault, latency.max(self.limits.timeout)),
        }
        drop(record);
        // An answer that came before the request was all sent leaves the rest of it in the way.
        if answer.reusable && !connection.half_closed && job.written == job.bytes.len() {
            self.idle.push(slot);
        } else {
            self.close(slot);
        }
    }

    /// The request of this connection failed.
    fn fail(&mut self, slot: u32, fault: Fault) {
        let job = self.slots[slot as usize].connection.as_mut().and_then(|connection| connection.job.take());
        if let Some(job) = job {
            self.in_flight -= 1;
            let latency = job.due.elapsed().max(self.limits.timeout);
            self.shared.record().failed(None, fault, latency);
        }
        self.close(slot);
    }

    /// Closes a connection that has no request; closing takes it out of the epoll instance.
    fn close(&mut self, slot: u32) {
        let place = &mut self.slots[slot as usize];
        if place.connection.take().is_some() {
            place.serial = place.serial.wrapping_add(1);
            self.free.push(slot);
        }
    }
}

impl<S> Job<S> {
    /// Writes what is left of the request; false if the connection takes no more, ever.
    fn write(&mut self, stream: &mut TcpStream) -> bool {
        while self.written < self.bytes.len() {
            match stream.write(&self.bytes[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // There may be an answer to read all the same: reading tells.
                Err(_) => return false,
            }
        }
        true
    }
}

/// A timer that ends after `wait`, which is not zero, and is not set again.
fn once(wait: Duration) -> Itimerspec {
    let it_value = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
    Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value }
}

impl Key {
    /// No slot: there are never that many.
    const TIMER: Self = Self { slot: u32::MAX, serial: 0 };
}

impl From<Key> for u64 {
    fn from(key: Key) -> Self {
        Self::from(key.slot) << 32 | Self::from(key.serial)
    }
}

impl From<EventData> for Key {
    fn from(data: EventData) -> Self {
        let data = data.u64();
        Self { slot: (data >> 32) as u32, serial: data as u32 }
    }
}
