//! Those that wait for room where every member has as many requests as it can work on: for how long, and who goes
//! first.
//!
//! A place comes free within a fraction of the time that a request takes, so that whoever is turned away at the
//! moment at which all happen to be full is turned away for nothing. But a queue that never empties while some wait in vain serves nobody
//! better: all wait, and no more are served than without it. So there are two moods, as in controlled delay (Nichols
//! and Jacobson 2012) with adaptive last-in first-out (Maurer, Fail at Scale, 2015), both without a number to set:
//! time is measured in *sojourns*, the time that a request takes with the members.
//!
//! * **Patient**: the first to come is the first to go, and each may wait for [`PATIENCE`] sojourns, or [`UNNOTICED`] where that is
//!   longer: where requests take milliseconds, servers that stand still for a moment would have all refused. In a sojourn as
//!   many places come free as there are requests in flight; so a newcomer that finds as many waiting as will come free
//!   within its patience is turned away at once: it would wait in vain.
//! * **Hurried**, once somebody has waited at every moment of [`INTERVAL`] sojourns (or four times [`UNNOTICED`]), which is more
//!   than a burst, and somebody was not served in that time: the last to come is the first to go, and each may wait for [`HASTE`] of a
//!   sojourn. What is served is fresh, what is not is told so quickly, and there is still somebody there when a place comes free. A
//!   newcomer takes the place of the oldest. It ends with an interval, of [`UNNOTICED`] at least, in which nobody was turned away.
//!
//! That somebody always waits is no overload by itself: so do clients that ask again as soon as they are answered, a few more than members can
//! work on. In order of arrival each waits for a moment and is served.
//!
//! Where it is known within what time clients want their answers, the patient wait for as long as theirs can still come in time,
//! whether that is more or less than so, and a burst is what they would be through with in that time; none wait where it is
//! too late already. Haste is as it is.
//!
//! A newcomer that finds room does not look whether others wait: they were told of every place that came free.

use alloc::collections::VecDeque;
use core::time::Duration;

use crate::Time;

mod lines;

pub use lines::{Lines, Urgency};

/// How quickly places come free.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    /// Mean time that a request takes with the members. Zero if that is not known: then nobody waits.
    pub sojourn: Duration,
    /// Requests in flight with them, from here.
    pub in_flight: u32,
    /// How long one may wait and still have its answer in time, where that is known. In haste it is no reason to wait longer than
    /// else.
    pub wait: Option<Duration>,
}

impl Pace {
    /// Of requests that take `sojourn` with the members, where answers are wanted within `objective`.
    pub fn new(sojourn: Duration, in_flight: u32, objective: Option<Duration>) -> Self {
        Self { sojourn, in_flight, wait: objective.map(|objective| objective.saturating_sub(sojourn)) }
    }
}

/// Who waits, and with what to tell them (`T`: a waker, a number). It belongs to one group; what it keeps is bounded
/// by the requests in flight, and by how many of them end while one may wait.
#[derive(Clone, Debug)]
pub struct Line<T> {
    /// In the order in which they came.
    waiters: VecDeque<Waiter<T>>,
    tickets: u64,
    pace: Pace,
    hurried: bool,
    /// Others that wait and go before all of these.
    ahead: usize,
    /// Since when somebody waits without a break, or in haste, since when nobody was turned away.
    since: Time,
    /// When somebody left last who was not served, or would have waited in vain.
    lost: Option<Time>,
}

/// A place in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    number: u64,
    /// When the wait is over if nobody says so before.
    pub until: Time,
    /// What [`Lines`] knows it by.
    urgency: Urgency,
}

/// What somebody who waits is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Wait on.
    Wait,
    /// Look for a member: room may have come free.
    Look,
    /// Go: the wait is over.
    Go,
}

#[derive(Clone, Debug)]
struct Waiter<T> {
    ticket: Ticket,
    came: Time,
    /// Was it told to look, and has not yet?
    called: bool,
    who: T,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self {
            waiters: VecDeque::new(),
            tickets: 0,
            pace: Pace::default(),
            hurried: false,
            ahead: 0,
            since: Time(0),
            lost: None,
        }
    }
}

