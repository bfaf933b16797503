//! A TLS connection, driven by the tasks that read and write it: no task of its own, no buffer between two
//! requests.

use std::io::{self, IoSlice, Read, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::{Connection, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::transport::TlsTransport;
use super::{ListenerTls, SniContext, invalid_sni};
use crate::net::byte_stream::ByteStream;
use crate::net::socket::ReactorSocket;

/// The maximum number of bytes encrypted at once, into records of 16 KiB that one system call sends.
const MAX_SEAL: usize = 64 * 1024;

/// A socket and its TLS session.
pub(crate) struct TlsStream<W = ReactorSocket> {
    socket: W,
    session: Connection,
    /// The argument of [`ByteStream::poll_recv`], for readers without one.
    read_registered: bool,
    /// Bytes that were encrypted while the socket accepted no more: they count as sent when all of them are.
    unsent_len: usize,
    /// Whether close_notify was sent.
    close_notify_sent: bool,
    sni: Option<Arc<SniContext>>,
    /// The client's first bytes, until they are answered.
    first_flight: Option<Box<FirstFlight>>,
}

/// A client's first bytes, in case that they have to be processed a second time ([`invalid_sni`]).
struct FirstFlight {
    bytes: Vec<u8>,
    config: Arc<ServerConfig>,
}

impl<W: TlsTransport> TlsStream<W> {
    pub(crate) fn new(socket: W, session: Connection) -> Self {
        Self {
            socket,
            session,
            read_registered: false,
            unsent_len: 0,
            close_notify_sent: false,
            sni: None,
            first_flight: None,
        }
    }

    /// Keeps the client's bytes until they are answered. `config` is the session's configuration.
    pub(crate) fn with_first_flight(mut self, config: Arc<ServerConfig>) -> Self {
        self.first_flight = Some(Box::new(FirstFlight { bytes: Vec::new(), config }));
        self
    }

    /// Records the server name, once it is known.
    pub(crate) fn record_server_name(&mut self, tls: &ListenerTls) {
        self.sni = self.server_name().map(|name| Arc::new(SniContext::new(tls, name)));
    }

    /// Returns the server name that the client requested.
    pub(crate) fn server_name(&self) -> Option<&str> {
        match &self.session {
            Connection::Server(session) => session.server_name(),
            Connection::Client(_) => None,
        }
    }

    /// Processes bytes that were read from the socket before.
    ///
    /// # Errors
    /// They are not TLS.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let remaining = bytes;
            let len = self.session.read_tls(&mut bytes)?;
            if len == 0 {
                break;
            }
            if let Some(first_flight) = &mut self.first_flight {
                first_flight.bytes.extend_from_slice(&remaining[..len]);
            }
            self.process_records()?;
        }
        Ok(())
    }

    /// Performs the handshake; completes when both sides are authenticated and all of its bytes are sent.
    pub(crate) fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut registered = self.read_registered;
        loop {
            ready!(self.poll_drain(cx))?;
            if !self.session.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            let fetch = self.poll_fetch(cx, &mut registered);
            self.read_registered = registered;
            if !ready!(fetch)? {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Returns the protocol that was negotiated (ALPN), if any.
    pub(crate) fn alpn_protocol(&self) -> Option<&[u8]> {
        self.session.alpn_protocol()
    }

    /// Reads and processes records; returns `false` at the end.
    fn poll_fetch(&mut self, cx: &mut Context<'_>, registered: &mut bool) -> Poll<io::Result<bool>> {
        let captured = self.first_flight.as_mut().map(|first_flight| &mut first_flight.bytes);
        let mut reader = SocketReader { socket: &mut self.socket, cx, read_registered: registered, captured };
        match self.session.read_tls(&mut reader) {
            Ok(0) => Poll::Ready(Ok(false)),
            Ok(_) => Poll::Ready(self.process_records().map(|()| true)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Processes records; sends TLS's own answers as far as the socket accepts them.
    fn process_records(&mut self) -> io::Result<()> {
        let mut processed = self.session.process_new_packets().map(|_| ());
        if self.first_flight.is_some() {
            processed = self.check_first_flight(processed);
        }
        if self.session.wants_write() {
            // The rest precedes the next bytes sent; an error shows then.
            let _ = self.session.write_tls(&mut SocketWriter(&self.socket));
        }
        processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Examines the outcome of a client's first bytes, once it is known.
    #[cold]
    fn check_first_flight(&mut self, processed: Result<(), rustls::Error>) -> Result<(), rustls::Error> {
        let is_invalid_name = processed.as_ref().is_err_and(invalid_sni::is_invalid_name_error);
        if !is_invalid_name && processed.is_ok() && !self.session.wants_write() {
            return processed;
        }
        let Some(first_flight) = self.first_flight.take().filter(|_| is_invalid_name) else {
            return processed;
        };
        match invalid_sni::without_name(first_flight.bytes, first_flight.config) {
            Some(session) => {
                self.session = session.into();
                Ok(())
            }
            None => processed,
        }
    }

    /// Sends all encrypted bytes.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut SocketWriter(&self.socket)) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.socket.poll_writable(cx))?;
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Encrypts and sends `parts` in order, and returns the number of bytes.
    ///
    /// Encrypted bytes cannot be taken back. While the socket accepts no more this is pending, and the caller
    /// must return with the same bytes first. All callers here keep the bytes that were not accepted, and
    /// send them before any others.
    fn poll_seal(&mut self, cx: &mut Context<'_>, parts: &[&[u8]]) -> Poll<io::Result<usize>> {
        if self.unsent_len == 0 {
            // TLS's own messages that could not be sent before: they stay bounded.
            ready!(self.poll_drain(cx))?;
            for buffer in parts {
                let len = buffer.len().min(MAX_SEAL - self.unsent_len);
                self.unsent_len += self.session.writer().write(&buffer[..len])?;
            }
        }
        ready!(self.poll_drain(cx))?;
        Poll::Ready(Ok(std::mem::take(&mut self.unsent_len)))
    }

    /// Reads decrypted bytes; 0 at the end.
    fn poll_open(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        registered: &mut bool,
    ) -> Poll<io::Result<usize>> {
        loop {
            match self.session.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
            // At the end, the reader reports whether it was a proper one.
            ready!(self.poll_fetch(cx, registered))?;
        }
    }

    /// Sends close_notify.
    fn send_close_notify(&mut self) {
        if !std::mem::replace(&mut self.close_notify_sent, true) {
            self.session.send_close_notify();
            // A peer that has left, or that does not read, does not need it.
            let _ = self.session.write_tls(&mut SocketWriter(&self.socket));
        }
    }
}

impl ByteStream for TlsStream {
    fn scheme(&self) -> &'static str {
        "https"
    }

    fn origin(&self) -> Option<Arc<SniContext>> {
        self.sni.clone()
    }

    fn abort(&self) {
        self.socket.abort();
    }

    fn keepalive(&self) {
        self.socket.keepalive();
    }

    /// Processes TLS's own records as well.
    fn is_idle(&mut self) -> bool {
        let mut registered = false;
        let mut cx = Context::from_waker(std::task::Waker::noop());
        self.poll_recv(&mut cx, &mut [0], &mut registered).is_pending()
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        registered: &mut bool,
    ) -> Poll<io::Result<usize>> {
        self.poll_open(cx, buffer, registered)
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_seal(cx, &[bytes])
    }

    fn part(&mut self) {
        self.send_close_notify();
    }
}

impl<W: TlsTransport> AsyncRead for TlsStream<W> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut registered = self.read_registered;
        let received = self.poll_open(cx, buffer.initialize_unfilled(), &mut registered);
        self.read_registered = registered;
        buffer.advance(ready!(received)?);
        Poll::Ready(Ok(()))
    }
}

impl<W: TlsTransport> AsyncWrite for TlsStream<W> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_seal(cx, &[bytes])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match parts {
            [head, body] => self.poll_seal(cx, &[head, body]),
            _ => self.poll_seal(cx, &[parts.first().map_or(&[], |part| part)]),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_drain(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.send_close_notify();
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

/// The socket for rustls's reads.
struct SocketReader<'a, 'b, 'c, W> {
    socket: &'a mut W,
    cx: &'a mut Context<'b>,
    read_registered: &'c mut bool,
    /// A copy of the bytes that are read.
    captured: Option<&'a mut Vec<u8>>,
}

impl<W: TlsTransport> Read for SocketReader<'_, '_, '_, W> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.socket.poll_recv(self.cx, buffer, self.read_registered) {
            Poll::Ready(result) => {
                if let (Some(captured), Ok(len)) = (&mut self.captured, &result) {
                    captured.extend_from_slice(&buffer[..*len]);
                }
                result
            }
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

/// The socket for rustls's writes.
struct SocketWriter<'a, W>(&'a W);

impl<W: TlsTransport> Write for SocketWriter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.send(parts).unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into()))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
