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
use plimsoll_wire::rfs::LONGEST_REPORT;
use rustix::io::Errno;
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, sendmmsg};
use socket2::{Domain, Protocol, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// The maximum number of datagrams per system call.
pub(crate) const BATCH: usize = 64;

/// One byte more than the maximum length, so that longer datagrams are detected.
const SPACE: usize = LONGEST_REPORT + 1;

/// The requested size of the receive buffer, in bytes, for while the daemon is busy; the kernel may grant
/// less.
const KEPT: usize = 4 << 20;

/// A daemon's bound sockets.
#[derive(Debug)]
pub(crate) struct Socket {
    one: std::net::UdpSocket,
    group: Option<std::net::UdpSocket>,
    address: SocketAddr,
}

/// A daemon's sockets in a runtime.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) one: UdpSocket,
    pub(crate) group: Option<UdpSocket>,
}

impl Socket {
    /// Binds the sockets. Multicast datagrams leave through the interface with the address of `listen`, and
    /// stay in the local network.
    ///
    /// # Errors
    /// The address is taken or not local, or the multicast group is not available.
    pub(crate) fn bind(listen: SocketAddr, group: Option<SocketAddr>) -> io::Result<Self> {
        let one = open(listen)?;
        one.bind(&listen.into())?;
        let group = match group {
            Some(group) => {
                let interface = interface(listen, group);
                send_by(&one, listen, interface)?;
                Some(join(group, listen, interface)?)
            }
            None => None,
        };
        let one: std::net::UdpSocket = one.into();
        let address = one.local_addr()?;
        Ok(Self { one, group: group.map(Into::into), address })
    }

    /// Takes a socket that another process bound, for a daemon without a multicast group.
    ///
    /// # Errors
    /// The socket is not a datagram socket.
    pub(crate) fn given(one: OwnedFd) -> io::Result<Self> {
        let one = std::net::UdpSocket::from(one);
        one.set_nonblocking(true)?;
        let address = one.local_addr()?;
        Ok(Self { one, group: None, address })
    }

    /// Requests timestamps of arrival from the kernel. Without them no datagram counts as late.
    pub(crate) fn stamp(&self) {
        for socket in [Some(&self.one), self.group.as_ref()].into_iter().flatten() {
            let _ = setsockopt(socket, sockopt::ReceiveTimestampns, &true);
        }
    }

    /// Returns a copy of the main socket, for another process.
    ///
    /// # Errors
    /// The system provides no more file descriptors.
    pub(crate) fn copy(&self) -> io::Result<OwnedFd> {
        Ok(self.one.try_clone()?.into())
    }

    /// Returns the bound address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Registers the sockets with the current runtime.
    ///
    /// # Errors
    /// The system provides no event queue.
    pub(crate) fn register(self) -> io::Result<Sockets> {
        let group = self.group.map(UdpSocket::from_std).transpose()?;
        Ok(Sockets { one: UdpSocket::from_std(self.one)?, group })
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
    let _ = socket.set_recv_buffer_size(KEPT);
    Ok(socket)
}

/// Returns the interface number for an IPv6 multicast group: the scope of the address or of the group, or
/// else the interface with the address. 0 lets the system choose. Link-local groups (`ff02::`) require an
/// interface.
fn interface(by: SocketAddr, group: SocketAddr) -> u32 {
    let scope = |address: SocketAddr| match address {
        SocketAddr::V6(address) => address.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    match (scope(by), scope(group)) {
        (0, 0) => {
            let table = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
            let SocketAddr::V6(by) = by else { return 0 };
            having(&table, u128::from(*by.ip())).unwrap_or_default()
        }
        (0, scope) | (scope, _) => scope,
    }
}

/// Finds the interface with an address in the kernel's table: address, number of the interface, and more, in
/// hexadecimal.
fn having(table: &str, address: u128) -> Option<u32> {
    table.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let found = u128::from_str_radix(words.next()?, 16).ok()?;
        if found == address { u32::from_str_radix(words.next()?, 16).ok() } else { None }
    })
}

/// Sends multicast datagrams through the interface of an address.
fn send_by(socket: &socket2::Socket, by: SocketAddr, interface: u32) -> io::Result<()> {
    match by {
        SocketAddr::V4(by) => {
            socket.set_multicast_if_v4(by.ip())?;
            socket.set_multicast_ttl_v4(1)
        }
        SocketAddr::V6(_) => {
            socket.set_multicast_if_v6(interface)?;
            socket.set_multicast_hops_v6(1)
        }
    }
}

