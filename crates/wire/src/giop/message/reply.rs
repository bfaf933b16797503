//! Reply: the result of a request.

use super::{body_offset, received_body, received_bytes};
use crate::giop::{
    ByteOrder, CdrReader, GiopError, GiopHeader, GiopVersion, HEADER_LEN, Ior, ServiceContexts,
};

/// The status of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyStatus {
    /// The request was performed; the body is its result.
    NoException = 0,
    /// The operation raised an exception of its own, which is the body.
    UserException = 1,
    /// The request failed; the body is a [`SystemException`].
    SystemException = 2,
    /// The object is temporarily at the reference in the body.
    Forward = 3,
    /// The object is permanently at the reference in the body (1.2).
    ForwardPermanent = 4,
    /// The client must send the request again and address the object in the way that the body requests (1.2).
    NeedsAddressing = 5,
}

impl ReplyStatus {
    const ALL: [Self; 6] = [
        Self::NoException,
        Self::UserException,
        Self::SystemException,
        Self::Forward,
        Self::ForwardPermanent,
        Self::NeedsAddressing,
    ];

    fn read(version: GiopVersion, reader: &mut CdrReader<'_>) -> Result<Self, GiopError> {
        let known_count = if version < GiopVersion::V1_2 { 4 } else { 6 };
        let status =
            usize::try_from(reader.u32()?).ok().and_then(|status| Self::ALL[..known_count].get(status));
        status.copied().ok_or(GiopError::Malformed("a reply has a status that its version does not know"))
    }
}

/// A reply.
#[derive(Clone, Debug, PartialEq)]
pub struct GiopReply<'m> {
    /// The ID of the request.
    pub id: u32,
    /// The offset of the ID in the message, for replacing it in place.
    pub id_offset: usize,
    /// The status of the request.
    pub status: ReplyStatus,
    /// The service contexts.
    pub contexts: ServiceContexts<'m>,
    /// The offset of the body in the message; the message's length if it has none.
    pub body_offset: usize,
    /// The received bytes of the result, the exception or the reference.
    pub body: &'m [u8],
}

impl<'m> GiopReply<'m> {
    /// Reads a reply from its message, or from the beginning of it.
    ///
    /// # Errors
    /// Its head is malformed or incomplete.
    pub fn read(header: &GiopHeader, message: &'m [u8]) -> Result<Self, GiopError> {
        let message = received_bytes(header, message);
        let mut reader = CdrReader::message(message, header.order, HEADER_LEN);
        let (id, id_offset, status, contexts);
        if header.version < GiopVersion::V1_2 {
            contexts = ServiceContexts::read(&mut reader)?;
            id = reader.u32()?;
            id_offset = reader.position() - 4;
            status = ReplyStatus::read(header.version, &mut reader)?;
        } else {
            id_offset = reader.position();
            id = reader.u32()?;
            status = ReplyStatus::read(header.version, &mut reader)?;
            contexts = ServiceContexts::read(&mut reader)?;
        }
        let body_start = body_offset(header, &reader)?;
        Ok(Self {
            id,
            id_offset,
            status,
            contexts,
            body_offset: body_start,
            body: received_body(message, body_start),
        })
    }

    /// Returns a reader of the body, aligned as in the message.
    pub fn body_reader(&self, order: ByteOrder) -> CdrReader<'m> {
        CdrReader::with_origin(self.body, order, self.body_offset)
    }

    /// Returns the object's new reference, if the reply holds one and is complete.
    pub fn forward(&self, order: ByteOrder) -> Option<Ior> {
        let forwards = matches!(self.status, ReplyStatus::Forward | ReplyStatus::ForwardPermanent);
        if forwards { Ior::read(&mut self.body_reader(order)).ok() } else { None }
    }

    /// Returns the reason of the failure, if the reply holds one and is complete.
    pub fn exception(&self, order: ByteOrder) -> Option<SystemException<'m>> {
        let is_exception = self.status == ReplyStatus::SystemException;
        if is_exception { SystemException::read(&mut self.body_reader(order)).ok() } else { None }
    }
}

/// Whether a failed request was performed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionStatus {
    /// The request was performed.
    Yes = 0,
    /// The request was not performed: it may be sent again.
    No = 1,
    /// The server does not know.
    Maybe = 2,
}

/// A failure in the standard's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemException<'m> {
    /// The exception's type, as `IDL:omg.org/CORBA/TRANSIENT:1.0`.
    pub type_id: &'m [u8],
    /// The detailed reason: the vendor's number in the upper bits, the vendor's own code below.
    pub minor: u32,
    /// Whether the request was performed.
    pub completed: CompletionStatus,
}

impl<'m> SystemException<'m> {
    /// No member can take the request now; it was not performed.
    pub const TRANSIENT: SystemException<'static> = not_performed(b"IDL:omg.org/CORBA/TRANSIENT:1.0");
    /// There is no such object.
    pub const OBJECT_NOT_EXIST: SystemException<'static> =
        not_performed(b"IDL:omg.org/CORBA/OBJECT_NOT_EXIST:1.0");
    /// The object has no such operation.
    pub const BAD_OPERATION: SystemException<'static> = not_performed(b"IDL:omg.org/CORBA/BAD_OPERATION:1.0");
    /// The request could not be parsed.
    pub const MARSHAL: SystemException<'static> = not_performed(b"IDL:omg.org/CORBA/MARSHAL:1.0");
    /// An argument has an invalid value.
    pub const BAD_PARAM: SystemException<'static> = not_performed(b"IDL:omg.org/CORBA/BAD_PARAM:1.0");
    /// The object's type has this operation, but it is not implemented here.
    pub const NO_IMPLEMENT: SystemException<'static> = not_performed(b"IDL:omg.org/CORBA/NO_IMPLEMENT:1.0");
    /// The operation failed for a reason beyond the client's control.
    pub const INTERNAL: SystemException<'static> = not_performed(b"IDL:omg.org/CORBA/INTERNAL:1.0");
    /// The request needs more resources than are available.
    pub const NO_RESOURCES: SystemException<'static> = not_performed(b"IDL:omg.org/CORBA/NO_RESOURCES:1.0");
    /// The connection was lost during the request; it may have been performed.
    pub const COMM_FAILURE: SystemException<'static> = SystemException {
        type_id: b"IDL:omg.org/CORBA/COMM_FAILURE:1.0",
        minor: 0,
        completed: CompletionStatus::Maybe,
    };

    /// Returns the exception's name, as `TRANSIENT`, if it is one of the standard's; else an empty string.
    pub fn name(&self) -> &'m str {
        let inner =
            self.type_id.strip_prefix(b"IDL:omg.org/CORBA/").and_then(|rest| rest.strip_suffix(b":1.0"));
        inner.and_then(|name| std::str::from_utf8(name).ok()).unwrap_or_default()
    }

    /// Reads the exception from the body of a reply.
    ///
    /// # Errors
    /// It is incomplete or malformed.
    pub fn read(reader: &mut CdrReader<'m>) -> Result<Self, GiopError> {
        let (type_id, minor) = (reader.string()?, reader.u32()?);
        let completed = match reader.u32()? {
            0 => CompletionStatus::Yes,
            1 => CompletionStatus::No,
            2 => CompletionStatus::Maybe,
            _ => {
                return Err(GiopError::Malformed(
                    "an exception does not say whether the request was performed",
                ));
            }
        };
        Ok(Self { type_id, minor, completed })
    }
}

const fn not_performed(type_id: &'static [u8]) -> SystemException<'static> {
    SystemException { type_id, minor: 0, completed: CompletionStatus::No }
}
