//! Reports of load (ORCA) in the trailers of an answer in HTTP/1.1 whose head announces them (`Trailer: endpoint-load-metrics`): they are
//! heard, and stay behind if they are for us alone. The chunks of such an answer are written anew; those of others are passed on as they come.

use std::io::Write as _;

use plimsoll_wire::http1::{BadBody, Body, Piece};
use plimsoll_wire::orca;

/// What follows the content of an answer.
#[derive(Debug, Default)]
pub(super) struct Trailers {
    /// What came since the last content; the limits of [`Body`] bound it.
    after: Vec<u8>,
    /// Are reports for us alone?
    strip: bool,
    report: Option<Vec<u8>>,
}

impl Trailers {
    #[cold]
    pub(super) fn new(strip: bool) -> Box<Self> {
        Box::new(Self { strip, ..Self::default() })
    }

    /// The value of the first report, once all of the body has come.
    pub(super) fn report(&mut self) -> Option<Vec<u8>> {
        self.report.take()
    }

    /// Takes in the next bytes of a body, and appends to `out` what the client gets of them; how many belong to it.
    ///
    /// # Errors
    /// Its framing is malformed.
    pub(super) fn pass(
        &mut self,
        body: &mut Body,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<usize, BadBody> {
        let Body::Chunked(chunks) = body else { return body.feed(input) };
        let mut taken = 0;
        while taken < input.len() && !chunks.done() {
            let rest = &input[taken..];
            let piece = chunks.step(rest)?;
            match piece {
                Piece::Framing(len) => self.after.extend_from_slice(&rest[..len]),
                Piece::Content(len) => {
                    self.after.clear();
                    // Writing to a vector cannot fail.
                    let _ = write!(out, "{len:x}\r\n");
                    out.extend_from_slice(&rest[..len]);
                    out.extend_from_slice(b"\r\n");
                }
            }
            taken += piece.len();
        }
        if chunks.done() {
            *body = Body::Done;
            self.end(out);
        }
        Ok(taken)
    }

    /// Writes the end, and hears what is in it.
    fn end(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"0\r\n");
        // The end of the last chunk, if there was one, and the line of the one that ends the body.
        let after = self.after.strip_prefix(b"\r\n").unwrap_or(&self.after);
        for line in after.split_inclusive(|byte| *byte == b'\n').skip(1) {
            let colon = line.iter().position(|byte| *byte == b':').unwrap_or(0);
            if line[..colon].eq_ignore_ascii_case(orca::HEADER.as_bytes()) {
                self.report.get_or_insert_with(|| line[colon + 1..].trim_ascii().to_vec());
                if self.strip {
                    continue;
                }
            }
            out.extend_from_slice(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_wire::http1::Chunked;

    use super::*;

    const BODY: &str =
        "5;a=b\r\nhello\r\n1\r\n!\r\n0\r\nX: y\r\nEndpoint-Load-Metrics: \t TEXT eps=1\r\nZ:\r\n\r\n";

    /// What the client gets, and the report, of a body that comes in pieces of this length.
    fn passed(text: &str, size: usize, strip: bool) -> (String, Option<Vec<u8>>) {
        let (mut trailers, mut body, mut out) =
            (Trailers::new(strip), Body::Chunked(Chunked::new()), Vec::new());
        for piece in text.as_bytes().chunks(size) {
            assert_eq!(trailers.pass(&mut body, piece, &mut out), Ok(piece.len()));
        }
        assert_eq!(body, Body::Done);
        (String::from_utf8(out).expect("text"), trailers.report())
    }

    #[test]
    fn a_report_is_heard_and_may_stay_behind() {
        let report = Some(b"TEXT eps=1".to_vec());
        let (whole, heard) = passed(BODY, BODY.len(), true);
        assert_eq!((whole.as_str(), &heard), ("5\r\nhello\r\n1\r\n!\r\n0\r\nX: y\r\nZ:\r\n\r\n", &report));
        let (whole, heard) = passed(BODY, BODY.len(), false);
        assert!(
            whole.ends_with("0\r\nX: y\r\nEndpoint-Load-Metrics: \t TEXT eps=1\r\nZ:\r\n\r\n"),
            "{whole}"
        );
        assert_eq!(heard, report);
    }

    #[test]
    fn cuts_do_not_matter() {
        for size in 1..BODY.len() {
            for strip in [true, false] {
                let (text, heard) = passed(BODY, size, strip);
                assert_eq!(heard.as_deref(), Some(&b"TEXT eps=1"[..]), "{size}");
                assert_eq!(contents(&text), "hello!", "{size}");
                let after = &passed(BODY, BODY.len(), strip).0[16..];
                assert!(text.ends_with(after), "{size}: {text}");
            }
        }
    }

    /// The content of a chunked body.
    fn contents(text: &str) -> String {
        let (mut chunks, mut found, mut at) = (Chunked::new(), String::new(), 0);
        while !chunks.done() {
            let piece = chunks.step(&text.as_bytes()[at..]).expect("good");
            if let Piece::Content(len) = piece {
                found.push_str(&text[at..at + len]);
            }
            at += piece.len();
        }
        assert_eq!(at, text.len());
        found
    }

    #[test]
    fn no_report_is_none() {
        for text in ["0\r\n\r\n", "1\r\na\r\n0\r\n\r\n", "0\r\nx: y\r\n\r\n"] {
            assert_eq!(passed(text, text.len(), true), (text.to_owned(), None));
        }
    }
}
