//! The listener's socket: a datagram comes with the address it was sent to, and is answered from it.
//!
//! Only a listener on all addresses has to ask (`IP_PKTINFO`, `IPV6_PKTINFO`): there the kernel would choose
//! the address to answer from by the route back, and clients drop answers from an address they did not ask.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};

use nix::libc::{in_addr, in_pktinfo, in6_addr, in6_pktinfo};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, SockaddrIn6, SockaddrStorage, recvmsg,
    sendmsg, setsockopt, sockopt,
};
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// Has a listener's socket tell where datagrams are sent to, if they may be sent to several addresses. Must
/// come before the socket is bound: of a datagram that came before, the kernel does not know any more.
///
/// # Errors
/// The kernel does not do that.
pub(crate) fn prepare(socket: &impl AsFd, address: &SocketAddr) -> io::Result<()> {
    match address {
        SocketAddr::V4(address) if address.ip().is_unspecified() => {
            setsockopt(socket, sockopt::Ipv4PacketInfo, &true)?;
        }
        // Of a client that uses IPv4, it tells the address mapped into IPv6.
        SocketAddr::V6(address) if address.ip().is_unspecified() => {
            setsockopt(socket, sockopt::Ipv6RecvPacketInfo, &true)?;
        }
        _ => {}
    }
    Ok(())
}

pub(crate) struct Socket {
    udp: UdpSocket,
    /// Does it listen on all addresses?
    wildcard: bool,
    ancillary: std::cell::RefCell<Vec<u8>>,
}

impl Socket {
    /// A socket bound to `address`.
    pub(crate) fn new(udp: UdpSocket, address: &SocketAddr) -> Self {
        let ancillary = nix::cmsg_space!(in6_pktinfo, in_pktinfo);
        Self { udp, wildcard: address.ip().is_unspecified(), ancillary: ancillary.into() }
    }

    pub(crate) async fn readable(&self) -> io::Result<()> {
        self.udp.readable().await
    }

    /// A datagram: its length, the client, and the address it was sent to if we listen on several.
    ///
    /// # Errors
    /// None is there (`WouldBlock`), or one could not be received.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr, Option<IpAddr>)> {
        self.udp.try_io(Interest::READABLE, || {
            if self.wildcard {
                return self.receive_with_local(buffer);
            }
            let (len, _, client) = rustix::net::recvfrom(&self.udp, buffer, RecvFlags::empty())?;
            let client = client.and_then(|client| SocketAddr::try_from(client).ok());
            Ok((len, client.ok_or(io::ErrorKind::InvalidData)?, None))
        })
    }

    /// Answers a client from the address it sent to. Waits for nothing: what does not go now is lost.
    ///
    /// # Errors
    /// It was not sent.
    pub(crate) fn reply(&self, bytes: &[u8], client: SocketAddr, local: Option<IpAddr>) -> io::Result<()> {
        let Some(local) = local else {
            rustix::net::sendto(&self.udp, bytes, SendFlags::empty(), &client)?;
            return Ok(());
        };
        let (four, six);
        let from = match local {
            IpAddr::V4(local) => {
                let address = in_addr { s_addr: u32::from_ne_bytes(local.octets()) };
                four = in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: address, ipi_addr: address };
                ControlMessage::Ipv4PacketInfo(&four)
            }
            IpAddr::V6(local) => {
                // An address of one link needs no index here: the client's address has it.
                six = in6_pktinfo { ipi6_addr: in6_addr { s6_addr: local.octets() }, ipi6_ifindex: 0 };
                ControlMessage::Ipv6PacketInfo(&six)
            }
        };
        let (fd, parts) = (self.udp.as_raw_fd(), [IoSlice::new(bytes)]);
        match client {
            SocketAddr::V4(client) => {
                sendmsg(fd, &parts, &[from], MsgFlags::empty(), Some(&SockaddrIn::from(client)))?;
            }
            SocketAddr::V6(client) => {
                sendmsg(fd, &parts, &[from], MsgFlags::empty(), Some(&SockaddrIn6::from(client)))?;
            }
        }
        Ok(())
    }

    fn receive_with_local(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr, Option<IpAddr>)> {
        let mut ancillary = self.ancillary.borrow_mut();
        let mut parts = [IoSliceMut::new(buffer)];
        let message = recvmsg::<SockaddrStorage>(
            self.udp.as_raw_fd(),
            &mut parts,
            Some(&mut ancillary),
            MsgFlags::empty(),
        )?;
        let client = message.address.and_then(|client| {
            let four = client.as_sockaddr_in().map(|client| SocketAddrV4::from(*client).into());
            four.or_else(|| client.as_sockaddr_in6().map(|client| SocketAddrV6::from(*client).into()))
        });
        let local = message.cmsgs()?.find_map(|part| match part {
            // Of a broadcast, the address of ours that it came to.
            ControlMessageOwned::Ipv4PacketInfo(info) => {
                Some(IpAddr::from(info.ipi_spec_dst.s_addr.to_ne_bytes()))
            }
            ControlMessageOwned::Ipv6PacketInfo(info) => Some(IpAddr::from(info.ipi6_addr.s6_addr)),
            _ => None,
        });
        Ok((message.bytes, client.ok_or(io::ErrorKind::InvalidData)?, local))
    }
}
