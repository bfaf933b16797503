//! A balancer in virtual time: the brain, driven as by the data plane, behind an event loop that may be late.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::meter::Reading;
use plimsoll_brain::{
    Analyzer, Choice, EventKind, GroupSpec, MemberId, MemberSpec, MemberTraffic, OutlierSpec, PickRequest,
    PickerState, Plan, StrategyParams, Time, Urgency, Vitals, WaitQueues, WaitTicket, WaitVerdict,
    WhenAllDown, strategy,
};

use super::composition::Composition;
use super::dice::Dice;

/// An event for the event loop.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Item {
    /// A request has come.
    Arrive(usize),
    /// The head of its answer has come.
    Answer(usize),
    /// Its body has been sent.
    Sent(usize),
    /// Its stream has ended.
    Ended(usize),
    /// Its client has gone.
    Left(usize),
    /// It has waited for room for a while.
    Timer(usize),
    /// The control thread measures the loop's delay.
    Asked(f64),
}

/// The result of a choice.
pub(crate) enum Found {
    Member(usize, Arc<Vitals>),
    /// No member has room.
    Full,
    /// No member is left.
    Nobody,
}

pub(crate) struct Balancer {
    analyzer: Analyzer,
    plan: Plan,
    hand: PickerState,
    turn: u64,
    dice: Dice,
    /// The members by their number in the composition.
    members: Vec<Option<(MemberId, Arc<Vitals>, MemberTraffic)>>,
    /// The number in the composition by the member's id.
    numbers: Vec<usize>,
    line: WaitQueues<usize>,
    tickets: HashMap<usize, WaitTicket>,
    /// `true` if room may have come free since the last look.
    pub(crate) rung: bool,
    /// The event loop: the pending events, and the end of the present one.
    pub(crate) inbox: VecDeque<Item>,
    pub(crate) free_at: f64,
    /// Whether it is to be woken for those, and the end of a stop of the process.
    pub(crate) woken: bool,
    pub(crate) stopped: f64,
    /// The time of the control thread's probe, the longest delay since, and the time of its next look.
    asked: Option<f64>,
    longest: f64,
    pub(crate) due: f64,
    /// The ejections and readmissions that were not examined yet.
    pub(crate) events: Vec<(bool, usize, String)>,
    /// The ejected members.
    pub(crate) out: Vec<bool>,
}

