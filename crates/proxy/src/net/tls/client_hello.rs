//! Reads a client's first message before the configuration of the handshake is chosen.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::ServerConfig;
use rustls::server::Acceptor;

use crate::net::acme_challenge;
use crate::net::socket::ReactorSocket;

/// The size of a read, in bytes: more than a typical ClientHello.
const PIECE: usize = 4096;

/// A ClientHello that is being received. rustls limits its size.
#[derive(Default)]
pub(crate) struct ClientHelloReader {
    acceptor: Acceptor,
    /// The number of received bytes that were passed to rustls.
    given: usize,
    watched: bool,
    challenge_config: Option<Arc<ServerConfig>>,
}

impl ClientHelloReader {
    /// Reads until the ClientHello is complete in `came`, which may already contain bytes. Invalid bytes end
    /// it as well: the handshake then reports the error.
    ///
    /// # Errors
    /// The client has left.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        socket: &ReactorSocket,
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
                            self.challenge_config = acme_challenge::tls_config(name, protocols);
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

    /// Returns the configuration for a client that validates a challenge.
    pub(crate) fn into_challenge_config(self) -> Option<Arc<ServerConfig>> {
        self.challenge_config
    }
}
