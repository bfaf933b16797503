//! The immutable result of the slow path: who may be chosen, with which weights, and what the strategy
//! prepared to make each choice cheap.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use core::time::Duration;

use crate::fleet::Company;
use crate::member::suspicion;
use crate::meter::Reading;
use crate::strategy::recent;
use crate::time::nanos;
use crate::{Ask, Hand, Knobs, Member, MemberId, Pace, Strategy, Time, Vitals};

mod admission;
mod share;
mod target;

pub use admission::Full;

/// What a strategy computes when members change, so that it need not per request.
#[derive(Clone, Debug)]
pub enum Table {
    /// Nothing to prepare.
    None,
    /// A round in which each member stands as often as its weight says, spread evenly.
    Schedule(Vec<u32>),
    /// For each remainder of a key the index of its member.
    Slots(Vec<u32>),
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
    /// The strategy finds that one more would be too much for each of those that are left: refuse it.
    Shed,
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
    /// Tells plans apart, for [`Hand`].
    serial: u64,
    /// Members of the group that could be chosen when it was made.
    count: usize,
    /// Log-likelihood ratio at which a member is suspected enough to be ejected.
    suspect: f64,
    /// Does no member get more than it can work on (`admission`)?
    admission: bool,
    /// The same where the strategy does not see to it itself.
    guarded: bool,
    /// Within what time clients want their answers.
    objective: Option<Duration>,
    /// Requests that all members together may have from here, where a limit is in force; else 0.
    most: Arc<AtomicU32>,
    /// What is known of other balancers.
    company: Arc<Company>,
}

impl Plan {
    /// Makes a plan over `members`, all of which may be chosen, in the order of the configuration. Knobs that
    /// are missing or out of range are brought into it.
    pub fn new(strategy: &'static Strategy, knobs: Knobs, members: Vec<Member>) -> Self {
        let knobs = knobs.fit(strategy);
        let table = (strategy.prepare)(&members, &knobs);
        let count = members.len();
        let plan = Self {
            strategy,
            knobs,
            members,
            table,
            serial: 0,
            count,
            suspect: f64::INFINITY,
            admission: false,
            guarded: false,
            objective: None,
            most: Arc::default(),
            company: Arc::default(),
        };
        plan.admitting(strategy.limits)
    }

    /// The same rules over no members.
    pub fn bare(&self) -> Self {
        let plan = Self::new(self.strategy, self.knobs.clone(), Vec::new()).admitting(self.admission);
        Self { suspect: self.suspect, count: self.count, objective: self.objective, ..plan }
    }

    /// Gives it a number that no other plan of its group has.
    pub(crate) fn numbered(self, serial: u64) -> Self {
        Self { serial, ..self }
    }

    /// Lets a limit of the whole group be set while the plan is in use.
    pub(crate) fn limited(self, most: Arc<AtomicU32>) -> Self {
        Self { most, ..self }
    }

    /// Lets other balancers be known of while the plan is in use.
    pub fn among(self, company: Arc<Company>) -> Self {
        Self { company, ..self }
    }

    /// How loaded a member is by what is in flight there, here and elsewhere: in requests of all balancers, if each had sent as many
    /// as this one, which is what it comes to where this one is alone.
    #[inline]
    pub(crate) fn crowd(&self, member: &Member) -> f64 {
        f64::from(member.in_flight()) * self.company.scale() + member.vitals.others()
    }

    /// Requests that all balancers together are expected to have at a member: half way between what is known of them, and what
    /// it would be if each had as many there as this one.
    #[inline]
    pub(crate) fn total(&self, member: &Member) -> f64 {
        f64::midpoint(self.crowd(member), f64::from(member.in_flight()))
    }

    /// How many balancers there are, as far as that is known.
    #[inline]
    pub(crate) fn scale(&self) -> f64 {
        self.company.scale()
    }

    /// Are other balancers heard of?
    pub(crate) fn accompanied(&self) -> bool {
        self.company.scale() > 1.0
    }

    /// Did a member say something of itself to another balancer?
    pub(crate) fn spoken(&self) -> bool {
        self.company.speaks()
    }

