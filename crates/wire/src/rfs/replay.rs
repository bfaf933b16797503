//! Reports that somebody recorded and sends again: a member's (incarnation, seq) only ever grows.
//!
//! Who has just started has seen nothing, and takes an old report for a new one until the member's next: a quarter of
//! a second. Other kinds need no such memory: a request sent again gets the answer it got, answers and tables are
//! matched by ids that nobody can guess, and what a commit says stays true. Of gossip many go to many, and which overtakes
//! which is chance: of each life the last 64 are told apart. Where there are too many lives, that one is forgotten which was not heard of for
//! longest: it is the likeliest to be over.

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
    lives: BTreeMap<u64, Life>,
    /// By when they were heard of last.
    heard: BTreeMap<u64, u64>,
    /// Counts what is heard.
    clock: u64,
    most: usize,
}

#[derive(Clone, Copy, Debug)]
struct Life {
    /// The greatest count.
    latest: u32,
    /// Which of the 64 up to it came: that one is the lowest bit.
    came: u64,
    /// When it was heard of last.
    heard: u64,
}

impl Recent {
    /// Remembers at most so many lives; then that one goes which was not heard of for longest.
    pub fn new(most: usize) -> Self {
        Self { lives: BTreeMap::new(), heard: BTreeMap::new(), clock: 0, most: most.max(1) }
    }

    /// Whether to believe a datagram; it has come from now on. `life` is a number that no other life of any daemon has.
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
                // What is sent again keeps no life in mind.
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
