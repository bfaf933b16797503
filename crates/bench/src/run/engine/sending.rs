//! The start of requests: on an idle connection or a new one.

use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

use super::super::connection_slots::{ActiveRequest, ClientConnection, SlotKey};
use super::{Engine, FailureKind, PendingRequest, RunRecord, is_up};
use crate::target::{RequestTarget, TargetRequest, Transport};

/// The maximum length of requests that leave in one segment, which Nagle's algorithm cannot hold back.
const SEGMENT: usize = 1400;

impl<T: RequestTarget, P: Iterator<Item = Duration>> Engine<T, P> {
    /// Sends a request on an idle connection or a new one; returns `false` if there is none.
    pub(in crate::run) fn send(
        &mut self,
        record: &mut RunRecord,
        waiting: PendingRequest<T::State>,
        now: Instant,
    ) -> bool {
        let PendingRequest {
            due,
            picker_asked_at: asked,
            failed_picks: tries,
            request: TargetRequest { route, bytes, state },
        } = waiting;
        let left = asked.unwrap_or(now);
        let mut job = ActiveRequest {
            is_connecting: false,
            due,
            sent_at: left,
            failed_picks: tries,
            bytes,
            written: 0,
            state,
        };
        // All allowed sessions are opened, and each sends equally many requests.
        let sessions = self.target.has_sessions();
        let begins =
            sessions && self.limits.max_connections.is_some_and(|most| self.slots.connection_count() < most);
        while !begins
            && let Some(slot) =
                if sessions { self.slots.take_random_idle(route) } else { self.slots.take_last_idle(route) }
        {
            let Some(connection) = self.slots.connection(slot) else { continue };
            let first = job.bytes.clone();
            if connection.address_index != route
                && let Some(bytes) = self.target.request_for_address(&mut job.state, connection.address_index)
            {
                job.bytes = bytes;
            }
            // A connection that its peer has closed meanwhile has accepted nothing: another is tried.
            if job.write(&connection.socket) {
                let key = self.slots.assign(slot, job);
                self.count_sent(due, key);
                return true;
            }
            self.remove_connection(record, slot);
            job.written = 0;
            job.bytes = first;
        }
        if self.slots.connection_count() >= self.max_connections
            && let Some(slot) = self.slots.take_any_idle()
        {
            self.slots.remove(slot);
        }
        self.send_on_new_connection(record, route, route, now, job)
    }

    /// Sends a request on a new connection to one of the addresses; returns `false` if there is none.
    pub(super) fn send_on_new_connection(
        &mut self,
        record: &mut RunRecord,
        route: usize,
        place: usize,
        now: Instant,
        job: ActiveRequest<T::State>,
    ) -> bool {
        let due = job.due;
        // A failure here means that this side lacks a socket, a port or memory: the server is not the cause.
        match self.open_connection(route, place, job) {
            Ok((key, connecting)) => {
                self.count_sent(due, key);
                match connecting {
                    ConnectState::InProgress => {
                        let deadline = now + self.limits.connect_timeout;
                        let slots = &self.slots;
                        self.connect_deadlines.push(deadline, key, self.in_flight, |key| is_up(slots, key));
                    }
                    ConnectState::Established => {}
                    ConnectState::Refused => self.fail_request(record, key.slot, FailureKind::Connect),
                }
                true
            }
            Err(_) => false,
        }
    }

    /// Opens a connection for a request.
    fn open_connection(
        &mut self,
        route: usize,
        place: usize,
        mut job: ActiveRequest<T::State>,
    ) -> io::Result<(SlotKey, ConnectState)> {
        let address = match &self.pending_picks {
            Some(picks) => picks.address(place),
            None => self.target.addresses()[place],
        };
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (socket, outcome) = match self.target.transport() {
            Transport::Tcp => {
                let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
                if self.limits.reuse_connections || job.bytes.len() > SEGMENT {
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
            Ok(()) => ConnectState::Established,
            Err(Errno::INPROGRESS) => ConnectState::InProgress,
            Err(error @ (Errno::ADDRNOTAVAIL | Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM)) => {
                return Err(error.into());
            }
            Err(_) => ConnectState::Refused,
        };
        job.is_connecting = connecting == ConnectState::InProgress;
        if connecting == ConnectState::Established
            && !job.write(&socket)
            && self.target.transport() == Transport::Udp
        {
            // The datagram is too long. A stream that refuses bytes fails when it is read.
            return Err(Errno::MSGSIZE.into());
        }
        let key = self.slots.insert(ClientConnection::new(socket, route, place, job));
        let Some(connection) = self.slots.connection(key.slot) else { return Ok((key, connecting)) };
        if let Err(error) = self.poll.add(&connection.socket, key) {
            self.slots.remove(key.slot);
            return Err(error);
        }
        Ok((key, connecting))
    }

    /// Counts a request as sent.
    fn count_sent(&mut self, due: Instant, key: SlotKey) {
        self.in_flight += 1;
        let slots = &self.slots;
        let deadline = due + self.limits.timeout;
        self.requests.push(deadline, key, self.in_flight, |key| slots.request(key).is_none());
    }
}

/// The state of a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectState {
    InProgress,
    Established,
    Refused,
}
