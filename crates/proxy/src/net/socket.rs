//! TCP sockets whose readiness their thread's own reactor tracks ([`crate::runtime::reactor`]).

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

use crate::net::byte_stream::ByteStream;
use crate::runtime::reactor::{IoDirection, Reactor, ReactorSlot};
use crate::runtime::resource_limits::DescriptorPermit;

/// A connected socket.
pub(crate) struct ReactorSocket {
    slot: ReactorSlot,
    stream: TcpStream,
    /// The descriptor of a connection to a member; that of a client counts with its connection guard.
    _descriptor: Option<DescriptorPermit>,
}

impl ReactorSocket {
    /// Wraps an open connection, which counts as writable and perhaps readable. `stream` must be
    /// non-blocking.
    pub(crate) fn new(readiness: &Rc<Reactor>, stream: OwnedFd) -> Self {
        Self::with_descriptor(readiness, stream, None)
    }

    fn with_descriptor(
        readiness: &Rc<Reactor>,
        stream: OwnedFd,
        descriptor: Option<DescriptorPermit>,
    ) -> Self {
        let slot = readiness.place(&[IoDirection::Read, IoDirection::Write]);
        Self { slot, stream: stream.into(), _descriptor: descriptor }
    }

    /// Connects to an address.
    ///
    /// # Errors
    /// The address cannot be reached, or the system has no more sockets.
    pub(crate) async fn connect(
        readiness: &Rc<Reactor>,
        address: SocketAddr,
        descriptor: Option<DescriptorPermit>,
    ) -> io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let stream = rustix::net::socket_with(family, SocketType::STREAM, FLAGS, None)?;
        match rustix::net::connect(&stream, &address) {
            Ok(()) => return Ok(Self::with_descriptor(readiness, stream, descriptor)),
            Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let socket = Self { slot: readiness.place(&[]), stream: stream.into(), _descriptor: descriptor };
        poll_fn(|cx| socket.poll_ready(IoDirection::Write, cx)).await?;
        match socket.stream.take_error()? {
            Some(error) => Err(error),
            None => Ok(socket),
        }
    }

    /// Runs `act` if the socket is ready. `act` returns the number of bytes moved, at most `room`: fewer mean
    /// that the socket is no longer ready.
    #[inline]
    pub(crate) fn try_io(
        &self,
        direction: IoDirection,
        max_len: usize,
        mut operation: impl FnMut() -> rustix::io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        if !self.slot.is_ready(direction) {
            return None;
        }
        match rustix::io::retry_on_intr(&mut operation) {
            Ok(len) => {
                if len < max_len {
                    self.slot.clear_ready(direction);
                }
                Some(Ok(len))
            }
            Err(Errno::WOULDBLOCK) => {
                self.slot.mark_blocked(direction);
                None
            }
            Err(error) => Some(Err(error.into())),
        }
    }

