//! The ends of requests: answered, failed, or redirected to begin again.

use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::super::connection_slots::{ActiveRequest, ClientConnection};
use super::{Engine, FailureKind, RunRecord};
use crate::target::{RequestTarget, TargetAnswer, Transport};

impl<T: RequestTarget, P: Iterator<Item = Duration>> Engine<T, P> {
    /// Handles a complete answer.
    pub(super) fn complete(&mut self, record: &mut RunRecord, slot: u32, answer: &TargetAnswer) {
        let Some(connection) = self.slots.connection(slot) else { return };
        let Some(request) = connection.request.take() else { return };
        self.in_flight -= 1;
        let now = Instant::now();
        let latency = now.saturating_duration_since(request.due);
        let member = answer.member.as_ref();
        match answer.failure {
            None => record.record_success(member, latency, now.saturating_duration_since(request.sent_at)),
            Some(failure) => {
                record.record_failure(member, failure, latency.max(self.limits.timeout));
                record.record_exception(answer.reason.as_ref());
            }
        }
        // If the answer precedes the end of the request, the rest of the request would block the connection.
        let keeps_connection =
            self.limits.reuse_connections && answer.reusable && !connection.half_closed && request.is_sent();
        self.delay_client(self.limits.think_time);
        if keeps_connection {
            return self.slots.release(slot);
        }
        if let Some(connection) = self.slots.remove(slot) {
            self.close_connection(connection);
        }
    }

    /// Handles the failure of a connection's request. A redirected request that reaches no server goes back.
    /// A request that cannot reach its picked member goes to another pick.
    pub(super) fn fail_request(&mut self, record: &mut RunRecord, slot: u32, failure: FailureKind) {
        let is_unsent = matches!(failure, FailureKind::Connect | FailureKind::ConnectTimeout);
        if is_unsent
            && self
                .slots
                .connection(slot)
                .is_some_and(|connection| connection.address_index != connection.route)
        {
            return self.redirect(record, slot, None, failure);
        }
        let route = self.slots.connection(slot).map(|connection| connection.route);
        if let (Some(request), Some(route)) = (self.remove_connection(record, slot), route)
            && let Some(request) = self.pick_another(record, route, request, failure)
        {
            self.record_lost(record, &request, failure);
        }
    }

    /// Sends the connection's request to another address, or with `None` back to where its session began. It
    /// keeps the rest of its time, and fails with `fault` if it has been redirected too often.
    pub(super) fn redirect(
        &mut self,
        record: &mut RunRecord,
        slot: u32,
        address_index: Option<usize>,
        failure: FailureKind,
    ) {
        let Some(mut connection) = self.slots.remove(slot) else { return };
        let route = connection.route;
        let Some(mut request) = connection.request.take() else { return };
        record.returned_sessions += u64::from(address_index.is_none() && connection.address_index != route);
        self.close_connection(connection);
        let address_index = address_index.unwrap_or(route);
        let Some(bytes) = self.target.request_for_address(&mut request.state, address_index) else {
            return self.record_lost(record, &request, failure);
        };
        (request.bytes, request.written, request.is_connecting) = (bytes, 0, false);
        self.in_flight -= 1;
        let due = request.due;
        if !self.send_on_new_connection(record, route, address_index, Instant::now(), request) {
            record.record_failure(None, FailureKind::Unsent, due.elapsed().max(self.limits.timeout));
            self.pause_client();
        }
    }

    /// Removes a useless connection; returns the request on it.
    pub(super) fn remove_connection(
        &mut self,
        record: &mut RunRecord,
        slot: u32,
    ) -> Option<ActiveRequest<T::State>> {
        let connection = self.slots.remove(slot)?;
        record.returned_sessions += u64::from(connection.address_index != connection.route);
        connection.request
    }

    /// Closes a connection. The side that closes first keeps the port for a minute (TIME_WAIT), and a
    /// generator that opens thousands of connections per second runs out of ports. The answer is complete, so
    /// nothing can be lost: if the server has not closed yet, a reset ends the connection on both sides at
    /// once.
    fn close_connection(&self, connection: ClientConnection<T::State>) {
        if !connection.half_closed && self.target.transport() == Transport::Tcp {
            // If this is refused the connection closes as any other.
            let _ = sockopt::set_socket_linger(&connection.socket, Some(Duration::ZERO));
        }
    }

    /// Counts a request as failed that is no longer on a connection.
    fn record_lost(
        &mut self,
        record: &mut RunRecord,
        request: &ActiveRequest<T::State>,
        failure: FailureKind,
    ) {
        self.in_flight -= 1;
        record.record_failure(None, failure, request.due.elapsed().max(self.limits.timeout));
        self.pause_client();
    }
}
