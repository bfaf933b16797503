//! COMMIT: a daemon reports requests that it has answered, so that the others do not answer them.

use plimsoll_brain::lottery::AnswerCommit;

use super::byte_reader::{ByteReader, list_count};
use super::{DatagramDecodeError, DatagramEncodeError, option};

pub(super) fn write(commit: &AnswerCommit, out: &mut Vec<u8>) -> Result<(), DatagramEncodeError> {
    let ids = list_count("requests", commit.ids.len())?;
    out.extend_from_slice(&commit.member.to_be_bytes());
    out.extend_from_slice(&commit.incarnation.to_be_bytes());
    out.push(ids);
    commit.ids.iter().for_each(|id| out.extend_from_slice(&id.to_be_bytes()));
    Ok(())
}

pub(super) fn read(mut reader: ByteReader<'_>) -> Result<AnswerCommit, DatagramDecodeError> {
    let member = reader.u16()?;
    let incarnation = reader.u32()?;
    let count = reader.u8()?;
    let ids = reader.list(count, ByteReader::u64)?;
    option::skip(reader)?;
    Ok(AnswerCommit { member, incarnation, ids })
}
