//! Reads a client's first message before the configuration of the handshake is chosen.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::ServerConfig;
use rustls::server::Acceptor;

use crate::net::acme_challenge;
use crate::net::socket::ReactorSocket;

/// The size of a read, in bytes: more than a typical ClientHello.
const READ_SIZE: usize = 4096;

/// A ClientHello that is being received. rustls limits its size.
#[derive(Default)]
pub(crate) struct ClientHelloReader {
    acceptor: Acceptor,
    /// The number of received bytes that were passed to rustls.
    bytes_read: usize,
    read_registered: bool,
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
        received: &mut Vec<u8>,
    ) -> Poll<io::Result<()>> {
        loop {
            while self.bytes_read < received.len() {
                let mut unread = &received[self.bytes_read..];
                let unread_len = unread.len();
                let Ok(len @ 1..) = self.acceptor.read_tls(&mut unread) else { return Poll::Ready(Ok(())) };
                self.bytes_read += len.min(unread_len);
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
            let mut buffer = [0; READ_SIZE];
            match socket.poll_recv(cx, &mut buffer, &mut self.read_registered) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Poll::Ready(Ok(count)) => received.extend_from_slice(&buffer[..count]),
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
