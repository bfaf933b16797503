//! The end of a message body (RFC 9112 sections 6 and 7).
//!
//! Bodies are tracked, not stored: [`BodyFraming::feed`] returns how many of the available bytes belong to
//! the body. Every line of chunked framing is validated, so that no other parser can find another end.
//! [`TrailerFilter`](super::TrailerFilter) forwards such a body.

/// The maximum number of bytes of chunk extensions in one body. Extensions have no known use.
pub const MAX_EXTENSION: usize = 16 * 1024;
/// The maximum number of bytes of trailers in one body.
pub const MAX_TRAILER: usize = 16 * 1024;

/// The error of a chunked body that is malformed or over a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad chunked body: {0}")]
pub struct BodyError(pub &'static str);

/// The rest of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// Nothing.
    Done,
    /// A number of bytes.
    Length(u64),
    /// Chunks.
    Chunked(ChunkedParser),
    /// All bytes until the sender closes the connection (responses only).
    UntilClose,
}

impl BodyFraming {
    /// Returns the number of bytes at the beginning of `input` that belong to the body.
    ///
    /// # Errors
    /// The chunked framing is malformed.
    #[inline]
    pub fn feed(&mut self, input: &[u8]) -> Result<usize, BodyError> {
        match self {
            Self::Done => Ok(0),
            Self::UntilClose => Ok(input.len()),
            Self::Length(remaining) => {
                let consumed = (*remaining).min(input.len() as u64);
                *remaining -= consumed;
                if *remaining == 0 {
                    *self = Self::Done;
                }
                Ok(consumed as usize)
            }
            Self::Chunked(chunked) => {
                let consumed = chunked.feed(input)?;
                if chunked.is_done() {
                    *self = Self::Done;
                }
                Ok(consumed)
            }
        }
    }

    /// Returns `true` if the body is complete.
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }
}

/// A run of bytes of a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkPiece {
    /// Bytes of framing.
    Framing(usize),
    /// Meaningless white space in the framing.
    Padding(usize),
    /// Bytes of a trailer section with fields, including its empty line.
    Trailer(usize),
    /// Bytes of content.
    Content(usize),
}

impl ChunkPiece {
    /// Returns the length in bytes; at least 1.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(self) -> usize {
        match self {
            Self::Framing(len) | Self::Padding(len) | Self::Trailer(len) | Self::Content(len) => len,
        }
    }
}

/// The state of the chunked transfer coding: framing is parsed byte by byte, content is skipped in runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkedParser {
    state: ChunkedState,
    /// The chunk size while it is read, then the rest of the chunk's content.
    remaining: u64,
    digits: u8,
    /// Whether white space is accepted where senders must not put any.
    lenient: bool,
    extension: u16,
    trailer: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkedState {
    Size,
    /// White space after a size.
    Padding,
    Extension,
    SizeLf,
    Content,
    ContentCr,
    ContentLf,
    /// The first byte of a trailer line, or of the empty line that ends the body.
    Trailer,
    TrailerName,
    /// White space after a name.
    TrailerPadding,
    TrailerValue,
    TrailerLf,
    EndLf,
    Done,
}

/// The kinds of framing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FramingKind {
    Framing,
    Padding,
    Trailer,
}

impl Default for ChunkedParser {
    fn default() -> Self {
        Self::new()
    }
}

impl ChunkedParser {
    /// Creates the state for a request's body, at the first byte of the first chunk's size.
    pub fn new() -> Self {
        Self { state: ChunkedState::Size, remaining: 0, digits: 0, lenient: false, extension: 0, trailer: 0 }
    }

    /// Creates the state for a response's body. Some servers pad sizes with spaces. White space is therefore
    /// accepted there, and before the colon of a trailer (RFC 9112 section 5.1).
    pub fn for_response() -> Self {
        Self { lenient: true, ..Self::new() }
    }

    /// Returns `true` if the body is complete.
    pub fn is_done(&self) -> bool {
        self.state == ChunkedState::Done
    }

