//! The reports of one other balancer, and their quality.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::find;
use super::word::Word;
use crate::Time;

/// Another balancer.
#[derive(Debug)]
pub(super) struct Peer {
    /// The time of its loss; `None` while it is present.
    lost: Option<Time>,
    /// The time of its last report.
    pub(super) heard: Time,
    /// The time of the first report since which none was missed.
    unbroken: Time,
    /// The number of its latest report; `None` before the first.
    seq: Option<u32>,
    /// The reports received and missed so far.
    received: u64,
    missed: u64,
    groups: BTreeMap<u64, Said>,
}

/// Its reports about a group.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// The requests a second that it begins with the group.
    pub(super) rate: f64,
    /// The entries in the order of our members; `None` for one that it does not serve.
    words: Vec<Option<Heard>>,
}

/// Its report about a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard {
    pub(super) at: Time,
    pub(super) seq: u32,
    pub(super) in_flight: u32,
    pub(super) mean: f32,
    pub(super) waiting: f32,
    pub(super) rate: f32,
    pub(super) latency: f32,
    pub(super) suspicion: u8,
    pub(super) ejected: bool,
    /// The time of its check, by our clock.
    pub(super) check: Time,
}

/// The quality of another balancer's reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Acquaintance {
    /// Its number.
    pub id: u64,
    /// Whether it is known to be present.
    pub there: bool,
    /// The age of its last report.
    pub age: Duration,
    /// The number of reports received.
    pub received: u64,
    /// The number of reports missed, by their numbers.
    pub missed: u64,
    /// The number of groups that it serves with this balancer.
    pub groups: usize,
}

impl Heard {
    pub(super) fn of(word: &Word, seq: u32, now: Time) -> Self {
        Self {
            at: now,
            seq,
            in_flight: word.in_flight,
            mean: word.mean as f32 / 16.0,
            waiting: word.waiting as f32 / 16.0,
            rate: word.rate as f32 / 4.0,
            latency: word.latency as f32 * 1e-6,
            suspicion: word.suspicion,
            ejected: word.ejected.is_some(),
            check: word.check.map_or(Time(0), |(_, age)| now - Duration::from_millis(age.into())),
        }
    }

    pub(super) fn demand(&self) -> f64 {
        f64::from(self.mean) + f64::from(self.waiting)
    }
}

impl Peer {
    pub(super) fn new(now: Time) -> Self {
        Self {
            lost: None,
            heard: now,
            unbroken: now,
            seq: None,
            received: 0,
            missed: 0,
            groups: BTreeMap::new(),
        }
    }

    /// Returns a lost balancer that served these groups.
    pub(super) fn gone_since(since: Time, groups: impl Iterator<Item = u64>) -> Self {
        let groups = groups.map(|group| (group, Said::default())).collect();
        Self { lost: Some(since), groups, ..Self::new(since) }
    }

    pub(super) fn lost(&self) -> Option<Time> {
        self.lost
    }

    /// Returns the groups that it serves with this balancer.
    pub(super) fn groups(&self) -> impl Iterator<Item = u64> {
        self.groups.keys().copied()
    }

    pub(super) fn there(&self) -> bool {
        self.lost.is_none()
    }

    /// Marks it as lost without an announcement: its requests are lost with it.
    pub(super) fn lose(&mut self, now: Time) {
        self.lost.get_or_insert(now);
        for said in self.groups.values_mut() {
            *said = Said::default();
        }
    }

    /// Returns `true` if it has been lost for the time `after`.
    pub(super) fn gone(&self, after: Duration, now: Time) -> bool {
        self.lost.is_some_and(|lost| now.since(lost) >= after)
    }

    /// Returns `true` if a report of it was received.
    pub(super) fn spoke(&self) -> bool {
        self.seq.is_some()
    }

    /// Records the number of a report; returns `false` if it is too old to be useful.
    pub(super) fn came(&mut self, seq: u32, now: Time) -> bool {
        let latest = self.seq.unwrap_or_else(|| seq.wrapping_sub(1));
        let step = seq.wrapping_sub(latest) as i32;
        if step <= -LATE {
            return false;
        }
        self.received += 1;
        if step > 0 {
            self.seq = Some(seq);
            self.missed += u64::from(step.unsigned_abs() - 1);
            if step > 1 {
                self.unbroken = now;
            }
        } else {
            // Overtaken on its way, and not lost.
            self.missed = self.missed.saturating_sub(1);
        }
        self.heard = self.heard.max(now);
        true
    }

    /// Returns the time up to which its report about a member holds. Changes are reported, so that is the
    /// time of the last report, unless one was missed.
    pub(super) fn stamp(&self, heard: &Heard) -> Time {
        if heard.at >= self.unbroken { self.heard } else { heard.at }
    }

    /// Returns the weight of its reports: 1 while they are recent, and 0 two seconds later.
    pub(super) fn say(&self, now: Time) -> f64 {
        let silent = now.since(self.heard).as_secs_f64() - FRESH;
        match silent {
            ..0.0 => 1.0,
            0.0..0.8 => libm::exp(-silent / FADE),
            _ => 0.0,
        }
    }

    pub(super) fn said(&self, group: u64) -> Option<&Said> {
        self.groups.get(&group)
    }

    /// Returns the section for its reports about a group with `members` members here.
    pub(super) fn section(&mut self, group: u64, members: usize) -> &mut Said {
        let said = self.groups.entry(group).or_default();
        said.words.resize(members, None);
        said
    }

    /// Moves its entries to the new order of a group's members.
    pub(super) fn arrange(&mut self, group: u64, before: &[(u64, u32)], after: &[(u64, u32)]) {
        let Some(said) = self.groups.get_mut(&group) else { return };
        let mut words = vec![None; after.len()];
        for (id, place) in after {
            let word = find(before, *id).and_then(|old| said.words.get(old).copied().flatten());
            words[*place as usize] = word;
        }
        said.words = words;
    }

    pub(super) fn drop_group(&mut self, group: u64) {
        self.groups.remove(&group);
    }

    pub(super) fn known(&self, id: u64, now: Time) -> Acquaintance {
        let (received, missed) = (self.received, self.missed);
        Acquaintance {
            id,
            there: self.there(),
            age: now.since(self.heard),
            received,
            missed,
            groups: self.groups.len(),
        }
    }
}

impl Said {
    pub(super) fn word(&self, place: usize) -> Option<&Heard> {
        self.words.get(place)?.as_ref()
    }

    pub(super) fn set(&mut self, place: usize, heard: Heard) {
        if let Some(word) = self.words.get_mut(place) {
            *word = Some(heard);
        }
    }
}

/// The number of later reports after which a delayed report is still useful.
const LATE: i32 = 64;

/// The seconds for which a silent balancer counts as before. That is the time in which a death is detected,
/// and more than the delay of a busy machine.
const FRESH: f64 = 1.0;

/// The seconds in which its weight loses two thirds after that.
const FADE: f64 = 0.2;
