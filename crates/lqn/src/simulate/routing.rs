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
    sessions: HashMap<u64, usize>,
}

impl RoutingState {
    pub(super) fn new(
        entry_plan: &CompiledEntry,
        program: &CompiledModel,
        routing: Routing,
        key: u64,
    ) -> Self {
        let targets: Vec<(usize, usize)> =
            entry_plan.forwards.iter().map(|(_, entry)| (*entry, program.entries[*entry].task)).collect();
        let threads = targets.iter().map(|(_, task)| program.tasks[*task].copies.unwrap_or(u32::MAX));
        let mut previous_sum = 0.0;
        let weights = entry_plan.forwards.iter().map(|(sum, _)| {
            let weight = sum - previous_sum;
            previous_sum = *sum;
            weight
        });
        let weights: Vec<f64> = weights.collect();
        let first = weights.first().copied().unwrap_or_default();
        let has_equal_weights = weights.iter().all(|weight| (weight - first).abs() <= 1e-9 * first)
            || weights.iter().any(|weight| *weight <= 0.0);
        Self {
            policy: routing.policy,
            max_age: routing.max_age,
            equal: has_equal_weights,
            threads: threads.collect(),
            targets,
            key,
            next_target: 0,
            credit: vec![0.0; weights.len()],
            known_loads: vec![0; weights.len()],
            sessions: HashMap::new(),
            weights,
        }
    }

    /// Reads the number of requests that wait or are served at each target.
    pub(super) fn refresh_loads(&mut self, loads: &[u32]) {
        for (known_load, (_, task)) in self.known_loads.iter_mut().zip(&self.targets) {
            *known_load = loads[*task];
        }
    }

    /// Returns the next target entry.
    pub(super) fn choose(&mut self, loads: &[u32], session: Option<u64>, random: &mut RandomStream) -> usize {
        if self.max_age == 0.0 {
            self.refresh_loads(loads);
        }
        let index = match self.policy {
            RoutingPolicy::Random => self.random(random),
            RoutingPolicy::RoundRobin => {
                self.next_target = (self.next_target + 1) % self.targets.len();
                self.next_target
            }
            RoutingPolicy::Weighted => self.weighted(),
            RoutingPolicy::LeastLoaded => self.least_loaded(random),
            RoutingPolicy::PowerOfTwo => {
                let [first, second] = self.draw_two(random);
                if self.load(second) < self.load(first) { second } else { first }
            }
            RoutingPolicy::FirstAvailable => self.first_available(),
            RoutingPolicy::Sticky => match session {
                None => self.random(random),
                Some(session) => match self.sessions.get(&session) {
                    Some(index) => *index,
                    None => {
                        // The choice depends on the session only, not on the order of sessions.
                        let index = self.random(&mut RandomStream::new(self.key ^ mix_bits(session)));
                        self.sessions.insert(session, index);
                        index
                    }
                },
            },
        };
        self.targets[index].0
    }

    /// Returns the load of a target divided by its weight, by which a balancer compares members of different
    /// capacity.
    fn load(&self, index: usize) -> f64 {
        let known_load = f64::from(self.known_loads[index]);
        if self.equal { known_load } else { known_load / self.weights[index] }
    }

    fn random(&self, random: &mut RandomStream) -> usize {
        self.draw_weighted(random, None)
    }

    /// Draws a target other than `but`, in proportion to the weights.
    fn draw_weighted(&self, random: &mut RandomStream, excluded: Option<usize>) -> usize {
        let candidates = || self.weights.iter().enumerate().filter(|(index, _)| Some(*index) != excluded);
        let total_weight: f64 = candidates().map(|(_, weight)| weight).sum();
        let mut remaining = random.uniform() * total_weight;
        let chosen = candidates().find(|(_, weight)| {
            remaining -= *weight;
            remaining < 0.0
        });
        chosen.or_else(|| candidates().next_back()).map_or(0, |(index, _)| index)
    }

    /// Draws two targets, in proportion to the weights; the same one twice if there is no other.
    fn draw_two(&self, random: &mut RandomStream) -> [usize; 2] {
        if self.equal {
            let first = random.uniform_below(self.targets.len());
            let second =
                (first + 1 + random.uniform_below(self.targets.len().max(2) - 1)) % self.targets.len();
            return [first, second];
        }
        let first = self.draw_weighted(random, None);
        [first, self.draw_weighted(random, Some(first))]
    }

    /// Returns the next target of smooth weighted round robin: each gains its weight, and the one with the
    /// greatest credit pays the sum.
    fn weighted(&mut self) -> usize {
        let mut best_target = 0;
        for index in 0..self.credit.len() {
            self.credit[index] += self.weights[index];
            if self.credit[index] > self.credit[best_target] {
                best_target = index;
            }
        }
        self.credit[best_target] -= self.weights.iter().sum::<f64>();
        best_target
    }

    /// Returns the first target with a free thread, or else the first of those with the fewest waiting
    /// requests.
    fn first_available(&self) -> usize {
        let loads_and_threads = || self.known_loads.iter().zip(&self.threads);
        let available = loads_and_threads().position(|(load, threads)| load < threads);
        let least_overloaded =
            || loads_and_threads().enumerate().min_by_key(|(_, (load, threads))| *load - *threads);
        available.or_else(|| least_overloaded().map(|(index, _)| index)).unwrap_or_default()
    }

    /// Returns the target with the least load per weight; of several a random one, in proportion to the
    /// weights.
    fn least_loaded(&self, random: &mut RandomStream) -> usize {
        let loads = || (0..self.targets.len()).map(|index| self.load(index));
        let min_load = loads().fold(f64::INFINITY, f64::min);
        // Tolerate the rounding error of the division.
        let least_loaded_targets =
            || loads().enumerate().filter(|(_, load)| *load <= min_load * (1.0 + 1e-12));
        let count = least_loaded_targets().count();
        if self.equal || count < 2 {
            // Draw even without a choice, so that later draws are the same in models that differ.
            let chosen_rank = random.uniform_below(count);
            return least_loaded_targets().nth(chosen_rank).map_or(0, |(index, _)| index);
        }
        let total_weight: f64 = least_loaded_targets().map(|(index, _)| self.weights[index]).sum();
        let mut remaining = random.uniform() * total_weight;
        let chosen = least_loaded_targets().find(|(index, _)| {
            remaining -= self.weights[*index];
            remaining < 0.0
        });
        chosen.or_else(|| least_loaded_targets().next_back()).map_or(0, |(index, _)| index)
    }
}
