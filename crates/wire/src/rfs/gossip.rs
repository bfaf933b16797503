//! GOSSIP: membership information between daemons. Its contents belong to the membership protocol. This
//! module adds the sender's incarnation and a sequence number, so that
//! [`GossipReplayFilter`](super::GossipReplayFilter) can reject replays.

use super::byte_reader::ByteReader;
use super::frame::DatagramFrame;
use super::header::DatagramHeader;
use super::{
    DatagramDecodeError, DatagramEncodeError, DatagramKind, EncodeDatagram, HEADER_LEN, KeyRing,
    MAX_DATAGRAM_LEN, OpenedDatagram, TRAILER_LEN, option,
};

/// One datagram of the membership protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GossipDatagram {
    /// The sender.
    pub member: u16,
    /// The sender's incarnation.
    pub incarnation: u32,
    /// The sequence number, which grows with each datagram of an incarnation.
    pub seq: u32,
    /// The contents; at most [`GossipDatagram::MAX_PAYLOAD`] bytes.
    pub payload: Vec<u8>,
}

/// The length of the fields before the contents, in bytes.
const FIXED: usize = 12;

impl GossipDatagram {
    /// The maximum length of the contents, in bytes.
    pub const MAX_PAYLOAD: usize = MAX_DATAGRAM_LEN - HEADER_LEN - FIXED - TRAILER_LEN;
}

impl EncodeDatagram for GossipDatagram {
    fn encode(&self, keys: &KeyRing, out: &mut Vec<u8>) -> Result<(), DatagramEncodeError> {
        let (count, max) = (self.payload.len(), Self::MAX_PAYLOAD);
        let error = DatagramEncodeError::TooMany { what: "bytes of gossip", count, most: max };
        let len = u16::try_from(count).ok().filter(|_| count <= max).ok_or(error)?;
        DatagramFrame::new(DatagramKind::Gossip, 0).write(keys, out, |out| {
            out.extend_from_slice(&self.member.to_be_bytes());
            out.extend_from_slice(&self.incarnation.to_be_bytes());
            out.extend_from_slice(&self.seq.to_be_bytes());
            out.extend_from_slice(&len.to_be_bytes());
            out.extend_from_slice(&self.payload);
            Ok(())
        })
    }
}

impl OpenedDatagram<'_> {
    /// Decodes a datagram of gossip; `None` if it is of another kind.
    ///
    /// # Errors
    /// The same as those of [`message`](Self::message).
    pub fn gossip(&self) -> Result<Option<GossipDatagram>, DatagramDecodeError> {
        let mut reader = ByteReader::new(self.bytes());
        let DatagramHeader { kind, .. } =
            DatagramHeader::read(&mut reader, self.bytes().len() + TRAILER_LEN)?;
        if kind != DatagramKind::Gossip {
            return Ok(None);
        }
        let member = reader.u16()?;
        let incarnation = reader.u32()?;
        let seq = reader.u32()?;
        let len = reader.u16()?;
        let payload = reader.take(len.into())?.to_vec();
        option::skip(reader)?;
        Ok(Some(GossipDatagram { member, incarnation, seq, payload }))
    }
}
