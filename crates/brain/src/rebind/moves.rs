//! One session under alert: does it go?

use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Time;
use crate::hash::unit;

/// Which part of a member's sessions is to go elsewhere.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shed {
    /// Probability with which each session goes, 0 to 1; 0 for no alert.
    pub share: f32,
    /// By which part of its load the member has more than those have that its sessions go to: above 0, up to 2 where those are much larger.
    /// Infinite by rules that do not ask, and for no alert.
    pub gap: f32,
    /// Number of the decision; each asks a session once. 0 for no alert.
    pub epoch: u32,
    /// The report period that a session's back-off is counted in; zero for no back-off.
    pub period: Duration,
}

/// What a session remembers of being moved: 24 bytes beside each one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Moves {
    /// When it moved last.
    last: Time,
    /// The last decision it was asked by.
    epoch: u32,
    /// Moves since it was last left in peace for long.
    count: u8,
}

impl Default for Shed {
    fn default() -> Self {
        Self { share: 0.0, gap: f32::INFINITY, epoch: 0, period: Duration::ZERO }
    }
}

impl Shed {
    /// Is anything the better for it if a session goes that is so much of its member's load, 0 to 1? Sessions are not divided: where one is
    /// more than its member has more than others, it takes the surplus along, and all that comes of it is that it is asked
    /// again there. To be asked before [`session_moves`] by who knows what part of the load the session is.
    pub fn helps(&self, part: f32) -> bool {
        part < WORTH * self.gap
    }
}

/// Does a session go? To be asked by whoever holds the session, as often as it likes: the answer is drawn once for
/// each decision of the member's ([`Shed::epoch`]), from `chance`. A session that moved stays for 2, 4, 8, … report
/// periods; after 20 more without a move it is as if it never had. If the answer is yes, the move has been noted.
pub fn session_moves(shed: Shed, session: &mut Moves, chance: u64, now: Time) -> bool {
    if shed.share <= 0.0 || session.epoch == shed.epoch {
        return false;
    }
    session.epoch = shed.epoch;
    if !session.rested(shed.period, now) {
        return false;
    }
    let goes = unit(chance) < f64::from(shed.share);
    if goes {
        session.moved(now);
    }
    goes
}

/// May a session leave a member that has too much to do at this moment, whatever its reports say? As often as
/// [`session_moves`] would let it with this report period. If the answer is yes, the move has been noted.
pub fn session_escapes(session: &mut Moves, period: Duration, now: Time) -> bool {
    let goes = session.rested(period, now);
    if goes {
        session.moved(now);
    }
    goes
}

impl Moves {
    /// Of a session whose holder keeps no more than how often it moved and when it did last. It does not remember which
    /// decision asked it: whoever asks with the same `chance` for the same decision gets the same answer.
    pub fn recalled(count: u8, last: Time) -> Self {
        Self { last, epoch: 0, count: count.min(MOST) }
    }

    /// How often it moved since it was last left in peace for long.
    pub fn count(&self) -> u8 {
        self.count
    }

    /// Has it stayed for long enough since it moved last?
    fn rested(&mut self, period: Duration, now: Time) -> bool {
        if self.count == 0 {
            return true;
        }
        let wait = period.saturating_mul(1 << self.count);
        let rested = now.since(self.last);
        if rested >= wait.saturating_add(period.saturating_mul(QUIET)) {
            self.count = 0;
        }
        rested >= wait
    }

    fn moved(&mut self, now: Time) {
        self.count = (self.count + 1).min(MOST);
        self.last = now;
    }
}

/// A session that is a greater part of the gap changes next to nothing by going, and its part is not known exactly. (Simulated with 0.8 some
/// stay where they might have gone; 1.0 is the same where parts are exact: `tests/few_sessions.rs`.)
const WORTH: f32 = 0.9;

/// Report periods in peace after which a session's moves are forgotten.
const QUIET: u32 = 20;

/// Doublings at most: with a period of 1 s, 18 hours.
const MOST: u8 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix;

    const T: Duration = Duration::from_secs(1);

    fn at(periods: u32) -> Time {
        Time(5) + T * periods
    }

    fn shed(share: f32, epoch: u32) -> Shed {
        Shed { share, epoch, period: T, ..Shed::default() }
    }

    #[test]
    fn a_decision_asks_each_session_once() {
        let goes = |epochs: u32| {
            (0..10_000_u64)
                .filter(|session| {
                    let mut moves = Moves::default();
                    (0..4).any(|ask| {
                        let epoch = 1 + ask % epochs;
                        session_moves(shed(0.25, epoch), &mut moves, mix(session * 4 + u64::from(ask)), at(0))
                    })
                })
                .count()
        };
        assert!((2_300..2_700).contains(&goes(1)), "{}", goes(1));
        assert!((6_500..7_200).contains(&goes(4)), "1 - 0.75^4: {}", goes(4));
    }

    #[test]
    fn a_session_stays_ever_longer_and_is_forgiven() {
        let mut moves = Moves::default();
        let mut times = alloc::vec::Vec::new();
        for period in 0..100 {
            if session_moves(shed(1.0, period + 1), &mut moves, 0, at(period)) {
                times.push(period);
            }
        }
        assert_eq!(times, [0, 2, 6, 14, 30, 62]);
        // It may go again at 62 + 64; after 20 more in peace all is forgotten.
        assert!(session_moves(shed(1.0, 200), &mut moves, 0, at(62 + 64 + 20)));
        assert!(!session_moves(shed(1.0, 201), &mut moves, 0, at(62 + 64 + 21)));
        assert!(session_moves(shed(1.0, 202), &mut moves, 0, at(62 + 64 + 22)));
    }

    #[test]
    fn who_escapes_stays_ever_longer_and_what_is_recalled_says_the_same() {
        let mut moves = Moves::default();
        let mut times = alloc::vec::Vec::new();
        for period in 0..100 {
            // As much as a cookie holds.
            moves = Moves::recalled(moves.count(), moves.last);
            if session_escapes(&mut moves, T, at(period)) {
                times.push(period);
            }
        }
        assert_eq!(times, [0, 2, 6, 14, 30, 62]);
        assert_eq!(moves.count(), 6);
        assert!(!session_moves(shed(1.0, 7), &mut moves, 0, at(100)), "one back-off for both");
        assert_eq!(Moves::recalled(u8::MAX, at(0)).count(), MOST);
    }

    #[test]
    fn without_an_alert_nobody_goes() {
        let mut moves = Moves::default();
        assert!(!session_moves(Shed::default(), &mut moves, 0, at(1)));
        assert!(!session_moves(shed(0.0, 7), &mut moves, 0, at(1)));
        assert_eq!(moves, Moves::default());
    }

    #[test]
    fn the_papers_know_no_back_off() {
        let mut moves = Moves::default();
        let shed = |epoch| Shed { share: 1.0, epoch, ..Shed::default() };
        assert!((1..50).all(|epoch| session_moves(shed(epoch), &mut moves, 0, at(0))));
    }
}