/// Opens a socket that receives a group's datagrams. Several daemons of a host may join the same group.
fn join(mut group: SocketAddr, by: SocketAddr, interface: u32) -> io::Result<socket2::Socket> {
    let socket = open(group)?;
    socket.set_reuse_address(true)?;
    if let SocketAddr::V6(group) = &mut group {
        group.set_scope_id(interface);
    }
    socket.bind(&group.into())?;
    match (group, by) {
        (SocketAddr::V4(group), SocketAddr::V4(by)) => socket.join_multicast_v4(group.ip(), by.ip())?,
        (SocketAddr::V6(group), SocketAddr::V6(_)) => socket.join_multicast_v6(group.ip(), interface)?,
        _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "the group is of another family")),
    }
    Ok(socket)
}

/// The buffers for one system call, which stay with their thread.
pub(crate) struct Inbox {
    headers: MultiHeaders<SockaddrStorage>,
    buffers: Vec<[u8; SPACE]>,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self { headers: MultiHeaders::preallocate(BATCH, None), buffers: vec![[0; SPACE]; BATCH] }
    }

    /// Creates the buffers for [timestamped](Socket::stamp) sockets.
    pub(crate) fn stamped() -> Self {
        let space = cmsg_space!(TimeSpec);
        Self { headers: MultiHeaders::preallocate(BATCH, Some(space)), ..Self::new() }
    }

    /// Receives up to [`BATCH`] datagrams and returns their number. If there are fewer, none is left, and the
    /// socket becomes readable when more arrive. A datagram that is too long is truncated, and still too
    /// long. `each` also receives the time since the datagram's arrival, if it has a timestamp.
    pub(crate) fn receive(
        &mut self,
        socket: &UdpSocket,
        mut each: impl FnMut(SocketAddr, Option<Duration>, &[u8]),
    ) -> usize {
        let Self { headers, buffers } = self;
        let mut parts: Vec<[IoSliceMut<'_>; 1]> =
            buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
        let (fd, slices, mut count) = (socket.as_raw_fd(), parts.iter_mut(), 0);
        // The same for the whole batch.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let all = socket.try_io(Interest::READABLE, || {
            for message in recvmmsg(fd, headers, slices, MsgFlags::MSG_DONTWAIT, None)? {
                let waited = waited(&message, now);
                count += 1;
                let from = message.address.and_then(|from| {
                    let four = from.as_sockaddr_in().map(|from| SocketAddrV4::from(*from).into());
                    four.or_else(|| from.as_sockaddr_in6().map(|from| SocketAddrV6::from(*from).into()))
                });
                // Every sender has an address, and an empty datagram has no part.
                if let Some(from) = from {
                    each(from, waited, message.iovs().next().unwrap_or_default());
                }
            }
            // One more system call that finds nothing would cost as much as an answer.
            if count < BATCH { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        // Other errors concern a single datagram, and another call follows.
        drop(all);
        count
    }
}

/// Returns the time since a datagram's arrival, by this host's clock, which may have been set meanwhile.
fn waited(message: &RecvMsg<'_, '_, SockaddrStorage>, now: Duration) -> Option<Duration> {
    let stamp = message.cmsgs().ok()?.find_map(|control| match control {
        ControlMessageOwned::ScmTimestampns(stamp) => Some(Duration::from(stamp)),
        _ => None,
    })?;
    Some(now.saturating_sub(stamp))
}

/// The pending datagrams.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    letters: Vec<(Range<usize>, SocketAddr)>,
}

impl Outbox {
    /// Returns the buffer to write the next datagram to.
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Queues the bytes from `start` on for an address.
    pub(crate) fn post(&mut self, start: usize, to: SocketAddr) {
        self.letters.push((start..self.bytes.len(), to));
    }

    /// Returns the number of pending datagrams.
    pub(crate) fn len(&self) -> usize {
        self.letters.len()
    }

    /// Removes the datagrams instead of sending them, for tests without sockets.
    #[cfg(test)]
    pub(crate) fn empty(&mut self, mut each: impl FnMut(SocketAddr, &[u8])) {
        for (at, to) in std::mem::take(&mut self.letters) {
            each(to, &self.bytes[at]);
        }
        self.bytes.clear();
    }

