//! Which sockets of a thread are ready, asked of an epoll of the thread's own.
//!
//! tokio's costs some 250 instructions each time a socket has to wait: a lock and a waker to register, a list of wakers to wake, words
//! that other threads may write. Here all of a thread's sockets belong to that thread, and their state is cells. tokio sees one
//! descriptor, the epoll, and wakes whoever drives the thread's sessions when there is anything in it (`sessions`). While much is in it
//! it is asked again and again before tokio is, whose turn costs more than several of these.
//!
//! A socket is told of once for each time that something has come or went (edges): it is ready until it is found not to be.

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

/// What is known of one socket.
#[derive(Default)]
pub(crate) struct Watch {
    state: Cell<u8>,
    reader: Cell<Option<Waker>>,
    writer: Cell<Option<Waker>>,
}

/// A socket's place among those of its thread.
pub(crate) struct Place {
    readiness: Rc<Readiness>,
    watch: Rc<Watch>,
    /// Where it is found, once it is watched.
    key: Cell<usize>,
}

/// What a socket may be ready for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Way {
    Read = 1,
    Write = 2,
}

/// Of a watch: nothing more will come, whatever was found since.
const ENDED: u8 = 4;
/// Of a watch: the kernel tells of the socket.
const WATCHED: u8 = 8;

impl Readiness {
    /// # Errors
    /// The system has no more descriptors.
    pub(crate) fn new() -> io::Result<Rc<Self>> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Rc::new(Self { epoll, watches: RefCell::default() }))
    }

    /// A place for a socket, which is taken to be ready for `ways` until it is found not to be. It is watched once it has to wait: many a
    /// connection never does, and telling the kernel of one costs a call, and a lock that all nested epolls of the system share.
    pub(crate) fn place(self: &Rc<Self>, ways: &[Way]) -> Place {
        let watch = Rc::new(Watch::default());
        watch.state.set(ways.iter().fold(0, |state, way| state | *way as u8));
        Place { readiness: Rc::clone(self), watch, key: Cell::new(0) }
    }

    /// Looks which sockets are ready, and wakes those that wait for them; how many there are, [`MOST`] at most.
    pub(crate) fn look(&self) -> usize {
        let mut space = [const { MaybeUninit::<Event>::uninit() }; MOST];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // If a signal came they are still there next time, which is to be soon.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut space[..], Some(&now)) else { return MOST };
        for event in &*events {
            // Held by itself: nobody knows what those do that are woken. What was told of a socket that is gone may reach another one, which
            // finds that nothing has come.
            let watch = self.watches.borrow().get(event.data.u64() as usize).map(Rc::clone);
            if let Some(watch) = watch {
                watch.tell(event.flags);
            }
        }
        events.len()
    }
}

/// Sockets that are looked at at once.
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
    /// Where it is.
    pub(crate) fn readiness(&self) -> &Rc<Readiness> {
        &self.readiness
    }

    /// May it be ready?
    #[inline]
    pub(crate) fn is_ready(&self, way: Way) -> bool {
        self.watch.state.get() & way as u8 != 0
    }

    /// It was found not to be ready, or what was there has been taken.
    #[inline]
    pub(crate) fn exhausted(&self, way: Way) {
        let state = self.watch.state.get();
        // That there is no more to come is not told twice.
        if way == Way::Write || state & ENDED == 0 {
            self.watch.state.set(state & !(way as u8));
        }
    }

    /// It was found not to be ready, whatever was told.
    #[cold]
    pub(crate) fn blocked(&self, way: Way) {
        self.watch.state.set(self.watch.state.get() & !(way as u8));
    }

    /// Has the task woken when it is ready: the last that asks, once. `socket` is whose place it is.
    ///
    /// # Errors
    /// The system watches no more.
    #[inline]
    pub(crate) fn wait(&self, way: Way, cx: &Context<'_>, socket: &impl AsFd) -> io::Result<()> {
        if !self.is_watched() {
            self.begin(socket)?;
        }
        let place = if way == Way::Read { &self.watch.reader } else { &self.watch.writer };
        place.set(Some(cx.waker().clone()));
        Ok(())
    }

    /// Does the kernel tell of it?
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.watch.state.get() & WATCHED != 0
    }

    /// Nobody knows whether it is ready: it is tried.
    pub(crate) fn suppose(&self, way: Way) {
        self.watch.state.set(self.watch.state.get() | way as u8);
    }

    /// The kernel tells at once what it is ready for.
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

    /// To be called before the socket is closed: by itself the kernel forgets it only when nobody has it open, and it may be in the hands
    /// of another process; and older kernels take a lock of the whole system for that.
    pub(crate) fn leave(&self, socket: &impl AsFd) {
        if self.is_watched() {
            // It is watched.
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

/// What tokio rings when there is something.
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

    /// Did tokio say since it was last asked that there is something? The task is woken when it says so again.
    pub(crate) fn rung(&self, cx: &mut Context<'_>) -> bool {
        let mut rung = false;
        while let Poll::Ready(Ok(mut guard)) = self.0.poll_read_ready(cx) {
            guard.clear_ready();
            rung = true;
        }
        rung
    }

    /// See [`Readiness::look`].
    pub(crate) fn look(&self) -> usize {
        self.0.get_ref().look()
    }
}
