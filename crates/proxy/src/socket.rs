//! TCP sockets whose readiness their thread's own reactor tracks ([`crate::readiness`]).

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrAny, SocketFlags, SocketType,
};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::core::Descriptor;
use crate::readiness::{Place, Readiness, Way};
use crate::stream::Stream;

/// A connected socket.
pub(crate) struct Socket {
    place: Place,
    stream: TcpStream,
    /// The descriptor of a connection to a member; that of a client counts with its visit.
    _descriptor: Option<Descriptor>,
}

impl Socket {
    /// Wraps an open connection, which counts as writable and perhaps readable. `stream` must be
    /// non-blocking.
    pub(crate) fn new(readiness: &Rc<Readiness>, stream: OwnedFd) -> Self {
        Self::made(readiness, stream, None)
    }

    fn made(readiness: &Rc<Readiness>, stream: OwnedFd, descriptor: Option<Descriptor>) -> Self {
        let place = readiness.place(&[Way::Read, Way::Write]);
        Self { place, stream: stream.into(), _descriptor: descriptor }
    }

    /// Connects to an address.
    ///
    /// # Errors
    /// The address cannot be reached, or the system has no more sockets.
    pub(crate) async fn connect(
        readiness: &Rc<Readiness>,
        address: SocketAddr,
        descriptor: Option<Descriptor>,
    ) -> io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let stream = rustix::net::socket_with(family, SocketType::STREAM, FLAGS, None)?;
        match rustix::net::connect(&stream, &address) {
            Ok(()) => return Ok(Self::made(readiness, stream, descriptor)),
            Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let socket = Self { place: readiness.place(&[]), stream: stream.into(), _descriptor: descriptor };
        poll_fn(|cx| socket.poll_ready(Way::Write, cx)).await?;
        match socket.stream.take_error()? {
            Some(error) => Err(error),
            None => Ok(socket),
        }
    }

    /// Runs `act` if the socket is ready. `act` returns the number of bytes moved, at most `room`: fewer mean
    /// that the socket is no longer ready.
    #[inline]
    pub(crate) fn attempt(
        &self,
        way: Way,
        room: usize,
        mut act: impl FnMut() -> rustix::io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        if !self.place.is_ready(way) {
            return None;
        }
        match rustix::io::retry_on_intr(&mut act) {
            Ok(moved) => {
                if moved < room {
                    self.place.exhausted(way);
                }
                Some(Ok(moved))
            }
            Err(Errno::WOULDBLOCK) => {
                self.place.blocked(way);
                None
            }
            Err(error) => Some(Err(error.into())),
        }
    }

