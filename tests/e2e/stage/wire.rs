//! One end of a connection that speaks scripted HTTP/1.1, and reads strictly.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};

use super::PATIENCE;

/// A client or a member; all that it waits for comes within [`PATIENCE`] or is an error.
pub(crate) struct Wire {
    stream: TcpStream,
    /// The bytes that were read and not taken yet.
    ahead: Vec<u8>,
}

/// An answer, or the head before a body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

/// Asks for `path` on a connection of its own.
#[track_caller]
pub(crate) fn get(address: SocketAddr, path: &str) -> Answer {
    let mut client = Wire::connect(address);
    client.send(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"));
    client.answer().unwrap()
}

impl Answer {
    /// Returns the value of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        field(&self.head, name)
    }

    /// Returns the reason for which the balancer answered itself, if it did.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.field("plimsoll-reason")
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Wire {
    #[track_caller]
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).unwrap())
    }

    pub(crate) fn over(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream, ahead: Vec::new() }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.stream.local_addr().unwrap()
    }

    #[track_caller]
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    /// Sends bytes to a peer that may have closed.
    pub(crate) fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// Ends the sending direction.
    pub(crate) fn finish(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Reads all until the empty line, with it; `None` if the peer closes before its first byte.
    pub(crate) fn head(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some(end) = self.ahead.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = self.ahead.drain(..end + 4).collect();
                return String::from_utf8(head).map(Some).map_err(io::Error::other);
            }
            if self.more()? == 0 {
                return if self.ahead.is_empty() { Ok(None) } else { Err(cut()) };
            }
        }
    }

    /// Returns `true` if an answer, or its beginning, can be read.
    pub(crate) fn has_answer(&self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let there = self.stream.peek(&mut [0]).is_ok();
        self.stream.set_nonblocking(false).unwrap();
        there
    }

    /// The next answer, interim ones too.
    pub(crate) fn answer(&mut self) -> io::Result<Answer> {
        self.answer_to("GET")
    }

    pub(crate) fn answer_to(&mut self, method: &str) -> io::Result<Answer> {
        let head = self.head()?.ok_or_else(cut)?;
        let status: u16 = head.get(9..12).and_then(|code| code.parse().ok()).ok_or_else(strange)?;
        let body = match status {
            _ if method == "HEAD" => Vec::new(),
            100..=199 | 204 | 304 => Vec::new(),
            _ => self.body(&head, true)?,
        };
        Ok(Answer { status, head, body })
    }

    /// Reads the body that belongs to a head: that of an answer may be all until the end.
    pub(crate) fn body(&mut self, head: &str, of_answer: bool) -> io::Result<Vec<u8>> {
        if field(head, "transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
            return self.chunks();
        }
        match field(head, "content-length") {
            Some(length) => self.exactly(length.parse().map_err(|_| strange())?),
            None if of_answer => self.rest(),
            None => Ok(Vec::new()),
        }
    }

    /// Reads `length` bytes.
    pub(crate) fn exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.ahead.len() < length {
            if self.more()? == 0 {
                return Err(cut());
            }
        }
        Ok(self.ahead.drain(..length).collect())
    }

    /// Reads all until the peer closes.
    pub(crate) fn rest(&mut self) -> io::Result<Vec<u8>> {
        while self.more()? > 0 {}
        Ok(std::mem::take(&mut self.ahead))
    }

    /// Reads a line without its end.
    pub(crate) fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.ahead.windows(2).position(|two| two == b"\r\n") {
                let line = self.ahead.drain(..end + 2).take(end).collect();
                return String::from_utf8(line).map_err(io::Error::other);
            }
            if self.more()? == 0 {
                return Err(cut());
            }
        }
    }

    /// Waits until the peer has closed, which it must do without another byte.
    #[track_caller]
    pub(crate) fn closed(&mut self) {
        match self.rest() {
            Ok(rest) => assert!(rest.is_empty(), "{:?}", String::from_utf8_lossy(&rest)),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
        }
    }

    /// Reads the content of chunks; extensions and trailers are dropped.
    fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        loop {
            let line = self.line()?;
            let digits = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(digits, 16).map_err(|_| strange())?;
            if size == 0 {
                while !self.line()?.is_empty() {}
                return Ok(content);
            }
            content.extend(self.exactly(size)?);
            if !self.line()?.is_empty() {
                return Err(strange());
            }
        }
    }

    fn more(&mut self) -> io::Result<usize> {
        let mut buffer = [0; 64 * 1024];
        let read = self.stream.read(&mut buffer)?;
        self.ahead.extend_from_slice(&buffer[..read]);
        Ok(read)
    }
}

fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().skip(1).find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then_some(value.trim())
    })
}

fn cut() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "the connection ended too early")
}

fn strange() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "this is not HTTP/1.1")
}
