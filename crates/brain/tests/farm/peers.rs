//! Published policies, for comparison, each with the information that its paper assumes.

use std::collections::VecDeque;

use super::dice::Dice;
use super::{Answer, Fleet, Policy};

/// A policy with complete information that takes the member where this request ends soonest (shortest
/// expected delay).
pub(crate) struct Oracle {
    sent: Vec<u64>,
    dice: Dice,
}

impl Oracle {
    pub(crate) fn new(members: usize, seed: u64) -> Self {
        Self { sent: vec![0; members], dice: Dice::new(seed, 5) }
    }
}

impl Policy for Oracle {
    fn choose(&mut self, _: usize, _: f64, fleet: &Fleet, _: Option<usize>) -> Option<usize> {
        let delay = |index: usize| {
            let server = &fleet.servers[index];
            let jobs = self.sent[index] as f64 + 1.0;
            (jobs / server.cores).max(1.0) / (server.speed * server.g)
        };
        let start = self.dice.below(fleet.servers.len());
        let order = (0..fleet.servers.len()).map(|turn| (start + turn) % fleet.servers.len());
        let best = order.min_by(|a, b| delay(*a).total_cmp(&delay(*b)))?;
        self.sent[best] += 1;
        Some(best)
    }

    fn ended(&mut self, _: usize, _: f64, answer: &Answer) {
        self.sent[answer.member] -= 1;
    }
}

/// Prequal (Wydrowski et al., NSDI 2024): probes of requests in flight and latency, kept in a pool; hot ones
/// by a quantile, the fastest of the cold ones.
pub(crate) struct Prequal {
    probes: usize,
    quantile: f64,
    /// With ejection after five failures in a row: the failures, the ejections, and the end, for each
    /// balancer and member.
    ejects: Option<Vec<(u32, u32, f64)>>,
    pools: Vec<Pool>,
    dice: Dice,
    messages: u64,
}

#[derive(Default)]
struct Pool {
    probes: VecDeque<Probe>,
    /// The requests in flight of the last probes, for the quantile.
    seen: VecDeque<u32>,
    worst_next: bool,
}

#[derive(Clone)]
struct Probe {
    member: usize,
    ready: f64,
    in_flight: u32,
    latency: f64,
    uses: f64,
}

impl Prequal {
    /// Returns the policy. The paper has 3 probes for each request and a quantile of 0.84.
    pub(crate) fn new(probes: usize, quantile: f64, balancers: usize, seed: u64) -> Self {
        let pools = (0..balancers).map(|_| Pool::default()).collect();
        Self { probes, quantile, ejects: None, pools, dice: Dice::new(seed, 6), messages: 0 }
    }
}

impl Prequal {
    /// Returns the policy with ejection after five failures in a row, for 10 s, then 20 ...
    pub(crate) fn ejecting(self, members: usize) -> Self {
        Self { ejects: Some(vec![(0, 0, 0.0); self.pools.len() * members]), ..self }
    }
}

