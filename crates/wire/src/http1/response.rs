//! Answer heads: read, judged, rewritten for the client.

use httparse::{Header, Status};

use super::field::{
    Connection, Marks, Space, copy_fields, length, lines_end_in_crlf, mark_named, offset, tokens,
};
use super::{Body, Chunked};

/// An answer that cannot be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad answer: {0}")]
pub struct BadResponse(pub &'static str);

/// An answer head that may be passed on.
#[derive(Debug)]
pub struct Response<'h, 'b> {
    /// 100 to 999.
    pub status: u16,
    /// May the connection to the member be used again after this answer?
    pub keep_alive: bool,
    /// What follows the head.
    pub body: Body,
    /// Bytes of the head, the empty line included.
    pub len: usize,
    head: &'b [u8],
    headers: &'h [Header<'b>],
    http10: bool,
    hop: Marks,
    coding: Marks,
    upgrade: Option<usize>,
}

/// How to rewrite an answer head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// The client's connection ends after this answer.
    pub close: bool,
    /// The client speaks HTTP/1.0: keeping the connection must be said, chunks are taken apart.
    pub http10: bool,
}

/// Reads an answer head from the beginning of `input`; `None` if it is not all there yet. `to_head` says that
/// the request was HEAD.
///
/// # Errors
/// The answer is malformed, or could be read in two ways.
pub fn response<'h, 'b>(
    input: &'b [u8],
    fields: &'h mut Space<'b>,
    max_head: usize,
    to_head: bool,
) -> Result<Option<Response<'h, 'b>>, BadResponse> {
    let window = &input[..input.len().min(max_head)];
    let mut parsed = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    let len = match config.parse_response_with_uninit_headers(&mut parsed, window, fields) {
        Ok(Status::Complete(len)) => len,
        Ok(Status::Partial) if input.len() >= max_head => return Err(BadResponse("the head is too large")),
        Ok(Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(BadResponse("too many fields")),
        Err(_) => return Err(BadResponse("the head is malformed")),
    };
    let (Some(status), Some(version)) = (parsed.code, parsed.version) else {
        return Err(BadResponse("the head is malformed"));
    };
    judge(&input[..len], status, version == 0, parsed.headers, to_head).map(Some)
}

fn judge<'h, 'b>(
    head: &'b [u8],
    status: u16,
    http10: bool,
    headers: &'h [Header<'b>],
    to_head: bool,
) -> Result<Response<'h, 'b>, BadResponse> {
    let first_line = headers.first().map_or(head.len() - 2, |header| offset(head, header.name.as_bytes()));
    if !head.starts_with(b"HTTP/1.")
        || !head[..first_line].ends_with(b"\r\n")
        || !lines_end_in_crlf(head, headers)
    {
        return Err(BadResponse("a line does not end in CRLF"));
    }
    if status < 100 {
        return Err(BadResponse("the status is below 100"));
    }
    let mut connection = Connection::default();
    let (mut hop, mut coding) = (Marks::default(), Marks::default());
    let mut content_length = None;
    let mut chunked = false;
    let mut upgrade = None;
    for (index, header) in headers.iter().enumerate() {
        let name = header.name.as_bytes();
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted.as_bytes());
        match name.len() {
            7 if is("upgrade") => {
                hop.add(index);
                upgrade = Some(index);
            }
            10 if is("connection") => {
                hop.add(index);
                connection.read(header.value);
            }
            10 if is("keep-alive") => hop.add(index),
            14 if is("content-length") => {
                let length = length(header.value).ok_or(BadResponse("Content-Length is malformed"))?;
                if content_length.replace(length).is_some_and(|other| other != length) {
                    return Err(BadResponse("two different Content-Lengths"));
                }
            }
            16 if is("proxy-connection") => hop.add(index),
            17 if is("transfer-encoding") => {
                if chunked
                    || tokens(header.value).count() != 1
                    || !header.value.eq_ignore_ascii_case(b"chunked")
                {
                    return Err(BadResponse("the transfer coding is not chunked"));
                }
                coding.add(index);
                chunked = true;
            }
            _ => {}
        }
    }
    if chunked && content_length.is_some() {
        return Err(BadResponse("both Content-Length and Transfer-Encoding"));
    }
    if connection.names_others {
        mark_named(headers, &mut hop);
    }
    let body = match status {
        100..=199 | 204 | 304 => Body::Done,
        _ if to_head => Body::Done,
        _ if chunked => Body::Chunked(Chunked::new()),
        _ => match content_length {
            Some(0) => Body::Done,
            Some(length) => Body::Length(length),
            None => Body::UntilClose,
        },
    };
    let keep_alive = body != Body::UntilClose && !connection.close && (!http10 || connection.keep_alive);
    Ok(Response { status, keep_alive, body, len: head.len(), head, headers, http10, hop, coding, upgrade })
}

