//! What a daemon remembers of requests: that it answered one, and how; that another did.
//!
//! A table of eight places to a row: it needs no collecting, and a request costs the look at one row. The row comes from a keyed
//! hash, as clients choose their ids. Where a row is full the oldest goes, which is counted if it has not lived for its span.
//!
//! It begins small and follows the rate: when one in sixteen of those that come takes the place of one before its
//! time, a table of twice the size is made, and filled from the one before: a few rows with each request that comes,
//! so that none waits for it. It never grows beyond its bound, nor shrinks: who was asked so much once will be again.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::message::{FURTHER, Status};
use super::sip::Key;
use crate::Time;

/// Places in a row.
const WAYS: usize = 8;

/// Records that there is room for to begin with.
const FIRST: usize = 1 << 16;

/// Rows of a larger table that are made with each request, and rows that are moved there: so it is done in as many requests as there
/// were rows, and could be done again before it is full.
const MADE: usize = 4;
const MOVED: usize = 2;

/// It grows if one in so many took the place of one before its time.
const CROWDED: usize = 16;

/// A request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) id: u64,
    /// Where it was first heard of.
    pub(super) since: Time,
    /// Who committed to it last, 0 for nobody, and how many microseconds after that.
    by: u16,
    by_after: u32,
    /// Who was to answer first when it came, 0 if that could not be told.
    first: u16,
    /// What was said.
    pub(super) said: Option<Said>,
    /// The greatest seen.
    pub(super) attempt: u8,
}

impl Record {
    /// Who committed to it last, and when, to the microsecond.
    pub(super) fn by(&self) -> Option<(u16, Time)> {
        (self.by != 0).then(|| (self.by, self.since + Duration::from_micros(self.by_after.into())))
    }

    /// `member` commits to it.
    pub(super) fn commit(&mut self, member: u16, now: Time) {
        self.by = member;
        self.by_after = u32::try_from(now.since(self.since).as_micros()).unwrap_or(u32::MAX);
    }

    /// `member` was to answer first when it came.
    pub(super) fn expect(&mut self, member: Option<u16>) {
        self.first = member.unwrap_or(0);
    }

    /// Was it `member` who was to answer first? It is not known any more then.
    pub(super) fn expected(&mut self, member: u16) -> bool {
        core::mem::take(&mut self.first) == member
    }
}

/// What an answer is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) status: Status,
    pub(super) rank: u8,
    pub(super) member: u16,
    pub(super) further: [u16; FURTHER],
    pub(super) count: u8,
}

type Row = [Option<Record>; WAYS];

#[derive(Clone, Debug)]
pub(super) struct Memory {
    /// A power of two of them.
    rows: Vec<Row>,
    /// The table before, and how many of its rows were moved.
    old: Option<(Vec<Row>, usize)>,
    /// The next one, while it is made.
    next: Vec<Row>,
    /// Requests that came since it was last asked whether there is room, and what was forgotten up to then.
    came: usize,
    before: u64,
    /// Most rows.
    most: usize,
    key: Key,
    span: Duration,
    /// Records that had to go before their time.
    pub(super) forgotten: u64,
}

impl Memory {
    /// For up to about as many `records`, for `span` each.
    pub(super) fn new(key: Key, records: usize, span: Duration) -> Self {
        let most = records.div_ceil(WAYS).next_power_of_two();
        let rows = vec![[None; WAYS]; most.min(FIRST / WAYS)];
        Self { rows, old: None, next: Vec::new(), came: 0, before: 0, most, key, span, forgotten: 0 }
    }

    /// Records that there is room for.
    pub(super) fn room(&self) -> usize {
        self.rows.len() * WAYS
    }

    pub(super) fn find(&mut self, now: Time, id: u64) -> Option<&mut Record> {
        let hash = self.hash(id);
        let at = place(&self.rows, hash, now, id, self.span);
        let at = match at {
            Some(at) => at,
            None => self.moved(hash, now, id)?,
        };
        row(&mut self.rows, hash)[at].as_mut()
    }