    /// Lets outcomes make members suspect, with this chance of a false alarm.
    pub(crate) fn suspecting(self, false_alarm: f64) -> Self {
        Self { suspect: suspicion::threshold(false_alarm), ..self }
    }

    /// Chooses a member for one request, never one in `tried` nor one at its limit. Between the choice and
    /// [`Vitals::begin`] another core may take the last place: where a limit must hold exactly, look at what
    /// `begin` returns.
    pub fn choose(&self, hand: &mut Hand, ask: &Ask, tried: &[MemberId]) -> Choice {
        if self.members.is_empty() {
            return Choice::Nobody;
        }
        hand.sit(self.serial, &self.members);
        let first = (self.strategy.choose)(self, hand, ask);
        let out = |member: &Member| {
            member.full()
                || tried.contains(&member.id)
                || (ask.once && member.on_trial(ask.now))
                || (self.guarded && self.barred(member, ask))
        };
        match self.members.get(first) {
            Some(member) if !out(member) => Choice::Member(first),
            _ => self.second_best(hand, ask, tried),
        }
    }

    /// Returns how quickly places come free, for a request that was told [`Choice::Shed`] and may wait in [`WaitQueues`](crate::WaitQueues): by
    /// what requests took from here, else by what they took with the members lately.
    #[cold]
    pub fn pace(&self, hand: &Hand) -> Pace {
        let in_flight = self.sampled(|member| member.vitals.awaiting());
        let sojourn = hand.sojourn();
        if !sojourn.is_zero() {
            return Pace::new(sojourn, in_flight, self.objective);
        }
        let step = self.members.len().div_ceil(SAMPLE).max(1);
        let seen = self.members.iter().step_by(step).filter_map(|member| member.vitals.blended());
        let (sum, count) = seen.fold((0.0, 0.0), |(sum, count), nanos| (sum + nanos, count + 1.0));
        let sojourn = if count > 0.0 { Duration::from_nanos((sum / count) as u64) } else { Duration::ZERO };
        Pace::new(sojourn, in_flight, self.objective)
    }

    /// How long a request is likely to take at best, by what members say of the work that one is, else by what requests took with
    /// them lately; zero where nothing is known. Whoever waits for room and has less time than that left waits in vain.
    #[cold]
    pub fn quickest(&self, now: Time) -> Duration {
        let step = self.members.len().div_ceil(SAMPLE).max(1);
        let takes = |member: &Member| match member.view(now) {
            Some(said) => Some(said.reading.work),
            None => member.vitals.blended().map(|nanos| nanos * 1e-9),
        };
        let least = self.members.iter().step_by(step).filter_map(takes).reduce(f32::min);
        Duration::try_from_secs_f32(least.unwrap_or_default()).unwrap_or_default()
    }

    /// The sum of a count of the members; where there are many, by a sample of them.
    fn sampled(&self, count: impl Fn(&Member) -> u32) -> u32 {
        let step = self.members.len().div_ceil(SAMPLE).max(1);
        let seen: u32 = self.members.iter().step_by(step).map(count).fold(0, u32::saturating_add);
        seen.saturating_mul(step as u32)
    }

    /// Tells how a request ended that was chosen for by this plan or one before: how long it took from the
    /// choice to the end of its answer, and whether it failed. True if the member's outcomes are bad enough to
    /// eject it: [`Analyzer::handle_suspicion`](crate::Analyzer::handle_suspicion) wants to know.
    pub fn observe(
        &self,
        hand: &mut Hand,
        vitals: &Vitals,
        latency: Duration,
        failed: bool,
        now: Time,
    ) -> bool {
        // A limit is in force: it may have failed only because there are too many.
        let limited = vitals.ceiling().is_some() || self.most.load(Relaxed) != 0;
        let swamped = failed && limited && vitals.is_longer(latency);
        self.learn(vitals, latency, failed, now);
        hand.took(latency);
        if failed {
            vitals.lose();
        }
        // That says that there are too many requests, and nothing about the member.
        if swamped {
            return false;
        }
        let sum = vitals.suspicion.record(failed, hand.failing());
        hand.outcome(failed, core::ptr::from_ref(vitals).addr(), self.count);
        failed && sum >= self.suspect
    }

