//! Byte streams to and from peers.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::grpc::Call;
use crate::http2::{Answering, Asking};
use crate::socket::Socket;
use crate::tls::Origin;

/// A byte stream to or from a peer.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin {
    /// What URLs of things behind it begin with.
    fn scheme(&self) -> &'static str {
        "http"
    }

    /// The socket, if bytes go through it as they are: then the kernel can move them.
    fn socket(&self) -> Option<&Socket> {
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
