//! The end of an HTTP/1.1 message (RFC 9112 section 6), for requests to the member and answers to the load
//! generator.
//!
//! This parser is deliberately independent of the balancer's relay: two programs that share a parser share
//! its mistakes and never notice. It is strict: ambiguous framing is refused, so that the tests notice a
//! balancer that passes it on.

use std::ops::Range;

use httparse::Header;

/// An error of a peer that does not speak HTTP/1.1, with a short reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MalformedMessage(pub(crate) &'static str);

/// The rest of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyDecoder {
    /// The number of bytes left.
    Length(u64),
    /// Chunks, up to the last one.
    Chunked(ChunkedDecoder),
    /// Everything until the connection closes (answers only).
    Close,
}

/// The result of [`BodyDecoder::decode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DecodedPiece {
    /// The range of the content within the given bytes.
    pub(crate) data: Range<usize>,
    /// The number of given bytes that belong to the body; more may follow in the same bytes unless `done`.
    pub(crate) consumed: usize,
    /// Whether the body has ended.
    pub(crate) done: bool,
}

impl BodyDecoder {
    /// An empty body.
    pub(crate) const NONE: Self = Self::Length(0);

    /// Returns the body of a request. `minor` is the HTTP minor version.
    pub(crate) fn of_request(minor_version: u8, headers: &[Header<'_>]) -> Result<Self, MalformedMessage> {
        match (transfer_encoding(headers)?, content_length(headers)?) {
            (true, Some(_)) => Err(MalformedMessage("both content-length and transfer-encoding")),
            (true, None) if minor_version == 0 => Err(MalformedMessage("transfer-encoding in HTTP/1.0")),
            (true, None) => Ok(Self::Chunked(ChunkedDecoder::default())),
            (false, length) => Ok(Self::Length(length.unwrap_or(0))),
        }
    }

    /// Returns the body of an answer with `status`; `head` is `true` for the answer to a HEAD request.
    pub(crate) fn of_response(
        status: u16,
        is_head: bool,
        headers: &[Header<'_>],
    ) -> Result<Self, MalformedMessage> {
        if is_head || (100..200).contains(&status) || status == 204 || status == 304 {
            return Ok(Self::NONE);
        }
        match (transfer_encoding(headers)?, content_length(headers)?) {
            (true, Some(_)) => Err(MalformedMessage("both content-length and transfer-encoding")),
            (true, None) => Ok(Self::Chunked(ChunkedDecoder::default())),
            (false, Some(length)) => Ok(Self::Length(length)),
            (false, None) => Ok(Self::Close),
        }
    }

    /// Consumes the next bytes of the body; they may extend beyond its end.
    pub(crate) fn decode(&mut self, bytes: &[u8]) -> Result<DecodedPiece, MalformedMessage> {
        match self {
            Self::Length(remaining) => {
                let consumed = usize::try_from(*remaining).unwrap_or(usize::MAX).min(bytes.len());
                *remaining -= consumed as u64;
                Ok(DecodedPiece { data: 0..consumed, consumed, done: *remaining == 0 })
            }
            Self::Chunked(chunked) => chunked.decode(bytes),
            Self::Close => Ok(DecodedPiece { data: 0..bytes.len(), consumed: bytes.len(), done: false }),
        }
    }
}

/// Returns `true` if the connection may carry another message after this one.
pub(crate) fn keeps_alive(minor_version: u8, headers: &[Header<'_>]) -> bool {
    let has = |option: &str| {
        values(headers, "connection")
            .flat_map(|value| value.split(|byte| *byte == b','))
            .any(|token| token.trim_ascii().eq_ignore_ascii_case(option.as_bytes()))
    };
    !has("close") && (minor_version >= 1 || has("keep-alive"))
}

/// Returns the values of the headers called `name`.
pub(crate) fn values<'h>(headers: &'h [Header<'h>], name: &'h str) -> impl Iterator<Item = &'h [u8]> {
    headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
}

fn transfer_encoding(headers: &[Header<'_>]) -> Result<bool, MalformedMessage> {
    let mut values = values(headers, "transfer-encoding");
    match (values.next(), values.next()) {
        (None, _) => Ok(false),
        (Some(value), None) if value.trim_ascii().eq_ignore_ascii_case(b"chunked") => Ok(true),
        _ => Err(MalformedMessage("a transfer-encoding that is not `chunked`")),
    }
}

fn content_length(headers: &[Header<'_>]) -> Result<Option<u64>, MalformedMessage> {
    let mut values = values(headers, "content-length");
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(MalformedMessage("several content-lengths"));
    }
    let is_numeric = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(value).ok().filter(|_| is_numeric).and_then(|text| text.parse().ok());
    number.map(Some).ok_or(MalformedMessage("a content-length that is not a number"))
}

/// A chunked body; extensions and trailers are skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChunkedDecoder {
    state: ChunkState,
    /// The number of bytes left in the current chunk.
    remaining: u64,
    /// The length of the current line so far.
    line_bytes: usize,
    /// The length of all trailer lines so far.
    trailer_bytes: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ChunkState {
    #[default]
    Size,
    Extension,
    SizeEnd,
    Data,
    DataEnd,
    DataEndLine,
    Trailer,
    TrailerEnd,
}

/// The maximum length of the line with a chunk's size and extensions. The next constant bounds all trailers.
const MAX_LINE: usize = 4096;
const MAX_TRAILERS: usize = 64 * 1024;

impl ChunkedDecoder {
    fn decode(&mut self, bytes: &[u8]) -> Result<DecodedPiece, MalformedMessage> {
        let mut position = 0;
        while let Some(&byte) = bytes.get(position) {
            if self.state == ChunkState::Data {
                let available =
                    usize::try_from(self.remaining).unwrap_or(usize::MAX).min(bytes.len() - position);
                self.remaining -= available as u64;
                if self.remaining == 0 {
                    self.state = ChunkState::DataEnd;
                }
                return Ok(DecodedPiece {
                    data: position..position + available,
                    consumed: position + available,
                    done: false,
                });
            }
            position += 1;
            if self.decode_control_byte(byte)? {
                return Ok(DecodedPiece { data: 0..0, consumed: position, done: true });
            }
        }
        Ok(DecodedPiece { data: 0..0, consumed: position, done: false })
    }

    /// Consumes one byte that is not content; returns `true` at the end of the body.
    fn decode_control_byte(&mut self, byte: u8) -> Result<bool, MalformedMessage> {
        self.line_bytes += 1;
        if self.line_bytes > MAX_LINE || self.trailer_bytes > MAX_TRAILERS {
            return Err(MalformedMessage("a chunk's line or the trailers are too long"));
        }
        self.state = match (self.state, byte) {
            (ChunkState::Size, digit) if digit.is_ascii_hexdigit() => {
                if self.remaining >> 60 != 0 {
                    return Err(MalformedMessage("a chunk size above 64 bits"));
                }
                self.remaining = self.remaining << 4 | u64::from((digit as char).to_digit(16).unwrap_or(0));
                ChunkState::Size
            }
            (ChunkState::Size, _) if self.line_bytes == 1 => {
                return Err(MalformedMessage("a chunk without a size"));
            }
            (ChunkState::Size | ChunkState::Extension, b'\r') => ChunkState::SizeEnd,
            (ChunkState::Size, b';' | b' ' | b'\t') => ChunkState::Extension,
            (ChunkState::Extension, other) if other != b'\n' => ChunkState::Extension,
            (ChunkState::SizeEnd, b'\n') => {
                self.line_bytes = 0;
                if self.remaining == 0 { ChunkState::Trailer } else { ChunkState::Data }
            }
            (ChunkState::DataEnd, b'\r') => ChunkState::DataEndLine,
            (ChunkState::DataEndLine, b'\n') => {
                self.line_bytes = 0;
                ChunkState::Size
            }
            (ChunkState::Trailer, b'\r') => ChunkState::TrailerEnd,
            (ChunkState::TrailerEnd, b'\n') => {
                let is_empty_line = self.line_bytes == 2;
                self.trailer_bytes += self.line_bytes;
                self.line_bytes = 0;
                if is_empty_line {
                    return Ok(true);
                }
                ChunkState::Trailer
            }
            (ChunkState::Trailer, other) if other != b'\n' => ChunkState::Trailer,
            _ => return Err(MalformedMessage("a chunk that is not framed as it should be")),
        };
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Feeds `bytes` in pieces of the given sizes, in a cycle.
    fn feed(
        mut body: BodyDecoder,
        bytes: &[u8],
        sizes: &[usize],
    ) -> Result<(Vec<u8>, usize, bool), MalformedMessage> {
        let (mut content, mut position) = (Vec::new(), 0);
        let mut sizes = sizes.iter().cycle();
        let mut end = 0;
        while position < bytes.len() {
            end = (end + sizes.next().unwrap()).clamp(position + 1, bytes.len());
            let decoded = body.decode(&bytes[position..end])?;
            content.extend_from_slice(&bytes[position..end][decoded.data]);
            position += decoded.consumed;
            if decoded.done {
                return Ok((content, position, true));
            }
        }
        Ok((content, position, false))
    }

    fn chunked(bytes: &[u8]) -> Result<(Vec<u8>, usize, bool), MalformedMessage> {
        feed(BodyDecoder::Chunked(ChunkedDecoder::default()), bytes, &[usize::MAX / 2])
    }

    #[test]
    fn chunks_with_extensions_and_trailers() {
        let text = b"3\r\nabc\r\n0a ;name=\"x\"\r\n0123456789\r\n0\r\na: b\r\nc: d\r\n\r\nGET ";
        let (content, consumed, done) = chunked(text).unwrap();
        assert_eq!((content.as_slice(), consumed, done), (&b"abc0123456789"[..], text.len() - 4, true));
    }

    #[test]
    fn what_is_not_chunks_is_refused() {
        for invalid in [
            "\r\n",
            "x\r\n",
            "3\nabc",
            "3\r\nabcd\r\n",
            "3\r\nabc\n",
            "11111111111111111\r\n",
            "-1\r\n",
            "0x3\r\n",
            "0\r\na\nb\r\n\r\n",
            "3;a\nb\r\n",
        ] {
            assert!(chunked(invalid.as_bytes()).is_err(), "{invalid:?}");
        }
        let endless = format!("3;{}", "x".repeat(MAX_LINE));
        assert!(chunked(endless.as_bytes()).is_err());
        let trailers = format!("0\r\n{}", "a: b\r\n".repeat(MAX_TRAILERS));
        assert!(chunked(trailers.as_bytes()).is_err());
    }

    fn framing(pairs: &[(&str, &str)]) -> Result<BodyDecoder, MalformedMessage> {
        let headers: Vec<Header<'_>> =
            pairs.iter().map(|(name, value)| Header { name, value: value.as_bytes() }).collect();
        BodyDecoder::of_request(1, &headers)
    }

    #[test]
    fn ambiguous_requests_are_refused() {
        assert_eq!(framing(&[]), Ok(BodyDecoder::NONE));
        assert_eq!(framing(&[("Content-Length", "5")]), Ok(BodyDecoder::Length(5)));
        assert!(matches!(framing(&[("transfer-encoding", "Chunked")]), Ok(BodyDecoder::Chunked(_))));
        for invalid in [
            &[("content-length", "5"), ("transfer-encoding", "chunked")][..],
            &[("content-length", "5"), ("content-length", "5")],
            &[("content-length", "+5")],
            &[("content-length", "5,5")],
            &[("content-length", "")],
            &[("content-length", "99999999999999999999")],
            &[("transfer-encoding", "gzip, chunked")],
            &[("transfer-encoding", "identity")],
        ] {
            assert!(framing(invalid).is_err(), "{invalid:?}");
        }
        let te = [Header { name: "transfer-encoding", value: b"chunked" }];
        assert!(BodyDecoder::of_request(0, &te).is_err());
    }

    #[test]
    fn answers_without_a_body_have_none() {
        let headers = [Header { name: "content-length", value: b"5" }];
        assert_eq!(BodyDecoder::of_response(200, false, &headers), Ok(BodyDecoder::Length(5)));
        assert_eq!(BodyDecoder::of_response(200, true, &headers), Ok(BodyDecoder::NONE));
        assert_eq!(BodyDecoder::of_response(304, false, &headers), Ok(BodyDecoder::NONE));
        assert_eq!(BodyDecoder::of_response(204, false, &[]), Ok(BodyDecoder::NONE));
        assert_eq!(BodyDecoder::of_response(200, false, &[]), Ok(BodyDecoder::Close));
    }

    #[test]
    fn connection_options() {
        let is_kept_alive = |minor, value: &str| {
            keeps_alive(minor, &[Header { name: "Connection", value: value.as_bytes() }])
        };
        assert!(keeps_alive(1, &[]) && !keeps_alive(0, &[]));
        assert!(
            !is_kept_alive(1, "Close")
                && !is_kept_alive(1, "upgrade , close")
                && is_kept_alive(0, "Keep-Alive")
                && is_kept_alive(1, "x")
        );
    }

    proptest! {
        #[test]
        fn splits_do_not_matter(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..6),
            sizes in prop::collection::vec(1usize..20, 1..8),
        ) {
            let mut text = Vec::new();
            for chunk in &chunks {
                text.extend_from_slice(format!("{:x};e=1\r\n", chunk.len()).as_bytes());
                text.extend_from_slice(chunk);
                text.extend_from_slice(b"\r\n");
            }
            text.extend_from_slice(b"0\r\nt: 1\r\n\r\nrest");
            let decoder = BodyDecoder::Chunked(ChunkedDecoder::default());
            let (content, used, done) = feed(decoder, &text, &sizes).unwrap();
            prop_assert_eq!((content, used, done), (chunks.concat(), text.len() - 4, true));
        }

        #[test]
        fn no_bytes_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            sizes in prop::collection::vec(1usize..9, 1..4),
        ) {
            let _ = feed(BodyDecoder::Chunked(ChunkedDecoder::default()), &bytes, &sizes);
        }
    }
}
