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
const TURN: usize = 1 << 20;
/// The minimum size of a large read. After two in a row, without a wait with few bytes in between, the
/// direction is switched to `splice`.
const LARGE: usize = 32 * 1024;
/// The limit of few bytes between two waits: after two such waits in a row, the direction copies again.
const LITTLE: usize = 16 * 1024;

/// The outcome of a relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RelayOutcome {
    /// The side that broke off without a proper end, if any.
    pub(crate) broken: Option<RelaySide>,
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
        self.move_check.as_ref().map_or(self.idle, |(look, _)| self.idle.min(*look))
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
    mut quiet: IdlePolicy<'_>,
    (client, member): (&mut C, &mut M),
    ahead: Vec<u8>,
    upstream: &Upstream,
) -> RelayOutcome {
    let stripe = upstream.counters();
    stripe.bytes_out.add(ahead.len() as u64);
    stripe.bytes_relayed.add(ahead.len() as u64);
    let (mut up, mut down) = (
        RelayDirection { buffer: WriteBuffer::from_bytes(ahead), ..RelayDirection::default() },
        RelayDirection::default(),
    );
    let (mut end, mut kept) = (RelayOutcome::default(), MemoryReservation::default());
    let wait = quiet.next_wait();
    let mut last = core.tick();
    timer.set(last + wait);
    poll_fn(|cx| {
        if timer.fired() {
            let now = core.tick();
            if now.since(last) >= quiet.idle {
                return Poll::Ready(end);
            }
            // A side that has ended may still get an answer, and buffered bytes should arrive.
            if let Some((_, leaves)) = &mut quiet.move_check
                && up.is_drained()
                && down.is_drained()
                && leaves(now)
            {
                end.should_move = true;
                return Poll::Ready(end);
            }
            timer.set((last + quiet.idle).min(now + wait));
        }
        core.with_buffers(|buffer, _| {
            up.poll(cx, core, client, member, buffer, end.reset);
            down.poll(cx, core, member, client, buffer, end.reset || up.is_reset());
        });
        if up.moved || down.moved {
            stripe.bytes_out.add(up.bytes as u64);
            stripe.bytes_in.add(down.bytes as u64);
            stripe.bytes_relayed.add((up.bytes + down.bytes) as u64);
            if !end.heard && down.bytes > 0 {
                end.heard = true;
                upstream.record.vitals.record_success();
            }
            last = core.tick();
            timer.set(last + wait);
        }
        let bytes = up.buffer.len() + down.buffer.len();
        if bytes == 0 {
            kept.clear();
        } else if !kept.grow(&core.limits.memory, bytes) {
            // The memory budget is used up: the session ends, for which the member is not to blame.
            (end.broken, end.reset) = (Some(RelaySide::Client), true);
            return Poll::Ready(end);
        }
        if (up.broken.is_some() || down.broken.is_some()) && end.record_errors(&mut up, &mut down) {
            return Poll::Ready(end);
        }
        if up.shut && down.shut { Poll::Ready(end) } else { Poll::Pending }
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
    let mut told = false;
    let (mut client_ended, mut member_ended) = (false, false);
    let (mut client_watched, mut member_watched) = (false, false);
    poll_fn(|cx| {
        if !std::mem::replace(&mut told, true) {
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
    from: &mut F,
    buffer: &mut [u8],
    watched: &mut bool,
) -> bool {
    for _ in 0..16 {
        match from.poll_recv(cx, buffer, watched) {
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
    fn record_errors(&mut self, up: &mut RelayDirection, down: &mut RelayDirection) -> bool {
        let (out, back) = (up.broken.take(), down.broken.take());
        for (broken, from, to, to_ended) in [
            (out, RelaySide::Client, RelaySide::Member, down.ended),
            (back, RelaySide::Member, RelaySide::Client, up.ended),
        ] {
            match broken {
                Some(DirectionError::Source) => {
                    (self.broken, self.reset) = (Some(from), true);
                    return true;
                }
                // A side that has ended may legitimately accept no more.
                Some(DirectionError::Receiver(_)) if to_ended => {}
                Some(DirectionError::Receiver(error)) => {
                    self.broken = self.broken.or(Some(to));
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
    watched: bool,
    /// Whether the source has ended.
    ended: bool,
    /// Whether the receiver was shut down, or accepts no more.
    shut: bool,
    /// Whether the last poll moved anything, and the number of bytes from the source.
    moved: bool,
    bytes: usize,
    broken: Option<DirectionError>,
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
        from: &mut F,
        to: &mut T,
        buffer: &mut [u8],
        quiet: bool,
    ) {
        (self.moved, self.bytes) = (false, 0);
        while let TransferStep::Moved(bytes) = self.step(cx, core, from, to, buffer, quiet) {
            self.moved = true;
            self.bytes += bytes;
            if self.bytes >= TURN {
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
        from: &mut F,
        to: &mut T,
        buffer: &mut [u8],
        quiet: bool,
    ) -> TransferStep {
        if self.shut {
            return TransferStep::Wait;
        }
        if !self.buffer.is_empty() {
            let sent = self.buffer.poll_send(cx, to);
            return self.handle_sent(sent.map_ok(|_| ()));
        }
        if let (Some(pipe), Some(to)) = (&mut self.pipe, to.socket()) {
            let drained = pipe.poll_drain(cx, to);
            if pipe.is_empty() {
                self.pipe.take().into_iter().for_each(|pipe| core.pipes.put(pipe));
            }
            return self.handle_sent(drained.map_ok(|_| ()));
        }
        if self.ended {
            let told = if quiet { Poll::Ready(Ok(())) } else { Pin::new(to).poll_shutdown(cx) };
            self.shut = told.is_ready();
            return self.handle_sent(told);
        }
        if self.gauge.large
            && let (Some(from), Some(_)) = (from.socket(), to.socket())
            && let Some(mut pipe) = core.pipes.take()
        {
            let filled = pipe.poll_fill(cx, from);
            match filled {
                Poll::Ready(Ok(bytes)) if bytes > 0 => self.pipe = Some(pipe),
                _ => core.pipes.put(pipe),
            }
            return self.handle_received(filled);
        }
        let came = from.poll_recv(cx, buffer, &mut self.watched);
        if let Poll::Ready(Ok(bytes)) = came {
            self.gauge.record_read(bytes);
            self.send_or_keep(cx, to, &buffer[..bytes]);
        }
        self.handle_received(came)
    }

    fn send_or_keep<T: ByteStream>(&mut self, cx: &mut Context<'_>, to: &mut T, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match to.poll_send(cx, bytes) {
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

    fn handle_received(&mut self, came: Poll<io::Result<usize>>) -> TransferStep {
        match came {
            Poll::Ready(Ok(bytes)) => {
                self.ended = bytes == 0;
                TransferStep::Moved(bytes)
            }
            // A TLS peer that closed without close_notify. All records before are complete. As without TLS,
            // the two ends have to detect a truncation themselves.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.ended = true;
                TransferStep::Moved(0)
            }
            Poll::Ready(Err(_)) => {
                self.broken = Some(DirectionError::Source);
                TransferStep::Wait
            }
            Poll::Pending => TransferStep::Wait,
        }
    }

    fn handle_sent(&mut self, went: Poll<io::Result<()>>) -> TransferStep {
        match went {
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
        self.shut = true;
        self.buffer = WriteBuffer::default();
        self.pipe = None;
        self.broken = Some(DirectionError::Receiver(error));
    }

    /// Returns `true` if nothing is buffered, and more may come.
    fn is_drained(&self) -> bool {
        self.buffer.is_empty() && self.pipe.is_none() && !self.ended && !self.shut
    }

    /// Returns `true` if the receiver was just found to be reset.
    fn is_reset(&self) -> bool {
        matches!(self.broken, Some(DirectionError::Receiver(io::ErrorKind::ConnectionReset)))
    }
}

/// Measures how much a direction moves at a time.
#[derive(Default)]
struct TransferGauge {
    /// While copying, the number of large reads, up to two; while splicing, the remaining number of waits
    /// with few bytes.
    marks: u8,
    large: bool,
}

impl TransferGauge {
    fn record_read(&mut self, bytes: usize) {
        if bytes >= LARGE {
            self.marks = (self.marks + 1).min(2);
            self.large |= self.marks == 2;
        }
    }

    /// Records the number of bytes since the last wait.
    fn record_wait(&mut self, bytes: usize) {
        match (self.large, bytes) {
            (_, 0) => {}
            (false, ..LITTLE) => self.marks = 0,
            (false, _) => {}
            (true, ..LITTLE) => {
                self.marks = self.marks.saturating_sub(1);
                self.large = self.marks > 0;
            }
            (true, _) => self.marks = 2,
        }
    }
}
