//! The start of requests: on an idle connection or a new one.

use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

use super::super::slots::{Connection, Job, Key};
use super::{Engine, Fault, Record, Waiting, is_up};
use crate::target::{Ask, Target, Transport};

/// The maximum length of requests that leave in one segment, which Nagle's algorithm cannot hold back.
const SEGMENT: usize = 1400;

impl<T: Target, P: Iterator<Item = Duration>> Engine<T, P> {
    /// Sends a request on an idle connection or a new one; returns `false` if there is none.
    pub(in crate::run) fn send(
        &mut self,
        record: &mut Record,
        waiting: Waiting<T::State>,
        now: Instant,
    ) -> bool {
        let Waiting { due, asked, tries, ask: Ask { route, bytes, state } } = waiting;
        let left = asked.unwrap_or(now);
        let mut job = Job { connecting: false, due, left, tries, bytes, written: 0, state };
        // All allowed sessions are opened, and each sends equally many requests.
        let sessions = self.target.sessions();
        let begins = sessions && self.limits.connections.is_some_and(|most| self.slots.open() < most);
        while !begins
            && let Some(slot) =
                if sessions { self.slots.wake_by_chance(route) } else { self.slots.wake(route) }
        {
            let Some(connection) = self.slots.connection(slot) else { continue };
            let first = job.bytes.clone();
            if connection.place != route
                && let Some(bytes) = self.target.readdress(&mut job.state, connection.place)
            {
                job.bytes = bytes;
            }
            // A connection that its peer has closed meanwhile has accepted nothing: another is tried.
            if job.write(&connection.socket) {
                let key = self.slots.employ(slot, job);
                self.began(due, key);
                return true;
            }
            self.cut_off(record, slot);
            job.written = 0;
            job.bytes = first;
        }
        if self.slots.open() >= self.most
            && let Some(slot) = self.slots.wake_any()
        {
            self.slots.remove(slot);
        }
        self.carry(record, route, route, now, job)
    }

    /// Sends a request on a new connection to one of the addresses; returns `false` if there is none.
    pub(super) fn carry(
        &mut self,
        record: &mut Record,
        route: usize,
        place: usize,
        now: Instant,
        job: Job<T::State>,
    ) -> bool {
        let due = job.due;
        // A failure here means that this side lacks a socket, a port or memory: the server is not the cause.
        match self.open(route, place, job) {
            Ok((key, connecting)) => {
                self.began(due, key);
                match connecting {
                    Connecting::Under => {
                        let deadline = now + self.limits.connect_timeout;
                        let slots = &self.slots;
                        self.connects.push(deadline, key, self.in_flight, |key| is_up(slots, key));
                    }
                    Connecting::Up => {}
                    Connecting::Refused => self.fail(record, key.slot, Fault::Connect),
                }
                true
            }
            Err(_) => false,
        }
    }

    /// Opens a connection for a request.
    fn open(&mut self, route: usize, place: usize, mut job: Job<T::State>) -> io::Result<(Key, Connecting)> {
        let address = match &self.picks {
            Some(picks) => picks.address(place),
            None => self.target.addresses()[place],
        };
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (socket, outcome) = match self.target.transport() {
            Transport::Tcp => {
                let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
                if self.limits.reuse || job.bytes.len() > SEGMENT {
                    sockopt::set_tcp_nodelay(&socket, true)?;
                }
                let outcome = net::connect(&socket, &address);
                (socket, outcome)
            }
            Transport::Udp => {
                let socket = net::socket_with(family, SocketType::DGRAM, flags, None)?;
                let outcome = net::connect(&socket, &address);
                (socket, outcome)
            }
        };
        let connecting = match outcome {
            Ok(()) => Connecting::Up,
            Err(Errno::INPROGRESS) => Connecting::Under,
            Err(error @ (Errno::ADDRNOTAVAIL | Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM)) => {
                return Err(error.into());
            }
            Err(_) => Connecting::Refused,
        };
        job.connecting = connecting == Connecting::Under;
        if connecting == Connecting::Up && !job.write(&socket) && self.target.transport() == Transport::Udp {
            // The datagram is too long. A stream that refuses bytes fails when it is read.
            return Err(Errno::MSGSIZE.into());
        }
        let key = self.slots.insert(Connection::new(socket, route, place, job));
        let Some(connection) = self.slots.connection(key.slot) else { return Ok((key, connecting)) };
        if let Err(error) = self.poll.add(&connection.socket, key) {
            self.slots.remove(key.slot);
            return Err(error);
        }
        Ok((key, connecting))
    }

    /// Counts a request as sent.
    fn began(&mut self, due: Instant, key: Key) {
        self.in_flight += 1;
        let slots = &self.slots;
        let deadline = due + self.limits.timeout;
        self.requests.push(deadline, key, self.in_flight, |key| slots.job(key).is_none());
    }
}

/// The state of a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connecting {
    Under,
    Up,
    Refused,
}
