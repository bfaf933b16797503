//! Relays bytes in both directions between two streams until both have ended: TCP, and HTTP after an upgrade.
//!
//! Each direction copies through the core's buffer: a read, then a write. Only bytes that the receiver does
//! not accept are buffered, and nothing is read while bytes are buffered. A direction between plain sockets
//! that moves much at a time is switched to `splice`, which costs one more system call but copies nothing. It
//! is switched back when it moves little.
//!
//! The end of one side is forwarded while the other continues (half-close). If a side can no longer be
//! written to, its last bytes are still forwarded. A side that was reset ends the relay at once, and its
//! reset should be forwarded, too ([`RelayOutcome::reset`]).

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use plimsoll_brain::Time;

use crate::net::byte_stream::ByteStream;
use crate::net::splice::SplicePipe;
use crate::net::write_buffer::WriteBuffer;
use crate::runtime::memory::MemoryReservation;
use crate::runtime::timer_wheel::Timer;
use crate::upstream::pool::Upstream;
use crate::upstream::thread_context::{GOODBYE_GRACE, ThreadContext};

#[cfg(test)]
mod tests;

/// The number of bytes moved in one direction before other tasks run.
const MAX_POLL_BYTES: usize = 1 << 20;
/// The minimum size of a large read. After two in a row, without a wait with few bytes in between, the
/// direction is switched to `splice`.
const LARGE_READ: usize = 32 * 1024;
/// The limit of few bytes between two waits: after two such waits in a row, the direction copies again.
const SMALL_TRANSFER: usize = 16 * 1024;

/// The outcome of a relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RelayOutcome {
    /// The side that broke off without a proper end, if any.
    pub(crate) broken_side: Option<RelaySide>,
    /// Whether that side was reset: the other should be reset, too.
    pub(crate) reset: bool,
    /// Whether any byte came from the member.
    pub(crate) heard: bool,
    /// Whether the relay was idle and its session is due to move to another member. Neither side was
    /// notified.
    pub(crate) should_move: bool,
}

/// The actions when nothing moves.
pub(crate) struct IdlePolicy<'a> {
    /// The time after which the relay ends.
    pub(crate) idle: Duration,
    /// The interval, and the function that decides whether the session leaves its member.
    pub(crate) move_check: Option<(Duration, &'a mut dyn FnMut(Time) -> bool)>,
}

impl IdlePolicy<'_> {
    /// Creates the actions with an end only.
    pub(crate) fn end_only(idle: Duration) -> Self {
        IdlePolicy { idle, move_check: None }
    }

    /// Returns the time until the next action.
    fn next_wait(&self) -> Duration {
        self.move_check.as_ref().map_or(self.idle, |(check_interval, _)| self.idle.min(*check_interval))
    }
}

/// One of the two ends of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RelaySide {
    Client,
    Member,
}