impl Response<'_, '_> {
    /// Is another answer to the same request still to come?
    pub fn interim(&self) -> bool {
        (100..200).contains(&self.status) && self.status != 101
    }

    /// Appends the head for the client.
    pub fn write(&self, rewrite: Rewrite, out: &mut Vec<u8>) {
        let mut drop = self.hop;
        if rewrite.http10 {
            for index in (0..self.headers.len()).filter(|index| self.coding.has(*index)) {
                drop.add(index);
            }
        }
        let upgrade = if self.status == 101 { self.upgrade } else { None };
        if drop.is_empty() && !self.http10 && !rewrite.close && !rewrite.http10 {
            out.extend_from_slice(self.head);
            return;
        }
        out.extend_from_slice(b"HTTP/1.1");
        let line = self
            .headers
            .first()
            .map_or(self.head.len() - 2, |first| offset(self.head, first.name.as_bytes()));
        out.extend_from_slice(&self.head[b"HTTP/1.1".len()..line]);
        copy_fields(self.head, self.headers, drop, out);
        if let Some(index) = upgrade {
            out.extend_from_slice(b"Connection: Upgrade\r\nUpgrade: ");
            out.extend_from_slice(self.headers[index].value);
            out.extend_from_slice(b"\r\n");
        } else if self.interim() {
        } else if rewrite.close {
            out.extend_from_slice(b"Connection: close\r\n");
        } else if rewrite.http10 {
            out.extend_from_slice(b"Connection: keep-alive\r\n");
        }
        out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::super::space;
    use super::*;

    fn read(input: &str, to_head: bool, rewrite: Rewrite) -> Result<(u16, bool, Body, String), BadResponse> {
        let mut fields = space();
        let response = response(input.as_bytes(), &mut fields, 8192, to_head)?.expect("complete");
        let mut out = Vec::new();
        response.write(rewrite, &mut out);
        Ok((response.status, response.keep_alive, response.body, String::from_utf8(out).expect("text")))
    }

    #[test]
    fn a_plain_answer_is_passed_on_as_it_is() {
        let input = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX: y\r\n\r\n";
        let (status, keep_alive, body, out) = read(input, false, Rewrite::default()).expect("accepted");
        assert_eq!((status, keep_alive, body, out.as_str()), (200, true, Body::Length(3), input));
    }

    #[test]
    fn hop_by_hop_fields_stay_behind_and_close_is_said() {
        let input = "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nKeep-Alive: 5\r\nContent-Length: 3\r\n\r\n";
        let close = Rewrite { close: true, http10: false };
        let (.., out) = read(input, false, close).expect("accepted");
        assert_eq!(out, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\n");
    }

    #[test]
    fn a_client_of_http_1_0_gets_neither_chunks_nor_silence_about_the_connection() {
        let input = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let (.., body, out) = read(input, false, Rewrite { close: true, http10: true }).expect("accepted");
        assert_eq!(body, Body::Chunked(Chunked::new()));
        assert_eq!(out, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
        let input = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n";
        let (.., out) = read(input, false, Rewrite { close: false, http10: true }).expect("accepted");
        assert_eq!(out, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\n");
    }

    #[test]
    fn a_server_of_http_1_0_ends_its_body_by_closing() {
        let (_, keep_alive, body, out) =
            read("HTTP/1.0 200 OK\r\nX: y\r\n\r\n", false, Rewrite { close: true, http10: false })
                .expect("accepted");
        assert_eq!((keep_alive, body), (false, Body::UntilClose));
        assert_eq!(out, "HTTP/1.1 200 OK\r\nX: y\r\nConnection: close\r\n\r\n");
    }

    #[test]
    fn some_answers_have_no_body_whatever_they_say() {
        let chunked = "Transfer-Encoding: chunked\r\n\r\n";
        for status in ["204 No Content", "304 Not Modified", "100 Continue", "101 Switching Protocols"] {
            let (.., body, _) = read(&format!("HTTP/1.1 {status}\r\n{chunked}"), false, Rewrite::default())
                .expect("accepted");
            assert_eq!(body, Body::Done, "{status}");
        }
        let (.., body, _) =
            read("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", true, Rewrite::default()).expect("accepted");
        assert_eq!(body, Body::Done);
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for bad in [
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            "HTTP/1.1 200 OK\nContent-Length: 3\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\n\r\n",
            "HTTP/1.1 200 OK\r\nA : b\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
            "HTTP/1.1 099 No\r\n\r\n",
            "HTTP/2 200 OK\r\n\r\n",
            "220 smtp\r\n\r\n",
        ] {
            assert!(read(bad, false, Rewrite::default()).is_err(), "{bad:?}");
        }
    }
}