    /// Reads as [`Stream::poll_recv`], for tasks that share the socket.
    pub(crate) fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        watched: &mut bool,
    ) -> Poll<io::Result<usize>> {
        let room = buffer.len();
        let came = self.attempt(Way::Read, room, || {
            // A ready socket has woken the task, which is then no longer registered.
            *watched = false;
            rustix::net::recv(&self.stream, &mut *buffer, RecvFlags::empty()).map(|(bytes, _)| bytes)
        });
        match came {
            Some(came) => Poll::Ready(came),
            None if *watched => Poll::Pending,
            None => {
                *watched = true;
                self.wait(Way::Read, cx)
            }
        }
    }

    /// Sends as much as the socket accepts now; `None` if it accepts nothing.
    #[inline]
    pub(crate) fn send(&self, bytes: &[u8]) -> Option<io::Result<usize>> {
        self.attempt(Way::Write, bytes.len(), || rustix::net::send(&self.stream, bytes, SendFlags::NOSIGNAL))
    }

    /// Sends several pieces in order, likewise.
    pub(crate) fn send_parts(&self, parts: &[IoSlice<'_>]) -> Option<io::Result<usize>> {
        let all = parts.iter().map(|part| part.len()).sum();
        let mut none = SendAncillaryBuffer::default();
        self.attempt(Way::Write, all, || {
            rustix::net::sendmsg(&self.stream, parts, &mut none, SendFlags::NOSIGNAL)
        })
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// The socket is closed.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// Disables delays that collect more bytes.
    pub(crate) fn hurry(&self) {
        // A closed socket does not need this.
        let _ = self.stream.set_nodelay(true);
    }

    /// Completes when the socket may be ready, or cannot be watched.
    pub(crate) fn poll_ready(&self, way: Way, cx: &Context<'_>) -> Poll<io::Result<()>> {
        if self.place.is_ready(way) { Poll::Ready(Ok(())) } else { self.wait(way, cx) }
    }

    /// Registers for a wake-up when the socket is ready; an error if it cannot be watched.
    #[inline]
    fn wait<T>(&self, way: Way, cx: &Context<'_>) -> Poll<io::Result<T>> {
        match self.place.wait(way, cx, &self.stream) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

/// A silent peer is probed after one minute, and has another one to answer.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(60))
    .with_interval(Duration::from_secs(15))
    .with_retries(4);

/// The flags of all sockets.
const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// A listening socket.
pub(crate) struct Entrance {
    place: Place,
    socket: OwnedFd,
}

impl Entrance {
    /// Wraps a listening socket, which must be non-blocking.
    pub(crate) fn new(readiness: &Rc<Readiness>, socket: OwnedFd) -> Self {
        Self { place: readiness.place(&[Way::Read]), socket }
    }

    /// Returns the next connection.
    ///
    /// # Errors
    /// The system has no more descriptors or registers no more, or the client has already left.
    pub(crate) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Socket, SocketAddr)>> {
        // With many new connections, other tasks must run, too.
        let coop = ready!(tokio::task::coop::poll_proceed(cx));
        let accepted = if self.place.is_ready(Way::Read) { self.accept() } else { None };
        let Some(accepted) = accepted else {
            self.place.wait(Way::Read, cx, &self.socket)?;
            return Poll::Pending;
        };
        coop.made_progress();
        Poll::Ready(accepted)
    }

    /// Returns a waiting connection, if there is one.
    pub(crate) fn accept(&self) -> Option<io::Result<(Socket, SocketAddr)>> {
        let accepted = rustix::io::retry_on_intr(|| rustix::net::acceptfrom_with(&self.socket, FLAGS));
        if matches!(accepted, Err(Errno::WOULDBLOCK)) {
            self.place.blocked(Way::Read);
            return None;
        }
        let greet = |(stream, client): (OwnedFd, Option<SocketAddrAny>)| {
            let client = client.and_then(|client| client.try_into().ok()).ok_or(Errno::AFNOSUPPORT)?;
            Ok((Socket::new(self.place.readiness(), stream), client))
        };
        Some(accepted.map_err(io::Error::from).and_then(greet))
    }
}

impl Drop for Entrance {
    fn drop(&mut self) {
        self.place.leave(&self.socket);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.place.leave(&self.stream);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Stream for Socket {
    fn socket(&self) -> Option<&Socket> {
        Some(self)
    }

    /// Costs no system call if nothing has arrived: the socket is read only if the kernel reported it as
    /// ready.
    #[inline]
    fn quiet(&mut self) -> bool {
        if !self.place.is_watched() {
            self.place.suppose(Way::Read);
        }
        let mut space = [0];
        self.attempt(Way::Read, 1, || {
            rustix::net::recv(&self.stream, &mut space, RecvFlags::empty()).map(|(bytes, _)| bytes)
        })
        .is_none()
    }

    #[inline]
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        watched: &mut bool,
    ) -> Poll<io::Result<usize>> {
        Self::poll_recv(self, cx, buffer, watched)
    }

    #[inline]
    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.send(bytes) {
            Some(sent) => Poll::Ready(sent),
            None => self.wait(Way::Write, cx),
        }
    }

    fn abort(&self) {
        // A closed socket does not need this.
        let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
    }

    fn keepalive(&self) {
        // A closed socket does not need this.
        let _ = SockRef::from(&self.stream).set_tcp_keepalive(&KEEPALIVE);
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // Other tasks must run, too.
        let coop = ready!(tokio::task::coop::poll_proceed(cx));
        // Copied, as the given buffer may be uninitialised: initialising that much each time would cost more.
        let mut piece = [const { MaybeUninit::<u8>::uninit() }; PIECE];
        let room = space.remaining().min(PIECE);
        let came = self.attempt(Way::Read, room, || {
            let ((came, _), _) = rustix::net::recv(&self.stream, &mut piece[..room], RecvFlags::empty())?;
            space.put_slice(came);
            Ok(came.len())
        });
        let Some(came) = came else { return self.wait(Way::Read, cx) };
        coop.made_progress();
        Poll::Ready(came.map(drop))
    }
}

/// The size of reads through tokio's trait, in bytes.
const PIECE: usize = 32 * 1024;

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.send_parts(pieces) {
            Some(sent) => Poll::Ready(sent),
            None => self.wait(Way::Write, cx),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(match self.stream.shutdown(Shutdown::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            ended => ended,
        })
    }
}

#[cfg(test)]
mod tests;