fn spec(strategy: &str, composition: &Composition, there: &[usize]) -> GroupSpec {
    let strategy = strategy::find(strategy).expect("a strategy of this name");
    let member = |index: &usize| {
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
    GroupSpec {
        name: "history".into(),
        strategy,
        params: StrategyParams::defaults(strategy),
        members: there.iter().map(member).collect(),
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
        slow_start: Duration::from_secs(10),
        when_all_down: WhenAllDown::Reject,
        admission: None,
        objective: composition.told.then(|| Duration::from_secs_f64(composition.patience)),
        aperture: None,
    }
}

const CONSECUTIVE: u32 = 5;

/// The minimum interval in which a waiting request looks by itself.
const OFTEN: f64 = 0.02;

impl Balancer {
    pub(crate) fn new(
        strategy: &str,
        composition: &Composition,
        index: usize,
        there: &[usize],
        now: f64,
    ) -> Self {
        let seed = u64::MAX / composition.balancers as u64 * index as u64;
        let mut analyzer = Analyzer::new(spec(strategy, composition, there), time(now));
        analyzer.set_balancer_seed(seed);
        let plan = analyzer.plan(time(now)).expect("the first plan");
        let mut dice = Dice::new(composition.seed, 1000 + index as u64);
        let mut balancer = Self {
            analyzer,
            plan,
            hand: PickerState::new(seed),
            turn: dice.bits(),
            dice,
            members: vec![None; composition.members.len()],
            numbers: Vec::new(),
            line: WaitQueues::default(),
            tickets: HashMap::new(),
            rung: false,
            inbox: VecDeque::new(),
            free_at: now,
            woken: false,
            stopped: now,
            asked: None,
            longest: 0.0,
            due: now,
            events: Vec::new(),
            out: vec![false; composition.members.len()],
        };
        balancer.list(there);
        balancer
    }

    /// Changes the members of the group.
    pub(crate) fn update(&mut self, strategy: &str, composition: &Composition, there: &[usize], now: f64) {
        self.analyzer.update(spec(strategy, composition, there), time(now));
        self.list(there);
        self.settle(now);
        self.rung = true;
    }

    fn list(&mut self, there: &[usize]) {
        let mut before = std::mem::take(&mut self.members);
        self.members = vec![None; before.len()];
        for ((id, _, vitals), index) in self.analyzer.members().zip(there) {
            let place = id.0 as usize;
            self.numbers.resize(self.numbers.len().max(place + 1), usize::MAX);
            self.numbers[place] = *index;
            let known = before[*index].take().filter(|(known, ..)| *known == id);
            self.members[*index] = known.or_else(|| Some((id, vitals.clone(), MemberTraffic::default())));
        }
        for (index, member) in self.members.iter().enumerate() {
            self.out[index] &= member.is_some();
        }
    }

    pub(crate) fn choose(&mut self, now: f64, failed: Option<usize>, insist: bool) -> Found {
        self.turn += 1;
        let ask = PickRequest {
            turn: self.turn,
            random_bits: self.dice.bits(),
            now: time(now),
            may_try_stale: self.line.is_empty() && failed.is_none(),
            ignores_learnt_limits: insist,
            ..PickRequest::default()
        };
        let tried = failed.and_then(|member| self.members[member].as_ref()).map(|(id, ..)| *id);
        match self.plan.choose(&mut self.hand, &ask, tried.as_slice()) {
            Choice::Member(place) => {
                let member = &self.plan.members()[place];
                member.vitals.begin_at(time(now));
                Found::Member(self.numbers[member.id.0 as usize], member.vitals.clone())
            }
            Choice::Full | Choice::Shed => Found::Full,
            Choice::NoMember => Found::Nobody,
        }
    }

    /// Queues a request that found no room, for the first time at `since`. Returns the time of its next look
    /// at the clock; `None` if it is rejected.
    pub(crate) fn wait(&mut self, request: usize, since: f64, now: f64) -> Option<f64> {
        let pace = self.plan.drain_rate(&self.hand);
        let ticket = self.line.enter(Urgency::default(), request, pace, time(since), time(now))?;
        self.tickets.insert(request, ticket);
        Some(self.again(request, since, now))
    }

    /// Returns the time of a waiting request's next look at the clock.
    fn again(&self, request: usize, since: f64, now: f64) -> f64 {
        let until = self.tickets[&request].until.0 as f64 / 1e9 + 1e-9;
        let sojourn = self.plan.drain_rate(&self.hand).sojourn.as_secs_f64();
        until.min(now + sojourn.max(OFTEN).max((now - since) / 2.0))
    }

    /// Handles a timer of a waiting request. `Err`: the time of the next one.
    pub(crate) fn timer(&mut self, request: usize, since: f64, now: f64) -> Result<Option<Found>, f64> {
        let Some(ticket) = self.tickets.get(&request).copied() else { return Ok(None) };
        self.rung |= self.line.is_starved(time(now));
        if now < ticket.until.0 as f64 / 1e9 {
            if self.plan.is_nearly_idle()
                && let found @ Found::Member(..) = self.choose(now, None, false)
            {
                self.leave(request, true, now);
                return Ok(Some(found));
            }
            return Err(self.again(request, since, now));
        }
        let insist = self.line.is_starved(time(now));
        let found = self.choose(now, None, insist);
        self.leave(request, matches!(found, Found::Member(..)), now);
        Ok(Some(found))
    }

    /// Removes a request from the queue.
    pub(crate) fn leave(&mut self, request: usize, served: bool, now: f64) {
        if let Some(ticket) = self.tickets.remove(&request) {
            let called = self.line.leave(ticket, served, time(now));
            self.rung |= called || served;
        }
    }

    /// Returns a waiting request that goes on, or one that is rejected; `None` if all wait on.
    pub(crate) fn turn(&mut self, now: f64) -> Option<(usize, Found)> {
        while std::mem::take(&mut self.rung) {
            let Some(request) = self.line.call().copied() else { break };
            let insist = self.line.is_starved(time(now));
            assert_eq!(self.line.turn(self.tickets[&request]), WaitVerdict::TryAgain);
            match self.choose(now, None, insist) {
                Found::Full => {}
                found => {
                    self.leave(request, matches!(found, Found::Member(..)), now);
                    return Some((request, found));
                }
            }
        }
        let request = self.line.expire_next(time(now))?;
        self.tickets.remove(&request);
        Some((request, Found::Full))
    }

    /// Records the load report in the head of an answer.
    pub(crate) fn hear(&mut self, member: usize, reading: &Reading, now: f64) {
        let Some((id, ..)) = self.members[member] else { return };
        if let Some(place) = self.plan.members().iter().position(|member| member.id == id) {
            self.plan.record_report(&mut self.hand, place, reading, time(now));
        }
    }

    /// Records the end of a request.
    pub(crate) fn observe(&mut self, member: usize, vitals: &Vitals, latency: f64, failed: bool, now: f64) {
        let suspect =
            self.plan.observe(&mut self.hand, vitals, Duration::from_secs_f64(latency), failed, time(now));
        let streak = if failed { vitals.record_failure() } else { 0 };
        if !failed {
            vitals.record_success();
        }
        if let Some((id, _, totals)) = &mut self.members[member] {
            totals.requests += 1;
            totals.failures += u64::from(failed);
            let id = *id;
            if suspect {
                self.analyzer.handle_suspicion(id, time(now));
            }
            if streak >= CONSECUTIVE {
                self.analyzer.handle_streak(id, time(now));
            }
        }
        self.settle(now);
    }

    /// Records that the client of a request has gone.
    pub(crate) fn left(&mut self, vitals: &Vitals, latency: f64, now: f64) {
        self.plan.client_left(&mut self.hand, vitals, Duration::from_secs_f64(latency), time(now));
    }

    /// Takes the control thread's look at the traffic; returns the time of the next one.
    pub(crate) fn look(&mut self, now: f64) -> f64 {
        let mut lag = self.longest.max(now - self.due);
        match self.asked {
            Some(asked) => lag = lag.max(now - asked),
            None => {
                self.asked = Some(now);
                self.inbox.push_back(Item::Asked(now));
            }
        }
        self.longest = 0.0;
        self.analyzer.record_loop_delay(Duration::from_secs_f64(lag.max(0.0)));
        let rest = self.analyzer.watch(true, time(now)).as_secs_f64();
        let totals = self.members.iter().flatten().map(|(id, _, totals)| (*id, *totals));
        let totals: Vec<(MemberId, MemberTraffic)> = totals.collect();
        self.analyzer.handle_totals(&totals, time(now));
        self.settle(now);
        self.due = now + rest;
        self.due
    }

    /// Records the loop's answer to the control thread.
    pub(crate) fn answered(&mut self, asked: f64, now: f64) {
        self.longest = self.longest.max(now - asked);
        self.asked = None;
    }

    /// Returns the time of the brain's next call, if that is before the next look.
    pub(crate) fn wake(&self) -> Option<f64> {
        self.analyzer.poll_timeout().map(|at| at.0 as f64 / 1e9).filter(|at| *at < self.due)
    }

    pub(crate) fn settle(&mut self, now: f64) {
        let now = time(now);
        if self.analyzer.poll_timeout().is_some_and(|due| due <= now) {
            self.analyzer.handle_timeout(now);
        }
        if let Some(plan) = self.analyzer.plan(now) {
            self.plan = plan;
            self.rung |= !self.line.is_empty();
        }
        while let Some(event) = self.analyzer.poll_event() {
            let ejected = match event.kind {
                EventKind::Ejected => true,
                EventKind::Readmitted => false,
                _ => continue,
            };
            if let Some(member) = &event.member {
                let member = number(member);
                self.out[member] = ejected;
                self.events.push((ejected, member, event.why.clone()));
            }
        }
    }

    /// Returns its state in one line, for display.
    pub(crate) fn shown(&self, now: f64) -> String {
        let mut text = format!("{} wait", self.line.len());
        for member in self.plan.members() {
            let (awaiting, limit) = (member.vitals.awaiting(), self.plan.refusal_message(member, time(now)));
            text += &format!(", {} has {awaiting}{}", member.name, limit.map_or("", |_| " and is full"));
        }
        text
    }
}

/// Returns the number of a member in the composition, by its name.
fn number(name: &str) -> usize {
    let address: std::net::SocketAddrV4 = name.parse().expect("an address");
    let [.., high, low] = address.ip().octets();
    usize::from(high) * 256 + usize::from(low)
}

pub(crate) fn time(seconds: f64) -> Time {
    Time((seconds * 1e9) as u64)
}
