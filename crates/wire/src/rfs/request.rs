//! REQUEST: a client asks one daemon, or all of them, for a server.

use plimsoll_brain::lottery::{AnswerMode, LotteryRequest};

use super::byte_reader::{ByteReader, list_count};
use super::{DatagramDecodeError, DatagramEncodeError, option};

/// The maximum length of the information in a request or an answer, in bytes.
pub const MAX_INFO: usize = 1000;

pub(super) fn write(request: &LotteryRequest, out: &mut Vec<u8>) -> Result<(), DatagramEncodeError> {
    let avoided_count = list_count("members to avoid", request.avoid.len())?;
    let info = info_len(&request.info)?;
    let mode = match request.mode {
        AnswerMode::Referral => 0,
        AnswerMode::Lottery => 1,
    };
    out.extend_from_slice(&request.service.to_be_bytes());
    out.extend_from_slice(&[request.attempt, mode]);
    out.extend_from_slice(&request.generation.to_be_bytes());
    out.extend_from_slice(&request.client_time.to_be_bytes());
    out.push(avoided_count);
    request.avoid.iter().for_each(|member| out.extend_from_slice(&member.to_be_bytes()));
    out.extend_from_slice(&info.to_be_bytes());
    out.extend_from_slice(&request.info);
    Ok(())
}

pub(super) fn read(
    id: u64,
    max_answer_bytes: u16,
    mut reader: ByteReader<'_>,
) -> Result<LotteryRequest, DatagramDecodeError> {
    let service = reader.u32()?;
    let attempt = reader.u8()?;
    let mode = match reader.u8()? {
        0 => AnswerMode::Referral,
        1 => AnswerMode::Lottery,
        _ => return Err(DatagramDecodeError::Malformed("a request is of no known mode")),
    };
    let generation = reader.u32()?;
    let client_time = reader.u32()?;
    let avoided_count = reader.u8()?;
    let avoid = reader.list(avoided_count, ByteReader::u16)?;
    let info = read_info(&mut reader)?.to_vec();
    option::skip(reader)?;
    Ok(LotteryRequest { id, service, attempt, mode, generation, client_time, avoid, info, max_answer_bytes })
}

/// Returns the length of an application's information, if it is within the limit.
pub(super) fn info_len(info: &[u8]) -> Result<u16, DatagramEncodeError> {
    let error =
        DatagramEncodeError::TooMany { what: "bytes of information", count: info.len(), most: MAX_INFO };
    u16::try_from(info.len()).ok().filter(|_| info.len() <= MAX_INFO).ok_or(error)
}

pub(super) fn read_info<'b>(reader: &mut ByteReader<'b>) -> Result<&'b [u8], DatagramDecodeError> {
    let len = usize::from(reader.u16()?);
    if len > MAX_INFO {
        return Err(DatagramDecodeError::Malformed("there is more information than there may be"));
    }
    reader.take(len)
}
