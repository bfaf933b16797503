//! Reply: what came of a request.

use super::{body, body_at, within};
use crate::giop::{BadGiop, Contexts, HEADER, Header, Ior, Order, Reader, Version};

/// How a request went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It was performed; the body is its result.
    Done = 0,
    /// It raised an exception of its own; the body is that.
    UserException = 1,
    /// It failed; the body is a [`SystemException`].
    SystemException = 2,
    /// The object is at the reference in the body, for now.
    Forward = 3,
    /// The object is at the reference in the body, for good (1.2).
    ForwardForGood = 4,
    /// It is to be sent again with the object named in the way that the body says (1.2).
    NeedsAddressing = 5,
}

impl Status {
    const ALL: [Self; 6] = [
        Self::Done,
        Self::UserException,
        Self::SystemException,
        Self::Forward,
        Self::ForwardForGood,
        Self::NeedsAddressing,
    ];

    fn read(version: Version, reader: &mut Reader<'_>) -> Result<Self, BadGiop> {
        let known = if version < Version::V1_2 { 4 } else { 6 };
        let status = usize::try_from(reader.u32()?).ok().and_then(|status| Self::ALL[..known].get(status));
        status.copied().ok_or(BadGiop::Malformed("a reply has a status that its version does not know"))
    }
}

/// A reply.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply<'m> {
    /// Of the request that it answers.
    pub id: u32,
    /// Offset of the id in the message, for giving it another in place.
    pub id_at: usize,
    /// How the request went.
    pub status: Status,
    /// What travels beside it.
    pub contexts: Contexts<'m>,
    /// Offset of the body in the message; the message's length if it has none.
    pub body_at: usize,
    /// The result, the exception or the reference, as much of it as is there.
    pub body: &'m [u8],
}

impl<'m> Reply<'m> {
    /// Reads a reply from its message, or from the beginning of it.
    ///
    /// # Errors
    /// Its head is malformed, or not all there.
    pub fn read(header: &Header, there: &'m [u8]) -> Result<Self, BadGiop> {
        let there = within(header, there);
        let mut reader = Reader::message(there, header.order, HEADER);
        let (id, id_at, status, contexts);
        if header.version < Version::V1_2 {
            contexts = Contexts::read(&mut reader)?;
            id = reader.u32()?;
            id_at = reader.position() - 4;
            status = Status::read(header.version, &mut reader)?;
        } else {
            id_at = reader.position();
            id = reader.u32()?;
            status = Status::read(header.version, &mut reader)?;
            contexts = Contexts::read(&mut reader)?;
        }
        let body_at = body_at(header, &reader)?;
        Ok(Self { id, id_at, status, contexts, body_at, body: body(there, body_at) })
    }

    /// A reader of the body, aligned as it is in the message.
    pub fn result(&self, order: Order) -> Reader<'m> {
        Reader::with_origin(self.body, order, self.body_at)
    }

    /// Where the object is instead, if that is what the reply says and all of it is there.
    pub fn forward(&self, order: Order) -> Option<Ior> {
        let forwards = matches!(self.status, Status::Forward | Status::ForwardForGood);
        if forwards { Ior::read(&mut self.result(order)).ok() } else { None }
    }

    /// Why the request failed, if that is what the reply says and all of it is there.
    pub fn exception(&self, order: Order) -> Option<SystemException<'m>> {
        let failed = self.status == Status::SystemException;
        if failed { SystemException::read(&mut self.result(order)).ok() } else { None }
    }
}

/// Whether a request that failed was performed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completed {
    /// It was.
    Yes = 0,
    /// It was not: it may be sent again.
    No = 1,
    /// That is not known.
    Maybe = 2,
}

/// Why a request failed, as the standard says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemException<'m> {
    /// Its type, as `IDL:omg.org/CORBA/TRANSIENT:1.0`.
    pub type_id: &'m [u8],
    /// What exactly: a vendor's number above, its own below.
    pub minor: u32,
    /// Whether the request was performed.
    pub completed: Completed,
}

impl<'m> SystemException<'m> {
    /// No member can take the request now; it was not performed.
    pub const TRANSIENT: SystemException<'static> = not_performed(b"IDL:omg.org/CORBA/TRANSIENT:1.0");
    /// There is no such object.
    pub const OBJECT_NOT_EXIST: SystemException<'static> =
        not_performed(b"IDL:omg.org/CORBA/OBJECT_NOT_EXIST:1.0");
    /// The object has no such operation.
    pub const BAD_OPERATION: SystemException<'static> = not_performed(b"IDL:omg.org/CORBA/BAD_OPERATION:1.0");
    /// The request could not be read.
    pub const MARSHAL: SystemException<'static> = not_performed(b"IDL:omg.org/CORBA/MARSHAL:1.0");
    /// An argument cannot be what it is.
    pub const BAD_PARAM: SystemException<'static> = not_performed(b"IDL:omg.org/CORBA/BAD_PARAM:1.0");
    /// The object's type has such an operation, but it does nothing here.
    pub const NO_IMPLEMENT: SystemException<'static> = not_performed(b"IDL:omg.org/CORBA/NO_IMPLEMENT:1.0");
    /// What was to be done could not be done, for a reason that the client cannot help.
    pub const INTERNAL: SystemException<'static> = not_performed(b"IDL:omg.org/CORBA/INTERNAL:1.0");
    /// The request needs more than there is.
    pub const NO_RESOURCES: SystemException<'static> = not_performed(b"IDL:omg.org/CORBA/NO_RESOURCES:1.0");
    /// The connection was lost with the request on it; it may have been performed.
    pub const COMM_FAILURE: SystemException<'static> = SystemException {
        type_id: b"IDL:omg.org/CORBA/COMM_FAILURE:1.0",
        minor: 0,
        completed: Completed::Maybe,
    };

    /// What it is called, as `TRANSIENT`, if it is one of the standard's.
    pub fn name(&self) -> &'m str {
        let inner =
            self.type_id.strip_prefix(b"IDL:omg.org/CORBA/").and_then(|rest| rest.strip_suffix(b":1.0"));
        inner.and_then(|name| std::str::from_utf8(name).ok()).unwrap_or_default()
    }

    /// Reads the body of a reply that says one.
    ///
    /// # Errors
    /// It is not all there, or malformed.
    pub fn read(reader: &mut Reader<'m>) -> Result<Self, BadGiop> {
        let (type_id, minor) = (reader.string()?, reader.u32()?);
        let completed = match reader.u32()? {
            0 => Completed::Yes,
            1 => Completed::No,
            2 => Completed::Maybe,
            _ => {
                return Err(BadGiop::Malformed(
                    "an exception does not say whether the request was performed",
                ));
            }
        };
        Ok(Self { type_id, minor, completed })
    }
}

const fn not_performed(type_id: &'static [u8]) -> SystemException<'static> {
    SystemException { type_id, minor: 0, completed: Completed::No }
}
