//! Datagrams, many with one system call: `recvmmsg` and `sendmmsg`.
//!
//! The kernel's segmentation offload (`UDP_SEGMENT`, GSO) is not used. It requires consecutive datagrams of
//! one length to one receiver, but answers go to different clients, with lengths that depend on the members
//! in them. Consecutive datagrams to one receiver are the parts of a table, a dozen when a daemon joins; a
//! report goes to each receiver once. A batch of 64 already takes one system call, so GSO would only shorten
//! the kernel's path in rare cases.
//!
//! A daemon sends and receives on one socket, and where multicast is available a second one receives the
//! group's datagrams. The kernel timestamps each datagram's arrival (`SO_TIMESTAMPNS`), so that late reads
//! are detected. Both sockets have the same family. An IPv6 socket accepts no IPv4, or members would be known
//! by addresses that others cannot use.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::cmsg_space;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, MultiHeaders, RecvMsg, SockaddrStorage, recvmmsg, setsockopt, sockopt,
};
use nix::sys::time::TimeSpec;
use plimsoll_wire::rfs::MAX_REPORT_LEN;
use rustix::io::Errno;
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, sendmmsg};
use socket2::{Domain, Protocol, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// The maximum number of datagrams per system call.
pub(crate) const MAX_BATCH: usize = 64;

/// One byte more than the maximum length, so that longer datagrams are detected.
const BUFFER_LENGTH: usize = MAX_REPORT_LEN + 1;

/// The requested size of the receive buffer, in bytes, for while the daemon is busy; the kernel may grant
/// less.
const RECEIVE_BUFFER_SIZE: usize = 4 << 20;

/// A daemon's bound sockets.
#[derive(Debug)]
pub(crate) struct DaemonSocket {
    unicast: std::net::UdpSocket,
    multicast: Option<std::net::UdpSocket>,
    address: SocketAddr,
}

/// A daemon's sockets in a runtime.
#[derive(Debug)]
pub(crate) struct AsyncSockets {
    pub(crate) unicast: UdpSocket,
    pub(crate) multicast: Option<UdpSocket>,
}

impl DaemonSocket {
    /// Binds the sockets. Multicast datagrams leave through the interface with the address of `listen`, and
    /// stay in the local network.
    ///
    /// # Errors
    /// The address is taken or not local, or the multicast group is not available.
    pub(crate) fn bind(listen: SocketAddr, group: Option<SocketAddr>) -> io::Result<Self> {
        let socket = open(listen)?;
        socket.bind(&listen.into())?;
        let group = match group {
            Some(group) => {
                let interface = multicast_interface(listen, group);
                send_through(&socket, listen, interface)?;
                Some(join_group(group, listen, interface)?)
            }
            None => None,
        };
        let socket: std::net::UdpSocket = socket.into();
        let address = socket.local_addr()?;
        Ok(Self { unicast: socket, multicast: group.map(Into::into), address })
    }

    /// Takes a socket that another process bound, for a daemon without a multicast group.
    ///
    /// # Errors
    /// The socket is not a datagram socket.
    pub(crate) fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let socket = std::net::UdpSocket::from(fd);
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        Ok(Self { unicast: socket, multicast: None, address })
    }

    /// Requests timestamps of arrival from the kernel. Without them no datagram counts as late.
    pub(crate) fn enable_timestamps(&self) {
        for socket in [Some(&self.unicast), self.multicast.as_ref()].into_iter().flatten() {
            let _ = setsockopt(socket, sockopt::ReceiveTimestampns, &true);
        }
    }

    /// Returns a copy of the main socket, for another process.
    ///
    /// # Errors
    /// The system provides no more file descriptors.
    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        Ok(self.unicast.try_clone()?.into())
    }

    /// Returns the bound address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Registers the sockets with the current runtime.
    ///
    /// # Errors
    /// The system provides no event queue.
    pub(crate) fn register(self) -> io::Result<AsyncSockets> {
        let group = self.multicast.map(UdpSocket::from_std).transpose()?;
        Ok(AsyncSockets { unicast: UdpSocket::from_std(self.unicast)?, multicast: group })
    }
}

/// Opens a non-blocking socket for `address`.
fn open(address: SocketAddr) -> io::Result<socket2::Socket> {
    let socket = socket2::Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    // A smaller buffer does not prevent the start.
    let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER_SIZE);
    Ok(socket)
}

