//! What one other balancer said, and how well it is heard.

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
    /// Since when it is lost; `None` while it is there.
    lost: Option<Time>,
    /// When it was heard of last.
    pub(super) heard: Time,
    /// When the first of its reports came since which none was missed.
    unbroken: Time,
    /// The count of its latest report; `None` before the first.
    seq: Option<u32>,
    /// Its reports that came, and that did not, so far.
    received: u64,
    missed: u64,
    groups: BTreeMap<u64, Said>,
}

/// What it said of a group.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// Requests that it begins with it, a second.
    pub(super) rate: f64,
    /// In the order of our members; `None` for one that it does not serve.
    words: Vec<Option<Heard>>,
}

/// What it said of a member.
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
    /// When its check was made, by our clock.
    pub(super) check: Time,
}

/// How another balancer is heard.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Acquaintance {
    /// Its number.
    pub id: u64,
    /// Is it there, as far as is known?
    pub there: bool,
    /// How long ago it was heard of.
    pub age: Duration,
    /// Its reports that came.
    pub received: u64,
    /// Its reports that did not come, as their counts tell.
    pub missed: u64,
    /// Groups that it serves with us.
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

    /// One that is lost, and served these groups.
    pub(super) fn gone_since(since: Time, groups: impl Iterator<Item = u64>) -> Self {
        let groups = groups.map(|group| (group, Said::default())).collect();
        Self { lost: Some(since), groups, ..Self::new(since) }
    }

    pub(super) fn lost(&self) -> Option<Time> {
        self.lost
    }

    /// That it serves with us.
    pub(super) fn groups(&self) -> impl Iterator<Item = u64> {
        self.groups.keys().copied()
    }

    pub(super) fn there(&self) -> bool {
        self.lost.is_none()
    }

    /// It is gone, and did not say so before: what it had is gone with it.
    pub(super) fn lose(&mut self, now: Time) {
        self.lost.get_or_insert(now);
        for said in self.groups.values_mut() {
            *said = Said::default();
        }
    }

    /// Has it been lost for as long as that?
    pub(super) fn gone(&self, after: Duration, now: Time) -> bool {
        self.lost.is_some_and(|lost| now.since(lost) >= after)
    }

    /// Did a report of it come?
    pub(super) fn spoke(&self) -> bool {
        self.seq.is_some()
    }

    /// A report came; false if it is too old to be of use.
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

    /// Since when what it said of a member holds: it is told when it changes, so it holds up to now, unless a report was missed.
    pub(super) fn stamp(&self, heard: &Heard) -> Time {
        if heard.at >= self.unbroken { self.heard } else { heard.at }
    }

    /// How much its words count: all of it while it is heard of, and nothing two seconds later.
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

    /// For what it says of a group that has so many members here.
    pub(super) fn section(&mut self, group: u64, members: usize) -> &mut Said {
        let said = self.groups.entry(group).or_default();
        said.words.resize(members, None);
        said
    }

    /// Members of a group have other places than before.
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

/// Reports that may overtake another and leave it worth reading.
const LATE: i32 = 64;

/// Seconds for which a balancer may be silent and count as before: as long as it takes to know that one has died, and more than a busy
/// machine lets it wait.
const FRESH: f64 = 1.0;

/// Seconds in which its words lose two thirds of their say after that.
const FADE: f64 = 0.2;
