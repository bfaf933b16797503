//! The reports of one other balancer, and their quality.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::find_index;
use super::report::MemberEntry;
use crate::Time;

/// Another balancer.
#[derive(Debug)]
pub(super) struct FleetPeer {
    /// The time of its loss; `None` while it is present.
    lost_at: Option<Time>,
    /// The time of its last report.
    pub(super) last_report: Time,
    /// The time of the first report since which none was missed.
    unbroken_since: Time,
    /// The number of its latest report; `None` before the first.
    last_seq: Option<u32>,
    /// The reports received and missed so far.
    received: u64,
    missed: u64,
    groups: BTreeMap<u64, PeerGroupReport>,
}

/// Its reports about a group.
#[derive(Debug, Default)]
pub(super) struct PeerGroupReport {
    /// The requests a second that it begins with the group.
    pub(super) rate: f64,
    /// The entries in the order of our members; `None` for one that it does not serve.
    entries: Vec<Option<PeerMemberReport>>,
}

/// Its report about a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerMemberReport {
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
    pub(super) checked_at: Time,
}

/// The quality of another balancer's reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeerStats {
    /// Its number.
    pub id: u64,
    /// Whether it is known to be present.
    pub is_present: bool,
    /// The age of its last report.
    pub age: Duration,
    /// The number of reports received.
    pub received: u64,
    /// The number of reports missed, by their numbers.
    pub missed: u64,
    /// The number of groups that it serves with this balancer.
    pub groups: usize,
}

impl PeerMemberReport {
    pub(super) fn from_entry(entry: &MemberEntry, seq: u32, now: Time) -> Self {
        Self {
            at: now,
            seq,
            in_flight: entry.in_flight,
            mean: entry.mean as f32 / 16.0,
            waiting: entry.waiting as f32 / 16.0,
            rate: entry.rate as f32 / 4.0,
            latency: entry.latency as f32 * 1e-6,
            suspicion: entry.suspicion,
            ejected: entry.ejected.is_some(),
            checked_at: entry.check.map_or(Time(0), |(_, age)| now - Duration::from_millis(age.into())),
        }
    }

    pub(super) fn demand(&self) -> f64 {
        f64::from(self.mean) + f64::from(self.waiting)
    }
}

impl FleetPeer {
    pub(super) fn new(now: Time) -> Self {
        Self {
            lost_at: None,
            last_report: now,
            unbroken_since: now,
            last_seq: None,
            received: 0,
            missed: 0,
            groups: BTreeMap::new(),
        }
    }

    /// Returns a lost balancer that served these groups.
    pub(super) fn lost_since(since: Time, groups: impl Iterator<Item = u64>) -> Self {
        let groups = groups.map(|group| (group, PeerGroupReport::default())).collect();
        Self { lost_at: Some(since), groups, ..Self::new(since) }
    }

    pub(super) fn lost_at(&self) -> Option<Time> {
        self.lost_at
    }

    /// Returns the groups that it serves with this balancer.
    pub(super) fn groups(&self) -> impl Iterator<Item = u64> {
        self.groups.keys().copied()
    }

    pub(super) fn is_present(&self) -> bool {
        self.lost_at.is_none()
    }

    /// Marks it as lost without an announcement: its requests are lost with it.
    pub(super) fn mark_lost(&mut self, now: Time) {
        self.lost_at.get_or_insert(now);
        for group_report in self.groups.values_mut() {
            *group_report = PeerGroupReport::default();
        }
    }

    /// Returns `true` if it has been lost for the time `after`.
    pub(super) fn is_expired(&self, retention: Duration, now: Time) -> bool {
        self.lost_at.is_some_and(|lost_at| now.since(lost_at) >= retention)
    }

    /// Returns `true` if a report of it was received.
    pub(super) fn has_reported(&self) -> bool {
        self.last_seq.is_some()
    }

    /// Records the number of a report; returns `false` if it is too old to be useful.
    pub(super) fn record_sequence(&mut self, seq: u32, now: Time) -> bool {
        let latest = self.last_seq.unwrap_or_else(|| seq.wrapping_sub(1));
        let step = seq.wrapping_sub(latest) as i32;
        if step <= -MAX_REORDERING {
            return false;
        }
        self.received += 1;
        if step > 0 {
            self.last_seq = Some(seq);
            self.missed += u64::from(step.unsigned_abs() - 1);
            if step > 1 {
                self.unbroken_since = now;
            }
        } else {
            // Overtaken on its way, and not lost.
            self.missed = self.missed.saturating_sub(1);
        }
        self.last_report = self.last_report.max(now);
        true
    }

    /// Returns the time up to which its report about a member holds. Changes are reported, so that is the
    /// time of the last report, unless one was missed.
    pub(super) fn valid_until(&self, report: &PeerMemberReport) -> Time {
        if report.at >= self.unbroken_since { self.last_report } else { report.at }
    }

    /// Returns the weight of its reports: 1 while they are recent, and 0 two seconds later.
    pub(super) fn report_weight(&self, now: Time) -> f64 {
        let silent_seconds = now.since(self.last_report).as_secs_f64() - FULL_WEIGHT_SECONDS;
        match silent_seconds {
            ..0.0 => 1.0,
            0.0..0.8 => libm::exp(-silent_seconds / FADE_SECONDS),
            _ => 0.0,
        }
    }

    pub(super) fn group_report(&self, group: u64) -> Option<&PeerGroupReport> {
        self.groups.get(&group)
    }

    /// Returns the section for its reports about a group with `members` members here.
    pub(super) fn group_report_mut(&mut self, group: u64, members: usize) -> &mut PeerGroupReport {
        let group_report = self.groups.entry(group).or_default();
        group_report.entries.resize(members, None);
        group_report
    }

    /// Moves its entries to the new order of a group's members.
    pub(super) fn reorder_members(
        &mut self,
        group: u64,
        previous_indices: &[(u64, u32)],
        new_indices: &[(u64, u32)],
    ) {
        let Some(group_report) = self.groups.get_mut(&group) else { return };
        let mut entries = vec![None; new_indices.len()];
        for (id, index) in new_indices {
            let entry = find_index(previous_indices, *id)
                .and_then(|old_index| group_report.entries.get(old_index).copied().flatten());
            entries[*index as usize] = entry;
        }
        group_report.entries = entries;
    }

    pub(super) fn drop_group(&mut self, group: u64) {
        self.groups.remove(&group);
    }

    pub(super) fn stats(&self, id: u64, now: Time) -> PeerStats {
        let (received, missed) = (self.received, self.missed);
        PeerStats {
            id,
            is_present: self.is_present(),
            age: now.since(self.last_report),
            received,
            missed,
            groups: self.groups.len(),
        }
    }
}

impl PeerGroupReport {
    pub(super) fn entry(&self, index: usize) -> Option<&PeerMemberReport> {
        self.entries.get(index)?.as_ref()
    }

    pub(super) fn set_entry(&mut self, index: usize, report: PeerMemberReport) {
        if let Some(entry) = self.entries.get_mut(index) {
            *entry = Some(report);
        }
    }
}

/// The number of later reports after which a delayed report is still useful.
const MAX_REORDERING: i32 = 64;

/// The seconds for which a silent balancer counts as before. That is the time in which a death is detected,
/// and more than the delay of a busy machine.
const FULL_WEIGHT_SECONDS: f64 = 1.0;

/// The seconds in which its weight loses two thirds after that.
const FADE_SECONDS: f64 = 0.2;
