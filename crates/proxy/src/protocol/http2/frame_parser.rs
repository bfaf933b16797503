//! A parser for the frames of HTTP/2 in a byte stream (RFC 9113 section 4.1): parses their heads and skips
//! their payloads.

/// The size of a frame's head, in bytes.
pub(super) const FRAME_HEADER_LEN: usize = 9;
/// The size of the code in RST_STREAM, in bytes.
const ERROR_CODE_LEN: usize = 4;
/// The size of DATA's padding length, in bytes.
const PAD_LEN: usize = 1;
/// The flag for padding.
const PADDED_FLAG: u8 = 8;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) kind: u8,
    pub(super) stream: u32,
    /// The size of the payload in bytes; for DATA, without padding.
    pub(super) len: usize,
    /// The flag in the first bit: END_STREAM of DATA and HEADERS, ACK of SETTINGS and PING.
    pub(super) first_flag: bool,
    /// The error code of RST_STREAM; 0 for others.
    pub(super) code: u32,
}

/// One direction of a connection.
#[derive(Debug)]
pub(super) struct FrameParser {
    /// The remaining bytes of a payload, or of the part before the first frame.
    skip: usize,
    /// A head, and the code or the padding length behind it.
    head: [u8; FRAME_HEADER_LEN + ERROR_CODE_LEN],
    filled: usize,
}

impl FrameParser {
    /// Creates a parser. `before` is the number of bytes before the first frame.
    pub(super) fn new(skip: usize) -> Self {
        Self { skip, head: [0; FRAME_HEADER_LEN + ERROR_CODE_LEN], filled: 0 }
    }

    /// Returns the next frame whose head is complete, and removes the bytes up to there from `bytes`. Returns
    /// `None` once all bytes were consumed.
    pub(super) fn next_frame(&mut self, bytes: &mut &[u8]) -> Option<FrameHeader> {
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            *bytes = &bytes[skipped..];
            let missing = self.needed_len() - self.filled;
            if missing == 0 {
                return Some(self.finish_header());
            }
            if bytes.is_empty() {
                return None;
            }
            let (taken, rest) = bytes.split_at(missing.min(bytes.len()));
            self.head[self.filled..self.filled + taken.len()].copy_from_slice(taken);
            self.filled += taken.len();
            *bytes = rest;
        }
    }

    fn len(&self) -> usize {
        usize::from(self.head[0]) << 16 | usize::from(self.head[1]) << 8 | usize::from(self.head[2])
    }

    /// Returns the number of bytes to keep of the current frame, as far as is known.
    fn needed_len(&self) -> usize {
        let extra_len = match self.head[3] {
            _ if self.filled < FRAME_HEADER_LEN => 0,
            RST_STREAM => ERROR_CODE_LEN,
            DATA if self.head[4] & PADDED_FLAG != 0 => PAD_LEN,
            _ => 0,
        };
        FRAME_HEADER_LEN + extra_len.min(self.len())
    }

    fn finish_header(&mut self) -> FrameHeader {
        let len = self.len();
        self.skip = len - (self.filled - FRAME_HEADER_LEN);
        let [_, _, _, kind, flags, stream @ ..] = self.head;
        let has_code = kind == RST_STREAM && self.filled == FRAME_HEADER_LEN + ERROR_CODE_LEN;
        let is_padded = kind == DATA && self.filled == FRAME_HEADER_LEN + PAD_LEN;
        self.filled = 0;
        let [a, b, c, d, code @ ..] = stream;
        FrameHeader {
            kind,
            // The first bit is reserved.
            stream: u32::from_be_bytes([a & 0x7f, b, c, d]),
            // `h2` rejects padding longer than the payload.
            len: if is_padded { len.saturating_sub(PAD_LEN + usize::from(code[0])) } else { len },
            first_flag: flags & 1 == 1,
            code: if has_code { u32::from_be_bytes(code) } else { 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let len = (payload.len() as u32).to_be_bytes();
        [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }

    proptest::proptest! {
        /// Any bytes are parsed into the same frames, however they are cut.
        #[test]
        fn any_bytes_are_frames(bytes: Vec<u8>, extra_frames: Vec<(u8, u8)>, cut: usize) {
            let mut input = bytes;
            for (kind, len) in extra_frames {
                input.extend(frame(kind % 16, 0, 1, &vec![0; usize::from(len)]));
            }
            let parse = |pieces: &[&[u8]]| {
                let (mut parser, mut headers) = (FrameParser::new(0), Vec::new());
                for mut piece in pieces.iter().copied() {
                    while let Some(frame) = parser.next_frame(&mut piece) {
                        headers.push(frame);
                    }
                }
                headers
            };
            let (head, rest) = input.split_at(cut % (input.len() + 1));
            proptest::prop_assert_eq!(parse(&[&input]), parse(&[head, rest]));
        }
    }

    #[test]
    fn cuts_do_not_matter() {
        let mut bytes = b"before".to_vec();
        bytes.extend(frame(DATA, 1, 3, &[7; 300]));
        bytes.extend(frame(RST_STREAM, 0, 0x8000_0005, &[0, 0, 0, 8]));
        bytes.extend(frame(RST_STREAM, 0, 5, &[1, 2]));
        bytes.extend(frame(RST_STREAM, 0, 5, &[0, 0, 0, 11, 9, 9]));
        bytes.extend(frame(SETTINGS, 1, 0, b""));
        // Padding alone, with content, longer than the payload, and a flag without a meaning.
        bytes.extend(frame(DATA, PADDED_FLAG, 7, &[3, 0, 0, 0]));
        bytes.extend(frame(DATA, PADDED_FLAG | 1, 7, &[2, b'x', 0, 0]));
        bytes.extend(frame(DATA, PADDED_FLAG, 7, &[200, 0]));
        bytes.extend(frame(DATA, PADDED_FLAG, 7, &[]));
        bytes.extend(frame(SETTINGS, PADDED_FLAG, 0, &[9; 6]));
        let header =
            |kind, stream, len, last, code| FrameHeader { kind, stream, len, first_flag: last, code };
        let expected = [
            header(DATA, 3, 300, true, 0),
            header(RST_STREAM, 5, 4, false, 8),
            header(RST_STREAM, 5, 2, false, 0),
            header(RST_STREAM, 5, 6, false, 11),
            header(SETTINGS, 0, 0, true, 0),
            header(DATA, 7, 0, false, 0),
            header(DATA, 7, 1, true, 0),
            header(DATA, 7, 0, false, 0),
            header(DATA, 7, 0, false, 0),
            header(SETTINGS, 0, 6, false, 0),
        ];
        for size in 1..bytes.len() {
            let mut parser = FrameParser::new(6);
            let mut headers = Vec::new();
            for mut piece in bytes.chunks(size) {
                while let Some(frame) = parser.next_frame(&mut piece) {
                    headers.push(frame);
                }
            }
            assert_eq!(headers, expected, "{size}");
        }
    }
}