    /// Returns the number of bytes at the beginning of `input` that belong to the body.
    #[inline(never)]
    fn feed(&mut self, input: &[u8]) -> Result<usize, BodyError> {
        let mut consumed = 0;
        while consumed < input.len() && !self.is_done() {
            consumed += self.next_piece(&input[consumed..])?.len();
        }
        Ok(consumed)
    }

    /// Consumes the next run of bytes of `input`, which must not be empty. Callers must not call it on a
    /// complete body.
    ///
    /// # Errors
    /// The framing is malformed or over a limit.
    pub fn next_piece(&mut self, input: &[u8]) -> Result<ChunkPiece, BodyError> {
        if self.state == ChunkedState::Content {
            let consumed = self.remaining.min(input.len() as u64);
            self.remaining -= consumed;
            if self.remaining == 0 {
                self.state = ChunkedState::ContentCr;
            }
            return Ok(ChunkPiece::Content(consumed as usize));
        }
        let (mut consumed, mut kind) = (0, None);
        for byte in input {
            if matches!(self.state, ChunkedState::Content | ChunkedState::Done) {
                break;
            }
            let next = self.framing_kind(*byte);
            if *kind.get_or_insert(next) != next {
                break;
            }
            self.advance(*byte)?;
            consumed += 1;
        }
        Ok(match kind {
            Some(FramingKind::Padding) => ChunkPiece::Padding(consumed),
            Some(FramingKind::Trailer) => ChunkPiece::Trailer(consumed),
            Some(FramingKind::Framing) | None => ChunkPiece::Framing(consumed),
        })
    }

    /// Returns the kind of the next byte of framing.
    fn framing_kind(&self, byte: u8) -> FramingKind {
        match self.state {
            ChunkedState::Size | ChunkedState::Padding if is_blank(byte) => FramingKind::Padding,
            ChunkedState::Trailer if byte != b'\r' => FramingKind::Trailer,
            ChunkedState::Trailer | ChunkedState::EndLf if self.trailer > 0 => FramingKind::Trailer,
            ChunkedState::TrailerName
            | ChunkedState::TrailerPadding
            | ChunkedState::TrailerValue
            | ChunkedState::TrailerLf => FramingKind::Trailer,
            _ => FramingKind::Framing,
        }
    }

