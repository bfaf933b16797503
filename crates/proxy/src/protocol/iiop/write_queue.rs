//! The write queue of one connection, for all tasks that write to it.
//!
//! Tasks that read members' connections write replies, and tasks that read clients' write requests. Each
//! writes its bytes at once, as far as the socket accepts them. The rest is queued here, and the task that
//! reads the connection sends it ([`WriteQueue::poll_flush`]). Writers wait until most of the queue is sent
//! ([`WriteQueue::wait_for_room`]). So a peer that does not read delays its writers and does not use up
//! memory.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Context, Poll, Waker, ready};

use plimsoll_wire::giop::{GiopHeader, GiopVersion, split_fragments};

use crate::net::socket::ReactorSocket;
use crate::runtime::reactor::IoDirection;

/// The number of queued bytes from which writers wait.
const HIGH_WATER_MARK: usize = 256 * 1024;

/// The writing side of a connection.
pub(super) struct WriteQueue {
    pub(super) socket: ReactorSocket,
    queued: RefCell<Vec<u8>>,
    /// The number of bytes of `queued` that were sent.
    sent: Cell<usize>,
    broken: Cell<bool>,
    /// The task that reads the connection.
    reader_waker: RefCell<Option<Waker>>,
    writer_wakers: RefCell<Vec<Waker>>,
}

impl WriteQueue {
    pub(super) fn new(socket: ReactorSocket) -> Self {
        Self {
            socket,
            queued: RefCell::default(),
            sent: Cell::new(0),
            broken: Cell::new(false),
            reader_waker: RefCell::default(),
            writer_wakers: RefCell::default(),
        }
    }

    /// Writes one message, after the queued bytes.
    pub(super) fn push(&self, mut bytes: &[u8]) {
        if self.broken.get() {
            return;
        }
        let mut queued = self.queued.borrow_mut();
        while queued.is_empty() && !bytes.is_empty() {
            match self.socket.send(bytes) {
                Some(Ok(sent)) => bytes = &bytes[sent..],
                Some(Err(_)) => {
                    self.broken.set(true);
                    break;
                }
                None => break,
            }
        }
        queued.extend_from_slice(bytes);
        if !bytes.is_empty() {
            self.wake_reader();
        }
    }

    /// Writes one message in fragments of the received size, if it arrived in fragments: some peers do not
    /// accept it otherwise. Before GIOP 1.2, some do not accept fragments.
    pub(super) fn push_fragmented(&self, bytes: &[u8], fragment_len: Option<usize>) {
        let supports_fragments =
            matches!(GiopHeader::parse(bytes), Ok(Some(header)) if header.version == GiopVersion::V1_2);
        let mut fragments = Vec::new();
        match fragment_len.filter(|_| supports_fragments) {
            Some(fragment_len) if split_fragments(bytes, fragment_len, &mut fragments).is_ok() => {
                self.push(&fragments)
            }
            _ => self.push(bytes),
        }
    }

    /// Sends the queued bytes. Completes when none are left, or with `false` when the connection is broken.
    pub(super) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<bool> {
        self.reader_waker.borrow_mut().get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
        let mut queued = self.queued.borrow_mut();
        while !self.broken.get() && self.sent.get() < queued.len() {
            match self.socket.send(&queued[self.sent.get()..]) {
                Some(Ok(sent)) => self.sent.set(self.sent.get() + sent),
                Some(Err(_)) => self.broken.set(true),
                None => match ready!(self.socket.poll_ready(IoDirection::Write, cx)) {
                    Ok(()) => {}
                    Err(_) => self.broken.set(true),
                },
            }
        }
        // The buffer is not reused: it may have held a large message.
        *queued = Vec::new();
        self.sent.set(0);
        drop(queued);
        self.writer_wakers.borrow_mut().drain(..).for_each(Waker::wake);
        Poll::Ready(!self.broken.get())
    }

    /// Waits for room for more: not at all unless much is queued.
    pub(super) async fn wait_for_room(&self) {
        poll_fn(|cx| {
            if self.broken.get() || !self.is_full() {
                return Poll::Ready(());
            }
            self.writer_wakers.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Returns the number of queued bytes.
    pub(super) fn queued_len(&self) -> usize {
        self.queued.borrow().len() - self.sent.get()
    }

    /// Returns the number of queued bytes that were sent.
    pub(super) fn sent_len(&self) -> usize {
        self.sent.get()
    }

    /// Returns `true` if so much is queued that writers should wait.
    pub(super) fn is_full(&self) -> bool {
        self.queued_len() >= HIGH_WATER_MARK
    }

    /// Ends the connection: nothing more is written, and the task that reads it is notified.
    pub(super) fn close(&self) {
        self.broken.set(true);
        self.writer_wakers.borrow_mut().drain(..).for_each(Waker::wake);
        self.wake_reader();
    }

    /// Returns `true` if nothing more is written.
    pub(super) fn is_closed(&self) -> bool {
        self.broken.get()
    }

    /// Wakes the task that reads the connection.
    pub(super) fn wake_reader(&self) {
        if let Some(waker) = &*self.reader_waker.borrow() {
            waker.wake_by_ref();
        }
    }
}
