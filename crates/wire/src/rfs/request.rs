//! REQUEST: a client asks one daemon, or all of them, for a server.

use plimsoll_brain::lottery::{Mode, Request};

use super::bytes::{Reader, count};
use super::{Refused, Unwritable, option};

/// The maximum length of the information in a request or an answer, in bytes.
pub const MOST_INFO: usize = 1000;

pub(super) fn write(request: &Request, out: &mut Vec<u8>) -> Result<(), Unwritable> {
    let avoided = count("members to avoid", request.avoid.len())?;
    let info = info_len(&request.info)?;
    let mode = match request.mode {
        Mode::Referral => 0,
        Mode::Lottery => 1,
    };
    out.extend_from_slice(&request.service.to_be_bytes());
    out.extend_from_slice(&[request.attempt, mode]);
    out.extend_from_slice(&request.generation.to_be_bytes());
    out.extend_from_slice(&request.client_time.to_be_bytes());
    out.push(avoided);
    request.avoid.iter().for_each(|member| out.extend_from_slice(&member.to_be_bytes()));
    out.extend_from_slice(&info.to_be_bytes());
    out.extend_from_slice(&request.info);
    Ok(())
}

pub(super) fn read(id: u64, room: u16, mut reader: Reader<'_>) -> Result<Request, Refused> {
    let service = reader.u32()?;
    let attempt = reader.u8()?;
    let mode = match reader.u8()? {
        0 => Mode::Referral,
        1 => Mode::Lottery,
        _ => return Err(Refused::Malformed("a request is of no known mode")),
    };
    let generation = reader.u32()?;
    let client_time = reader.u32()?;
    let avoided = reader.u8()?;
    let avoid = reader.list(avoided, Reader::u16)?;
    let info = read_info(&mut reader)?.to_vec();
    option::skip(reader)?;
    Ok(Request { id, service, attempt, mode, generation, client_time, avoid, info, room })
}

/// Returns the length of an application's information, if it is within the limit.
pub(super) fn info_len(info: &[u8]) -> Result<u16, Unwritable> {
    let many = Unwritable::TooMany { what: "bytes of information", count: info.len(), most: MOST_INFO };
    u16::try_from(info.len()).ok().filter(|_| info.len() <= MOST_INFO).ok_or(many)
}

pub(super) fn read_info<'b>(reader: &mut Reader<'b>) -> Result<&'b [u8], Refused> {
    let len = usize::from(reader.u16()?);
    if len > MOST_INFO {
        return Err(Refused::Malformed("there is more information than there may be"));
    }
    reader.take(len)
}