    fn advance(&mut self, byte: u8) -> Result<(), BodyError> {
        self.state = match (self.state, byte) {
            (ChunkedState::Size, b'\r') if self.digits > 0 => ChunkedState::SizeLf,
            (ChunkedState::Size, b';') if self.digits > 0 => ChunkedState::Extension,
            // White space before an extension is to be accepted (RFC 9112 section 7.1.1).
            (ChunkedState::Size, byte) if is_blank(byte) && self.digits > 0 => {
                self.extension_byte(ChunkedState::Padding)?
            }
            (ChunkedState::Padding, b';') => ChunkedState::Extension,
            (ChunkedState::Padding, b'\r') if self.lenient => ChunkedState::SizeLf,
            (ChunkedState::Padding, byte) if is_blank(byte) => self.extension_byte(ChunkedState::Padding)?,
            (ChunkedState::Padding, _) => return Err(BodyError("white space follows a chunk size")),
            (ChunkedState::Size, byte) => {
                let digit =
                    char::from(byte).to_digit(16).ok_or(BodyError("the chunk size is not hexadecimal"))?;
                if self.digits == 15 {
                    return Err(BodyError("the chunk size has too many digits"));
                }
                self.digits += 1;
                self.remaining = self.remaining << 4 | u64::from(digit);
                ChunkedState::Size
            }
            (ChunkedState::Extension, b'\r') => ChunkedState::SizeLf,
            (ChunkedState::Extension, byte) => {
                if (byte < b' ' && byte != b'\t') || byte == 0x7f {
                    return Err(BodyError("a control character stands in a chunk extension"));
                }
                self.extension_byte(ChunkedState::Extension)?
            }
            (ChunkedState::SizeLf, b'\n') => {
                self.digits = 0;
                if self.remaining == 0 { ChunkedState::Trailer } else { ChunkedState::Content }
            }
            (ChunkedState::ContentCr, b'\r') => ChunkedState::ContentLf,
            (ChunkedState::ContentLf, b'\n') => ChunkedState::Size,
            (ChunkedState::Trailer, b'\r') => ChunkedState::EndLf,
            (ChunkedState::Trailer, byte) if is_token(byte) => {
                self.trailer_byte(ChunkedState::TrailerName)?
            }
            (ChunkedState::TrailerName, b':') => self.trailer_byte(ChunkedState::TrailerValue)?,
            (ChunkedState::TrailerName, byte) if is_token(byte) => {
                self.trailer_byte(ChunkedState::TrailerName)?
            }
            (ChunkedState::TrailerName | ChunkedState::TrailerPadding, byte)
                if is_blank(byte) && self.lenient =>
            {
                self.trailer_byte(ChunkedState::TrailerPadding)?
            }
            (ChunkedState::TrailerPadding, b':') => self.trailer_byte(ChunkedState::TrailerValue)?,
            (ChunkedState::TrailerValue, b'\r') => ChunkedState::TrailerLf,
            (ChunkedState::TrailerValue, byte) if byte >= b' ' && byte != 0x7f || byte == b'\t' => {
                self.trailer_byte(ChunkedState::TrailerValue)?
            }
            (ChunkedState::TrailerLf, b'\n') => ChunkedState::Trailer,
            (ChunkedState::EndLf, b'\n') => ChunkedState::Done,
            (ChunkedState::SizeLf, _) => return Err(BodyError("a chunk size does not end in CRLF")),
            (ChunkedState::ContentCr | ChunkedState::ContentLf, _) => {
                return Err(BodyError("a chunk is longer than its size says"));
            }
            _ => return Err(BodyError("a trailer is malformed")),
        };
        Ok(())
    }

    fn extension_byte(&mut self, next: ChunkedState) -> Result<ChunkedState, BodyError> {
        self.extension += 1;
        if usize::from(self.extension) > MAX_EXTENSION {
            return Err(BodyError("the chunk extensions are too long"));
        }
        Ok(next)
    }

