//! Decoding and encoding of opened datagrams, in the brain's types ([`plimsoll_brain::lottery`]).
//!
//! The room for an answer is not encoded. It is the length of the request's datagram
//! ([`LotteryRequest::max_answer_bytes`]). A forged sender address therefore receives no more bytes than the
//! forger sent.

use plimsoll_brain::lottery::{
    AnswerCommit, CandidateQuery, CandidateSet, LotteryAnswer, LotteryMessage, LotteryRequest, NodeReport,
    TableFetch, TablePart,
};

use super::byte_reader::ByteReader;
use super::frame::DatagramFrame;
use super::header::DatagramHeader;
use super::{
    DatagramDecodeError, DatagramEncodeError, DatagramKind, KeyRing, MAX_DATAGRAM_LEN, OpenedDatagram,
    TRAILER_LEN,
};
use super::{answer, candidates, commit, report, request, table};

/// The room that every request has, in bytes: shorter ones are rejected.
pub const MIN_ROOM: u16 = 128;

/// A message that can be encoded as one datagram.
pub trait EncodeDatagram {
    /// Appends the sealed datagram. A request is padded to its `room`, at most 1200 bytes. An answer is not
    /// longer than its `room`, and lists as many further members as fit. Rooms below [`MIN_ROOM`] count as
    /// that.
    ///
    /// # Errors
    /// The message, or one of its lists, is too long; nothing was appended. No other part is truncated to
    /// fit.
    fn encode(&self, keys: &KeyRing, out: &mut Vec<u8>) -> Result<(), DatagramEncodeError>;
}

impl EncodeDatagram for LotteryMessage {
    fn encode(&self, keys: &KeyRing, out: &mut Vec<u8>) -> Result<(), DatagramEncodeError> {
        match self {
            Self::Request(request) => request.encode(keys, out),
            Self::Answer(answer) => answer.encode(keys, out),
            Self::Commit(commit) => commit.encode(keys, out),
            Self::Report(report) => report.encode(keys, out),
            Self::Fetch(fetch) => fetch.encode(keys, out),
            Self::Table(table) => table.encode(keys, out),
            Self::CandidateQuery(look) => look.encode(keys, out),
            Self::CandidateSet(drum) => drum.encode(keys, out),
        }
    }
}

impl EncodeDatagram for LotteryRequest {
    fn encode(&self, keys: &KeyRing, out: &mut Vec<u8>) -> Result<(), DatagramEncodeError> {
        let frame = DatagramFrame::new(DatagramKind::Request, self.id)
            .with_min_len(self.max_answer_bytes.max(MIN_ROOM).into());
        frame.write(keys, out, |out| request::write(self, out))
    }
}

impl EncodeDatagram for LotteryAnswer {
    fn encode(&self, keys: &KeyRing, out: &mut Vec<u8>) -> Result<(), DatagramEncodeError> {
        let frame = DatagramFrame::new(DatagramKind::Answer, self.id)
            .with_max_len(self.max_bytes.max(MIN_ROOM).into());
        frame.write(keys, out, |out| answer::write(self, out))
    }
}

impl EncodeDatagram for AnswerCommit {
    fn encode(&self, keys: &KeyRing, out: &mut Vec<u8>) -> Result<(), DatagramEncodeError> {
        DatagramFrame::new(DatagramKind::Commit, 0).write(keys, out, |out| commit::write(self, out))
    }
}

impl EncodeDatagram for NodeReport {
    fn encode(&self, keys: &KeyRing, out: &mut Vec<u8>) -> Result<(), DatagramEncodeError> {
        DatagramFrame::new(DatagramKind::Report, 0).write(keys, out, |out| report::write(self, out))
    }
}

impl EncodeDatagram for TableFetch {
    fn encode(&self, keys: &KeyRing, out: &mut Vec<u8>) -> Result<(), DatagramEncodeError> {
        DatagramFrame::new(DatagramKind::Fetch, self.id).with_min_len(MAX_DATAGRAM_LEN).write(
            keys,
            out,
            |out| {
                table::write_fetch(self, out);
                Ok(())
            },
        )
    }
}

impl EncodeDatagram for TablePart {
    fn encode(&self, keys: &KeyRing, out: &mut Vec<u8>) -> Result<(), DatagramEncodeError> {
        // The request has the maximum length of all responses.
        DatagramFrame::new(DatagramKind::Table, self.id).write(keys, out, |out| table::write(self, out))
    }
}

impl EncodeDatagram for CandidateQuery {
    fn encode(&self, keys: &KeyRing, out: &mut Vec<u8>) -> Result<(), DatagramEncodeError> {
        DatagramFrame::new(DatagramKind::Look, self.id).with_min_len(MAX_DATAGRAM_LEN).write(
            keys,
            out,
            |out| {
                candidates::write_query(self, out);
                Ok(())
            },
        )
    }
}

impl EncodeDatagram for CandidateSet {
    fn encode(&self, keys: &KeyRing, out: &mut Vec<u8>) -> Result<(), DatagramEncodeError> {
        // The same holds as for a TABLE.
        DatagramFrame::new(DatagramKind::Drum, self.id).write(keys, out, |out| candidates::write(self, out))
    }
}

impl OpenedDatagram<'_> {
    /// Decodes the message. Unknown options that are not critical are ignored.
    ///
    /// # Errors
    /// The datagram is [`DatagramDecodeError::Malformed`]: of another version, an unknown kind, the wrong
    /// length, or with invalid fields; or it is [gossip](Self::gossip).
    pub fn message(&self) -> Result<LotteryMessage, DatagramDecodeError> {
        let total = self.bytes().len() + TRAILER_LEN;
        let mut reader = ByteReader::new(self.bytes());
        let DatagramHeader { kind, id } = DatagramHeader::read(&mut reader, total)?;
        Ok(match kind {
            // No datagram is longer than a header can represent.
            DatagramKind::Request => LotteryMessage::Request(request::read(id, total as u16, reader)?),
            DatagramKind::Answer => LotteryMessage::Answer(answer::read(id, reader)?),
            DatagramKind::Commit => LotteryMessage::Commit(commit::read(reader)?),
            DatagramKind::Report => LotteryMessage::Report(report::read(reader)?),
            DatagramKind::Fetch => LotteryMessage::Fetch(table::read_fetch(id, reader)?),
            DatagramKind::Table => LotteryMessage::Table(table::read(id, reader)?),
            DatagramKind::Look => LotteryMessage::CandidateQuery(candidates::read_query(id, reader)?),
            DatagramKind::Drum => LotteryMessage::CandidateSet(candidates::read(id, reader)?),
            DatagramKind::Gossip => return Err(DatagramDecodeError::Malformed("gossip is for daemons only")),
        })
    }
}
