//! Our own strategies, driven as by the data plane: an analyzer, a plan and a picker state for each balancer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::fleet::{Fleet as Fellows, FleetGroup, FleetMember, FleetSettings, FleetUpdateKind};
use plimsoll_brain::meter::Reading;
use plimsoll_brain::{
    Analyzer, Choice, EventKind, GroupSpec, MemberId, MemberSpec, MemberTraffic, OutlierSpec, PickRequest,
    PickerState, Plan, StrategyParams, Time, Urgency, Vitals, WaitQueues, WaitTicket, WaitVerdict,
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
    /// The interval of the balancers' exchange of reports, and the lost share, if there is an exchange.
    gossip: Option<(f64, f64)>,
    /// Whether requests have an urgency.
    pub(crate) asks: bool,
}

struct Balancer {
    analyzer: Analyzer,
    plan: Plan,
    hand: PickerState,
    vitals: Vec<Arc<Vitals>>,
    turn: u64,
    /// The requests that wait for room.
    line: WaitQueues<usize>,
    tickets: BTreeMap<usize, (WaitTicket, Urgency)>,
    /// `true` if room may have come free since the last look.
    rung: bool,
    /// Its state of the others, and the number of its reports.
    fellows: Option<(Fellows, u32)>,
    /// The ejections so far, and its counts of each member.
    ejections: u64,
    totals: Vec<MemberTraffic>,
    /// The requests from before its restart, whose ends do not count.
    strangers: u64,
}

impl Ours {
    /// Returns balancers with the strategy `name`, followed by `, admission` to turn that on, and by `,
    /// aperture 10` to use a part of the members.
    pub(crate) fn new(name: &'static str, balancers: usize, members: usize, seed: u64) -> Self {
        let mut dice = Dice::new(seed, 77);
        let balancers = (0..balancers)
            .map(|index| Balancer::new(name, members, spread(index, balancers), &mut dice))
            .collect();
        Self { name, members, balancers, dice, gossip: None, asks: false }
    }

    /// Returns balancers that exchange their observations every `interval` seconds, with a lost share of the
    /// reports.
    pub(crate) fn together(
        name: &'static str,
        balancers: usize,
        members: usize,
        seed: u64,
        (interval, lost): (f64, f64),
    ) -> Self {
        let mut ours = Self::new(name, balancers, members, seed);
        ours.gossip = Some((interval, lost));
        for (who, balancer) in ours.balancers.iter_mut().enumerate() {
            balancer.fellows = Some((balancer.fellows(who as u64 + 1, balancers as u64, interval), 0));
        }
        ours
    }
}

impl Ours {
    /// Returns the ejections by all balancers.
    pub(crate) fn ejections(&self) -> u64 {
        self.balancers.iter().map(|balancer| balancer.ejections).sum()
    }
}

/// The default of the configuration, as are the other settings of ejection.
const CONSECUTIVE: u32 = 5;

/// Returns the seeds of coordinated picker states, such as those of one process.
fn spread(index: usize, count: usize) -> u64 {
    u64::MAX / count as u64 * index as u64
}

impl Balancer {
    fn new(name: &str, members: usize, seed: u64, dice: &mut Dice) -> Self {
        let (name, aperture) = match name.rsplit_once(", aperture ") {
            Some((name, least)) => (name, Some(least.parse().expect("a number"))),
            None => (name, None),
        };
        let (name, objective) = match name.strip_suffix(" ms").and_then(|name| name.rsplit_once(", within "))
        {
            Some((name, millis)) => (name, Some(Duration::from_millis(millis.parse().expect("a number")))),
            None => (name, None),
        };
        let (name, admission) = match name.strip_suffix(", admission") {
            Some(name) => (name, Some(true)),
            None => (name, None),
        };
        let (name, penalty) = match name.strip_suffix(", no penalty") {
            Some(name) => (name, Some(0.0)),
            None => (name, None),
        };
        let strategy = strategy::find(name).expect("a strategy of this name");
        let mut knobs = StrategyParams::defaults(strategy);
        if let (Some(penalty), Some(last)) = (penalty, knobs.0.last_mut()) {
            *last = penalty;
        }
        let member = |index: usize| {
            let name = format!("10.0.{}.{}:80", index / 256, index % 256);
            MemberSpec {
                address: name.parse().expect("an address"),
                name: name.into(),
                capacity: 1.0,
                limit: u32::MAX,
                leaving: false,
                checked: false,
            }
        };
        let spec = GroupSpec {
            name: "farm".into(),
            strategy,
            params: knobs,
            members: (0..members).map(member).collect(),
            health: None,
            outlier: Some(OutlierSpec {
                false_alarm: 1e-6,
                consecutive: CONSECUTIVE,
                interval: Duration::from_secs(10),
                deviations: 1.9,
                min_requests: 100,
                ejection: Duration::from_secs(10),
                max_ejection: Duration::from_secs(300),
                max_ejected: 0.5,
            }),
            slow_start: Duration::ZERO,
            when_all_down: WhenAllDown::Reject,
            admission,
            objective,
            aperture,
        };
        let mut analyzer = Analyzer::new(spec, Time(0));
        analyzer.set_balancer_seed(seed);
        let plan = analyzer.plan(Time(0)).expect("the first plan");
        let vitals = analyzer.members().map(|(_, _, vitals)| vitals.clone()).collect();
        Self {
            analyzer,
            plan,
            hand: PickerState::new(seed),
            vitals,
            turn: dice.bits(),
            line: WaitQueues::default(),
            tickets: BTreeMap::new(),
            rung: false,
            fellows: None,
            ejections: 0,
            totals: vec![MemberTraffic::default(); members],
            strangers: 0,
        }
    }