impl<T> Line<T> {
    /// Somebody that came at `since` found no room. `None`: waiting is in vain, turn it away. Afterwards ask
    /// [`dismiss`](Self::dismiss) whom it pushed out.
    pub fn enter(&mut self, who: T, pace: Pace, since: Time, now: Time) -> Option<Ticket> {
        self.set_pace(pace);
        if self.waiters.is_empty() && !self.hurried {
            self.since = now;
        }
        self.judge(now);
        let until = since + self.patience();
        // In haste it takes the place of the oldest, if there is one to take.
        let full = self.room() == 0 || (!self.hurried && self.waiters.len() >= self.room());
        if until <= now || full {
            self.turned_away(now);
            return None;
        }
        self.tickets += 1;
        let ticket = Ticket { number: self.tickets, until, urgency: Urgency::default() };
        self.waiters.push_back(Waiter { ticket, came: since, called: false, who });
        Some(ticket)
    }

    /// Room may have come free: who is to be told to look. Nobody is told twice before they have.
    pub fn call(&mut self) -> Option<&T> {
        let next = |waiter: &&mut Waiter<T>| !waiter.called;
        let waiter = match self.hurried {
            true => self.waiters.iter_mut().rev().find(next),
            false => self.waiters.iter_mut().find(next),
        }?;
        waiter.called = true;
        Some(&waiter.who)
    }

    /// Somebody looks up: what it is to do. Once it has looked in vain, it waits on.
    pub fn turn(&mut self, ticket: Ticket) -> Turn {
        match self.place(ticket) {
            Some(place) if core::mem::take(&mut self.waiters[place].called) => Turn::Look,
            Some(_) => Turn::Wait,
            None => Turn::Go,
        }
    }

    /// Somebody leaves: with a member or without. True if it had been told to look and has not: then somebody else is to
    /// be called.
    pub fn leave(&mut self, ticket: Ticket, served: bool, now: Time) -> bool {
        let Some(place) = self.place(ticket) else { return false };
        let called = self.waiters.remove(place).is_some_and(|waiter| waiter.called);
        if !served {
            self.lost = Some(now);
        }
        if !served && now >= ticket.until {
            self.turned_away(now);
        }
        self.judge(now);
        called
    }

    /// The next one whose wait is over: to be told that it is to go. Call until there is none.
    pub fn dismiss(&mut self, now: Time) -> Option<T> {
        let first = self.waiters.front()?;
        let late = now >= first.ticket.until.min(first.came + self.patience());
        if !late && self.waiters.len() <= self.room() {
            return None;
        }
        self.turned_away(now);
        self.waiters.pop_front().map(|waiter| waiter.who)
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Does nobody wait?
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Is there more to do than can be done, so that the last to come goes first?
    pub fn hurried(&self) -> bool {
        self.hurried
    }

    /// How long one that comes now may wait.
    pub fn patience(&self) -> Duration {
        let Pace { sojourn, wait, .. } = self.pace;
        match wait {
            // Nobody knows when a place comes free.
            _ if sojourn.is_zero() => Duration::ZERO,
            None if self.hurried => sojourn.mul_f64(HASTE),
            None => sojourn.mul_f64(PATIENCE).max(UNNOTICED),
            Some(wait) if self.hurried => wait.min(sojourn.mul_f64(HASTE)),
            Some(wait) => wait,
        }
    }

    /// How many places come free for these within the patience of one that comes now; at least one, if nobody goes before
    /// them.
    fn room(&self) -> usize {
        let sojourns = self.patience().as_secs_f64() / self.pace.sojourn.as_secs_f64().max(1e-9);
        let free = (libm::ceil(f64::from(self.pace.in_flight) * sojourns) as usize).max(1);
        free.saturating_sub(self.ahead)
    }

    fn set_pace(&mut self, pace: Pace) {
        self.pace = Pace { sojourn: pace.sojourn.min(LONGEST), ..pace };
    }

    /// What is longer than a burst: it would be over once all that may wait were served.
    fn interval(&self) -> Duration {
        let usual = self.pace.sojourn.mul_f64(INTERVAL).max(UNNOTICED);
        if self.hurried { usual } else { usual.max(self.patience().mul_f64(INTERVAL / PATIENCE)) }
    }

    /// Changes the mood, if it is time.
    fn judge(&mut self, now: Time) {
        if !self.hurried && self.waiters.is_empty() {
            self.since = now;
        }
        let interval = self.interval();
        // In the patient mood: whoever was turned away longer ago has nothing to do with those that wait now.
        let due = self.hurried || self.lost.is_some_and(|lost| now.since(lost) <= interval);
        if due && now.since(self.since) >= interval && !self.pace.sojourn.is_zero() {
            self.hurried = !self.hurried;
            self.since = now;
        }
    }

    fn turned_away(&mut self, now: Time) {
        self.lost = Some(now);
        if self.hurried {
            self.since = now;
        }
    }

    fn place(&self, ticket: Ticket) -> Option<usize> {
        self.waiters.binary_search_by_key(&ticket.number, |waiter| waiter.ticket.number).ok()
    }
}

/// Sojourns that one may wait where the line empties now and then.
const PATIENCE: f64 = 2.0;

/// The same where it does not.
const HASTE: f64 = 0.125;

/// What nobody notices, and every server stands still for now and then: one may wait for that, however quick requests are.
const UNNOTICED: Duration = Duration::from_millis(100);

/// What takes longer counts as this: nobody knows how long a client waits, and few wait for longer than twice that.
const LONGEST: Duration = Duration::from_secs(1);

/// Sojourns after which a line that never was empty is no burst.
const INTERVAL: f64 = 8.0;

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;

