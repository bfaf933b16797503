//! The bytes of the membership protocol, as in `docs/rfs2.md`: identities, headers, members.

use std::net::{IpAddr, SocketAddr};

use bytes::{Buf, BufMut, TryGetError};
use foca::{Codec as _, Header, Member, Message, State};

use super::NodeIdentity;

/// Encodes and decodes them.
#[derive(Clone, Copy, Debug)]
pub(super) struct GossipCodec;

/// The reason why a value cannot be encoded or decoded.
#[derive(Debug, thiserror::Error)]
pub(super) enum CodecError {
    #[error("there is no room for it")]
    BufferFull,
    #[error("it ends in the middle of a value")]
    TooShort(#[from] TryGetError),
    #[error("a number says nothing")]
    UnknownKind,
}

impl foca::Codec<NodeIdentity> for GossipCodec {
    type Error = CodecError;

    fn encode_header(&mut self, header: &Header<NodeIdentity>, buf: impl BufMut) -> Result<(), CodecError> {
        let mut out = Vec::with_capacity(80);
        write_node(header.src, &mut out);
        out.put_u16(header.src_incarnation);
        write_node(header.dst, &mut out);
        let (kind, probe, node) = match &header.message {
            Message::Ping(probe) => (0, Some(*probe), None),
            Message::Ack(probe) => (1, Some(*probe), None),
            Message::PingReq { target, probe_number } => (2, Some(*probe_number), Some(*target)),
            Message::IndirectPing { origin, probe_number } => (3, Some(*probe_number), Some(*origin)),
            Message::IndirectAck { target, probe_number } => (4, Some(*probe_number), Some(*target)),
            Message::ForwardedAck { origin, probe_number } => (5, Some(*probe_number), Some(*origin)),
            Message::Announce => (6, None, None),
            Message::Feed => (7, None, None),
            Message::Gossip => (8, None, None),
            Message::Broadcast => (9, None, None),
            Message::TurnUndead => (10, None, None),
        };
        out.put_u8(kind);
        if let Some(probe) = probe {
            out.put_u8(probe);
        }
        if let Some(node) = node {
            write_node(node, &mut out);
        }
        put_all(&out, buf)
    }

    fn decode_header(&mut self, mut buf: impl Buf) -> Result<Header<NodeIdentity>, CodecError> {
        let src = read_node(&mut buf)?;
        let src_incarnation = buf.try_get_u16()?;
        let dst = read_node(&mut buf)?;
        let message = match buf.try_get_u8()? {
            0 => Message::Ping(buf.try_get_u8()?),
            1 => Message::Ack(buf.try_get_u8()?),
            2 => {
                let probe_number = buf.try_get_u8()?;
                Message::PingReq { target: read_node(&mut buf)?, probe_number }
            }
            3 => {
                let probe_number = buf.try_get_u8()?;
                Message::IndirectPing { origin: read_node(&mut buf)?, probe_number }
            }
            4 => {
                let probe_number = buf.try_get_u8()?;
                Message::IndirectAck { target: read_node(&mut buf)?, probe_number }
            }
            5 => {
                let probe_number = buf.try_get_u8()?;
                Message::ForwardedAck { origin: read_node(&mut buf)?, probe_number }
            }
            6 => Message::Announce,
            7 => Message::Feed,
            8 => Message::Gossip,
            // 9 carries application data, which Plimsoll does not use.
            10 => Message::TurnUndead,
            _ => return Err(CodecError::UnknownKind),
        };
        Ok(Header { src, src_incarnation, dst, message })
    }

    fn encode_member(&mut self, member: &Member<NodeIdentity>, buf: impl BufMut) -> Result<(), CodecError> {
        let mut out = Vec::with_capacity(32);
        write_node(*member.id(), &mut out);
        out.put_u16(member.incarnation());
        out.put_u8(match member.state() {
            State::Alive => 0,
            State::Suspect => 1,
            State::Down => 2,
        });
        put_all(&out, buf)
    }

    fn decode_member(&mut self, mut buf: impl Buf) -> Result<Member<NodeIdentity>, CodecError> {
        let node = read_node(&mut buf)?;
        let incarnation = buf.try_get_u16()?;
        let state = match buf.try_get_u8()? {
            0 => State::Alive,
            1 => State::Suspect,
            2 => State::Down,
            _ => return Err(CodecError::UnknownKind),
        };
        Ok(Member::new(node, incarnation, state))
    }
}

/// The properties of a datagram to check before it is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DatagramSubject {
    /// The latest incarnation in it.
    pub(crate) latest: u32,
    /// The address of a daemon that requests to join, and so to receive the members.
    pub(crate) joins: Option<SocketAddr>,
}

/// Returns the subject of a datagram; `None` if it is malformed.
pub(super) fn subject(mut payload: &[u8]) -> Option<DatagramSubject> {
    let Header { src, dst, message, .. } = GossipCodec.decode_header(&mut payload).ok()?;
    let target_incarnation = match message {
        Message::PingReq { target: node, .. }
        | Message::IndirectAck { target: node, .. }
        | Message::IndirectPing { origin: node, .. }
        | Message::ForwardedAck { origin: node, .. } => node.incarnation,
        _ => 0,
    };
    let mut latest = src.incarnation.max(dst.incarnation).max(target_incarnation);
    if payload.has_remaining() {
        for _ in 0..payload.try_get_u16().ok()? {
            latest = latest.max(GossipCodec.decode_member(&mut payload).ok()?.id().incarnation);
        }
    }
    Some(DatagramSubject { latest, joins: (message == Message::Announce).then_some(src.address) })
}

