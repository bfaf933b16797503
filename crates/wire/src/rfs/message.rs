//! What an opened datagram says.

use super::bytes::Reader;
use super::header::Header;
use super::{Answer, Commit, Fetch, Kind, Opened, Refused, Report, Request, Room, TRAILER, Table};

/// What a datagram says. What may be answered comes with the room that its answer has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is what its content says it is")]
pub enum Message {
    Request(Request, Room),
    Answer(Answer),
    Commit(Commit),
    Report(Report),
    Fetch(Fetch, Room),
    Table(Table),
}

impl Message {
    /// What kind of datagram it came in.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Request(..) => Kind::Request,
            Self::Answer(_) => Kind::Answer,
            Self::Commit(_) => Kind::Commit,
            Self::Report(_) => Kind::Report,
            Self::Fetch(..) => Kind::Fetch,
            Self::Table(_) => Kind::Table,
        }
    }
}

impl Opened<'_> {
    /// Reads what it says. Options that are unknown and not critical are left out.
    ///
    /// # Errors
    /// It is [`Refused::Malformed`]: of another version, of no known kind, not as long as it says, or its fields are wrong.
    pub fn message(&self) -> Result<Message, Refused> {
        let total = self.bytes().len() + TRAILER;
        let mut reader = Reader::new(self.bytes());
        let Header { kind, id } = Header::read(&mut reader, total)?;
        let room = Room::of(total);
        Ok(match kind {
            Kind::Request => Message::Request(Request::read(id, reader)?, room),
            Kind::Answer => Message::Answer(Answer::read(id, reader)?),
            Kind::Commit => Message::Commit(Commit::read(reader)?),
            Kind::Report => Message::Report(Report::read(reader)?),
            Kind::Fetch => Message::Fetch(Fetch::read(id, reader)?, room),
            Kind::Table => Message::Table(Table::read(id, reader)?),
        })
    }
}
