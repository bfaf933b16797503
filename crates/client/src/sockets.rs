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
        let four = bind_socket(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
        let six = bind_socket(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)));
        let (four, six) = match (four, six) {
            (Err(why), Err(_)) => return Err(why),
            (four, six) => (four.ok(), six.ok()),
        };
        if let (Some(four), Some(interface)) = (&four, interface) {
            set_ip_multicast_if(four, &interface)?;
        }
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let door = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let all = epoll::create(CreateFlags::CLOEXEC)?;
        for socket in [&four, &six].into_iter().flatten() {
            epoll::add(&all, socket, EventData::new_u64(0), EventFlags::IN)?;
        }
        epoll::add(&all, &bell, EventData::new_u64(0), EventFlags::IN)?;
        Ok(Self { v4: four, v6: six, readable_event: bell, wake_event: door, epoll: all })
    }

    /// Sends a datagram. Ignores errors: the network may lose datagrams too, and another attempt follows.
    pub(crate) fn send(&self, bytes: &[u8], to: SocketAddr) {
        let socket = if to.is_ipv4() { &self.v4 } else { &self.v6 };
        if let Some(socket) = socket {
            let _ = socket.send_to(bytes, to);
        }
    }

    /// Receives at most `BATCH` datagrams per socket. Returns `true` if more may be waiting.
    pub(crate) fn receive(&self, buffer: &mut [u8], mut each: impl FnMut(SocketAddr, &[u8])) -> bool {
        let mut more = false;
        for socket in [&self.v4, &self.v6].into_iter().flatten() {
            let mut count = 0;
            while count < BATCH {
                count += 1;
                match socket.recv_from(buffer) {
                    Ok((len, from)) => each(from, buffer.get(..len).unwrap_or_default()),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    // No datagram is left. Any other error occurs again at the next call.
                    Err(_) => break,
                }
            }
            more |= count == BATCH;
        }
        more
    }

    /// Waits until a datagram arrives or another thread [wakes](Self::wake) it, for at most `time`. May
    /// return early.
    pub(crate) fn wait(&self, time: Duration) {
        let mut all = vec![PollFd::new(&self.wake_event, PollFlags::IN)];
        all.extend([&self.v4, &self.v6].into_iter().flatten().map(|one| PollFd::new(one, PollFlags::IN)));
        let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        let time = Timespec { tv_sec: seconds, tv_nsec: time.subsec_nanos().into() };
        // A signal also ends the wait.
        let _ = poll(&mut all, Some(&time));
        if !all[0].revents().is_empty() {
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

fn bind_socket(any: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(any)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