impl Policy for Prequal {
    fn choose(&mut self, who: usize, now: f64, fleet: &Fleet, _: Option<usize>) -> Option<usize> {
        let members = fleet.servers.len();
        let of = self.ejects.as_ref().map(|of| &of[who * members..][..members]);
        let out = |member: usize| of.is_some_and(|of| of[member].2 > now);
        self.pools[who].probes.retain(|probe| !out(probe.member));
        let pool = &mut self.pools[who];
        pool.probes.retain(|probe| now - probe.ready < 1.0);
        let ready: Vec<usize> =
            (0..pool.probes.len()).filter(|index| pool.probes[*index].ready <= now).collect();
        let mut seen: Vec<u32> = pool.seen.iter().copied().collect();
        let rank = (self.quantile * seen.len() as f64) as usize;
        let hot = if rank < seen.len() { *seen.select_nth_unstable(rank).1 } else { u32::MAX };
        let is_cold = |index: &&usize| pool.probes[**index].in_flight < hot;
        let fastest = |a: &&usize, b: &&usize| pool.probes[**a].latency.total_cmp(&pool.probes[**b].latency);
        let cold = ready.iter().filter(is_cold).min_by(fastest);
        let chosen =
            cold.or_else(|| ready.iter().min_by_key(|index| pool.probes[**index].in_flight)).copied();
        let member = match chosen {
            Some(index) if ready.len() >= 2 => {
                let probe = &mut pool.probes[index];
                // The request is in flight there, whatever the probe's figure.
                probe.in_flight += 1;
                probe.uses -= 1.0;
                let member = probe.member;
                if probe.uses < self.dice.unit() {
                    pool.probes.remove(index);
                }
                member
            }
            _ => loop {
                let drawn = self.dice.below(members);
                if !out(drawn) {
                    break drawn;
                }
            },
        };
        // Each request removes one: the oldest and the worst in turn.
        pool.worst_next = !pool.worst_next;
        if pool.probes.len() > 1 {
            let worst = (0..pool.probes.len()).max_by_key(|index| pool.probes[*index].in_flight).unwrap_or(0);
            pool.probes.remove(if pool.worst_next { worst } else { 0 });
        }
        let rate = (1.0 - 16.0 / members as f64) * self.probes as f64 - 1.0;
        for _ in 0..self.probes {
            let target = self.dice.below(members);
            let in_flight = fleet.servers[target].jobs as u32;
            let probe = Probe {
                member: target,
                ready: now + 2.0 * fleet.network,
                in_flight,
                latency: fleet.servers[target].usual_latency(),
                uses: (2.0 / rate.max(0.1)).max(1.0),
            };
            pool.seen.push_back(in_flight);
            if pool.seen.len() > 128 {
                pool.seen.pop_front();
            }
            if pool.probes.len() == 16 {
                pool.probes.pop_front();
            }
            pool.probes.push_back(probe);
            self.messages += 1;
        }
        Some(member)
    }

    fn ended(&mut self, who: usize, now: f64, answer: &Answer) {
        let Some(of) = &mut self.ejects else { return };
        let members = of.len() / self.pools.len();
        let (streak, times, until) = &mut of[who * members + answer.member];
        *streak = if answer.failed { *streak + 1 } else { 0 };
        if *streak >= 5 {
            *times += 1;
            (*streak, *until) = (0, now + 10.0 * f64::from(*times));
        }
    }

    fn messages(&self) -> u64 {
        self.messages
    }
}

/// Weighted round robin by periodic reports of members (gRPC proposal A58): requests per second over
/// utilization.
pub(crate) struct Reported {
    every: f64,
    next: f64,
    weights: Vec<f64>,
    before: Vec<(u64, f64, u64)>,
    /// The deadlines for earliest deadline first, for each balancer.
    deadlines: Vec<Vec<f64>>,
}

impl Reported {
    pub(crate) fn new(every: f64, balancers: usize, members: usize, seed: u64) -> Self {
        let mut dice = Dice::new(seed, 7);
        let deadlines = (0..balancers).map(|_| (0..members).map(|_| dice.unit()).collect()).collect();
        Self {
            every,
            next: every,
            weights: vec![1.0; members],
            before: vec![(0, 0.0, 0); members],
            deadlines,
        }
    }
}

impl Policy for Reported {
    fn choose(&mut self, who: usize, _: f64, _: &Fleet, _: Option<usize>) -> Option<usize> {
        let deadlines = &mut self.deadlines[who];
        let first = (0..deadlines.len()).min_by(|a, b| deadlines[*a].total_cmp(&deadlines[*b]))?;
        deadlines[first] += 1.0 / self.weights[first];
        Some(first)
    }

    fn ended(&mut self, _: usize, _: f64, _: &Answer) {}

    fn tick(&mut self, now: f64, fleet: &Fleet) {
        if now + 1e-9 < self.next {
            return;
        }
        self.next += self.every;
        let weights: Vec<f64> = fleet
            .servers
            .iter()
            .zip(&mut self.before)
            .map(|(server, before)| {
                let rate = (server.received - before.0) as f64 / self.every;
                let used = (server.busy - before.1) / self.every / server.cores;
                let errors = (server.failures - before.2) as f64 / self.every;
                *before = (server.received, server.busy, server.failures);
                // With its error penalty of 1.
                let used = used + if rate > 0.0 { errors / rate } else { 0.0 };
                if rate > 0.0 && used > 0.0 { rate / used } else { f64::NAN }
            })
            .collect();
        let known: Vec<f64> = weights.iter().copied().filter(|weight| weight.is_finite()).collect();
        let mean = known.iter().sum::<f64>() / known.len().max(1) as f64;
        if mean > 0.0 {
            self.weights =
                weights.iter().map(|weight| if weight.is_finite() { weight / mean } else { 1.0 }).collect();
        }
    }
}
