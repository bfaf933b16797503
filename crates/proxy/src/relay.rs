//! Relays bytes in both directions between two streams until both have ended: TCP, and HTTP after an upgrade.
//!
//! Each direction copies through the core's buffer: a read, then a write. Only bytes that the receiver does
//! not accept are buffered, and nothing is read while bytes are buffered. A direction between plain sockets
//! that moves much at a time is switched to `splice`, which costs one more system call but copies nothing. It
//! is switched back when it moves little.
//!
//! The end of one side is forwarded while the other continues (half-close). If a side can no longer be
//! written to, its last bytes are still forwarded. A side that was reset ends the relay at once, and its
//! reset should be forwarded, too ([`End::reset`]).

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use plimsoll_brain::Time;

use crate::core::{Core, PARTING};
use crate::memory::Kept;
use crate::pool::Upstream;
use crate::residue::Residue;
use crate::splice::Pipe;
use crate::stream::Stream;
use crate::wheel::Timer;

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
pub(crate) struct End {
    /// The side that broke off without a proper end, if any.
    pub(crate) broken: Option<Side>,
    /// Whether that side was reset: the other should be reset, too.
    pub(crate) reset: bool,
    /// Whether any byte came from the member.
    pub(crate) heard: bool,
    /// Whether the relay was idle and its session is due to move to another member. Neither side was
    /// notified.
    pub(crate) left: bool,
}

/// The actions when nothing moves.
pub(crate) struct Quiet<'a> {
    /// The time after which the relay ends.
    pub(crate) idle: Duration,
    /// The interval, and the function that decides whether the session leaves its member.
    pub(crate) leaves: Option<(Duration, &'a mut dyn FnMut(Time) -> bool)>,
}

impl Quiet<'_> {
    /// Creates the actions with an end only.
    pub(crate) fn end(idle: Duration) -> Self {
        Quiet { idle, leaves: None }
    }

    /// Returns the time until the next action.
    fn wait(&self) -> Duration {
        self.leaves.as_ref().map_or(self.idle, |(look, _)| self.idle.min(*look))
    }
}

/// One of the two ends of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Member,
}

/// Relays until both sides have ended, one breaks off, or nothing moved for too long. `ahead` are bytes of
/// the client that were read before.
pub(crate) async fn copy<C: Stream, M: Stream>(
    core: &Core,
    timer: &Timer,
    mut quiet: Quiet<'_>,
    (client, member): (&mut C, &mut M),
    ahead: Vec<u8>,
    upstream: &Upstream,
) -> End {
    let stripe = upstream.stripe();
    stripe.bytes_out.add(ahead.len() as u64);
    stripe.bytes_relayed.add(ahead.len() as u64);
    let (mut up, mut down) = (Flow { residue: Residue::of(ahead), ..Flow::default() }, Flow::default());
    let (mut end, mut kept) = (End::default(), Kept::default());
    let wait = quiet.wait();
    let mut last = core.tick();
    timer.set(last + wait);
    poll_fn(|cx| {
        if timer.fired() {
            let now = core.tick();
            if now.since(last) >= quiet.idle {
                return Poll::Ready(end);
            }
            // A side that has ended may still get an answer, and buffered bytes should arrive.
            if let Some((_, leaves)) = &mut quiet.leaves
                && up.rests()
                && down.rests()
                && leaves(now)
            {
                end.left = true;
                return Poll::Ready(end);
            }
            timer.set((last + quiet.idle).min(now + wait));
        }
        core.lend(|buffer, _| {
            up.poll(cx, core, client, member, buffer, end.reset);
            down.poll(cx, core, member, client, buffer, end.reset || up.reset());
        });
        if up.moved || down.moved {
            stripe.bytes_out.add(up.bytes as u64);
            stripe.bytes_in.add(down.bytes as u64);
            stripe.bytes_relayed.add((up.bytes + down.bytes) as u64);
            if !end.heard && down.bytes > 0 {
                end.heard = true;
                upstream.record.vitals.succeeded();
            }
            last = core.tick();
            timer.set(last + wait);
        }
        let bytes = up.residue.len() + down.residue.len();
        if bytes == 0 {
            kept.clear();
        } else if !kept.grow(&core.census.memory, bytes) {
            // The memory budget is used up: the session ends, for which the member is not to blame.
            (end.broken, end.reset) = (Some(Side::Client), true);
            return Poll::Ready(end);
        }
        if (up.broken.is_some() || down.broken.is_some()) && end.judge(&mut up, &mut down) {
            return Poll::Ready(end);
        }
        if up.shut && down.shut { Poll::Ready(end) } else { Poll::Pending }
    })
    .await
}

