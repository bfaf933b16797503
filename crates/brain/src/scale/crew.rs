//! The members that a scaler started: what becomes of each, from being asked for until it is gone.
//!
//! A value driven from outside: [`Crew::add`], [`Crew::remove`], [`Crew::started`], [`Crew::ended`] and their kin say what happened,
//! [`Crew::tick`] that time goes on, and [`Crew::poll_order`] what is to be done.
//!
//! ```text
//! asked for -> coming -> serving -> draining -> stopping -> gone
//! ```
//!
//! A member is coming once it was started, and serves once its health checks pass. One that does not within `start_deadline`, or ends
//! by itself before it has served for `settled`, is a failure: it goes, and whoever decides will want another. After a failure none is started for a pause that doubles
//! with each failure in a row, from `first` to `longest`, of which a random part of up to a half is taken off, and then one at a time
//! until one has served for `settled`: a command that is wrong starts no storm. A member that goes is drained first, and is stopped
//! when it works on nothing any more, or at `drain_deadline`; one that could not be used is stopped at once.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Time;

/// How long what takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrewRules {
    /// From being started until it has to serve.
    pub start_deadline: Duration,
    /// From being drained until it is stopped, whatever it works on.
    pub drain_deadline: Duration,
    /// Pause after a failure, before the random part is taken off.
    pub first: Duration,
    /// Longest pause.
    pub longest: Duration,
    /// Who served for so long has not failed in a row.
    pub settled: Duration,
}

impl Default for CrewRules {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            start_deadline: seconds(60),
            drain_deadline: seconds(30),
            first: seconds(1),
            longest: seconds(60),
            settled: seconds(30),
        }
    }
}

/// What a member that was started is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Whoever starts it was asked to.
    Asked,
    /// It was started, and does not serve yet.
    Coming,
    /// It serves.
    Serving,
    /// It gets nothing new, and ends its work.
    Draining,
    /// Whoever stops it was asked to.
    Stopping,
}

/// A member that was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hand {
    /// Different from those of all others that are there; the smallest that is free.
    pub index: u32,
    /// By which whoever started it knows it; empty before.
    pub id: String,
    /// Its name in the group (`host:port`), if whoever started it says so.
    pub member: Option<Arc<str>>,
    /// What it is doing.
    pub stage: Stage,
    /// Since when.
    pub since: Time,
    /// When it was started.
    begun: Time,
    /// It worked on nothing at the look before.
    idle: bool,
    /// It cannot be used, since then.
    lost: Option<Time>,
    /// When stopping it is tried again.
    again: Option<Time>,
    /// Stopping it failed.
    stuck: bool,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Start a member; say so with [`Crew::started`].
    Start {
        /// Its number.
        index: u32,
    },
    /// Drain it.
    Drain {
        /// Its number.
        index: u32,
    },
    /// The group has other members than before: [`Crew::members`].
    Tell,
    /// Stop it; say so with [`Crew::stopped`]. It is in no group any more when this is carried out after the order before it.
    Stop {
        /// Its number.
        index: u32,
    },
}

/// How a member does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Can it be chosen?
    pub usable: bool,
    /// What it works on.
    pub in_flight: u32,
}

/// What there is to be told.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// A member serves, so long after it was started.
    Serves(Arc<str>, Duration),
    /// A member that was there is gone, by itself: why.
    Ended(Arc<str>, String),
    /// Whoever starts and stops failed, after it had not: why, and how long nothing is started now.
    Failed(String, Duration),
    /// It does not fail any more; after so many failures in a row.
    Recovered(u32),
}

/// The members that a scaler started.
#[derive(Clone, Debug)]
pub struct Crew {
    rules: CrewRules,
    hands: Vec<Hand>,
    orders: VecDeque<Order>,
    news: VecDeque<News>,
    failures: u32,
    /// None is started before.
    not_before: Option<Time>,
    /// Why the last failure was one.
    trouble: Option<String>,
}

