//! The eight messages, read from bytes that they borrow.
//!
//! Only what a message begins with needs to be there: of one that comes in fragments, or whose body is still arriving,
//! the body is as much as has come.

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
    /// What it begins with.
    pub header: Header,
    /// What it says.
    pub content: Content<'m>,
}

/// What a message says, by its kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Content<'m> {
    /// An operation is to be performed.
    Request(Request<'m>),
    /// It was, or could not be.
    Reply(Reply<'m>),
    /// The request of this id is of no more interest.
    CancelRequest(u32),
    /// Where is an object?
    LocateRequest(LocateRequest<'m>),
    /// It is here, elsewhere or nowhere.
    LocateReply(LocateReply<'m>),
    /// The sender closes the connection: requests without a reply were not performed.
    CloseConnection,
    /// The sender did not understand.
    MessageError,
    /// More of a message.
    Fragment(Fragment<'m>),
}

/// More of a message that came in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment<'m> {
    /// Of the request whose message this continues; `None` before 1.2: it continues the last one begun.
    pub id: Option<u32>,
    /// What follows the bytes that came before.
    pub data: &'m [u8],
}

impl<'m> Message<'m> {
    /// Reads the message at the beginning of `input`; what follows it is left aside.
    ///
    /// # Errors
    /// It is no message, or its lengths say more than it has. [`BadGiop::Truncated`] if `input` or the first fragment
    /// ends before the body begins.
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

    /// The id of the request that it belongs to.
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

/// The id that all but requests and replies before 1.2 begin with.
pub(super) fn first_id(header: &Header, there: &[u8]) -> Result<u32, BadGiop> {
    Reader::message(there, header.order, HEADER).u32()
}

/// Where the body of a request or a reply begins, its head ending where `reader` stands: at the next multiple of 8
/// since 1.2, unless there is none. Fragments that follow go on where this one ends, so that one in which the padding
/// is not complete cannot be taken apart by itself.
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

/// What has come of a message, nothing after it.
fn within<'m>(header: &Header, input: &'m [u8]) -> &'m [u8] {
    &input[..header.total().min(input.len())]
}

/// What has come of a body that begins at an offset.
fn body(there: &[u8], at: usize) -> &[u8] {
    there.get(at..).unwrap_or_default()
}
