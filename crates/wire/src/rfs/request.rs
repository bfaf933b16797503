//! REQUEST: a client asks one daemon, or all of them, who serves it.

use super::bytes::{Reader, count};
use super::frame::Frame;
use super::{Keys, Kind, Refused, Room, Unwritable, option};

/// Bytes of the longest information that goes with a request or an answer.
pub const MOST_INFO: usize = 1000;

/// How the one who serves is to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The daemon that is asked draws alone, and answers for whoever wins.
    Referral = 0,
    /// All who hear it draw, and the one who wins answers.
    Lottery = 1,
}

/// A client's request for a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Drawn by the client at random; the same when it asks again.
    pub id: u64,
    /// What is asked for.
    pub service: u32,
    /// Counts the times it was asked before.
    pub attempt: u8,
    /// How it is to be answered.
    pub mode: Mode,
    /// The generation of the table of members that the client knows; 0 for none.
    pub generation: u32,
    /// The client's own time, in what unit it likes: it is sent back.
    pub client_time: u32,
    /// Members that it does not want, because they just failed it; at most 255.
    pub avoid: Vec<u16>,
    /// What the application says to who decides; at most [`MOST_INFO`] bytes.
    pub info: Vec<u8>,
}

impl Request {
    /// Appends it, sealed, padded to `least` bytes: as long as the answer may become, 128 in any case and 1200 at most.
    ///
    /// # Errors
    /// It is too long, or avoids too many; nothing was appended.
    pub fn encode(&self, least: usize, keys: &Keys, out: &mut Vec<u8>) -> Result<(), Unwritable> {
        let avoided = count("members to avoid", self.avoid.len())?;
        let info = info_len(&self.info)?;
        let frame = Frame::new(Kind::Request, self.id).padded(least.max(Room::LEAST.bytes()));
        frame.write(keys, out, |out| {
            out.extend_from_slice(&self.service.to_be_bytes());
            out.extend_from_slice(&[self.attempt, self.mode as u8]);
            out.extend_from_slice(&self.generation.to_be_bytes());
            out.extend_from_slice(&self.client_time.to_be_bytes());
            out.push(avoided);
            self.avoid.iter().for_each(|member| out.extend_from_slice(&member.to_be_bytes()));
            out.extend_from_slice(&info.to_be_bytes());
            out.extend_from_slice(&self.info);
            Ok(())
        })
    }

    pub(super) fn read(id: u64, mut reader: Reader<'_>) -> Result<Self, Refused> {
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
        let info = read_info(&mut reader)?;
        option::skip(reader)?;
        Ok(Self { id, service, attempt, mode, generation, client_time, avoid, info })
    }
}

/// The length of an application's information, if it may be so long.
pub(super) fn info_len(info: &[u8]) -> Result<u16, Unwritable> {
    let many = Unwritable::TooMany { what: "bytes of information", count: info.len(), most: MOST_INFO };
    u16::try_from(info.len()).ok().filter(|_| info.len() <= MOST_INFO).ok_or(many)
}

pub(super) fn read_info(reader: &mut Reader<'_>) -> Result<Vec<u8>, Refused> {
    let len = usize::from(reader.u16()?);
    if len > MOST_INFO {
        return Err(Refused::Malformed("there is more information than there may be"));
    }
    Ok(reader.take(len)?.to_vec())
}
