//! Moves bytes from socket to socket inside the kernel: `splice(2)` through a pipe.
//!
//! A flow needs a pipe only while bytes are in it. So one pipe serves all flows of a core that keep up, like
//! the read buffer. More pipes are made while receivers are slow, up to a limit.
//!
//! Unlike `send`, `splice` has no flag against SIGPIPE: the process must ignore that signal. It does so
//! unless the default of Rust's runtime is changed.
//!
//! A pipe is filled only when it is empty. So a full pipe cannot be mistaken for an empty socket, both of
//! which the kernel reports as "would block".

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use rustix::pipe::{PipeFlags, SpliceFlags};

use crate::net::socket::ReactorSocket;
use crate::runtime::reactor::IoDirection;

/// The intended capacity of a pipe in bytes, and the minimum that is still useful.
const CAPACITY: usize = 256 * 1024;
const MIN_CAPACITY: usize = 64 * 1024;
/// The maximum number of pipes of one core. Each has two descriptors. Together they take no more than the
/// kernel grants an unprivileged user on a machine with four cores (`/proc/sys/fs/pipe-user-pages-soft`).
const MAX_PIPES: usize = 64;
/// The maximum number of descriptors of one thread's pipes.
pub const MAX_PIPE_FILES: usize = 2 * MAX_PIPES;

/// The pipes of one core.
#[derive(Default)]
pub(crate) struct PipePool {
    idle_pipes: RefCell<Vec<SplicePipe>>,
    open: Rc<Cell<usize>>,
}

/// A pipe, and the number of bytes in it.
pub(crate) struct SplicePipe {
    read_end: OwnedFd,
    write_end: OwnedFd,
    capacity: usize,
    buffered: usize,
    open: Rc<Cell<usize>>,
}

impl PipePool {
    /// Returns an empty pipe; `None` if there are too many or the system has none.
    pub(crate) fn take(&self) -> Option<SplicePipe> {
        self.idle_pipes.borrow_mut().pop().or_else(|| self.open_pipe())
    }

    /// Takes a pipe back.
    pub(crate) fn put(&self, pipe: SplicePipe) {
        if pipe.is_empty() {
            self.idle_pipes.borrow_mut().push(pipe);
        }
    }

    #[cold]
    fn open_pipe(&self) -> Option<SplicePipe> {
        if self.open.get() >= MAX_PIPES {
            return None;
        }
        let (read_end, write_end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // A user with many pipes gets smaller ones.
        let capacity = rustix::pipe::fcntl_setpipe_size(&write_end, CAPACITY)
            .or_else(|_| rustix::pipe::fcntl_getpipe_size(&write_end))
            .ok()
            .filter(|capacity| *capacity >= MIN_CAPACITY)?;
        self.open.set(self.open.get() + 1);
        Some(SplicePipe { read_end, write_end, capacity, buffered: 0, open: Rc::clone(&self.open) })
    }

    /// Returns the number of pipes.
    #[cfg(test)]
    pub(crate) fn open(&self) -> usize {
        self.open.get()
    }
}

impl SplicePipe {
    pub(crate) fn is_empty(&self) -> bool {
        self.buffered == 0
    }

    /// Moves the received bytes of `from` into the pipe, which must be empty; 0 at the end of the stream.
    pub(crate) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        source: &ReactorSocket,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(source.poll_ready(IoDirection::Read, cx))?;
            // Few bytes do not imply that no more are there.
            if let Some(result) =
                source.try_io(IoDirection::Read, 0, || splice(source, &self.write_end, self.capacity))
            {
                return Poll::Ready(result.inspect(|moved| self.buffered += moved));
            }
        }
    }

    /// Moves the bytes in the pipe to `to`, as many as it accepts.
    pub(crate) fn poll_drain(
        &mut self,
        cx: &mut Context<'_>,
        receiver: &ReactorSocket,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(receiver.poll_ready(IoDirection::Write, cx))?;
            match receiver.try_io(IoDirection::Write, 0, || splice(&self.read_end, receiver, self.buffered)) {
                None => {}
                Some(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Some(result) => return Poll::Ready(result.inspect(|moved| self.buffered -= *moved)),
            }
        }
    }
}

impl Drop for SplicePipe {
    fn drop(&mut self) {
        self.open.set(self.open.get() - 1);
    }
}

fn splice(
    source: &impl rustix::fd::AsFd,
    receiver: &impl rustix::fd::AsFd,
    max_len: usize,
) -> rustix::io::Result<usize> {
    rustix::pipe::splice(source, None, receiver, None, max_len, SpliceFlags::NONBLOCK)
}
