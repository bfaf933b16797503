//! ANSWER: who serves the client that asked.

use std::net::SocketAddr;

use super::bytes::{Reader, count};
use super::frame::Frame;
use super::request::{info_len, read_info};
use super::{HEADER, Keys, Kind, Refused, Room, TRAILER, Unwritable, address, option};

/// What comes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// The member serves it.
    Ok = 0,
    /// Nobody has room.
    Busy = 1,
    /// Nobody here serves that.
    UnknownService = 2,
    /// Who was asked is going, and draws no more.
    Draining = 3,
}

/// A member that comes after the one that was drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Further {
    /// Its number.
    pub member: u16,
    /// Where it serves what was asked for.
    pub endpoint: SocketAddr,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The request's.
    pub id: u64,
    /// What was asked for.
    pub service: u32,
    /// What came of it.
    pub status: Status,
    /// The member's place in the ranking: 0 for the first.
    pub rank: u8,
    /// Milliseconds for which the client may go on with it without asking again; 0 for this once.
    pub ttl: u16,
    /// The member that serves it; of an answer that is not [`Status::Ok`] who says so.
    pub member: u16,
    /// Where the member serves what was asked for; of an answer that is [`Status::Ok`] never `None`.
    pub endpoint: Option<SocketAddr>,
    /// The client's time, out of the request.
    pub client_time: u32,
    /// The generation of the table that it was drawn from.
    pub generation: u32,
    /// What the daemon's application says to the client's; at most [`MOST_INFO`](super::MOST_INFO) bytes.
    pub info: Vec<u8>,
    /// Who comes next, best first; at most [`Answer::MOST_FURTHER`].
    pub further: Vec<Further>,
}

/// Bytes of the fields before the information.
const FIXED: usize = 39;

impl Answer {
    /// How many members may follow the first.
    pub const MOST_FURTHER: usize = 4;

    /// How many of `further`, from the first, fit into `room` beside the information. Without any of them it may still be
    /// too long: then the information is.
    pub fn further_that_fit(&self, room: Room) -> usize {
        let mut len = HEADER + FIXED + self.info.len() + option::HEAD + 1 + TRAILER;
        let most = room.bytes().min(Kind::Answer.longest());
        let fits = self.further.iter().take(Self::MOST_FURTHER).take_while(|further| {
            len += 2 + address::len(&further.endpoint);
            len <= most
        });
        fits.count()
    }

    /// Appends it, sealed, if it is not longer than what it answers.
    ///
    /// # Errors
    /// It is too long for `room`, has too many further members, or is [`Status::Ok`] without an endpoint; nothing was
    /// appended.
    pub fn encode(&self, room: Room, keys: &Keys, out: &mut Vec<u8>) -> Result<(), Unwritable> {
        if self.status == Status::Ok && self.endpoint.is_none() {
            return Err(Unwritable::Contradiction(NOWHERE));
        }
        let (what, most) = ("further members", Self::MOST_FURTHER);
        if self.further.len() > most {
            return Err(Unwritable::TooMany { what, count: self.further.len(), most });
        }
        let further = count(what, self.further.len())?;
        let info = info_len(&self.info)?;
        Frame::new(Kind::Answer, self.id).within(room).write(keys, out, |out| {
            out.extend_from_slice(&self.service.to_be_bytes());
            out.extend_from_slice(&[self.status as u8, self.rank]);
            out.extend_from_slice(&self.ttl.to_be_bytes());
            out.extend_from_slice(&self.member.to_be_bytes());
            address::write_fixed(self.endpoint, out);
            out.extend_from_slice(&self.client_time.to_be_bytes());
            out.extend_from_slice(&self.generation.to_be_bytes());
            out.extend_from_slice(&info.to_be_bytes());
            out.extend_from_slice(&self.info);
            if further > 0 {
                option::write(option::FURTHER, out, |out| {
                    out.push(further);
                    for Further { member, endpoint } in &self.further {
                        out.extend_from_slice(&member.to_be_bytes());
                        address::write(*endpoint, out);
                    }
                });
            }
            Ok(())
        })
    }

    pub(super) fn read(id: u64, mut reader: Reader<'_>) -> Result<Self, Refused> {
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
        let info = read_info(&mut reader)?;
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
        Ok(Self { id, service, status, rank, ttl, member, endpoint, client_time, generation, info, further })
    }
}

const NOWHERE: &str = "an answer names a member and not where it is";

fn read_further(mut value: Reader<'_>) -> Result<Vec<Further>, Refused> {
    let count = value.u8()?;
    if !(1..=Answer::MOST_FURTHER).contains(&usize::from(count)) {
        return Err(Refused::Malformed("there are no further members, or too many"));
    }
    let further =
        value.list(count, |value| Ok(Further { member: value.u16()?, endpoint: address::read(value)? }))?;
    match value.is_empty() {
        true => Ok(further),
        false => Err(Refused::Malformed("further members are fewer than there is space for")),
    }
}
