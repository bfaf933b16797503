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
    pub(super) fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Plain(socket) => {
                socket.set_read_timeout(Some(timeout))?;
                socket.set_write_timeout(Some(READ_TIMEOUT))
            }
            Self::Tls(stream) => {
                stream.sock.set_read_timeout(Some(timeout))?;
                stream.sock.set_write_timeout(Some(READ_TIMEOUT))
            }
        }
    }
}

impl Read for ControlStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
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
