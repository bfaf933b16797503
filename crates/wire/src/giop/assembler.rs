//! Reassembly of fragmented messages.
//!
//! Since 1.2 a fragment carries the ID of its request, so several messages may be in progress at once; in 1.1
//! one follows the other. The assembler limits the messages and bytes in progress, and rejects a peer that
//! begins more.

use std::borrow::Cow;

use super::cdr::Writer;
use super::message::first_id;
use super::{BadGiop, HEADER, Header, Kind, Version};

/// The limits for one direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of incomplete messages.
    pub messages: usize,
    /// The maximum number of their bytes.
    pub bytes: usize,
}

/// Reassembles the fragments of one direction of a connection.
#[derive(Debug)]
pub struct Assembler {
    limits: Limits,
    open: Vec<Open>,
    bytes: usize,
}

/// The received bytes of an incomplete message.
#[derive(Debug)]
struct Open {
    /// The request's ID; `None` before 1.2.
    id: Option<u32>,
    header: Header,
    bytes: Vec<u8>,
}

impl Assembler {
    /// Creates an assembler without incomplete messages.
    pub fn new(limits: Limits) -> Self {
        Self { limits, open: Vec::new(), bytes: 0 }
    }

    /// Takes a whole message as [`super::cut`] returned it. Returns it if it is complete by itself. If it is
    /// the last fragment of a message, returns that message as if it had not been fragmented. Returns `None`
    /// if more must follow.
    ///
    /// # Errors
    /// A fragment continues no message, a message begins while another with the same ID is in progress, or a
    /// limit is reached. The connection cannot be used any further.
    pub fn take<'m>(&mut self, message: &'m [u8]) -> Result<Option<Cow<'m, [u8]>>, BadGiop> {
        let header = Header::parse(message)?.ok_or(BadGiop::Truncated)?;
        if header.kind == Kind::CancelRequest {
            self.forget(first_id(&header, message)?);
        }
        if header.kind == Kind::Fragment {
            return self.go_on(&header, message);
        }
        let in_pieces = self.open.first().is_some_and(|open| open.id.is_none());
        let control = matches!(header.kind, Kind::CancelRequest | Kind::CloseConnection | Kind::MessageError);
        if in_pieces && !control {
            return Err(BadGiop::Malformed("a message begins before the fragments of the last one end"));
        }
        if !header.more {
            return Ok(Some(Cow::Borrowed(message)));
        }
        self.begin(header, message).map(|()| None)
    }

    /// Discards the fragments of a request's message.
    pub fn forget(&mut self, id: u32) {
        if let Some(at) = self.open.iter().position(|open| open.id == Some(id)) {
            self.bytes -= self.open.swap_remove(at).bytes.len();
        }
    }

    /// Returns the number of bytes of incomplete messages.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of incomplete messages.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Returns `true` if no message is in progress.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    fn begin(&mut self, header: Header, message: &[u8]) -> Result<(), BadGiop> {
        let id = if header.version == Version::V1_2 { Some(first_id(&header, message)?) } else { None };
        if self.open.iter().any(|open| open.id == id) {
            return Err(BadGiop::Malformed(
                "a message begins while another of the same request is under way",
            ));
        }
        if self.open.len() >= self.limits.messages {
            return Err(BadGiop::Malformed("more messages come in fragments at once than allowed"));
        }
        self.count(message.len())?;
        self.open.push(Open { id, header, bytes: message.to_vec() });
        Ok(())
    }

    fn go_on<'m>(&mut self, header: &Header, message: &'m [u8]) -> Result<Option<Cow<'m, [u8]>>, BadGiop> {
        let (id, data) = match header.version {
            Version::V1_2 => (Some(first_id(header, message)?), &message[HEADER + 4..]),
            _ => (None, &message[HEADER..]),
        };
        let at = self.open.iter().position(|open| open.id == id);
        let at = at.ok_or(BadGiop::Malformed("a fragment continues no message"))?;
        self.count(data.len())?;
        let open = &mut self.open[at];
        if (open.header.version, open.header.order) != (header.version, header.order) {
            return Err(BadGiop::Malformed("a fragment is not of its message's version and byte order"));
        }
        open.bytes.extend_from_slice(data);
        if header.more {
            return Ok(None);
        }
        let Open { header, mut bytes, .. } = self.open.swap_remove(at);
        self.bytes -= bytes.len();
        let size = u32::try_from(bytes.len() - HEADER)
            .map_err(|_| BadGiop::Malformed("a message in fragments is longer than 4 GiB"))?;
        let mut whole = Vec::with_capacity(HEADER);
        Header { more: false, size, ..header }.write(&mut whole);
        bytes[..HEADER].copy_from_slice(&whole);
        Ok(Some(Cow::Owned(bytes)))
    }

    fn count(&mut self, more: usize) -> Result<(), BadGiop> {
        let bytes = self.bytes.saturating_add(more);
        if bytes > self.limits.bytes {
            return Err(BadGiop::Malformed("messages in fragments hold more bytes than allowed"));
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
pub fn split(message: &[u8], most: usize, out: &mut Vec<u8>) -> Result<(), BadGiop> {
    let header = Header::parse(message)?.ok_or(BadGiop::Truncated)?;
    let most = most.max(64) & !7;
    let possible = match header.version {
        Version::V1_0 => false,
        Version::V1_1 => matches!(header.kind, Kind::Request | Kind::Reply),
        Version::V1_2 => {
            !matches!(header.kind, Kind::CancelRequest | Kind::CloseConnection | Kind::MessageError)
        }
    };
    if !possible || message.len() <= most {
        out.extend_from_slice(message);
        return Ok(());
    }
    let id = if header.version == Version::V1_2 { Some(first_id(&header, message)?) } else { None };
    let (first, mut rest) = message.split_at(most);
    Header { more: true, size: (most - HEADER) as u32, ..header }.write(out);
    out.extend_from_slice(&first[HEADER..]);
    let head = HEADER + if id.is_some() { 4 } else { 0 };
    while !rest.is_empty() {
        let (data, later) = rest.split_at(rest.len().min(most - head));
        let size = (head - HEADER + data.len()) as u32;
        Header { kind: Kind::Fragment, more: !later.is_empty(), size, ..header }.write(out);
        if let Some(id) = id {
            let base = out.len();
            Writer::with_base(out, header.order, base).u32(id);
        }
        out.extend_from_slice(data);
        rest = later;
    }
    Ok(())
}
