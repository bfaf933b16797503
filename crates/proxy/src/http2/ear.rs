//! Detection of dead connections to members.
//!
//! A member that vanished (its host lost power, a firewall dropped the connection) or hangs does not close
//! its connections. The kernel detects that after a quarter of an hour. Until then, requests on them are in
//! vain, and new requests would join them while others are in flight.
//!
//! So each connection records the time of its first request since bytes last arrived. A request may be
//! abandoned before its response has begun. If that time is then longer ago than the connect timeout, the
//! connection gets no new requests. Requests in flight on it continue.
//!
//! No pings are sent. gRPC servers close connections that are pinged too often (`too_many_pings`; by default
//! once in five minutes), with all requests in flight. For this reason, Envoy, HAProxy and hyper send no
//! pings by default. The worst effect of this detection is one more connection to a member that responds
//! slowly.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use plimsoll_brain::Time;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::batch::Batch;
use super::meter::PREFACE;
use super::wear::Wear;
use crate::core::Core;
use crate::link::Link;

/// The number of a connection's streams that this process resets because of the member's errors; more end it.
pub(super) const RESET_BY_US: usize = 1000;

/// The times of requests and received bytes of one connection.
#[derive(Debug)]
pub(super) struct Ear {
    pub(super) wear: Wear,
    /// The time of the first request since bytes last arrived.
    asked: Cell<Option<Time>>,
    heard: Cell<Time>,
}

impl Ear {
    pub(super) fn new(now: Time) -> Self {
        Self { wear: Wear::new((0, PREFACE), RESET_BY_US), asked: Cell::default(), heard: Cell::new(now) }
    }

    /// Records that a request was sent.
    pub(super) fn ask(&self, now: Time) {
        if self.asked.get().is_none() {
            self.asked.set(Some(now));
        }
    }

    fn hear(&self, now: Time) {
        self.asked.set(None);
        self.heard.set(now);
    }

    /// Returns `true` if an abandoned request shows a dead connection: no bytes arrived for this long,
    /// although there was a request.
    pub(super) fn in_vain(&self, patience: Duration, now: Time) -> bool {
        // A request sent before bytes last arrived waits since then.
        now.since(self.asked.get().unwrap_or_else(|| self.heard.get())) >= patience
    }
}

/// A connection to a member that records received bytes.
pub(super) struct Heard {
    link: Batch<Link>,
    core: Rc<Core>,
    ear: Rc<Ear>,
}

impl Heard {
    pub(super) fn new(link: Batch<Link>, core: &Rc<Core>, ear: &Rc<Ear>) -> Self {
        Self { link, core: Rc::clone(core), ear: Rc::clone(ear) }
    }
}

impl AsyncRead for Heard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = space.filled().len();
        ready!(Pin::new(&mut self.link).poll_read(cx, space))?;
        if space.filled().len() > before {
            self.ear.hear(self.core.tick());
            self.ear.wear.came(&space.filled()[before..]);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Heard {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let sent = ready!(Pin::new(&mut self.link).poll_write(cx, bytes))?;
        self.ear.wear.went(&[IoSlice::new(bytes)], sent);
        Poll::Ready(Ok(sent))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = ready!(Pin::new(&mut self.link).poll_write_vectored(cx, parts))?;
        self.ear.wear.went(parts, sent);
        Poll::Ready(Ok(sent))
    }

    fn is_write_vectored(&self) -> bool {
        self.link.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.link).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.link).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(1);

    fn at(milliseconds: u64) -> Time {
        Time(milliseconds * 1_000_000)
    }

    #[test]
    fn a_connection_is_dead_when_nothing_is_heard_though_something_was_asked() {
        let ear = Ear::new(at(0));
        ear.ask(at(10_000));
        assert!(!ear.in_vain(PATIENCE, at(10_999)));
        assert!(ear.in_vain(PATIENCE, at(11_000)));
        // A later request with a short timeout: no bytes ever arrived.
        ear.ask(at(20_000));
        assert!(ear.in_vain(PATIENCE, at(20_100)));
    }

    #[test]
    fn what_is_heard_by_others_counts() {
        let ear = Ear::new(at(0));
        ear.ask(at(1000));
        ear.hear(at(9500));
        assert!(!ear.in_vain(PATIENCE, at(10_000)));
        assert!(ear.in_vain(PATIENCE, at(10_500)), "the first one still waits");
        ear.ask(at(30_000));
        assert!(!ear.in_vain(PATIENCE, at(30_500)), "nobody asked for long");
    }
}
