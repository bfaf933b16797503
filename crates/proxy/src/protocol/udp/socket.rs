//! The listener's socket: receives datagrams with their local address, and responds from it.
//!
//! Only a listener on all addresses has to request that address (`IP_PKTINFO`, `IPV6_PKTINFO`). Without it
//! the kernel would choose the source address by the route, and clients drop responses from an address that
//! they did not use.

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

/// Makes a listener's socket report the local address of datagrams, if there may be several. Must precede
/// binding: for earlier datagrams, the kernel no longer knows it.
///
/// # Errors
/// The kernel does not support that.
pub(crate) fn enable_local_address(socket: &impl AsFd, address: &SocketAddr) -> io::Result<()> {
    match address {
        SocketAddr::V4(address) if address.ip().is_unspecified() => {
            setsockopt(socket, sockopt::Ipv4PacketInfo, &true)?;
        }
        // For clients with IPv4, it reports the address mapped into IPv6.
        SocketAddr::V6(address) if address.ip().is_unspecified() => {
            setsockopt(socket, sockopt::Ipv6RecvPacketInfo, &true)?;
        }
        _ => {}
    }
    Ok(())
}

pub(crate) struct UdpListenSocket {
    udp: UdpSocket,
    /// Whether it listens on all addresses.
    wildcard: bool,
    ancillary: std::cell::RefCell<Vec<u8>>,
}

impl UdpListenSocket {
    /// Wraps a socket bound to `address`.
    pub(crate) fn new(udp: UdpSocket, address: &SocketAddr) -> Self {
        let ancillary = nix::cmsg_space!(in6_pktinfo, in_pktinfo);
        Self { udp, wildcard: address.ip().is_unspecified(), ancillary: ancillary.into() }
    }

    pub(crate) async fn readable(&self) -> io::Result<()> {
        self.udp.readable().await
    }

    /// Receives a datagram: returns its length, the client, and the local address if the listener has
    /// several.
    ///
    /// # Errors
    /// There is none (`WouldBlock`), or one could not be received.
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

    /// Responds to a client from the local address that it used. Does not block: a datagram that cannot be
    /// sent now is lost.
    ///
    /// # Errors
    /// It was not sent.
    pub(crate) fn reply(&self, bytes: &[u8], client: SocketAddr, local: Option<IpAddr>) -> io::Result<()> {
        let Some(local) = local else {
            rustix::net::sendto(&self.udp, bytes, SendFlags::empty(), &client)?;
            return Ok(());
        };
        let (v4, v6);
        let control_message = match local {
            IpAddr::V4(local) => {
                let address = in_addr { s_addr: u32::from_ne_bytes(local.octets()) };
                v4 = in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: address, ipi_addr: address };
                ControlMessage::Ipv4PacketInfo(&v4)
            }
            IpAddr::V6(local) => {
                // A link-local address needs no index here: the client's address contains it.
                v6 = in6_pktinfo { ipi6_addr: in6_addr { s6_addr: local.octets() }, ipi6_ifindex: 0 };
                ControlMessage::Ipv6PacketInfo(&v6)
            }
        };
        let (fd, bufs) = (self.udp.as_raw_fd(), [IoSlice::new(bytes)]);
        match client {
            SocketAddr::V4(client) => {
                sendmsg(fd, &bufs, &[control_message], MsgFlags::empty(), Some(&SockaddrIn::from(client)))?;
            }
            SocketAddr::V6(client) => {
                sendmsg(fd, &bufs, &[control_message], MsgFlags::empty(), Some(&SockaddrIn6::from(client)))?;
            }
        }
        Ok(())
    }

    fn receive_with_local(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr, Option<IpAddr>)> {
        let mut ancillary = self.ancillary.borrow_mut();
        let mut bufs = [IoSliceMut::new(buffer)];
        let message = recvmsg::<SockaddrStorage>(
            self.udp.as_raw_fd(),
            &mut bufs,
            Some(&mut ancillary),
            MsgFlags::empty(),
        )?;
        let client = message.address.and_then(|client| {
            let v4 = client.as_sockaddr_in().map(|client| SocketAddrV4::from(*client).into());
            v4.or_else(|| client.as_sockaddr_in6().map(|client| SocketAddrV6::from(*client).into()))
        });
        let local = message.cmsgs()?.find_map(|control_message| match control_message {
            // For a broadcast, the local address that received it.
            ControlMessageOwned::Ipv4PacketInfo(info) => {
                Some(IpAddr::from(info.ipi_spec_dst.s_addr.to_ne_bytes()))
            }
            ControlMessageOwned::Ipv6PacketInfo(info) => Some(IpAddr::from(info.ipi6_addr.s6_addr)),
            _ => None,
        });
        Ok((message.bytes, client.ok_or(io::ErrorKind::InvalidData)?, local))
    }
}
