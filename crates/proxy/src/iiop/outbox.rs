//! What is to be written to one connection, by whoever has something for it.
//!
//! Replies come from tasks that read members' connections, requests from tasks that read clients': each writes what it
//! has at once, as far as the socket takes it. What it does not take is kept here and sent by the task that reads the
//! connection ([`Outbox::poll_flush`]); whoever brings more waits until most of it is gone ([`Outbox::room`]), so that
//! one that does not read holds up those that write to it and nobody's memory.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Context, Poll, Waker, ready};

use plimsoll_wire::giop::{Header, Version, split};

use crate::readiness::Way;
use crate::socket::Socket;

/// Bytes kept above which others wait.
const MUCH: usize = 256 * 1024;

/// The writing side of a connection.
pub(super) struct Outbox {
    pub(super) socket: Socket,
    kept: RefCell<Vec<u8>>,
    /// How much of `kept` was sent.
    sent: Cell<usize>,
    broken: Cell<bool>,
    /// The task that reads the connection.
    owner: RefCell<Option<Waker>>,
    waiting: RefCell<Vec<Waker>>,
}

impl Outbox {
    pub(super) fn new(socket: Socket) -> Self {
        Self {
            socket,
            kept: RefCell::default(),
            sent: Cell::new(0),
            broken: Cell::new(false),
            owner: RefCell::default(),
            waiting: RefCell::default(),
        }
    }

    /// Writes one message, behind what is kept.
    pub(super) fn push(&self, mut bytes: &[u8]) {
        if self.broken.get() {
            return;
        }
        let mut kept = self.kept.borrow_mut();
        while kept.is_empty() && !bytes.is_empty() {
            match self.socket.send(bytes) {
                Some(Ok(sent)) => bytes = &bytes[sent..],
                Some(Err(_)) => {
                    self.broken.set(true);
                    break;
                }
                None => break,
            }
        }
        kept.extend_from_slice(bytes);
        if !bytes.is_empty() {
            self.wake();
        }
    }

    /// Writes one message in fragments like those that it came in, if it did: some do not take it otherwise. Before GIOP
    /// 1.2 some do not take fragments.
    pub(super) fn push_as(&self, bytes: &[u8], piece: Option<usize>) {
        let new = matches!(Header::parse(bytes), Ok(Some(header)) if header.version == Version::V1_2);
        let mut pieces = Vec::new();
        match piece.filter(|_| new) {
            Some(piece) if split(bytes, piece, &mut pieces).is_ok() => self.push(&pieces),
            _ => self.push(bytes),
        }
    }

    /// Sends what is kept. Ready when nothing is, or with `false` when the connection is broken.
    pub(super) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<bool> {
        self.owner.borrow_mut().get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
        let mut kept = self.kept.borrow_mut();
        while !self.broken.get() && self.sent.get() < kept.len() {
            match self.socket.send(&kept[self.sent.get()..]) {
                Some(Ok(sent)) => self.sent.set(self.sent.get() + sent),
                Some(Err(_)) => self.broken.set(true),
                None => match ready!(self.socket.poll_ready(Way::Write, cx)) {
                    Ok(()) => {}
                    Err(_) => self.broken.set(true),
                },
            }
        }
        // Not kept for the next time: it may have been a large message.
        *kept = Vec::new();
        self.sent.set(0);
        drop(kept);
        self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
        Poll::Ready(!self.broken.get())
    }

    /// Resolves when there is room for more: at once unless much is kept.
    pub(super) async fn room(&self) {
        poll_fn(|cx| {
            if self.broken.get() || !self.full() {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Bytes that are kept.
    pub(super) fn kept(&self) -> usize {
        self.kept.borrow().len() - self.sent.get()
    }

    /// How many bytes of what is kept have been sent.
    pub(super) fn sent(&self) -> usize {
        self.sent.get()
    }

    /// Is so much kept that nobody should bring more?
    pub(super) fn full(&self) -> bool {
        self.kept() >= MUCH
    }

    /// Ends the connection: nothing more is written, and the task that reads it is told.
    pub(super) fn close(&self) {
        self.broken.set(true);
        self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
        self.wake();
    }

    /// Is nothing more written?
    pub(super) fn closed(&self) -> bool {
        self.broken.get()
    }

    /// Has the task that reads the connection look again.
    pub(super) fn wake(&self) {
        if let Some(owner) = &*self.owner.borrow() {
            owner.wake_by_ref();
        }
    }
}
