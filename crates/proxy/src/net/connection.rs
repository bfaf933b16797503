//! A connection to a peer: a plain socket, or another stream (inside of TLS, or a stream of HTTP/2). With one
//! type for all, code that is generic over streams is compiled once, and plain sockets lose no speed.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::net::byte_stream::ByteStream;
use crate::net::grpc::GrpcCall;
use crate::net::socket::ReactorSocket;
use crate::net::tls::SniContext;
use crate::protocol::http2::{H2Request, H2Response};

/// A connection to a peer.
pub(crate) enum PeerConnection {
    Plain(ReactorSocket),
    /// On the heap: it should not enlarge a plain connection, nor add more cases to its dispatch.
    Other(Box<dyn ByteStream>),
}

/// Calls the same method on either variant.
macro_rules! either {
    ($link:expr, $stream:ident => $what:expr) => {
        match $link {
            PeerConnection::Plain($stream) => $what,
            PeerConnection::Other($stream) => $what,
        }
    };
}

impl ByteStream for PeerConnection {
    fn scheme(&self) -> &'static str {
        either!(self, stream => stream.scheme())
    }

    fn abort(&self) {
        either!(self, stream => stream.abort());
    }

    fn keepalive(&self) {
        either!(self, stream => stream.keepalive());
    }

    fn socket(&self) -> Option<&ReactorSocket> {
        either!(self, stream => stream.socket())
    }

    #[inline(always)]
    fn is_idle(&mut self) -> bool {
        either!(self, stream => stream.is_idle())
    }

    #[inline(always)]
    fn is_unprocessed(&self) -> bool {
        either!(self, stream => stream.is_unprocessed())
    }

    fn was_refused(&self) -> bool {
        either!(self, stream => stream.was_refused())
    }

    fn take_report(&mut self) -> Option<Vec<u8>> {
        either!(self, stream => stream.take_report())
    }

    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        either!(self, stream => stream.poll_closed(cx))
    }

    fn fail(&mut self, timed_out: bool) {
        either!(self, stream => stream.fail(timed_out));
    }

    fn origin(&self) -> Option<Arc<SniContext>> {
        either!(self, stream => stream.origin())
    }

    #[inline(always)]
    fn is_multiplexed(&self) -> bool {
        either!(self, stream => stream.is_multiplexed())
    }

    #[inline(always)]
    fn close_connection(&mut self) {
        either!(self, stream => stream.close_connection());
    }

    fn is_shed(&self) -> bool {
        either!(self, stream => stream.is_shed())
    }

    #[inline(always)]
    fn call(&self) -> Option<&GrpcCall> {
        either!(self, stream => stream.call())
    }

    #[inline(always)]
    fn http2_request(&mut self) -> Option<&mut dyn H2Request> {
        either!(self, stream => stream.http2_request())
    }

    #[inline(always)]
    fn http2_response(&mut self) -> Option<&mut dyn H2Response> {
        either!(self, stream => stream.http2_response())
    }

    fn is_tunnel(&self) -> bool {
        either!(self, stream => stream.is_tunnel())
    }

    #[inline]
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        registered: &mut bool,
    ) -> Poll<io::Result<usize>> {
        either!(self, stream => stream.poll_recv(cx, buffer, registered))
    }

    #[inline(always)]
    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        either!(self, stream => stream.poll_send(cx, bytes))
    }

    fn part(&mut self) {
        either!(self, stream => stream.part());
    }
}

impl AsyncRead for PeerConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(&mut *self, stream => Pin::new(stream).poll_read(cx, buffer))
    }
}

impl AsyncWrite for PeerConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        either!(&mut *self, stream => Pin::new(stream).poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(&mut *self, stream => Pin::new(stream).poll_write_vectored(cx, parts))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(&mut *self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(&mut *self, stream => Pin::new(stream).poll_shutdown(cx))
    }
}
