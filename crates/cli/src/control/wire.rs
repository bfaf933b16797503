//! A connection to a controlled program: plain, or over TLS.

use std::io::{self, Read, Write};
use std::time::Duration;

use socket2::Socket;

use super::{READ, secure};

/// A connection.
pub(super) enum Wire {
    Plain(Socket),
    Tls(Box<secure::Stream>),
}

impl Wire {
    /// Sets the timeout of reads.
    pub(super) fn patience(&self, wait: Duration) -> io::Result<()> {
        match self {
            Self::Plain(socket) => {
                socket.set_read_timeout(Some(wait))?;
                socket.set_write_timeout(Some(READ))
            }
            Self::Tls(stream) => {
                stream.sock.set_read_timeout(Some(wait))?;
                stream.sock.set_write_timeout(Some(READ))
            }
        }
    }
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(into),
            Self::Tls(stream) => stream.read(into),
        }
    }
}

impl Write for Wire {
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
