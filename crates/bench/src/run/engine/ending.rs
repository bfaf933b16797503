//! The ends of requests: answered, failed, or redirected to begin again.

use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::super::slots::{Connection, Job};
use super::{Engine, Fault, Record};
use crate::target::{Answer, Target, Transport};

impl<T: Target, P: Iterator<Item = Duration>> Engine<T, P> {
    /// Handles a complete answer.
    pub(super) fn done(&mut self, record: &mut Record, slot: u32, answer: &Answer) {
        let Some(connection) = self.slots.connection(slot) else { return };
        let Some(job) = connection.job.take() else { return };
        self.in_flight -= 1;
        let now = Instant::now();
        let latency = now.saturating_duration_since(job.due);
        let member = answer.member.as_ref();
        match answer.fault {
            None => record.answered(member, latency, now.saturating_duration_since(job.left)),
            Some(fault) => {
                record.failed(member, fault, latency.max(self.limits.timeout));
                record.named(answer.reason.as_ref());
            }
        }
        // If the answer precedes the end of the request, the rest of the request would block the connection.
        let stays = self.limits.reuse && answer.reusable && !connection.half_closed && job.is_sent();
        self.rest(self.limits.think);
        if stays {
            return self.slots.rest(slot);
        }
        if let Some(connection) = self.slots.remove(slot) {
            self.close(connection);
        }
    }

    /// Handles the failure of a connection's request. A redirected request that reaches no server goes back.
    /// A request that cannot reach its picked member goes to another pick.
    pub(super) fn fail(&mut self, record: &mut Record, slot: u32, fault: Fault) {
        let unsent = matches!(fault, Fault::Connect | Fault::ConnectTimeout);
        if unsent
            && self.slots.connection(slot).is_some_and(|connection| connection.place != connection.route)
        {
            return self.go(record, slot, None, fault);
        }
        let route = self.slots.connection(slot).map(|connection| connection.route);
        if let (Some(job), Some(route)) = (self.cut_off(record, slot), route)
            && let Some(job) = self.elsewhere(record, route, job, fault)
        {
            self.lose(record, &job, fault);
        }
    }

    /// Sends the connection's request to another address, or with `None` back to where its session began. It
    /// keeps the rest of its time, and fails with `fault` if it has been redirected too often.
    pub(super) fn go(&mut self, record: &mut Record, slot: u32, place: Option<usize>, fault: Fault) {
        let Some(mut connection) = self.slots.remove(slot) else { return };
        let route = connection.route;
        let Some(mut job) = connection.job.take() else { return };
        record.returned += u64::from(place.is_none() && connection.place != route);
        self.close(connection);
        let place = place.unwrap_or(route);
        let Some(bytes) = self.target.readdress(&mut job.state, place) else {
            return self.lose(record, &job, fault);
        };
        (job.bytes, job.written, job.connecting) = (bytes, 0, false);
        self.in_flight -= 1;
        let due = job.due;
        if !self.carry(record, route, place, Instant::now(), job) {
            record.failed(None, Fault::Unsent, due.elapsed().max(self.limits.timeout));
            self.pause();
        }
    }

    /// Removes a useless connection; returns the request on it.
    pub(super) fn cut_off(&mut self, record: &mut Record, slot: u32) -> Option<Job<T::State>> {
        let connection = self.slots.remove(slot)?;
        record.returned += u64::from(connection.place != connection.route);
        connection.job
    }

    /// Closes a connection. The side that closes first keeps the port for a minute (TIME_WAIT), and a
    /// generator that opens thousands of connections per second runs out of ports. The answer is complete, so
    /// nothing can be lost: if the server has not closed yet, a reset ends the connection on both sides at
    /// once.
    fn close(&self, connection: Connection<T::State>) {
        if !connection.half_closed && self.target.transport() == Transport::Tcp {
            // If this is refused the connection closes as any other.
            let _ = sockopt::set_socket_linger(&connection.socket, Some(Duration::ZERO));
        }
    }

    /// Counts a request as failed that is no longer on a connection.
    fn lose(&mut self, record: &mut Record, job: &Job<T::State>, fault: Fault) {
        self.in_flight -= 1;
        record.failed(None, fault, job.due.elapsed().max(self.limits.timeout));
        self.pause();
    }
}
