//! LocateRequest and LocateReply: a query for the location of an object before any request to it.

use super::{TargetAddress, received_body, received_bytes};
use crate::giop::{ByteOrder, CdrReader, GiopError, GiopHeader, GiopVersion, HEADER_LEN, Ior};

/// A query for the location of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct LocateRequest<'m> {
    /// The client's ID for the query.
    pub id: u32,
    /// The object.
    pub target: TargetAddress<'m>,
}

impl<'m> LocateRequest<'m> {
    /// Reads the query from its message.
    ///
    /// # Errors
    /// It is malformed or incomplete.
    pub fn read(header: &GiopHeader, message: &'m [u8]) -> Result<Self, GiopError> {
        let message = received_bytes(header, message);
        let mut reader = CdrReader::message(message, header.order, HEADER_LEN);
        Ok(Self { id: reader.u32()?, target: TargetAddress::read(header.version, &mut reader)? })
    }
}

/// The location of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocateStatus {
    /// The object is unknown.
    Unknown = 0,
    /// The object is here.
    Here = 1,
    /// The object is temporarily at the reference in the body.
    Forward = 2,
    /// The object is permanently at the reference in the body (1.2).
    ForwardPermanent = 3,
    /// The location could not be determined, for the reason in the body (1.2).
    SystemException = 4,
    /// The client must address the object in the way that the body requests (1.2).
    NeedsAddressing = 5,
}

impl LocateStatus {
    const ALL: [Self; 6] = [
        Self::Unknown,
        Self::Here,
        Self::Forward,
        Self::ForwardPermanent,
        Self::SystemException,
        Self::NeedsAddressing,
    ];
}

/// The reply to a [`LocateRequest`].
#[derive(Clone, Debug, PartialEq)]
pub struct LocateReply<'m> {
    /// The ID of the query.
    pub id: u32,
    /// The location of the object.
    pub status: LocateStatus,
    /// The received bytes of the reference or the exception.
    pub body: &'m [u8],
}

impl<'m> LocateReply<'m> {
    /// The offset of the body, which is not aligned to 8 in any version.
    pub const BODY_OFFSET: usize = HEADER_LEN + 8;

    /// Reads the reply from its message.
    ///
    /// # Errors
    /// It is malformed or incomplete.
    pub fn read(header: &GiopHeader, message: &'m [u8]) -> Result<Self, GiopError> {
        let message = received_bytes(header, message);
        let mut reader = CdrReader::message(message, header.order, HEADER_LEN);
        let id = reader.u32()?;
        let known_count = if header.version < GiopVersion::V1_2 { 3 } else { 6 };
        let status = usize::try_from(reader.u32()?)
            .ok()
            .and_then(|status| LocateStatus::ALL[..known_count].get(status));
        let status = *status
            .ok_or(GiopError::Malformed("a locate reply has a status that its version does not know"))?;
        Ok(Self { id, status, body: received_body(message, Self::BODY_OFFSET) })
    }

    /// Returns the object's new reference, if the reply holds one and is complete.
    pub fn forward(&self, order: ByteOrder) -> Option<Ior> {
        let forwards = matches!(self.status, LocateStatus::Forward | LocateStatus::ForwardPermanent);
        let mut reader = CdrReader::with_origin(self.body, order, Self::BODY_OFFSET);
        if forwards { Ior::read(&mut reader).ok() } else { None }
    }
}
