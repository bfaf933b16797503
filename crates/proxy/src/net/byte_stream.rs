//! Byte streams to and from peers.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::net::grpc::GrpcCall;
use crate::net::socket::ReactorSocket;
use crate::net::tls::SniContext;
use crate::protocol::http2::{H2Request, H2Response};

/// A byte stream to or from a peer.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Unpin {
    /// Returns the scheme of URLs of resources behind it.
    fn scheme(&self) -> &'static str {
        "http"
    }

    /// Returns the socket, if bytes pass through it unchanged: then the kernel can move them.
    fn socket(&self) -> Option<&ReactorSocket> {
        None
    }

    /// Reads into `buffer`; 0 at the end. `_watched` belongs to this stream and one task: `false` at first.
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        _registered: &mut bool,
    ) -> Poll<io::Result<usize>> {
        let mut read_buf = ReadBuf::new(buffer);
        Pin::new(self).poll_read(cx, &mut read_buf).map_ok(|()| read_buf.filled().len())
    }

    /// Writes some of `bytes`. While it is pending, the next call must begin with the same bytes, some of
    /// which may be in transit.
    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(self).poll_write(cx, bytes)
    }

    /// Marks the end of the data, if there is a way other than closing. Without it, the peer could not tell
    /// an end from an abort.
    fn part(&mut self) {}

    /// Returns `true` if neither bytes nor the end have arrived since the last response.
    fn is_idle(&mut self) -> bool {
        false
    }

    /// Returns `true` if the peer reported that it did not process the request.
    fn is_unprocessed(&self) -> bool {
        false
    }

    /// Returns `true` if it declined this request only, and accepts others. Then another connection to it is
    /// no better.
    fn was_refused(&self) -> bool {
        false
    }

    /// Returns the member's load report after its response, as the value of an ORCA header.
    fn take_report(&mut self) -> Option<Vec<u8>> {
        None
    }

    /// Completes when the peer has left, even if its earlier bytes are unread; for streams that can detect
    /// it.
    fn poll_closed(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    /// Aborts an incomplete message, and informs the peer of the reason if there is a way. `late` is `true`
    /// if the peer's own timeout expired.
    fn fail(&mut self, _timed_out: bool) {}

    /// Returns the server name of a client's connection, if the client sent it before any request.
    fn origin(&self) -> Option<Arc<SniContext>> {
        None
    }

    /// Returns `true` for one of many streams on a connection. Then checking whether its peer has left is
    /// free, and its bytes come in pieces in quick succession.
    fn is_multiplexed(&self) -> bool {
        false
    }

    /// Lets the connection end after this stream, if it is a part of one.
    fn close_connection(&mut self) {}

    /// Returns `true` if the stream's connection ends because of an alert (in a side-car).
    fn is_shed(&self) -> bool {
        false
    }

    /// Returns the state of a gRPC call, if a client's request is one.
    fn call(&self) -> Option<&GrpcCall> {
        None
    }

    /// Returns the interface of a client's HTTP/2 stream, whose request may pass through without conversion
    /// to text.
    fn http2_request(&mut self) -> Option<&mut dyn H2Request> {
        None
    }

    /// Returns the interface of a member's HTTP/2 stream, which accepts requests without conversion to text.
    fn http2_response(&mut self) -> Option<&mut dyn H2Response> {
        None
    }

    /// Returns `true` for a client's stream that becomes a tunnel if the member agrees, and has no other
    /// success.
    fn is_tunnel(&self) -> bool {
        false
    }

    /// Makes closing a reset: unread and unsent bytes are lost, as when a side breaks off.
    fn abort(&self) {}

    /// Enables the kernel's probes of a silent peer, which end the connection without an answer. A host that
    /// lost power is silent, but many streams are silent for an hour as well.
    fn keepalive(&self) {}
}

/// Implements tokio's traits for a [`ByteStream`] that is no socket, by its own methods.
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
