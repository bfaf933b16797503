//! A connection to a controlled program: plain, or over TLS.

use std::io::{self, Read, Write};
use std::time::Duration;

use socket2::Socket;

use super::{READ_TIMEOUT, tls_client};

/// A connection.
pub(super) enum ControlStream {
    Plain(Socket),
    Tls(Box<tls_client::ControlTlsStream>),
}

impl ControlStream {
    /// Sets the timeout of reads.
    pub(super) fn set_read_timeout(&self, wait: Duration) -> io::Result<()> {
        match self {
            Self::Plain(socket) => {
                socket.set_read_timeout(Some(wait))?;
                socket.set_write_timeout(Some(READ_TIMEOUT))
            }
            Self::Tls(stream) => {
                stream.sock.set_read_timeout(Some(wait))?;
                stream.sock.set_write_timeout(Some(READ_TIMEOUT))
            }
        }
    }
}

impl Read for ControlStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(into),
            Self::Tls(stream) => stream.read(into),
        }
    }
}

impl Write for ControlStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}