    const SOJOURN: Duration = Duration::from_millis(80);
    const PACE: Pace = Pace { sojourn: SOJOURN, in_flight: 8, wait: None };

    fn at(sojourns: f64) -> Time {
        Time(1) + SOJOURN.mul_f64(sojourns)
    }

    fn enter(line: &mut Line<u32>, who: u32, sojourns: f64) -> Option<Ticket> {
        line.enter(who, PACE, at(sojourns), at(sojourns))
    }

    /// Those that are sent away now.
    fn gone(line: &mut Line<u32>, sojourns: f64) -> Vec<u32> {
        core::iter::from_fn(|| line.dismiss(at(sojourns))).collect()
    }

    /// A line that was never empty for as long as it takes, of which every other one goes unserved, with one that came last.
    fn hurried() -> (Line<u32>, Ticket, f64) {
        let mut line = Line::default();
        let mut last = enter(&mut line, 0, 0.0).unwrap();
        let mut sojourns = 0.0;
        for who in 1.. {
            if line.hurried() {
                return (line, last, sojourns);
            }
            sojourns += 0.5;
            let next = enter(&mut line, who, sojourns).unwrap();
            line.leave(last, who % 2 == 0, at(sojourns));
            last = next;
            assert!(who < 1000, "it never hurries");
        }
        unreachable!()
    }

    #[test]
    fn at_first_the_first_to_come_goes_first() {
        let mut line = Line::default();
        let tickets: Vec<Ticket> = (0..3).map(|who| enter(&mut line, who, 0.0).unwrap()).collect();
        assert_eq!(line.turn(tickets[0]), Turn::Wait, "nobody was told anything");
        assert_eq!((line.call().copied(), line.call().copied()), (Some(0), Some(1)), "nobody is told twice");
        assert_eq!((line.turn(tickets[0]), line.turn(tickets[0])), (Turn::Look, Turn::Wait));
        assert!(!line.leave(tickets[0], true, at(0.1)));
        assert!(line.leave(tickets[1], false, at(0.1)), "what it was told is for the next");
        assert_eq!(line.call(), Some(&2));
        assert!(line.turn(tickets[1]) == Turn::Go && line.len() == 1);
    }