    /// The record of a request, made if there is none.
    pub(super) fn enter(&mut self, now: Time, id: u64) -> &mut Record {
        self.grow(now);
        let hash = self.hash(id);
        let at = place(&self.rows, hash, now, id, self.span).or_else(|| self.moved(hash, now, id));
        let at = at.unwrap_or_else(|| {
            self.came += 1;
            self.vacate(hash, now)
        });
        row(&mut self.rows, hash)[at].get_or_insert(Record {
            id,
            since: now,
            by: 0,
            by_after: 0,
            first: 0,
            said: None,
            attempt: 0,
        })
    }

    fn hash(&self, id: u64) -> u64 {
        self.key.hash(&id.to_be_bytes())
    }

    /// The place in this table of what was found in the one before.
    fn moved(&mut self, hash: u64, now: Time, id: u64) -> Option<usize> {
        let (old, _) = self.old.as_mut()?;
        let from = place(old, hash, now, id, self.span)?;
        let record = row(old, hash)[from].take();
        let at = self.vacate(hash, now);
        row(&mut self.rows, hash)[at] = record;
        Some(at)
    }

    /// An empty place of a row, else that of the oldest, which goes.
    fn vacate(&mut self, hash: u64, now: Time) -> usize {
        let row = row(&mut self.rows, hash);
        let age = |place: &Option<Record>| place.map_or(0, |record| record.since.0.saturating_add(1));
        let at = (0..WAYS).min_by_key(|at| age(&row[*at])).unwrap_or(0);
        if let Some(gone) = row[at].take() {
            self.forgotten += u64::from(now.since(gone.since) <= self.span);
        }
        at
    }

    /// Makes a few rows of a larger table if one is wanted, puts it in the place of the one before, and moves what that has.
    fn grow(&mut self, now: Time) {
        if let Some((old, moved)) = &mut self.old {
            let until = (*moved + MOVED).min(old.len());
            let records: [Row; MOVED] = core::array::from_fn(|at| {
                old.get_mut(*moved + at).map_or([None; WAYS], |row| core::mem::replace(row, [None; WAYS]))
            });
            *moved = until;
            if until == old.len() {
                self.old = None;
            }
            for record in records.into_iter().flatten().flatten() {
                self.keep(now, record);
            }
        } else if self.next.capacity() > 0 {
            let wanted = self.rows.len() * 2;
            self.next.resize((self.next.len() + MADE).min(wanted), [None; WAYS]);
            if self.next.len() == wanted {
                let next = core::mem::take(&mut self.next);
                self.old = Some((core::mem::replace(&mut self.rows, next), 0));
                (self.came, self.before) = (0, self.forgotten);
            }
        } else if self.came >= self.rows.len() {
            if (self.forgotten - self.before) as usize * CROWDED > self.came && self.rows.len() < self.most {
                self.next = Vec::with_capacity(self.rows.len() * 2);
            }
            (self.came, self.before) = (0, self.forgotten);
        }
    }

    /// One of the table before, if there is a place that is empty: others that came since are younger.
    fn keep(&mut self, now: Time, record: Record) {
        if now.since(record.since) > self.span {
            return;
        }
        let hash = self.hash(record.id);
        match row(&mut self.rows, hash).iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(record),
            None => self.forgotten += 1,
        }
    }
}

fn row(rows: &mut [Row], hash: u64) -> &mut Row {
    // A power of two of them.
    let index = hash as usize & (rows.len() - 1);
    &mut rows[index]
}