/// Relays until both sides have ended, one breaks off, or nothing moved for too long. `ahead` are bytes of
/// the client that were read before.
pub(crate) async fn copy<C: ByteStream, M: ByteStream>(
    core: &ThreadContext,
    timer: &Timer,
    mut idle_policy: IdlePolicy<'_>,
    (client, member): (&mut C, &mut M),
    unread: Vec<u8>,
    upstream: &Upstream,
) -> RelayOutcome {
    let counters = upstream.counters();
    counters.bytes_out.add(unread.len() as u64);
    counters.bytes_relayed.add(unread.len() as u64);
    let (mut to_member, mut to_client) = (
        RelayDirection { buffer: WriteBuffer::from_bytes(unread), ..RelayDirection::default() },
        RelayDirection::default(),
    );
    let (mut outcome, mut reservation) = (RelayOutcome::default(), MemoryReservation::default());
    let wait = idle_policy.next_wait();
    let mut last_active = core.tick();
    timer.set(last_active + wait);
    poll_fn(|cx| {
        if timer.fired() {
            let now = core.tick();
            if now.since(last_active) >= idle_policy.idle {
                return Poll::Ready(outcome);
            }
            // A side that has ended may still get an answer, and buffered bytes should arrive.
            if let Some((_, should_move)) = &mut idle_policy.move_check
                && to_member.is_drained()
                && to_client.is_drained()
                && should_move(now)
            {
                outcome.should_move = true;
                return Poll::Ready(outcome);
            }
            timer.set((last_active + idle_policy.idle).min(now + wait));
        }
        core.with_buffers(|buffer, _| {
            to_member.poll(cx, core, client, member, buffer, outcome.reset);
            to_client.poll(cx, core, member, client, buffer, outcome.reset || to_member.is_reset());
        });
        if to_member.moved || to_client.moved {
            counters.bytes_out.add(to_member.bytes as u64);
            counters.bytes_in.add(to_client.bytes as u64);
            counters.bytes_relayed.add((to_member.bytes + to_client.bytes) as u64);
            if !outcome.heard && to_client.bytes > 0 {
                outcome.heard = true;
                upstream.record.vitals.record_success();
            }
            last_active = core.tick();
            timer.set(last_active + wait);
        }
        let bytes = to_member.buffer.len() + to_client.buffer.len();
        if bytes == 0 {
            reservation.clear();
        } else if !reservation.grow(&core.limits.memory, bytes) {
            // The memory budget is used up: the session ends, for which the member is not to blame.
            (outcome.broken_side, outcome.reset) = (Some(RelaySide::Client), true);
            return Poll::Ready(outcome);
        }
        if (to_member.error.is_some() || to_client.error.is_some())
            && outcome.record_errors(&mut to_member, &mut to_client)
        {
            return Poll::Ready(outcome);
        }
        if to_member.is_shut && to_client.is_shut { Poll::Ready(outcome) } else { Poll::Pending }
    })
    .await
}

