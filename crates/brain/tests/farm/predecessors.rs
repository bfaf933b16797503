//! Further published policies, and those of the original papers, each with the information that its paper
//! assumes.

use std::collections::VecDeque;

use super::dice::Dice;
use super::{Answer, Fleet, Policy};

/// Join-Idle-Queue (Lu et al. 2011): a member with an idle processor gives a token for it to a random
/// balancer. It knows its number of processors.
pub(crate) struct IdleQueue {
    /// The tokens of each balancer, the oldest first.
    tokens: Vec<VecDeque<usize>>,
    /// The tokens of each member that are given and not used.
    given: Vec<usize>,
    dice: Dice,
    messages: u64,
}

impl IdleQueue {
    pub(crate) fn new(balancers: usize, members: usize, seed: u64) -> Self {
        let tokens = vec![VecDeque::new(); balancers];
        Self { tokens, given: vec![0; members], dice: Dice::new(seed, 8), messages: 0 }
    }
}

impl Policy for IdleQueue {
    fn choose(&mut self, who: usize, _: f64, fleet: &Fleet, _: Option<usize>) -> Option<usize> {
        match self.tokens[who].pop_front() {
            Some(member) => {
                self.given[member] -= 1;
                Some(member)
            }
            None => Some(self.dice.below(fleet.servers.len())),
        }
    }

    fn ended(&mut self, _: usize, _: f64, _: &Answer) {}

    fn seen(&mut self, _: f64, member: usize, fleet: &Fleet) {
        let server = &fleet.servers[member];
        if server.jobs + self.given[member] < server.cores as usize {
            let who = self.dice.below(self.tokens.len());
            self.tokens[who].push_back(member);
            self.given[member] += 1;
            self.messages += 1;
        }
    }

    /// Members without requests give tokens, too.
    fn tick(&mut self, now: f64, fleet: &Fleet) {
        (0..fleet.servers.len()).for_each(|member| self.seen(now, member, fleet));
    }

    fn messages(&self) -> u64 {
        self.messages
    }
}

/// The choice of balancers that share one table of reports.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Rule {
    /// A random one, in proportion to 1 / (load + 1): the lottery of rate.d.
    Lottery,
    /// The least loaded, for each request: Cygnus and TAO. The load that each binding adds until the next
    /// report.
    LeastLoaded { per_balance_load: f64 },
    /// The same for 2000 sessions of requests; one leaves a member that reports more than `critical`.
    Sessions { per_balance_load: f64, critical: f64 },
}

/// Balancers with periodic reports of members: jobs for each processor, averaged over reports.
pub(crate) struct Table {
    rule: Rule,
    every: f64,
    next: f64,
    dampening: f64,
    loads: Vec<f64>,
    sessions: Vec<Option<usize>>,
    dice: Dice,
}

impl Table {
    pub(crate) fn new(rule: Rule, every: f64, members: usize, seed: u64) -> Self {
        let dampening = if rule == Rule::Lottery { 0.0 } else { 0.1 };
        let (loads, sessions) = (vec![0.0; members], vec![None; SESSIONS]);
        Self { rule, every, next: every, dampening, loads, sessions, dice: Dice::new(seed, 9) }
    }

    fn least(&mut self, added: f64) -> usize {
        let loads = &self.loads;
        let best = (0..loads.len()).min_by(|a, b| loads[*a].total_cmp(&loads[*b])).unwrap_or(0);
        self.loads[best] += added;
        best
    }
}

impl Policy for Table {
    fn choose(&mut self, _: usize, _: f64, _: &Fleet, _: Option<usize>) -> Option<usize> {
        Some(match self.rule {
            Rule::Lottery => {
                let tickets = |load: &f64| 1.0 / (load + 1.0);
                let mut left = self.dice.unit() * self.loads.iter().map(tickets).sum::<f64>();
                let won = |load: &f64| {
                    left -= tickets(load);
                    left <= 0.0
                };
                self.loads.iter().position(won).unwrap_or(0)
            }
            Rule::LeastLoaded { per_balance_load } => self.least(per_balance_load),
            Rule::Sessions { per_balance_load, critical } => {
                let session = self.dice.below(SESSIONS);
                match self.sessions[session].filter(|member| self.loads[*member] <= critical) {
                    Some(member) => member,
                    None => {
                        let member = self.least(per_balance_load);
                        self.sessions[session] = Some(member);
                        member
                    }
                }
            }
        })
    }

    fn ended(&mut self, _: usize, _: f64, _: &Answer) {}

    fn tick(&mut self, now: f64, fleet: &Fleet) {
        if now + 1e-9 < self.next {
            return;
        }
        self.next += self.every;
        for (load, server) in self.loads.iter_mut().zip(&fleet.servers) {
            *load = self.dampening * *load + (1.0 - self.dampening) * server.jobs as f64 / server.cores;
        }
    }
}

const SESSIONS: usize = 2000;
