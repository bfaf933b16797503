//! A chunked body of a request and of a response. It ends where a plain recursive parser ends it, with the
//! same content, in whatever pieces it arrives. The forwarded bytes are the body of a request. They have the
//! same content and no trailer that is valid in a head only.

use plimsoll_wire::http1::{BodyFraming, ChunkPiece, ChunkedParser, TrailerFilter, is_trailer_field};

use super::fields::show;
use super::{Verdict, cuts};

/// The maximum length, below the limits on extensions and trailers, which have tests of their own.
const LONGEST: usize = 8192;

/// The result of parsing a body.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The body is complete, with this length.
    Whole(usize),
    /// The body is incomplete.
    Partial,
    Bad,
}

/// Checks the law; panics if it is broken.
pub(crate) fn check(input: &[u8]) -> Verdict {
    let input = &input[..input.len().min(LONGEST)];
    obeys(input, ChunkedParser::for_response());
    match obeys(input, ChunkedParser::new()) {
        End::Whole(_) => Verdict::Accepted,
        End::Partial => Verdict::Partial,
        End::Bad => Verdict::Refused,
    }
}

/// Checks the law for a body with the parser `chunked`.
fn obeys(input: &[u8], chunked: ChunkedParser) -> End {
    let shown = || show(input);
    let (plain, content) = read(input, chunked == ChunkedParser::for_response());
    assert_eq!(feed(chunked, input, &[]), plain, "{}", shown());
    assert_eq!(step(chunked, input, input.len().max(1)), (plain, content), "{}", shown());
    let whole = step(chunked, input, input.len().max(1));
    for stride in [1, 2, 7] {
        assert_eq!(step(chunked, input, stride), whole, "in pieces of {stride}: {}", shown());
    }
    for cut in cuts(input) {
        assert_eq!(feed(chunked, input, &[cut]), whole.0, "cut at {cut}: {}", shown());
    }
    let each: Vec<usize> = (0..input.len()).collect();
    assert_eq!(feed(chunked, input, &each), whole.0, "byte by byte: {}", shown());
    if let End::Whole(len) = whole.0 {
        let passed = pass(chunked, &input[..len], len);
        for stride in [1, 2, 7] {
            assert_eq!(pass(chunked, &input[..len], stride), passed, "in pieces of {stride}: {}", shown());
        }
        let again = step(ChunkedParser::new(), &passed, passed.len());
        assert_eq!(again, (End::Whole(passed.len()), whole.1), "{}", show(&passed));
        for name in trailers(&passed) {
            assert!(is_trailer_field(name), "{}", show(&passed));
        }
    }
    whole.0
}

/// Returns all bytes that [`TrailerFilter::pass`] forwards, for input of at most `stride` bytes at a time.
fn pass(chunked: ChunkedParser, input: &[u8], stride: usize) -> Vec<u8> {
    let (mut trailers, mut body, mut out) =
        (TrailerFilter::default(), BodyFraming::Chunked(chunked), Vec::new());
    for piece in input.chunks(stride) {
        let passed = trailers.pass(&mut body, piece, &mut out, |_, _| true).expect("it is good");
        assert_eq!(passed.consumed, piece.len());
        if passed.unchanged {
            out.extend_from_slice(piece);
        }
    }
    out
}

/// Returns the names of the trailers of a valid body.
fn trailers(mut body: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut chunked = ChunkedParser::new();
    let mut section: &[u8] = b"";
    while !chunked.is_done() {
        let step = chunked.next_piece(body).expect("it is good");
        if let ChunkPiece::Trailer(len) = step {
            section = &body[..len];
        }
        body = &body[step.len()..];
    }
    let lines = section.split(|byte| *byte == b'\n');
    lines.filter_map(|line| Some(&line[..line.iter().position(|byte| *byte == b':')?]))
}

/// Calls [`BodyFraming::feed`] with pieces that end at `ends`.
fn feed(chunked: ChunkedParser, input: &[u8], ends: &[usize]) -> End {
    let mut body = BodyFraming::Chunked(chunked);
    let mut taken = 0;
    for end in ends.iter().copied().chain([input.len()]) {
        let piece = &input[taken..end];
        match body.feed(piece) {
            Ok(more) => {
                assert!(more == piece.len() || body.is_done(), "it took {more} of {}", piece.len());
                taken += more;
            }
            Err(_) => return End::Bad,
        }
        if body.is_done() {
            return End::Whole(taken);
        }
    }
    End::Partial
}

