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
    spare: RefCell<Vec<SplicePipe>>,
    open: Rc<Cell<usize>>,
}

/// A pipe, and the number of bytes in it.
pub(crate) struct SplicePipe {
    read: OwnedFd,
    write: OwnedFd,
    capacity: usize,
    filled: usize,
    open: Rc<Cell<usize>>,
}

impl PipePool {
    /// Returns an empty pipe; `None` if there are too many or the system has none.
    pub(crate) fn take(&self) -> Option<SplicePipe> {
        self.spare.borrow_mut().pop().or_else(|| self.make())
    }

    /// Takes a pipe back.
    pub(crate) fn put(&self, pipe: SplicePipe) {
        if pipe.is_empty() {
            self.spare.borrow_mut().push(pipe);
        }
    }

    #[cold]
    fn make(&self) -> Option<SplicePipe> {
        if self.open.get() >= MAX_PIPES {
            return None;
        }
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // A user with many pipes gets smaller ones.
        let capacity = rustix::pipe::fcntl_setpipe_size(&write, CAPACITY)
            .or_else(|_| rustix::pipe::fcntl_getpipe_size(&write))
            .ok()
            .filter(|capacity| *capacity >= MIN_CAPACITY)?;
        self.open.set(self.open.get() + 1);
        Some(SplicePipe { read, write, capacity, filled: 0, open: Rc::clone(&self.open) })
    }

    /// Returns the number of pipes.
    #[cfg(test)]
    pub(crate) fn open(&self) -> usize {
        self.open.get()
    }
}

impl SplicePipe {
    pub(crate) fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Moves the received bytes of `from` into the pipe, which must be empty; 0 at the end of the stream.
    pub(crate) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        from: &ReactorSocket,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(from.poll_ready(IoDirection::Read, cx))?;
            // Few bytes do not imply that no more are there.
            if let Some(moved) =
                from.try_io(IoDirection::Read, 0, || splice(from, &self.write, self.capacity))
            {
                return Poll::Ready(moved.inspect(|moved| self.filled += moved));
            }
        }
    }

    /// Moves the bytes in the pipe to `to`, as many as it accepts.
    pub(crate) fn poll_drain(&mut self, cx: &mut Context<'_>, to: &ReactorSocket) -> Poll<io::Result<usize>> {
        loop {
            ready!(to.poll_ready(IoDirection::Write, cx))?;
            match to.try_io(IoDirection::Write, 0, || splice(&self.read, to, self.filled)) {
                None => {}
                Some(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Some(moved) => return Poll::Ready(moved.inspect(|moved| self.filled -= *moved)),
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
    from: &impl rustix::fd::AsFd,
    to: &impl rustix::fd::AsFd,
    most: usize,
) -> rustix::io::Result<usize> {
    rustix::pipe::splice(from, None, to, None, most, SpliceFlags::NONBLOCK)
}
