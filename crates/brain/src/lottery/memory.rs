//! What a daemon remembers of requests: that it answered one, and how; that another did.
//!
//! A table of fixed size, eight places to a row: it never grows, needs no collecting, and a request costs the look at one
//! row. The row comes from a keyed hash, as clients choose their ids. Where a row is full the oldest goes, which is
//! counted if it has not lived for its span.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::message::{FURTHER, Status};
use super::sip::Key;
use crate::Time;

/// Places in a row.
const WAYS: usize = 8;

/// A request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) id: u64,
    /// Where it was first heard of.
    pub(super) since: Time,
    /// The greatest seen.
    pub(super) attempt: u8,
    /// Who was to answer first when it came, if that could be told.
    pub(super) first: Option<u16>,
    /// Who committed to it last, and when.
    pub(super) by: Option<(u16, Time)>,
    /// What was said.
    pub(super) said: Option<Said>,
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

#[derive(Clone, Debug)]
pub(super) struct Memory {
    rows: Vec<[Option<Record>; WAYS]>,
    key: Key,
    span: Duration,
    /// Records that had to go before their time.
    pub(super) forgotten: u64,
}

impl Memory {
    /// For at least `records` of them, for `span` each.
    pub(super) fn new(key: Key, records: usize, span: Duration) -> Self {
        let rows = records.div_ceil(WAYS).next_power_of_two();
        Self { rows: vec![[None; WAYS]; rows], key, span, forgotten: 0 }
    }

    pub(super) fn find(&mut self, now: Time, id: u64) -> Option<&mut Record> {
        let span = self.span;
        self.row(id).iter_mut().flatten().find(|record| record.id == id && now.since(record.since) <= span)
    }

    /// The record of a request, made if there is none.
    pub(super) fn enter(&mut self, now: Time, id: u64) -> &mut Record {
        let span = self.span;
        let fresh = |record: &Record| now.since(record.since) <= span;
        let row = self.row(id);
        let at = row.iter().position(|place| place.is_some_and(|record| record.id == id && fresh(&record)));
        let at = at.unwrap_or_else(|| {
            // An empty place, else the oldest.
            let age = |place: &Option<Record>| place.map_or(0, |record| record.since.0.saturating_add(1));
            (0..WAYS).min_by_key(|at| age(&row[*at])).unwrap_or(0)
        });
        let place = &mut row[at];
        let mut early = false;
        if place.is_none_or(|record| record.id != id || !fresh(&record)) {
            early = place.is_some_and(|record| fresh(&record));
            *place = None;
        }
        self.forgotten += u64::from(early);
        self.row(id)[at].get_or_insert(Record {
            id,
            since: now,
            attempt: 0,
            first: None,
            by: None,
            said: None,
        })
    }

    fn row(&mut self, id: u64) -> &mut [Option<Record>; WAYS] {
        // A power of two of them.
        let index = self.key.hash(&id.to_be_bytes()) as usize & (self.rows.len() - 1);
        &mut self.rows[index]
    }
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
    fn it_never_grows_and_the_oldest_goes() {
        let mut memory = Memory::new(Key::new([7; 16]), 1024, SPAN);
        for id in 0..10_000 {
            memory.enter(Time(id), id);
        }
        assert!(memory.rows.len() * WAYS == 1024 && size_of::<Option<Record>>() <= 80);
        assert!((8_976..9_400).contains(&memory.forgotten), "{}", memory.forgotten);
        assert!((9_900..10_000).all(|id| memory.find(Time(10_000), id).is_some()));
    }
}
