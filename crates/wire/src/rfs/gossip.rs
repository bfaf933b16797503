//! GOSSIP: membership information between daemons. Its contents belong to the membership protocol. This
//! module adds the sender's incarnation and a sequence number, so that [`Recent`](super::Recent) can reject
//! replays.

use super::bytes::Reader;
use super::frame::Frame;
use super::header::Header;
use super::{Encode, HEADER, Keys, Kind, LONGEST, Opened, Refused, TRAILER, Unwritable, option};

/// One datagram of the membership protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gossip {
    /// The sender.
    pub member: u16,
    /// The sender's incarnation.
    pub incarnation: u32,
    /// The sequence number, which grows with each datagram of an incarnation.
    pub seq: u32,
    /// The contents; at most [`Gossip::MOST`] bytes.
    pub said: Vec<u8>,
}

/// The length of the fields before the contents, in bytes.
const FIXED: usize = 12;

impl Gossip {
    /// The maximum length of the contents, in bytes.
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
    /// Decodes a datagram of gossip; `None` if it is of another kind.
    ///
    /// # Errors
    /// The same as those of [`message`](Self::message).
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
