//! A connection to a peer: a plain socket, or another stream (inside of TLS, or a stream of HTTP/2). With one
//! type for all, code that is generic over streams is compiled once, and plain sockets lose no speed.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::grpc::Call;
use crate::http2::{Answering, Asking};
use crate::socket::Socket;
use crate::stream::Stream;
use crate::tls::Origin;

/// A connection to a peer.
pub(crate) enum Link {
    Plain(Socket),
    /// On the heap: it should not enlarge a plain connection, nor add more cases to its dispatch.
    Other(Box<dyn Stream>),
}

/// Calls the same method on either variant.
macro_rules! either {
    ($link:expr, $stream:ident => $what:expr) => {
        match $link {
            Link::Plain($stream) => $what,
            Link::Other($stream) => $what,
        }
    };
}

impl Stream for Link {
    fn scheme(&self) -> &'static str {
        either!(self, stream => stream.scheme())
    }

    fn abort(&self) {
        either!(self, stream => stream.abort());
    }

    fn keepalive(&self) {
        either!(self, stream => stream.keepalive());
    }

    fn socket(&self) -> Option<&Socket> {
        either!(self, stream => stream.socket())
    }

    #[inline(always)]
    fn quiet(&mut self) -> bool {
        either!(self, stream => stream.quiet())
    }

    #[inline(always)]
    fn untouched(&self) -> bool {
        either!(self, stream => stream.untouched())
    }

    fn declined(&self) -> bool {
        either!(self, stream => stream.declined())
    }

    fn report(&mut self) -> Option<Vec<u8>> {
        either!(self, stream => stream.report())
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        either!(self, stream => stream.poll_gone(cx))
    }

    fn fail(&mut self, late: bool) {
        either!(self, stream => stream.fail(late));
    }

    fn origin(&self) -> Option<Arc<Origin>> {
        either!(self, stream => stream.origin())
    }

    #[inline(always)]
    fn shared(&self) -> bool {
        either!(self, stream => stream.shared())
    }

    #[inline(always)]
    fn farewell(&mut self) {
        either!(self, stream => stream.farewell());
    }

    fn shed(&self) -> bool {
        either!(self, stream => stream.shed())
    }

    #[inline(always)]
    fn call(&self) -> Option<&Call> {
        either!(self, stream => stream.call())
    }

    #[inline(always)]
    fn asking(&mut self) -> Option<&mut dyn Asking> {
        either!(self, stream => stream.asking())
    }

    #[inline(always)]
    fn answering(&mut self) -> Option<&mut dyn Answering> {
        either!(self, stream => stream.answering())
    }

    fn tunnels(&self) -> bool {
        either!(self, stream => stream.tunnels())
    }

    #[inline]
    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        watched: &mut bool,
    ) -> Poll<io::Result<usize>> {
        either!(self, stream => stream.poll_recv(cx, buffer, watched))
    }

    #[inline(always)]
    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        either!(self, stream => stream.poll_send(cx, bytes))
    }

    fn part(&mut self) {
        either!(self, stream => stream.part());
    }
}

impl AsyncRead for Link {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(&mut *self, stream => Pin::new(stream).poll_read(cx, space))
    }
}

impl AsyncWrite for Link {
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