    #[test]
    fn nobody_waits_longer_than_may_help() {
        let mut line = Line::default();
        let early = enter(&mut line, 1, 0.0).unwrap();
        enter(&mut line, 2, 1.0).unwrap();
        assert_eq!((early.until, gone(&mut line, 1.99)), (at(2.0), vec![]));
        assert_eq!((gone(&mut line, 2.01), line.turn(early)), (vec![1], Turn::Go));
        // Who was sent away by a member waits no longer in all.
        assert_eq!(line.enter(3, PACE, at(1.5), at(2.5)).unwrap().until, at(3.5));
        assert_eq!(line.enter(4, PACE, at(0.4), at(2.5)), None);
        assert_eq!(gone(&mut line, 4.0), [2, 3]);
    }

    #[test]
    fn there_are_no_more_than_will_be_served() {
        let mut line = Line::default();
        let found = (0..1000).filter(|who| enter(&mut line, *who, 0.0).is_some()).count();
        assert_eq!((found, line.len()), (16, 16), "twice what is in flight");
        let idle = Pace { in_flight: 0, ..PACE };
        let mut line = Line::default();
        assert!(line.enter(0, idle, at(0.0), at(0.0)).is_some(), "others may have sent what is in flight");
        assert!(line.enter(1, idle, at(0.0), at(0.0)).is_none());
        let unknown = Pace { sojourn: Duration::ZERO, ..PACE };
        assert!(Line::default().enter(0, unknown, at(0.0), at(0.0)).is_none(), "nobody knows for how long");
        let endless = Pace { sojourn: Duration::MAX, in_flight: u32::MAX, wait: None };
        let until = Line::default().enter(0, endless, Time(0), Time(0)).unwrap().until;
        assert_eq!(until, Time(2_000_000_000));
    }

    #[test]
    fn a_burst_that_ends_hurries_nobody() {
        let mut line = Line::default();
        for burst in 0..100 {
            let begun = f64::from(burst) * 4.0;
            let tickets: Vec<Ticket> = (0..16).map(|who| enter(&mut line, who, begun).unwrap()).collect();
            for (ticket, turn) in tickets.iter().zip(1..) {
                line.leave(*ticket, true, at(begun + f64::from(turn) * 0.1));
            }
            assert!(!line.hurried() && line.is_empty(), "{burst}");
        }
    }

    #[test]
    fn where_it_never_ends_the_last_to_come_goes_first_and_the_others_soon() {
        let (mut line, last, now) = hurried();
        assert!((INTERVAL..INTERVAL + 1.0).contains(&now), "after {now} sojourns");
        let next = enter(&mut line, 777, now).unwrap();
        assert_eq!(line.call(), Some(&777));
        assert_eq!(next.until, at(now + HASTE));
        // Eight are in flight: one place comes free while one may wait.
        assert_eq!((gone(&mut line, now).len(), line.len()), (1, 1));
        assert_eq!((line.turn(last), line.turn(next)), (Turn::Go, Turn::Look));
        for who in 0..1000 {
            assert!(enter(&mut line, who, now + 0.01).is_some(), "the oldest makes room");
            assert_eq!(gone(&mut line, now + 0.01).len(), 1);
        }
        assert_eq!(gone(&mut line, now + 0.2), [999]);
    }

    #[test]
    fn where_requests_are_quick_a_moment_is_neither_overload_nor_its_end() {
        let millisecond = Duration::from_millis(1);
        let pace = Pace { sojourn: millisecond, in_flight: 8, wait: None };
        let at = |millis: u32| Time(1) + millisecond * millis;
        let mut line = Line::default();
        let mut last = line.enter(0, pace, at(0), at(0)).unwrap();
        assert_eq!(last.until, at(100));
        let mut millis = 0;
        while !line.hurried() {
            millis += 50;
            let next = line.enter(millis, pace, at(millis), at(millis)).unwrap();
            line.leave(last, false, at(millis));
            last = next;
        }
        assert_eq!(millis, 400);
        line.leave(last, true, at(400));
        // Nobody is turned away for a while, and then for longer.
        let next = line.enter(1, pace, at(460), at(460)).unwrap();
        line.leave(next, true, at(460));
        assert!(line.hurried());
        line.enter(2, pace, at(501), at(501)).unwrap();
        assert!(!line.hurried());
    }

