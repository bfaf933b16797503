//! The allowances for a client's control frames, as a value: [`abuse_guard`](super::abuse_guard) passes it
//! the bytes.
//!
//! Each kind of frame has an allowance that grows with time and with the useful work of the connection. Each
//! stream may have one end for free, and one reset if the stream was open for a while.
//!
//! **Resets.** An attacker who opens streams and resets them at once evades the limit on streams
//! (CVE-2023-44487). A client that first leaves them open for [`FREE_RESET_AGE`] gains nothing: every client
//! may have that many streams at a time, for that long. So clients may cancel slow calls without limit, as
//! gRPC clients do at their deadlines. Only resets of younger streams are charged. (Envoy and Varnish use an
//! age of a second, and count those of many requests; calls with a shorter deadline are common.)
//!
//! **Pings.** gRPC clients measure the round-trip time to size their windows (the estimate of the
//! bandwidth-delay product in grpc-go and grpc-java). When DATA arrives and no ping is in flight, they send
//! one, with a WINDOW_UPDATE before it. A busy client sends thousands per second.
//!
//! So each DATA frame to a client permits a ping, and a window update of the connection and of the stream.
//! The reset of an old stream permits a ping as well, by which Go's client checks the connection.

use std::collections::VecDeque;
use std::time::Duration;

use plimsoll_brain::Time;

use super::frame_parser::{
    CONTINUATION, DATA, FrameHeader, FrameParser, HEADERS, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE,
};

/// The size of the preface of a client's connection, in bytes.
pub(super) const PREFACE_LEN: usize = 24;
/// The age from which a stream's reset is free.
const FREE_RESET_AGE: Duration = Duration::from_millis(100);
/// The resolution of ages.
const AGE_STEP: Duration = Duration::from_millis(10);

/// An allowance: `capacity` at once, and `rate` more per second.
#[derive(Debug)]
struct FrameBucket {
    tokens: f64,
    capacity: f64,
    rate: f64,
}

impl FrameBucket {
    fn new(capacity: f64, rate: f64) -> Self {
        Self { tokens: capacity, capacity, rate }
    }

    fn refill(&mut self, amount: f64) {
        self.tokens = (self.tokens + amount).min(self.capacity);
    }

    /// Takes one from the allowance; returns `true` if there was one.
    fn spend(&mut self) -> bool {
        let available = self.tokens >= 1.0;
        self.tokens -= f64::from(u8::from(available));
        available
    }
}

/// The meter of one connection.
#[derive(Debug)]
pub(super) struct AbuseBudget {
    /// PING, SETTINGS, PRIORITY, empty DATA, and unknown frames.
    idle: FrameBucket,
    /// PING that follows DATA or the reset of an old stream.
    echo_pings: FrameBucket,
    /// RST_STREAM of young streams, and of those that do not exist.
    resets: FrameBucket,
    /// WINDOW_UPDATE.
    updates: FrameBucket,
    last_received: Time,
    frames: FrameParser,
    ages: StreamAges,
    /// The streams that were opened and that the client has not ended yet, including those that it has reset.
    unended: u64,
    /// The streams that were opened and that the client has not reset yet, including those that have ended.
    unreset: u64,
}

impl AbuseBudget {
    pub(super) fn new(now: Time) -> Self {
        Self {
            idle: FrameBucket::new(1000.0, 100.0),
            echo_pings: FrameBucket { tokens: 0.0, ..FrameBucket::new(1000.0, 0.0) },
            resets: FrameBucket::new(200.0, 20.0),
            updates: FrameBucket::new(10_000.0, 100.0),
            last_received: now,
            frames: FrameParser::new(PREFACE_LEN),
            ages: StreamAges::default(),
            unended: 0,
            unreset: 0,
        }
    }

    /// Returns the time at which bytes last arrived.
    pub(super) fn last_received(&self) -> Time {
        self.last_received
    }

    /// Records that a stream was answered.
    pub(super) fn record_response(&mut self) {
        self.resets.refill(1.0);
    }

    /// Records bytes that were sent, and the number of DATA frames among them: for these, the client may open
    /// its windows again, and ping.
    pub(super) fn record_sent(&mut self, bytes: usize, data: usize) {
        self.updates.refill(bytes as f64 / 100.0 + 2.0 * data as f64);
        self.echo_pings.refill(data as f64);
    }

    /// Records received bytes; returns `false` if they exceed an allowance.
    pub(super) fn record_received(&mut self, mut bytes: &[u8], now: Time) -> bool {
        let elapsed = now.since(self.last_received).as_secs_f64();
        self.last_received = now;
        for bucket in [&mut self.idle, &mut self.resets, &mut self.updates] {
            bucket.refill(elapsed * bucket.rate);
        }
        while let Some(frame) = self.frames.next_frame(&mut bytes) {
            if !self.count_frame(&frame, now) {
                return false;
            }
        }
        true
    }