    fn pick(&mut self, now: f64, failed: Option<usize>, chance: u64) -> Option<usize> {
        self.pick_by(now, failed, chance, false)
    }

    fn pick_by(&mut self, now: f64, failed: Option<usize>, chance: u64, insist: bool) -> Option<usize> {
        self.turn += 1;
        let ask = PickRequest {
            turn: self.turn,
            random_bits: chance,
            key: 0,
            now: time(now),
            single_attempt: false,
            is_session: false,
            binds_client: false,
            may_try_stale: self.line.is_empty() && failed.is_none(),
            ignores_learnt_limits: insist,
        };
        let tried: Vec<MemberId> = failed.map(|member| MemberId(member as u32)).into_iter().collect();
        let Choice::Member(index) = self.plan.choose(&mut self.hand, &ask, &tried) else { return None };
        let member = &self.plan.members()[index];
        member.vitals.begin_at(time(now));
        Some(member.id.0 as usize)
    }

    /// Returns its state of others, which are numbered from 1.
    fn fellows(&self, own: u64, all: u64, interval: f64) -> Fellows {
        let settings = FleetSettings {
            own_id: own,
            interval: Duration::from_secs_f64(interval),
            bytes_per_second: 1e6,
            probers: 1,
            share_retention: Duration::from_secs(60),
        };
        let mut fellows = Fellows::new(settings);
        let members = self.analyzer.members().map(|(_, spec, vitals)| FleetMember {
            name: spec.name.clone(),
            vitals: vitals.clone(),
            limit: spec.limit,
            health_checked: false,
        });
        let (name, company) = ("farm".into(), self.analyzer.peers().clone());
        fellows.set_groups(vec![FleetGroup { name, presence: company, members: members.collect() }], Time(0));
        (1..=all).for_each(|other| fellows.peer_joined(other, Time(0)));
        fellows
    }

    /// Queues reports of its own ejections, and follows those of others now.
    fn confer(&mut self, now: Time) {
        let Some((fellows, _)) = &mut self.fellows else {
            while let Some(event) = self.analyzer.poll_event() {
                self.ejections += u64::from(event.kind == EventKind::Ejected);
            }
            return;
        };
        while let Some(event) = self.analyzer.poll_event() {
            self.ejections += u64::from(event.kind == EventKind::Ejected);
            let input = |name: &str| event.inputs.iter().find(|(of, _)| of == name).map(|(_, value)| *value);
            let lasts = match event.kind {
                EventKind::Ejected if input("told").is_none() => input("seconds").unwrap_or(0.0),
                EventKind::Readmitted => 0.0,
                _ => continue,
            };
            if let Some(member) = &event.member {
                fellows.record_ejection("farm", member, Duration::from_secs_f64(lasts), now);
            }
        }
        while let Some(news) = fellows.poll_update() {
            let found = self.analyzer.members().find(|(_, spec, _)| spec.name == news.member);
            let id = found.map(|(id, ..)| id);
            if let (FleetUpdateKind::Ejected { remaining: left, .. }, Some(id)) = (news.kind, id) {
                self.analyzer.handle_peer_ejection(id, left, "another", now);
            }
        }
    }

    fn settle(&mut self, now: Time) {
        self.confer(now);
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
        let chance = self.dice.bits();
        let balancer = &mut self.balancers[who];
        let member = balancer.pick(now, failed, chance)?;
        // If one found room there may be more.
        balancer.rung = !balancer.line.is_empty();
        Some(member)
    }

    fn outranked(&self, who: usize, urgency: Urgency) -> bool {
        self.balancers[who].line.has_more_urgent(urgency)
    }

    fn wait(&mut self, who: usize, now: f64, since: f64, flight: usize, urgency: Urgency) -> Option<f64> {
        let balancer = &mut self.balancers[who];
        let (plan, hand) = (&balancer.plan, &balancer.hand);
        let pace = plan.drain_rate(hand);
        let ticket = balancer.line.enter(urgency, flight, pace, time(since), time(now))?;
        balancer.tickets.insert(flight, (ticket, urgency));
        Some(ticket.until.0 as f64 / 1e9)
    }

