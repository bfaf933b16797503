//! The timeouts of an exchange, and the side at fault when one expires.

use std::task::{Context, Poll};
use std::time::Duration;

use plimsoll_brain::Time;

use super::{Exchange, MAX_PIPELINED, ResponseProgress};
use crate::net::byte_stream::ByteStream;
use crate::net::reason::Reason;
use crate::protocol::http::outcome::ExchangeFailure;

/// The interval at which a waiting request checks whether its member was declared down.
const MEMBER_CHECK_INTERVAL: Duration = Duration::from_millis(250);

impl<S: ByteStream, M: ByteStream> Exchange<'_, S, M> {
    /// Sets the timer to the first of the current deadlines.
    #[inline(always)]
    pub(super) fn rearm(&mut self, now: Time) {
        let client_timeout = self.settings.timeouts.body;
        let member_timeout = self.in_flight.settings().timeouts.idle;
        let idle_timeout = match () {
            () if self.is_streaming_grpc() => self.settings.timeouts.tunnel,
            () if self.waits_for_client() => client_timeout,
            () => member_timeout,
        };
        let head_deadline = if self.is_awaiting_head() { self.per_try } else { Time(u64::MAX) };
        let watch_deadline = if self.watching { self.next_member_check(now) } else { self.watch_at };
        self.next_deadline = self.deadline.min(head_deadline).min(now + idle_timeout);
        self.session.timer.set(self.next_deadline.min(watch_deadline));
    }

    /// Sets the timer again, some time later. Out of line: most responses arrive at once and complete.
    #[cold]
    #[inline(never)]
    pub(super) fn extend(&mut self) {
        self.rearm(self.session.core.tick());
    }

    /// Handles the timer: a timeout has expired, or it is time to check the client and the member.
    ///
    /// # Errors
    /// The exchange ends.
    #[cold]
    #[inline(never)]
    pub(super) fn check_timeouts(&mut self) -> Result<(), ExchangeFailure> {
        let now = self.session.core.tick();
        // The first time shows that the response is not a fast one: from now on, a client's disconnect is
        // detected.
        if std::mem::replace(&mut self.watching, true) && now >= self.next_deadline {
            return Err(self.timeout_failure());
        }
        let member_down = self.can_try_another_member() && self.in_flight.upstream.record.vitals.is_down();
        if member_down && self.session.listener.pool().withdraw(now) {
            return Err(ExchangeFailure::MemberDown);
        }
        self.session.timer.set(self.next_deadline.min(self.next_member_check(now)));
        Ok(())
    }

    /// Returns the time of the next check whether the member was declared down; never if nothing would follow
    /// from it.
    #[inline(always)]
    fn next_member_check(&self, now: Time) -> Time {
        if self.can_try_another_member() { now + MEMBER_CHECK_INTERVAL } else { Time(u64::MAX) }
    }

    /// Returns `true` if nothing of a response has arrived and another member may get the request.
    #[inline(always)]
    fn can_try_another_member(&self) -> bool {
        self.request.retry_allowed
            && self.is_awaiting_head()
            && !self.member_responded
            && !self.request.is_single_attempt()
    }

    /// Returns `true` if the head of the final response is still to come.
    #[inline(always)]
    pub(super) fn is_awaiting_head(&self) -> bool {
        matches!(self.response, ResponseProgress::Head)
    }

    /// Returns `true` for a gRPC call with messages at irregular times on either side, all of which were
    /// accepted so far.
    #[inline(always)]
    fn is_streaming_grpc(&self) -> bool {
        self.session.stream.call().is_some() && self.is_streaming()
    }

    #[inline(never)]
    fn is_streaming(&self) -> bool {
        let started = self.answered || (self.request.body_started && !self.request.body.is_done());
        started && self.has_client_read_all() && !self.is_member_blocked()
    }

    /// Returns `true` if the client has accepted all available bytes of the response.
    #[inline(always)]
    fn has_client_read_all(&self) -> bool {
        let call = self.request.passthrough_call.as_deref();
        self.to_client.is_empty() && call.is_none_or(|call| call.pending_to_client.is_none())
    }

    /// Returns `true` if the exchange waits for the client.
    #[inline(always)]
    fn waits_for_client(&self) -> bool {
        !self.has_client_read_all() || !(self.request.body.is_done() || self.is_member_blocked())
    }

    /// Returns `true` if nothing of the request is read because the member accepts nothing.
    #[inline(always)]
    pub(super) fn is_member_blocked(&self) -> bool {
        self.member_stopped_reading
            || self.sent < self.request.outgoing.len()
            || !self.to_member.is_empty()
            || self
                .request
                .passthrough_call
                .as_deref()
                .is_some_and(|call| self.sent == 0 || call.pending_to_member.is_some())
    }

    /// Returns `true` if all of the request was sent to the member. Bytes that were only read from the client
    /// do not count. Bytes left over in a pooled connection would become a part of the next request (RFC 9112
    /// section 9.3); those left over in a tunnel would be lost.
    #[inline(always)]
    pub(super) fn is_request_sent(&self) -> bool {
        self.request.body.is_done() && !self.is_member_blocked()
    }

    /// Returns the failure for an expired timeout, which names the side at fault.
    #[cold]
    #[inline(never)]
    pub(super) fn timeout_failure(&self) -> ExchangeFailure {
        let now = self.session.core.tick();
        let reason = match () {
            () if self
                .session
                .stream
                .call()
                .is_some_and(|call| call.is_expired(now.since(self.request.started_at))) =>
            {
                return ExchangeFailure::ClientDeadline(self.answered);
            }
            () if now >= self.deadline => Reason::TotalTimeout,
            () if self.is_awaiting_head() && now >= self.per_try => Reason::AnswerTimeout,
            () if self.answered && self.is_streaming_grpc() => return ExchangeFailure::IdleTimeout,
            () if self.waits_for_client() => {
                return if self.answered {
                    ExchangeFailure::ClientLeft(true)
                } else {
                    ExchangeFailure::RequestRejected(Reason::ClientTimeout)
                };
            }
            () => Reason::AnswerTimeout,
        };
        if self.answered {
            ExchangeFailure::ResponseTruncated
        } else {
            ExchangeFailure::MemberFailed(reason, false)
        }
    }

    /// Watches the client while the response is awaited: detects its disconnect, and keeps pipelined bytes.
    pub(super) fn watch_client(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Result<(), ExchangeFailure> {
        while self.session.unread.len() < MAX_PIPELINED {
            let max_len = (MAX_PIPELINED - self.session.unread.len()).min(buffer.len());
            let session = &mut *self.session;
            match session.stream.poll_recv(cx, &mut buffer[..max_len], &mut session.watched) {
                // Once the response has begun, the next write shows whether the client still reads.
                Poll::Ready(Ok(0)) if self.answered || self.settings.half_close => {
                    self.client_ended = true;
                    return Ok(());
                }
                Poll::Ready(Ok(0)) => return Err(ExchangeFailure::ClientLeft(false)),
                Poll::Ready(Ok(received)) => {
                    session.unread.extend_from_slice(&buffer[..received]);
                    if !session
                        .memory_reservation
                        .grow(&session.core.limits.memory, session.unread.capacity())
                    {
                        return Err(ExchangeFailure::ClientLeft(self.answered));
                    }
                }
                Poll::Ready(Err(_)) => return Err(ExchangeFailure::ClientLeft(self.answered)),
                Poll::Pending => return Ok(()),
            }
        }
        Ok(())
    }
}
