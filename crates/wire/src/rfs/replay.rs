//! Protection against replayed reports: a member's (incarnation, seq) only ever grows.
//!
//! A daemon that has just started accepts an old report until the member's next one, a quarter of a second
//! later. Other kinds need no such memory. A repeated request receives its previous answer, answers and
//! tables are matched by unguessable IDs, and the contents of a commit stay true.
//!
//! Gossip arrives out of order, so the last 64 datagrams of each incarnation are tracked. If there are too
//! many incarnations, the one that has been silent longest is forgotten: it is the likeliest to have ended.

use std::collections::BTreeMap;

use super::Report;

/// The latest report of each member.
#[derive(Clone, Debug)]
pub struct Replay {
    latest: BTreeMap<u16, (u32, u32)>,
    most: usize,
}

/// The verdict on a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The report is newer than all previous ones.
    Fresh,
    /// The report is a replay, overtaken by a newer one, or of an earlier incarnation.
    Stale,
    /// The member cannot be tracked, so the report cannot be distinguished from a replay.
    NoPlace,
}

impl Replay {
    /// Creates a tracker for at most `most` members.
    pub fn new(most: usize) -> Self {
        Self { latest: BTreeMap::new(), most }
    }

    /// Checks a report, and records it as the latest if it is fresh.
    pub fn see(&mut self, report: &Report) -> Seen {
        let now = (report.incarnation, report.seq);
        let room = self.latest.len() < self.most;
        match self.latest.get_mut(&report.member) {
            Some(latest) if now <= *latest => Seen::Stale,
            Some(latest) => {
                *latest = now;
                Seen::Fresh
            }
            None if room => {
                self.latest.insert(report.member, now);
                Seen::Fresh
            }
            None => Seen::NoPlace,
        }
    }

    /// Forgets members that have left, to make room for others.
    pub fn retain(&mut self, mut stays: impl FnMut(u16) -> bool) {
        self.latest.retain(|member, _| stays(*member));
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
pub struct Recent {
    lives: BTreeMap<u64, Life>,
    /// The incarnations, by the time of their last datagram.
    heard: BTreeMap<u64, u64>,
    /// The logical time: the number of received datagrams.
    clock: u64,
    most: usize,
}

#[derive(Clone, Copy, Debug)]
struct Life {
    /// The highest sequence number.
    latest: u32,
    /// A bit for each of the last 64 numbers that arrived; the lowest bit is `latest`.
    came: u64,
    /// The logical time of the last datagram.
    heard: u64,
}

impl Recent {
    /// Creates a tracker for at most `most` incarnations; beyond that, it forgets the one that has been
    /// silent longest.
    pub fn new(most: usize) -> Self {
        Self { lives: BTreeMap::new(), heard: BTreeMap::new(), clock: 0, most: most.max(1) }
    }

    /// Checks a datagram, and records it if it is fresh. `life` identifies an incarnation of one daemon
    /// uniquely.
    pub fn see(&mut self, life: u64, seq: u32) -> Seen {
        self.clock += 1;
        let now = self.clock;
        let Some(known) = self.lives.get_mut(&life) else {
            if self.lives.len() >= self.most
                && let Some((_, silent)) = self.heard.pop_first()
            {
                self.lives.remove(&silent);
            }
            self.lives.insert(life, Life { latest: seq, came: 1, heard: now });
            self.heard.insert(now, life);
            return Seen::Fresh;
        };
        if seq > known.latest {
            known.came = known.came.checked_shl(seq - known.latest).unwrap_or_default() | 1;
            known.latest = seq;
        } else {
            let bit = 1_u64.checked_shl(known.latest - seq).unwrap_or_default();
            if bit == 0 || known.came & bit != 0 {
                // Replays do not refresh an incarnation.
                return Seen::Stale;
            }
            known.came |= bit;
        }
        self.heard.remove(&known.heard);
        known.heard = now;
        self.heard.insert(now, life);
        Seen::Fresh
    }
}
