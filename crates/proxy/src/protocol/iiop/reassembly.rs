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
    position: usize,
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
            position: 0,
            assembler: None,
            last_fragment_len: 0,
            max_message,
            memory_reservation: MemoryReservation::default(),
            watched: false,
        }
    }

    /// Returns the bytes of incomplete messages.
    pub(super) fn buffered_len(&self) -> usize {
        let partial_bytes = self.assembler.as_ref().map_or(0, |assembler| assembler.bytes());
        self.unread.len() - self.position + partial_bytes
    }

    /// Returns `true` if a part of a message has arrived.
    pub(super) fn has_partial_message(&self) -> bool {
        self.position < self.unread.len() || self.assembler.is_some()
    }

    /// Returns the next message. Reads no further than required.
    pub(super) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        core: &ThreadContext,
        write_queue: &WriteQueue,
    ) -> Poll<ReadOutcome> {
        loop {
            match self.take_message(core) {
                Ok(Some(message)) => return Poll::Ready(ReadOutcome::Message(message)),
                Ok(None) => {}
                Err(error) => return Poll::Ready(ReadOutcome::Invalid(error)),
            }
            let outcome = core.with_buffers(|buffer, _| {
                match write_queue.socket.poll_recv(cx, buffer, &mut self.watched) {
                    Poll::Ready(Ok(0) | Err(_)) => Poll::Ready(Some(ReadOutcome::Closed)),
                    Poll::Ready(Ok(received)) => Poll::Ready(
                        (!self.append(core, &buffer[..received])).then_some(ReadOutcome::OutOfMemory),
                    ),
                    Poll::Pending => Poll::Pending,
                }
            });
            match outcome {
                Poll::Ready(None) => {}
                Poll::Ready(Some(outcome)) => return Poll::Ready(outcome),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Keeps received bytes; returns `false` if there is no memory for them.
    fn append(&mut self, core: &ThreadContext, bytes: &[u8]) -> bool {
        // Grows by a quarter at a time, and by exactly that: the capacity is drawn from the budget.
        let missing_capacity = (self.unread.len() + bytes.len()).saturating_sub(self.unread.capacity());
        if missing_capacity > 0
            && self.unread.try_reserve_exact(bytes.len().max(self.unread.len() / 4)).is_err()
        {
            return false;
        }
        self.unread.extend_from_slice(bytes);
        let partial_bytes = self.assembler.as_ref().map_or(0, |assembler| assembler.bytes());
        self.memory_reservation.set(&core.limits.memory, self.unread.capacity() + partial_bytes)
    }

    /// Takes the next message from the received bytes.
    fn take_message(&mut self, core: &ThreadContext) -> Result<Option<WholeMessage>, GiopError> {
        loop {
            let rest = &self.unread[self.position..];
            let (header, len) = match next_message(rest, self.max_message)? {
                NextMessage::Whole { header, len } => (header, len),
                NextMessage::Partial { missing, .. } => {
                    self.compact();
                    // A peer may announce many bytes and send none. Without memory for them, they are
                    // rejected on arrival.
                    let reserve = if self.unread.is_empty() { 0 } else { missing.min(RESERVE_STEP) };
                    let _ = self.unread.try_reserve_exact(reserve);
                    return Ok(None);
                }
            };
            let message = &rest[..len];
            if !header.more_fragments && header.kind != MessageType::Fragment && self.assembler.is_none() {
                let mut bytes = core.take_vector();
                bytes.extend_from_slice(message);
                self.position += len;
                return Ok(Some(WholeMessage { bytes, first_fragment_len: None }));
            }
            let limits = AssemblyLimits { messages: MAX_FRAGMENTED, bytes: self.max_message };
            let assembler = self.assembler.get_or_insert_with(|| Box::new(FragmentAssembler::new(limits)));
            let assembled = assembler.accept(message)?.map(Cow::into_owned);
            if assembler.is_empty() {
                self.assembler = None;
            }
            if header.more_fragments && header.kind != MessageType::Fragment {
                self.last_fragment_len = len;
            }
            self.position += len;
            if let Some(bytes) = assembled {
                let fragment_len = (header.kind == MessageType::Fragment).then_some(self.last_fragment_len);
                return Ok(Some(WholeMessage { bytes, first_fragment_len: fragment_len }));
            }
        }
    }

    /// Frees the bytes that were parsed.
    fn compact(&mut self) {
        if self.position == self.unread.len() {
            // An idle connection owns no buffer.
            self.unread = Vec::new();
            if self.assembler.is_none() {
                self.memory_reservation.clear();
            }
        } else if self.position > 0 {
            self.unread.drain(..self.position);
        }
        self.position = 0;
    }
}
