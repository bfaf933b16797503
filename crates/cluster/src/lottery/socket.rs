//! Datagrams, many with one system call: `recvmmsg` and `sendmmsg`.
//!
//! Not cut out of a larger one by the kernel (`UDP_SEGMENT`, GSO): that takes datagrams of one length to one receiver, one after the
//! other, and answers go to whoever asked, of lengths that follow the member and its further ones; a run of two to one client is
//! chance. What goes to one receiver in a row are parts of a table, a dozen when a daemon comes, and a report goes to many receivers once.
//! A batch of 64 is one system call as it is, so GSO would save no call but a part of the kernel's way for what hardly ever occurs.
//!
//! A daemon has one socket that it sends from and is reached at, and where there is multicast a second one that hears the group.
//! The kernel notes when each datagram came (`SO_TIMESTAMPNS`), so that who reads it late knows how late. Both are of the same family: a socket of IPv6 takes no IPv4, or members would be known by addresses that others cannot use.

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

/// Most datagrams of one system call.
pub(crate) const BATCH: usize = 64;

/// One byte more than the longest, by which a longer one shows.
const SPACE: usize = LONGEST_REPORT + 1;

/// What the kernel may keep for a daemon that does something else, bytes; it may allow less.
const KEPT: usize = 4 << 20;

/// A daemon's sockets, bound.
#[derive(Debug)]
pub(crate) struct Socket {
    one: std::net::UdpSocket,
    group: Option<std::net::UdpSocket>,
    address: SocketAddr,
}

/// The same in a runtime.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) one: UdpSocket,
    pub(crate) group: Option<UdpSocket>,
}

impl Socket {
    /// Binds them. Datagrams to the group go out by the interface that has the address of `listen`, and no further than the
    /// local network.
    ///
    /// # Errors
    /// The address is taken or not of this machine, or there is no such group here.
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

    /// One that somebody else bound, for a daemon without a group.
    ///
    /// # Errors
    /// It is no socket for datagrams.
    pub(crate) fn given(one: OwnedFd) -> io::Result<Self> {
        let one = std::net::UdpSocket::from(one);
        one.set_nonblocking(true)?;
        let address = one.local_addr()?;
        Ok(Self { one, group: None, address })
    }

    /// Has the kernel note when datagrams come. One that does not is one that nobody knows to be late.
    pub(crate) fn stamp(&self) {
        for socket in [Some(&self.one), self.group.as_ref()].into_iter().flatten() {
            let _ = setsockopt(socket, sockopt::ReceiveTimestampns, &true);
        }
    }

    /// A copy of the one that it is reached at, for another process.
    ///
    /// # Errors
    /// There are no more files.
    pub(crate) fn copy(&self) -> io::Result<OwnedFd> {
        Ok(self.one.try_clone()?.into())
    }

    /// Where it is bound.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Hands them to the runtime that is entered.
    ///
    /// # Errors
    /// The system gives no event queue.
    pub(crate) fn register(self) -> io::Result<Sockets> {
        let group = self.group.map(UdpSocket::from_std).transpose()?;
        Ok(Sockets { one: UdpSocket::from_std(self.one)?, group })
    }
}

/// A socket for `address` that waits for nothing.
fn open(address: SocketAddr) -> io::Result<socket2::Socket> {
    let socket = socket2::Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    // Less than wished for is no reason not to start.
    let _ = socket.set_recv_buffer_size(KEPT);
    Ok(socket)
}

/// The number of the interface of a group of IPv6: as the address or the group says it, else of the interface that has the address, 0
/// for the one that the system takes. Groups of a link (`ff02::`) are none without one.
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

/// Which interface has an address, in the kernel's table: address, number of the interface, and more, in hexadecimal.
fn having(table: &str, address: u128) -> Option<u32> {
    table.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let found = u128::from_str_radix(words.next()?, 16).ok()?;
        if found == address { u32::from_str_radix(words.next()?, 16).ok() } else { None }
    })
}

/// Has what is sent to groups go out by the interface of an address.
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

