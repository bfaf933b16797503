//! An HTTP client that suffices to read an answer to an HTTP/1.0 request: a head, then bytes to the end of
//! the connection.

use std::io::{self, BufRead, BufReader, Read};

use super::ControlStream;

/// The longest head, in bytes.
const MAX_HEAD: u64 = 64 * 1024;
/// The longest body, in bytes: ten thousand members fit many times.
const MAX_BODY: u64 = 256 << 20;

/// An answer after its head was read.
pub(super) struct HttpResponse<S = ControlStream> {
    pub(super) status: u16,
    length: Option<u64>,
    /// The peer's proof for a ticket (`WWW-Authenticate: Negotiate`).
    pub(super) negotiate: Option<String>,
    reader: BufReader<S>,
}

impl<S: Read> HttpResponse<S> {
    /// Reads the head.
    pub(super) fn read(stream: S) -> io::Result<Self> {
        let mut reader = BufReader::new(stream);
        let mut head = reader.by_ref().take(MAX_HEAD);
        let mut read_line = || {
            let mut bytes = Vec::new();
            head.read_until(b'\n', &mut bytes)?;
            match bytes.pop() {
                Some(b'\n') => Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned()),
                _ => Err(invalid_response("the answer ends in its head")),
            }
        };
        let status_line = read_line()?;
        let status = status_line
            .strip_prefix("HTTP/1.")
            .and_then(|rest| rest.get(2..5)?.parse().ok())
            .ok_or_else(|| invalid_response("the answer is not HTTP"))?;
        let (mut length, mut negotiate) = (None, None);
        loop {
            let line = read_line()?;
            if line.is_empty() {
                break;
            }
            let Some((name, value)) = line.split_once(':') else { continue };
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                length = Some(value.parse().map_err(|_| invalid_response("content-length is not a number"))?);
            } else if name.eq_ignore_ascii_case("www-authenticate")
                && let Some((scheme, proof)) = value.split_once(' ')
                && scheme.eq_ignore_ascii_case("negotiate")
            {
                negotiate = Some(proof.trim().to_owned());
            }
        }
        Ok(Self { status, length, negotiate, reader })
    }

    /// Reads all of the body.
    pub(super) fn body(self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        let length_read =
            self.reader.take(self.length.unwrap_or(MAX_BODY).min(MAX_BODY)).read_to_end(&mut body)? as u64;
        if length_read == MAX_BODY || self.length.is_some_and(|length| length != length_read) {
            return Err(invalid_response("the answer is cut short"));
        }
        Ok(body)
    }

    /// Returns the rest of the stream, to read the body as it comes.
    pub(super) fn stream(self) -> BufReader<S> {
        self.reader
    }
}

fn invalid_response(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> io::Result<(u16, String)> {
        let response = HttpResponse::read(text.as_bytes())?;
        let status = response.status;
        Ok((status, String::from_utf8(response.body()?).unwrap()))
    }

    #[test]
    fn bodies_end_by_length_or_with_the_connection() {
        let by_length = read("HTTP/1.1 200 OK\r\nContent-LENGTH:  2 \r\nA: b\r\n\r\nokgarbage").unwrap();
        assert_eq!(by_length, (200, "ok".into()));
        assert_eq!(read("HTTP/1.0 503 x\n\nbody").unwrap(), (503, "body".into()));
    }

    #[test]
    fn what_is_broken_is_an_error() {
        for text in [
            "",
            "HTTP/1.1",
            "HTTP/1.1 2\r\n\r\n",
            "HTTP/1.1 é00 OK\r\n\r\n",
            "HTTP/2 200 OK\r\n\r\n",
            "SSH-2.0-OpenSSH_9.2\r\n",
            "HTTP/1.1 200 OK\r\nA: b\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok",
            "HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\nok",
        ] {
            assert!(read(text).is_err(), "{text:?}");
        }
        let endless = format!("HTTP/1.1 200 OK\r\n{}", "a: b\r\n".repeat(20_000));
        assert!(read(&endless).is_err());
    }
}