    fn trailer_byte(&mut self, next: ChunkedState) -> Result<ChunkedState, BodyError> {
        self.trailer += 1;
        if usize::from(self.trailer) > MAX_TRAILER {
            return Err(BodyError("the trailers are too long"));
        }
        Ok(next)
    }
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Returns `true` for the characters of a field name (RFC 9110 section 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Feeds `input` in pieces that end at each of `cuts`. Returns the consumed bytes, and whether the body
    /// ended.
    fn feed(mut body: BodyFraming, input: &[u8], cuts: &[usize]) -> Result<(usize, bool), BodyError> {
        let mut consumed = 0;
        for end in cuts.iter().copied().chain([input.len()]) {
            while consumed < end && !body.is_done() {
                consumed += body.feed(&input[consumed..end])?;
            }
        }
        Ok((consumed, body.is_done()))
    }

    const GOOD: &[&[u8]] = &[
        b"0\r\n\r\n",
        b"5\r\nhello\r\n0\r\n\r\n",
        b"5;name=\"va lue\"\r\nhello\r\n00000a ;x\r\n0123456789\r\n0\r\n\r\n",
        b"A\r\n0123456789\r\na\r\n0123456789\r\n0;last\r\nExpires: never\r\nX-Sum:\r\n\r\n",
    ];

    #[test]
    fn good_bodies_end_where_they_end_however_they_are_cut() {
        for good in GOOD {
            let message = [*good, b"GET / HTTP/1.1\r\n"].concat();
            let uncut = feed(BodyFraming::Chunked(ChunkedParser::new()), &message, &[]);
            assert_eq!(uncut, Ok((good.len(), true)));
            for cut in 0..good.len() {
                assert_eq!(
                    feed(BodyFraming::Chunked(ChunkedParser::new()), &message, &[cut]),
                    uncut,
                    "cut at {cut}"
                );
            }
            let all_cuts: Vec<usize> = (0..good.len()).collect();
            assert_eq!(feed(BodyFraming::Chunked(ChunkedParser::new()), &message, &all_cuts), uncut);
        }
    }

    #[test]
    fn bad_framing_is_refused() {
        for bad in [
            &b"\r\n"[..],
            b"g\r\n",
            b"-1\r\n",
            b"0x5\r\nhello",
            b" 5\r\nhello\r\n",
            b"5 \r\nhello\r\n",
            b"5\nhello\r\n",
            b"5\rhello",
            b"5;a\nhello",
            b"5;a\0\r\nhello",
            b"5\r\nhello!\r\n",
            b"5\r\nhello\n0\r\n\r\n",
            b"0\r\n\n",
            b"0\r\nname : value\r\n\r\n",
            b"0\r\n folded: x\r\n\r\n",
            b"0\r\nname: a\nb: c\r\n\r\n",
            b"0\r\nnocolon\r\n\r\n",
            b"1000000000000000\r\n",
            b"fffffffffffffffff\r\n",
        ] {
            let text = String::from_utf8_lossy(bad).into_owned();
            assert!(
                feed(BodyFraming::Chunked(ChunkedParser::new()), bad, &[]).is_err(),
                "{text:?} was accepted"
            );
        }
    }

    #[test]
    fn white_space_of_old_servers_is_taken_from_answers_alone() {
        for text in [&b"5 \t\r\nhello\r\n0  \r\n\r\n"[..], b"0\r\nName \t: value\r\n\r\n"] {
            assert_eq!(
                feed(BodyFraming::Chunked(ChunkedParser::for_response()), text, &[]),
                Ok((text.len(), true))
            );
            assert!(feed(BodyFraming::Chunked(ChunkedParser::new()), text, &[]).is_err());
        }
        for bad in [&b" 5\r\n"[..], b"5 5\r\n", b"5 \n", b"0\r\n : x\r\n", b"0\r\na b: x\r\n", b"0\r\na \r\n"]
        {
            let text = bad.escape_ascii();
            assert!(
                feed(BodyFraming::Chunked(ChunkedParser::for_response()), bad, &[]).is_err(),
                "{text} was accepted"
            );
        }
    }

    #[test]
    fn extensions_and_trailers_have_a_limit() {
        let long = [b"1;".to_vec(), vec![b'x'; MAX_EXTENSION + 1]].concat();
        assert!(feed(BodyFraming::Chunked(ChunkedParser::new()), &long, &[]).is_err());
        let long = [b"1".to_vec(), vec![b' '; MAX_EXTENSION + 1]].concat();
        assert!(feed(BodyFraming::Chunked(ChunkedParser::for_response()), &long, &[]).is_err());
        let long = [b"0\r\na:".to_vec(), vec![b'x'; MAX_TRAILER]].concat();
        assert!(feed(BodyFraming::Chunked(ChunkedParser::new()), &long, &[]).is_err());
    }

    #[test]
    fn a_length_ends_exactly() {
        assert_eq!(feed(BodyFraming::Length(3), b"abcdef", &[1]), Ok((3, true)));
        assert_eq!(feed(BodyFraming::Length(9), b"abcdef", &[1, 2]), Ok((6, false)));
    }

    proptest! {
        #[test]
        fn cuts_do_not_matter(bytes in proptest::collection::vec(prop_oneof![
            Just(b'\r'), Just(b'\n'), Just(b'0'), Just(b'1'), Just(b';'), Just(b':'), Just(b'a'), any::<u8>()
        ], 0..40), cuts in proptest::collection::vec(0usize..40, 0..6)) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let whole = feed(BodyFraming::Chunked(ChunkedParser::new()), &bytes, &[]);
            prop_assert_eq!(feed(BodyFraming::Chunked(ChunkedParser::new()), &bytes, &cuts), whole);
        }
    }
}