/// A socket that hears a group. Several daemons of a host may hear the same.
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

/// Room for what comes with one system call. Stays with its thread.
pub(crate) struct Inbox {
    headers: MultiHeaders<SockaddrStorage>,
    buffers: Vec<[u8; SPACE]>,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self { headers: MultiHeaders::preallocate(BATCH, None), buffers: vec![[0; SPACE]; BATCH] }
    }

    /// For sockets whose datagrams are [stamped](Socket::stamp).
    pub(crate) fn stamped() -> Self {
        let space = cmsg_space!(TimeSpec);
        Self { headers: MultiHeaders::preallocate(BATCH, Some(space)), ..Self::new() }
    }

    /// Takes what is there, up to [`BATCH`] datagrams; how many. If that are fewer there was nothing left, and the socket is
    /// readable again when more comes. Of one that is too long the beginning comes, and is too long still. Of each it says how long
    /// it has waited since it came, where it was stamped.
    pub(crate) fn receive(
        &mut self,
        socket: &UdpSocket,
        mut each: impl FnMut(SocketAddr, Option<Duration>, &[u8]),
    ) -> usize {
        let Self { headers, buffers } = self;
        let mut parts: Vec<[IoSliceMut<'_>; 1]> =
            buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
        let (fd, slices, mut count) = (socket.as_raw_fd(), parts.iter_mut(), 0);
        // The same for all of a batch.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let all = socket.try_io(Interest::READABLE, || {
            for message in recvmmsg(fd, headers, slices, MsgFlags::MSG_DONTWAIT, None)? {
                let waited = waited(&message, now);
                count += 1;
                let from = message.address.and_then(|from| {
                    let four = from.as_sockaddr_in().map(|from| SocketAddrV4::from(*from).into());
                    four.or_else(|| from.as_sockaddr_in6().map(|from| SocketAddrV6::from(*from).into()))
                });
                // Nobody sends from no address, and an empty datagram has no part.
                if let Some(from) = from {
                    each(from, waited, message.iovs().next().unwrap_or_default());
                }
            }
            // To ask once more only to hear that there is nothing would cost as much as an answer.
            if count < BATCH { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        // What else it may be concerns one datagram, and there is a next one.
        drop(all);
        count
    }
}

/// How long ago a datagram came, by the clock of this host, which may have been set meanwhile.
fn waited(message: &RecvMsg<'_, '_, SockaddrStorage>, now: Duration) -> Option<Duration> {
    let stamp = message.cmsgs().ok()?.find_map(|control| match control {
        ControlMessageOwned::ScmTimestampns(stamp) => Some(Duration::from(stamp)),
        _ => None,
    })?;
    Some(now.saturating_sub(stamp))
}

/// What is to be sent, until it is.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    letters: Vec<(Range<usize>, SocketAddr)>,
}

impl Outbox {
    /// Where the next datagram is written.
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// What was written from `start` on goes to an address.
    pub(crate) fn post(&mut self, start: usize, to: SocketAddr) {
        self.letters.push((start..self.bytes.len(), to));
    }

    /// Datagrams that wait.
    pub(crate) fn len(&self) -> usize {
        self.letters.len()
    }

    /// Instead of being sent, for tests without sockets.
    #[cfg(test)]
    pub(crate) fn empty(&mut self, mut each: impl FnMut(SocketAddr, &[u8])) {
        for (at, to) in std::mem::take(&mut self.letters) {
            each(to, &self.bytes[at]);
        }
        self.bytes.clear();
    }

    /// Sends all of it and is empty. What the kernel does not take is lost, as it may be on its way: how many it took.
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
                    // The queue is full: the rest will not fit either.
                    Err(Errno::AGAIN) => break,
                    // It concerns the first only: an address that cannot be reached.
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
            // One that cannot be sent takes none of the others with it.
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
        // The kernel begins to stamp a moment after it was told to; until then a datagram counts as one that came when it was read.
        // The same room twice: the kernel writes into it how much of it was used.
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
