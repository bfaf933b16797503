//! Our own strategies, as the data plane uses them: an analyzer, a plan and a hand for each balancer.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::meter::Reading;
use plimsoll_brain::{
    Analyzer, Ask, Choice, GroupSpec, Hand, Knobs, MemberId, MemberSpec, OutlierSpec, Plan, Time, Vitals,
    WhenAllDown, strategy,
};

use super::dice::Dice;
use super::{Answer, Fleet, Policy};

/// Balancers with one of our strategies.
pub(crate) struct Ours {
    name: &'static str,
    members: usize,
    balancers: Vec<Balancer>,
    dice: Dice,
    pub(crate) ejections: u64,
}

struct Balancer {
    analyzer: Analyzer,
    plan: Plan,
    hand: Hand,
    vitals: Vec<Arc<Vitals>>,
    turn: u64,
    /// Counted in before it started anew: what ends of it says nothing.
    strangers: u64,
}

impl Ours {
    pub(crate) fn new(name: &'static str, balancers: usize, members: usize, seed: u64) -> Self {
        let mut dice = Dice::new(seed, 77);
        let balancers = (0..balancers)
            .map(|index| Balancer::new(name, members, spread(index, balancers), &mut dice))
            .collect();
        Self { name, members, balancers, dice, ejections: 0 }
    }
}

/// The seeds of hands that know of each other, such as those of one process.
fn spread(index: usize, count: usize) -> u64 {
    u64::MAX / count as u64 * index as u64
}

impl Balancer {
    fn new(name: &str, members: usize, seed: u64, dice: &mut Dice) -> Self {
        let strategy = strategy::find(name).expect("a strategy of this name");
        let member = |index: usize| {
            let name = format!("10.0.{}.{}:80", index / 256, index % 256);
            MemberSpec {
                address: name.parse().expect("an address"),
                name: name.into(),
                capacity: 1.0,
                limit: u32::MAX,
            }
        };
        let spec = GroupSpec {
            name: "farm".into(),
            strategy,
            knobs: Knobs::defaults(strategy),
            members: (0..members).map(member).collect(),
            health: None,
            outlier: Some(OutlierSpec {
                false_alarm: 1e-6,
                consecutive: 0,
                interval: Duration::from_secs(10),
                deviations: 0.0,
                min_requests: 100,
                ejection: Duration::from_secs(10),
                max_ejection: Duration::from_secs(300),
                max_ejected: 0.5,
            }),
            slow_start: Duration::ZERO,
            when_all_down: WhenAllDown::Reject,
        };
        let mut analyzer = Analyzer::new(spec, Time(0));
        let plan = analyzer.plan(Time(0)).expect("the first plan");
        let vitals = analyzer.members().map(|(_, _, vitals)| vitals.clone()).collect();
        Self { analyzer, plan, hand: Hand::new(seed), vitals, turn: dice.bits(), strangers: 0 }
    }

    fn settle(&mut self, now: Time) {
        if self.analyzer.poll_timeout().is_some_and(|due| due <= now) {
            self.analyzer.handle_timeout(now);
        }
        if let Some(plan) = self.analyzer.plan(now) {
            self.plan = plan;
        }
    }
}

fn time(seconds: f64) -> Time {
    Time((seconds * 1e9) as u64)
}

impl Policy for Ours {
    fn choose(&mut self, who: usize, now: f64, _: &Fleet, failed: Option<usize>) -> Option<usize> {
        let balancer = &mut self.balancers[who];
        balancer.turn += 1;
        let ask = Ask { turn: balancer.turn, chance: self.dice.bits(), key: 0, now: time(now) };
        let tried: Vec<MemberId> = failed.map(|member| MemberId(member as u32)).into_iter().collect();
        match balancer.plan.choose(&mut balancer.hand, &ask, &tried) {
            Choice::Member(index) => {
                let member = &balancer.plan.members()[index];
                member.vitals.begin();
                Some(member.id.0 as usize)
            }
            _ => None,
        }
    }

    fn ended(&mut self, who: usize, now: f64, answer: &Answer) {
        let balancer = &mut self.balancers[who];
        let now = time(now);
        let vitals = balancer.vitals[answer.member].clone();
        if vitals.in_flight() == 0 {
            balancer.strangers += 1;
            return;
        }
        vitals.end();
        let id = MemberId(answer.member as u32);
        let latency = Duration::from_secs_f64(answer.latency);
        if let Some(reading) = &answer.reading
            && let Some(index) = balancer.plan.members().iter().position(|member| member.id == id)
        {
            balancer.plan.hear(&mut balancer.hand, index, reading, now);
        }
        if answer.refused {
            return;
        }
        if balancer.plan.observe(&mut balancer.hand, &vitals, latency, answer.failed, now) {
            balancer.analyzer.handle_suspicion(id, now);
            self.ejections += 1;
        }
        balancer.settle(now);
    }

    fn offered(&mut self, who: usize, now: f64, member: usize, reading: &Reading) {
        let balancer = &mut self.balancers[who];
        let id = MemberId(member as u32);
        if let Some(index) = balancer.plan.members().iter().position(|member| member.id == id) {
            balancer.plan.hear(&mut balancer.hand, index, reading, time(now));
        }
    }

    fn tick(&mut self, now: f64, _: &Fleet) {
        for balancer in &mut self.balancers {
            balancer.settle(time(now));
        }
    }

    fn crash(&mut self) {
        let count = self.balancers.len();
        for (index, balancer) in self.balancers.iter_mut().enumerate() {
            *balancer = Balancer::new(self.name, self.members, spread(index, count), &mut self.dice);
        }
    }
}
