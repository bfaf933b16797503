//! A chunked body: it ends where a plain recursive reader says it ends, with the same content, however it is cut.

use plimsoll_wire::http1::{Body, Chunked, Piece};

use super::fields::show;
use super::{Verdict, cuts};

/// Below the limits on extensions and trailers, which have tests of their own.
const LONGEST: usize = 8192;

/// What came of a body.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// So many bytes belong to it.
    Whole(usize),
    /// More has to come.
    Partial,
    Bad,
}

/// Panics if the law does not hold.
pub(crate) fn check(input: &[u8]) -> Verdict {
    let input = &input[..input.len().min(LONGEST)];
    let shown = || show(input);
    let (plain, content) = read(input);
    assert_eq!(feed(input, &[]), plain, "{}", shown());
    assert_eq!(step(input, input.len().max(1)), (plain, content), "{}", shown());
    let whole = step(input, input.len().max(1));
    for stride in [1, 2, 7] {
        assert_eq!(step(input, stride), whole, "in pieces of {stride}: {}", shown());
    }
    for cut in cuts(input) {
        assert_eq!(feed(input, &[cut]), whole.0, "cut at {cut}: {}", shown());
    }
    let each: Vec<usize> = (0..input.len()).collect();
    assert_eq!(feed(input, &each), whole.0, "byte by byte: {}", shown());
    match whole.0 {
        End::Whole(_) => Verdict::Accepted,
        End::Partial => Verdict::Partial,
        End::Bad => Verdict::Refused,
    }
}

/// [`Body::feed`], in pieces that end at `ends`.
fn feed(input: &[u8], ends: &[usize]) -> End {
    let mut body = Body::Chunked(Chunked::new());
    let mut taken = 0;
    for end in ends.iter().copied().chain([input.len()]) {
        let piece = &input[taken..end];
        match body.feed(piece) {
            Ok(more) => {
                assert!(more == piece.len() || body.done(), "it took {more} of {}", piece.len());
                taken += more;
            }
            Err(_) => return End::Bad,
        }
        if body.done() {
            return End::Whole(taken);
        }
    }
    End::Partial
}

/// [`Chunked::step`], at most `stride` bytes at a time: how it ended, and the content so far.
fn step(input: &[u8], stride: usize) -> (End, Vec<u8>) {
    let mut chunked = Chunked::new();
    let (mut taken, mut content) = (0, Vec::new());
    while taken < input.len() {
        let piece = &input[taken..input.len().min(taken + stride)];
        match chunked.step(piece) {
            Ok(step) => {
                assert!((1..=piece.len()).contains(&step.len()), "{step:?} of {}", piece.len());
                if let Piece::Content(len) = step {
                    content.extend_from_slice(&piece[..len]);
                }
                taken += step.len();
            }
            Err(_) => return (End::Bad, content),
        }
        if chunked.done() {
            return (End::Whole(taken), content);
        }
    }
    (End::Partial, content)
}

/// The grammar of RFC 9112 section 7.1 as it stands there, with white space before an extension and nowhere else: how it
/// ends, and the content up to there.
fn read(input: &[u8]) -> (End, Vec<u8>) {
    let mut rest = Rest(input);
    let mut content = Vec::new();
    let end = match body(&mut rest, &mut content) {
        Ok(()) => End::Whole(input.len() - rest.0.len()),
        Err(end) => end,
    };
    (end, content)
}

fn body(rest: &mut Rest<'_>, content: &mut Vec<u8>) -> Result<(), End> {
    loop {
        let digits = rest.run(|byte| byte.is_ascii_hexdigit());
        // Fifteen digits are four thousand times the disks of this world.
        if digits.len() > 15 {
            return Err(End::Bad);
        }
        match rest.peek()? {
            _ if digits.is_empty() => return Err(End::Bad),
            _ => {}
        }
        let white = rest.run(|byte| matches!(byte, b' ' | b'\t'));
        match rest.peek()? {
            b';' => drop(rest.run(|byte| byte == b'\t' || byte >= b' ' && byte != 0x7f)),
            _ if !white.is_empty() => return Err(End::Bad),
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
        if rest.peek()? != b':' || name.is_empty() {
            return Err(End::Bad);
        }
        rest.run(|byte| byte == b'\t' || byte >= b' ' && byte != 0x7f);
        rest.crlf()?;
    }
    rest.crlf()
}

/// What is still to be read.
struct Rest<'b>(&'b [u8]);

impl<'b> Rest<'b> {
    fn peek(&self) -> Result<u8, End> {
        self.0.first().copied().ok_or(End::Partial)
    }

    /// Takes all bytes that `are`.
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
