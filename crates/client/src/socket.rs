//! A socket for each family, and one descriptor for event loops: readable when a datagram has come, or when the bell was rung.
//!
//! Threads that wait look at the sockets and at a door of their own: the bell is not theirs.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt::set_ip_multicast_if;

/// Datagrams that are taken before something else is done.
const BATCH: usize = 256;

#[derive(Debug)]
pub(crate) struct Sockets {
    four: Option<UdpSocket>,
    six: Option<UdpSocket>,
    bell: OwnedFd,
    door: OwnedFd,
    /// An epoll of the sockets and the bell.
    all: OwnedFd,
}

impl Sockets {
    /// # Errors
    /// There is neither IPv4 nor IPv6, or the interface is not of this machine.
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

    /// What does not go is lost, as it may be on its way: another attempt follows.
    pub(crate) fn send(&self, bytes: &[u8], to: SocketAddr) {
        let socket = if to.is_ipv4() { &self.four } else { &self.six };
        if let Some(socket) = socket {
            let _ = socket.send_to(bytes, to);
        }
    }

    /// Takes what has come, up to a bound, and says whether there may be more.
    pub(crate) fn receive(&self, buffer: &mut [u8], mut each: impl FnMut(SocketAddr, &[u8])) -> bool {
        let mut more = false;
        for socket in [&self.four, &self.six].into_iter().flatten() {
            let mut count = 0;
            while count < BATCH {
                count += 1;
                match socket.recv_from(buffer) {
                    Ok((len, from)) => each(from, buffer.get(..len).unwrap_or_default()),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    // Nothing is left; what else it may be will be again when it is looked at next.
                    Err(_) => break,
                }
            }
            more |= count == BATCH;
        }
        more
    }

    /// Waits until a datagram has come or somebody [knocks](Self::knock), for so long at the most. May end early.
    pub(crate) fn wait(&self, time: Duration) {
        let mut all = vec![PollFd::new(&self.door, PollFlags::IN)];
        all.extend([&self.four, &self.six].into_iter().flatten().map(|one| PollFd::new(one, PollFlags::IN)));
        let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        let time = Timespec { tv_sec: seconds, tv_nsec: time.subsec_nanos().into() };
        // A signal ends it early, too.
        let _ = poll(&mut all, Some(&time));
        if !all[0].revents().is_empty() {
            let _ = rustix::io::read(&self.door, &mut [0; 8]);
        }
    }

    /// Ends a wait, or the next one if nobody waits now.
    pub(crate) fn knock(&self) {
        // It is full only if somebody knocked before.
        let _ = rustix::io::write(&self.door, &1_u64.to_ne_bytes());
    }

    /// The same sockets once more.
    ///
    /// # Errors
    /// There are too many descriptors.
    #[cfg(feature = "tokio")]
    pub(crate) fn clones(&self) -> io::Result<Vec<UdpSocket>> {
        [&self.four, &self.six].into_iter().flatten().map(UdpSocket::try_clone).collect()
    }

    /// Makes the descriptor readable until [`hush`](Self::hush).
    pub(crate) fn ring(&self) {
        // It is full only if it rings already.
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
