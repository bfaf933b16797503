//! Forwards a chunked body: unchanged, except for white space in its framing and for trailers.

use super::{BodyError, BodyFraming, ChunkPiece, is_trailer_field};

/// The trailers of one forwarded body. A body without trailers costs nothing.
#[derive(Debug, Default)]
pub struct TrailerFilter(Option<Box<HeldTrailers>>);

#[derive(Debug, Default)]
struct HeldTrailers {
    /// The received part of the trailer section; the limits of [`BodyFraming`] bound it.
    section: Vec<u8>,
    /// The names in the head's `Connection` field: they concern only this hop (RFC 9110 section 7.6.1).
    connection_names: Vec<Box<[u8]>>,
}

/// The result of forwarding bytes of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardedBytes {
    /// The number of bytes of the input that belong to the body.
    pub consumed: usize,
    /// Whether to forward these bytes unchanged. If not, the bytes to forward were appended to the output.
    pub unchanged: bool,
}

impl TrailerFilter {
    /// Creates the trailers of a body whose head lists `named` in `Connection`: these are never forwarded.
    pub fn excluding<'b>(connection_names: impl Iterator<Item = &'b [u8]>) -> Self {
        let connection_names: Vec<Box<[u8]>> = connection_names.map(Into::into).collect();
        Self(
            (!connection_names.is_empty())
                .then(|| Box::new(HeldTrailers { section: Vec::new(), connection_names })),
        )
    }

    /// Consumes the body's next bytes at the beginning of `input`. They are either forwarded unchanged, or
    /// appended to `out`. White space around a chunk's size is dropped. So are trailers that
    /// [`is_trailer_field`] rejects, or for which `keep` returns `false`; it receives name and value.
    ///
    /// # Errors
    /// The chunked framing is malformed.
    #[inline]
    pub fn pass(
        &mut self,
        body: &mut BodyFraming,
        input: &[u8],
        out: &mut Vec<u8>,
        keep: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<ForwardedBytes, BodyError> {
        match body {
            BodyFraming::Chunked(_) => self.forward_chunks(body, input, out, keep),
            _ => Ok(ForwardedBytes { consumed: body.feed(input)?, unchanged: true }),
        }
    }

    fn forward_chunks(
        &mut self,
        body: &mut BodyFraming,
        input: &[u8],
        out: &mut Vec<u8>,
        keep: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<ForwardedBytes, BodyError> {
        let BodyFraming::Chunked(chunks) = body else {
            return Ok(ForwardedBytes { consumed: 0, unchanged: true });
        };
        let (mut consumed, mut copied_until, mut unchanged) = (0, 0, true);
        while consumed < input.len() && !chunks.is_done() {
            let piece = chunks.next_piece(&input[consumed..])?;
            let end = consumed + piece.len();
            if let ChunkPiece::Padding(_) | ChunkPiece::Trailer(_) = piece {
                unchanged = false;
                out.extend_from_slice(&input[copied_until..consumed]);
                copied_until = end;
            }
            if let ChunkPiece::Trailer(_) = piece {
                self.0.get_or_insert_default().section.extend_from_slice(&input[consumed..end]);
            }
            consumed = end;
        }
        if !unchanged {
            out.extend_from_slice(&input[copied_until..consumed]);
        }
        if chunks.is_done() {
            *body = BodyFraming::Done;
            if let Some(trailers) = self.0.take().filter(|trailers| !trailers.section.is_empty()) {
                trailers.write(out, keep);
            }
        }
        Ok(ForwardedBytes { consumed, unchanged })
    }
}

impl HeldTrailers {
    /// Appends the trailer section to forward.
    fn write(&self, out: &mut Vec<u8>, mut keep: impl FnMut(&[u8], &[u8]) -> bool) {
        for (name, value) in trailer_fields(&self.section) {
            let is_named = self.connection_names.iter().any(|other| name.eq_ignore_ascii_case(other));
            if !is_named && is_trailer_field(name) && keep(name, value) {
                for bytes in [name, b": ", value, b"\r\n"] {
                    out.extend_from_slice(bytes);
                }
            }
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// Returns the fields of a trailer section that [`ChunkedParser`](super::ChunkedParser) accepted: trimmed
/// names and values.
pub fn trailer_fields(section: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    section.split(|byte| *byte == b'\n').filter_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        Some((line[..colon].trim_ascii(), line[colon + 1..].trim_ascii()))
    })
}

#[cfg(test)]
mod tests {
    use super::super::ChunkedParser;
    use super::*;

    /// Returns the forwarded text of a body that arrives in pieces of `size` bytes, and whether all of it was
    /// unchanged.
    fn passed(text: &str, size: usize, connection_names: &[&str]) -> (String, bool) {
        let mut trailers = TrailerFilter::excluding(connection_names.iter().map(|name| name.as_bytes()));
        let (mut body, mut out, mut unchanged) =
            (BodyFraming::Chunked(ChunkedParser::for_response()), Vec::new(), true);
        for piece in text.as_bytes().chunks(size) {
            let forwarded =
                trailers.pass(&mut body, piece, &mut out, |name, _| name != b"Kept-Back").expect("good");
            assert_eq!(forwarded.consumed, piece.len());
            if forwarded.unchanged {
                out.extend_from_slice(piece);
            }
            unchanged &= forwarded.unchanged;
        }
        assert_eq!(body, BodyFraming::Done);
        (String::from_utf8(out).expect("text"), unchanged)
    }

    #[test]
    fn bodies_without_trailers_go_as_they_came() {
        let body = "5;a = b\r\nhello\r\n00a\r\n0123456789\r\n0;x\r\n\r\n";
        for size in 1..=body.len() {
            assert_eq!(passed(body, size, &[]), (body.to_owned(), true), "{size}");
        }
    }

    #[test]
    fn fields_of_heads_stay_behind_however_the_body_is_cut() {
        let body = "5\r\nhello\r\n0\r\nHost: evil\r\nX-Sum:  1 \r\nTransfer-Encoding: \
                    chunked\r\ncontent_length: 7\r\n\
                    X-Forwarded-For: 6.6.6.6\r\nX-Hop: a\r\nKept-Back: b\r\nCookie: c\r\nEmpty:\r\nSpaced \
                    \t: d\r\n\r\n";
        let expected = "5\r\nhello\r\n0\r\nX-Sum: 1\r\nEmpty: \r\nSpaced: d\r\n\r\n";
        for size in 1..=body.len() {
            assert_eq!(passed(body, size, &["x-hop", "close"]), (expected.to_owned(), false), "{size}");
        }
        assert_eq!(passed("0\r\nAuthorization: a\r\n\r\n", 99, &[]).0, "0\r\n\r\n");
    }

    #[test]
    fn white_space_around_sizes_is_written_anew() {
        let body = "5 \t\r\nhello\r\n3 ; a=b\r\nabc\r\n0  \r\n\r\n";
        for size in 1..=body.len() {
            let (text, unchanged) = passed(body, size, &[]);
            assert_eq!(
                (text.as_str(), unchanged),
                ("5\r\nhello\r\n3; a=b\r\nabc\r\n0\r\n\r\n", false),
                "{size}"
            );
        }
    }
}
