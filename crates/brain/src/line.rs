//! Those that wait for room where every member has as many requests as it can work on: for how long, and who goes
//! first.
//!
//! A place comes free within a fraction of the time that a request takes, so that whoever is turned away at the
//! moment at which all happen to be full is turned away for nothing. But a queue that never empties while some wait in vain serves nobody
//! better: all wait, and no more are served than without it. So there are two moods, as in controlled delay (Nichols
//! and Jacobson 2012) with adaptive last-in first-out (Maurer, Fail at Scale, 2015), both without a number to set:
//! time is measured in *sojourns*, the time that a request takes with the members.
//!
//! * **Patient**: the first to come is the first to go, and each may wait for [`PATIENCE`] sojourns, but for [`UNNOTICED`] at least:
//!   where requests take milliseconds, servers that stand still for a moment would have all refused. Neighbours that take half of
//!   some members' speed for a second or two make a queue of several sojourns that nobody need be refused for. In a sojourn as
//!   many places come free as there are requests in flight; so a newcomer that finds as many waiting as will come free
//!   within its patience is turned away at once: it would wait in vain. Where none is in flight it counts as one: what the members
//!   have may have come from others. Where many places come free at once a line may be empty now and then, and yet more be asked for than can be
//!   done. So with each [`BURST`] through which some are turned away, without a pause as long as that, newcomers may wait for half as long, down
//!   to two sojourns; and for twice as long again with [`EASE`] sojourns in which nobody is.
//! * **Hurried**, once somebody has waited at every moment of as long as one may wait, and of a [`BURST`] and [`CALM`] sojourns, and
//!   somebody was not served in that time: the last to come is the first to go, and each may wait for [`HASTE`] of a
//!   sojourn, or for [`RELIEVED`] while less urgent ones that waited are served. What is served is fresh, what is not is told so
//!   quickly, and there is still somebody there when a place comes free. A newcomer takes the place of the oldest. It ends with [`CALM`] sojourns, of [`UNNOTICED`] at least, in which nobody was turned away.
//!
//! That somebody always waits is no overload by itself: so do clients that ask again as soon as they are answered, a few more than members can
//! work on. In order of arrival each waits for a moment and is served.
//!
//! Where it is known within what time clients want their answers, the patient wait for as long as theirs can still come in time,
//! whether that is more or less than so; none wait where it is too late already. Haste is as it is.
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
    /// Is the sojourn what is seen of the members, as none was heard to say it?
    pub silent: bool,
}

impl Pace {
    /// Of requests that take `sojourn` with the members, where answers are wanted within `objective`.
    pub fn new(sojourn: Duration, in_flight: u32, objective: Option<Duration>) -> Self {
        let wait = objective.map(|objective| objective.saturating_sub(sojourn));
        Self { sojourn, in_flight, wait, silent: false }
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
    /// Were less urgent ones served lately that had waited?
    relieved: bool,
    /// When one left last that was served.
    served: Option<Time>,
    /// When one came last that found no room.
    came: Option<Time>,
    /// Since when somebody waits without a break, or in haste, since when nobody was turned away.
    since: Time,
    /// When somebody left last who was not served, or would have waited in vain.
    lost: Option<Time>,
    /// How often the wait is halved.
    halved: u8,
    /// When somebody was turned away last; and since when that never stopped for a burst, or when the wait was halved or doubled last.
    refused: Option<Time>,
    losing: Time,
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
            relieved: false,
            served: None,
            came: None,
            since: Time(0),
            lost: None,
            halved: 0,
            refused: None,
            losing: Time(0),
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
        let patience = self.patience();
        let (until, room) = (since + patience, self.room(patience));
        // In haste it takes the place of the oldest, if there is one to take.
        let full = room == 0 || (!self.hurried && self.waiters.len() >= room);
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
        if served {
            self.served = Some(now);
        }
        if !served && now >= ticket.until {
            self.turned_away(now);
        } else if !served {
            self.lost = Some(now);
        }
        self.judge(now);
        called
    }

