//! A daemon's memory of requests: its own answers, and those of others.
//!
//! It is a table with eight places in a row. It needs no collection, and a request costs the look at one row.
//! The row comes from a keyed hash, as clients choose their ids. In a full row the oldest entry is replaced,
//! which is counted if it has not lived for its span.
//!
//! It begins small and follows the rate: when one in sixteen requests replaces an unexpired one, a table of
//! twice the size is made and filled from the previous one. Each request does a few rows of that, so that
//! none waits for it. It never grows beyond its bound, and never shrinks: a rate that occurred once is likely
//! to occur again.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::message::{AnswerStatus, MAX_FALLBACKS};
use super::siphash::SipHashKey;
use crate::Time;

/// The places in a row.
const WAYS: usize = 8;

/// The initial number of records.
const INITIAL_RECORDS: usize = 1 << 16;

/// The rows of a larger table that each request makes, and those that it moves. So growing takes as many
/// requests as there were rows, and the next growth can begin before the table is full.
const ROWS_ALLOCATED: usize = 4;
const ROWS_MIGRATED: usize = 2;

/// The inverse of the share of unexpired replacements from which it grows.
const GROWTH_THRESHOLD: usize = 16;

/// A request.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestRecord {
    pub(super) id: u64,
    /// The time of its first message.
    pub(super) since: Time,
    /// The member that committed to it last, 0 for none, and the microseconds until that.
    committed_by: u16,
    committed_after: u32,
    /// The member that was to answer first when it arrived, 0 if unknown.
    expected_first: u16,
    /// The given answer.
    pub(super) answer: Option<AnswerContent>,
    /// The greatest attempt seen.
    pub(super) attempt: u8,
}

impl RequestRecord {
    /// Returns the member that committed to it last, and when, to the microsecond.
    pub(super) fn committed_by(&self) -> Option<(u16, Time)> {
        (self.committed_by != 0)
            .then(|| (self.committed_by, self.since + Duration::from_micros(self.committed_after.into())))
    }

    /// Records that `member` commits to it.
    pub(super) fn record_commit(&mut self, member: u16, now: Time) {
        self.committed_by = member;
        self.committed_after = u32::try_from(now.since(self.since).as_micros()).unwrap_or(u32::MAX);
    }

    /// Records that `member` was to answer first when it arrived.
    pub(super) fn set_expected(&mut self, member: Option<u16>) {
        self.expected_first = member.unwrap_or(0);
    }

    /// Returns `true` if `member` was to answer first, and forgets that.
    pub(super) fn take_expected(&mut self, member: u16) -> bool {
        core::mem::take(&mut self.expected_first) == member
    }
}

/// The content of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AnswerContent {
    pub(super) status: AnswerStatus,
    pub(super) rank: u8,
    pub(super) member: u16,
    pub(super) fallbacks: [u16; MAX_FALLBACKS],
    pub(super) count: u8,
}

type RecordRow = [Option<RequestRecord>; WAYS];

#[derive(Clone, Debug)]
pub(super) struct DedupCache {
    /// The rows, a power of two of them.
    rows: Vec<RecordRow>,
    /// The previous table, and the number of its rows that were moved.
    previous: Option<(Vec<RecordRow>, usize)>,
    /// The next table, while it is made.
    next: Vec<RecordRow>,
    /// The requests since the last check of the room, and the number forgotten up to then.
    requests_since_check: usize,
    forgotten_before: u64,
    /// The maximum number of rows.
    max_rows: usize,
    key: SipHashKey,
    span: Duration,
    /// The records that were replaced before their time.
    pub(super) forgotten: u64,
}

impl DedupCache {
    /// Returns a cache for up to about `records`, for `span` each.
    pub(super) fn new(key: SipHashKey, records: usize, span: Duration) -> Self {
        let max_rows = records.div_ceil(WAYS).next_power_of_two();
        let rows = vec![[None; WAYS]; max_rows.min(INITIAL_RECORDS / WAYS)];
        Self {
            rows,
            previous: None,
            next: Vec::new(),
            requests_since_check: 0,
            forgotten_before: 0,
            max_rows,
            key,
            span,
            forgotten: 0,
        }
    }

    /// Returns the number of records that there is room for.
    pub(super) fn capacity(&self) -> usize {
        self.rows.len() * WAYS
    }

    pub(super) fn find(&mut self, now: Time, id: u64) -> Option<&mut RequestRecord> {
        let hash = self.hash(id);
        let slot = find_slot(&self.rows, hash, now, id, self.span);
        let slot = match slot {
            Some(slot) => slot,
            None => self.migrated_slot(hash, now, id)?,
        };
        row(&mut self.rows, hash)[slot].as_mut()
    }

