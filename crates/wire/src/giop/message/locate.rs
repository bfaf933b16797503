//! LocateRequest and LocateReply: where an object is, asked before anything is sent to it.

use super::{Target, body, within};
use crate::giop::{BadGiop, HEADER, Header, Ior, Order, Reader, Version};

/// Where is an object?
#[derive(Clone, Debug, PartialEq)]
pub struct LocateRequest<'m> {
    /// The client's number for it.
    pub id: u32,
    /// The object.
    pub target: Target<'m>,
}

impl<'m> LocateRequest<'m> {
    /// Reads one from its message.
    ///
    /// # Errors
    /// It is malformed, or not all there.
    pub fn read(header: &Header, there: &'m [u8]) -> Result<Self, BadGiop> {
        let there = within(header, there);
        let mut reader = Reader::message(there, header.order, HEADER);
        Ok(Self { id: reader.u32()?, target: Target::read(header.version, &mut reader)? })
    }
}

/// Where an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocateStatus {
    /// Nowhere.
    Unknown = 0,
    /// Here.
    Here = 1,
    /// At the reference in the body, for now.
    Forward = 2,
    /// At the reference in the body, for good (1.2).
    ForwardForGood = 3,
    /// That could not be found out, for the exception in the body (1.2).
    SystemException = 4,
    /// The object is to be named in the way that the body says (1.2).
    NeedsAddressing = 5,
}

impl LocateStatus {
    const ALL: [Self; 6] = [
        Self::Unknown,
        Self::Here,
        Self::Forward,
        Self::ForwardForGood,
        Self::SystemException,
        Self::NeedsAddressing,
    ];
}

/// The answer to a [`LocateRequest`].
#[derive(Clone, Debug, PartialEq)]
pub struct LocateReply<'m> {
    /// Of the request that it answers.
    pub id: u32,
    /// Where the object is.
    pub status: LocateStatus,
    /// A reference or an exception, as much of it as is there.
    pub body: &'m [u8],
}

impl<'m> LocateReply<'m> {
    /// Offset of the body, which is not aligned to 8 in any version.
    pub const BODY_AT: usize = HEADER + 8;

    /// Reads one from its message.
    ///
    /// # Errors
    /// It is malformed, or not all there.
    pub fn read(header: &Header, there: &'m [u8]) -> Result<Self, BadGiop> {
        let there = within(header, there);
        let mut reader = Reader::message(there, header.order, HEADER);
        let id = reader.u32()?;
        let known = if header.version < Version::V1_2 { 3 } else { 6 };
        let status =
            usize::try_from(reader.u32()?).ok().and_then(|status| LocateStatus::ALL[..known].get(status));
        let status = *status
            .ok_or(BadGiop::Malformed("a locate reply has a status that its version does not know"))?;
        Ok(Self { id, status, body: body(there, Self::BODY_AT) })
    }

    /// Where the object is instead, if that is what the reply says and all of it is there.
    pub fn forward(&self, order: Order) -> Option<Ior> {
        let forwards = matches!(self.status, LocateStatus::Forward | LocateStatus::ForwardForGood);
        let mut reader = Reader::with_origin(self.body, order, Self::BODY_AT);
        if forwards { Ior::read(&mut reader).ok() } else { None }
    }
}
