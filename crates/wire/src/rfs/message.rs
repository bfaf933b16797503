//! What an opened datagram says, and how it is written again: in the words of the brain ([`plimsoll_brain::lottery`]), which
//! are the only ones there are. One thing they say is not among the bytes: how much room an answer has. It is the length of the
//! datagram that is answered ([`Request::room`]), so that who forges a sender's address sends its owner no more than they
//! sent themselves.

use plimsoll_brain::lottery::{Answer, Commit, Drum, Fetch, Look, Message, Report, Request, Table};

use super::bytes::Reader;
use super::frame::Frame;
use super::header::Header;
use super::{Keys, Kind, LONGEST, Opened, Refused, TRAILER, Unwritable};
use super::{answer, commit, drum, report, request, table};

/// Bytes that every request has room for: a shorter one is refused.
pub const LEAST_ROOM: u16 = 128;

/// What can be written as one datagram.
pub trait Encode {
    /// Appends it, sealed. A request is padded to its `room`, 1200 bytes at the most; an answer is not longer than its `room`,
    /// and names as many further members as fit into that. Rooms below [`LEAST_ROOM`] count as that.
    ///
    /// # Errors
    /// It is too long, or one of its lists; nothing was appended. Nothing else is cut short to fit.
    fn encode(&self, keys: &Keys, out: &mut Vec<u8>) -> Result<(), Unwritable>;
}

impl Encode for Message {
    fn encode(&self, keys: &Keys, out: &mut Vec<u8>) -> Result<(), Unwritable> {
        match self {
            Self::Request(request) => request.encode(keys, out),
            Self::Answer(answer) => answer.encode(keys, out),
            Self::Commit(commit) => commit.encode(keys, out),
            Self::Report(report) => report.encode(keys, out),
            Self::Fetch(fetch) => fetch.encode(keys, out),
            Self::Table(table) => table.encode(keys, out),
            Self::Look(look) => look.encode(keys, out),
            Self::Drum(drum) => drum.encode(keys, out),
        }
    }
}

impl Encode for Request {
    fn encode(&self, keys: &Keys, out: &mut Vec<u8>) -> Result<(), Unwritable> {
        let frame = Frame::new(Kind::Request, self.id).padded(self.room.max(LEAST_ROOM).into());
        frame.write(keys, out, |out| request::write(self, out))
    }
}

impl Encode for Answer {
    fn encode(&self, keys: &Keys, out: &mut Vec<u8>) -> Result<(), Unwritable> {
        let frame = Frame::new(Kind::Answer, self.id).within(self.room.max(LEAST_ROOM).into());
        frame.write(keys, out, |out| answer::write(self, out))
    }
}

impl Encode for Commit {
    fn encode(&self, keys: &Keys, out: &mut Vec<u8>) -> Result<(), Unwritable> {
        Frame::new(Kind::Commit, 0).write(keys, out, |out| commit::write(self, out))
    }
}

impl Encode for Report {
    fn encode(&self, keys: &Keys, out: &mut Vec<u8>) -> Result<(), Unwritable> {
        Frame::new(Kind::Report, 0).write(keys, out, |out| report::write(self, out))
    }
}

impl Encode for Fetch {
    fn encode(&self, keys: &Keys, out: &mut Vec<u8>) -> Result<(), Unwritable> {
        Frame::new(Kind::Fetch, self.id).padded(LONGEST).write(keys, out, |out| {
            table::write_fetch(self, out);
            Ok(())
        })
    }
}

impl Encode for Table {
    fn encode(&self, keys: &Keys, out: &mut Vec<u8>) -> Result<(), Unwritable> {
        // What asks for it has the length of the longest there is.
        Frame::new(Kind::Table, self.id).write(keys, out, |out| table::write(self, out))
    }
}

impl Encode for Look {
    fn encode(&self, keys: &Keys, out: &mut Vec<u8>) -> Result<(), Unwritable> {
        Frame::new(Kind::Look, self.id).padded(LONGEST).write(keys, out, |out| {
            drum::write_look(self, out);
            Ok(())
        })
    }
}

impl Encode for Drum {
    fn encode(&self, keys: &Keys, out: &mut Vec<u8>) -> Result<(), Unwritable> {
        // As of a TABLE.
        Frame::new(Kind::Drum, self.id).write(keys, out, |out| drum::write(self, out))
    }
}

impl Opened<'_> {
    /// Reads what it says. Options that are unknown and not critical are left out.
    ///
    /// # Errors
    /// It is [`Refused::Malformed`]: of another version, of no known kind, not as long as it says, or its fields are wrong;
    /// or it is [gossip](Self::gossip).
    pub fn message(&self) -> Result<Message, Refused> {
        let total = self.bytes().len() + TRAILER;
        let mut reader = Reader::new(self.bytes());
        let Header { kind, id } = Header::read(&mut reader, total)?;
        Ok(match kind {
            // No datagram is longer than a header can say.
            Kind::Request => Message::Request(request::read(id, total as u16, reader)?),
            Kind::Answer => Message::Answer(answer::read(id, reader)?),
            Kind::Commit => Message::Commit(commit::read(reader)?),
            Kind::Report => Message::Report(report::read(reader)?),
            Kind::Fetch => Message::Fetch(table::read_fetch(id, reader)?),
            Kind::Table => Message::Table(table::read(id, reader)?),
            Kind::Look => Message::Look(drum::read_look(id, reader)?),
            Kind::Drum => Message::Drum(drum::read(id, reader)?),
            Kind::Gossip => return Err(Refused::Malformed("gossip is for daemons only")),
        })
    }
}