    /// Returns the record of a request, which is made if there is none.
    pub(super) fn find_or_insert(&mut self, now: Time, id: u64) -> &mut RequestRecord {
        self.grow(now);
        let hash = self.hash(id);
        let slot =
            find_slot(&self.rows, hash, now, id, self.span).or_else(|| self.migrated_slot(hash, now, id));
        let slot = slot.unwrap_or_else(|| {
            self.requests_since_check += 1;
            self.free_slot(hash, now)
        });
        row(&mut self.rows, hash)[slot].get_or_insert(RequestRecord {
            id,
            since: now,
            committed_by: 0,
            committed_after: 0,
            expected_first: 0,
            answer: None,
            attempt: 0,
        })
    }

    fn hash(&self, id: u64) -> u64 {
        self.key.hash(&id.to_be_bytes())
    }

    /// Returns the place in this table of a record found in the previous one.
    fn migrated_slot(&mut self, hash: u64, now: Time, id: u64) -> Option<usize> {
        let (previous_rows, _) = self.previous.as_mut()?;
        let previous_slot = find_slot(previous_rows, hash, now, id, self.span)?;
        let record = row(previous_rows, hash)[previous_slot].take();
        let slot = self.free_slot(hash, now);
        row(&mut self.rows, hash)[slot] = record;
        Some(slot)
    }

    /// Returns an empty place of a row, or else that of the oldest record, which is removed.
    fn free_slot(&mut self, hash: u64, now: Time) -> usize {
        let row = row(&mut self.rows, hash);
        let age = |slot: &Option<RequestRecord>| slot.map_or(0, |record| record.since.0.saturating_add(1));
        let slot = (0..WAYS).min_by_key(|slot| age(&row[*slot])).unwrap_or(0);
        if let Some(evicted) = row[slot].take() {
            self.forgotten += u64::from(now.since(evicted.since) <= self.span);
        }
        slot
    }

    /// Makes a few rows of a larger table if one is needed, replaces the previous one, and moves its records.
    fn grow(&mut self, now: Time) {
        if let Some((previous_rows, migrated)) = &mut self.previous {
            let end = (*migrated + ROWS_MIGRATED).min(previous_rows.len());
            let records: [RecordRow; ROWS_MIGRATED] = core::array::from_fn(|offset| {
                previous_rows
                    .get_mut(*migrated + offset)
                    .map_or([None; WAYS], |row| core::mem::replace(row, [None; WAYS]))
            });
            *migrated = end;
            if end == previous_rows.len() {
                self.previous = None;
            }
            for record in records.into_iter().flatten().flatten() {
                self.migrate_record(now, record);
            }
        } else if self.next.capacity() > 0 {
            let target_len = self.rows.len() * 2;
            self.next.resize((self.next.len() + ROWS_ALLOCATED).min(target_len), [None; WAYS]);
            if self.next.len() == target_len {
                let next = core::mem::take(&mut self.next);
                self.previous = Some((core::mem::replace(&mut self.rows, next), 0));
                (self.requests_since_check, self.forgotten_before) = (0, self.forgotten);
            }
        } else if self.requests_since_check >= self.rows.len() {
            if (self.forgotten - self.forgotten_before) as usize * GROWTH_THRESHOLD
                > self.requests_since_check
                && self.rows.len() < self.max_rows
            {
                self.next = Vec::with_capacity(self.rows.len() * 2);
            }
            (self.requests_since_check, self.forgotten_before) = (0, self.forgotten);
        }
    }

    /// Moves a record of the previous table, if there is an empty place: later records are younger.
    fn migrate_record(&mut self, now: Time, record: RequestRecord) {
        if now.since(record.since) > self.span {
            return;
        }
        let hash = self.hash(record.id);
        match row(&mut self.rows, hash).iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => *slot = Some(record),
            None => self.forgotten += 1,
        }
    }
}

fn row(rows: &mut [RecordRow], hash: u64) -> &mut RecordRow {
    // A power of two of them.
    let index = hash as usize & (rows.len() - 1);
    &mut rows[index]
}

