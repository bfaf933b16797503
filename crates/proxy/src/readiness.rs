//! A reactor: tracks the readiness of a thread's sockets with an epoll instance of the thread's own.
//!
//! tokio's reactor costs some 250 instructions each time a socket has to wait: a lock and a waker to
//! register, a list of wakers to wake, atomics shared with other threads. Here all of a thread's sockets
//! belong to that thread, and their state is in cells. tokio sees one descriptor, the epoll instance. When
//! that has events, tokio wakes the task that drives the thread's sessions (`sessions`). While there are many
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

use crate::chunks::Chunks;

/// The sockets of one thread.
pub(crate) struct Readiness {
    epoll: OwnedFd,
    watches: RefCell<Chunks<Rc<Watch>>>,
}

/// The state of one socket.
#[derive(Default)]
pub(crate) struct Watch {
    state: Cell<u8>,
    reader: Cell<Option<Waker>>,
    writer: Cell<Option<Waker>>,
}

/// A socket's slot in the reactor of its thread.
pub(crate) struct Place {
    readiness: Rc<Readiness>,
    watch: Rc<Watch>,
    /// The key in the slab, once it is registered.
    key: Cell<usize>,
}

/// The directions of readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Way {
    Read = 1,
    Write = 2,
}

/// A flag of a watch: nothing more will arrive, whatever later operations find.
const ENDED: u8 = 4;
/// A flag of a watch: the socket is registered with the kernel.
const WATCHED: u8 = 8;

impl Readiness {
    /// # Errors
    /// The system has no more descriptors.
    pub(crate) fn new() -> io::Result<Rc<Self>> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Rc::new(Self { epoll, watches: RefCell::default() }))
    }

    /// Returns a slot for a socket, which counts as ready for `ways` until an operation would block. The
    /// socket is registered when it first has to wait, as many connections never do. Registration costs a
    /// system call, and a lock that all nested epoll instances of the system share.
    pub(crate) fn place(self: &Rc<Self>, ways: &[Way]) -> Place {
        let watch = Rc::new(Watch::default());
        watch.state.set(ways.iter().fold(0, |state, way| state | *way as u8));
        Place { readiness: Rc::clone(self), watch, key: Cell::new(0) }
    }

    /// Polls for ready sockets and wakes the tasks that wait for them. Returns the number of sockets, at most
    /// [`MOST`].
    pub(crate) fn look(&self) -> usize {
        let mut space = [const { MaybeUninit::<Event>::uninit() }; MOST];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // After a signal, the events are still there at the next poll, which should be soon.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut space[..], Some(&now)) else { return MOST };
        for event in &*events {
            // A clone, as woken tasks may do anything. An event of a closed socket may reach another one,
            // whose operation then just blocks.
            let watch = self.watches.borrow().get(event.data.u64() as usize).map(Rc::clone);
            if let Some(watch) = watch {
                watch.tell(event.flags);
            }
        }
        events.len()
    }
}

/// The maximum number of sockets per poll.
pub(crate) const MOST: usize = 64;

impl Watch {
    #[inline]
    fn tell(&self, flags: EventFlags) {
        let broken = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        let ended = broken || flags.contains(EventFlags::RDHUP);
        let mut state = self.state.get();
        if ended || flags.contains(EventFlags::IN) {
            state |= Way::Read as u8 | if ended { ENDED } else { 0 };
            self.state.set(state);
            if let Some(waker) = self.reader.take() {
                waker.wake();
            }
        }
        if broken || flags.contains(EventFlags::OUT) {
            self.state.set(state | Way::Write as u8);
            if let Some(waker) = self.writer.take() {
                waker.wake();
            }
        }
    }
}

impl Place {
    /// Returns the reactor.
    pub(crate) fn readiness(&self) -> &Rc<Readiness> {
        &self.readiness
    }

    /// Returns `true` if the socket may be ready.
    #[inline]
    pub(crate) fn is_ready(&self, way: Way) -> bool {
        self.watch.state.get() & way as u8 != 0
    }

    /// Records that an operation would block, or that all available bytes were read.
    #[inline]
    pub(crate) fn exhausted(&self, way: Way) {
        let state = self.watch.state.get();
        // The kernel does not report the end a second time.
        if way == Way::Write || state & ENDED == 0 {
            self.watch.state.set(state & !(way as u8));
        }
    }

    /// Records that an operation would block, even after the end was reported.
    #[cold]
    pub(crate) fn blocked(&self, way: Way) {
        self.watch.state.set(self.watch.state.get() & !(way as u8));
    }

    /// Registers the task to be woken once when the socket is ready; only the last task that asks. `socket`
    /// is the slot's socket.
    ///
    /// # Errors
    /// The system registers no more.
    #[inline]
    pub(crate) fn wait(&self, way: Way, cx: &Context<'_>, socket: &impl AsFd) -> io::Result<()> {
        if !self.is_watched() {
            self.begin(socket)?;
        }
        let place = if way == Way::Read { &self.watch.reader } else { &self.watch.writer };
        place.set(Some(cx.waker().clone()));
        Ok(())
    }

    /// Returns `true` if the socket is registered with the kernel.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.watch.state.get() & WATCHED != 0
    }

    /// Marks the socket as ready, as its readiness is unknown and an operation has to be tried.
    pub(crate) fn suppose(&self, way: Way) {
        self.watch.state.set(self.watch.state.get() | way as u8);
    }

    /// Registers the socket; the kernel reports its readiness at once.
    #[cold]
    fn begin(&self, socket: &impl AsFd) -> io::Result<()> {
        let watches = &self.readiness.watches;
        let key = watches.borrow_mut().insert_with(|_| Rc::clone(&self.watch));
        let edges = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        if let Err(error) = epoll::add(&self.readiness.epoll, socket, EventData::new_u64(key as u64), edges) {
            watches.borrow_mut().remove(key);
            return Err(error.into());
        }
        self.key.set(key);
        self.watch.state.set(self.watch.state.get() | WATCHED);
        Ok(())
    }

    /// Deregisters the socket; to be called before it is closed. The kernel does so only when no process has
    /// it open, and another process may hold it. Older kernels also take a system-wide lock for that.
    pub(crate) fn leave(&self, socket: &impl AsFd) {
        if self.is_watched() {
            // It is registered.
            let _ = epoll::delete(&self.readiness.epoll, socket);
            self.readiness.watches.borrow_mut().remove(self.key.get());
        }
    }
}

impl AsRawFd for Readiness {
    fn as_raw_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }
}

/// The wake-up by tokio when there are events.
pub(crate) struct Bell(AsyncFd<Rc<Readiness>>);

impl Bell {
    /// # Errors
    /// The system watches no more.
    pub(crate) fn new(readiness: Rc<Readiness>) -> io::Result<Self> {
        #[expect(
            deprecated,
            reason = "the safe way is deprecated for types that may close early; what this holds does not"
        )]
        let epoll = AsyncFd::with_interest(readiness, Interest::READABLE)?;
        Ok(Self(epoll))
    }

    /// Returns `true` if tokio has reported events since the last call. The task is woken when it does so
    /// again.
    pub(crate) fn rung(&self, cx: &mut Context<'_>) -> bool {
        let mut rung = false;
        while let Poll::Ready(Ok(mut guard)) = self.0.poll_read_ready(cx) {
            guard.clear_ready();
            rung = true;
        }
        rung
    }

    /// Polls as [`Readiness::look`] does.
    pub(crate) fn look(&self) -> usize {
        self.0.get_ref().look()
    }
}