/// Ends an idle relay: shuts both sides down, and waits a moment for them to close, so that neither finds its
/// connection reset. Bytes that arrive in that moment are lost, as whenever one side closes while the other
/// sends.
pub(crate) async fn part<C: Stream, M: Stream>(
    core: &Core,
    timer: &Timer,
    (client, member): (&mut C, &mut M),
) {
    timer.set(core.tick() + PARTING);
    let mut told = false;
    let (mut client_ended, mut member_ended) = (false, false);
    let (mut client_watched, mut member_watched) = (false, false);
    poll_fn(|cx| {
        if !std::mem::replace(&mut told, true) {
            // A socket's shutdown does not block; one that fails finds the side already closed.
            let _ = Pin::new(&mut *client).poll_shutdown(cx);
            let _ = Pin::new(&mut *member).poll_shutdown(cx);
        }
        core.lend(|buffer, _| {
            client_ended |= ended(cx, client, buffer, &mut client_watched);
            member_ended |= ended(cx, member, buffer, &mut member_watched);
        });
        if timer.fired() || (client_ended && member_ended) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Reads and discards bytes; returns `true` at the end. Gives up on a side that does not stop sending.
fn ended<F: Stream>(cx: &mut Context<'_>, from: &mut F, buffer: &mut [u8], watched: &mut bool) -> bool {
    for _ in 0..16 {
        match from.poll_recv(cx, buffer, watched) {
            Poll::Ready(Ok(1..)) => {}
            Poll::Ready(_) => return true,
            Poll::Pending => return false,
        }
    }
    true
}

impl End {
    /// Records errors; returns `true` if nothing more can be relayed.
    #[cold]
    fn judge(&mut self, up: &mut Flow, down: &mut Flow) -> bool {
        let (out, back) = (up.broken.take(), down.broken.take());
        for (broken, from, to, to_ended) in
            [(out, Side::Client, Side::Member, down.ended), (back, Side::Member, Side::Client, up.ended)]
        {
            match broken {
                Some(Broken::Source) => {
                    (self.broken, self.reset) = (Some(from), true);
                    return true;
                }
                // A side that has ended may legitimately accept no more.
                Some(Broken::Receiver(_)) if to_ended => {}
                Some(Broken::Receiver(error)) => {
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
struct Flow {
    residue: Residue,
    /// The bytes in a pipe of the kernel; never together with a residue.
    pipe: Option<Pipe>,
    gauge: Gauge,
    /// The flag for [`Stream::poll_recv`].
    watched: bool,
    /// Whether the source has ended.
    ended: bool,
    /// Whether the receiver was shut down, or accepts no more.
    shut: bool,
    /// Whether the last poll moved anything, and the number of bytes from the source.
    moved: bool,
    bytes: usize,
    broken: Option<Broken>,
}

/// The error that ended a direction early.
enum Broken {
    /// The source cannot be read.
    Source,
    /// The receiver accepts no more.
    Receiver(io::ErrorKind),
}

/// The result of an attempt to move bytes.
enum Step {
    /// Bytes moved: this many from the source, or some to the receiver.
    Moved(usize),
    /// One of the sockets would block.
    Wait,
}

impl Flow {
    /// Moves the available bytes. With `quiet`, the receiver is not shut down at the end.
    fn poll<F: Stream, T: Stream>(
        &mut self,
        cx: &mut Context<'_>,
        core: &Core,
        from: &mut F,
        to: &mut T,
        buffer: &mut [u8],
        quiet: bool,
    ) {
        (self.moved, self.bytes) = (false, 0);
        while let Step::Moved(bytes) = self.step(cx, core, from, to, buffer, quiet) {
            self.moved = true;
            self.bytes += bytes;
            if self.bytes >= TURN {
                cx.waker().wake_by_ref();
                break;
            }
        }
        self.gauge.pause(self.bytes);
    }

    fn step<F: Stream, T: Stream>(
        &mut self,
        cx: &mut Context<'_>,
        core: &Core,
        from: &mut F,
        to: &mut T,
        buffer: &mut [u8],
        quiet: bool,
    ) -> Step {
        if self.shut {
            return Step::Wait;
        }
        if !self.residue.is_empty() {
            let sent = self.residue.poll_send(cx, to);
            return self.went(sent.map_ok(|_| ()));
        }
        if let (Some(pipe), Some(to)) = (&mut self.pipe, to.socket()) {
            let drained = pipe.poll_drain(cx, to);
            if pipe.is_empty() {
                self.pipe.take().into_iter().for_each(|pipe| core.pipes.put(pipe));
            }
            return self.went(drained.map_ok(|_| ()));
        }
        if self.ended {
            let told = if quiet { Poll::Ready(Ok(())) } else { Pin::new(to).poll_shutdown(cx) };
            self.shut = told.is_ready();
            return self.went(told);
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
            return self.came(filled);
        }
        let came = from.poll_recv(cx, buffer, &mut self.watched);
        if let Poll::Ready(Ok(bytes)) = came {
            self.gauge.read(bytes);
            self.send_or_keep(cx, to, &buffer[..bytes]);
        }
        self.came(came)
    }

    fn send_or_keep<T: Stream>(&mut self, cx: &mut Context<'_>, to: &mut T, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match to.poll_send(cx, bytes) {
                Poll::Ready(Ok(0)) => return self.refused(io::ErrorKind::WriteZero),
                Poll::Ready(Ok(sent)) => bytes = &bytes[sent..],
                Poll::Ready(Err(error)) => return self.refused(error.kind()),
                Poll::Pending => {
                    self.residue = Residue::of(bytes.to_vec());
                    break;
                }
            }
        }
    }

    fn came(&mut self, came: Poll<io::Result<usize>>) -> Step {
        match came {
            Poll::Ready(Ok(bytes)) => {
                self.ended = bytes == 0;
                Step::Moved(bytes)
            }
            // A TLS peer that closed without close_notify. All records before are complete. As without TLS,
            // the two ends have to detect a truncation themselves.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.ended = true;
                Step::Moved(0)
            }
            Poll::Ready(Err(_)) => {
                self.broken = Some(Broken::Source);
                Step::Wait
            }
            Poll::Pending => Step::Wait,
        }
    }

    fn went(&mut self, went: Poll<io::Result<()>>) -> Step {
        match went {
            Poll::Ready(Ok(())) => Step::Moved(0),
            Poll::Ready(Err(error)) => {
                self.refused(error.kind());
                Step::Wait
            }
            Poll::Pending => Step::Wait,
        }
    }

    /// Stops reading, as the receiver accepts no more.
    #[cold]
    fn refused(&mut self, error: io::ErrorKind) {
        self.shut = true;
        self.residue = Residue::default();
        self.pipe = None;
        self.broken = Some(Broken::Receiver(error));
    }

    /// Returns `true` if nothing is buffered, and more may come.
    fn rests(&self) -> bool {
        self.residue.is_empty() && self.pipe.is_none() && !self.ended && !self.shut
    }

    /// Returns `true` if the receiver was just found to be reset.
    fn reset(&self) -> bool {
        matches!(self.broken, Some(Broken::Receiver(io::ErrorKind::ConnectionReset)))
    }
}

/// Measures how much a direction moves at a time.
#[derive(Default)]
struct Gauge {
    /// While copying, the number of large reads, up to two; while splicing, the remaining number of waits
    /// with few bytes.
    marks: u8,
    large: bool,
}

impl Gauge {
    fn read(&mut self, bytes: usize) {
        if bytes >= LARGE {
            self.marks = (self.marks + 1).min(2);
            self.large |= self.marks == 2;
        }
    }

    /// Records the number of bytes since the last wait.
    fn pause(&mut self, bytes: usize) {
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