/// Returns the index of a request's record in its row.
fn find_slot(rows: &[RecordRow], hash: u64, now: Time, id: u64, span: Duration) -> Option<usize> {
    let row = &rows[hash as usize & (rows.len() - 1)];
    let matches = |record: &RequestRecord| record.id == id && now.since(record.since) <= span;
    row.iter().position(|slot| slot.as_ref().is_some_and(matches))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Duration = Duration::from_secs(10);

    #[test]
    fn a_request_is_remembered_for_its_span() {
        let mut cache = DedupCache::new(SipHashKey::new([7; 16]), 1000, SPAN);
        cache.find_or_insert(Time(5), 1).attempt = 3;
        assert_eq!(cache.find(Time(5) + SPAN, 1).map(|record| record.attempt), Some(3));
        assert!(cache.find(Time(6) + SPAN, 1).is_none());
        assert_eq!(cache.find_or_insert(Time(6) + SPAN, 1).attempt, 0, "a new one");
        assert_eq!(cache.forgotten, 0);
    }

    #[test]
    fn who_committed_is_known_to_the_microsecond() {
        let mut cache = DedupCache::new(SipHashKey::new([7; 16]), 1000, SPAN);
        let record = cache.find_or_insert(Time(5_000), 1);
        assert_eq!(record.committed_by(), None);
        record.record_commit(65_535, Time(7_499));
        record.set_expected(Some(9));
        assert_eq!(record.committed_by(), Some((65_535, Time(7_000))));
        assert!(record.take_expected(9) && !record.take_expected(9));
    }

    #[test]
    fn beyond_its_bound_the_oldest_goes() {
        let mut cache = DedupCache::new(SipHashKey::new([7; 16]), 1024, SPAN);
        for id in 0..10_000 {
            cache.find_or_insert(Time(id), id);
        }
        assert!(
            cache.capacity() == 1024 && cache.previous.is_none() && size_of::<Option<RequestRecord>>() <= 40
        );
        assert!((8_976..9_400).contains(&cache.forgotten), "{}", cache.forgotten);
        assert!((9_900..10_000).all(|id| cache.find(Time(10_000), id).is_some()));
    }

    /// Sends requests at this rate for 25 s to an empty memory. Returns, of those after the rate was known,
    /// the share forgotten before its time. Returns, too, the share unknown 1.3 s later, at a client's last
    /// attempt.
    fn run_at_rate(rate: u64, max_records: usize) -> (DedupCache, f64, f64) {
        let mut cache = DedupCache::new(SipHashKey::new([7; 16]), max_records, SPAN);
        let time_of = |id: u64| Time(id * 1_000_000_000 / rate);
        let (mut previously_forgotten, mut unknown) = (0, 0);
        for id in 0..25 * rate {
            cache.find_or_insert(time_of(id), id).attempt = id as u8;
            if let Some(repeated_id) =
                id.checked_sub(rate * 13 / 10).filter(|repeated_id| *repeated_id > 2 * rate)
            {
                let attempt = cache.find(time_of(id), repeated_id).map(|record| record.attempt);
                unknown += u64::from(attempt != Some(repeated_id as u8));
            }
            if id == 12 * rate {
                previously_forgotten = cache.forgotten;
            }
        }
        let share = (cache.forgotten - previously_forgotten) as f64 / (13 * rate) as f64;
        (cache, share, unknown as f64 / (23 * rate) as f64)
    }

    #[test]
    fn it_follows_the_rate() {
        let max_records = 1 << 21;
        let (low_rate_cache, forgotten, _) = run_at_rate(100, max_records);
        assert_eq!(
            (low_rate_cache.capacity(), low_rate_cache.forgotten, forgotten),
            (INITIAL_RECORDS, 0, 0.0),
            "little is asked"
        );
        let (usual_rate_cache, forgotten, unknown) = run_at_rate(13_000, max_records);
        assert!(
            usual_rate_cache.capacity() == 1 << 18 && forgotten < 0.0625 && unknown < 1e-3,
            "{forgotten} {unknown}"
        );
        // In ten seconds 1.5 million requests, the target of a core: those that are replaced before their
        // time are old.
        let (high_rate_cache, forgotten, unknown) = run_at_rate(150_000, max_records);
        assert!(
            high_rate_cache.capacity() == max_records && forgotten < 0.25 && unknown < 1e-3,
            "{forgotten} {unknown}"
        );
        // With less room less is known, and no more memory is used.
        let (bounded_cache, forgotten, _) = run_at_rate(30_000, 1 << 16);
        assert!(
            bounded_cache.capacity() == 1 << 16 && forgotten > 0.7 && bounded_cache.previous.is_none(),
            "{forgotten}"
        );
    }

    #[test]
    fn what_is_known_is_known_while_it_grows() {
        let mut cache = DedupCache::new(SipHashKey::new([7; 16]), 1 << 20, SPAN);
        let (mut now, mut next, mut unknown) = (Time(0), 0, 0);
        while cache.capacity() < 1 << 19 || cache.previous.is_some() {
            cache.find_or_insert(now, next).record_commit(7, now);
            (now, next) = (now + Duration::from_micros(20), next + 1);
            // While a table is made, while it is filled, and afterwards.
            for ids_back in [1, 1000, 10_000] {
                let commit = next
                    .checked_sub(ids_back)
                    .map(|id| cache.find(now, id).and_then(|record| record.committed_by()));
                unknown += u64::from(commit == Some(None));
            }
        }
        assert!(unknown < next / 1000, "{unknown} of {next}");
        assert!(cache.forgotten < next / 10, "{} of {next}", cache.forgotten);
    }
}