/// Ends an idle relay: shuts both sides down, and waits a moment for them to close, so that neither finds its
/// connection reset. Bytes that arrive in that moment are lost, as whenever one side closes while the other
/// sends.
pub(crate) async fn part<C: ByteStream, M: ByteStream>(
    core: &ThreadContext,
    timer: &Timer,
    (client, member): (&mut C, &mut M),
) {
    timer.set(core.tick() + GOODBYE_GRACE);
    let mut shutdown_sent = false;
    let (mut client_ended, mut member_ended) = (false, false);
    let (mut client_watched, mut member_watched) = (false, false);
    poll_fn(|cx| {
        if !std::mem::replace(&mut shutdown_sent, true) {
            // A socket's shutdown does not block; one that fails finds the side already closed.
            let _ = Pin::new(&mut *client).poll_shutdown(cx);
            let _ = Pin::new(&mut *member).poll_shutdown(cx);
        }
        core.with_buffers(|buffer, _| {
            client_ended |= discard_to_end(cx, client, buffer, &mut client_watched);
            member_ended |= discard_to_end(cx, member, buffer, &mut member_watched);
        });
        if timer.fired() || (client_ended && member_ended) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Reads and discards bytes; returns `true` at the end. Gives up on a side that does not stop sending.
fn discard_to_end<F: ByteStream>(
    cx: &mut Context<'_>,
    stream: &mut F,
    buffer: &mut [u8],
    read_registered: &mut bool,
) -> bool {
    for _ in 0..16 {
        match stream.poll_recv(cx, buffer, read_registered) {
            Poll::Ready(Ok(1..)) => {}
            Poll::Ready(_) => return true,
            Poll::Pending => return false,
        }
    }
    true
}

impl RelayOutcome {
    /// Records errors; returns `true` if nothing more can be relayed.
    #[cold]
    fn record_errors(&mut self, to_member: &mut RelayDirection, to_client: &mut RelayDirection) -> bool {
        let (to_member_error, to_client_error) = (to_member.error.take(), to_client.error.take());
        for (direction_error, source, receiver, to_ended) in [
            (to_member_error, RelaySide::Client, RelaySide::Member, to_client.source_ended),
            (to_client_error, RelaySide::Member, RelaySide::Client, to_member.source_ended),
        ] {
            match direction_error {
                Some(DirectionError::Source) => {
                    (self.broken_side, self.reset) = (Some(source), true);
                    return true;
                }
                // A side that has ended may legitimately accept no more.
                Some(DirectionError::Receiver(_)) if to_ended => {}
                Some(DirectionError::Receiver(error)) => {
                    self.broken_side = self.broken_side.or(Some(receiver));
                    self.reset |= error == io::ErrorKind::ConnectionReset;
                }
                None => {}
            }
        }
        false
    }
}

/// One direction.
#[derive(Default)]
struct RelayDirection {
    buffer: WriteBuffer,
    /// The bytes in a pipe of the kernel; never together with buffered bytes.
    pipe: Option<SplicePipe>,
    gauge: TransferGauge,
    /// The flag for [`ByteStream::poll_recv`].
    read_registered: bool,
    /// Whether the source has ended.
    source_ended: bool,
    /// Whether the receiver was shut down, or accepts no more.
    is_shut: bool,
    /// Whether the last poll moved anything, and the number of bytes from the source.
    moved: bool,
    bytes: usize,
    error: Option<DirectionError>,
}

/// The error that ended a direction early.
enum DirectionError {
    /// The source cannot be read.
    Source,
    /// The receiver accepts no more.
    Receiver(io::ErrorKind),
}

/// The result of an attempt to move bytes.
enum TransferStep {
    /// Bytes moved: this many from the source, or some to the receiver.
    Moved(usize),
    /// One of the sockets would block.
    Wait,
}

impl RelayDirection {
    /// Moves the available bytes. With `quiet`, the receiver is not shut down at the end.
    fn poll<F: ByteStream, T: ByteStream>(
        &mut self,
        cx: &mut Context<'_>,
        core: &ThreadContext,
        source: &mut F,
        receiver: &mut T,
        buffer: &mut [u8],
        skip_shutdown: bool,
    ) {
        (self.moved, self.bytes) = (false, 0);
        while let TransferStep::Moved(bytes) = self.step(cx, core, source, receiver, buffer, skip_shutdown) {
            self.moved = true;
            self.bytes += bytes;
            if self.bytes >= MAX_POLL_BYTES {
                cx.waker().wake_by_ref();
                break;
            }
        }
        self.gauge.record_wait(self.bytes);
    }

    fn step<F: ByteStream, T: ByteStream>(
        &mut self,
        cx: &mut Context<'_>,
        core: &ThreadContext,
        source: &mut F,
        receiver: &mut T,
        buffer: &mut [u8],
        skip_shutdown: bool,
    ) -> TransferStep {
        if self.is_shut {
            return TransferStep::Wait;
        }
        if !self.buffer.is_empty() {
            let sent = self.buffer.poll_send(cx, receiver);
            return self.handle_sent(sent.map_ok(|_| ()));
        }
        if let (Some(pipe), Some(socket)) = (&mut self.pipe, receiver.socket()) {
            let drained = pipe.poll_drain(cx, socket);
            if pipe.is_empty() {
                self.pipe.take().into_iter().for_each(|pipe| core.pipes.put(pipe));
            }
            return self.handle_sent(drained.map_ok(|_| ()));
        }
        if self.source_ended {
            let shutdown =
                if skip_shutdown { Poll::Ready(Ok(())) } else { Pin::new(receiver).poll_shutdown(cx) };
            self.is_shut = shutdown.is_ready();
            return self.handle_sent(shutdown);
        }
        if self.gauge.is_large
            && let (Some(source_socket), Some(_)) = (source.socket(), receiver.socket())
            && let Some(mut pipe) = core.pipes.take()
        {
            let filled = pipe.poll_fill(cx, source_socket);
            match filled {
                Poll::Ready(Ok(bytes)) if bytes > 0 => self.pipe = Some(pipe),
                _ => core.pipes.put(pipe),
            }
            return self.handle_received(filled);
        }
        let received = source.poll_recv(cx, buffer, &mut self.read_registered);
        if let Poll::Ready(Ok(bytes)) = received {
            self.gauge.record_read(bytes);
            self.send_or_keep(cx, receiver, &buffer[..bytes]);
        }
        self.handle_received(received)
    }

    fn send_or_keep<T: ByteStream>(&mut self, cx: &mut Context<'_>, receiver: &mut T, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match receiver.poll_send(cx, bytes) {
                Poll::Ready(Ok(0)) => return self.close_receiver(io::ErrorKind::WriteZero),
                Poll::Ready(Ok(sent)) => bytes = &bytes[sent..],
                Poll::Ready(Err(error)) => return self.close_receiver(error.kind()),
                Poll::Pending => {
                    self.buffer = WriteBuffer::from_bytes(bytes.to_vec());
                    break;
                }
            }
        }
    }

    fn handle_received(&mut self, received: Poll<io::Result<usize>>) -> TransferStep {
        match received {
            Poll::Ready(Ok(bytes)) => {
                self.source_ended = bytes == 0;
                TransferStep::Moved(bytes)
            }
            // A TLS peer that closed without close_notify. All records before are complete. As without TLS,
            // the two ends have to detect a truncation themselves.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.source_ended = true;
                TransferStep::Moved(0)
            }
            Poll::Ready(Err(_)) => {
                self.error = Some(DirectionError::Source);
                TransferStep::Wait
            }
            Poll::Pending => TransferStep::Wait,
        }
    }

    fn handle_sent(&mut self, sent: Poll<io::Result<()>>) -> TransferStep {
        match sent {
            Poll::Ready(Ok(())) => TransferStep::Moved(0),
            Poll::Ready(Err(error)) => {
                self.close_receiver(error.kind());
                TransferStep::Wait
            }
            Poll::Pending => TransferStep::Wait,
        }
    }

    /// Stops reading, as the receiver accepts no more.
    #[cold]
    fn close_receiver(&mut self, error: io::ErrorKind) {
        self.is_shut = true;
        self.buffer = WriteBuffer::default();
        self.pipe = None;
        self.error = Some(DirectionError::Receiver(error));
    }

    /// Returns `true` if nothing is buffered, and more may come.
    fn is_drained(&self) -> bool {
        self.buffer.is_empty() && self.pipe.is_none() && !self.source_ended && !self.is_shut
    }

    /// Returns `true` if the receiver was just found to be reset.
    fn is_reset(&self) -> bool {
        matches!(self.error, Some(DirectionError::Receiver(io::ErrorKind::ConnectionReset)))
    }
}

/// Measures how much a direction moves at a time.
#[derive(Default)]
struct TransferGauge {
    /// While copying, the number of large reads, up to two; while splicing, the remaining number of waits
    /// with few bytes.
    large_reads: u8,
    is_large: bool,
}

impl TransferGauge {
    fn record_read(&mut self, bytes: usize) {
        if bytes >= LARGE_READ {
            self.large_reads = (self.large_reads + 1).min(2);
            self.is_large |= self.large_reads == 2;
        }
    }

    /// Records the number of bytes since the last wait.
    fn record_wait(&mut self, bytes: usize) {
        match (self.is_large, bytes) {
            (_, 0) => {}
            (false, ..SMALL_TRANSFER) => self.large_reads = 0,
            (false, _) => {}
            (true, ..SMALL_TRANSFER) => {
                self.large_reads = self.large_reads.saturating_sub(1);
                self.is_large = self.large_reads > 0;
            }
            (true, _) => self.large_reads = 2,
        }
    }
}
