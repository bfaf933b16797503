//! GOSSIP: who is there, as daemons tell one another. What it says is the membership protocol's affair; here it is bytes with
//! the sender's life and a count, so that what was recorded is not heard a second time ([`Recent`](super::Recent)).

use super::bytes::Reader;
use super::frame::Frame;
use super::header::Header;
use super::{Encode, HEADER, Keys, Kind, LONGEST, Opened, Refused, TRAILER, Unwritable, option};

/// One datagram of the membership protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gossip {
    /// Who sends it.
    pub member: u16,
    /// Which of its lives it is in.
    pub incarnation: u32,
    /// Grows with each that it sends in a life.
    pub seq: u32,
    /// What is said; at most [`Gossip::MOST`] bytes.
    pub said: Vec<u8>,
}

/// Bytes of the fields before what is said.
const FIXED: usize = 12;

impl Gossip {
    /// Bytes that can be said in one.
    pub const MOST: usize = LONGEST - HEADER - FIXED - TRAILER;
}

impl Encode for Gossip {
    fn encode(&self, keys: &Keys, out: &mut Vec<u8>) -> Result<(), Unwritable> {
        let (count, most) = (self.said.len(), Self::MOST);
        let many = Unwritable::TooMany { what: "bytes of gossip", count, most };
        let len = u16::try_from(count).ok().filter(|_| count <= most).ok_or(many)?;
        Frame::new(Kind::Gossip, 0).write(keys, out, |out| {
            out.extend_from_slice(&self.member.to_be_bytes());
            out.extend_from_slice(&self.incarnation.to_be_bytes());
            out.extend_from_slice(&self.seq.to_be_bytes());
            out.extend_from_slice(&len.to_be_bytes());
            out.extend_from_slice(&self.said);
            Ok(())
        })
    }
}

impl Opened<'_> {
    /// What daemons say to one another of who is there; `None` if it is of another kind.
    ///
    /// # Errors
    /// As of [`message`](Self::message).
    pub fn gossip(&self) -> Result<Option<Gossip>, Refused> {
        let mut reader = Reader::new(self.bytes());
        let Header { kind, .. } = Header::read(&mut reader, self.bytes().len() + TRAILER)?;
        if kind != Kind::Gossip {
            return Ok(None);
        }
        let member = reader.u16()?;
        let incarnation = reader.u32()?;
        let seq = reader.u32()?;
        let len = reader.u16()?;
        let said = reader.take(len.into())?.to_vec();
        option::skip(reader)?;
        Ok(Some(Gossip { member, incarnation, seq, said }))
    }
}