    /// Counts a frame; returns `false` if it exceeds an allowance.
    fn count_frame(&mut self, frame: &FrameHeader, now: Time) -> bool {
        match frame.kind {
            DATA if frame.first_flag => self.record_end() || frame.len > 0 || self.idle.spend(),
            DATA if frame.len > 0 => true,
            // h2 bounds them, by streams and by size.
            HEADERS => {
                if self.ages.record_open(frame.stream, now) {
                    self.unreset += 1;
                    self.unended += u64::from(!frame.first_flag);
                } else if frame.first_flag {
                    // Trailers.
                    self.record_end();
                }
                true
            }
            CONTINUATION => true,
            RST_STREAM => {
                let has_unreset = self.unreset > 0;
                self.unreset = self.unreset.saturating_sub(1);
                let is_free = has_unreset && self.ages.is_aged(frame.stream, now);
                self.echo_pings.refill(f64::from(u8::from(is_free)));
                is_free || self.resets.spend()
            }
            PING if !frame.first_flag => self.echo_pings.spend() || self.idle.spend(),
            // Acknowledgements of this side's settings, which are few. Those of pings are as few, and may not
            // come unasked.
            SETTINGS if frame.first_flag => true,
            WINDOW_UPDATE => self.updates.spend(),
            _ => self.idle.spend(),
        }
    }

    /// Records the end of a stream; returns `false` if none is left that could end.
    fn record_end(&mut self) -> bool {
        let has_open = self.unended > 0;
        self.unended = self.unended.saturating_sub(1);
        has_open
    }
}

/// The streams that were opened [`FREE_RESET_AGE`] ago, in little memory. Stream numbers grow (RFC 9113
/// section 5.1.1), so the last stream at certain times is enough.
#[derive(Debug, Default)]
struct StreamAges {
    /// The last stream that was opened.
    last_opened: u32,
    /// The last stream that is old enough.
    last_aged: u32,
    /// The begin of each span of [`STEP`], and the last stream that was opened in it.
    marks: VecDeque<(Time, u32)>,
}

impl StreamAges {
    /// Records a stream; returns `false` if it is not new.
    fn record_open(&mut self, stream: u32, now: Time) -> bool {
        if stream <= self.last_opened {
            return false;
        }
        self.last_opened = stream;
        self.advance(now);
        match self.marks.back_mut() {
            Some((started_at, last_stream)) if now.since(*started_at) < AGE_STEP => *last_stream = stream,
            _ => self.marks.push_back((now, stream)),
        }
        true
    }

    /// Returns `true` if this stream was opened long enough ago.
    fn is_aged(&mut self, stream: u32, now: Time) -> bool {
        self.advance(now);
        stream <= self.last_aged
    }

    fn advance(&mut self, now: Time) {
        while let Some((started_at, last_stream)) = self.marks.front().copied()
            && now.since(started_at) >= FREE_RESET_AGE + AGE_STEP
        {
            self.last_aged = last_stream;
            self.marks.pop_front();
        }
    }
}

#[cfg(any(test, fuzzing))]
pub(crate) mod invariants;

#[cfg(test)]
mod tests {
    use super::super::frame_parser::FRAME_HEADER_LEN;
    use super::*;

