//! The eight kinds of messages, parsed from borrowed bytes.
//!
//! Only the head of a message must be complete. If it is fragmented, or still arriving, its body holds the
//! bytes received so far.

mod locate;
mod reply;
mod request;

pub use locate::{LocateReply, LocateRequest, LocateStatus};
pub use reply::{CompletionStatus, GiopReply, ReplyStatus, SystemException};
pub use request::{ExpectedResponse, GiopRequest, TargetAddress};

use super::cdr::padding_to;
use super::{CdrReader, GiopError, GiopHeader, GiopVersion, HEADER_LEN, MessageType};

/// A message.
#[derive(Clone, Debug, PartialEq)]
pub struct GiopMessage<'m> {
    /// The header.
    pub header: GiopHeader,
    /// The contents.
    pub content: MessageContent<'m>,
}

/// The contents of a message, by its kind.
#[derive(Clone, Debug, PartialEq)]
pub enum MessageContent<'m> {
    /// Calls an operation.
    Request(GiopRequest<'m>),
    /// Reports the result of a request.
    Reply(GiopReply<'m>),
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
    Fragment(MessageFragment<'m>),
}

/// The continuation of a fragmented message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageFragment<'m> {
    /// The ID of the request whose message this continues. `None` before 1.2: it continues the last one
    /// begun.
    pub id: Option<u32>,
    /// The bytes after those of the previous fragments.
    pub data: &'m [u8],
}

impl<'m> GiopMessage<'m> {
    /// Reads the message at the beginning of `input` and ignores the bytes after it.
    ///
    /// # Errors
    /// The input is not a message, or a length exceeds the message. Returns [`GiopError::Truncated`] if
    /// `input` or the first fragment ends before the body begins.
    pub fn parse(input: &'m [u8]) -> Result<Self, GiopError> {
        let header = GiopHeader::parse(input)?.ok_or(GiopError::Truncated)?;
        let message = received_bytes(&header, input);
        let content = match header.kind {
            MessageType::Request => MessageContent::Request(GiopRequest::read(&header, message)?),
            MessageType::Reply => MessageContent::Reply(GiopReply::read(&header, message)?),
            MessageType::CancelRequest => MessageContent::CancelRequest(first_id(&header, message)?),
            MessageType::LocateRequest => {
                MessageContent::LocateRequest(LocateRequest::read(&header, message)?)
            }
            MessageType::LocateReply => MessageContent::LocateReply(LocateReply::read(&header, message)?),
            MessageType::CloseConnection => MessageContent::CloseConnection,
            MessageType::MessageError => MessageContent::MessageError,
            MessageType::Fragment if header.version == GiopVersion::V1_2 => {
                MessageContent::Fragment(MessageFragment {
                    id: Some(first_id(&header, message)?),
                    data: &message[HEADER_LEN + 4..],
                })
            }
            MessageType::Fragment => {
                MessageContent::Fragment(MessageFragment { id: None, data: &message[HEADER_LEN..] })
            }
        };
        Ok(Self { header, content })
    }

    /// Returns the ID of the message's request.
    pub fn id(&self) -> Option<u32> {
        match &self.content {
            MessageContent::Request(request) => Some(request.id),
            MessageContent::Reply(reply) => Some(reply.id),
            MessageContent::CancelRequest(id) => Some(*id),
            MessageContent::LocateRequest(request) => Some(request.id),
            MessageContent::LocateReply(reply) => Some(reply.id),
            MessageContent::Fragment(fragment) => fragment.id,
            MessageContent::CloseConnection | MessageContent::MessageError => None,
        }
    }
}

/// Reads the ID at the beginning of all messages except requests and replies before 1.2.
pub(super) fn first_id(header: &GiopHeader, message: &[u8]) -> Result<u32, GiopError> {
    CdrReader::message(message, header.order, HEADER_LEN).u32()
}

/// Returns the offset of the body of a request or a reply whose head ends at `reader`. Since 1.2 it is the
/// next multiple of 8, unless there is no body. Fragments continue where this one ends, so a fragment with
/// incomplete padding cannot be parsed by itself.
fn body_offset(header: &GiopHeader, reader: &CdrReader<'_>) -> Result<usize, GiopError> {
    let end = reader.position();
    if header.version < GiopVersion::V1_2 {
        return Ok(end);
    }
    let aligned = end + padding_to(end, 8);
    if aligned <= header.message_len() {
        return Ok(aligned);
    }
    if header.more_fragments { Err(GiopError::Truncated) } else { Ok(header.message_len()) }
}

/// Returns the received bytes of a message, without those after it.
fn received_bytes<'m>(header: &GiopHeader, input: &'m [u8]) -> &'m [u8] {
    &input[..header.message_len().min(input.len())]
}

/// Returns the received bytes of a body that begins at an offset.
fn received_body(message: &[u8], offset: usize) -> &[u8] {
    message.get(offset..).unwrap_or_default()
}
