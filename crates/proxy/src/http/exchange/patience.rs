//! The timeouts of an exchange, and the side at fault when one expires.

use std::task::{Context, Poll};
use std::time::Duration;

use plimsoll_brain::Time;

use super::{AHEAD, Answer, Exchange};
use crate::http::ending::Failure;
use crate::reason::Reason;
use crate::stream::Stream;

/// The interval at which a waiting request checks whether its member was declared down.
const LOOK: Duration = Duration::from_millis(250);

impl<S: Stream, M: Stream> Exchange<'_, S, M> {
    /// Sets the timer to the first of the current deadlines.
    #[inline(always)]
    pub(super) fn rearm(&mut self, now: Time) {
        let client = self.settings.timeouts.body;
        let member = self.trip.settings().timeouts.idle;
        let idle = match () {
            () if self.flows() => self.settings.timeouts.tunnel,
            () if self.waits_for_client() => client,
            () => member,
        };
        let answer = if self.headless() { self.per_try } else { Time(u64::MAX) };
        let watch = if self.watching { self.look_at(now) } else { self.watch_at };
        self.due = self.deadline.min(answer).min(now + idle);
        self.session.timer.set(self.due.min(watch));
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
    pub(super) fn look(&mut self) -> Result<(), Failure> {
        let now = self.session.core.tick();
        // The first time shows that the response is not a fast one: from now on, a client's disconnect is
        // detected.
        if std::mem::replace(&mut self.watching, true) && now >= self.due {
            return Err(self.late());
        }
        let down = self.could_go_elsewhere() && self.trip.upstream.record.vitals.is_down();
        if down && self.session.listener.pool().withdraw(now) {
            return Err(Failure::Down);
        }
        self.session.timer.set(self.due.min(self.look_at(now)));
        Ok(())
    }

    /// Returns the time of the next check whether the member was declared down; never if nothing would follow
    /// from it.
    #[inline(always)]
    fn look_at(&self, now: Time) -> Time {
        if self.could_go_elsewhere() { now + LOOK } else { Time(u64::MAX) }
    }

    /// Returns `true` if nothing of a response has arrived and another member may get the request.
    #[inline(always)]
    fn could_go_elsewhere(&self) -> bool {
        self.asked.spare && self.headless() && !self.heard && !self.asked.once()
    }

    /// Returns `true` if the head of the final response is still to come.
    #[inline(always)]
    pub(super) fn headless(&self) -> bool {
        matches!(self.answer, Answer::Head)
    }

    /// Returns `true` for a gRPC call with messages at irregular times on either side, all of which were
    /// accepted so far.
    #[inline(always)]
    fn flows(&self) -> bool {
        self.session.stream.call().is_some() && self.streams()
    }

    #[inline(never)]
    fn streams(&self) -> bool {
        let begun = self.answered || (self.asked.came && !self.asked.body.done());
        begun && self.taken() && !self.unread()
    }

    /// Returns `true` if the client has accepted all available bytes of the response.
    #[inline(always)]
    fn taken(&self) -> bool {
        let framed = self.asked.framed.as_deref();
        self.to_client.is_empty() && framed.is_none_or(|framed| framed.to_client.is_none())
    }

    /// Returns `true` if the exchange waits for the client.
    #[inline(always)]
    fn waits_for_client(&self) -> bool {
        !self.taken() || !(self.asked.body.done() || self.unread())
    }

    /// Returns `true` if nothing of the request is read because the member accepts nothing.
    #[inline(always)]
    pub(super) fn unread(&self) -> bool {
        self.deaf
            || self.sent < self.asked.out.len()
            || !self.to_member.is_empty()
            || self.asked.framed.as_deref().is_some_and(|framed| self.sent == 0 || framed.to_member.is_some())
    }

    /// Returns `true` if all of the request was sent to the member. Bytes that were only read from the client
    /// do not count. Bytes left over in a pooled connection would become a part of the next request (RFC 9112
    /// section 9.3); those left over in a tunnel would be lost.
    #[inline(always)]
    pub(super) fn sent_whole(&self) -> bool {
        self.asked.body.done() && !self.unread()
    }

    /// Returns the failure for an expired timeout, which names the side at fault.
    #[cold]
    #[inline(never)]
    pub(super) fn late(&self) -> Failure {
        let now = self.session.core.tick();
        let reason = match () {
            () if self
                .session
                .stream
                .call()
                .is_some_and(|call| call.expired(now.since(self.asked.begun))) =>
            {
                return Failure::Expired(self.answered);
            }
            () if now >= self.deadline => Reason::TotalTimeout,
            () if self.headless() && now >= self.per_try => Reason::AnswerTimeout,
            () if self.answered && self.flows() => return Failure::Quiet,
            () if self.waits_for_client() => {
                return if self.answered {
                    Failure::Client(true)
                } else {
                    Failure::Refused(Reason::ClientTimeout)
                };
            }
            () => Reason::AnswerTimeout,
        };
        if self.answered { Failure::Broken } else { Failure::Member(reason, false) }
    }

    /// Watches the client while the response is awaited: detects its disconnect, and keeps pipelined bytes.
    pub(super) fn watch_client(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Result<(), Failure> {
        while self.session.unread.len() < AHEAD {
            let most = (AHEAD - self.session.unread.len()).min(buffer.len());
            let session = &mut *self.session;
            match session.stream.poll_recv(cx, &mut buffer[..most], &mut session.watched) {
                // Once the response has begun, the next write shows whether the client still reads.
                Poll::Ready(Ok(0)) if self.answered || self.settings.half_close => {
                    self.client_ended = true;
                    return Ok(());
                }
                Poll::Ready(Ok(0)) => return Err(Failure::Client(false)),
                Poll::Ready(Ok(came)) => {
                    session.unread.extend_from_slice(&buffer[..came]);
                    if !session.kept.grow(&session.core.census.memory, session.unread.capacity()) {
                        return Err(Failure::Client(self.answered));
                    }
                }
                Poll::Ready(Err(_)) => return Err(Failure::Client(self.answered)),
                Poll::Pending => return Ok(()),
            }
        }
        Ok(())
    }
}
