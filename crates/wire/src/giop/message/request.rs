//! Request: an operation of an object, with its arguments.

use super::{body, body_at, within};
use crate::giop::profile::IiopProfile;
use crate::giop::{BadGiop, Contexts, HEADER, Header, IIOP, IorBytes, Order, Reader, Version, Writer};

/// The response that a client expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// No response: a oneway. The server cannot reply, not even with another location of the object.
    Nothing,
    /// The acknowledgement that the server has the request, or another location.
    Arrival,
    /// The result of the operation.
    Result,
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request<'m> {
    /// The client's ID for the request, unique on its connection.
    pub id: u32,
    /// The expected response.
    pub wanted: Wanted,
    /// The object.
    pub target: Target<'m>,
    /// The operation's name, without its NUL.
    pub operation: &'m [u8],
    /// The service contexts.
    pub contexts: Contexts<'m>,
    /// The caller's identity; always empty since 1.2, and nearly always before.
    pub principal: &'m [u8],
    /// The offset of the body in the message; the message's length if it has none.
    pub body_at: usize,
    /// The received bytes of the arguments.
    pub body: &'m [u8],
    /// The offsets of the request's parts.
    pub(in crate::giop) spans: Spans,
}

/// Offsets into a request, for rewriting it.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::giop) struct Spans {
    /// The operation's name, after the target, at a multiple of 4.
    pub(in crate::giop) operation_at: usize,
    /// The end of the unchanged part after the target: the contexts begin (1.2), or the head ends (before).
    pub(in crate::giop) operation_end: usize,
    /// The byte with the expected response.
    pub(in crate::giop) flags: u8,
}

impl PartialEq for Spans {
    /// Requests with the same contents are equal, even if their offsets differ.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The ways to address an object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target<'m> {
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

impl<'m> Target<'m> {
    /// Returns the object's key; `None` if the profile is not IIOP or is invalid.
    pub fn key(&self) -> Option<&'m [u8]> {
        let (tag, data) = match *self {
            Self::Key(key) => return Some(key),
            Self::Profile { tag, data } => (tag, data),
            Self::Reference { index, ior } => ior.profiles().nth(usize::try_from(index).ok()?)?,
        };
        if tag == IIOP { IiopProfile::key_of(data).ok() } else { None }
    }

    pub(super) fn read(version: Version, reader: &mut Reader<'m>) -> Result<Self, BadGiop> {
        if version < Version::V1_2 {
            return reader.octets().map(Self::Key);
        }
        match reader.u16()? {
            0 => reader.octets().map(Self::Key),
            1 => Ok(Self::Profile { tag: reader.u32()?, data: reader.octets()? }),
            2 => Ok(Self::Reference { index: reader.u32()?, ior: IorBytes::read(reader)? }),
            _ => Err(BadGiop::Malformed("a request names its object in none of the three ways")),
        }
    }

    /// Appends the target. Before 1.2 it can only be a key: an empty one if there is none.
    pub(in crate::giop) fn write(&self, version: Version, writer: &mut Writer<'_>) {
        if version < Version::V1_2 {
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

impl<'m> Request<'m> {
    /// Reads a request from its message, or from the beginning of it.
    ///
    /// # Errors
    /// Its head is malformed or incomplete.
    pub fn read(header: &Header, there: &'m [u8]) -> Result<Self, BadGiop> {
        let there = within(header, there);
        let mut reader = Reader::message(there, header.order, HEADER);
        let mut request =
            if header.version < Version::V1_2 { old(header.version, &mut reader) } else { new(&mut reader) }?;
        request.body_at = body_at(header, &reader)?;
        request.body = body(there, request.body_at);
        Ok(request)
    }

    /// Returns a reader of the arguments, aligned as in the message.
    pub fn arguments(&self, order: Order) -> Reader<'m> {
        Reader::with_origin(self.body, order, self.body_at)
    }
}

/// Reads a head of 1.0 or 1.1: contexts, ID, whether a reply is expected, key, operation, principal.
fn old<'m>(version: Version, reader: &mut Reader<'m>) -> Result<Request<'m>, BadGiop> {
    let contexts = Contexts::read(reader)?;
    let id = reader.u32()?;
    let flags = u8::from(reader.bool()?);
    if version == Version::V1_1 {
        reader.take(3)?;
    }
    let target = Target::read(version, reader)?;
    reader.align(4)?;
    let operation_at = reader.position();
    let operation = reader.string()?;
    let principal = reader.octets()?;
    let end = reader.position();
    let wanted = if flags == 1 { Wanted::Result } else { Wanted::Nothing };
    let spans = Spans { operation_at, operation_end: end, flags };
    Ok(Request { id, wanted, target, operation, contexts, principal, body_at: 0, body: &[], spans })
}

/// Reads a head of 1.2: ID, the expected response, target, operation, contexts.
fn new<'m>(reader: &mut Reader<'m>) -> Result<Request<'m>, BadGiop> {
    let id = reader.u32()?;
    let flags = reader.u8()?;
    // Bit 0: a reply is expected. Bit 1: once the target has the request, not only the server.
    let wanted = match flags & 3 {
        1 => Wanted::Arrival,
        3 => Wanted::Result,
        _ => Wanted::Nothing,
    };
    reader.take(3)?;
    let target = Target::read(Version::V1_2, reader)?;
    reader.align(4)?;
    let operation_at = reader.position();
    let operation = reader.string()?;
    let operation_end = reader.position();
    let contexts = Contexts::read(reader)?;
    let spans = Spans { operation_at, operation_end, flags };
    Ok(Request { id, wanted, target, operation, contexts, principal: &[], body_at: 0, body: &[], spans })
}