    /// Sends all datagrams and returns the number that the kernel accepted. The others are lost, as they may
    /// be on the network.
    pub(crate) fn send(&mut self, socket: &UdpSocket) -> usize {
        let mut sent = 0;
        for letters in self.letters.chunks(BATCH) {
            let parts: Vec<[IoSlice<'_>; 1]> =
                letters.iter().map(|(at, _)| [IoSlice::new(&self.bytes[at.clone()])]).collect();
            let addresses: Vec<SocketAddrAny> = letters.iter().map(|(_, to)| (*to).into()).collect();
            let mut controls: Vec<SendAncillaryBuffer<'_, '_, '_>> =
                letters.iter().map(|_| SendAncillaryBuffer::default()).collect();
            let with = addresses.iter().zip(&parts).zip(&mut controls);
            let mut headers: Vec<MMsgHdr<'_>> =
                with.map(|((to, part), control)| MMsgHdr::new_with_addr(to, part, control)).collect();
            let mut at = 0;
            while at < headers.len() {
                match sendmmsg(socket, &mut headers[at..], SendFlags::DONTWAIT) {
                    Ok(count) => (at, sent) = (at + count.max(1), sent + count),
                    Err(Errno::INTR) => {}
                    // The queue is full, so the rest will not fit either.
                    Err(Errno::AGAIN) => break,
                    // The error concerns the first datagram only: an unreachable address.
                    Err(_) => at += 1,
                }
            }
        }
        self.bytes.clear();
        self.letters.clear();
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn pair(host: &str) -> (Sockets, Sockets) {
        let bind = || Socket::bind(SocketAddr::new(host.parse().unwrap(), 0), None).unwrap();
        (bind().register().unwrap(), bind().register().unwrap())
    }

    #[test]
    fn an_interface_is_known_by_its_address() {
        let table = "00000000000000000000000000000001 01 80 10 80       lo\n\
                     fd000000000000000000000000000001 0c 40 00 80     eth0\n\
                     fe800000000000000000000000000001 0c 40 20 80     eth0\n";
        let address = |text: &str| u128::from(text.parse::<std::net::Ipv6Addr>().unwrap());
        assert_eq!(having(table, address("fd00::1")), Some(12));
        assert_eq!((having(table, address("::1")), having(table, address("fd00::2"))), (Some(1), None));
        let by = |by: &str, group: &str| interface(by.parse().unwrap(), group.parse().unwrap());
        assert_eq!(by("[fe80::1%7]:1", "[ff02::1]:1"), 7);
        assert_eq!(by("[2001:db8::1]:1", "[ff02::1%8]:1"), 8);
        assert_eq!((by("[2001:db8::1]:1", "[ff02::1]:1"), by("10.0.0.1:1", "239.0.0.1:1")), (0, 0));
    }

    #[tokio::test]
    async fn many_go_and_come_with_few_calls() {
        for host in ["127.0.0.1", "::1"] {
            if std::net::UdpSocket::bind((host, 0)).is_err() {
                // A host without IPv6.
                continue;
            }
            let (from, to) = pair(host).await;
            let address = to.one.local_addr().unwrap();
            let mut outbox = Outbox::default();
            for number in 0..100_u8 {
                let start = outbox.bytes().len();
                outbox.bytes().extend(std::iter::repeat_n(number, usize::from(number)));
                outbox.post(start, address);
            }
            // A datagram that cannot be sent does not affect the others.
            let other = if host == "::1" { "127.0.0.1:9" } else { "[::1]:9" };
            outbox.post(0, other.parse().unwrap());
            outbox.post(0, address);
            let long = outbox.bytes().len();
            assert!(long > SPACE && outbox.len() == 102);
            assert_eq!((outbox.send(&from.one), outbox.len()), (101, 0), "{host}");
            let (mut inbox, mut came) = (Inbox::new(), Vec::new());
            while came.len() < 101 {
                to.one.readable().await.unwrap();
                inbox.receive(&to.one, |sender, waited, bytes| {
                    assert_eq!((sender, waited), (from.one.local_addr().unwrap(), None));
                    came.push(bytes.to_vec());
                });
            }
            for (number, bytes) in came[..100].iter().enumerate() {
                assert_eq!(bytes, &vec![number as u8; number]);
            }
            assert_eq!(came[100].len(), SPACE, "what is too long is seen to be");
        }
    }

    #[tokio::test]
    async fn what_was_read_late_is_known_to_be() {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let socket = Socket::bind(listen, None).unwrap();
        socket.stamp();
        let (to, from) = (socket.register().unwrap(), std::net::UdpSocket::bind(listen).unwrap());
        let (address, mut inbox) = (to.one.local_addr().unwrap(), Inbox::stamped());
        // The kernel begins to set timestamps a moment after the request; until then datagrams count as
        // arrived when read. The same buffer is used twice: the kernel writes the used length into it.
        let (mut rounds, mut seen) = (0, 0);
        while seen < 2 {
            rounds += 1;
            assert!(rounds < 100, "nothing is stamped");
            let before = std::time::Instant::now();
            for _ in 0..3 {
                from.send_to(b"x", address).unwrap();
            }
            let late = before.elapsed();
            std::thread::sleep(Duration::from_millis(30)); // sleeps: they wait so long, or longer
            let mut waits = Vec::new();
            while waits.len() < 3 {
                to.one.readable().await.unwrap();
                inbox.receive(&to.one, |_, waited, _| waits.push(waited));
            }
            // bound: from before they were sent until they were read
            // A clock that is adjusted while this runs may be off by a thousandth.
            let (least, most) = (Duration::from_millis(29), before.elapsed() + late);
            let waits: Vec<Duration> = waits.into_iter().map(Option::unwrap).collect();
            assert!(waits.iter().all(|waited| *waited <= most), "{waits:?}");
            seen += u32::from(waits.iter().all(|waited| *waited >= least));
        }
    }
}