/// Returns the bytes of the sending node at the beginning.
pub(super) fn sender_bytes(payload: &[u8]) -> &[u8] {
    let len = if payload.get(6) == Some(&4) { 13 } else { 25 };
    payload.get(..len).unwrap_or(payload)
}

/// Writes all bytes or none.
fn put_all(bytes: &[u8], mut buf: impl BufMut) -> Result<(), CodecError> {
    if buf.remaining_mut() < bytes.len() {
        return Err(CodecError::BufferFull);
    }
    buf.put_slice(bytes);
    Ok(())
}

fn write_node(node: NodeIdentity, out: &mut Vec<u8>) {
    out.put_u16(node.member);
    out.put_u32(node.incarnation);
    out.put_u8(if node.address.is_ipv4() { 4 } else { 6 });
    out.put_u16(node.address.port());
    match node.address.ip() {
        IpAddr::V4(ip) => out.put_slice(&ip.octets()),
        IpAddr::V6(ip) => out.put_slice(&ip.octets()),
    }
}

fn read_node(buf: &mut impl Buf) -> Result<NodeIdentity, CodecError> {
    let member = buf.try_get_u16()?;
    let incarnation = buf.try_get_u32()?;
    let family = buf.try_get_u8()?;
    let port = buf.try_get_u16()?;
    let ip = match family {
        4 => IpAddr::from(buf.try_get_u32()?.to_be_bytes()),
        6 => IpAddr::from(buf.try_get_u128()?.to_be_bytes()),
        _ => return Err(CodecError::UnknownKind),
    };
    Ok(NodeIdentity { member, incarnation, address: SocketAddr::new(ip, port) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node() -> impl Strategy<Value = NodeIdentity> {
        let v4 = any::<([u8; 4], u16)>().prop_map(SocketAddr::from);
        let v6 = any::<([u8; 16], u16)>().prop_map(SocketAddr::from);
        (any::<(u16, u32)>(), prop_oneof![v4, v6]).prop_map(|((member, incarnation), address)| NodeIdentity {
            member,
            incarnation,
            address,
        })
    }

    fn message() -> impl Strategy<Value = Message<NodeIdentity>> {
        let node_and_probe = || (node(), any::<u8>());
        prop_oneof![
            any::<u8>().prop_map(Message::Ping),
            any::<u8>().prop_map(Message::Ack),
            node_and_probe().prop_map(|(target, probe_number)| Message::PingReq { target, probe_number }),
            node_and_probe()
                .prop_map(|(origin, probe_number)| Message::IndirectPing { origin, probe_number }),
            node_and_probe().prop_map(|(target, probe_number)| Message::IndirectAck { target, probe_number }),
            node_and_probe()
                .prop_map(|(origin, probe_number)| Message::ForwardedAck { origin, probe_number }),
            Just(Message::Announce),
            Just(Message::Feed),
            Just(Message::Gossip),
            Just(Message::TurnUndead),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            src in node(), dst in node(), src_incarnation in any::<u16>(), message in message(),
            state in 0_u8..3,
        ) {
            let header = Header { src, src_incarnation, dst, message };
            let mut out = Vec::new();
            GossipCodec.encode_header(&header, &mut out).unwrap();
            let mut own = Vec::new();
            write_node(src, &mut own);
            prop_assert_eq!(sender_bytes(&out), &own[..]);
            let mut rest = &out[..];
            prop_assert_eq!(GossipCodec.decode_header(&mut rest).unwrap(), header.clone());
            prop_assert!(rest.is_empty());
            for end in 0..out.len() {
                prop_assert!(GossipCodec.decode_header(&out[..end]).is_err());
            }
            let mut short = (&mut out[..]).limit(40);
            let fits = GossipCodec.encode_header(&header, &mut short).is_ok();
            prop_assert!(fits == (short.remaining_mut() < 40));
            let state = [State::Alive, State::Suspect, State::Down][usize::from(state)];
            let member = Member::new(src, src_incarnation, state);
            let mut out = Vec::new();
            GossipCodec.encode_member(&member, &mut out).unwrap();
            prop_assert_eq!(GossipCodec.decode_member(&out[..]).unwrap(), member);
        }

        #[test]
        fn the_latest_life_is_found_wherever_it_is(
            src in node(), dst in node(), message in message(),
            news in proptest::collection::vec(node(), 0..5), at in any::<usize>(),
        ) {
            let header = Header { src, src_incarnation: 0, dst, message: message.clone() };
            let mut out = Vec::new();
            GossipCodec.encode_header(&header, &mut out).unwrap();
            let silent = matches!(message, Message::Announce | Message::TurnUndead);
            if !silent {
                out.put_u16(news.len() as u16);
                for node in &news {
                    GossipCodec.encode_member(&Member::new(*node, 0, State::Alive), &mut out).unwrap();
                }
            }
            let told = if silent { &[][..] } else { &news[..] };
            let found = subject(&out).unwrap();
            let mut all = [src, dst].into_iter().chain(told.iter().copied());
            prop_assert!(all.all(|node| node.incarnation <= found.latest));
            let joins = (message == Message::Announce).then_some(src.address);
            prop_assert_eq!(found.joins, joins);
            // A truncated datagram is not taken for an earlier incarnation.
            let short = &out[..at % out.len()];
            prop_assert!(subject(short).is_none_or(|short| short.latest <= found.latest));
        }

        #[test]
        fn nothing_that_is_read_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = GossipCodec.decode_header(&bytes[..]);
            let _ = GossipCodec.decode_member(&bytes[..]);
        }
    }
}
