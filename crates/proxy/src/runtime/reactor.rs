//! A reactor: tracks the readiness of a thread's sockets with an epoll instance of the thread's own.
//!
//! tokio's reactor costs some 250 instructions each time a socket has to wait: a lock and a waker to
//! register, a list of wakers to wake, atomics shared with other threads. Here all of a thread's sockets
//! belong to that thread, and their state is in cells. tokio sees one descriptor, the epoll instance. When
//! that has events, tokio wakes the task that drives the thread's sessions (`executor`). While there are many
//! events, this task polls it several times before tokio's turn, which costs more than several polls.
//!
//! The kernel reports each change once (edge-triggered): a socket is ready until an operation would block.

use std::cell::{Cell, RefCell};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fs::Timespec;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::runtime::slab::Slab;

/// The sockets of one thread.
pub(crate) struct Reactor {
    epoll: OwnedFd,
    sockets: RefCell<Slab<Rc<SocketReadiness>>>,
}

/// The state of one socket.
#[derive(Default)]
pub(crate) struct SocketReadiness {
    state: Cell<u8>,
    reader: Cell<Option<Waker>>,
    writer: Cell<Option<Waker>>,
}

/// A socket's slot in the reactor of its thread.
pub(crate) struct ReactorSlot {
    reactor: Rc<Reactor>,
    state: Rc<SocketReadiness>,
    /// The key in the slab, once it is registered.
    key: Cell<usize>,
}

/// The directions of readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum IoDirection {
    Read = 1,
    Write = 2,
}

/// A flag of a socket's readiness: nothing more will arrive, whatever later operations find.
const ENDED: u8 = 4;
/// A flag of a socket's readiness: the socket is registered with the kernel.
const REGISTERED: u8 = 8;

impl Reactor {
    /// # Errors
    /// The system has no more descriptors.
    pub(crate) fn new() -> io::Result<Rc<Self>> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Rc::new(Self { epoll, sockets: RefCell::default() }))
    }

    /// Returns a slot for a socket, which counts as ready for `ways` until an operation would block. The
    /// socket is registered when it first has to wait, as many connections never do. Registration costs a
    /// system call, and a lock that all nested epoll instances of the system share.
    pub(crate) fn place(self: &Rc<Self>, ready: &[IoDirection]) -> ReactorSlot {
        let readiness = Rc::new(SocketReadiness::default());
        readiness.state.set(ready.iter().fold(0, |state, direction| state | *direction as u8));
        ReactorSlot { reactor: Rc::clone(self), state: readiness, key: Cell::new(0) }
    }

    /// Polls for ready sockets and wakes the tasks that wait for them. Returns the number of sockets, at most
    /// [`MAX_EVENTS`].
    pub(crate) fn poll_events(&self) -> usize {
        let mut event_buffer = [const { MaybeUninit::<Event>::uninit() }; MAX_EVENTS];
        let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
        // After a signal, the events are still there at the next poll, which should be soon.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut event_buffer[..], Some(&no_wait)) else {
            return MAX_EVENTS;
        };
        for event in &*events {
            // A clone, as woken tasks may do anything. An event of a closed socket may reach another one,
            // whose operation then just blocks.
            let readiness = self.sockets.borrow().get(event.data.u64() as usize).map(Rc::clone);
            if let Some(readiness) = readiness {
                readiness.notify(event.flags);
            }
        }
        events.len()
    }
}

/// The maximum number of sockets per poll.
pub(crate) const MAX_EVENTS: usize = 64;

impl SocketReadiness {
    #[inline]
    fn notify(&self, flags: EventFlags) {
        let is_broken = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        let has_ended = is_broken || flags.contains(EventFlags::RDHUP);
        let mut state = self.state.get();
        if has_ended || flags.contains(EventFlags::IN) {
            state |= IoDirection::Read as u8 | if has_ended { ENDED } else { 0 };
            self.state.set(state);
            if let Some(waker) = self.reader.take() {
                waker.wake();
            }
        }
        if is_broken || flags.contains(EventFlags::OUT) {
            self.state.set(state | IoDirection::Write as u8);
            if let Some(waker) = self.writer.take() {
                waker.wake();
            }
        }
    }
}

