//! Whom an entry forwards to, where that follows more than chance: what a balancer does.

use std::collections::HashMap;

use super::dice::Dice;
use super::program::Way;
use crate::model::{Policy, Routing};

/// The state of one balancer.
pub(super) struct Route {
    policy: Policy,
    /// How old loads may become; 0 for those of the moment.
    pub(super) age: f64,
    /// Entries, and their tasks.
    targets: Vec<(usize, usize)>,
    weights: Vec<f64>,
    turn: usize,
    /// Of weighted turns: what each is owed.
    credit: Vec<f64>,
    /// Loads when they were last looked at.
    seen: Vec<u32>,
    /// Sessions, by the thread that began them.
    bound: HashMap<u32, usize>,
}

impl Route {
    pub(super) fn new(way: &Way, ways: &[Way], routing: Routing) -> Self {
        let mut before = 0.0;
        let weights = way.forwards.iter().map(|(sum, _)| {
            let own = sum - before;
            before = *sum;
            own
        });
        let weights: Vec<f64> = weights.collect();
        Self {
            policy: routing.policy,
            age: routing.age,
            targets: way.forwards.iter().map(|(_, entry)| (*entry, ways[*entry].task)).collect(),
            turn: 0,
            credit: vec![0.0; weights.len()],
            seen: vec![0; weights.len()],
            bound: HashMap::new(),
            weights,
        }
    }

    /// Looks at how many requests are waiting or served at each.
    pub(super) fn look(&mut self, loads: &[u32]) {
        for (seen, (_, task)) in self.seen.iter_mut().zip(&self.targets) {
            *seen = loads[*task];
        }
    }

    /// The entry that is next.
    pub(super) fn choose(&mut self, loads: &[u32], session: Option<u32>, dice: &mut Dice) -> usize {
        if self.age == 0.0 {
            self.look(loads);
        }
        let place = match self.policy {
            Policy::Random => self.random(dice),
            Policy::RoundRobin => {
                self.turn = (self.turn + 1) % self.targets.len();
                self.turn
            }
            Policy::Weighted => self.weighted(),
            Policy::LeastLoaded => self.least(dice),
            Policy::PowerOfTwo => {
                let one = dice.below(self.targets.len());
                let other = (one + 1 + dice.below(self.targets.len().max(2) - 1)) % self.targets.len();
                if self.seen[other] < self.seen[one] { other } else { one }
            }
            Policy::Sticky => match session {
                None => self.random(dice),
                Some(session) => match self.bound.get(&session) {
                    Some(place) => *place,
                    None => {
                        let place = self.random(dice);
                        self.bound.insert(session, place);
                        place
                    }
                },
            },
        };
        self.targets[place].0
    }

    fn random(&self, dice: &mut Dice) -> usize {
        let all: f64 = self.weights.iter().sum();
        let mut drawn = dice.unit() * all;
        let found = self.weights.iter().position(|weight| {
            drawn -= weight;
            drawn < 0.0
        });
        found.unwrap_or(self.targets.len() - 1)
    }

    /// Smooth turns: each is owed its weight, and who is owed most pays for all.
    fn weighted(&mut self) -> usize {
        let mut best = 0;
        for place in 0..self.credit.len() {
            self.credit[place] += self.weights[place];
            if self.credit[place] > self.credit[best] {
                best = place;
            }
        }
        self.credit[best] -= self.weights.iter().sum::<f64>();
        best
    }

    /// The least loaded; of several any.
    fn least(&self, dice: &mut Dice) -> usize {
        let least = self.seen.iter().min().copied().unwrap_or(0);
        let count = self.seen.iter().filter(|load| **load == least).count();
        let which = if count > 1 { dice.below(count) } else { 0 };
        let mut all = self.seen.iter().enumerate().filter(|(_, load)| **load == least);
        all.nth(which).map_or(0, |(place, _)| place)
    }
}
