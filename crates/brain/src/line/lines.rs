//! Lines of requests that are not equally urgent.
//!
//! Each urgency has a [`Line`] of its own, and the most urgent that waits is told first of a place that came free. So it
//! waits as if those below it were not there; and whether it is the first or the last to come that goes first is its
//! line's own mood. Where less urgent work is more than can be done, that waits in haste and is turned away, while the
//! urgent, of which there is little, waits its turn, for as long as anybody may in quiet times: in the hurry of the
//! others it would be turned away for nothing. Should it be too much itself, it hurries as well, but with more time while less urgent ones that
//! waited are served: it may have their places. This is shedding by priority (Zhou and others, Overload control for
//! scaling WeChat microservices, 2018) without a threshold between those that get in and those that do not: the places
//! that come free are the threshold.
//!
//! Those that go first take places that others would have had. So a line holds no more than what is left of the places
//! that come free within its patience, and urgent newcomers push out the oldest of the least urgent. A newcomer that is
//! outranked by one that waits must not take the place that is to come free for that one ([`Lines::outranked`]).
//!
//! Where members say nothing, and it is not known when answers are wanted, the least urgent do not wait, as nobody does where all are alike: with
//! somebody there for every place that comes free, members have as many at every moment as they may have, and all take longer.
//!
//! Where all are equally urgent this is one line and nothing else; before members that say nothing it is none, unless it is known when
//! answers are wanted.

use alloc::collections::BTreeMap;
use core::ops::Bound;

use super::{Line, Pace, Ticket, Turn};
use crate::Time;

/// How urgent a request is: from 0, the most urgent, to 7 (RFC 9218 section 4.1). The default is 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Urgency(u8);

impl Urgency {
    /// How many there are.
    pub const COUNT: usize = 8;

    /// `None` above 7.
    pub fn new(urgency: u8) -> Option<Self> {
        (usize::from(urgency) < Self::COUNT).then_some(Self(urgency))
    }

    /// 0 to 7.
    pub fn value(self) -> u8 {
        self.0
    }
}

impl Default for Urgency {
    fn default() -> Self {
        Self(3)
    }
}

/// Who waits, by urgency. It belongs to one group; what it keeps is bounded as in a [`Line`].
#[derive(Clone, Debug)]
pub struct Lines<T> {
    /// Those that ever found no room, the most urgent first.
    lines: BTreeMap<Urgency, Line<T>>,
}

impl<T> Default for Lines<T> {
    fn default() -> Self {
        Self { lines: BTreeMap::new() }
    }
}

impl<T> Lines<T> {
    /// See [`Line::enter`]. One that does not know how quickly places come free does not wait; nor do the least urgent where members say nothing
    /// and it is not known when answers are wanted.
    pub fn enter(&mut self, urgency: Urgency, who: T, pace: Pace, since: Time, now: Time) -> Option<Ticket> {
        self.lines.entry(urgency).or_default().came = Some(now);
        if pace.sojourn.is_zero() {
            return None;
        }
        // How quickly places come free is the same for all.
        self.lines.values_mut().for_each(|line| line.set_pace(pace));
        self.compare(now);
        if pace.silent && pace.wait.is_none() && !self.outranks(urgency, now) {
            return None;
        }
        let ticket = self.lines.get_mut(&urgency)?.enter(who, pace, since, now)?;
        Some(Ticket { urgency, ..ticket })
    }

    /// See [`Line::call`].
    pub fn call(&mut self) -> Option<&T> {
        self.lines.values_mut().find_map(Line::call)
    }

    /// See [`Line::turn`].
    pub fn turn(&mut self, ticket: Ticket) -> Turn {
        self.lines.get_mut(&ticket.urgency).map_or(Turn::Go, |line| line.turn(ticket))
    }

    /// See [`Line::leave`].
    pub fn leave(&mut self, ticket: Ticket, served: bool, now: Time) -> bool {
        self.lines.get_mut(&ticket.urgency).is_some_and(|line| line.leave(ticket, served, now))
    }

    /// See [`Line::dismiss`].
    pub fn dismiss(&mut self, now: Time) -> Option<T> {
        self.compare(now);
        self.lines.values_mut().find_map(|line| line.dismiss(now))
    }

    /// Does anybody wait that is more urgent than this?
    pub fn outranked(&self, urgency: Urgency) -> bool {
        self.lines.range(..urgency).any(|(_, line)| !line.is_empty())
    }

    /// Did anybody find no room lately that is less urgent than this?
    fn outranks(&self, urgency: Urgency, now: Time) -> bool {
        let lately = |line: &Line<T>| line.came.is_some_and(|came| now.since(came) < line.ease());
        self.lines.range((Bound::Excluded(urgency), Bound::Unbounded)).any(|(_, line)| lately(line))
    }

    /// How urgent the most urgent is of those that wait. `None` if nobody does, and where nobody ever was more or less
    /// urgent than others.
    pub fn first(&self) -> Option<Urgency> {
        let told_apart = self.lines.len() > 1 || !self.lines.contains_key(&Urgency::default());
        let waits = |(urgency, line): (&Urgency, &Line<T>)| (!line.is_empty()).then_some(*urgency);
        if told_apart { self.lines.iter().find_map(waits) } else { None }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.lines.values().map(Line::len).sum()
    }

    /// Does nobody wait?
    pub fn is_empty(&self) -> bool {
        self.lines.values().all(Line::is_empty)
    }

    /// Is there more to do, of this urgency, than can be done?
    pub fn hurried(&self, urgency: Urgency) -> bool {
        self.lines.get(&urgency).is_some_and(Line::hurried)
    }

    /// Tells each line how many go before all of it, and whether those after it are served.
    fn compare(&mut self, now: Time) {
        let mut ahead = 0;
        for line in self.lines.values_mut() {
            line.ahead = ahead;
            ahead += line.len();
        }
        let mut served: Option<Time> = None;
        for line in self.lines.values_mut().rev() {
            line.relieved = served.is_some_and(|served| now.since(served) < line.calm());
            served = served.max(line.served);
        }
    }
}