impl Crew {
    /// Nobody.
    pub fn new(rules: CrewRules) -> Self {
        let (hands, orders, news) = (Vec::new(), VecDeque::new(), VecDeque::new());
        Self { rules, hands, orders, news, failures: 0, not_before: None, trouble: None }
    }

    /// Other rules from now on.
    pub fn rule(&mut self, rules: CrewRules) {
        self.rules = rules;
    }

    /// All of them, by number.
    pub fn hands(&self) -> &[Hand] {
        &self.hands
    }

    /// One of them.
    pub fn hand(&self, index: u32) -> Option<&Hand> {
        self.hands.iter().find(|hand| hand.index == index)
    }

    /// Names of those who are in the group: those who serve, are coming, or end their work.
    pub fn members(&self) -> impl Iterator<Item = &Arc<str>> {
        let there = |hand: &&Hand| matches!(hand.stage, Stage::Coming | Stage::Serving | Stage::Draining);
        self.hands.iter().filter(there).filter_map(|hand| hand.member.as_ref())
    }

    /// Those who were asked for and have no name yet.
    pub fn asked(&self) -> u32 {
        self.hands.iter().filter(|hand| hand.stage == Stage::Asked).count() as u32
    }

    /// Failures in a row, and why the last one was.
    pub fn failures(&self) -> (u32, Option<&str>) {
        (self.failures, self.trouble.as_deref())
    }

    /// How long none is started yet.
    pub fn pause(&self, now: Time) -> Duration {
        self.not_before.map_or(Duration::ZERO, |until| until.since(now))
    }

    /// One that is there already, started by somebody before: it counts as one that serves, and is lost if it does not.
    pub fn adopt(&mut self, index: u32, id: String, member: Option<Arc<str>>, now: Time) {
        if self.hand(index).is_none() {
            let hand = Hand { id, member, stage: Stage::Serving, ..Hand::asked(index, now) };
            self.put(hand);
            self.orders.push_back(Order::Tell);
        }
    }

    /// One that another process was looking after, and how far that had come: what it had not finished is begun again.
    pub fn take_over(&mut self, index: u32, id: String, member: Option<Arc<str>>, stage: Stage, now: Time) {
        // Of one that was not there yet nobody knows anything.
        if stage == Stage::Asked || self.hand(index).is_some() {
            return;
        }
        self.put(Hand { id, member, stage, ..Hand::asked(index, now) });
        self.orders.push_back(Order::Tell);
        if stage == Stage::Stopping {
            self.orders.push_back(Order::Stop { index });
        }
    }

    /// More are wanted: how many of them are asked for now.
    pub fn add(&mut self, count: u32, now: Time) -> u32 {
        let (pausing, asked) = (!self.pause(now).is_zero(), self.asked());
        let unsettled = self.hands.iter().filter(|hand| matches!(hand.stage, Stage::Asked | Stage::Coming));
        let allowed = match self.failures {
            _ if pausing => 0,
            0 => MOST_ASKED.saturating_sub(asked),
            // One that shows whether it works now.
            _ => 1_u32.saturating_sub(unsettled.count() as u32),
        };
        let count = count.min(allowed);
        for _ in 0..count {
            let index = self.free();
            self.put(Hand::asked(index, now));
            self.orders.push_back(Order::Start { index });
        }
        count
    }

