//! Request: which operation, of which object, with what arguments.

use super::{body, body_at, within};
use crate::giop::profile::IiopProfile;
use crate::giop::{BadGiop, Contexts, HEADER, Header, IIOP, IorBytes, Order, Reader, Version, Writer};

/// What a client wants to hear of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Nothing at all: a oneway. There is no answering it, not even to say that the object is elsewhere.
    Nothing,
    /// That the server has it, or where else it should go.
    Arrival,
    /// What came of it.
    Result,
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request<'m> {
    /// The client's number for it, unique on its connection.
    pub id: u32,
    /// What is to be answered.
    pub wanted: Wanted,
    /// The object.
    pub target: Target<'m>,
    /// The operation's name, without its NUL.
    pub operation: &'m [u8],
    /// What travels beside it.
    pub contexts: Contexts<'m>,
    /// Who asks; always empty since 1.2, and nearly always before.
    pub principal: &'m [u8],
    /// Offset of the body in the message; the message's length if it has none.
    pub body_at: usize,
    /// The arguments, as much of them as is there.
    pub body: &'m [u8],
    /// Where in the message its parts are.
    pub(in crate::giop) spans: Spans,
}

/// Offsets into a request, for rewriting it.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::giop) struct Spans {
    /// After the target, at a multiple of 4: the operation's name.
    pub(in crate::giop) operation_at: usize,
    /// Where what follows the target and does not change ends: the contexts begin (1.2), or the head ends (before).
    pub(in crate::giop) operation_end: usize,
    /// The byte that says what is wanted.
    pub(in crate::giop) flags: u8,
}

impl PartialEq for Spans {
    /// Requests that say the same are the same, wherever it is said.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// How a message says which object it means.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target<'m> {
    /// By its key. The only way before 1.2, and what nearly all send.
    Key(&'m [u8]),
    /// By a profile of its reference.
    Profile {
        /// The profile's protocol.
        tag: u32,
        /// What it says.
        data: &'m [u8],
    },
    /// By its whole reference.
    Reference {
        /// The profile that the client chose, counted from 0.
        index: u32,
        /// The reference.
        ior: IorBytes<'m>,
    },
}

impl<'m> Target<'m> {
    /// The object's key; `None` if it is said by a profile that is not IIOP or cannot be read.
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

    /// Appends it. Before 1.2 it can only be a key: an empty one if there is none.
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
    /// Its head is malformed, or not all there.
    pub fn read(header: &Header, there: &'m [u8]) -> Result<Self, BadGiop> {
        let there = within(header, there);
        let mut reader = Reader::message(there, header.order, HEADER);
        let mut request =
            if header.version < Version::V1_2 { old(header.version, &mut reader) } else { new(&mut reader) }?;
        request.body_at = body_at(header, &reader)?;
        request.body = body(there, request.body_at);
        Ok(request)
    }

    /// A reader of the arguments, aligned as they are in the message.
    pub fn arguments(&self, order: Order) -> Reader<'m> {
        Reader::with_origin(self.body, order, self.body_at)
    }
}

/// 1.0 and 1.1: contexts, id, whether a reply is wanted, key, operation, principal.
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

/// 1.2: id, what is wanted, target, operation, contexts.
fn new<'m>(reader: &mut Reader<'m>) -> Result<Request<'m>, BadGiop> {
    let id = reader.u32()?;
    let flags = reader.u8()?;
    // Bit 0: a reply is expected. Bit 1: when the target has it, not only the server.
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
