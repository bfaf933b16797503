//! Protection against replayed reports: a member's (incarnation, seq) only ever grows.
//!
//! A daemon that has just started accepts an old report until the member's next one, a quarter of a second
//! later. Other kinds need no such memory. A repeated request receives its previous answer, answers and
//! tables are matched by unguessable IDs, and the contents of a commit stay true.
//!
//! Gossip arrives out of order, so the last 64 datagrams of each incarnation are tracked. If there are too
//! many incarnations, the one that has been silent longest is forgotten: it is the likeliest to have ended.

use std::collections::BTreeMap;

use super::NodeReport;

/// The latest report of each member.
#[derive(Clone, Debug)]
pub struct ReportReplayFilter {
    latest: BTreeMap<u16, (u32, u32)>,
    max_members: usize,
}

/// The verdict on a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayVerdict {
    /// The report is newer than all previous ones.
    Fresh,
    /// The report is a replay, overtaken by a newer one, or of an earlier incarnation.
    Stale,
    /// The member cannot be tracked, so the report cannot be distinguished from a replay.
    Untracked,
}

impl ReportReplayFilter {
    /// Creates a tracker for at most `max_members` members.
    pub fn new(max_members: usize) -> Self {
        Self { latest: BTreeMap::new(), max_members }
    }

    /// Checks a report, and records it as the latest if it is fresh.
    pub fn check(&mut self, report: &NodeReport) -> ReplayVerdict {
        let current = (report.incarnation, report.seq);
        let has_room = self.latest.len() < self.max_members;
        match self.latest.get_mut(&report.member) {
            Some(latest) if current <= *latest => ReplayVerdict::Stale,
            Some(latest) => {
                *latest = current;
                ReplayVerdict::Fresh
            }
            None if has_room => {
                self.latest.insert(report.member, current);
                ReplayVerdict::Fresh
            }
            None => ReplayVerdict::Untracked,
        }
    }

    /// Forgets members that have left, to make room for others.
    pub fn retain(&mut self, mut keep: impl FnMut(u16) -> bool) {
        self.latest.retain(|member, _| keep(*member));
    }

    /// Returns the number of tracked members.
    pub fn len(&self) -> usize {
        self.latest.len()
    }

    /// Returns `true` if no members are tracked.
    pub fn is_empty(&self) -> bool {
        self.latest.is_empty()
    }
}

/// The last datagrams of gossip, by the incarnation of each daemon.
#[derive(Clone, Debug)]
pub struct GossipReplayFilter {
    incarnations: BTreeMap<u64, SequenceWindow>,
    /// The incarnations, by the time of their last datagram.
    by_last_seen: BTreeMap<u64, u64>,
    /// The logical time: the number of received datagrams.
    clock: u64,
    max_incarnations: usize,
}

#[derive(Clone, Copy, Debug)]
struct SequenceWindow {
    /// The highest sequence number.
    latest: u32,
    /// A bit for each of the last 64 numbers that arrived; the lowest bit is `latest`.
    received_mask: u64,
    /// The logical time of the last datagram.
    last_seen: u64,
}

impl GossipReplayFilter {
    /// Creates a tracker for at most `most` incarnations; beyond that, it forgets the one that has been
    /// silent longest.
    pub fn new(max_incarnations: usize) -> Self {
        Self {
            incarnations: BTreeMap::new(),
            by_last_seen: BTreeMap::new(),
            clock: 0,
            max_incarnations: max_incarnations.max(1),
        }
    }

    /// Checks a datagram, and records it if it is fresh. `life` identifies an incarnation of one daemon
    /// uniquely.
    pub fn check(&mut self, incarnation: u64, seq: u32) -> ReplayVerdict {
        self.clock += 1;
        let tick = self.clock;
        let Some(window) = self.incarnations.get_mut(&incarnation) else {
            if self.incarnations.len() >= self.max_incarnations
                && let Some((_, oldest)) = self.by_last_seen.pop_first()
            {
                self.incarnations.remove(&oldest);
            }
            self.incarnations
                .insert(incarnation, SequenceWindow { latest: seq, received_mask: 1, last_seen: tick });
            self.by_last_seen.insert(tick, incarnation);
            return ReplayVerdict::Fresh;
        };
        if seq > window.latest {
            window.received_mask =
                window.received_mask.checked_shl(seq - window.latest).unwrap_or_default() | 1;
            window.latest = seq;
        } else {
            let bit = 1_u64.checked_shl(window.latest - seq).unwrap_or_default();
            if bit == 0 || window.received_mask & bit != 0 {
                // Replays do not refresh an incarnation.
                return ReplayVerdict::Stale;
            }
            window.received_mask |= bit;
        }
        self.by_last_seen.remove(&window.last_seen);
        window.last_seen = tick;
        self.by_last_seen.insert(tick, incarnation);
        ReplayVerdict::Fresh
    }
}