    /// These are to go, by name; how many of them will.
    pub fn remove<'a>(&mut self, members: impl IntoIterator<Item = &'a str>, now: Time) -> u32 {
        let mut count = 0;
        for member in members {
            let known = |hand: &&mut Hand| hand.member.as_deref() == Some(member);
            let Some(hand) = self.hands.iter_mut().find(known) else { continue };
            let index = hand.index;
            match hand.stage {
                Stage::Serving => {
                    hand.enter(Stage::Draining, now);
                    self.orders.push_back(Order::Drain { index });
                }
                // It has no work that could end.
                Stage::Coming => self.stop(index, now),
                Stage::Asked | Stage::Draining | Stage::Stopping => continue,
            }
            count += 1;
        }
        count
    }

    /// All are to go.
    pub fn remove_all(&mut self, now: Time) {
        let names: Vec<Arc<str>> = self.hands.iter().filter_map(|hand| hand.member.clone()).collect();
        self.remove(names.iter().map(|name| &**name), now);
    }

    /// Whoever was asked to start one did, or says why not. `chance` is random bits.
    pub fn started(
        &mut self,
        index: u32,
        outcome: Result<(String, Option<Arc<str>>), String>,
        chance: u64,
        now: Time,
    ) {
        let Some(place) =
            self.hands.iter().position(|hand| hand.index == index && hand.stage == Stage::Asked)
        else {
            return;
        };
        match outcome {
            Ok((id, member)) => {
                // Two of one name would be told apart by nobody.
                let taken = member.is_some() && self.hands.iter().any(|hand| hand.member == member);
                let hand = &mut self.hands[place];
                (hand.id, hand.begun) = (id, now);
                if taken {
                    hand.enter(Stage::Coming, now);
                    self.stop(index, now);
                    self.fail("the member that was started has the name of another one".into(), chance, now);
                    return;
                }
                hand.member = member;
                hand.enter(Stage::Coming, now);
                self.orders.push_back(Order::Tell);
            }
            Err(why) => {
                self.hands.remove(place);
                self.fail(why, chance, now);
            }
        }
    }

    /// One is gone by itself.
    pub fn ended(&mut self, index: u32, why: String, chance: u64, now: Time) {
        let Some(place) = self.hands.iter().position(|hand| hand.index == index) else { return };
        let hand = self.hands.remove(place);
        self.orders.push_back(Order::Tell);
        let settled = now.since(hand.begun) >= self.rules.settled && hand.stage == Stage::Serving;
        match hand.stage {
            // It was to go.
            Stage::Stopping | Stage::Draining => return,
            Stage::Asked | Stage::Coming | Stage::Serving => {}
        }
        if let Some(member) = hand.member {
            self.news.push_back(News::Ended(member, why.clone()));
        }
        // One that worked for so long says nothing against the next.
        if !settled {
            self.fail(why, chance, now);
        }
    }

    /// Whoever was asked to stop one did, or says why not.
    pub fn stopped(&mut self, index: u32, outcome: Result<(), String>, chance: u64, now: Time) {
        let Some(place) = self.hands.iter().position(|hand| hand.index == index) else { return };
        match outcome {
            Ok(()) => {
                if self.hands.remove(place).stuck {
                    self.recover();
                }
            }
            Err(why) => {
                self.fail(why, chance, now);
                let hand = &mut self.hands[place];
                (hand.again, hand.stuck) = (self.not_before, true);
            }
        }
    }

    /// Time goes on. `look`: how a member does, by name; `None` for one that the group does not have.
    pub fn tick(&mut self, look: impl Fn(&str) -> Option<Found>, chance: u64, now: Time) {
        let rules = self.rules;
        let (mut stop, mut late) = (Vec::new(), None);
        for hand in &mut self.hands {
            let found = hand.member.as_deref().and_then(&look);
            let usable = found.is_some_and(|found| found.usable);
            let idle = found.is_none_or(|found| found.in_flight == 0);
            match hand.stage {
                Stage::Asked => {}
                Stage::Coming if usable || hand.member.is_none() => {
                    let took = now.since(hand.begun);
                    if let Some(member) = &hand.member {
                        self.news.push_back(News::Serves(Arc::clone(member), took));
                    }
                    hand.enter(Stage::Serving, now);
                }
                Stage::Coming => {
                    if now.since(hand.begun) >= rules.start_deadline {
                        let name = hand.member.as_deref().unwrap_or_default();
                        late = Some(alloc::format!(
                            "{name} could not be used within {} s of being started",
                            rules.start_deadline.as_secs_f64()
                        ));
                        stop.push(hand.index);
                    }
                }
                Stage::Serving => {
                    let lost = hand.member.is_some() && !usable;
                    hand.lost = lost.then(|| hand.lost.unwrap_or(now));
                    if hand.lost.is_some_and(|since| now.since(since) >= rules.start_deadline) {
                        stop.push(hand.index);
                    }
                }
                Stage::Draining => {
                    // Twice, for a request may be on its way from being sent there to being counted.
                    if (idle && hand.idle) || now.since(hand.since) >= rules.drain_deadline {
                        stop.push(hand.index);
                    }
                    hand.idle = idle;
                }
                Stage::Stopping => {
                    if hand.again.is_some_and(|again| again <= now) {
                        hand.again = None;
                        self.orders.push_back(Order::Stop { index: hand.index });
                    }
                }
            }
        }
        for index in stop {
            self.stop(index, now);
        }
        if let Some(why) = late {
            self.fail(why, chance, now);
        }
        let settled = |hand: &Hand| hand.stage == Stage::Serving && now.since(hand.since) >= rules.settled;
        let proved = self.hands.iter().any(settled_since(self.not_before, settled));
        // Nobody was wanted since, or all were there: that was long ago.
        let rests = self.hands.iter().all(|hand| hand.stage == Stage::Serving && hand.lost.is_none());
        let old = self.not_before.is_some_and(|until| now.since(until) >= rules.longest);
        if self.failures > 0 && self.pause(now).is_zero() && (proved || rests && old) {
            self.recover();
        }
    }

    /// What is to be done next.
    pub fn poll_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// What there is to be told next.
    pub fn poll_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// Is anything on its way, so that it is worth looking often?
    pub fn busy(&self) -> bool {
        self.hands.iter().any(|hand| hand.stage != Stage::Serving)
    }

    fn stop(&mut self, index: u32, now: Time) {
        if let Some(hand) = self.hands.iter_mut().find(|hand| hand.index == index) {
            hand.enter(Stage::Stopping, now);
            self.orders.push_back(Order::Tell);
            self.orders.push_back(Order::Stop { index });
        }
    }

    fn recover(&mut self) {
        if self.failures > 0 {
            self.news.push_back(News::Recovered(self.failures));
            (self.failures, self.trouble, self.not_before) = (0, None, None);
        }
    }

    fn fail(&mut self, why: String, chance: u64, now: Time) {
        self.failures = self.failures.saturating_add(1);
        let doubled = self.rules.first.saturating_mul(1 << (self.failures - 1).min(20));
        let whole = doubled.min(self.rules.longest);
        let off = (whole.as_nanos() / 2 * u128::from(chance >> 32)) >> 32;
        let pause = whole.saturating_sub(Duration::from_nanos(u64::try_from(off).unwrap_or(u64::MAX)));
        self.not_before = Some(now + pause);
        // Once for failures in a row, and again when they are of another kind.
        if self.trouble.as_ref() != Some(&why) {
            self.news.push_back(News::Failed(why.clone(), pause));
        }
        self.trouble = Some(why);
    }

    /// The smallest number that nobody has.
    fn free(&self) -> u32 {
        let mut index = 0;
        for hand in &self.hands {
            if hand.index != index {
                break;
            }
            index += 1;
        }
        index
    }

    fn put(&mut self, hand: Hand) {
        let place = self.hands.partition_point(|other| other.index < hand.index);
        self.hands.insert(place, hand);
    }
}

impl Hand {
    fn asked(index: u32, now: Time) -> Self {
        let (id, member, stage, idle) = (String::new(), None, Stage::Asked, false);
        Self { index, id, member, stage, since: now, begun: now, idle, lost: None, again: None, stuck: false }
    }

    fn enter(&mut self, stage: Stage, now: Time) {
        (self.stage, self.since, self.idle, self.lost) = (stage, now, false, None);
    }
}

/// Those that were started after the last failure tell whether it is over; what was there before it does not.
fn settled_since(failed: Option<Time>, settled: impl Fn(&Hand) -> bool) -> impl Fn(&Hand) -> bool {
    move |hand| settled(hand) && failed.is_none_or(|until| hand.begun >= until)
}

/// Members that are asked for at once.
const MOST_ASKED: u32 = 64;
