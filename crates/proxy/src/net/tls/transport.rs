//! The transport below TLS: sockets of a data-plane thread, and tokio's sockets of health checks.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::net::socket::ReactorSocket;
use crate::runtime::reactor::IoDirection;

/// A socket.
pub(crate) trait TlsTransport: AsyncWrite + Unpin {
    /// Reads as [`ByteStream::poll_recv`](crate::net::byte_stream::ByteStream::poll_recv).
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        registered: &mut bool,
    ) -> Poll<io::Result<usize>>;

    /// Sends as much as the socket accepts now; `None` if it accepts nothing.
    fn send(&self, parts: &[IoSlice<'_>]) -> Option<io::Result<usize>>;

    /// Completes when the socket may accept bytes.
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

impl TlsTransport for ReactorSocket {
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        registered: &mut bool,
    ) -> Poll<io::Result<usize>> {
        Self::poll_recv(self, cx, buffer, registered)
    }

    fn send(&self, parts: &[IoSlice<'_>]) -> Option<io::Result<usize>> {
        match parts {
            [part] => Self::send(self, part),
            _ => self.send_parts(parts),
        }
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_ready(IoDirection::Write, cx)
    }
}

impl TlsTransport for TcpStream {
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        _: &mut bool,
    ) -> Poll<io::Result<usize>> {
        let mut read_buf = ReadBuf::new(buffer);
        ready!(Pin::new(self).poll_read(cx, &mut read_buf))?;
        Poll::Ready(Ok(read_buf.filled().len()))
    }

    fn send(&self, parts: &[IoSlice<'_>]) -> Option<io::Result<usize>> {
        match self.try_write_vectored(parts) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            result => Some(result),
        }
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_write_ready(cx)
    }
}
