//! One group with a scaler: it looks, has the brain decide, and has a provider act.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::scale::crew::{Crew, Found, Hand, Order, Stage};
use plimsoll_brain::scale::{Decision, Scaler, Seen};
use plimsoll_brain::{Drainer, EventKind, Time};
use plimsoll_cluster::scaler::{Hands, Instance, Stop, Wish};
use plimsoll_proxy::GroupLook;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep_until, timeout};

use super::Word;
use super::look::{Before, Roster, Since, found};
use crate::config::Scaling;
use crate::running::Running;
use crate::running::owner::Roll;
use count::Count;
use office::Office;
use tell::members;

mod count;
mod office;
mod succession;
mod tell;

/// The time between two looks while members come or go.
const SOON: Duration = Duration::from_millis(200);

/// The time that an unusable member has to come back, in which another one could not be started.
const GRACE: Duration = Duration::from_secs(5);

/// One group.
pub(super) struct Charge {
    running: Arc<Running>,
    scaling: Scaling,
    hands: Hands,
    scaler: Scaler,
    crew: Crew,
    /// The members that were started, by number.
    instances: BTreeMap<u32, Instance>,
    /// The running acts of the provider.
    tasks: JoinSet<Done>,
    /// The zero of the brain's time.
    epoch: Instant,
    before: Before,
    looked: Option<Instant>,
    decided: Option<(Decision, Instant)>,
    /// The time of the next decision, and of the next question to the provider for its members.
    due: Instant,
    present: Option<Instant>,
    /// Whether members were not put in force yet.
    untold: bool,
    halted: bool,
    /// The receiver of the message that no member is being started.
    settling: Option<oneshot::Sender<()>>,
    /// The state of a provider that only counts.
    count: Count,
    /// The office of the balancer that decides, if several could.
    office: Office,
}

/// A finished act of a provider.
enum Done {
    Started(u32, Result<Instance, String>),
    Stopped(u32, Result<(), String>),
    /// The members at the time of the question.
    Present(Time, Result<Option<Vec<Instance>>, String>),
    Counted(u32, Result<u32, String>),
    /// The wanted number, with the number of changes before the question.
    Replicas(u64, Result<u32, String>),
    /// The result of an attempt to be the balancer that decides.
    Stood(Result<(), String>),
    /// The result of publishing the members to others.
    Enrolled(Result<Roll, String>),
}

impl Charge {
    pub(super) fn new(running: Arc<Running>, scaling: Scaling) -> Self {
        let now = Instant::now();
        let hands = scaling.kind.open(&scaling.group);
        Self {
            present: (!matches!(hands, Hands::None)).then_some(now),
            hands,
            scaler: Scaler::new(scaling.rules.clone()),
            crew: Crew::new(scaling.crew),
            instances: BTreeMap::new(),
            tasks: JoinSet::new(),
            epoch: now,
            before: Before::default(),
            looked: None,
            decided: None,
            due: now,
            untold: false,
            halted: false,
            settling: None,
            count: Count::default(),
            office: Office::default(),
            running,
            scaling,
        }
    }

