//! The first thing a client says, read before it is decided by what to shake hands with it.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::ServerConfig;
use rustls::server::Acceptor;

use crate::challenge;
use crate::socket::Socket;

/// Bytes read at once: more than a hello has as a rule.
const PIECE: usize = 4096;

/// A ClientHello that is coming in. How long it may be at most is rustls' affair.
#[derive(Default)]
pub(super) struct Hello {
    acceptor: Acceptor,
    /// Bytes of what came that it has been given.
    given: usize,
    watched: bool,
    asked: Option<Arc<ServerConfig>>,
}

impl Hello {
    /// Reads until all of it is in `came`, in which there may be something already. What is none ends it as well: whoever shakes
    /// hands then says what is wrong with it.
    ///
    /// # Errors
    /// The client has gone.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        socket: &Socket,
        came: &mut Vec<u8>,
    ) -> Poll<io::Result<()>> {
        loop {
            while self.given < came.len() {
                let mut rest = &came[self.given..];
                let before = rest.len();
                let Ok(taken @ 1..) = self.acceptor.read_tls(&mut rest) else { return Poll::Ready(Ok(())) };
                self.given += taken.min(before);
                match self.acceptor.accept() {
                    Ok(None) => {}
                    Ok(Some(accepted)) => {
                        let hello = accepted.client_hello();
                        if let (Some(name), Some(protocols)) = (hello.server_name(), hello.alpn()) {
                            self.asked = challenge::shown(name, protocols);
                        }
                        return Poll::Ready(Ok(()));
                    }
                    Err(_) => return Poll::Ready(Ok(())),
                }
            }
            let mut piece = [0; PIECE];
            match socket.poll_recv(cx, &mut piece, &mut self.watched) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Poll::Ready(Ok(count)) => came.extend_from_slice(&piece[..count]),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// By what to shake hands with a client that came for the answer to a challenge.
    pub(super) fn challenge(self) -> Option<Arc<ServerConfig>> {
        self.asked
    }
}
