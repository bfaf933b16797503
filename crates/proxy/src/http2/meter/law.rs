//! The law of the frames that a client of HTTP/2 sends: they are one sequence of frames however they are cut,
//! and the meter lets no more of them pass than the allowances of their kinds, however they are cut. The fuzz
//! target `http2_frames` tries it on invented bytes, the test below on the committed corpus and on what is
//! nearly in it.
//!
//! The bytes are what follows the preface. They are sent again and again, all at the same moment.

use super::super::frames::HEAD;
use super::*;

/// The number of times that they are sent, and the most of them in bytes.
const ROUNDS: usize = 300;
const LONGEST: usize = 4096;

/// Panics if the law does not hold. Returns whether all of it passes.
pub(crate) fn check(input: &[u8]) -> bool {
    let input = &input[..input.len().min(LONGEST)];
    assert_eq!(frames([input]), plain(input), "{}", input.escape_ascii());
    for cut in [1, 9, input.len() / 2] {
        let (begin, rest) = input.split_at(cut.min(input.len()));
        assert_eq!(frames([begin, rest]), frames([input]), "cut at {cut}: {}", input.escape_ascii());
    }
    let rounds = if input.is_empty() { 0 } else { ROUNDS };
    let all = std::iter::repeat_n(input, rounds).flat_map(|input| input.chunks(input.len().max(1)));
    let passed = pass(all);
    let pieces = std::iter::repeat_n(input, rounds).flat_map(|input| input.chunks(5));
    assert_eq!(pass(pieces).is_some(), passed.is_some(), "in pieces: {}", input.escape_ascii());
    let Some(meter) = passed else { return false };
    let sent = plain(&input.repeat(rounds));
    let count = |of: &dyn Fn(&Frame) -> bool| sent.iter().filter(|frame| of(frame)).count();
    let idle = |frame: &Frame| match frame.kind {
        DATA => frame.len == 0 && !frame.last,
        PING => !frame.last,
        HEADERS | CONTINUATION | RST_STREAM | WINDOW_UPDATE => false,
        SETTINGS => !frame.last,
        _ => true,
    };
    // No time passes, nothing is answered, and no stream grows old.
    assert!(count(&idle) <= 1000, "{} idle frames", count(&idle));
    assert!(count(&|frame| frame.kind == RST_STREAM) <= 200);
    assert!(count(&|frame| frame.kind == WINDOW_UPDATE) <= 10_000);
    assert!(meter.ages.marks.len() <= 1, "{} moments are remembered", meter.ages.marks.len());
    true
}

/// Sends pieces behind a preface; `None` if they are too much.
fn pass<'b>(pieces: impl Iterator<Item = &'b [u8]>) -> Option<Meter> {
    let mut meter = Meter::new(Time(0));
    assert!(meter.came(&[b'x'; PREFACE], Time(0)));
    for piece in pieces {
        if !meter.came(piece, Time(0)) {
            return None;
        }
    }
    Some(meter)
}

fn frames<const N: usize>(pieces: [&[u8]; N]) -> Vec<Frame> {
    let (mut frames, mut found) = (Frames::new(0), Vec::new());
    for mut piece in pieces {
        while let Some(frame) = frames.next(&mut piece) {
            found.push(frame);
        }
    }
    found
}

/// Reads the frames of a whole connection in the plainest way: a frame counts when its head has come, and of
/// RST_STREAM its code, of padded DATA the length of the padding.
fn plain(mut bytes: &[u8]) -> Vec<Frame> {
    let mut found = Vec::new();
    while let Some((&[a, b, c, kind, flags, d, e, f, g], payload)) = bytes.split_first_chunk::<HEAD>() {
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        let padded = kind == DATA && flags & 8 != 0 && len > 0;
        let needed = if padded {
            1
        } else if kind == RST_STREAM {
            len.min(4)
        } else {
            0
        };
        let Some(known) = payload.get(..needed) else { break };
        found.push(Frame {
            kind,
            stream: u32::from_be_bytes([d, e, f, g]) & 0x7fff_ffff,
            len: if padded { len.saturating_sub(1 + usize::from(known[0])) } else { len },
            last: flags & 1 == 1,
            code: match <[u8; 4]>::try_from(known) {
                Ok(code) if kind == RST_STREAM => u32::from_be_bytes(code),
                _ => 0,
            },
        });
        bytes = payload.get(len..).unwrap_or_default();
    }
    found
}

#[test]
fn the_corpus_obeys_it_and_what_is_nearly_in_it() {
    crate::near::holds("http2_frames", &[0, 1, 3, 4, 6, 8, 9, 0x80, 0xff], 500, check);
}
