//! The immutable result of the slow path: who may be chosen, with which weights, and what the strategy
//! prepared to make each choice cheap.

use alloc::vec::Vec;

use crate::{Ask, Knobs, Member, MemberId, Strategy};

/// What a strategy computes when members change, so that it need not per request.
#[derive(Clone, Debug)]
pub enum Table {
    /// Nothing to prepare.
    None,
    /// A round in which each member stands as often as its weight says, spread evenly.
    Schedule(Vec<u32>),
    /// Walker's alias table: for each column the chance (of 2^32) to stay, and where to go otherwise.
    Alias(Vec<(u32, u32)>),
}

/// What came of asking for a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Index into [`Plan::members`].
    Member(usize),
    /// Every member that is left is at its limit: wait.
    Full,
    /// No member is left.
    Nobody,
}

/// The eligible members of a group and how to choose among them. Swapped atomically, never changed.
#[derive(Clone, Debug)]
pub struct Plan {
    strategy: &'static Strategy,
    knobs: Knobs,
    members: Vec<Member>,
    table: Table,
}

impl Plan {
    /// Makes a plan over `members`, all of which may be chosen, in the order of the configuration.
    pub fn new(strategy: &'static Strategy, knobs: Knobs, members: Vec<Member>) -> Self {
        let table = (strategy.prepare)(&members, &knobs);
        Self { strategy, knobs, members, table }
    }

    /// Chooses a member for one request, never one in `tried` nor one at its limit.
    pub fn choose(&self, ask: &Ask, tried: &[MemberId]) -> Choice {
        if self.members.is_empty() {
            return Choice::Nobody;
        }
        let first = (self.strategy.choose)(self, ask);
        let member = &self.members[first];
        if !member.full() && !tried.contains(&member.id) {
            return Choice::Member(first);
        }
        self.second_best(ask, tried)
    }

    /// The least loaded of those left, when the strategy's own choice cannot be had.
    fn second_best(&self, ask: &Ask, tried: &[MemberId]) -> Choice {
        let mut best: Option<(f64, usize)> = None;
        let mut left = false;
        let count = self.members.len();
        let start = (ask.turn % count as u64) as usize;
        for index in (start..count).chain(0..start) {
            let member = &self.members[index];
            if tried.contains(&member.id) {
                continue;
            }
            left = true;
            if member.full() {
                continue;
            }
            let load = f64::from(member.in_flight()) / member.weight;
            if best.is_none_or(|(least, _)| load < least) {
                best = Some((load, index));
            }
        }
        match best {
            Some((_, index)) => Choice::Member(index),
            None if left => Choice::Full,
            None => Choice::Nobody,
        }
    }

    /// Those that may be chosen, in the order of the configuration.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// What the strategy prepared.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The strategy's settings.
    pub fn knobs(&self) -> &Knobs {
        &self.knobs
    }

    /// The strategy in force.
    pub fn strategy(&self) -> &'static Strategy {
        self.strategy
    }
}
