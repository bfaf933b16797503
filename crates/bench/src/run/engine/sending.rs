//! The start of requests: on an idle connection or a new one.

use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

use super::super::connection_slots::{ActiveRequest, ClientConnection, SlotKey};
use super::{Engine, FailureKind, PendingRequest, RunRecord, is_established};
use crate::target::{RequestTarget, TargetRequest, Transport};

/// The maximum length of requests that leave in one segment, which Nagle's algorithm cannot hold back.
const MAX_SEGMENT_BYTES: usize = 1400;

impl<T: RequestTarget, P: Iterator<Item = Duration>> Engine<T, P> {
    /// Sends a request on an idle connection or a new one; returns `false` if there is none.
    pub(in crate::run) fn send(
        &mut self,
        record: &mut RunRecord,
        pending: PendingRequest<T::State>,
        now: Instant,
    ) -> bool {
        let PendingRequest {
            due,
            picker_asked_at,
            failed_picks,
            request: TargetRequest { route, bytes, state },
        } = pending;
        let sent_at = picker_asked_at.unwrap_or(now);
        let mut request =
            ActiveRequest { is_connecting: false, due, sent_at, failed_picks, bytes, written: 0, state };
        // All allowed sessions are opened, and each sends equally many requests.
        let has_sessions = self.target.has_sessions();
        let opens_connection = has_sessions
            && self
                .limits
                .max_connections
                .is_some_and(|max_connections| self.slots.connection_count() < max_connections);
        while !opens_connection
            && let Some(slot) = if has_sessions {
                self.slots.take_random_idle(route)
            } else {
                self.slots.take_last_idle(route)
            }
        {
            let Some(connection) = self.slots.connection(slot) else { continue };
            let original_bytes = request.bytes.clone();
            if connection.address_index != route
                && let Some(bytes) =
                    self.target.request_for_address(&mut request.state, connection.address_index)
            {
                request.bytes = bytes;
            }
            // A connection that its peer has closed meanwhile has accepted nothing: another is tried.
            if request.write(&connection.socket) {
                let key = self.slots.assign(slot, request);
                self.count_sent(due, key);
                return true;
            }
            self.remove_connection(record, slot);
            request.written = 0;
            request.bytes = original_bytes;
        }
        if self.slots.connection_count() >= self.max_connections
            && let Some(slot) = self.slots.take_any_idle()
        {
            self.slots.remove(slot);
        }
        self.send_on_new_connection(record, route, route, now, request)
    }

    /// Sends a request on a new connection to one of the addresses; returns `false` if there is none.
    pub(super) fn send_on_new_connection(
        &mut self,
        record: &mut RunRecord,
        route: usize,
        address_index: usize,
        now: Instant,
        request: ActiveRequest<T::State>,
    ) -> bool {
        let due = request.due;
        // A failure here means that this side lacks a socket, a port or memory: the server is not the cause.
        match self.open_connection(route, address_index, request) {
            Ok((key, connect_state)) => {
                self.count_sent(due, key);
                match connect_state {
                    ConnectState::InProgress => {
                        let deadline = now + self.limits.connect_timeout;
                        let slots = &self.slots;
                        self.connect_deadlines
                            .push(deadline, key, self.in_flight, |key| is_established(slots, key));
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
        address_index: usize,
        mut request: ActiveRequest<T::State>,
    ) -> io::Result<(SlotKey, ConnectState)> {
        let address = match &self.pending_picks {
            Some(pending_picks) => pending_picks.address(address_index),
            None => self.target.addresses()[address_index],
        };
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (socket, connect_result) = match self.target.transport() {
            Transport::Tcp => {
                let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
                if self.limits.reuse_connections || request.bytes.len() > MAX_SEGMENT_BYTES {
                    sockopt::set_tcp_nodelay(&socket, true)?;
                }
                let connect_result = net::connect(&socket, &address);
                (socket, connect_result)
            }
            Transport::Udp => {
                let socket = net::socket_with(family, SocketType::DGRAM, flags, None)?;
                let connect_result = net::connect(&socket, &address);
                (socket, connect_result)
            }
        };
        let connect_state = match connect_result {
            Ok(()) => ConnectState::Established,
            Err(Errno::INPROGRESS) => ConnectState::InProgress,
            Err(error @ (Errno::ADDRNOTAVAIL | Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM)) => {
                return Err(error.into());
            }
            Err(_) => ConnectState::Refused,
        };
        request.is_connecting = connect_state == ConnectState::InProgress;
        if connect_state == ConnectState::Established
            && !request.write(&socket)
            && self.target.transport() == Transport::Udp
        {
            // The datagram is too long. A stream that refuses bytes fails when it is read.
            return Err(Errno::MSGSIZE.into());
        }
        let key = self.slots.insert(ClientConnection::new(socket, route, address_index, request));
        let Some(connection) = self.slots.connection(key.slot) else { return Ok((key, connect_state)) };
        if let Err(error) = self.reactor.add(&connection.socket, key) {
            self.slots.remove(key.slot);
            return Err(error);
        }
        Ok((key, connect_state))
    }

    /// Counts a request as sent.
    fn count_sent(&mut self, due: Instant, key: SlotKey) {
        self.in_flight += 1;
        let slots = &self.slots;
        let deadline = due + self.limits.timeout;
        self.request_deadlines.push(deadline, key, self.in_flight, |key| slots.request(key).is_none());
    }
}

/// The state of a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectState {
    InProgress,
    Established,
    Refused,
}
