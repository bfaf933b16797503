//! FETCH and TABLE: who is new asks for the table of members, a part at a time.
//!
//! A FETCH is as long as the longest part, and asks for one: nobody is sent more than they sent. All daemons that know
//! the same table cut it the same way ([`Table::split`]), so the parts may come from several of them.

use std::net::SocketAddr;

use super::bytes::{Reader, count};
use super::frame::Frame;
use super::request::{info_len, read_info};
use super::{HEADER, Keys, Kind, LONGEST, Refused, Room, TRAILER, Unwritable, address, option};

/// Asks for a part of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// Drawn at random; that of the part that answers.
    pub id: u64,
    /// The generation that is known already; 0 for none.
    pub generation: u32,
    /// Which part is wanted, from 0.
    pub part: u16,
}

impl Fetch {
    /// Appends it, sealed, padded to the 1200 bytes that its answer may have.
    ///
    /// # Errors
    /// None that can happen: its length is always the same.
    pub fn encode(&self, keys: &Keys, out: &mut Vec<u8>) -> Result<(), Unwritable> {
        Frame::new(Kind::Fetch, self.id).padded(LONGEST).write(keys, out, |out| {
            out.extend_from_slice(&self.generation.to_be_bytes());
            out.extend_from_slice(&self.part.to_be_bytes());
            Ok(())
        })
    }

    pub(super) fn read(id: u64, mut reader: Reader<'_>) -> Result<Self, Refused> {
        let generation = reader.u32()?;
        let part = reader.u16()?;
        option::skip(reader)?;
        Ok(Self { id, generation, part })
    }
}

/// A service that a member offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Which.
    pub service: u32,
    /// How much of it the member can do beside the others, in any unit.
    pub capacity: u16,
    /// Where.
    pub endpoint: SocketAddr,
    /// What goes with each answer to the clients' applications; at most [`MOST_INFO`](super::MOST_INFO) bytes.
    pub info: Vec<u8>,
}

/// A member of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its number.
    pub member: u16,
    /// Which of its lives it is in.
    pub incarnation: u32,
    /// Where its daemon is.
    pub address: SocketAddr,
    /// What it serves; at most 255.
    pub offers: Vec<Offer>,
}

/// A part of the table of members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The fetch's.
    pub id: u64,
    /// Of the table that it is a part of.
    pub generation: u32,
    /// Which part it is, from 0.
    pub part: u16,
    /// How many parts there are, this one included: at least one.
    pub parts: u16,
    /// Those of this part.
    pub members: Vec<Listed>,
}

/// Bytes of the fields before the members.
const FIXED: usize = 9;
const MOST: usize = LONGEST - HEADER - FIXED - TRAILER;

impl Table {
    /// How many of `members`, from the first, fit into one part.
    pub fn fit(members: &[Listed]) -> usize {
        let mut len = 0;
        let fits = members.iter().take(u8::MAX.into()).take_while(|member| {
            len += member.len();
            len <= MOST && member.offers.len() <= u8::MAX.into()
        });
        fits.count()
    }

    /// Cuts `members` into parts, each as full as it can be. There is at least one, which may be empty.
    ///
    /// # Errors
    /// The services of a member alone do not fit into a part, or there are more parts than can be counted.
    pub fn split(members: &[Listed]) -> Result<Vec<&[Listed]>, Unwritable> {
        let (mut parts, mut rest) = (Vec::new(), members);
        loop {
            let (part, more) = rest.split_at(Self::fit(rest));
            if let (true, Some(large)) = (part.is_empty(), more.first()) {
                let len = HEADER + FIXED + large.len() + TRAILER;
                return Err(Unwritable::TooLong { kind: Kind::Table, len, most: LONGEST });
            }
            parts.push(part);
            rest = more;
            if rest.is_empty() {
                break;
            }
        }
        let (count, most) = (parts.len(), usize::from(u16::MAX));
        if count > most { Err(Unwritable::TooMany { what: "parts", count, most }) } else { Ok(parts) }
    }

    /// Appends it, sealed, if it is not longer than what it answers.
    ///
    /// # Errors
    /// It has too many members or services, or is a part that there is not; nothing was appended.
    pub fn encode(&self, room: Room, keys: &Keys, out: &mut Vec<u8>) -> Result<(), Unwritable> {
        if self.part >= self.parts {
            return Err(Unwritable::Contradiction(NO_PART));
        }
        let members = count("members", self.members.len())?;
        Frame::new(Kind::Table, self.id).within(room).write(keys, out, |out| {
            out.extend_from_slice(&self.generation.to_be_bytes());
            out.extend_from_slice(&self.part.to_be_bytes());
            out.extend_from_slice(&self.parts.to_be_bytes());
            out.push(members);
            self.members.iter().try_for_each(|member| member.write(out))
        })
    }

    pub(super) fn read(id: u64, mut reader: Reader<'_>) -> Result<Self, Refused> {
        let generation = reader.u32()?;
        let (part, parts) = (reader.u16()?, reader.u16()?);
        if part >= parts {
            return Err(Refused::Malformed(NO_PART));
        }
        let count = reader.u8()?;
        let members = reader.list(count, Listed::read)?;
        option::skip(reader)?;
        Ok(Self { id, generation, part, parts, members })
    }
}

const NO_PART: &str = "a part of a table has a number that is not among its parts";

impl Listed {
    /// Bytes that it takes.
    fn len(&self) -> usize {
        let host = self.address.ip();
        let offers =
            self.offers.iter().map(|offer| 8 + address::len_near(&offer.endpoint, host) + offer.info.len());
        7 + address::len(&self.address) + offers.sum::<usize>()
    }

    fn write(&self, out: &mut Vec<u8>) -> Result<(), Unwritable> {
        out.extend_from_slice(&self.member.to_be_bytes());
        out.extend_from_slice(&self.incarnation.to_be_bytes());
        address::write(self.address, out);
        out.push(count("services", self.offers.len())?);
        for Offer { service, capacity, endpoint, info } in &self.offers {
            out.extend_from_slice(&service.to_be_bytes());
            out.extend_from_slice(&capacity.to_be_bytes());
            address::write_near(*endpoint, self.address.ip(), out);
            out.extend_from_slice(&info_len(info)?.to_be_bytes());
            out.extend_from_slice(info);
        }
        Ok(())
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Refused> {
        let member = reader.u16()?;
        let incarnation = reader.u32()?;
        let address = address::read(reader)?;
        let count = reader.u8()?;
        let offers = reader.list(count, |reader| {
            let (service, capacity) = (reader.u32()?, reader.u16()?);
            let endpoint = address::read_near(reader, address.ip())?;
            Ok(Offer { service, capacity, endpoint, info: read_info(reader)? })
        })?;
        Ok(Self { member, incarnation, address, offers })
    }
}