impl ReactorSlot {
    /// Returns the reactor.
    pub(crate) fn readiness(&self) -> &Rc<Reactor> {
        &self.reactor
    }

    /// Returns `true` if the socket may be ready.
    #[inline]
    pub(crate) fn is_ready(&self, direction: IoDirection) -> bool {
        self.state.state.get() & direction as u8 != 0
    }

    /// Records that an operation would block, or that all available bytes were read.
    #[inline]
    pub(crate) fn clear_ready(&self, direction: IoDirection) {
        let state = self.state.state.get();
        // The kernel does not report the end a second time.
        if direction == IoDirection::Write || state & ENDED == 0 {
            self.state.state.set(state & !(direction as u8));
        }
    }

    /// Records that an operation would block, even after the end was reported.
    #[cold]
    pub(crate) fn mark_blocked(&self, direction: IoDirection) {
        self.state.state.set(self.state.state.get() & !(direction as u8));
    }

    /// Registers the task to be woken once when the socket is ready; only the last task that asks. `socket`
    /// is the slot's socket.
    ///
    /// # Errors
    /// The system registers no more.
    #[inline]
    pub(crate) fn register_waker(
        &self,
        direction: IoDirection,
        cx: &Context<'_>,
        socket: &impl AsFd,
    ) -> io::Result<()> {
        if !self.is_registered() {
            self.register(socket)?;
        }
        let waker_cell = if direction == IoDirection::Read { &self.state.reader } else { &self.state.writer };
        waker_cell.set(Some(cx.waker().clone()));
        Ok(())
    }

    /// Returns `true` if the socket is registered with the kernel.
    #[inline]
    pub(crate) fn is_registered(&self) -> bool {
        self.state.state.get() & REGISTERED != 0
    }

    /// Marks the socket as ready, as its readiness is unknown and an operation has to be tried.
    pub(crate) fn assume_ready(&self, direction: IoDirection) {
        self.state.state.set(self.state.state.get() | direction as u8);
    }

    /// Registers the socket; the kernel reports its readiness at once.
    #[cold]
    fn register(&self, socket: &impl AsFd) -> io::Result<()> {
        let sockets = &self.reactor.sockets;
        let key = sockets.borrow_mut().insert_with(|_| Rc::clone(&self.state));
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        if let Err(error) = epoll::add(&self.reactor.epoll, socket, EventData::new_u64(key as u64), flags) {
            sockets.borrow_mut().remove(key);
            return Err(error.into());
        }
        self.key.set(key);
        self.state.state.set(self.state.state.get() | REGISTERED);
        Ok(())
    }

    /// Deregisters the socket; to be called before it is closed. The kernel does so only when no process has
    /// it open, and another process may hold it. Older kernels also take a system-wide lock for that.
    pub(crate) fn deregister(&self, socket: &impl AsFd) {
        if self.is_registered() {
            // It is registered.
            let _ = epoll::delete(&self.reactor.epoll, socket);
            self.reactor.sockets.borrow_mut().remove(self.key.get());
        }
    }
}

impl AsRawFd for Reactor {
    fn as_raw_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }
}

/// The wake-up by tokio when there are events.
pub(crate) struct ReactorWakeup(AsyncFd<Rc<Reactor>>);

impl ReactorWakeup {
    /// # Errors
    /// The system watches no more.
    pub(crate) fn new(readiness: Rc<Reactor>) -> io::Result<Self> {
        #[expect(
            deprecated,
            reason = "the safe way is deprecated for types that may close early; what this holds does not"
        )]
        let epoll = AsyncFd::with_interest(readiness, Interest::READABLE)?;
        Ok(Self(epoll))
    }

    /// Returns `true` if tokio has reported events since the last call. The task is woken when it does so
    /// again.
    pub(crate) fn take_event(&self, cx: &mut Context<'_>) -> bool {
        let mut was_notified = false;
        while let Poll::Ready(Ok(mut guard)) = self.0.poll_read_ready(cx) {
            guard.clear_ready();
            was_notified = true;
        }
        was_notified
    }

    /// Polls as [`Reactor::poll_events`] does.
    pub(crate) fn poll_events(&self) -> usize {
        self.0.get_ref().poll_events()
    }
}
