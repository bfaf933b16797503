//! Decoding and encoding of opened datagrams, in the brain's types ([`plimsoll_brain::lottery`]).
//!
//! The room for an answer is not encoded. It is the length of the request's datagram ([`Request::room`]). A
//! forged sender address therefore receives no more bytes than the forger sent.

use plimsoll_brain::lottery::{Answer, Commit, Drum, Fetch, Look, Message, Report, Request, Table};

use super::bytes::Reader;
use super::frame::Frame;
use super::header::Header;
use super::{Keys, Kind, LONGEST, Opened, Refused, TRAILER, Unwritable};
use super::{answer, commit, drum, report, request, table};

/// The room that every request has, in bytes: shorter ones are rejected.
pub const LEAST_ROOM: u16 = 128;

/// A message that can be encoded as one datagram.
pub trait Encode {
    /// Appends the sealed datagram. A request is padded to its `room`, at most 1200 bytes. An answer is not
    /// longer than its `room`, and lists as many further members as fit. Rooms below [`LEAST_ROOM`] count as
    /// that.
    ///
    /// # Errors
    /// The message, or one of its lists, is too long; nothing was appended. No other part is truncated to
    /// fit.
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
        // The request has the maximum length of all responses.
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
        // The same holds as for a TABLE.
        Frame::new(Kind::Drum, self.id).write(keys, out, |out| drum::write(self, out))
    }
}

impl Opened<'_> {
    /// Decodes the message. Unknown options that are not critical are ignored.
    ///
    /// # Errors
    /// The datagram is [`Refused::Malformed`]: of another version, an unknown kind, the wrong length, or with
    /// invalid fields; or it is [gossip](Self::gossip).
    pub fn message(&self) -> Result<Message, Refused> {
        let total = self.bytes().len() + TRAILER;
        let mut reader = Reader::new(self.bytes());
        let Header { kind, id } = Header::read(&mut reader, total)?;
        Ok(match kind {
            // No datagram is longer than a header can represent.
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
