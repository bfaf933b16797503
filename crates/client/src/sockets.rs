//! A UDP socket per address family, and one descriptor for event loops. The descriptor is readable when a
//! datagram is waiting or another thread made it readable.
//!
//! Waiting threads poll the sockets and a separate eventfd (`wake_event`), so that `readable_event` does not
//! wake them.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt::set_ip_multicast_if;

/// The largest number of datagrams received from a socket in a row.
const BATCH: usize = 256;

#[derive(Debug)]
pub(crate) struct SocketSet {
    v4: Option<UdpSocket>,
    v6: Option<UdpSocket>,
    readable_event: OwnedFd,
    wake_event: OwnedFd,
    /// The epoll instance of the sockets and of `readable_event`.
    epoll: OwnedFd,
}

impl SocketSet {
    /// Opens the sockets.
    ///
    /// # Errors
    /// Returns an error if neither IPv4 nor IPv6 is available, or if the interface is not one of this
    /// machine.
    pub(crate) fn open(interface: Option<Ipv4Addr>) -> io::Result<Self> {
        let ipv4 = bind_socket(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
        let ipv6 = bind_socket(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)));
        let (ipv4, ipv6) = match (ipv4, ipv6) {
            (Err(error), Err(_)) => return Err(error),
            (ipv4_result, ipv6_result) => (ipv4_result.ok(), ipv6_result.ok()),
        };
        if let (Some(ipv4_socket), Some(interface)) = (&ipv4, interface) {
            set_ip_multicast_if(ipv4_socket, &interface)?;
        }
        let readable_event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let wake_event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        for socket in [&ipv4, &ipv6].into_iter().flatten() {
            epoll::add(&epoll, socket, EventData::new_u64(0), EventFlags::IN)?;
        }
        epoll::add(&epoll, &readable_event, EventData::new_u64(0), EventFlags::IN)?;
        Ok(Self { v4: ipv4, v6: ipv6, readable_event, wake_event, epoll })
    }

    /// Sends a datagram. Ignores errors: the network may lose datagrams too, and another attempt follows.
    pub(crate) fn send(&self, bytes: &[u8], target: SocketAddr) {
        let socket = if target.is_ipv4() { &self.v4 } else { &self.v6 };
        if let Some(socket) = socket {
            let _ = socket.send_to(bytes, target);
        }
    }

    /// Receives at most `BATCH` datagrams per socket. Returns `true` if more may be waiting.
    pub(crate) fn receive(&self, buffer: &mut [u8], mut on_datagram: impl FnMut(SocketAddr, &[u8])) -> bool {
        let mut has_more = false;
        for socket in [&self.v4, &self.v6].into_iter().flatten() {
            let mut count = 0;
            while count < BATCH {
                count += 1;
                match socket.recv_from(buffer) {
                    Ok((len, source)) => on_datagram(source, buffer.get(..len).unwrap_or_default()),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    // No datagram is left. Any other error occurs again at the next call.
                    Err(_) => break,
                }
            }
            has_more |= count == BATCH;
        }
        has_more
    }

    /// Waits until a datagram arrives or another thread [wakes](Self::wake) it, for at most `time`. May
    /// return early.
    pub(crate) fn wait(&self, timeout: Duration) {
        let mut poll_fds = vec![PollFd::new(&self.wake_event, PollFlags::IN)];
        poll_fds.extend(
            [&self.v4, &self.v6].into_iter().flatten().map(|socket| PollFd::new(socket, PollFlags::IN)),
        );
        let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
        let timespec = Timespec { tv_sec: seconds, tv_nsec: timeout.subsec_nanos().into() };
        // A signal also ends the wait.
        let _ = poll(&mut poll_fds, Some(&timespec));
        if !poll_fds[0].revents().is_empty() {
            let _ = rustix::io::read(&self.wake_event, &mut [0; 8]);
        }
    }

    /// Ends the current wait, or the next one if no thread waits.
    pub(crate) fn wake(&self) {
        // The write fails only if the counter is full, that is, after earlier knocks.
        let _ = rustix::io::write(&self.wake_event, &1_u64.to_ne_bytes());
    }

    /// Duplicates the sockets' descriptors.
    ///
    /// # Errors
    /// Returns an error if the process has too many descriptors.
    #[cfg(feature = "tokio")]
    pub(crate) fn duplicates(&self) -> io::Result<Vec<UdpSocket>> {
        [&self.v4, &self.v6].into_iter().flatten().map(UdpSocket::try_clone).collect()
    }

    /// Makes the descriptor readable until [`clear_readable`](Self::clear_readable).
    pub(crate) fn set_readable(&self) {
        // The write fails only if the counter is full, that is, if it rings already.
        let _ = rustix::io::write(&self.readable_event, &1_u64.to_ne_bytes());
    }

    pub(crate) fn clear_readable(&self) {
        let _ = rustix::io::read(&self.readable_event, &mut [0; 8]);
    }
}

impl AsFd for SocketSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

fn bind_socket(unspecified_address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(unspecified_address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
