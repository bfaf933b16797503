//! The immutable result of the slow path: who may be chosen, with which weights, and what the strategy
//! prepared to make each choice cheap.

use alloc::vec::Vec;
use core::time::Duration;

use crate::{Ask, Knobs, Member, MemberId, Strategy, Time, Vitals};

/// What a strategy computes when members change, so that it need not per request.
#[derive(Clone, Debug)]
pub enum Table {
    /// Nothing to prepare.
    None,
    /// A round in which each member stands as often as its weight says, spread evenly.
    Schedule(Vec<u32>),
    /// Walker's alias table: for each column the chance (of 2^32) to stay, and where to go otherwise.
    Alias(Vec<(u32, u32)>),
    /// For each member its seed and its weight (1 if all are equal), side by side to be scanned quickly.
    Seeds {
        /// In the order of the members.
        seeds: Vec<(u64, f64)>,
        /// Have all members the same weight?
        even: bool,
        /// Sum of the members' weights.
        weights: f64,
    },
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
    /// Makes a plan over `members`, all of which may be chosen, in the order of the configuration. Knobs that
    /// are missing or out of range are brought into it.
    pub fn new(strategy: &'static Strategy, knobs: Knobs, members: Vec<Member>) -> Self {
        let knobs = knobs.fit(strategy);
        let table = (strategy.prepare)(&members, &knobs);
        Self { strategy, knobs, members, table }
    }

    /// Chooses a member for one request, never one in `tried` nor one at its limit. Between the choice and
    /// [`Vitals::begin`] another core may take the last place: where a limit must hold exactly, look at what
    /// `begin` returns.
    pub fn choose(&self, ask: &Ask, tried: &[MemberId]) -> Choice {
        if self.members.is_empty() {
            return Choice::Nobody;
        }
        let first = (self.strategy.choose)(self, ask);
        match self.members.get(first) {
            Some(member) if !member.full() && !tried.contains(&member.id) => Choice::Member(first),
            _ => self.second_best(ask, tried),
        }
    }

    /// Tells the strategy how long a request took from the choice to the end of its answer, and whether it
    /// failed; for strategies that set [`Strategy::reads_latency`], nothing otherwise.
    pub fn observe(&self, vitals: &Vitals, latency: Duration, failed: bool, now: Time) {
        (self.strategy.observe)(&self.knobs, vitals, latency, failed, now);
    }

    /// The figures by which the strategy judges a member of the plan, for people.
    pub fn explain(&self, member: &Member, now: Time) -> Vec<(&'static str, f64)> {
        (self.strategy.explain)(self, member, now)
    }

    /// Those that may be chosen, in the order of the configuration.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// What the strategy prepared.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The strategy's settings: one number for each of its knobs, each within its range.
    pub fn knobs(&self) -> &Knobs {
        &self.knobs
    }

    /// The strategy in force.
    pub fn strategy(&self) -> &'static Strategy {
        self.strategy
    }

    /// What the strategy prefers among those left, when its first choice cannot be had.
    #[cold]
    fn second_best(&self, ask: &Ask, tried: &[MemberId]) -> Choice {
        let left = |member: &Member| !member.full() && !tried.contains(&member.id);
        match (self.strategy.second)(self, ask, &left) {
            Some(index) => Choice::Member(index),
            None if self.members.iter().all(|member| tried.contains(&member.id)) => Choice::Nobody,
            None => Choice::Full,
        }
    }
}
