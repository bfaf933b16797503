//! Reports that somebody recorded and sends again: a member's (incarnation, seq) only ever grows.
//!
//! Who has just started has seen nothing, and takes an old report for a new one until the member's next: a quarter of
//! a second. Other kinds need no such memory: a request sent again gets the answer it got, answers and tables are
//! matched by ids that nobody can guess, and what a commit says stays true. Of gossip many go to many, and which overtakes
//! which is chance: of each life the last 64 are told apart.

use std::collections::BTreeMap;

use super::Report;

/// The latest report of each member.
#[derive(Clone, Debug)]
pub struct Replay {
    latest: BTreeMap<u16, (u32, u32)>,
    most: usize,
}

/// What a report is to one who has seen others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Newer than all before it.
    Fresh,
    /// Sent again, overtaken by a newer one, or of an earlier life.
    Stale,
    /// Of a member that there is no place to remember: it cannot be told from one sent again.
    NoPlace,
}

impl Replay {
    /// Remembers at most so many members.
    pub fn new(most: usize) -> Self {
        Self { latest: BTreeMap::new(), most }
    }

    /// Whether to believe a report; if so it is the latest from now on.
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

    /// Forgets members that are gone for good, which makes room for others.
    pub fn retain(&mut self, mut stays: impl FnMut(u16) -> bool) {
        self.latest.retain(|member, _| stays(*member));
    }

    /// How many members are remembered.
    pub fn len(&self) -> usize {
        self.latest.len()
    }

    /// Is none?
    pub fn is_empty(&self) -> bool {
        self.latest.is_empty()
    }
}

/// Which of the last datagrams of gossip came already, of each life of each daemon.
#[derive(Clone, Debug)]
pub struct Recent {
    /// The greatest count, and which of the 64 up to it came: that one is the lowest bit.
    lives: BTreeMap<u64, (u32, u64)>,
    most: usize,
}

impl Recent {
    /// Remembers at most so many lives; then any of them goes.
    pub fn new(most: usize) -> Self {
        Self { lives: BTreeMap::new(), most: most.max(1) }
    }

    /// Whether to believe a datagram; it has come from now on. `life` is a number that no other life of any daemon has.
    pub fn see(&mut self, life: u64, seq: u32) -> Seen {
        if let Some((latest, came)) = self.lives.get_mut(&life) {
            if seq > *latest {
                *came = came.checked_shl(seq - *latest).unwrap_or_default() | 1;
                *latest = seq;
                return Seen::Fresh;
            }
            let bit = 1_u64.checked_shl(*latest - seq).unwrap_or_default();
            if bit == 0 || *came & bit != 0 {
                return Seen::Stale;
            }
            *came |= bit;
            return Seen::Fresh;
        }
        if self.lives.len() >= self.most {
            self.lives.pop_first();
        }
        self.lives.insert(life, (seq, 1));
        Seen::Fresh
    }
}