/// Returns the interface number for an IPv6 multicast group: the scope of the address or of the group, or
/// else the interface with the address. 0 lets the system choose. Link-local groups (`ff02::`) require an
/// interface.
fn multicast_interface(local_address: SocketAddr, group: SocketAddr) -> u32 {
    let scope = |address: SocketAddr| match address {
        SocketAddr::V6(address) => address.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    match (scope(local_address), scope(group)) {
        (0, 0) => {
            let table = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
            let SocketAddr::V6(local_address) = local_address else { return 0 };
            interface_with_address(&table, u128::from(*local_address.ip())).unwrap_or_default()
        }
        (0, scope) | (scope, _) => scope,
    }
}

/// Finds the interface with an address in the kernel's table: address, number of the interface, and more, in
/// hexadecimal.
fn interface_with_address(table: &str, address: u128) -> Option<u32> {
    table.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let entry_address = u128::from_str_radix(fields.next()?, 16).ok()?;
        if entry_address == address { u32::from_str_radix(fields.next()?, 16).ok() } else { None }
    })
}

/// Sends multicast datagrams through the interface of an address.
fn send_through(socket: &socket2::Socket, local_address: SocketAddr, interface: u32) -> io::Result<()> {
    match local_address {
        SocketAddr::V4(local_address) => {
            socket.set_multicast_if_v4(local_address.ip())?;
            socket.set_multicast_ttl_v4(1)
        }
        SocketAddr::V6(_) => {
            socket.set_multicast_if_v6(interface)?;
            socket.set_multicast_hops_v6(1)
        }
    }
}

/// Opens a socket that receives a group's datagrams. Several daemons of a host may join the same group.
fn join_group(
    mut group: SocketAddr,
    local_address: SocketAddr,
    interface: u32,
) -> io::Result<socket2::Socket> {
    let socket = open(group)?;
    socket.set_reuse_address(true)?;
    if let SocketAddr::V6(group) = &mut group {
        group.set_scope_id(interface);
    }
    socket.bind(&group.into())?;
    match (group, local_address) {
        (SocketAddr::V4(group), SocketAddr::V4(local_address)) => {
            socket.join_multicast_v4(group.ip(), local_address.ip())?
        }
        (SocketAddr::V6(group), SocketAddr::V6(_)) => socket.join_multicast_v6(group.ip(), interface)?,
        _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "the group is of another family")),
    }
    Ok(socket)
}

/// The buffers for one system call, which stay with their thread.
pub(crate) struct ReceiveBuffers {
    headers: MultiHeaders<SockaddrStorage>,
    buffers: Vec<[u8; BUFFER_LENGTH]>,
}

impl ReceiveBuffers {
    pub(crate) fn new() -> Self {
        Self {
            headers: MultiHeaders::preallocate(MAX_BATCH, None),
            buffers: vec![[0; BUFFER_LENGTH]; MAX_BATCH],
        }
    }

    /// Creates the buffers for [timestamped](DaemonSocket::enable_timestamps) sockets.
    pub(crate) fn with_timestamps() -> Self {
        let space = cmsg_space!(TimeSpec);
        Self { headers: MultiHeaders::preallocate(MAX_BATCH, Some(space)), ..Self::new() }
    }