/// Where in its row the record of a request is.
fn place(rows: &[Row], hash: u64, now: Time, id: u64, span: Duration) -> Option<usize> {
    let row = &rows[hash as usize & (rows.len() - 1)];
    let it = |record: &Record| record.id == id && now.since(record.since) <= span;
    row.iter().position(|place| place.as_ref().is_some_and(it))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Duration = Duration::from_secs(10);

    #[test]
    fn a_request_is_remembered_for_its_span() {
        let mut memory = Memory::new(Key::new([7; 16]), 1000, SPAN);
        memory.enter(Time(5), 1).attempt = 3;
        assert_eq!(memory.find(Time(5) + SPAN, 1).map(|record| record.attempt), Some(3));
        assert!(memory.find(Time(6) + SPAN, 1).is_none());
        assert_eq!(memory.enter(Time(6) + SPAN, 1).attempt, 0, "a new one");
        assert_eq!(memory.forgotten, 0);
    }

    #[test]
    fn who_committed_is_known_to_the_microsecond() {
        let mut memory = Memory::new(Key::new([7; 16]), 1000, SPAN);
        let record = memory.enter(Time(5_000), 1);
        assert_eq!(record.by(), None);
        record.commit(65_535, Time(7_499));
        record.expect(Some(9));
        assert_eq!(record.by(), Some((65_535, Time(7_000))));
        assert!(record.expected(9) && !record.expected(9));
    }

    #[test]
    fn beyond_its_bound_the_oldest_goes() {
        let mut memory = Memory::new(Key::new([7; 16]), 1024, SPAN);
        for id in 0..10_000 {
            memory.enter(Time(id), id);
        }
        assert!(memory.room() == 1024 && memory.old.is_none() && size_of::<Option<Record>>() <= 40);
        assert!((8_976..9_400).contains(&memory.forgotten), "{}", memory.forgotten);
        assert!((9_900..10_000).all(|id| memory.find(Time(10_000), id).is_some()));
    }

    /// Asked so often for 25 s from nothing on. Of what came when the rate was known: the share that was forgotten before its time, and
    /// the share that was not known any more 1.3 s later, when a client asks for the last time.
    fn asked(rate: u64, most: usize) -> (Memory, f64, f64) {
        let mut memory = Memory::new(Key::new([7; 16]), most, SPAN);
        let at = |turn: u64| Time(turn * 1_000_000_000 / rate);
        let (mut before, mut unknown) = (0, 0);
        for turn in 0..25 * rate {
            memory.enter(at(turn), turn).attempt = turn as u8;
            if let Some(again) = turn.checked_sub(rate * 13 / 10).filter(|again| *again > 2 * rate) {
                let known = memory.find(at(turn), again).map(|record| record.attempt);
                unknown += u64::from(known != Some(again as u8));
            }
            if turn == 12 * rate {
                before = memory.forgotten;
            }
        }
        let share = (memory.forgotten - before) as f64 / (13 * rate) as f64;
        (memory, share, unknown as f64 / (23 * rate) as f64)
    }

    #[test]
    fn it_follows_the_rate() {
        let most = 1 << 21;
        let (quiet, forgotten, _) = asked(100, most);
        assert_eq!((quiet.room(), quiet.forgotten, forgotten), (FIRST, 0, 0.0), "little is asked");
        let (usual, forgotten, unknown) = asked(13_000, most);
        assert!(usual.room() == 1 << 18 && forgotten < 0.0625 && unknown < 1e-3, "{forgotten} {unknown}");
        // In ten seconds 1.5 million requests, the target of a core: those that go before their time are old.
        let (busy, forgotten, unknown) = asked(150_000, most);
        assert!(busy.room() == most && forgotten < 0.25 && unknown < 1e-3, "{forgotten} {unknown}");
        // With less room less is known, and no more is taken.
        let (bound, forgotten, _) = asked(30_000, 1 << 16);
        assert!(bound.room() == 1 << 16 && forgotten > 0.7 && bound.old.is_none(), "{forgotten}");
    }

    #[test]
    fn what_is_known_is_known_while_it_grows() {
        let mut memory = Memory::new(Key::new([7; 16]), 1 << 20, SPAN);
        let (mut now, mut next, mut unknown) = (Time(0), 0, 0);
        while memory.room() < 1 << 19 || memory.old.is_some() {
            memory.enter(now, next).commit(7, now);
            (now, next) = (now + Duration::from_micros(20), next + 1);
            // While a table is being made, while it is filled, and then.
            for back in [1, 1000, 10_000] {
                let known =
                    next.checked_sub(back).map(|id| memory.find(now, id).and_then(|record| record.by()));
                unknown += u64::from(known == Some(None));
            }
        }
        assert!(unknown < next / 1000, "{unknown} of {next}");
        assert!(memory.forgotten < next / 10, "{} of {next}", memory.forgotten);
    }
}
