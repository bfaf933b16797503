//! The eight kinds of messages, parsed from borrowed bytes.
//!
//! Only the head of a message must be complete. If it is fragmented, or still arriving, its body holds the
//! bytes received so far.

mod locate;
mod reply;
mod request;

pub use locate::{LocateReply, LocateRequest, LocateStatus};
pub use reply::{Completed, Reply, Status, SystemException};
pub use request::{Request, Target, Wanted};

use super::cdr::padding;
use super::{BadGiop, HEADER, Header, Kind, Reader, Version};

/// A message.
#[derive(Clone, Debug, PartialEq)]
pub struct Message<'m> {
    /// The header.
    pub header: Header,
    /// The contents.
    pub content: Content<'m>,
}

/// The contents of a message, by its kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Content<'m> {
    /// Calls an operation.
    Request(Request<'m>),
    /// Reports the result of a request.
    Reply(Reply<'m>),
    /// Cancels the request with this ID.
    CancelRequest(u32),
    /// Asks for the location of an object.
    LocateRequest(LocateRequest<'m>),
    /// Reports the location of an object.
    LocateReply(LocateReply<'m>),
    /// Closes the connection: requests without a reply were not performed.
    CloseConnection,
    /// Reports that the sender could not parse a message.
    MessageError,
    /// Continues a message.
    Fragment(Fragment<'m>),
}

/// The continuation of a fragmented message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment<'m> {
    /// The ID of the request whose message this continues. `None` before 1.2: it continues the last one
    /// begun.
    pub id: Option<u32>,
    /// The bytes after those of the previous fragments.
    pub data: &'m [u8],
}

impl<'m> Message<'m> {
    /// Reads the message at the beginning of `input` and ignores the bytes after it.
    ///
    /// # Errors
    /// The input is not a message, or a length exceeds the message. Returns [`BadGiop::Truncated`] if `input`
    /// or the first fragment ends before the body begins.
    pub fn parse(input: &'m [u8]) -> Result<Self, BadGiop> {
        let header = Header::parse(input)?.ok_or(BadGiop::Truncated)?;
        let there = within(&header, input);
        let content = match header.kind {
            Kind::Request => Content::Request(Request::read(&header, there)?),
            Kind::Reply => Content::Reply(Reply::read(&header, there)?),
            Kind::CancelRequest => Content::CancelRequest(first_id(&header, there)?),
            Kind::LocateRequest => Content::LocateRequest(LocateRequest::read(&header, there)?),
            Kind::LocateReply => Content::LocateReply(LocateReply::read(&header, there)?),
            Kind::CloseConnection => Content::CloseConnection,
            Kind::MessageError => Content::MessageError,
            Kind::Fragment if header.version == Version::V1_2 => Content::Fragment(Fragment {
                id: Some(first_id(&header, there)?),
                data: &there[HEADER + 4..],
            }),
            Kind::Fragment => Content::Fragment(Fragment { id: None, data: &there[HEADER..] }),
        };
        Ok(Self { header, content })
    }

    /// Returns the ID of the message's request.
    pub fn id(&self) -> Option<u32> {
        match &self.content {
            Content::Request(request) => Some(request.id),
            Content::Reply(reply) => Some(reply.id),
            Content::CancelRequest(id) => Some(*id),
            Content::LocateRequest(request) => Some(request.id),
            Content::LocateReply(reply) => Some(reply.id),
            Content::Fragment(fragment) => fragment.id,
            Content::CloseConnection | Content::MessageError => None,
        }
    }
}

/// Reads the ID at the beginning of all messages except requests and replies before 1.2.
pub(super) fn first_id(header: &Header, there: &[u8]) -> Result<u32, BadGiop> {
    Reader::message(there, header.order, HEADER).u32()
}

/// Returns the offset of the body of a request or a reply whose head ends at `reader`. Since 1.2 it is the
/// next multiple of 8, unless there is no body. Fragments continue where this one ends, so a fragment with
/// incomplete padding cannot be parsed by itself.
fn body_at(header: &Header, reader: &Reader<'_>) -> Result<usize, BadGiop> {
    let end = reader.position();
    if header.version < Version::V1_2 {
        return Ok(end);
    }
    let aligned = end + padding(end, 8);
    if aligned <= header.total() {
        return Ok(aligned);
    }
    if header.more { Err(BadGiop::Truncated) } else { Ok(header.total()) }
}

/// Returns the received bytes of a message, without those after it.
fn within<'m>(header: &Header, input: &'m [u8]) -> &'m [u8] {
    &input[..header.total().min(input.len())]
}

/// Returns the received bytes of a body that begins at an offset.
fn body(there: &[u8], at: usize) -> &[u8] {
    there.get(at..).unwrap_or_default()
}