    /// Receives up to [`MAX_BATCH`] datagrams and returns their number. If there are fewer, none is left, and
    /// the socket becomes readable when more arrive. A datagram that is too long is truncated, and still too
    /// long. `each` also receives the time since the datagram's arrival, if it has a timestamp.
    pub(crate) fn receive(
        &mut self,
        socket: &UdpSocket,
        mut on_datagram: impl FnMut(SocketAddr, Option<Duration>, &[u8]),
    ) -> usize {
        let Self { headers, buffers } = self;
        let mut io_slices: Vec<[IoSliceMut<'_>; 1]> =
            buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
        let (fd, slices, mut count) = (socket.as_raw_fd(), io_slices.iter_mut(), 0);
        // The same for the whole batch.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let result = socket.try_io(Interest::READABLE, || {
            for message in recvmmsg(fd, headers, slices, MsgFlags::MSG_DONTWAIT, None)? {
                let waited = arrival_delay(&message, now);
                count += 1;
                let from = message.address.and_then(|from| {
                    let v4 = from.as_sockaddr_in().map(|from| SocketAddrV4::from(*from).into());
                    v4.or_else(|| from.as_sockaddr_in6().map(|from| SocketAddrV6::from(*from).into()))
                });
                // Every sender has an address, and an empty datagram has no part.
                if let Some(from) = from {
                    on_datagram(from, waited, message.iovs().next().unwrap_or_default());
                }
            }
            // One more system call that finds nothing would cost as much as an answer.
            if count < MAX_BATCH { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        // Other errors concern a single datagram, and another call follows.
        drop(result);
        count
    }
}

/// Returns the time since a datagram's arrival, by this host's clock, which may have been set meanwhile.
fn arrival_delay(message: &RecvMsg<'_, '_, SockaddrStorage>, now: Duration) -> Option<Duration> {
    let timestamp = message.cmsgs().ok()?.find_map(|control| match control {
        ControlMessageOwned::ScmTimestampns(timestamp) => Some(Duration::from(timestamp)),
        _ => None,
    })?;
    Some(now.saturating_sub(timestamp))
}

/// The pending datagrams.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    bytes: Vec<u8>,
    datagrams: Vec<(Range<usize>, SocketAddr)>,
}

impl SendQueue {
    /// Returns the buffer to write the next datagram to.
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Queues the bytes from `start` on for an address.
    pub(crate) fn queue(&mut self, start: usize, to: SocketAddr) {
        self.datagrams.push((start..self.bytes.len(), to));
    }

    /// Returns the number of pending datagrams.
    pub(crate) fn len(&self) -> usize {
        self.datagrams.len()
    }

    /// Removes the datagrams instead of sending them, for tests without sockets.
    #[cfg(test)]
    pub(crate) fn drain(&mut self, mut on_datagram: impl FnMut(SocketAddr, &[u8])) {
        for (range, to) in std::mem::take(&mut self.datagrams) {
            on_datagram(to, &self.bytes[range]);
        }
        self.bytes.clear();
    }

