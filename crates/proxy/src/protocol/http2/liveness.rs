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

use super::abuse_budget::PREFACE_LEN;
use super::error_budget::ErrorBudget;
use super::write_batch::WriteBatch;
use crate::net::connection::PeerConnection;
use crate::upstream::thread_context::ThreadContext;

/// The number of a connection's streams that this process resets because of the member's errors; more end it.
pub(super) const MAX_LOCAL_RESETS: usize = 1000;

/// The times of requests and received bytes of one connection.
#[derive(Debug)]
pub(super) struct ConnectionLiveness {
    pub(super) error_budget: ErrorBudget,
    /// The time of the first request since bytes last arrived.
    first_request: Cell<Option<Time>>,
    last_received: Cell<Time>,
}

impl ConnectionLiveness {
    pub(super) fn new(now: Time) -> Self {
        Self {
            error_budget: ErrorBudget::new((0, PREFACE_LEN), MAX_LOCAL_RESETS),
            first_request: Cell::default(),
            last_received: Cell::new(now),
        }
    }

    /// Records that a request was sent.
    pub(super) fn record_request(&self, now: Time) {
        if self.first_request.get().is_none() {
            self.first_request.set(Some(now));
        }
    }

    fn record_received(&self, now: Time) {
        self.first_request.set(None);
        self.last_received.set(now);
    }

    /// Returns `true` if an abandoned request shows a dead connection: no bytes arrived for this long,
    /// although there was a request.
    pub(super) fn is_dead(&self, timeout: Duration, now: Time) -> bool {
        // A request sent before bytes last arrived waits since then.
        now.since(self.first_request.get().unwrap_or_else(|| self.last_received.get())) >= timeout
    }
}

/// A connection to a member that records received bytes.
pub(super) struct MonitoredConnection {
    stream: WriteBatch<PeerConnection>,
    core: Rc<ThreadContext>,
    liveness: Rc<ConnectionLiveness>,
}

impl MonitoredConnection {
    pub(super) fn new(
        stream: WriteBatch<PeerConnection>,
        core: &Rc<ThreadContext>,
        liveness: &Rc<ConnectionLiveness>,
    ) -> Self {
        Self { stream, core: Rc::clone(core), liveness: Rc::clone(liveness) }
    }
}

impl AsyncRead for MonitoredConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled_before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if buf.filled().len() > filled_before {
            self.liveness.record_received(self.core.tick());
            self.liveness.error_budget.record_received(&buf.filled()[filled_before..]);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for MonitoredConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let sent = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.liveness.error_budget.record_sent(&[IoSlice::new(bytes)], sent);
        Poll::Ready(Ok(sent))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, bufs))?;
        self.liveness.error_budget.record_sent(bufs, sent);
        Poll::Ready(Ok(sent))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(1);

    fn at(milliseconds: u64) -> Time {
        Time(milliseconds * 1_000_000)
    }

    #[test]
    fn a_connection_is_dead_when_nothing_is_heard_though_something_was_asked() {
        let liveness = ConnectionLiveness::new(at(0));
        liveness.record_request(at(10_000));
        assert!(!liveness.is_dead(TIMEOUT, at(10_999)));
        assert!(liveness.is_dead(TIMEOUT, at(11_000)));
        // A later request with a short timeout: no bytes ever arrived.
        liveness.record_request(at(20_000));
        assert!(liveness.is_dead(TIMEOUT, at(20_100)));
    }

    #[test]
    fn what_is_heard_by_others_counts() {
        let liveness = ConnectionLiveness::new(at(0));
        liveness.record_request(at(1000));
        liveness.record_received(at(9500));
        assert!(!liveness.is_dead(TIMEOUT, at(10_000)));
        assert!(liveness.is_dead(TIMEOUT, at(10_500)), "the first one still waits");
        liveness.record_request(at(30_000));
        assert!(!liveness.is_dead(TIMEOUT, at(30_500)), "nobody asked for long");
    }
}
