//! Byte streams to and from peers, and the short way to a plain socket.
//!
//! tokio's `poll_read` of a socket that has nothing takes a lock to register the task, every time. Here a task
//! that is registered already is not registered again: most polls of a relay are of a direction that is not
//! the one it was woken for.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::grpc::Call;
use crate::http2::{Answering, Asking};
use crate::tls::Origin;

/// A byte stream to or from a peer.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin {
    /// What URLs of things behind it begin with.
    fn scheme(&self) -> &'static str {
        "http"
    }

    /// The socket, if bytes go through it as they are: then the kernel can move them.
    fn socket(&self) -> Option<&TcpStream> {
        None
    }

    /// Reads into `buffer`; 0 at the end. `watched` belongs to this stream and one task: false at first.
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        _watched: &mut bool,
    ) -> Poll<io::Result<usize>> {
        let mut space = ReadBuf::new(buffer);
        Pin::new(self).poll_read(cx, &mut space).map_ok(|()| space.filled().len())
    }

    /// Writes some of `bytes`. While it is pending the same bytes are to come first again: some may be on their way.
    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(self).poll_write(cx, bytes)
    }

    /// Says that all was sent, if there is a way to say it other than by closing: without it the peer would not know an end
    /// from a break.
    fn part(&mut self) {}

    /// Has nothing come since the last answer, neither bytes nor the end?
    fn quiet(&mut self) -> bool {
        false
    }

    /// Did the peer say that it did nothing with what it was sent?
    fn untouched(&self) -> bool {
        false
    }

    /// Did it say so of this alone, and not that it takes nothing any more? Then there is no better way to it.
    fn declined(&self) -> bool {
        false
    }

    /// What a member said of its load after its answer, as the value of an ORCA header.
    fn report(&mut self) -> Option<Vec<u8>> {
        None
    }

    /// Ready when the peer has broken off, though nobody reads what it sent before; for those that can know.
    fn poll_gone(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    /// No more will come of what was being sent, so that the peer may be told why, if there is a way. `late`: its own patience
    /// has come to its end.
    fn fail(&mut self, _late: bool) {}

    /// Whom a client's connection is for, if the client said so before it asked for anything.
    fn origin(&self) -> Option<Arc<Origin>> {
        None
    }

    /// Is it one of many on the same connection? Then it costs nothing to ask whether its peer has left, and what it says comes in
    /// pieces that follow one another at once.
    fn shared(&self) -> bool {
        false
    }

    /// The connection that this is a part of is to go when this is over, if it is a part of one.
    fn farewell(&mut self) {}

    /// Is the connection that this is a part of to go because of an alert (in a side-car)?
    fn shed(&self) -> bool {
        false
    }

    /// If a client's request is a call of gRPC: what is known of it.
    fn call(&self) -> Option<&Call> {
        None
    }

    /// A client's stream of HTTP/2, whose request may not have to be told as text.
    fn asking(&mut self) -> Option<&mut dyn Asking> {
        None
    }

    /// A member's stream of HTTP/2, which takes requests that are not told as text.
    fn answering(&mut self) -> Option<&mut dyn Answering> {
        None
    }

    /// Is this a client's stream that becomes a tunnel if the member says so, and nothing else if it succeeds?
    fn tunnels(&self) -> bool {
        false
    }

    /// Lets closing be a reset: what was not read or sent is lost, as it is for a side that broke off.
    fn abort(&self) {}

    /// Has the kernel ask after the peer where nothing is said for long, and end the connection if there is no answer: one whose host
    /// has lost its power says nothing, and neither do many streams for an hour.
    fn keepalive(&self) {}
}

/// A peer is asked after a minute, and has another one to answer.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(60))
    .with_interval(Duration::from_secs(15))
    .with_retries(4);

/// tokio's traits of a [`Stream`] that is no socket, by what it does itself.
macro_rules! as_io {
    ($stream:ty) => {
        impl tokio::io::AsyncRead for $stream {
            fn poll_read(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                space: &mut tokio::io::ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                let came = ready!(self.poll_recv(cx, space.initialize_unfilled(), &mut false))?;
                space.advance(came);
                Poll::Ready(Ok(()))
            }
        }

        impl tokio::io::AsyncWrite for $stream {
            fn poll_write(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.poll_send(cx, bytes)
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.part();
                Poll::Ready(Ok(()))
            }
        }
    };
}
pub(crate) use as_io;

impl Stream for TcpStream {
    fn socket(&self) -> Option<&TcpStream> {
        Some(self)
    }

    /// Costs no system call when nothing has come: tokio asks the kernel only if it was told that there is something.
    #[inline]
    fn quiet(&mut self) -> bool {
        matches!(self.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        watched: &mut bool,
    ) -> Poll<io::Result<usize>> {
        poll_recv(self, cx, buffer, watched)
    }

    fn abort(&self) {
        // A socket that is gone already needs none.
        let _ = self.set_zero_linger();
    }

    fn keepalive(&self) {
        // A socket that is gone already needs none.
        let _ = SockRef::from(self).set_tcp_keepalive(&KEEPALIVE);
    }

    #[inline]
    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match send_now(self, bytes) {
                Some(sent) => return Poll::Ready(sent),
                None => ready!(self.poll_write_ready(cx))?,
            }
        }
    }
}

/// What [`Stream::poll_recv`] does, for a socket that others write to.
pub(crate) fn poll_recv(
    socket: &TcpStream,
    cx: &mut Context<'_>,
    buffer: &mut [u8],
    watched: &mut bool,
) -> Poll<io::Result<usize>> {
    let room = buffer.len();
    loop {
        let read = attempt(socket, Interest::READABLE, room, || {
            // Being ready, it has woken the task and forgotten it.
            *watched = false;
            rustix::net::recv(socket, &mut *buffer, RecvFlags::empty()).map(|(bytes, _)| bytes)
        });
        match read {
            Some(read) => return Poll::Ready(read),
            None if *watched => return Poll::Pending,
            None => {}
        }
        match socket.poll_read_ready(cx) {
            Poll::Ready(ready) => ready?,
            Poll::Pending => {
                *watched = true;
                return Poll::Pending;
            }
        }
    }
}

/// Sends what the socket takes at this moment; `None` if it takes nothing.
pub(crate) fn send_now(socket: &TcpStream, bytes: &[u8]) -> Option<io::Result<usize>> {
    attempt(socket, Interest::WRITABLE, bytes.len(), || rustix::net::send(socket, bytes, SendFlags::NOSIGNAL))
}

/// Does something with a socket that is ready; `None` if it is not, or no longer. Moving fewer bytes than
/// there was room for has exhausted it: tokio is told so, which saves asking the kernel once more.
#[inline]
fn attempt(
    socket: &TcpStream,
    interest: Interest,
    room: usize,
    mut act: impl FnMut() -> rustix::io::Result<usize>,
) -> Option<io::Result<usize>> {
    let mut outcome = None;
    // What tokio makes of it is known already.
    let _ = socket.try_io(interest, || {
        let moved = rustix::io::retry_on_intr(&mut act);
        let more = moved.is_ok_and(|bytes| bytes == room);
        outcome = (moved != Err(Errno::WOULDBLOCK)).then_some(moved);
        if more { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    });
    outcome.map(|moved| Ok(moved?))
}
