//! REPORT: how a daemon is, several times a second.

use super::bytes::{Reader, count};
use super::frame::Frame;
use super::{HEADER, Keys, Kind, LONGEST_REPORT, Refused, TRAILER, Unwritable, option};

/// Whether a member takes work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Not yet: it is learning who is there.
    Joining = 0,
    /// It does.
    Up = 1,
    /// It ends what it has.
    Draining = 2,
    /// This is its last report.
    Leaving = 3,
}

impl Standing {
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, Refused> {
        match reader.u8()? {
            0 => Ok(Self::Joining),
            1 => Ok(Self::Up),
            2 => Ok(Self::Draining),
            3 => Ok(Self::Leaving),
            _ => Err(Refused::Malformed("a member is in no known state")),
        }
    }
}

/// One service of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Which.
    pub service: u32,
    /// How much of it the member can do beside the others, in any unit.
    pub capacity: u16,
    /// How much of it the member wants: 2^((weight - 128) / 16) in the same unit; 0 for nothing.
    pub weight: u16,
    /// How loaded it is, in thousandths of what it can do.
    pub load: u16,
    /// Requests that it works on.
    pub in_flight: u16,
}

/// What a daemon says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Who it is.
    pub member: u16,
    /// Which of its lives it is in: grows with each start.
    pub incarnation: u32,
    /// Grows with each report of a life.
    pub seq: u32,
    /// Whether it takes work.
    pub state: Standing,
    /// Of the table that it draws from.
    pub digest: u64,
    /// What it serves; at most [`Report::MOST_SERVICES`].
    pub services: Vec<Share>,
    /// Requests it answered lately, in case the COMMITs were lost; see [`Report::ids_beside`].
    pub ids: Vec<u64>,
}

/// Bytes of the fields before the services.
const FIXED: usize = 21;
const SERVICE: usize = 12;
const ROOM: usize = LONGEST_REPORT - HEADER - FIXED - TRAILER;

impl Report {
    /// How many services fit into one that lists no requests.
    pub const MOST_SERVICES: usize = ROOM / SERVICE;

    /// How many requests fit beside so many services; `None` if the services alone do not fit.
    pub fn ids_beside(services: usize) -> Option<usize> {
        let left = ROOM.checked_sub(services.checked_mul(SERVICE)?)?;
        Some((left / size_of::<u64>()).min(u8::MAX.into()))
    }

    /// Appends it, sealed.
    ///
    /// # Errors
    /// It has too many services or requests; nothing was appended.
    pub fn encode(&self, keys: &Keys, out: &mut Vec<u8>) -> Result<(), Unwritable> {
        let services = count("services", self.services.len())?;
        let ids = count("requests", self.ids.len())?;
        Frame::new(Kind::Report, 0).write(keys, out, |out| {
            out.extend_from_slice(&self.member.to_be_bytes());
            out.extend_from_slice(&self.incarnation.to_be_bytes());
            out.extend_from_slice(&self.seq.to_be_bytes());
            out.push(self.state as u8);
            out.extend_from_slice(&self.digest.to_be_bytes());
            out.extend_from_slice(&[services, ids]);
            for Share { service, capacity, weight, load, in_flight } in &self.services {
                out.extend_from_slice(&service.to_be_bytes());
                for number in [capacity, weight, load, in_flight] {
                    out.extend_from_slice(&number.to_be_bytes());
                }
            }
            self.ids.iter().for_each(|id| out.extend_from_slice(&id.to_be_bytes()));
            Ok(())
        })
    }

    pub(super) fn read(mut reader: Reader<'_>) -> Result<Self, Refused> {
        let member = reader.u16()?;
        let incarnation = reader.u32()?;
        let seq = reader.u32()?;
        let state = Standing::read(&mut reader)?;
        let digest = reader.u64()?;
        let (services, ids) = (reader.u8()?, reader.u8()?);
        let services = reader.list(services, |reader| {
            Ok(Share {
                service: reader.u32()?,
                capacity: reader.u16()?,
                weight: reader.u16()?,
                load: reader.u16()?,
                in_flight: reader.u16()?,
            })
        })?;
        let ids = reader.list(ids, Reader::u64)?;
        option::skip(reader)?;
        Ok(Self { member, incarnation, seq, state, digest, services, ids })
    }
}
