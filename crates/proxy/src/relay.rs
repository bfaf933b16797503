//! Bytes both ways between two streams until both have ended: tcp, and what is left of HTTP after an upgrade.
//!
//! Each direction copies through the core's buffer: a read, a write, nothing kept but what the receiver
//! refuses, and nothing read while something is kept. A direction between plain sockets that moves much at a
//! time is switched to `splice`, which costs a system call more but copies nothing, and back when it moves
//! little.
//!
//! The end of one side is passed on while the other goes on (half-close). A side that can no longer be written
//! to has its last words passed on; a side that was reset ends the relay at once, and its reset should be
//! passed on too ([`End::reset`]).

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

/// Bytes that are moved in one direction before other tasks get their turn.
const TURN: usize = 1 << 20;
/// A read of so many bytes is large: two in a row without a pause in which little came, and the direction is
/// switched to `splice`.
const LARGE: usize = 32 * 1024;
/// Less than this between two waits is little: twice in a row, and the direction copies again.
const LITTLE: usize = 16 * 1024;

/// How a relay ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct End {
    /// Who broke off before it had said that it was done, if anyone did.
    pub(crate) broken: Option<Side>,
    /// That side was reset: the other should learn of it.
    pub(crate) reset: bool,
    /// Did any byte come from the member?
    pub(crate) heard: bool,
    /// Was it quiet, and its turn to be bound to another member? Neither side has been told.
    pub(crate) left: bool,
}

/// What happens when nothing moves.
pub(crate) struct Quiet<'a> {
    /// After so long it is over.
    pub(crate) idle: Duration,
    /// Each time after so long it is asked whether it is the session's turn to leave its member.
    pub(crate) leaves: Option<(Duration, &'a mut dyn FnMut(Time) -> bool)>,
}

impl Quiet<'_> {
    /// Only the end.
    pub(crate) fn end(idle: Duration) -> Self {
        Quiet { idle, leaves: None }
    }

    /// Until there is something to do.
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

/// Relays until both sides have ended, one breaks off, or nothing moved for too long. `ahead` are bytes of the
/// client that were read before.
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
            // Who has said that it is done may yet be answered, and what is on its way is to arrive.
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
            // The memory budget is used up: the session ends, through no fault of the member.
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

/// Ends a relay that was quiet: tells both sides, and waits a moment for them to say the same, so that neither finds
/// its connection reset. What comes in that moment is lost, as it is whenever a side ends while the other speaks.
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
            // A shutdown of a socket does not wait; one that fails finds the side gone already.
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

/// Reads what comes; true once nothing more will. Gives up on a side that does not stop speaking.
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
    /// Notes what broke; true if nothing more can be relayed.
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
                // Whoever has said that it is done may well take no more.
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
    /// What is on its way through the kernel; never together with a residue.
    pipe: Option<Pipe>,
    gauge: Gauge,
    /// Of [`Stream::poll_recv`].
    watched: bool,
    /// The source has ended.
    ended: bool,
    /// The receiver was told, or takes no more.
    shut: bool,
    /// Did the last poll move anything, and how many bytes from the source?
    moved: bool,
    bytes: usize,
    broken: Option<Broken>,
}

/// What ended a direction before its time.
enum Broken {
    /// The source cannot be read.
    Source,
    /// The receiver takes no more.
    Receiver(io::ErrorKind),
}

/// What came of trying to move bytes.
enum Step {
    /// Something moved: so many bytes from the source, or some to the receiver.
    Moved(usize),
    /// One of the sockets has to wait.
    Wait,
}

impl Flow {
    /// Moves what can be moved. `quiet`: the receiver is not to be told of the end.
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
            // A peer in TLS that closes without saying so. All that came before is whole, record by record; whether it is all
            // that was meant is for those to find out who speak here, as it is without TLS.
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

    /// The receiver takes no more, so nothing more is read for it.
    #[cold]
    fn refused(&mut self, error: io::ErrorKind) {
        self.shut = true;
        self.residue = Residue::default();
        self.pipe = None;
        self.broken = Some(Broken::Receiver(error));
    }

    /// Is nothing of it on its way, and may more come?
    fn rests(&self) -> bool {
        self.residue.is_empty() && self.pipe.is_none() && !self.ended && !self.shut
    }

    /// Was the receiver found to be reset just now?
    fn reset(&self) -> bool {
        matches!(self.broken, Some(Broken::Receiver(io::ErrorKind::ConnectionReset)))
    }
}

/// How much a direction moves at a time.
#[derive(Default)]
struct Gauge {
    /// Large reads while it copies, until there are two; then what is left of the patience with little ones.
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

    /// So many bytes were moved since the last wait.
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
