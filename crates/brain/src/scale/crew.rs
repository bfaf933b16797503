//! The members that a scaler started: the state of each from the order until it is gone.
//!
//! It is a value driven from outside. [`Crew::add`], [`Crew::remove`], [`Crew::started`], [`Crew::ended`] and
//! the like record what happened, [`Crew::tick`] the time, and [`Crew::poll_order`] returns the next action.
//!
//! ```text
//! asked for -> coming -> serving -> draining -> stopping -> gone
//! ```
//!
//! A member is coming once it was started, and serves once its health checks pass. It fails if it does not
//! serve within `start_deadline`, or ends by itself before it has served for `settled`: it is removed, and
//! the scaler will want another.
//!
//! After a failure no member is started for a pause. The pause doubles with each failure in a row, from
//! `first` to `longest`, less a random part of up to a half. Then members are started one at a time until one
//! has served for `settled`: a wrong command starts no storm.
//!
//! A member to be removed is drained first, and is stopped when it has no work any more, or at
//! `drain_deadline`. A member that could not be used is stopped at once.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Time;

/// The time limits of started members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrewRules {
    /// The time from its start until it must serve.
    pub start_deadline: Duration,
    /// The time from its drain until it is stopped, whatever its work.
    pub drain_deadline: Duration,
    /// The pause after a failure, before the random part is subtracted.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
    /// The time of service after which a member ends a row of failures.
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

/// The state of a started member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The provider was asked to start it.
    Asked,
    /// It was started, and does not serve yet.
    Coming,
    /// It serves.
    Serving,
    /// It gets nothing new, and ends its work.
    Draining,
    /// The provider was asked to stop it.
    Stopping,
}

/// A started member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hand {
    /// The smallest number that no other present member has.
    pub index: u32,
    /// The provider's identifier; empty before the start.
    pub id: String,
    /// Its name in the group (`host:port`), if the provider returns it.
    pub member: Option<Arc<str>>,
    /// The state.
    pub stage: Stage,
    /// The time of the last change of the state.
    pub since: Time,
    /// The time of its start.
    begun: Time,
    /// Whether it had no work at the previous look.
    idle: bool,
    /// The time since which it cannot be used.
    lost: Option<Time>,
    /// The time of the next attempt to stop it.
    again: Option<Time>,
    /// Whether stopping it failed.
    stuck: bool,
}

/// The next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Start a member; the outcome goes to [`Crew::started`].
    Start {
        /// Its number.
        index: u32,
    },
    /// Drain it.
    Drain {
        /// Its number.
        index: u32,
    },
    /// Apply the changed members of the group: [`Crew::members`].
    Tell,
    /// Stop it; the outcome goes to [`Crew::stopped`]. The previous order has removed it from its group.
    Stop {
        /// Its number.
        index: u32,
    },
}

/// The observed state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Whether it can be chosen.
    pub usable: bool,
    /// The requests in flight.
    pub in_flight: u32,
}

/// A notification.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// A member serves, with the time since its start.
    Serves(Arc<str>, Duration),
    /// A member has ended by itself, with the reason.
    Ended(Arc<str>, String),
    /// The provider failed after a success, with the reason and the pause until the next start.
    Failed(String, Duration),
    /// The provider works again, after this number of failures in a row.
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
    /// The time before which none is started.
    not_before: Option<Time>,
    /// The reason of the last failure.
    trouble: Option<String>,
}

impl Crew {
    /// Returns a crew without members.
    pub fn new(rules: CrewRules) -> Self {
        let (hands, orders, news) = (Vec::new(), VecDeque::new(), VecDeque::new());
        Self { rules, hands, orders, news, failures: 0, not_before: None, trouble: None }
    }

    /// Applies other time limits.
    pub fn rule(&mut self, rules: CrewRules) {
        self.rules = rules;
    }

    /// Returns all started members, by number.
    pub fn hands(&self) -> &[Hand] {
        &self.hands
    }

    /// Returns a started member.
    pub fn hand(&self, index: u32) -> Option<&Hand> {
        self.hands.iter().find(|hand| hand.index == index)
    }

    /// Returns the names of the members in the group: those that serve, are coming, or drain.
    pub fn members(&self) -> impl Iterator<Item = &Arc<str>> {
        let there = |hand: &&Hand| matches!(hand.stage, Stage::Coming | Stage::Serving | Stage::Draining);
        self.hands.iter().filter(there).filter_map(|hand| hand.member.as_ref())
    }

    /// Returns the number of members that were ordered and have no name yet.
    pub fn asked(&self) -> u32 {
        self.hands.iter().filter(|hand| hand.stage == Stage::Asked).count() as u32
    }

