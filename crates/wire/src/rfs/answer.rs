//! ANSWER: the server for the client's request.

use plimsoll_brain::lottery::{Answer, FURTHER, Further, Status};

use super::bytes::Reader;
use super::request::{info_len, read_info};
use super::{HEADER, Kind, LEAST_ROOM, Refused, TRAILER, Unwritable, address, option};

/// The length of the fields before the information, in bytes.
const FIXED: usize = 39;

pub(super) fn write(answer: &Answer, out: &mut Vec<u8>) -> Result<(), Unwritable> {
    if answer.status == Status::Ok && answer.endpoint.is_none() {
        return Err(Unwritable::Contradiction(NOWHERE));
    }
    let info = info_len(&answer.info)?;
    let status = match answer.status {
        Status::Ok => 0,
        Status::Busy => 1,
        Status::UnknownService => 2,
        Status::Draining => 3,
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
    let further = fitting(answer);
    if !further.is_empty() {
        option::write(option::FURTHER, out, |out| {
            // At most four.
            out.push(further.len() as u8);
            for Further { member, endpoint } in further {
                out.extend_from_slice(&member.to_be_bytes());
                address::write(*endpoint, out);
            }
        });
    }
    Ok(())
}

/// Returns the first further members that fit beside the information.
fn fitting(answer: &Answer) -> &[Further] {
    let mut len = HEADER + FIXED + answer.info.len() + option::HEAD + 1 + TRAILER;
    let most = usize::from(answer.room.max(LEAST_ROOM)).min(Kind::Answer.longest());
    let fit = answer.further.iter().take(FURTHER).take_while(|further| {
        len += 2 + address::len(&further.endpoint);
        len <= most
    });
    &answer.further[..fit.count()]
}

pub(super) fn read(id: u64, mut reader: Reader<'_>) -> Result<Answer, Refused> {
    let service = reader.u32()?;
    let status = match reader.u8()? {
        0 => Status::Ok,
        1 => Status::Busy,
        2 => Status::UnknownService,
        3 => Status::Draining,
        _ => return Err(Refused::Malformed("an answer is of no known status")),
    };
    let rank = reader.u8()?;
    let ttl = reader.u16()?;
    let member = reader.u16()?;
    let endpoint = address::read_fixed(&mut reader)?;
    if status == Status::Ok && endpoint.is_none() {
        return Err(Refused::Malformed(NOWHERE));
    }
    let client_time = reader.u32()?;
    let generation = reader.u32()?;
    let info = read_info(&mut reader)?.into();
    let mut further = Vec::new();
    option::read(reader, |number, value| {
        if number != option::FURTHER {
            return Ok(false);
        }
        if !further.is_empty() {
            return Err(Refused::Malformed("further members are named twice"));
        }
        further = read_further(value)?;
        Ok(true)
    })?;
    // An answer is never answered.
    let room = 0;
    Ok(Answer {
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
        further,
        room,
    })
}

const NOWHERE: &str = "an answer names a member and not where it is";

fn read_further(mut value: Reader<'_>) -> Result<Vec<Further>, Refused> {
    let count = value.u8()?;
    if !(1..=FURTHER).contains(&usize::from(count)) {
        return Err(Refused::Malformed("there are no further members, or too many"));
    }
    let further =
        value.list(count, |value| Ok(Further { member: value.u16()?, endpoint: address::read(value)? }))?;
    match value.is_empty() {
        true => Ok(further),
        false => Err(Refused::Malformed("further members are fewer than there is space for")),
    }
}
