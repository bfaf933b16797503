//! Request: an operation of an object, with its arguments.

use super::{body_offset, received_body, received_bytes};
use crate::giop::profile::IiopProfile;
use crate::giop::{
    ByteOrder, CdrReader, CdrWriter, GiopError, GiopHeader, GiopVersion, HEADER_LEN, IIOP_TAG, IorBytes,
    ServiceContexts,
};

/// The response that a client expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedResponse {
    /// No response: a oneway. The server cannot reply, not even with another location of the object.
    Oneway,
    /// The acknowledgement that the server has the request, or another location.
    Acknowledgement,
    /// The result of the operation.
    Result,
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub struct GiopRequest<'m> {
    /// The client's ID for the request, unique on its connection.
    pub id: u32,
    /// The expected response.
    pub expected_response: ExpectedResponse,
    /// The object.
    pub target: TargetAddress<'m>,
    /// The operation's name, without its NUL.
    pub operation: &'m [u8],
    /// The service contexts.
    pub contexts: ServiceContexts<'m>,
    /// The caller's identity; always empty since 1.2, and nearly always before.
    pub principal: &'m [u8],
    /// The offset of the body in the message; the message's length if it has none.
    pub body_offset: usize,
    /// The received bytes of the arguments.
    pub body: &'m [u8],
    /// The offsets of the request's parts.
    pub(in crate::giop) offsets: RequestOffsets,
}

/// Offsets into a request, for rewriting it.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::giop) struct RequestOffsets {
    /// The operation's name, after the target, at a multiple of 4.
    pub(in crate::giop) operation_at: usize,
    /// The end of the unchanged part after the target: the contexts begin (1.2), or the head ends (before).
    pub(in crate::giop) operation_end: usize,
    /// The byte with the expected response.
    pub(in crate::giop) flags: u8,
}

impl PartialEq for RequestOffsets {
    /// Requests with the same contents are equal, even if their offsets differ.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The ways to address an object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TargetAddress<'m> {
    /// The object's key. The only way before 1.2, and the one that nearly all clients use.
    Key(&'m [u8]),
    /// A profile of the object's reference.
    Profile {
        /// The profile's protocol.
        tag: u32,
        /// The profile's contents.
        data: &'m [u8],
    },
    /// The whole reference.
    Reference {
        /// The profile that the client chose, counted from 0.
        index: u32,
        /// The reference.
        ior: IorBytes<'m>,
    },
}

impl<'m> TargetAddress<'m> {
    /// Returns the object's key; `None` if the profile is not IIOP or is invalid.
    pub fn key(&self) -> Option<&'m [u8]> {
        let (tag, data) = match *self {
            Self::Key(key) => return Some(key),
            Self::Profile { tag, data } => (tag, data),
            Self::Reference { index, ior } => ior.profiles().nth(usize::try_from(index).ok()?)?,
        };
        if tag == IIOP_TAG { IiopProfile::key_of(data).ok() } else { None }
    }

    pub(super) fn read(version: GiopVersion, reader: &mut CdrReader<'m>) -> Result<Self, GiopError> {
        if version < GiopVersion::V1_2 {
            return reader.octets().map(Self::Key);
        }
        match reader.u16()? {
            0 => reader.octets().map(Self::Key),
            1 => Ok(Self::Profile { tag: reader.u32()?, data: reader.octets()? }),
            2 => Ok(Self::Reference { index: reader.u32()?, ior: IorBytes::read(reader)? }),
            _ => Err(GiopError::Malformed("a request names its object in none of the three ways")),
        }
    }

    /// Appends the target. Before 1.2 it can only be a key: an empty one if there is none.
    pub(in crate::giop) fn write(&self, version: GiopVersion, writer: &mut CdrWriter<'_>) {
        if version < GiopVersion::V1_2 {
            return writer.octets(self.key().unwrap_or_default());
        }
        match self {
            Self::Key(key) => {
                writer.u16(0);
                writer.octets(key);
            }
            Self::Profile { tag, data } => {
                writer.u16(1);
                writer.u32(*tag);
                writer.octets(data);
            }
            Self::Reference { index, ior } => {
                writer.u16(2);
                writer.u32(*index);
                ior.write(writer);
            }
        }
    }
}

impl<'m> GiopRequest<'m> {
    /// Reads a request from its message, or from the beginning of it.
    ///
    /// # Errors
    /// Its head is malformed or incomplete.
    pub fn read(header: &GiopHeader, message: &'m [u8]) -> Result<Self, GiopError> {
        let message = received_bytes(header, message);
        let mut reader = CdrReader::message(message, header.order, HEADER_LEN);
        let mut request = if header.version < GiopVersion::V1_2 {
            read_before_1_2(header.version, &mut reader)
        } else {
            read_1_2(&mut reader)
        }?;
        request.body_offset = body_offset(header, &reader)?;
        request.body = received_body(message, request.body_offset);
        Ok(request)
    }

    /// Returns a reader of the arguments, aligned as in the message.
    pub fn argument_reader(&self, order: ByteOrder) -> CdrReader<'m> {
        CdrReader::with_origin(self.body, order, self.body_offset)
    }
}

/// Reads a head of 1.0 or 1.1: contexts, ID, whether a reply is expected, key, operation, principal.
fn read_before_1_2<'m>(
    version: GiopVersion,
    reader: &mut CdrReader<'m>,
) -> Result<GiopRequest<'m>, GiopError> {
    let contexts = ServiceContexts::read(reader)?;
    let id = reader.u32()?;
    let flags = u8::from(reader.bool()?);
    if version == GiopVersion::V1_1 {
        reader.take(3)?;
    }
    let target = TargetAddress::read(version, reader)?;
    reader.align(4)?;
    let operation_at = reader.position();
    let operation = reader.string()?;
    let principal = reader.octets()?;
    let operation_end = reader.position();
    let expected_response = if flags == 1 { ExpectedResponse::Result } else { ExpectedResponse::Oneway };
    let offsets = RequestOffsets { operation_at, operation_end, flags };
    Ok(GiopRequest {
        id,
        expected_response,
        target,
        operation,
        contexts,
        principal,
        body_offset: 0,
        body: &[],
        offsets,
    })
}

/// Reads a head of 1.2: ID, the expected response, target, operation, contexts.
fn read_1_2<'m>(reader: &mut CdrReader<'m>) -> Result<GiopRequest<'m>, GiopError> {
    let id = reader.u32()?;
    let flags = reader.u8()?;
    // Bit 0: a reply is expected. Bit 1: once the target has the request, not only the server.
    let expected_response = match flags & 3 {
        1 => ExpectedResponse::Acknowledgement,
        3 => ExpectedResponse::Result,
        _ => ExpectedResponse::Oneway,
    };
    reader.take(3)?;
    let target = TargetAddress::read(GiopVersion::V1_2, reader)?;
    reader.align(4)?;
    let operation_at = reader.position();
    let operation = reader.string()?;
    let operation_end = reader.position();
    let contexts = ServiceContexts::read(reader)?;
    let offsets = RequestOffsets { operation_at, operation_end, flags };
    Ok(GiopRequest {
        id,
        expected_response,
        target,
        operation,
        contexts,
        principal: &[],
        body_offset: 0,
        body: &[],
        offsets,
    })
}