/// Calls [`ChunkedParser::step`] with at most `stride` bytes at a time. Returns the result and the content so
/// far.
fn step(mut chunked: ChunkedParser, input: &[u8], stride: usize) -> (End, Vec<u8>) {
    let (mut taken, mut content) = (0, Vec::new());
    while taken < input.len() {
        let piece = &input[taken..input.len().min(taken + stride)];
        match chunked.next_piece(piece) {
            Ok(step) => {
                assert!((1..=piece.len()).contains(&step.len()), "{step:?} of {}", piece.len());
                if let ChunkPiece::Content(len) = step {
                    content.extend_from_slice(&piece[..len]);
                }
                taken += step.len();
            }
            Err(_) => return (End::Bad, content),
        }
        if chunked.is_done() {
            return (End::Whole(taken), content);
        }
    }
    (End::Partial, content)
}

/// Implements the grammar of RFC 9112 section 7.1 literally. Returns the result, and the content up to there.
/// White space is valid before an extension and, if `lenient`, after every size and before the colons of
/// trailers; nowhere else.
fn read(input: &[u8], lenient: bool) -> (End, Vec<u8>) {
    let mut rest = Rest(input);
    let mut content = Vec::new();
    let end = match body(&mut rest, lenient, &mut content) {
        Ok(()) => End::Whole(input.len() - rest.0.len()),
        Err(end) => end,
    };
    (end, content)
}

fn body(rest: &mut Rest<'_>, lenient: bool, content: &mut Vec<u8>) -> Result<(), End> {
    loop {
        let digits = rest.run(|byte| byte.is_ascii_hexdigit());
        // Fifteen digits exceed any storage.
        if digits.len() > 15 {
            return Err(End::Bad);
        }
        rest.peek()?;
        if digits.is_empty() {
            return Err(End::Bad);
        }
        let white = rest.run(is_white);
        match rest.peek()? {
            b';' => drop(rest.run(|byte| byte == b'\t' || byte >= b' ' && byte != 0x7f)),
            _ if !white.is_empty() && !lenient => return Err(End::Bad),
            _ => {}
        }
        rest.crlf()?;
        let digits = std::str::from_utf8(digits).map_err(|_| End::Bad)?;
        let size = usize::from_str_radix(digits, 16).map_err(|_| End::Bad)?;
        if size == 0 {
            break;
        }
        let here = size.min(rest.0.len());
        content.extend_from_slice(&rest.0[..here]);
        rest.0 = &rest.0[here..];
        if here < size {
            return Err(End::Partial);
        }
        rest.crlf()?;
    }
    while rest.peek()? != b'\r' {
        let name = rest.run(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte));
        rest.peek()?;
        if name.is_empty() {
            return Err(End::Bad);
        }
        if lenient {
            rest.run(is_white);
        }
        if rest.peek()? != b':' {
            return Err(End::Bad);
        }
        rest.run(|byte| byte == b'\t' || byte >= b' ' && byte != 0x7f);
        rest.crlf()?;
    }
    rest.crlf()
}

fn is_white(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// The unread rest.
struct Rest<'b>(&'b [u8]);

impl<'b> Rest<'b> {
    fn peek(&self) -> Result<u8, End> {
        self.0.first().copied().ok_or(End::Partial)
    }

    /// Consumes all leading bytes for which `are` returns `true`.
    fn run(&mut self, are: impl Fn(u8) -> bool) -> &'b [u8] {
        let len = self.0.iter().position(|byte| !are(*byte)).unwrap_or(self.0.len());
        let (run, rest) = self.0.split_at(len);
        self.0 = rest;
        run
    }

    fn crlf(&mut self) -> Result<(), End> {
        for wanted in *b"\r\n" {
            if self.peek()? != wanted {
                return Err(End::Bad);
            }
            self.0 = &self.0[1..];
        }
        Ok(())
    }
}
