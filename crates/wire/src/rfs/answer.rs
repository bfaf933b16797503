//! ANSWER: the server for the client's request.

use plimsoll_brain::lottery::{AnswerStatus, FallbackMember, LotteryAnswer, MAX_FALLBACKS};

use super::byte_reader::ByteReader;
use super::request::{info_len, read_info};
use super::{
    DatagramDecodeError, DatagramEncodeError, DatagramKind, HEADER_LEN, MIN_ROOM, TRAILER_LEN, address,
    option,
};

/// The length of the fields before the information, in bytes.
const FIXED: usize = 39;

pub(super) fn write(answer: &LotteryAnswer, out: &mut Vec<u8>) -> Result<(), DatagramEncodeError> {
    if answer.status == AnswerStatus::Ok && answer.endpoint.is_none() {
        return Err(DatagramEncodeError::Contradiction(NOWHERE));
    }
    let info = info_len(&answer.info)?;
    let status = match answer.status {
        AnswerStatus::Ok => 0,
        AnswerStatus::Busy => 1,
        AnswerStatus::UnknownService => 2,
        AnswerStatus::Draining => 3,
    };
    out.extend_from_slice(&answer.service.to_be_bytes());
    out.extend_from_slice(&[status, answer.rank]);
    out.extend_from_slice(&answer.ttl.to_be_bytes());
    out.extend_from_slice(&answer.member.to_be_bytes());
    address::write_fixed(answer.endpoint, out);
    out.extend_from_slice(&answer.client_time.to_be_bytes());
    out.extend_from_slice(&answer.generation.to_be_bytes());
    out.extend_from_slice(&info.to_be_bytes());
    out.extend_from_slice(&answer.info);
    let fallbacks = fitting_fallbacks(answer);
    if !fallbacks.is_empty() {
        option::write(option::FALLBACKS, out, |out| {
            // At most four.
            out.push(fallbacks.len() as u8);
            for FallbackMember { member, endpoint } in fallbacks {
                out.extend_from_slice(&member.to_be_bytes());
                address::write(*endpoint, out);
            }
        });
    }
    Ok(())
}

/// Returns the first further members that fit beside the information.
fn fitting_fallbacks(answer: &LotteryAnswer) -> &[FallbackMember] {
    let mut len = HEADER_LEN + FIXED + answer.info.len() + option::OPTION_HEADER_LEN + 1 + TRAILER_LEN;
    let max_len = usize::from(answer.max_bytes.max(MIN_ROOM)).min(DatagramKind::Answer.max_len());
    let fitting = answer.fallbacks.iter().take(MAX_FALLBACKS).take_while(|fallback| {
        len += 2 + address::len(&fallback.endpoint);
        len <= max_len
    });
    &answer.fallbacks[..fitting.count()]
}

pub(super) fn read(id: u64, mut reader: ByteReader<'_>) -> Result<LotteryAnswer, DatagramDecodeError> {
    let service = reader.u32()?;
    let status = match reader.u8()? {
        0 => AnswerStatus::Ok,
        1 => AnswerStatus::Busy,
        2 => AnswerStatus::UnknownService,
        3 => AnswerStatus::Draining,
        _ => return Err(DatagramDecodeError::Malformed("an answer is of no known status")),
    };
    let rank = reader.u8()?;
    let ttl = reader.u16()?;
    let member = reader.u16()?;
    let endpoint = address::read_fixed(&mut reader)?;
    if status == AnswerStatus::Ok && endpoint.is_none() {
        return Err(DatagramDecodeError::Malformed(NOWHERE));
    }
    let client_time = reader.u32()?;
    let generation = reader.u32()?;
    let info = read_info(&mut reader)?.into();
    let mut fallbacks = Vec::new();
    option::read(reader, |number, value| {
        if number != option::FALLBACKS {
            return Ok(false);
        }
        if !fallbacks.is_empty() {
            return Err(DatagramDecodeError::Malformed("further members are named twice"));
        }
        fallbacks = read_fallbacks(value)?;
        Ok(true)
    })?;
    // An answer is never answered.
    let max_bytes = 0;
    Ok(LotteryAnswer {
        id,
        service,
        status,
        rank,
        ttl,
        member,
        endpoint,
        client_time,
        generation,
        info,
        fallbacks,
        max_bytes,
    })
}

const NOWHERE: &str = "an answer names a member and not where it is";

fn read_fallbacks(mut value: ByteReader<'_>) -> Result<Vec<FallbackMember>, DatagramDecodeError> {
    let count = value.u8()?;
    if !(1..=MAX_FALLBACKS).contains(&usize::from(count)) {
        return Err(DatagramDecodeError::Malformed("there are no further members, or too many"));
    }
    let fallbacks = value
        .list(count, |value| Ok(FallbackMember { member: value.u16()?, endpoint: address::read(value)? }))?;
    match value.is_empty() {
        true => Ok(fallbacks),
        false => Err(DatagramDecodeError::Malformed("further members are fewer than there is space for")),
    }
}
