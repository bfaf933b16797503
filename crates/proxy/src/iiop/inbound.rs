//! Reassembles whole messages, also from fragments, from the bytes of a connection.

use std::borrow::Cow;
use std::task::{Context, Poll};

use plimsoll_wire::giop::{Assembler, BadGiop, Cut, Kind, Limits, cut};

use super::outbox::Outbox;
use crate::core::Core;
use crate::memory::Kept;

/// The memory reserved at once for the rest of a message; more only as it arrives.
const AHEAD: usize = 64 * 1024;

/// The maximum number of a connection's messages in fragments at the same time.
const PIECES: usize = 64;

/// The reading side of a connection.
pub(super) struct Inbound {
    /// Received bytes, which are unparsed from `at` on.
    unread: Vec<u8>,
    at: usize,
    /// On the heap: few connections receive a fragment.
    assembler: Option<Box<Assembler>>,
    /// The size of the last first fragment.
    piece: usize,
    /// The maximum size of a message in bytes, with all its fragments.
    most: usize,
    kept: Kept,
    watched: bool,
}

/// The result of reading.
pub(super) enum Came {
    /// One message.
    Message(Whole),
    /// The peer has closed, or the connection is broken.
    End,
    /// The bytes are not GIOP, or the message is too large.
    Bad(BadGiop),
    /// The memory budget is used up.
    Full,
}

/// A whole message.
pub(super) struct Whole {
    /// The message with its header.
    pub(super) bytes: Vec<u8>,
    /// For a fragmented message, the size of the first fragment.
    pub(super) piece: Option<usize>,
}

impl Inbound {
    /// Creates the reading side. `unread` are bytes that were already read from the connection.
    pub(super) fn new(unread: Vec<u8>, most: usize) -> Self {
        Self { unread, at: 0, assembler: None, piece: 0, most, kept: Kept::default(), watched: false }
    }

    /// Returns the bytes of incomplete messages.
    pub(super) fn held(&self) -> usize {
        let pieces = self.assembler.as_ref().map_or(0, |assembler| assembler.bytes());
        self.unread.len() - self.at + pieces
    }

    /// Returns `true` if a part of a message has arrived.
    pub(super) fn begun(&self) -> bool {
        self.at < self.unread.len() || self.assembler.is_some()
    }

    /// Returns the next message. Reads no further than required.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>, core: &Core, outbox: &Outbox) -> Poll<Came> {
        loop {
            match self.take(core) {
                Ok(Some(whole)) => return Poll::Ready(Came::Message(whole)),
                Ok(None) => {}
                Err(bad) => return Poll::Ready(Came::Bad(bad)),
            }
            let came = core.lend(|buffer, _| match outbox.socket.poll_recv(cx, buffer, &mut self.watched) {
                Poll::Ready(Ok(0) | Err(_)) => Poll::Ready(Some(Came::End)),
                Poll::Ready(Ok(came)) => {
                    Poll::Ready((!self.keep(core, &buffer[..came])).then_some(Came::Full))
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
    fn keep(&mut self, core: &Core, bytes: &[u8]) -> bool {
        // Grows by a quarter at a time, and by exactly that: the capacity is drawn from the budget.
        let lacks = (self.unread.len() + bytes.len()).saturating_sub(self.unread.capacity());
        if lacks > 0 && self.unread.try_reserve_exact(bytes.len().max(self.unread.len() / 4)).is_err() {
            return false;
        }
        self.unread.extend_from_slice(bytes);
        let pieces = self.assembler.as_ref().map_or(0, |assembler| assembler.bytes());
        self.kept.set(&core.census.memory, self.unread.capacity() + pieces)
    }

    /// Takes the next message from the received bytes.
    fn take(&mut self, core: &Core) -> Result<Option<Whole>, BadGiop> {
        loop {
            let rest = &self.unread[self.at..];
            let (header, len) = match cut(rest, self.most)? {
                Cut::Whole { header, len } => (header, len),
                Cut::Partial { missing, .. } => {
                    self.tidy();
                    // A peer may announce many bytes and send none. Without memory for them, they are
                    // rejected on arrival.
                    let ahead = if self.unread.is_empty() { 0 } else { missing.min(AHEAD) };
                    let _ = self.unread.try_reserve_exact(ahead);
                    return Ok(None);
                }
            };
            let message = &rest[..len];
            if !header.more && header.kind != Kind::Fragment && self.assembler.is_none() {
                let mut bytes = core.vector();
                bytes.extend_from_slice(message);
                self.at += len;
                return Ok(Some(Whole { bytes, piece: None }));
            }
            let limits = Limits { messages: PIECES, bytes: self.most };
            let assembler = self.assembler.get_or_insert_with(|| Box::new(Assembler::new(limits)));
            let whole = assembler.take(message)?.map(Cow::into_owned);
            if assembler.is_empty() {
                self.assembler = None;
            }
            if header.more && header.kind != Kind::Fragment {
                self.piece = len;
            }
            self.at += len;
            if let Some(bytes) = whole {
                let piece = (header.kind == Kind::Fragment).then_some(self.piece);
                return Ok(Some(Whole { bytes, piece }));
            }
        }
    }

    /// Frees the bytes that were parsed.
    fn tidy(&mut self) {
        if self.at == self.unread.len() {
            // An idle connection owns no buffer.
            self.unread = Vec::new();
            if self.assembler.is_none() {
                self.kept.clear();
            }
        } else if self.at > 0 {
            self.unread.drain(..self.at);
        }
        self.at = 0;
    }
}
