//! The write queue of one connection, for all tasks that write to it.
//!
//! Tasks that read members' connections write replies, and tasks that read clients' write requests. Each
//! writes its bytes at once, as far as the socket accepts them. The rest is queued here, and the task that
//! reads the connection sends it ([`Outbox::poll_flush`]). Writers wait until most of the queue is sent
//! ([`Outbox::room`]). So a peer that does not read delays its writers and does not use up memory.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Context, Poll, Waker, ready};

use plimsoll_wire::giop::{Header, Version, split};

use crate::readiness::Way;
use crate::socket::Socket;

/// The number of queued bytes from which writers wait.
const MUCH: usize = 256 * 1024;

/// The writing side of a connection.
pub(super) struct Outbox {
    pub(super) socket: Socket,
    kept: RefCell<Vec<u8>>,
    /// The number of bytes of `kept` that were sent.
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

    /// Writes one message, after the queued bytes.
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

    /// Writes one message in fragments of the received size, if it arrived in fragments: some peers do not
    /// accept it otherwise. Before GIOP 1.2, some do not accept fragments.
    pub(super) fn push_as(&self, bytes: &[u8], piece: Option<usize>) {
        let new = matches!(Header::parse(bytes), Ok(Some(header)) if header.version == Version::V1_2);
        let mut pieces = Vec::new();
        match piece.filter(|_| new) {
            Some(piece) if split(bytes, piece, &mut pieces).is_ok() => self.push(&pieces),
            _ => self.push(bytes),
        }
    }

    /// Sends the queued bytes. Completes when none are left, or with `false` when the connection is broken.
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
        // The buffer is not reused: it may have held a large message.
        *kept = Vec::new();
        self.sent.set(0);
        drop(kept);
        self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
        Poll::Ready(!self.broken.get())
    }

    /// Waits for room for more: not at all unless much is queued.
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

    /// Returns the number of queued bytes.
    pub(super) fn kept(&self) -> usize {
        self.kept.borrow().len() - self.sent.get()
    }

    /// Returns the number of queued bytes that were sent.
    pub(super) fn sent(&self) -> usize {
        self.sent.get()
    }

    /// Returns `true` if so much is queued that writers should wait.
    pub(super) fn full(&self) -> bool {
        self.kept() >= MUCH
    }

    /// Ends the connection: nothing more is written, and the task that reads it is notified.
    pub(super) fn close(&self) {
        self.broken.set(true);
        self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
        self.wake();
    }

    /// Returns `true` if nothing more is written.
    pub(super) fn closed(&self) -> bool {
        self.broken.get()
    }

    /// Wakes the task that reads the connection.
    pub(super) fn wake(&self) {
        if let Some(owner) = &*self.owner.borrow() {
            owner.wake_by_ref();
        }
    }
}