    #[test]
    fn that_somebody_always_waits_hurries_nobody_as_long_as_all_are_served() {
        let mut line = Line::default();
        let mut last = enter(&mut line, 0, 0.0).unwrap();
        let mut wait = |served: bool, turn: u32| {
            let now = at(f64::from(turn) * 1.5);
            let next = line.enter(turn, PACE, now, now).unwrap();
            line.leave(last, served, now);
            last = next;
            line.hurried()
        };
        for turn in 1..100 {
            assert!(!wait(true, turn), "{turn}");
        }
        // One that was not, and it was no burst that kept it from it. One is not the last for long.
        assert!(wait(false, 100));
        let mut line = Line::default();
        let first = enter(&mut line, 0, 0.0).unwrap();
        line.leave(first, false, at(1.0));
        let mut last = enter(&mut line, 0, 1.0).unwrap();
        for turn in 1..100 {
            let now = 1.0 + f64::from(turn) * 1.5;
            let next = enter(&mut line, turn, now).unwrap();
            line.leave(last, true, at(now));
            last = next;
            assert!(!line.hurried(), "{turn}");
        }
    }

    #[test]
    fn who_cannot_wait_for_as_long_as_others_and_leaves_counts_as_well() {
        let mut line = Line::default();
        let mut last = enter(&mut line, 0, 0.0).unwrap();
        for turn in 1..100 {
            let now = f64::from(turn) * 0.2;
            let next = enter(&mut line, turn, now).unwrap();
            line.leave(last, turn % 3 > 0, at(now));
            last = next;
        }
        assert!(line.hurried(), "nobody has waited for long, and many in vain");
    }

    #[test]
    fn where_there_is_time_it_is_taken() {
        let aim = |sojourns: f64| Pace::new(SOJOURN, 8, Some(SOJOURN.mul_f64(sojourns)));
        let mut line = Line::default();
        let found = (0..1000).filter(|who| line.enter(*who, aim(11.0), at(0.0), at(0.0)).is_some()).count();
        assert_eq!(found, 80, "ten sojourns with eight places in each");
        assert_eq!((gone(&mut line, 9.99).len(), gone(&mut line, 10.01).len()), (0, 80));
        // What all of those that wait are through with is a burst, and four times that is none.
        let mut line = Line::default();
        let mut last = line.enter(0, aim(11.0), at(0.0), at(0.0)).unwrap();
        let mut now = 0.0;
        while !line.hurried() {
            now += 3.0;
            let next = line.enter(1, aim(11.0), at(now), at(now)).unwrap();
            line.leave(last, false, at(now));
            last = next;
            assert!(now < 1000.0, "it never hurries");
        }
        assert!((40.0..43.0).contains(&now), "after {now} sojourns");
        assert!(last.until <= at(now + 10.0) && line.patience() <= SOJOURN.mul_f64(HASTE));
        // Where the answer would come too late anyway nobody waits, and where nobody knows how long it takes.
        assert_eq!(Line::default().enter(0, aim(0.9), at(0.0), at(0.0)), None);
        let unknown = Pace::new(Duration::ZERO, 8, Some(SOJOURN));
        assert_eq!(Line::default().enter(0, unknown, at(0.0), at(0.0)), None);
    }

    #[test]
    fn it_takes_its_time_again_when_all_were_served_for_a_while() {
        let (mut line, last, mut now) = hurried();
        line.leave(last, true, at(now));
        while line.hurried() {
            let ticket = enter(&mut line, 1, now).unwrap();
            now += 0.1;
            line.leave(ticket, true, at(now));
            assert!(now < 3.0 * INTERVAL);
        }
        assert!(now > 2.0 * INTERVAL - 1.0, "until {now}");
        let (mut line, _, mut now) = hurried();
        for turn in 0..100 {
            // One in five is sent away.
            let ticket = enter(&mut line, turn, now).unwrap();
            now += 0.2;
            line.leave(ticket, turn % 5 > 0, at(now));
            assert!(line.hurried(), "{turn}");
        }
        now += 100.0;
        enter(&mut line, 0, now).unwrap();
        assert!(!line.hurried(), "nobody has been here for long");
    }
}