    /// Returns the number of failures in a row, and the reason of the last one.
    pub fn failures(&self) -> (u32, Option<&str>) {
        (self.failures, self.trouble.as_deref())
    }

    /// Returns the remaining time without starts.
    pub fn pause(&self, now: Time) -> Duration {
        self.not_before.map_or(Duration::ZERO, |until| until.since(now))
    }

    /// Adds a present member that was started earlier: it counts as serving, and is lost if it does not
    /// serve.
    pub fn adopt(&mut self, index: u32, id: String, member: Option<Arc<str>>, now: Time) {
        if self.hand(index).is_none() {
            let hand = Hand { id, member, stage: Stage::Serving, ..Hand::asked(index, now) };
            self.put(hand);
            self.orders.push_back(Order::Tell);
        }
    }

    /// Adds a member from another process, with its state there: unfinished steps are repeated.
    pub fn take_over(&mut self, index: u32, id: String, member: Option<Arc<str>>, stage: Stage, now: Time) {
        // A member that was only ordered has no identity.
        if stage == Stage::Asked || self.hand(index).is_some() {
            return;
        }
        self.put(Hand { id, member, stage, ..Hand::asked(index, now) });
        self.orders.push_back(Order::Tell);
        if stage == Stage::Stopping {
            self.orders.push_back(Order::Stop { index });
        }
    }

    /// Orders more members; returns the number ordered now.
    pub fn add(&mut self, count: u32, now: Time) -> u32 {
        let (pausing, asked) = (!self.pause(now).is_zero(), self.asked());
        let unsettled = self.hands.iter().filter(|hand| matches!(hand.stage, Stage::Asked | Stage::Coming));
        let allowed = match self.failures {
            _ if pausing => 0,
            0 => MOST_ASKED.saturating_sub(asked),
            // One member that shows whether starts succeed now.
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

    /// Removes members by name; returns the number that will be removed.
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

    /// Removes all members.
    pub fn remove_all(&mut self, now: Time) {
        let names: Vec<Arc<str>> = self.hands.iter().filter_map(|hand| hand.member.clone()).collect();
        self.remove(names.iter().map(|name| &**name), now);
    }

    /// Records the outcome of a start. `chance` is random bits.
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
                // Two members of one name could not be distinguished.
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

    /// Records that a member has ended by itself.
    pub fn ended(&mut self, index: u32, why: String, chance: u64, now: Time) {
        let Some(place) = self.hands.iter().position(|hand| hand.index == index) else { return };
        let hand = self.hands.remove(place);
        self.orders.push_back(Order::Tell);
        let settled = now.since(hand.begun) >= self.rules.settled && hand.stage == Stage::Serving;
        match hand.stage {
            // It was to be removed.
            Stage::Stopping | Stage::Draining => return,
            Stage::Asked | Stage::Coming | Stage::Serving => {}
        }
        if let Some(member) = hand.member {
            self.news.push_back(News::Ended(member, why.clone()));
        }
        // A member that worked for that long is no evidence against the next.
        if !settled {
            self.fail(why, chance, now);
        }
    }

    /// Records the outcome of a stop.
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

    /// Advances the time. `look` returns the observed state of a member, by name; `None` for one that the
    /// group does not have.
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
                    // Twice, because a request may be on its way between the choice and the count.
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
        // No member was wanted since, or all were present: the failure was long ago.
        let rests = self.hands.iter().all(|hand| hand.stage == Stage::Serving && hand.lost.is_none());
        let old = self.not_before.is_some_and(|until| now.since(until) >= rules.longest);
        if self.failures > 0 && self.pause(now).is_zero() && (proved || rests && old) {
            self.recover();
        }
    }

    /// Returns the next action.
    pub fn poll_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// Returns the next notification.
    pub fn poll_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// Returns `true` if a step is in progress, so that frequent looks are useful.
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
        // Once for failures in a row, and again if the reason changes.
        if self.trouble.as_ref() != Some(&why) {
            self.news.push_back(News::Failed(why.clone(), pause));
        }
        self.trouble = Some(why);
    }

    /// Returns the smallest free number.
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

/// Returns the predicate of settled members started after the last failure, which show that it is over.
/// Earlier ones do not.
fn settled_since(failed: Option<Time>, settled: impl Fn(&Hand) -> bool) -> impl Fn(&Hand) -> bool {
    move |hand| settled(hand) && failed.is_none_or(|until| hand.begun >= until)
}

/// The maximum number of members ordered at once.
const MOST_ASKED: u32 = 64;
