//! A UDP socket per address family, and one descriptor for event loops. The descriptor is readable when a
//! datagram is waiting or the bell was rung.
//!
//! Waiting threads poll the sockets and a separate eventfd, the door, so that the bell does not wake them.

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
pub(crate) struct Sockets {
    four: Option<UdpSocket>,
    six: Option<UdpSocket>,
    bell: OwnedFd,
    door: OwnedFd,
    /// The epoll instance of the sockets and the bell.
    all: OwnedFd,
}

impl Sockets {
    /// Opens the sockets.
    ///
    /// # Errors
    /// Returns an error if neither IPv4 nor IPv6 is available, or if the interface is not one of this
    /// machine.
    pub(crate) fn open(interface: Option<Ipv4Addr>) -> io::Result<Self> {
        let four = bound(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
        let six = bound(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)));
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
        Ok(Self { four, six, bell, door, all })
    }

    /// Sends a datagram. Ignores errors: the network may lose datagrams too, and another attempt follows.
    pub(crate) fn send(&self, bytes: &[u8], to: SocketAddr) {
        let socket = if to.is_ipv4() { &self.four } else { &self.six };
        if let Some(socket) = socket {
            let _ = socket.send_to(bytes, to);
        }
    }

    /// Receives at most `BATCH` datagrams per socket. Returns `true` if more may be waiting.
    pub(crate) fn receive(&self, buffer: &mut [u8], mut each: impl FnMut(SocketAddr, &[u8])) -> bool {
        let mut more = false;
        for socket in [&self.four, &self.six].into_iter().flatten() {
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

    /// Waits until a datagram arrives or another thread [knocks](Self::knock), for at most `time`. May return
    /// early.
    pub(crate) fn wait(&self, time: Duration) {
        let mut all = vec![PollFd::new(&self.door, PollFlags::IN)];
        all.extend([&self.four, &self.six].into_iter().flatten().map(|one| PollFd::new(one, PollFlags::IN)));
        let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        let time = Timespec { tv_sec: seconds, tv_nsec: time.subsec_nanos().into() };
        // A signal also ends the wait.
        let _ = poll(&mut all, Some(&time));
        if !all[0].revents().is_empty() {
            let _ = rustix::io::read(&self.door, &mut [0; 8]);
        }
    }

    /// Ends the current wait, or the next one if no thread waits.
    pub(crate) fn knock(&self) {
        // The write fails only if the counter is full, that is, after earlier knocks.
        let _ = rustix::io::write(&self.door, &1_u64.to_ne_bytes());
    }

    /// Duplicates the sockets' descriptors.
    ///
    /// # Errors
    /// Returns an error if the process has too many descriptors.
    #[cfg(feature = "tokio")]
    pub(crate) fn clones(&self) -> io::Result<Vec<UdpSocket>> {
        [&self.four, &self.six].into_iter().flatten().map(UdpSocket::try_clone).collect()
    }

    /// Makes the descriptor readable until [`hush`](Self::hush).
    pub(crate) fn ring(&self) {
        // The write fails only if the counter is full, that is, if it rings already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    pub(crate) fn hush(&self) {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }
}

impl AsFd for Sockets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.all.as_fd()
    }
}

fn bound(any: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(any)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