    /// The next one whose wait is over: to be told that it is to go. Call until there is none.
    pub fn dismiss(&mut self, now: Time) -> Option<T> {
        let first = self.waiters.front()?;
        // That the wait was halved is for those that come. Who comes later may have to go sooner: by what its ticket says.
        let patience = self.patience_of(0);
        let late = now >= first.ticket.until.min(first.came + patience);
        if !late && self.waiters.len() <= self.room(patience) {
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
        self.patience_of(self.halved)
    }

    /// The same, were it halved so often.
    fn patience_of(&self, halved: u8) -> Duration {
        let sojourn = self.sojourn();
        match self.pace.wait {
            // Nobody knows when a place comes free.
            _ if sojourn.is_zero() => Duration::ZERO,
            None if self.hurried => sojourn.mul_f64(self.haste()),
            None => {
                let longest = sojourn.mul_f64(PATIENCE).clamp(UNNOTICED, ENOUGH.max(sojourn * 2));
                (longest / (1 << halved)).max(UNNOTICED).max(sojourn * 2)
            }
            Some(wait) if self.hurried => wait.min(sojourn.mul_f64(self.haste())),
            Some(wait) => wait,
        }
    }

    /// Sojourns that one may wait in haste.
    fn haste(&self) -> f64 {
        if self.relieved { RELIEVED } else { HASTE }
    }

    /// How many places come free for these within this time; at least one, if nobody goes before
    /// them. That nothing is in flight from here is chance, and says little of the time to come.
    fn room(&self, patience: Duration) -> usize {
        let sojourns = patience.as_secs_f64() / self.pace.sojourn.as_secs_f64().max(1e-9);
        let free = (libm::ceil(f64::from(self.pace.in_flight.max(1)) * sojourns) as usize).max(1);
        free.saturating_sub(self.ahead)
    }

    fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
    }

    /// What times are measured in.
    fn sojourn(&self) -> Duration {
        self.pace.sojourn.min(LONGEST)
    }

    /// What is no burst; in haste, what is long enough to see that it is over.
    fn interval(&self) -> Duration {
        if self.hurried { self.calm() } else { self.burst().max(self.calm()).max(self.patience()) }
    }

    fn calm(&self) -> Duration {
        self.sojourn().mul_f64(CALM).max(UNNOTICED)
    }

    fn ease(&self) -> Duration {
        self.sojourn().mul_f64(EASE).max(ENOUGH)
    }

    fn burst(&self) -> Duration {
        self.sojourn().mul_f64(BURST).clamp(MOMENT, ENOUGH * 2)
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
        let ease = self.ease();
        while self.halved > 0 {
            let calm = self.losing.max(self.refused.unwrap_or(Time(0)));
            if now.since(calm) < ease {
                break;
            }
            self.halved -= 1;
            self.losing = calm + ease;
        }
    }

    /// Somebody is turned away. Where that goes on for longer than a burst, that those who are served wait for long helps hardly anybody.
    fn refuse(&mut self, now: Time) {
        let burst = self.burst();
        if self.refused.is_none_or(|refused| now.since(refused) >= burst) {
            self.losing = now;
        } else if now.since(self.losing) >= burst {
            self.losing = now;
            self.halved = (self.halved + 1).min(HALVED);
        }
        self.refused = Some(now);
    }

    fn turned_away(&mut self, now: Time) {
        self.refuse(now);
        self.lost = Some(now);
        if self.hurried {
            self.since = now;
        }
    }

    fn place(&self, ticket: Ticket) -> Option<usize> {
        self.waiters.binary_search_by_key(&ticket.number, |waiter| waiter.ticket.number).ok()
    }
}

/// Sojourns that one may wait where the line empties now and then. (Twenty balancers before twenty small members with neighbours, simulated:
/// with eight 0.22 % is refused at 95 % of the capacity, with sixteen 0.20 %, and the 99th percentile, a refusal counted as three seconds, is
/// 840 and 680 ms; in overload requests take as long.)
const PATIENCE: f64 = 16.0;

/// Sojourns where it does not.
const HASTE: f64 = 0.125;

/// The same for those whose places less urgent ones get. (A fifth urgent, twenty balancers, 130 %, simulated: with an eighth, a half, one
/// and two sojourns 1.26, 1.04, 0.96 and 0.88 % of the urgent are refused; their 99th percentile is 193 to 196 ms with each.)
const RELIEVED: f64 = 2.0;

/// How often [`PATIENCE`] is halved at most. (Two groups on the same hosts at 105 % for 15 s, simulated: with sixteen all the time the 99th percentile
/// is 37 times the work of a request, with two at last it is 26.) Never to less than [`UNNOTICED`], or two sojourns.
const HALVED: u8 = 3;

/// Sojourns without anybody turned away after which it is doubled, but [`ENOUGH`] at least.
const EASE: f64 = 64.0;

/// What nobody notices, and every server stands still for now and then: one may wait for that, however quick requests are.
const UNNOTICED: Duration = Duration::from_millis(100);

/// Nobody knows how long a client waits, and few wait for much longer than this; or, where requests take long themselves, for more than
/// twice as long as they take.
const ENOUGH: Duration = Duration::from_secs(1);

/// A sojourn that takes longer counts as this, but for how many places come free.
const LONGEST: Duration = Duration::from_secs(1);

/// Sojourns in which a burst is over: as many as may wait at once are served by then. Twice [`ENOUGH`] is none, unless that is less than
/// [`CALM`].
const BURST: f64 = PATIENCE;

/// What is shorter is no overload, however quick requests are: servers may stand still more than once.
const MOMENT: Duration = Duration::from_millis(400);

/// Sojourns without anybody turned away after which haste is over, and less than which is no overload.
const CALM: f64 = 8.0;

#[cfg(test)]
mod tests;