    /// Tells that the client of a request gave it up after so long. It would have taken longer still, so that counts where
    /// it is longer than usual: if only what is answered in time counted, a member would seem the faster the more
    /// clients give up. It is no failure: anybody can give up at once.
    pub fn left(&self, hand: &mut Hand, vitals: &Vitals, latency: Duration, now: Time) {
        vitals.lose();
        if vitals.blended().is_some_and(|usual| nanos(latency) > usual) {
            self.learn(vitals, latency, false, now);
            hand.took(latency);
        }
    }

    /// The part of [`Plan::observe`] that is about the member's latency, for whoever knows no more than that.
    #[inline]
    pub fn learn(&self, vitals: &Vitals, latency: Duration, failed: bool, now: Time) {
        (self.strategy.observe)(&self.knobs, vitals, latency, failed, now);
        if self.guarded && !self.strategy.reads_latency {
            recent(&self.knobs, vitals, latency, failed, now);
        }
    }

    /// Tells what a member, by its index, said of itself with an answer.
    pub fn hear(&self, hand: &mut Hand, index: usize, reading: &Reading, now: Time) {
        if let Some(member) = self.members.get(index) {
            if self.guarded {
                hand.heard = true;
                member.vitals.heard.take(reading, member.vitals.begun(), now);
            }
            (self.strategy.hear)(hand, member, reading, now);
        }
    }

    /// The figures by which the strategy judges a member of the plan, for people, and those by which it has room.
    pub fn explain(&self, member: &Member, now: Time) -> Vec<(&'static str, f64)> {
        let mut figures = (self.strategy.explain)(self, member, now);
        figures.extend(self.figures_of_room(member, now));
        figures
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
}

/// Members whose requests are counted to know how many there are; where there are more, evenly spread ones.
const SAMPLE: usize = 64;

#[cfg(test)]
pub(crate) mod tests {
    use alloc::format;
    use alloc::sync::Arc;

    use super::*;
    use crate::{Shed, State, hash, mix, strategy};

    /// Members that are up, one for each weight, without a limit, idle.
    pub(crate) fn members(weights: &[f64]) -> Vec<Member> {
        let member = |(id, weight): (u8, &f64)| {
            let name = format!("10.0.0.{id}:80");
            Member {
                id: MemberId(u32::from(id)),
                address: name.parse().expect("an address"),
                seed: hash(name.as_bytes()),
                name: Arc::from(name),
                capacity: *weight,
                weight: *weight,
                limit: u32::MAX,
                state: State::Up,
                load: None,
                effective: None,
                usage: None,
                shed: Shed::default(),
                deficit: 0.0,
                vitals: Arc::default(),
            }
        };
        (0..).zip(weights).map(member).collect()
    }

    #[test]
    fn what_can_be_sent_only_once_is_no_trial() {
        for strategy in strategy::ALL {
            let plan = Plan::new(strategy, Knobs::defaults(strategy), members(&[1.0; 3]));
            let chosen = |plan: &Plan, once: bool| {
                let mut counts = [0_u32; 3];
                for turn in 0..300 {
                    let ask = Ask {
                        turn,
                        chance: mix(turn),
                        key: mix(!turn),
                        now: Time(1),
                        once,
                        ..Ask::default()
                    };
                    match plan.choose(&mut Hand::default(), &ask, &[]) {
                        Choice::Member(index) => counts[index] += 1,
                        none => panic!("{}: {none:?}", strategy.name),
                    }
                }
                counts
            };
            plan.members()[0].vitals.suspicion.release(0, Time(1));
            assert_eq!(chosen(&plan, true)[0], 0, "{}", strategy.name);
            assert_ne!(chosen(&plan, false)[0], 0, "{}: others are its trial", strategy.name);
            plan.members().iter().for_each(|member| member.vitals.suspicion.release(0, Time(1)));
            assert_eq!(
                chosen(&plan, true).iter().sum::<u32>(),
                300,
                "{}: it is better than none",
                strategy.name
            );
        }
    }
}