    /// Reads as [`ByteStream::poll_recv`], for tasks that share the socket.
    pub(crate) fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        registered: &mut bool,
    ) -> Poll<io::Result<usize>> {
        let max_len = buffer.len();
        let received = self.try_io(IoDirection::Read, max_len, || {
            // A ready socket has woken the task, which is then no longer registered.
            *registered = false;
            rustix::net::recv(&self.stream, &mut *buffer, RecvFlags::empty()).map(|(bytes, _)| bytes)
        });
        match received {
            Some(result) => Poll::Ready(result),
            None if *registered => Poll::Pending,
            None => {
                *registered = true;
                self.register_waker(IoDirection::Read, cx)
            }
        }
    }

    /// Sends as much as the socket accepts now; `None` if it accepts nothing.
    #[inline]
    pub(crate) fn send(&self, bytes: &[u8]) -> Option<io::Result<usize>> {
        self.try_io(IoDirection::Write, bytes.len(), || {
            rustix::net::send(&self.stream, bytes, SendFlags::NOSIGNAL)
        })
    }

    /// Sends several pieces in order, likewise.
    pub(crate) fn send_parts(&self, parts: &[IoSlice<'_>]) -> Option<io::Result<usize>> {
        let total_len = parts.iter().map(|slice| slice.len()).sum();
        let mut no_ancillary = SendAncillaryBuffer::default();
        self.try_io(IoDirection::Write, total_len, || {
            rustix::net::sendmsg(&self.stream, parts, &mut no_ancillary, SendFlags::NOSIGNAL)
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
    pub(crate) fn poll_ready(&self, direction: IoDirection, cx: &Context<'_>) -> Poll<io::Result<()>> {
        if self.slot.is_ready(direction) { Poll::Ready(Ok(())) } else { self.register_waker(direction, cx) }
    }

    /// Registers for a wake-up when the socket is ready; an error if it cannot be watched.
    #[inline]
    fn register_waker<T>(&self, direction: IoDirection, cx: &Context<'_>) -> Poll<io::Result<T>> {
        match self.slot.register_waker(direction, cx, &self.stream) {
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
pub(crate) struct ListenSocket {
    slot: ReactorSlot,
    socket: OwnedFd,
}

impl ListenSocket {
    /// Wraps a listening socket, which must be non-blocking.
    pub(crate) fn new(readiness: &Rc<Reactor>, socket: OwnedFd) -> Self {
        Self { slot: readiness.place(&[IoDirection::Read]), socket }
    }

    /// Returns the next connection.
    ///
    /// # Errors
    /// The system has no more descriptors or registers no more, or the client has already left.
    pub(crate) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(ReactorSocket, SocketAddr)>> {
        // With many new connections, other tasks must run, too.
        let coop = ready!(tokio::task::coop::poll_proceed(cx));
        let result = if self.slot.is_ready(IoDirection::Read) { self.accept() } else { None };
        let Some(result) = result else {
            self.slot.register_waker(IoDirection::Read, cx, &self.socket)?;
            return Poll::Pending;
        };
        coop.made_progress();
        Poll::Ready(result)
    }

    /// Returns a waiting connection, if there is one.
    pub(crate) fn accept(&self) -> Option<io::Result<(ReactorSocket, SocketAddr)>> {
        let result = rustix::io::retry_on_intr(|| rustix::net::acceptfrom_with(&self.socket, FLAGS));
        if matches!(result, Err(Errno::WOULDBLOCK)) {
            self.slot.mark_blocked(IoDirection::Read);
            return None;
        }
        let to_socket = |(stream, client): (OwnedFd, Option<SocketAddrAny>)| {
            let client = client.and_then(|client| client.try_into().ok()).ok_or(Errno::AFNOSUPPORT)?;
            Ok((ReactorSocket::new(self.slot.readiness(), stream), client))
        };
        Some(result.map_err(io::Error::from).and_then(to_socket))
    }
}

impl Drop for ListenSocket {
    fn drop(&mut self) {
        self.slot.deregister(&self.socket);
    }
}

impl Drop for ReactorSocket {
    fn drop(&mut self) {
        self.slot.deregister(&self.stream);
    }
}

impl AsFd for ReactorSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl ByteStream for ReactorSocket {
    fn socket(&self) -> Option<&ReactorSocket> {
        Some(self)
    }

    /// Costs no system call if nothing has arrived: the socket is read only if the kernel reported it as
    /// ready.
    #[inline]
    fn is_idle(&mut self) -> bool {
        if !self.slot.is_registered() {
            self.slot.assume_ready(IoDirection::Read);
        }
        let mut probe_byte = [0];
        self.try_io(IoDirection::Read, 1, || {
            rustix::net::recv(&self.stream, &mut probe_byte, RecvFlags::empty()).map(|(bytes, _)| bytes)
        })
        .is_none()
    }

    #[inline]
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        registered: &mut bool,
    ) -> Poll<io::Result<usize>> {
        Self::poll_recv(self, cx, buffer, registered)
    }

    #[inline]
    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.send(bytes) {
            Some(sent) => Poll::Ready(sent),
            None => self.register_waker(IoDirection::Write, cx),
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

impl AsyncRead for ReactorSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // Other tasks must run, too.
        let coop = ready!(tokio::task::coop::poll_proceed(cx));
        // Copied, as the given buffer may be uninitialised: initialising that much each time would cost more.
        let mut chunk = [const { MaybeUninit::<u8>::uninit() }; READ_SIZE];
        let max_len = buffer.remaining().min(READ_SIZE);
        let received = self.try_io(IoDirection::Read, max_len, || {
            let ((bytes, _), _) = rustix::net::recv(&self.stream, &mut chunk[..max_len], RecvFlags::empty())?;
            buffer.put_slice(bytes);
            Ok(bytes.len())
        });
        let Some(received) = received else { return self.register_waker(IoDirection::Read, cx) };
        coop.made_progress();
        Poll::Ready(received.map(drop))
    }
}

/// The size of reads through tokio's trait, in bytes.
const READ_SIZE: usize = 32 * 1024;

impl AsyncWrite for ReactorSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.send_parts(slices) {
            Some(sent) => Poll::Ready(sent),
            None => self.register_waker(IoDirection::Write, cx),
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
            result => result,
        })
    }
}

/// Returns `true` if the process or the system has no more file descriptors, or the kernel no more memory.
pub(crate) fn is_out_of_resources(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM].contains(&errno))
}

#[cfg(test)]
mod tests;
