//! Reassembles whole messages, also from fragments, from the bytes of a connection.

use std::borrow::Cow;
use std::task::{Context, Poll};

use plimsoll_wire::giop::{
    AssemblyLimits, FragmentAssembler, GiopError, MessageType, NextMessage, next_message,
};

use super::write_queue::WriteQueue;
use crate::runtime::memory::MemoryReservation;
use crate::upstream::thread_context::ThreadContext;

/// The memory reserved at once for the rest of a message; more only as it arrives.
const RESERVE_STEP: usize = 64 * 1024;

/// The maximum number of a connection's messages in fragments at the same time.
const MAX_FRAGMENTED: usize = 64;

/// The reading side of a connection.
pub(super) struct MessageReassembler {
    /// Received bytes, which are unparsed from `at` on.
    unread: Vec<u8>,
    at: usize,
    /// On the heap: few connections receive a fragment.
    assembler: Option<Box<FragmentAssembler>>,
    /// The size of the last first fragment.
    last_fragment_len: usize,
    /// The maximum size of a message in bytes, with all its fragments.
    max_message: usize,
    memory_reservation: MemoryReservation,
    watched: bool,
}

/// The result of reading.
pub(super) enum ReadOutcome {
    /// One message.
    Message(WholeMessage),
    /// The peer has closed, or the connection is broken.
    Closed,
    /// The bytes are not GIOP, or the message is too large.
    Invalid(GiopError),
    /// The memory budget is used up.
    OutOfMemory,
}

/// A whole message.
pub(super) struct WholeMessage {
    /// The message with its header.
    pub(super) bytes: Vec<u8>,
    /// For a fragmented message, the size of the first fragment.
    pub(super) first_fragment_len: Option<usize>,
}

impl MessageReassembler {
    /// Creates the reading side. `unread` are bytes that were already read from the connection.
    pub(super) fn new(unread: Vec<u8>, max_message: usize) -> Self {
        Self {
            unread,
            at: 0,
            assembler: None,
            last_fragment_len: 0,
            max_message,
            memory_reservation: MemoryReservation::default(),
            watched: false,
        }
    }

    /// Returns the bytes of incomplete messages.
    pub(super) fn buffered_len(&self) -> usize {
        let pieces = self.assembler.as_ref().map_or(0, |assembler| assembler.bytes());
        self.unread.len() - self.at + pieces
    }

    /// Returns `true` if a part of a message has arrived.
    pub(super) fn has_partial_message(&self) -> bool {
        self.at < self.unread.len() || self.assembler.is_some()
    }

    /// Returns the next message. Reads no further than required.
    pub(super) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        core: &ThreadContext,
        outbox: &WriteQueue,
    ) -> Poll<ReadOutcome> {
        loop {
            match self.take_message(core) {
                Ok(Some(whole)) => return Poll::Ready(ReadOutcome::Message(whole)),
                Ok(None) => {}
                Err(bad) => return Poll::Ready(ReadOutcome::Invalid(bad)),
            }
            let came =
                core.with_buffers(|buffer, _| match outbox.socket.poll_recv(cx, buffer, &mut self.watched) {
                    Poll::Ready(Ok(0) | Err(_)) => Poll::Ready(Some(ReadOutcome::Closed)),
                    Poll::Ready(Ok(came)) => {
                        Poll::Ready((!self.keep(core, &buffer[..came])).then_some(ReadOutcome::OutOfMemory))
                    }
                    Poll::Pending => Poll::Pending,
                });
            match came {
                Poll::Ready(None) => {}
                Poll::Ready(Some(came)) => return Poll::Ready(came),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Keeps received bytes; returns `false` if there is no memory for them.
    fn keep(&mut self, core: &ThreadContext, bytes: &[u8]) -> bool {
        // Grows by a quarter at a time, and by exactly that: the capacity is drawn from the budget.
        let lacks = (self.unread.len() + bytes.len()).saturating_sub(self.unread.capacity());
        if lacks > 0 && self.unread.try_reserve_exact(bytes.len().max(self.unread.len() / 4)).is_err() {
            return false;
        }
        self.unread.extend_from_slice(bytes);
        let pieces = self.assembler.as_ref().map_or(0, |assembler| assembler.bytes());
        self.memory_reservation.set(&core.limits.memory, self.unread.capacity() + pieces)
    }

    /// Takes the next message from the received bytes.
    fn take_message(&mut self, core: &ThreadContext) -> Result<Option<WholeMessage>, GiopError> {
        loop {
            let rest = &self.unread[self.at..];
            let (header, len) = match next_message(rest, self.max_message)? {
                NextMessage::Whole { header, len } => (header, len),
                NextMessage::Partial { missing, .. } => {
                    self.tidy();
                    // A peer may announce many bytes and send none. Without memory for them, they are
                    // rejected on arrival.
                    let ahead = if self.unread.is_empty() { 0 } else { missing.min(RESERVE_STEP) };
                    let _ = self.unread.try_reserve_exact(ahead);
                    return Ok(None);
                }
            };
            let message = &rest[..len];
            if !header.more_fragments && header.kind != MessageType::Fragment && self.assembler.is_none() {
                let mut bytes = core.take_vector();
                bytes.extend_from_slice(message);
                self.at += len;
                return Ok(Some(WholeMessage { bytes, first_fragment_len: None }));
            }
            let limits = AssemblyLimits { messages: MAX_FRAGMENTED, bytes: self.max_message };
            let assembler = self.assembler.get_or_insert_with(|| Box::new(FragmentAssembler::new(limits)));
            let whole = assembler.accept(message)?.map(Cow::into_owned);
            if assembler.is_empty() {
                self.assembler = None;
            }
            if header.more_fragments && header.kind != MessageType::Fragment {
                self.last_fragment_len = len;
            }
            self.at += len;
            if let Some(bytes) = whole {
                let piece = (header.kind == MessageType::Fragment).then_some(self.last_fragment_len);
                return Ok(Some(WholeMessage { bytes, first_fragment_len: piece }));
            }
        }
    }

    /// Frees the bytes that were parsed.
    fn tidy(&mut self) {
        if self.at == self.unread.len() {
            // An idle connection owns no buffer.
            self.unread = Vec::new();
            if self.assembler.is_none() {
                self.memory_reservation.clear();
            }
        } else if self.at > 0 {
            self.unread.drain(..self.at);
        }
        self.at = 0;
    }
}
