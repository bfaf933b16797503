//! Creates messages. Each is appended to a vector, in the version and byte order of the message that it
//! responds to.

use super::{
    ByteOrder, CdrWriter, ExpectedResponse, GiopHeader, GiopVersion, HEADER_LEN, Ior, LocateStatus,
    MessageType, ReplyStatus, ServiceContext, ServiceContexts, SystemException, TargetAddress,
};

/// The head of a new request.
#[derive(Clone, Copy, Debug)]
pub struct GiopRequestHead<'h> {
    /// The sender's ID for the request, unique on its connection.
    pub id: u32,
    /// The expected response. Before 1.2 anything but [`ExpectedResponse::Oneway`] requests the result.
    pub expected_response: ExpectedResponse,
    /// The object.
    pub target: TargetAddress<'h>,
    /// The operation's name, without a NUL.
    pub operation: &'h [u8],
    /// The service contexts.
    pub contexts: &'h [ServiceContext<'h>],
}

/// A version and a byte order: a reply has those of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageFormat {
    /// The version.
    pub version: GiopVersion,
    /// The byte order.
    pub order: ByteOrder,
}

impl GiopHeader {
    /// Returns the form of a response to this message.
    pub fn format(&self) -> MessageFormat {
        MessageFormat { version: self.version, order: self.order }
    }
}

/// Appends a request; `body` writes its arguments.
pub fn request(
    out: &mut Vec<u8>,
    format: MessageFormat,
    head: &GiopRequestHead<'_>,
    body: impl FnOnce(&mut CdrWriter<'_>),
) {
    message(out, format, MessageType::Request, |writer| {
        let response_flags: u8 = match head.expected_response {
            ExpectedResponse::Oneway => 0,
            ExpectedResponse::Acknowledgement => 1,
            ExpectedResponse::Result => 3,
        };
        if format.version < GiopVersion::V1_2 {
            ServiceContexts::NONE.write(head.contexts, writer);
            writer.u32(head.id);
            writer.bool(response_flags != 0);
            if format.version == GiopVersion::V1_1 {
                writer.bytes(&[0; 3]);
            }
            head.target.write(format.version, writer);
            writer.string(head.operation);
            writer.octets(&[]); // the principal
        } else {
            writer.u32(head.id);
            writer.bytes(&[response_flags, 0, 0, 0]);
            head.target.write(format.version, writer);
            writer.string(head.operation);
            ServiceContexts::NONE.write(head.contexts, writer);
        }
        write_body(format.version, writer, body);
    });
}

/// Appends a reply; `body` writes its result.
pub fn reply(
    out: &mut Vec<u8>,
    format: MessageFormat,
    id: u32,
    status: ReplyStatus,
    contexts: &[ServiceContext<'_>],
    body: impl FnOnce(&mut CdrWriter<'_>),
) {
    message(out, format, MessageType::Reply, |writer| {
        if format.version < GiopVersion::V1_2 {
            ServiceContexts::NONE.write(contexts, writer);
            writer.u32(id);
            writer.u32(status as u32);
        } else {
            writer.u32(id);
            writer.u32(status as u32);
            ServiceContexts::NONE.write(contexts, writer);
        }
        write_body(format.version, writer, body);
    });
}

/// Appends the reply that a request failed, with the reason.
pub fn exception(out: &mut Vec<u8>, format: MessageFormat, id: u32, system_exception: &SystemException<'_>) {
    reply(out, format, id, ReplyStatus::SystemException, &[], |writer| system_exception.write(writer));
}

/// Appends the reply that the object is temporarily elsewhere. The client sends its request there, and
/// returns if that fails.
///
/// The reference should contain the object's type: some clients treat a reference without one as nil.
pub fn forward(out: &mut Vec<u8>, format: MessageFormat, id: u32, ior: &Ior) {
    reply(out, format, id, ReplyStatus::Forward, &[], |writer| ior.write(writer));
}

/// Appends a request for an object's location.
pub fn locate_request(out: &mut Vec<u8>, format: MessageFormat, id: u32, target: &TargetAddress<'_>) {
    message(out, format, MessageType::LocateRequest, |writer| {
        writer.u32(id);
        target.write(format.version, writer);
    });
}

/// Appends the reply that the object is here, or unknown.
pub fn locate_status(out: &mut Vec<u8>, format: MessageFormat, id: u32, is_here: bool) {
    let status = if is_here { LocateStatus::Here } else { LocateStatus::Unknown };
    locate_reply(out, format, id, status, |_| ());
}

/// Appends the reply that the object is temporarily elsewhere.
pub fn locate_forward(out: &mut Vec<u8>, format: MessageFormat, id: u32, ior: &Ior) {
    locate_reply(out, format, id, LocateStatus::Forward, |writer| ior.write(writer));
}

/// Appends the reply that the location could not be determined. Before 1.2 no such reply exists. Then the
/// reply is that the object is here, so that the client sends its request and receives the exception in the
/// reply.
pub fn locate_exception(
    out: &mut Vec<u8>,
    format: MessageFormat,
    id: u32,
    system_exception: &SystemException<'_>,
) {
    if format.version < GiopVersion::V1_2 {
        return locate_status(out, format, id, true);
    }
    locate_reply(out, format, id, LocateStatus::SystemException, |writer| system_exception.write(writer));
}

/// Appends the cancellation of a request.
pub fn cancel(out: &mut Vec<u8>, format: MessageFormat, id: u32) {
    message(out, format, MessageType::CancelRequest, |writer| writer.u32(id));
}

/// Appends the message that closes the connection: requests without a reply were not performed.
pub fn close(out: &mut Vec<u8>, format: MessageFormat) {
    message(out, format, MessageType::CloseConnection, |_| ());
}

/// Appends the message that the received bytes could not be parsed.
pub fn error(out: &mut Vec<u8>, format: MessageFormat) {
    message(out, format, MessageType::MessageError, |_| ());
}

/// Appends a locate reply; `body` writes the rest after the status, which is not aligned to 8 in any version.
pub fn locate_reply(
    out: &mut Vec<u8>,
    format: MessageFormat,
    id: u32,
    status: LocateStatus,
    body: impl FnOnce(&mut CdrWriter<'_>),
) {
    message(out, format, MessageType::LocateReply, |writer| {
        writer.u32(id);
        writer.u32(status as u32);
        body(writer);
    });
}

impl SystemException<'_> {
    /// Appends the exception.
    pub fn write(&self, writer: &mut CdrWriter<'_>) {
        writer.string(self.type_id);
        writer.u32(self.minor);
        writer.u32(self.completed as u32);
    }
}

fn message(
    out: &mut Vec<u8>,
    format: MessageFormat,
    kind: MessageType,
    content: impl FnOnce(&mut CdrWriter<'_>),
) {
    let base = out.len();
    GiopHeader { version: format.version, order: format.order, more_fragments: false, kind, size: 0 }
        .write(out);
    let mut writer = CdrWriter::with_base(out, format.order, base);
    content(&mut writer);
    let size = writer.position() - HEADER_LEN;
    writer.patch_u32(base + 8, size);
}

/// Appends a body, since 1.2 at the next multiple of 8 unless it is empty.
fn write_body(version: GiopVersion, writer: &mut CdrWriter<'_>, body: impl FnOnce(&mut CdrWriter<'_>)) {
    if version < GiopVersion::V1_2 {
        return body(writer);
    }
    let head_end = writer.out().len();
    writer.align(8);
    let body_start = writer.out().len();
    body(writer);
    if writer.out().len() == body_start {
        writer.out().truncate(head_end);
    }
}
