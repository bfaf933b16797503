//! How long an exchange waits for whom, and whose fault it is if that was too long.

use std::task::{Context, Poll};
use std::time::Duration;

use plimsoll_brain::Time;

use super::{AHEAD, Answer, Exchange};
use crate::http::ending::Failure;
use crate::reason::Reason;
use crate::stream::Stream;

/// How often a request that waits for its answer looks whether the member was declared down.
const LOOK: Duration = Duration::from_millis(250);

impl<S: Stream, M: Stream> Exchange<'_, S, M> {
    /// Sets the timer to the first of the deadlines that hold now.
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

    /// The same once more, some time later. Out of line: most answers come at once and whole.
    #[cold]
    #[inline(never)]
    pub(super) fn extend(&mut self) {
        self.rearm(self.session.core.tick());
    }

    /// The timer fired: somebody's patience is at its end, or it is time to look how client and member do.
    ///
    /// # Errors
    /// The exchange ends.
    #[cold]
    #[inline(never)]
    pub(super) fn look(&mut self) -> Result<(), Failure> {
        let now = self.session.core.tick();
        // The first time it says that this is no quick answer: a client that leaves is worth noticing.
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

    /// Returns when to look next whether the member was declared down; never where nothing would follow from it.
    #[inline(always)]
    fn look_at(&self, now: Time) -> Time {
        if self.could_go_elsewhere() { now + LOOK } else { Time(u64::MAX) }
    }

    /// Returns whether nothing of an answer has come, and another member may be asked for one.
    #[inline(always)]
    fn could_go_elsewhere(&self) -> bool {
        self.asked.spare && self.headless() && !self.heard && !self.asked.once()
    }

    /// Is the head of the final answer still to come?
    #[inline(always)]
    pub(super) fn headless(&self) -> bool {
        matches!(self.answer, Answer::Head)
    }

    /// Is it a call of gRPC whose messages come when there is something to say, on either side, and all that was said was taken?
    #[inline(always)]
    fn flows(&self) -> bool {
        self.session.stream.call().is_some() && self.streams()
    }

    #[inline(never)]
    fn streams(&self) -> bool {
        let begun = self.answered || (self.asked.came && !self.asked.body.done());
        begun && self.taken() && !self.unread()
    }

    /// Has the client taken all of the answer that there is?
    #[inline(always)]
    fn taken(&self) -> bool {
        let framed = self.asked.framed.as_deref();
        self.to_client.is_empty() && framed.is_none_or(|framed| framed.to_client.is_none())
    }

    /// Is it the client that nothing moves for?
    #[inline(always)]
    fn waits_for_client(&self) -> bool {
        !self.taken() || !(self.asked.body.done() || self.unread())
    }

    /// Is nothing read of the request because the member takes nothing of it?
    #[inline(always)]
    pub(super) fn unread(&self) -> bool {
        self.deaf
            || self.sent < self.asked.out.len()
            || !self.to_member.is_empty()
            || self.asked.framed.as_deref().is_some_and(|framed| self.sent == 0 || framed.to_member.is_some())
    }

    /// Returns whether the member was sent all of the request. Bytes that were read from the client do not count as sent: what a
    /// pooled connection still owes would become a part of the next request (RFC 9112 section 9.3), and what a tunnel still owes
    /// would be lost.
    #[inline(always)]
    pub(super) fn sent_whole(&self) -> bool {
        self.asked.body.done() && !self.unread()
    }

    /// The timer fired: whose fault is it?
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

    /// While the answer is awaited: notices a client that went away, keeps what one sends ahead.
    pub(super) fn watch_client(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Result<(), Failure> {
        while self.session.unread.len() < AHEAD {
            let most = (AHEAD - self.session.unread.len()).min(buffer.len());
            let session = &mut *self.session;
            match session.stream.poll_recv(cx, &mut buffer[..most], &mut session.watched) {
                // Of what was begun the next write tells whether the client still reads.
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