    /// Runs until it gets the message to end.
    pub(super) async fn run(mut self, mut words: mpsc::Receiver<Word>) {
        self.begin().await;
        let mut views = self.running.store().views();
        loop {
            self.say_if_settled();
            let soon = if self.crew.busy() || self.untold { Instant::now() + SOON } else { self.due };
            let next = self.present.map_or(soon, |present| soon.min(present)).min(self.due);
            tokio::select! {
                word = words.recv() => match word {
                    Some(Word::Rules(scaling)) => self.rule(*scaling),
                    Some(Word::Halt) => {
                        self.resign().await;
                        self.halted = true;
                    }
                    Some(Word::Settle(reply)) => (self.halted, self.settling) = (true, Some(reply)),
                    Some(Word::Resume) => self.halted = false,
                    Some(Word::Yield(reply)) => {
                        let _ = reply.send(self.give_way().await);
                        match words.recv().await {
                            Some(Word::Leave) => return self.let_go(),
                            Some(Word::End) | None if self.scaling.leave => return,
                            Some(Word::End) | None => return self.dismiss().await,
                            Some(Word::Rules(scaling)) => self.rule(*scaling),
                            Some(_) => {}
                        }
                        self.go_on();
                    }
                    Some(Word::Leave) => return self.let_go(),
                    Some(Word::End) | None => {
                        if !self.scaling.leave {
                            self.dismiss().await;
                        }
                        return;
                    }
                    Some(Word::Dismiss) => {
                        self.resign().await;
                        self.running.scaled().say(&self.scaling.group, None);
                        // The members have left the group, and end their requests.
                        let _ = timeout(self.scaling.crew.drain_deadline, words.recv()).await;
                        self.dismiss().await;
                        return;
                    }
                },
                Some(done) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    if let Ok(done) = done {
                        self.done(done);
                        self.settle().await;
                    }
                }
                Ok(()) = views.changed(), if self.running.scales_together() => {
                    self.attend(Instant::now()).await;
                    self.settle().await;
                }
                () = sleep_until(next) => self.turn().await,
            }
        }
    }

    fn rule(&mut self, scaling: Scaling) {
        let wish = self.running.scaled().wish(&scaling.group);
        self.scaler.rule(wish.over(&scaling.rules));
        self.scaler.pause(wish.paused);
        self.crew.rule(scaling.crew);
        self.scaling = scaling;
        self.due = Instant::now();
    }

    fn now(&self) -> Time {
        Time(1) + self.epoch.elapsed()
    }

    async fn turn(&mut self) {
        let at = Instant::now();
        let Some(look) = self.running.engine().look(&self.scaling.group) else {
            // A reload is about to remove the group, or to add it.
            self.due = at + self.scaling.interval;
            return;
        };
        self.attend(at).await;
        if self.office.mine {
            self.miss_strangers(&look);
        }
        let now = self.now();
        let held = self.held(now);
        let find = |name: &str| {
            let found = found(&look.status, name)?;
            let works = held.iter().any(|held| **held == *name);
            Some(Found { in_flight: found.in_flight.max(u32::from(works)), ..found })
        };
        self.crew.tick(find, chance(), now);
        if self.present.is_some_and(|present| present <= at) {
            self.present = None;
            match &self.hands {
                Hands::Each(provider) => {
                    let provider = Arc::clone(provider);
                    self.tasks.spawn(async move { Done::Present(now, provider.present().await) });
                }
                Hands::Count(kubernetes) => {
                    let (told, kubernetes) = (self.count.told, Arc::clone(kubernetes));
                    self.tasks.spawn(async move { Done::Replicas(told, kubernetes.replicas().await) });
                }
                Hands::None => {}
            }
        }
        if self.due <= at {
            self.due = at + self.scaling.interval;
            if !self.halted {
                self.decide(&look, at, now);
            }
        }
        self.settle().await;
    }

    fn decide(&mut self, look: &GroupLook, at: Instant, now: Time) {
        let seconds = self.looked.replace(at).map_or(0.0, |before| at.duration_since(before).as_secs_f64());
        let since = self.before.since(look, seconds);
        let counts = matches!(self.hands, Hands::Count(_) | Hands::None);
        let Some(awaited) = self.awaited(look, at) else { return };
        let roster = Roster {
            crew: &self.crew,
            all_ours: counts,
            awaited,
            unit: self.scaling.rules.unit,
            grace: GRACE.max(Duration::from_secs_f64(self.scaler.start_seconds().min(3600.0))),
        };
        let members = roster.seen(look);
        // The first look has no rates yet; members missing below the least are seen all the same.
        let unknown = Since { rate: f64::NAN, elsewhere: 0.0, waiting: 0.0, refused: 0.0, response: None };
        let Since { rate, elsewhere, waiting, refused, response } = since.unwrap_or(unknown);
        let proven = look.status.load_line.as_ref().is_some_and(|line| line.capacity.is_some());
        let seen = Seen { members: &members, proven, rate, elsewhere, waiting, refused, response };
        let dry = self.scaling.dry_run || matches!(self.hands, Hands::None) || !self.office.mine;
        let paused = self.running.scaled().wish(&self.scaling.group).paused;
        self.scaler.pause(paused || self.cut_off());
        let decision = self.scaler.observe(&seen, dry, now);
        if self.office.mine {
            self.obey(&decision, dry, now);
        }
        self.decided = Some((decision, at));
    }

    fn obey(&mut self, decision: &Decision, dry: bool, now: Time) {
        let acts = decision.add > 0 || !decision.remove.is_empty();
        let inputs = decision.inputs.clone();
        if dry {
            if decision.news && decision.desired != decision.have {
                let wanted = members(decision.desired);
                let why = format!("would have {wanted}, not {}: {}", decision.have, decision.why);
                self.tell(EventKind::Scaled, None, why, inputs);
            }
            return;
        }
        if !acts {
            return;
        }
        if let Hands::Count(kubernetes) = &self.hands {
            let (fixed, rules) = (self.fixed(), self.scaler.rules());
            let [least, most] = [rules.min, rules.max].map(|bound| bound.saturating_sub(fixed));
            let next = self.count.next(decision.add, decision.remove.len() as u32, least, most);
            let Some((replicas, before)) = next.filter(|_| !self.count.busy) else { return };
            let kubernetes = Arc::clone(kubernetes);
            (self.count.busy, self.count.told) = (true, self.count.told + 1);
            self.tasks.spawn(async move { Done::Counted(replicas, kubernetes.scale(replicas).await) });
            let why =
                format!("{} in place of {}: {}", members(replicas + fixed), before + fixed, decision.why);
            return self.tell(EventKind::Scaled, None, why, inputs);
        }
        let added = self.crew.add(decision.add, now);
        let removed = self.crew.remove(decision.remove.iter().map(String::as_str), now);
        // A pause after a failed command is not worth an event.
        if added + removed > 0 {
            let wanted = (decision.have + added).saturating_sub(removed);
            let why = format!("{} in place of {}: {}", members(wanted), decision.have, decision.why);
            self.tell(EventKind::Scaled, None, why, inputs);
        }
    }

    /// Applies all finished acts and publishes their events.
    async fn settle(&mut self) {
        loop {
            while let Some(news) = self.crew.poll_news() {
                self.say(news);
            }
            if self.untold {
                self.man().await;
                if self.untold {
                    break;
                }
            }
            let Some(order) = self.crew.poll_order() else { break };
            self.order(order);
        }
        self.enroll();
        self.show();
    }

    fn order(&mut self, order: Order) {
        let Hands::Each(provider) = &self.hands else { return };
        let (provider, group) = (Arc::clone(provider), Arc::clone(&self.scaling.group));
        let why: Arc<str> =
            self.decided.as_ref().map_or_else(String::new, |(decision, _)| decision.why.clone()).into();
        match order {
            Order::Tell => self.untold = true,
            Order::Start { index } => {
                let wish = Wish { group, index, why };
                self.tasks.spawn(async move { Done::Started(index, provider.start(wish).await) });
            }
            Order::Stop { index } => {
                let Some(one) = self.instances.get(&index).cloned() else {
                    return self.crew.stopped(index, Ok(()), chance(), self.now());
                };
                let stop = Stop { group, one, why };
                self.tasks.spawn(async move { Done::Stopped(index, provider.stop(stop).await) });
            }
            Order::Drain { index } => {
                let Some(member) = self.crew.hand(index).and_then(|hand| hand.member.clone()) else { return };
                let running = Arc::clone(&self.running);
                // A hand-over server may have to be notified first, and waited for.
                drop(spawn_blocking(move || {
                    let drained = running.engine().drain_by(Some(&group), &member, Drainer::Scaler);
                    if let Err(why) = drained {
                        tracing::warn!("{member} cannot be drained: {why}");
                    }
                }));
            }
        }
    }

    /// Puts the present members in force.
    async fn man(&mut self) {
        let Some(source) = self.scaling.source.clone() else {
            self.untold = false;
            return;
        };
        let members = self.listed();
        let (running, group) = (Arc::clone(&self.running), Arc::clone(&self.scaling.group));
        let outcome = spawn_blocking(move || running.man(&group, &source, members)).await;
        match outcome {
            Ok(Ok(())) => self.untold = false,
            Ok(Err(why)) => tracing::error!("members that were started cannot be put in force: {why}"),
            Err(why) => tracing::error!("members that were started cannot be put in force: {why}"),
        }
    }

    fn done(&mut self, done: Done) {
        let now = self.now();
        match done {
            Done::Started(_, Ok(one)) if !self.office.mine => {
                // Another balancer decides by now, and does not know this member.
                let Hands::Each(provider) = &self.hands else { return };
                let (provider, group) = (Arc::clone(provider), Arc::clone(&self.scaling.group));
                let stop = Stop { group, one, why: "another balancer decides".into() };
                self.tasks.spawn(async move {
                    let index = stop.one.index;
                    Done::Stopped(index, provider.stop(stop).await)
                });
            }
            Done::Stood(outcome) => self.stood(&outcome),
            Done::Enrolled(outcome) => self.enrolled(outcome),
            Done::Started(index, Ok(instance)) => {
                let (id, name) = (instance.id.clone(), Arc::from(instance.address.to_string()));
                self.instances.insert(index, instance);
                self.crew.started(index, Ok((id, Some(name))), chance(), now);
            }
            Done::Started(index, Err(why)) => self.crew.started(index, Err(why), chance(), now),
            Done::Stopped(index, outcome) => {
                if outcome.is_ok() {
                    self.instances.remove(&index);
                }
                self.crew.stopped(index, outcome, chance(), now);
            }
            Done::Present(asked, outcome) => self.present(outcome, asked, now),
            Done::Replicas(told, outcome) => self.replicas(told, outcome),
            Done::Counted(replicas, outcome) => {
                self.count.busy = false;
                if let Ok(asked) = outcome {
                    self.count.heard(asked);
                }
                if outcome == Ok(replicas) {
                    return;
                }
                let why = outcome.map_or_else(
                    |why| why,
                    |asked| format!("it has {asked} replicas in place of {replicas}"),
                );
                self.tell(EventKind::ScalerFailed, None, format!("kubernetes: {why}"), Vec::new());
            }
        }
    }

    /// Handles the present members: those that are missing have ended by themselves.
    fn present(&mut self, outcome: Result<Option<Vec<Instance>>, String>, asked: Time, now: Time) {
        let Hands::Each(provider) = &self.hands else { return };
        let provider = Arc::clone(provider);
        let Ok(present) = outcome else {
            // The last members are still those that are known.
            self.present = Some(Instant::now() + provider.looks_apart());
            return;
        };
        // A provider that cannot list its members is not asked again.
        let Some(present) = present else { return };
        self.present = Some(Instant::now() + provider.looks_apart());
        // A member that was started meanwhile could not be there yet.
        let there = |hand: &Hand| hand.since >= asked || present.iter().any(|one| one.id == hand.id);
        let gone = self
            .crew
            .hands()
            .iter()
            .filter(|hand| matches!(hand.stage, Stage::Coming | Stage::Serving | Stage::Draining));
        let gone: Vec<(u32, String)> =
            gone.filter(|hand| !there(hand)).map(|hand| (hand.index, hand.id.clone())).collect();
        for (index, id) in gone {
            let why = provider.last_words(&id).unwrap_or_else(|| "it is not there any more".into());
            self.crew.ended(index, why, chance(), now);
            if let Some(one) = self.instances.remove(&index) {
                provider.gone(&one);
            }
        }
    }

    /// Stops the members that it started: they are not needed any more, or are out of the group with the
    /// source that named them.
    async fn dismiss(&mut self) {
        if self.inherited_by_another().await {
            return;
        }
        let Hands::Each(provider) = &self.hands else { return };
        let provider = Arc::clone(provider);
        let stop = |one: Instance| {
            let (provider, group) = (Arc::clone(&provider), Arc::clone(&self.scaling.group));
            let stop = Stop { group, one, why: "the balancer stops, or its configuration says so".into() };
            async move { provider.stop(stop).await }
        };
        let mut stops: JoinSet<_> = self.instances.values().cloned().map(&stop).collect();
        // Members that are just being started are stopped as soon as they are.
        while !(self.tasks.is_empty() && stops.is_empty()) {
            tokio::select! {
                Some(done) = self.tasks.join_next() => if let Ok(Done::Started(_, Ok(instance))) = done {
                    stops.spawn(stop(instance));
                },
                Some(stopped) = stops.join_next() => if let Ok(Err(why)) = stopped {
                    tracing::warn!("a member of group {} cannot be stopped: {why}", self.scaling.group);
                },
            }
        }
        self.strike_off().await;
    }
}

/// Returns random bits.
fn chance() -> u64 {
    RandomState::new().hash_one(0)
}
