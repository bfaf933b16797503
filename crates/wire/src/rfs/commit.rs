//! COMMIT: a daemon has answered these requests, so that the others need not.

use super::bytes::{Reader, count};
use super::frame::Frame;
use super::{HEADER, Keys, Kind, LONGEST, Refused, TRAILER, Unwritable, option};

/// What a daemon has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Who answered.
    pub member: u16,
    /// Which of its lives it is in.
    pub incarnation: u32,
    /// The requests; at most [`Commit::MOST_IDS`].
    pub ids: Vec<u64>,
}

/// Bytes of the fields before the ids.
const FIXED: usize = 7;

impl Commit {
    /// How many requests fit into one.
    pub const MOST_IDS: usize = (LONGEST - HEADER - FIXED - TRAILER) / size_of::<u64>();

    /// Appends it, sealed.
    ///
    /// # Errors
    /// It has too many ids; nothing was appended.
    pub fn encode(&self, keys: &Keys, out: &mut Vec<u8>) -> Result<(), Unwritable> {
        let ids = count("requests", self.ids.len())?;
        Frame::new(Kind::Commit, 0).write(keys, out, |out| {
            out.extend_from_slice(&self.member.to_be_bytes());
            out.extend_from_slice(&self.incarnation.to_be_bytes());
            out.push(ids);
            self.ids.iter().for_each(|id| out.extend_from_slice(&id.to_be_bytes()));
            Ok(())
        })
    }

    pub(super) fn read(mut reader: Reader<'_>) -> Result<Self, Refused> {
        let member = reader.u16()?;
        let incarnation = reader.u32()?;
        let count = reader.u8()?;
        let ids = reader.list(count, Reader::u64)?;
        option::skip(reader)?;
        Ok(Self { member, incarnation, ids })
    }
}
