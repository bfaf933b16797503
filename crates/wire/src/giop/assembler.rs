//! Reassembly of fragmented messages.
//!
//! Since 1.2 a fragment carries the ID of its request, so several messages may be in progress at once; in 1.1
//! one follows the other. The assembler limits the messages and bytes in progress, and rejects a peer that
//! begins more.

use std::borrow::Cow;

use super::cdr::CdrWriter;
use super::message::first_id;
use super::{GiopError, GiopHeader, GiopVersion, HEADER_LEN, MessageType};

/// The limits for one direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AssemblyLimits {
    /// The maximum number of incomplete messages.
    pub messages: usize,
    /// The maximum number of their bytes.
    pub bytes: usize,
}

/// Reassembles the fragments of one direction of a connection.
#[derive(Debug)]
pub struct FragmentAssembler {
    limits: AssemblyLimits,
    partial: Vec<PartialMessage>,
    bytes: usize,
}

/// The received bytes of an incomplete message.
#[derive(Debug)]
struct PartialMessage {
    /// The request's ID; `None` before 1.2.
    id: Option<u32>,
    header: GiopHeader,
    bytes: Vec<u8>,
}

impl FragmentAssembler {
    /// Creates an assembler without incomplete messages.
    pub fn new(limits: AssemblyLimits) -> Self {
        Self { limits, partial: Vec::new(), bytes: 0 }
    }

    /// Takes a whole message as [`super::next_message`] returned it. Returns it if it is complete by itself.
    /// If it is the last fragment of a message, returns that message as if it had not been fragmented.
    /// Returns `None` if more must follow.
    ///
    /// # Errors
    /// A fragment continues no message, a message begins while another with the same ID is in progress, or a
    /// limit is reached. The connection cannot be used any further.
    pub fn accept<'m>(&mut self, message: &'m [u8]) -> Result<Option<Cow<'m, [u8]>>, GiopError> {
        let header = GiopHeader::parse(message)?.ok_or(GiopError::Truncated)?;
        if header.kind == MessageType::CancelRequest {
            self.discard(first_id(&header, message)?);
        }
        if header.kind == MessageType::Fragment {
            return self.append_fragment(&header, message);
        }
        let is_fragmented = self.partial.first().is_some_and(|partial| partial.id.is_none());
        let control = matches!(
            header.kind,
            MessageType::CancelRequest | MessageType::CloseConnection | MessageType::MessageError
        );
        if is_fragmented && !control {
            return Err(GiopError::Malformed("a message begins before the fragments of the last one end"));
        }
        if !header.more_fragments {
            return Ok(Some(Cow::Borrowed(message)));
        }
        self.begin(header, message).map(|()| None)
    }

    /// Discards the fragments of a request's message.
    pub fn discard(&mut self, id: u32) {
        if let Some(index) = self.partial.iter().position(|partial| partial.id == Some(id)) {
            self.bytes -= self.partial.swap_remove(index).bytes.len();
        }
    }

    /// Returns the number of bytes of incomplete messages.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of incomplete messages.
    pub fn len(&self) -> usize {
        self.partial.len()
    }

    /// Returns `true` if no message is in progress.
    pub fn is_empty(&self) -> bool {
        self.partial.is_empty()
    }

    fn begin(&mut self, header: GiopHeader, message: &[u8]) -> Result<(), GiopError> {
        let id = if header.version == GiopVersion::V1_2 { Some(first_id(&header, message)?) } else { None };
        if self.partial.iter().any(|partial| partial.id == id) {
            return Err(GiopError::Malformed(
                "a message begins while another of the same request is under way",
            ));
        }
        if self.partial.len() >= self.limits.messages {
            return Err(GiopError::Malformed("more messages come in fragments at once than allowed"));
        }
        self.count_bytes(message.len())?;
        self.partial.push(PartialMessage { id, header, bytes: message.to_vec() });
        Ok(())
    }

    fn append_fragment<'m>(
        &mut self,
        header: &GiopHeader,
        message: &'m [u8],
    ) -> Result<Option<Cow<'m, [u8]>>, GiopError> {
        let (id, data) = match header.version {
            GiopVersion::V1_2 => (Some(first_id(header, message)?), &message[HEADER_LEN + 4..]),
            _ => (None, &message[HEADER_LEN..]),
        };
        let index = self.partial.iter().position(|partial| partial.id == id);
        let index = index.ok_or(GiopError::Malformed("a fragment continues no message"))?;
        self.count_bytes(data.len())?;
        let partial = &mut self.partial[index];
        if (partial.header.version, partial.header.order) != (header.version, header.order) {
            return Err(GiopError::Malformed("a fragment is not of its message's version and byte order"));
        }
        partial.bytes.extend_from_slice(data);
        if header.more_fragments {
            return Ok(None);
        }
        let PartialMessage { header, mut bytes, .. } = self.partial.swap_remove(index);
        self.bytes -= bytes.len();
        let size = u32::try_from(bytes.len() - HEADER_LEN)
            .map_err(|_| GiopError::Malformed("a message in fragments is longer than 4 GiB"))?;
        let mut header_bytes = Vec::with_capacity(HEADER_LEN);
        GiopHeader { more_fragments: false, size, ..header }.write(&mut header_bytes);
        bytes[..HEADER_LEN].copy_from_slice(&header_bytes);
        Ok(Some(Cow::Owned(bytes)))
    }

    fn count_bytes(&mut self, added: usize) -> Result<(), GiopError> {
        let bytes = self.bytes.saturating_add(added);
        if bytes > self.limits.bytes {
            return Err(GiopError::Malformed("messages in fragments hold more bytes than allowed"));
        }
        self.bytes = bytes;
        Ok(())
    }
}

/// Appends a message in fragments of at most `most` bytes each, as a peer with small buffers sends it. The
/// message stays whole if it fits, or if its version has no fragments. The length of each fragment but the
/// last is a multiple of 8.
///
/// # Errors
/// The input is not a message.
pub fn split_fragments(message: &[u8], max_len: usize, out: &mut Vec<u8>) -> Result<(), GiopError> {
    let header = GiopHeader::parse(message)?.ok_or(GiopError::Truncated)?;
    let max_len = max_len.max(64) & !7;
    let can_fragment = match header.version {
        GiopVersion::V1_0 => false,
        GiopVersion::V1_1 => matches!(header.kind, MessageType::Request | MessageType::Reply),
        GiopVersion::V1_2 => !matches!(
            header.kind,
            MessageType::CancelRequest | MessageType::CloseConnection | MessageType::MessageError
        ),
    };
    if !can_fragment || message.len() <= max_len {
        out.extend_from_slice(message);
        return Ok(());
    }
    let id = if header.version == GiopVersion::V1_2 { Some(first_id(&header, message)?) } else { None };
    let (first, mut rest) = message.split_at(max_len);
    GiopHeader { more_fragments: true, size: (max_len - HEADER_LEN) as u32, ..header }.write(out);
    out.extend_from_slice(&first[HEADER_LEN..]);
    let head_len = HEADER_LEN + if id.is_some() { 4 } else { 0 };
    while !rest.is_empty() {
        let (data, remaining) = rest.split_at(rest.len().min(max_len - head_len));
        let size = (head_len - HEADER_LEN + data.len()) as u32;
        GiopHeader { kind: MessageType::Fragment, more_fragments: !remaining.is_empty(), size, ..header }
            .write(out);
        if let Some(id) = id {
            let base = out.len();
            CdrWriter::with_base(out, header.order, base).u32(id);
        }
        out.extend_from_slice(data);
        rest = remaining;
    }
    Ok(())
}