    const RESET: [u8; FRAME_HEADER_LEN + 4] = [0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 8];

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let mut bytes = vec![0, (payload >> 8) as u8, payload as u8, kind, flags, 0, 0, 0, 1];
        bytes.resize(FRAME_HEADER_LEN + payload, 0);
        bytes
    }

    /// Returns a frame for another stream.
    fn on_stream(stream: u32, mut frame: Vec<u8>) -> Vec<u8> {
        frame[5..9].copy_from_slice(&stream.to_be_bytes());
        frame
    }

    fn new_budget() -> AbuseBudget {
        let mut budget = AbuseBudget::new(Time(0));
        assert!(budget.record_received(&[b'x'; PREFACE_LEN], Time(0)));
        budget
    }

    /// Returns how many copies of a frame pass at once.
    fn accepted_count(bytes: &[u8]) -> usize {
        let mut budget = new_budget();
        (0..20_000).take_while(|_| budget.record_received(bytes, Time(0))).count()
    }

    #[test]
    fn each_kind_has_its_allowance() {
        for (kind, flags, payload, expected) in [
            (6, 0, 8, 1000),
            (4, 0, 6, 1000),
            (2, 0, 5, 1000),
            (0, 0, 0, 1000),
            (16, 0, 4, 1000),
            (3, 0, 4, 200),
            (8, 0, 4, 10_000),
            (6, 1, 8, 1000),
            (4, 1, 0, 20_000),
            (0, 0, 1, 20_000),
            // Only the padding length, which is zero.
            (0, 8, 1, 1000),
            (0, 8, 2, 20_000),
            // The ends of streams that do not exist.
            (0, 1, 0, 1000),
            (1, 4, 5, 20_000),
        ] {
            assert_eq!(accepted_count(&frame(kind, flags, payload)), expected, "kind {kind}, flags {flags}");
        }
    }

    #[test]
    fn whoever_gets_data_may_ping_and_open_windows() {
        let (ping, update) = (frame(6, 0, 8), frame(8, 0, 4));
        let mut budget = new_budget();
        for number in 0..50_000 {
            // The shortest possible response.
            budget.record_sent(30, 1);
            let received = [&update[..], &on_stream(1, update.clone()), &ping].concat();
            assert!(budget.record_received(&received, Time(0)), "{number}");
        }
        // The unused rest is kept, up to a limit.
        budget.record_sent(0, 5000);
        let extra_pings = (0..20_000).take_while(|_| budget.record_received(&ping, Time(0))).count();
        assert_eq!(extra_pings, 2000);
        // Acknowledgements differ: this side sent no ping.
        let (mut budget, answer) = (new_budget(), frame(6, 1, 8));
        budget.record_sent(0, 100);
        assert_eq!((0..20_000).take_while(|_| budget.record_received(&answer, Time(0))).count(), 1000);
    }

    #[test]
    fn whoever_gives_up_an_old_stream_may_ping() {
        let mut budget = new_budget();
        let mut now = Time(0);
        for number in 0..5000 {
            assert!(budget.record_received(&on_stream(2 * number + 1, frame(1, 5, 5)), now));
            now = now + Duration::from_millis(1);
        }
        let mut accepted = 0;
        for number in 0..4000 {
            let reset = on_stream(2 * number + 1, RESET.to_vec());
            accepted += u32::from(budget.record_received(&[reset, frame(6, 0, 8)].concat(), now));
        }
        assert_eq!(accepted, 4000);
    }

    #[test]
    fn each_stream_may_end_once() {
        let mut budget = new_budget();
        for number in 0..5000 {
            let stream = 2 * number + 1;
            assert!(budget.record_received(&on_stream(stream, frame(1, 4, 5)), Time(0)));
            assert!(budget.record_received(&on_stream(stream, frame(0, 1, 0)), Time(0)), "{stream}");
        }
        let accepted = (0..20_000)
            .take_while(|_| budget.record_received(&on_stream(1, frame(0, 1, 0)), Time(0)))
            .count();
        assert_eq!(accepted, 1000);
    }

    #[test]
    fn streams_that_have_ended_with_trailers_may_not_end_again() {
        let mut budget = new_budget();
        for number in 0..2000 {
            let stream = 2 * number + 1;
            assert!(budget.record_received(&on_stream(stream, frame(1, 4, 5)), Time(0)));
            assert!(budget.record_received(&on_stream(stream, frame(1, 5, 5)), Time(0)));
        }
        let accepted = (0..20_000)
            .take_while(|_| budget.record_received(&on_stream(1, frame(0, 1, 0)), Time(0)))
            .count();
        assert_eq!(accepted, 1000);
    }

    #[test]
    fn allowances_grow_with_time_and_with_what_is_of_use() {
        let mut budget = new_budget();
        assert!((0..200).all(|_| budget.record_received(&RESET, Time(0))));
        budget.record_response();
        assert!(budget.record_received(&RESET, Time(0)));
        let later = Time(0) + Duration::from_secs(1);
        assert!((0..20).all(|_| budget.record_received(&RESET, later)));
        assert!(!budget.record_received(&RESET, later));
    }

    /// Returns how many streams can be opened, a hundred at a time, and reset after this time.
    fn cancelled(after: Duration) -> usize {
        let mut budget = new_budget();
        let mut now = Time(0);
        for round in 0..100 {
            let streams = || (0..100).map(|number| 2 * (100 * round + number) + 1);
            for stream in streams() {
                assert!(budget.record_received(&on_stream(stream, frame(1, 5, 5)), now));
            }
            now = now + after;
            for (number, stream) in streams().enumerate() {
                if !budget.record_received(&on_stream(stream, RESET.to_vec()), now) {
                    return 100 * round as usize + number;
                }
            }
        }
        10_000
    }

    #[test]
    fn resets_of_streams_that_were_open_for_long_are_free() {
        assert_eq!(cancelled(Duration::ZERO), 200);
        assert!((200..250).contains(&cancelled(Duration::from_millis(20))));
        assert!((200..400).contains(&cancelled(FREE_RESET_AGE - Duration::from_millis(1))));
        assert_eq!(cancelled(FREE_RESET_AGE + AGE_STEP), 10_000);
        // One of each.
        let mut budget = new_budget();
        assert!(budget.record_received(&on_stream(1, frame(1, 5, 5)), Time(0)));
        let later = Time(0) + Duration::from_millis(500);
        let accepted = (0..20_000).take_while(|_| budget.record_received(&RESET, later)).count();
        assert_eq!(accepted, 201);
    }

    #[test]
    fn ages_are_known_in_little_room() {
        let mut ages = StreamAges::default();
        for millisecond in 0_u64..10_000 {
            let now = Time(millisecond * 1_000_000);
            let stream = 2 * millisecond as u32 + 1;
            assert!(ages.record_open(stream, now) && !ages.record_open(stream, now));
            // Within one stream per millisecond.
            assert!(ages.is_aged(stream.saturating_sub(2 * 110), now));
            assert!(!ages.is_aged(stream.saturating_sub(2 * 99).max(1), now));
            assert!(ages.marks.len() <= 12);
        }
    }
}