    /// Sends all datagrams and returns the number that the kernel accepted. The others are lost, as they may
    /// be on the network.
    pub(crate) fn send(&mut self, socket: &UdpSocket) -> usize {
        let mut sent = 0;
        for batch in self.datagrams.chunks(MAX_BATCH) {
            let slices: Vec<[IoSlice<'_>; 1]> =
                batch.iter().map(|(range, _)| [IoSlice::new(&self.bytes[range.clone()])]).collect();
            let addresses: Vec<SocketAddrAny> = batch.iter().map(|(_, to)| (*to).into()).collect();
            let mut controls: Vec<SendAncillaryBuffer<'_, '_, '_>> =
                batch.iter().map(|_| SendAncillaryBuffer::default()).collect();
            let entries = addresses.iter().zip(&slices).zip(&mut controls);
            let mut headers: Vec<MMsgHdr<'_>> =
                entries.map(|((to, slice), control)| MMsgHdr::new_with_addr(to, slice, control)).collect();
            let mut offset = 0;
            while offset < headers.len() {
                match sendmmsg(socket, &mut headers[offset..], SendFlags::DONTWAIT) {
                    Ok(count) => (offset, sent) = (offset + count.max(1), sent + count),
                    Err(Errno::INTR) => {}
                    // The queue is full, so the rest will not fit either.
                    Err(Errno::AGAIN) => break,
                    // The error concerns the first datagram only: an unreachable address.
                    Err(_) => offset += 1,
                }
            }
        }
        self.bytes.clear();
        self.datagrams.clear();
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn pair(host: &str) -> (AsyncSockets, AsyncSockets) {
        let bind = || DaemonSocket::bind(SocketAddr::new(host.parse().unwrap(), 0), None).unwrap();
        (bind().register().unwrap(), bind().register().unwrap())
    }

    #[test]
    fn an_interface_is_known_by_its_address() {
        let table = "00000000000000000000000000000001 01 80 10 80       lo\n\
                     fd000000000000000000000000000001 0c 40 00 80     eth0\n\
                     fe800000000000000000000000000001 0c 40 20 80     eth0\n";
        let address = |text: &str| u128::from(text.parse::<std::net::Ipv6Addr>().unwrap());
        assert_eq!(interface_with_address(table, address("fd00::1")), Some(12));
        assert_eq!(
            (
                interface_with_address(table, address("::1")),
                interface_with_address(table, address("fd00::2"))
            ),
            (Some(1), None)
        );
        let interface =
            |local: &str, group: &str| multicast_interface(local.parse().unwrap(), group.parse().unwrap());
        assert_eq!(interface("[fe80::1%7]:1", "[ff02::1]:1"), 7);
        assert_eq!(interface("[2001:db8::1]:1", "[ff02::1%8]:1"), 8);
        assert_eq!(
            (interface("[2001:db8::1]:1", "[ff02::1]:1"), interface("10.0.0.1:1", "239.0.0.1:1")),
            (0, 0)
        );
    }

    #[tokio::test]
    async fn many_go_and_come_with_few_calls() {
        for host in ["127.0.0.1", "::1"] {
            if std::net::UdpSocket::bind((host, 0)).is_err() {
                // A host without IPv6.
                continue;
            }
            let (from, to) = pair(host).await;
            let address = to.unicast.local_addr().unwrap();
            let mut outbox = SendQueue::default();
            for number in 0..100_u8 {
                let start = outbox.bytes().len();
                outbox.bytes().extend(std::iter::repeat_n(number, usize::from(number)));
                outbox.queue(start, address);
            }
            // A datagram that cannot be sent does not affect the others.
            let other = if host == "::1" { "127.0.0.1:9" } else { "[::1]:9" };
            outbox.queue(0, other.parse().unwrap());
            outbox.queue(0, address);
            let total_len = outbox.bytes().len();
            assert!(total_len > BUFFER_LENGTH && outbox.len() == 102);
            assert_eq!((outbox.send(&from.unicast), outbox.len()), (101, 0), "{host}");
            let (mut receive_buffers, mut received) = (ReceiveBuffers::new(), Vec::new());
            while received.len() < 101 {
                to.unicast.readable().await.unwrap();
                receive_buffers.receive(&to.unicast, |sender, waited, bytes| {
                    assert_eq!((sender, waited), (from.unicast.local_addr().unwrap(), None));
                    received.push(bytes.to_vec());
                });
            }
            for (number, bytes) in received[..100].iter().enumerate() {
                assert_eq!(bytes, &vec![number as u8; number]);
            }
            assert_eq!(received[100].len(), BUFFER_LENGTH, "what is too long is seen to be");
        }
    }

    #[tokio::test]
    async fn what_was_read_late_is_known_to_be() {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let socket = DaemonSocket::bind(listen, None).unwrap();
        socket.enable_timestamps();
        let (to, from) = (socket.register().unwrap(), std::net::UdpSocket::bind(listen).unwrap());
        let (address, mut receive_buffers) =
            (to.unicast.local_addr().unwrap(), ReceiveBuffers::with_timestamps());
        // The kernel begins to set timestamps a moment after the request; until then datagrams count as
        // arrived when read. The same buffer is used twice: the kernel writes the used length into it.
        let (mut rounds, mut passed_rounds) = (0, 0);
        while passed_rounds < 2 {
            rounds += 1;
            assert!(rounds < 100, "nothing is stamped");
            let before = std::time::Instant::now();
            for _ in 0..3 {
                from.send_to(b"x", address).unwrap();
            }
            let send_duration = before.elapsed();
            std::thread::sleep(Duration::from_millis(30)); // sleeps: they wait so long, or longer
            let mut waits = Vec::new();
            while waits.len() < 3 {
                to.unicast.readable().await.unwrap();
                receive_buffers.receive(&to.unicast, |_, waited, _| waits.push(waited));
            }
            // bound: from before they were sent until they were read
            // A clock that is adjusted while this runs may be off by a thousandth.
            let (min_delay, max_delay) = (Duration::from_millis(29), before.elapsed() + send_duration);
            let waits: Vec<Duration> = waits.into_iter().map(Option::unwrap).collect();
            assert!(waits.iter().all(|waited| *waited <= max_delay), "{waits:?}");
            passed_rounds += u32::from(waits.iter().all(|waited| *waited >= min_delay));
        }
    }
}
