//! Ends a connection gracefully before `h2` ends it abruptly.
//!
//! `h2` counts two things over the whole life of a connection: streams that it reset because the peer broke a
//! rule (CVE-2025-8671), and empty DATA frames (CVE-2019-9518). After too many, it ends the connection with
//! all requests in flight. That is right against an attacker, who gets there at once. A peer with occasional
//! errors gets there, too, if its connection lives long enough. So after half of either limit, the connection
//! ends gracefully, and nothing is lost.

use std::cell::{Cell, RefCell};
use std::io::IoSlice;

use h2::Reason;

use super::frame_parser::{DATA, FrameParser, RST_STREAM};

/// The number of empty DATA frames that are not the last of their stream; after more, `h2` ends the
/// connection.
const MAX_EMPTY_FRAMES: usize = 100;
/// The codes of resets that blame the peer.
const PEER_FAULT_CODES: [Reason; 4] =
    [Reason::PROTOCOL_ERROR, Reason::FLOW_CONTROL_ERROR, Reason::STREAM_CLOSED, Reason::REFUSED_STREAM];

/// The counters of a connection.
#[derive(Debug)]
pub(super) struct ErrorBudget {
    received: RefCell<FrameParser>,
    sent: RefCell<FrameParser>,
    empty_frames: Cell<usize>,
    peer_resets: Cell<usize>,
    /// The maximum number of streams that are reset because the peer broke a rule.
    max_resets: usize,
}

impl ErrorBudget {
    /// Creates counters. `before` are the numbers of received and sent bytes before the first frame.
    /// `max_resets` is the maximum number of streams that are reset because the peer broke a rule.
    pub(super) fn new(skip: (usize, usize), max_resets: usize) -> Self {
        Self {
            received: RefCell::new(FrameParser::new(skip.0)),
            sent: RefCell::new(FrameParser::new(skip.1)),
            empty_frames: Cell::default(),
            peer_resets: Cell::default(),
            max_resets,
        }
    }

    /// Records bytes from the peer.
    pub(super) fn record_received(&self, mut bytes: &[u8]) {
        let mut parser = self.received.borrow_mut();
        while let Some(frame) = parser.next_frame(&mut bytes) {
            if frame.kind == DATA && frame.len == 0 && !frame.first_flag {
                self.empty_frames.set(self.empty_frames.get() + 1);
            }
        }
    }

    /// Records that `left` bytes of `parts` were sent to the peer, and returns the number of DATA frames
    /// among them.
    pub(super) fn record_sent(&self, bufs: &[IoSlice<'_>], mut remaining: usize) -> usize {
        let mut parser = self.sent.borrow_mut();
        let mut data = 0;
        for buf in bufs {
            let (mut bytes, _) = buf.split_at(remaining.min(buf.len()));
            remaining -= bytes.len();
            while let Some(frame) = parser.next_frame(&mut bytes) {
                data += usize::from(frame.kind == DATA);
                if frame.kind == RST_STREAM && PEER_FAULT_CODES.contains(&frame.code.into()) {
                    self.peer_resets.set(self.peer_resets.get() + 1);
                }
            }
        }
        data
    }

    /// Returns `true` if the connection should end.
    pub(super) fn is_spent(&self) -> bool {
        self.peer_resets.get() >= self.max_resets / 2 || self.empty_frames.get() >= MAX_EMPTY_FRAMES / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_what_is_forgiven_is_enough() {
        const HOLLOW: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 0, 1];
        const LAST: &[u8] = &[0, 0, 0, 0, 1, 0, 0, 0, 1];
        let budget = ErrorBudget::new((3, 0), 100);
        budget.record_received(b"pre");
        (0..1000).for_each(|_| budget.record_received(LAST));
        (0..49).for_each(|_| budget.record_received(HOLLOW));
        assert!(!budget.is_spent());
        budget.record_received(HOLLOW);
        assert!(budget.is_spent());
    }

    #[test]
    fn padding_is_nothing() {
        // Three bytes of padding; another three bytes with one byte of content.
        const HOLLOW: &[u8] = &[0, 0, 4, 0, 8, 0, 0, 0, 1, 3, 0, 0, 0];
        const SOMETHING: &[u8] = &[0, 0, 4, 0, 8, 0, 0, 0, 1, 2, b'x', 0, 0];
        let budget = ErrorBudget::new((0, 0), 100);
        (0..1000).for_each(|_| budget.record_received(SOMETHING));
        (0..49).for_each(|_| budget.record_received(HOLLOW));
        assert!(!budget.is_spent());
        // The result does not depend on the cuts.
        HOLLOW.iter().for_each(|byte| budget.record_received(&[*byte]));
        assert!(budget.is_spent());
    }

    #[test]
    fn data_that_goes_is_counted() {
        let frames = [0, 0, 1, 0, 0, 0, 0, 0, 1, b'x'].repeat(3);
        let budget = ErrorBudget::new((0, 0), 10);
        // The head of the last frame is incomplete.
        assert_eq!(budget.record_sent(&[IoSlice::new(&frames)], 25), 2);
        assert_eq!(budget.record_sent(&[IoSlice::new(&frames[25..])], 5), 1);
        assert_eq!(budget.record_sent(&[IoSlice::new(&[0, 0, 0, 4, 1, 0, 0, 0, 0])], 9), 0);
    }

    #[test]
    fn only_the_peers_mistakes_count() {
        let reset = |code: u8| [0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, code];
        let budget = ErrorBudget::new((0, 5), 10);
        budget.record_sent(&[IoSlice::new(b"hello")], 5);
        // NO_ERROR, INTERNAL_ERROR, CANCEL
        for code in [0, 2, 8] {
            (0..100).for_each(|_| assert_eq!(budget.record_sent(&[IoSlice::new(&reset(code))], 13), 0));
        }
        // The rest that was not accepted comes again.
        (0..100).for_each(|_| assert_eq!(budget.record_sent(&[IoSlice::new(&reset(1))], 0), 0));
        assert!(!budget.is_spent());
        for code in [1, 3, 5, 7] {
            let (head, rest) = (&reset(code)[..7], &reset(code)[7..]);
            budget.record_sent(&[IoSlice::new(head), IoSlice::new(rest)], 11);
            budget.record_sent(&[IoSlice::new(&rest[4..])], 2);
        }
        assert!(!budget.is_spent());
        budget.record_sent(&[IoSlice::new(&reset(1))], 13);
        assert!(budget.is_spent());
    }
}