    fn turns(&mut self, who: usize, now: f64, _: &Fleet) -> Vec<(usize, Option<usize>)> {
        let mut turns = Vec::new();
        let balancer = &mut self.balancers[who];
        while (std::mem::take(&mut balancer.rung) || balancer.line.is_starved(time(now)))
            && let Some(flight) = balancer.line.call().copied()
        {
            let insist = balancer.line.is_starved(time(now));
            let (ticket, _) = balancer.tickets[&flight];
            assert_eq!(balancer.line.turn(ticket), WaitVerdict::TryAgain);
            if let Some(member) = balancer.pick_by(now, None, self.dice.bits(), insist) {
                balancer.line.leave(ticket, true, time(now));
                balancer.tickets.remove(&flight);
                turns.push((flight, Some(member)));
                balancer.rung = true;
            } else if insist {
                break;
            }
        }
        while let Some(flight) = balancer.line.expire_next(time(now)) {
            balancer.tickets.remove(&flight);
            turns.push((flight, None));
        }
        turns
    }

    fn late(&mut self, who: usize, now: f64, flight: usize) -> Option<Option<usize>> {
        let chance = self.dice.bits();
        let balancer = &mut self.balancers[who];
        let (ticket, urgency) = balancer.tickets.remove(&flight)?;
        let outranked = balancer.line.has_more_urgent(urgency);
        let member = if outranked { None } else { balancer.pick(now, None, chance) };
        balancer.line.leave(ticket, member.is_some(), time(now));
        balancer.rung |= member.is_some();
        Some(member)
    }

    fn left(&mut self, who: usize, now: f64, flight: usize) {
        let balancer = &mut self.balancers[who];
        if let Some((ticket, _)) = balancer.tickets.remove(&flight) {
            balancer.line.leave(ticket, false, time(now));
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
        let id = MemberId(answer.member as u32);
        // The load report is in the head of the answer.
        if let Some(reading) = &answer.reading
            && let Some(index) = balancer.plan.members().iter().position(|member| member.id == id)
        {
            balancer.plan.record_report(&mut balancer.hand, index, reading, now);
        }
        vitals.end();
        // The end of a rejected one freed no room.
        balancer.rung |= !answer.refused;
        let latency = Duration::from_secs_f64(answer.latency);
        if answer.left {
            balancer.plan.client_left(&mut balancer.hand, &vitals, latency, now);
        }
        if answer.refused || answer.left {
            return;
        }
        let totals = &mut balancer.totals[answer.member];
        totals.requests += 1;
        totals.failures += u64::from(answer.failed);
        if !answer.failed {
            vitals.record_success();
        } else if vitals.record_failure() >= CONSECUTIVE {
            balancer.analyzer.handle_streak(id, now);
        }
        if balancer.plan.observe(&mut balancer.hand, &vitals, latency, answer.failed, now) {
            balancer.analyzer.handle_suspicion(id, now);
        }
        balancer.settle(now);
    }

    fn offered(&mut self, who: usize, now: f64, member: usize, reading: &Reading) {
        let balancer = &mut self.balancers[who];
        let id = MemberId(member as u32);
        if let Some(index) = balancer.plan.members().iter().position(|member| member.id == id) {
            balancer.plan.record_report(&mut balancer.hand, index, reading, time(now));
        }
    }

    fn tick(&mut self, now: f64, _: &Fleet) {
        for balancer in &mut self.balancers {
            balancer.analyzer.watch(true, time(now));
            let totals = balancer.totals.iter().zip(0..).map(|(totals, id)| (MemberId(id), *totals));
            let totals: Vec<(MemberId, MemberTraffic)> = totals.collect();
            balancer.analyzer.handle_totals(&totals, time(now));
            balancer.settle(time(now));
        }
    }

    fn interval(&self) -> Option<f64> {
        self.gossip.map(|(interval, _)| interval)
    }

    fn tell(&mut self, who: usize, now: f64) {
        let Some((_, lost)) = self.gossip else { return };
        let Some((fellows, _)) = &mut self.balancers[who].fellows else { return };
        fellows.age_reports(time(now));
        for report in fellows.poll_reports(time(now)) {
            let Some((_, seq)) = &mut self.balancers[who].fellows else { return };
            *seq += 1;
            let seq = *seq;
            for (other, balancer) in self.balancers.iter_mut().enumerate().filter(|(other, _)| *other != who)
            {
                let arrives = self.dice.unit() >= lost;
                if let (true, Some((fellows, _))) = (arrives && other != who, &mut balancer.fellows) {
                    fellows.receive_report(who as u64 + 1, seq, &report, time(now));
                }
            }
        }
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
