//! The choice of a forwarding entry's target by a policy, as a balancer does.

use std::collections::HashMap;

use super::compiled::{CompiledEntry, CompiledModel};
use super::rng::RandomStream;
use super::streams::mix_bits;
use crate::model::{Routing, RoutingPolicy};

/// The state of one balancer.
pub(super) struct RoutingState {
    policy: RoutingPolicy,
    /// The maximal age of loads; 0 for current ones.
    pub(super) max_age: f64,
    /// The target entries with their tasks.
    targets: Vec<(usize, usize)>,
    weights: Vec<f64>,
    /// The number of threads of each target's task.
    threads: Vec<u32>,
    /// Whether the weights are ignored because they are equal or one is 0; draws are then the same as without
    /// weights.
    equal: bool,
    /// The key that makes this balancer's sessions independent of others'.
    key: u64,
    next_target: usize,
    /// The credits of weighted round robin.
    credit: Vec<f64>,
    /// The loads when they were last read.
    known_loads: Vec<u32>,
    /// The targets of sessions, by the clients' keys.
    bound: HashMap<u64, usize>,
}

impl RoutingState {
    pub(super) fn new(way: &CompiledEntry, program: &CompiledModel, routing: Routing, key: u64) -> Self {
        let targets: Vec<(usize, usize)> =
            way.forwards.iter().map(|(_, entry)| (*entry, program.entries[*entry].task)).collect();
        let threads = targets.iter().map(|(_, task)| program.tasks[*task].copies.unwrap_or(u32::MAX));
        let mut before = 0.0;
        let weights = way.forwards.iter().map(|(sum, _)| {
            let own = sum - before;
            before = *sum;
            own
        });
        let weights: Vec<f64> = weights.collect();
        let first = weights.first().copied().unwrap_or_default();
        let equal = weights.iter().all(|own| (own - first).abs() <= 1e-9 * first)
            || weights.iter().any(|own| *own <= 0.0);
        Self {
            policy: routing.policy,
            max_age: routing.max_age,
            equal,
            threads: threads.collect(),
            targets,
            key,
            next_target: 0,
            credit: vec![0.0; weights.len()],
            known_loads: vec![0; weights.len()],
            bound: HashMap::new(),
            weights,
        }
    }

    /// Reads the number of requests that wait or are served at each target.
    pub(super) fn refresh_loads(&mut self, loads: &[u32]) {
        for (seen, (_, task)) in self.known_loads.iter_mut().zip(&self.targets) {
            *seen = loads[*task];
        }
    }

    /// Returns the next target entry.
    pub(super) fn choose(&mut self, loads: &[u32], session: Option<u64>, dice: &mut RandomStream) -> usize {
        if self.max_age == 0.0 {
            self.refresh_loads(loads);
        }
        let place = match self.policy {
            RoutingPolicy::Random => self.random(dice),
            RoutingPolicy::RoundRobin => {
                self.next_target = (self.next_target + 1) % self.targets.len();
                self.next_target
            }
            RoutingPolicy::Weighted => self.weighted(),
            RoutingPolicy::LeastLoaded => self.least(dice),
            RoutingPolicy::PowerOfTwo => {
                let [one, other] = self.draw_two(dice);
                if self.load(other) < self.load(one) { other } else { one }
            }
            RoutingPolicy::FirstAvailable => self.first(),
            RoutingPolicy::Sticky => match session {
                None => self.random(dice),
                Some(session) => match self.bound.get(&session) {
                    Some(place) => *place,
                    None => {
                        // The choice depends on the session only, not on the order of sessions.
                        let place = self.random(&mut RandomStream::new(self.key ^ mix_bits(session)));
                        self.bound.insert(session, place);
                        place
                    }
                },
            },
        };
        self.targets[place].0
    }

    /// Returns the load of a target divided by its weight, by which a balancer compares members of different
    /// capacity.
    fn load(&self, place: usize) -> f64 {
        let seen = f64::from(self.known_loads[place]);
        if self.equal { seen } else { seen / self.weights[place] }
    }

    fn random(&self, dice: &mut RandomStream) -> usize {
        self.draw_weighted(dice, None)
    }

    /// Draws a target other than `but`, in proportion to the weights.
    fn draw_weighted(&self, dice: &mut RandomStream, but: Option<usize>) -> usize {
        let others = || self.weights.iter().enumerate().filter(|(place, _)| Some(*place) != but);
        let all: f64 = others().map(|(_, weight)| weight).sum();
        let mut drawn = dice.uniform() * all;
        let found = others().find(|(_, weight)| {
            drawn -= *weight;
            drawn < 0.0
        });
        found.or_else(|| others().next_back()).map_or(0, |(place, _)| place)
    }

    /// Draws two targets, in proportion to the weights; the same one twice if there is no other.
    fn draw_two(&self, dice: &mut RandomStream) -> [usize; 2] {
        if self.equal {
            let one = dice.uniform_below(self.targets.len());
            let other = (one + 1 + dice.uniform_below(self.targets.len().max(2) - 1)) % self.targets.len();
            return [one, other];
        }
        let one = self.draw_weighted(dice, None);
        [one, self.draw_weighted(dice, Some(one))]
    }

    /// Returns the next target of smooth weighted round robin: each gains its weight, and the one with the
    /// greatest credit pays the sum.
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

    /// Returns the first target with a free thread, or else the first of those with the fewest waiting
    /// requests.
    fn first(&self) -> usize {
        let all = || self.known_loads.iter().zip(&self.threads);
        let free = all().position(|(seen, threads)| seen < threads);
        let fewest = || all().enumerate().min_by_key(|(_, (seen, threads))| *seen - *threads);
        free.or_else(|| fewest().map(|(place, _)| place)).unwrap_or_default()
    }

    /// Returns the target with the least load per weight; of several a random one, in proportion to the
    /// weights.
    fn least(&self, dice: &mut RandomStream) -> usize {
        let loads = || (0..self.targets.len()).map(|place| self.load(place));
        let least = loads().fold(f64::INFINITY, f64::min);
        // Tolerate the rounding error of the division.
        let among = || loads().enumerate().filter(|(_, load)| *load <= least * (1.0 + 1e-12));
        let count = among().count();
        if self.equal || count < 2 {
            // Draw even without a choice, so that later draws are the same in models that differ.
            let which = dice.uniform_below(count);
            return among().nth(which).map_or(0, |(place, _)| place);
        }
        let all: f64 = among().map(|(place, _)| self.weights[place]).sum();
        let mut drawn = dice.uniform() * all;
        let found = among().find(|(place, _)| {
            drawn -= self.weights[*place];
            drawn < 0.0
        });
        found.or_else(|| among().next_back()).map_or(0, |(place, _)| place)
    }
}
