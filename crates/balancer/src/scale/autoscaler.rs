//! One group with a scaler: it looks, has the brain decide, and has a provider act.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::autoscale::instances::{
    InstanceAction, InstanceObservation, InstanceSet, InstanceState, ScalerInstance,
};
use plimsoll_brain::autoscale::{GroupObservation, ScaleDecision, Scaler};
use plimsoll_brain::{DrainInitiator, EventKind, Time};
use plimsoll_cluster::scaler::{Instance, InstanceSpec, ProviderHandle, StopRequest};
use plimsoll_config::GroupScaling;
use plimsoll_proxy::GroupSnapshot;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep_until, timeout};

use super::ScalerCommand;
use super::observe::{GroupRates, MemberRoster, PreviousCounters, find_member};
use crate::runtime::BalancerRuntime;
use crate::runtime::scaler_leader::InstanceList;
use events::members;
use leader::LeaderState;
use replica_count::ReplicaCount;

mod events;
mod handoff;
mod leader;
mod replica_count;

/// The time between two looks while members come or go.
const BUSY_INTERVAL: Duration = Duration::from_millis(200);

/// The time that an unusable member has to come back, in which another one could not be started.
const UNUSABLE_GRACE: Duration = Duration::from_secs(5);

/// One group.
pub(super) struct GroupAutoscaler {
    running: Arc<BalancerRuntime>,
    scaling: GroupScaling,
    provider: ProviderHandle,
    scaler: Scaler,
    crew: InstanceSet,
    /// The members that were started, by number.
    instances: BTreeMap<u32, Instance>,
    /// The running acts of the provider.
    tasks: JoinSet<CompletedAction>,
    /// The zero of the brain's time.
    epoch: Instant,
    previous: PreviousCounters,
    last_look: Option<Instant>,
    last_decision: Option<(ScaleDecision, Instant)>,
    /// The time of the next decision, and of the next question to the provider for its members.
    next_decision_at: Instant,
    next_listing_at: Option<Instant>,
    /// Whether members were not put in force yet.
    has_unapplied_members: bool,
    is_halted: bool,
    /// The receiver of the message that no member is being started.
    settling: Option<oneshot::Sender<()>>,
    /// The state of a provider that only counts.
    replica_count: ReplicaCount,
    /// The leadership of the balancer that decides, if several could.
    leadership: LeaderState,
}

/// A finished act of a provider.
enum CompletedAction {
    Started(u32, Result<Instance, String>),
    Stopped(u32, Result<(), String>),
    /// The members at the time of the question.
    InstancesListed(Time, Result<Option<Vec<Instance>>, String>),
    ReplicasSet(u32, Result<u32, String>),
    /// The wanted number, with the number of changes before the question.
    ReplicasRead(u64, Result<u32, String>),
    /// The result of an attempt to be the balancer that decides.
    CampaignEnded(Result<(), String>),
    /// The result of publishing the members to others.
    InstancesPublished(Result<InstanceList, String>),
}

impl GroupAutoscaler {
    pub(super) fn new(running: Arc<BalancerRuntime>, scaling: GroupScaling) -> Self {
        let now = Instant::now();
        let provider = scaling.provider.open(&scaling.group);
        Self {
            next_listing_at: (!matches!(provider, ProviderHandle::None)).then_some(now),
            provider,
            scaler: Scaler::new(scaling.rules.clone()),
            crew: InstanceSet::new(scaling.instance_rules),
            instances: BTreeMap::new(),
            tasks: JoinSet::new(),
            epoch: now,
            previous: PreviousCounters::default(),
            last_look: None,
            last_decision: None,
            next_decision_at: now,
            has_unapplied_members: false,
            is_halted: false,
            settling: None,
            replica_count: ReplicaCount::default(),
            leadership: LeaderState::default(),
            running,
            scaling,
        }
    }

    /// Runs until it gets the message to end.
    pub(super) async fn run(mut self, mut words: mpsc::Receiver<ScalerCommand>) {
        self.join_election().await;
        let mut views = self.running.store().snapshots();
        loop {
            self.reply_if_settled();
            let soon = if self.crew.is_busy() || self.has_unapplied_members {
                Instant::now() + BUSY_INTERVAL
            } else {
                self.next_decision_at
            };
            let next =
                self.next_listing_at.map_or(soon, |present| soon.min(present)).min(self.next_decision_at);
            tokio::select! {
                word = words.recv() => match word {
                    Some(ScalerCommand::UpdateSettings(scaling)) => self.update_settings(*scaling),
                    Some(ScalerCommand::Halt) => {
                        self.resign().await;
                        self.is_halted = true;
                    }
                    Some(ScalerCommand::Settle(reply)) => {
                        (self.is_halted, self.settling) = (true, Some(reply));
                    }
                    Some(ScalerCommand::Resume) => self.is_halted = false,
                    Some(ScalerCommand::HandOff(reply)) => {
                        let _ = reply.send(self.hand_off().await);
                        match words.recv().await {
                            Some(ScalerCommand::Detach) => return self.release_members(),
                            Some(ScalerCommand::StopMembers) | None if self.scaling.leaves_members => return,
                            Some(ScalerCommand::StopMembers) | None => return self.stop_members().await,
                            Some(ScalerCommand::UpdateSettings(scaling)) => self.update_settings(*scaling),
                            Some(_) => {}
                        }
                        self.resume();
                    }
                    Some(ScalerCommand::Detach) => return self.release_members(),
                    Some(ScalerCommand::StopMembers) | None => {
                        if !self.scaling.leaves_members {
                            self.stop_members().await;
                        }
                        return;
                    }
                    Some(ScalerCommand::DismissMembers) => {
                        self.resign().await;
                        self.running.scalers().set_status(&self.scaling.group, None);
                        // The members have left the group, and end their requests.
                        let _ = timeout(self.scaling.instance_rules.drain_deadline, words.recv()).await;
                        self.stop_members().await;
                        return;
                    }
                },
                Some(done) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    if let Ok(done) = done {
                        self.handle_action(done);
                        self.handle_completed().await;
                    }
                }
                Ok(()) = views.changed(), if self.running.shares_scaling() => {
                    self.check_leadership(Instant::now()).await;
                    self.handle_completed().await;
                }
                () = sleep_until(next) => self.tick().await,
            }
        }
    }

    fn update_settings(&mut self, scaling: GroupScaling) {
        let wish = self.running.scalers().override_of(&scaling.group);
        self.scaler.apply_settings(wish.apply_to(&scaling.rules));
        self.scaler.set_paused(wish.paused);
        self.crew.set_timeouts(scaling.instance_rules);
        self.scaling = scaling;
        self.next_decision_at = Instant::now();
    }

    fn now(&self) -> Time {
        Time(1) + self.epoch.elapsed()
    }

    async fn tick(&mut self) {
        let at = Instant::now();
        let Some(look) = self.running.engine().group_snapshot(&self.scaling.group) else {
            // A reload is about to remove the group, or to add it.
            self.next_decision_at = at + self.scaling.interval;
            return;
        };
        self.check_leadership(at).await;
        if self.leadership.is_leader {
            self.drop_unusable_foreign(&look);
        }
        let now = self.now();
        let held = self.protected_members(now);
        let find = |name: &str| {
            let found = find_member(&look.status, name)?;
            let works = held.iter().any(|held| **held == *name);
            Some(InstanceObservation { in_flight: found.in_flight.max(u32::from(works)), ..found })
        };
        self.crew.tick(find, random_bits(), now);
        if self.next_listing_at.is_some_and(|present| present <= at) {
            self.next_listing_at = None;
            match &self.provider {
                ProviderHandle::PerInstance(provider) => {
                    let provider = Arc::clone(provider);
                    self.tasks.spawn(async move {
                        CompletedAction::InstancesListed(now, provider.running_instances().await)
                    });
                }
                ProviderHandle::ReplicaCount(kubernetes) => {
                    let (told, kubernetes) = (self.replica_count.changes_sent, Arc::clone(kubernetes));
                    self.tasks.spawn(async move {
                        CompletedAction::ReplicasRead(told, kubernetes.replicas().await)
                    });
                }
                ProviderHandle::None => {}
            }
        }
        if self.next_decision_at <= at {
            self.next_decision_at = at + self.scaling.interval;
            if !self.is_halted {
                self.decide(&look, at, now);
            }
        }
        self.handle_completed().await;
    }

    fn decide(&mut self, look: &GroupSnapshot, at: Instant, now: Time) {
        let seconds =
            self.last_look.replace(at).map_or(0.0, |before| at.duration_since(before).as_secs_f64());
        let since = self.previous.rates_since(look, seconds);
        let counts = matches!(self.provider, ProviderHandle::ReplicaCount(_) | ProviderHandle::None);
        let Some(awaited) = self.awaited_members(look, at) else { return };
        let roster = MemberRoster {
            crew: &self.crew,
            removes_any: counts,
            awaited,
            unit_capacity: self.scaling.rules.unit_capacity,
            grace: UNUSABLE_GRACE.max(Duration::from_secs_f64(self.scaler.start_seconds().min(3600.0))),
        };
        let members = roster.observe_members(look);
        // The first look has no rates yet; members missing below the least are seen all the same.
        let unknown =
            GroupRates { rate: f64::NAN, rate_elsewhere: 0.0, queued: 0.0, refused: 0.0, response_p95: None };
        let GroupRates { rate, rate_elsewhere: elsewhere, queued: waiting, refused, response_p95: response } =
            since.unwrap_or(unknown);
        let proven = look.status.load_line.as_ref().is_some_and(|line| line.capacity.is_some());
        let seen = GroupObservation {
            members: &members,
            load_line_known: proven,
            rate,
            peer_rate: elsewhere,
            waiting,
            rejected: refused,
            response_p95: response,
        };
        let dry = self.scaling.dry_run
            || matches!(self.provider, ProviderHandle::None)
            || !self.leadership.is_leader;
        let paused = self.running.scalers().override_of(&self.scaling.group).paused;
        self.scaler.set_paused(paused || self.is_lease_uncertain());
        let decision = self.scaler.observe(&seen, dry, now);
        if self.leadership.is_leader {
            self.apply_decision(&decision, dry, now);
        }
        self.last_decision = Some((decision, at));
    }

    fn apply_decision(&mut self, decision: &ScaleDecision, dry: bool, now: Time) {
        let acts = decision.add > 0 || !decision.remove.is_empty();
        let inputs = decision.inputs.clone();
        if dry {
            if decision.desired_changed && decision.desired != decision.present {
                let wanted = members(decision.desired);
                let why = format!("would have {wanted}, not {}: {}", decision.present, decision.explanation);
                self.publish_event(EventKind::Scaled, None, why, inputs);
            }
            return;
        }
        if !acts {
            return;
        }
        if let ProviderHandle::ReplicaCount(kubernetes) = &self.provider {
            let (fixed, rules) = (self.static_members(), self.scaler.settings());
            let [least, most] = [rules.min, rules.max].map(|bound| bound.saturating_sub(fixed));
            let next =
                self.replica_count.next_target(decision.add, decision.remove.len() as u32, least, most);
            let Some((replicas, before)) = next.filter(|_| !self.replica_count.is_changing) else { return };
            let kubernetes = Arc::clone(kubernetes);
            (self.replica_count.is_changing, self.replica_count.changes_sent) =
                (true, self.replica_count.changes_sent + 1);
            self.tasks.spawn(async move {
                CompletedAction::ReplicasSet(replicas, kubernetes.set_replicas(replicas).await)
            });
            let why = format!(
                "{} in place of {}: {}",
                members(replicas + fixed),
                before + fixed,
                decision.explanation
            );
            return self.publish_event(EventKind::Scaled, None, why, inputs);
        }
        let added = self.crew.request_starts(decision.add, now);
        let removed = self.crew.remove(decision.remove.iter().map(String::as_str), now);
        // A pause after a failed command is not worth an event.
        if added + removed > 0 {
            let wanted = (decision.present + added).saturating_sub(removed);
            let why =
                format!("{} in place of {}: {}", members(wanted), decision.present, decision.explanation);
            self.publish_event(EventKind::Scaled, None, why, inputs);
        }
    }

    /// Applies all finished acts and publishes their events.
    async fn handle_completed(&mut self) {
        loop {
            while let Some(news) = self.crew.poll_event() {
                self.publish_news(news);
            }
            if self.has_unapplied_members {
                self.apply_members().await;
                if self.has_unapplied_members {
                    break;
                }
            }
            let Some(order) = self.crew.poll_action() else { break };
            self.start_order(order);
        }
        self.publish_instances();
        self.publish_state();
    }

    fn start_order(&mut self, order: InstanceAction) {
        let ProviderHandle::PerInstance(provider) = &self.provider else { return };
        let (provider, group) = (Arc::clone(provider), Arc::clone(&self.scaling.group));
        let why: Arc<str> = self
            .last_decision
            .as_ref()
            .map_or_else(String::new, |(decision, _)| decision.explanation.clone())
            .into();
        match order {
            InstanceAction::ApplyMembers => self.has_unapplied_members = true,
            InstanceAction::Start { index } => {
                let wish = InstanceSpec { group, index, why };
                self.tasks.spawn(async move { CompletedAction::Started(index, provider.start(wish).await) });
            }
            InstanceAction::Stop { index } => {
                let Some(one) = self.instances.get(&index).cloned() else {
                    return self.crew.record_stop(index, Ok(()), random_bits(), self.now());
                };
                let stop = StopRequest { group, instance: one, why };
                self.tasks.spawn(async move { CompletedAction::Stopped(index, provider.stop(stop).await) });
            }
            InstanceAction::Drain { index } => {
                let Some(member) = self.crew.instance(index).and_then(|hand| hand.member.clone()) else {
                    return;
                };
                let running = Arc::clone(&self.running);
                // A hand-over server may have to be notified first, and waited for.
                drop(spawn_blocking(move || {
                    let drained = running.engine().drain_by(Some(&group), &member, DrainInitiator::Scaler);
                    if let Err(why) = drained {
                        tracing::warn!("{member} cannot be drained: {why}");
                    }
                }));
            }
        }
    }

    /// Puts the present members in force.
    async fn apply_members(&mut self) {
        let Some(source) = self.scaling.source.clone() else {
            self.has_unapplied_members = false;
            return;
        };
        let members = self.listed_members();
        let (running, group) = (Arc::clone(&self.running), Arc::clone(&self.scaling.group));
        let outcome = spawn_blocking(move || running.apply_instances(&group, &source, members)).await;
        match outcome {
            Ok(Ok(())) => self.has_unapplied_members = false,
            Ok(Err(why)) => tracing::error!("members that were started cannot be put in force: {why}"),
            Err(why) => tracing::error!("members that were started cannot be put in force: {why}"),
        }
    }

    fn handle_action(&mut self, done: CompletedAction) {
        let now = self.now();
        match done {
            CompletedAction::Started(_, Ok(one)) if !self.leadership.is_leader => {
                // Another balancer decides by now, and does not know this member.
                let ProviderHandle::PerInstance(provider) = &self.provider else { return };
                let (provider, group) = (Arc::clone(provider), Arc::clone(&self.scaling.group));
                let stop = StopRequest { group, instance: one, why: "another balancer decides".into() };
                self.tasks.spawn(async move {
                    let index = stop.instance.index;
                    CompletedAction::Stopped(index, provider.stop(stop).await)
                });
            }
            CompletedAction::CampaignEnded(outcome) => self.handle_campaign(&outcome),
            CompletedAction::InstancesPublished(outcome) => self.handle_published(outcome),
            CompletedAction::Started(index, Ok(instance)) => {
                let (id, name) = (instance.id.clone(), Arc::from(instance.address.to_string()));
                self.instances.insert(index, instance);
                self.crew.record_start(index, Ok((id, Some(name))), random_bits(), now);
            }
            CompletedAction::Started(index, Err(why)) => {
                self.crew.record_start(index, Err(why), random_bits(), now)
            }
            CompletedAction::Stopped(index, outcome) => {
                if outcome.is_ok() {
                    self.instances.remove(&index);
                }
                self.crew.record_stop(index, outcome, random_bits(), now);
            }
            CompletedAction::InstancesListed(asked, outcome) => self.handle_listed(outcome, asked, now),
            CompletedAction::ReplicasRead(told, outcome) => self.handle_replicas(told, outcome),
            CompletedAction::ReplicasSet(replicas, outcome) => {
                self.replica_count.is_changing = false;
                if let Ok(asked) = outcome {
                    self.replica_count.record_answer(asked);
                }
                if outcome == Ok(replicas) {
                    return;
                }
                let why = outcome.map_or_else(
                    |why| why,
                    |asked| format!("it has {asked} replicas in place of {replicas}"),
                );
                self.publish_event(EventKind::ScalerFailed, None, format!("kubernetes: {why}"), Vec::new());
            }
        }
    }

    /// Handles the present members: those that are missing have ended by themselves.
    fn handle_listed(&mut self, outcome: Result<Option<Vec<Instance>>, String>, asked: Time, now: Time) {
        let ProviderHandle::PerInstance(provider) = &self.provider else { return };
        let provider = Arc::clone(provider);
        let Ok(present) = outcome else {
            // The last members are still those that are known.
            self.next_listing_at = Some(Instant::now() + provider.min_query_interval());
            return;
        };
        // A provider that cannot list its members is not asked again.
        let Some(present) = present else { return };
        self.next_listing_at = Some(Instant::now() + provider.min_query_interval());
        // A member that was started meanwhile could not be there yet.
        let there =
            |hand: &ScalerInstance| hand.since >= asked || present.iter().any(|one| one.id == hand.id);
        let gone = self.crew.instances().iter().filter(|hand| {
            matches!(hand.state, InstanceState::Coming | InstanceState::Serving | InstanceState::Draining)
        });
        let gone: Vec<(u32, String)> =
            gone.filter(|hand| !there(hand)).map(|hand| (hand.index, hand.id.clone())).collect();
        for (index, id) in gone {
            let why = provider.exit_reason(&id).unwrap_or_else(|| "it is not there any more".into());
            self.crew.record_exit(index, why, random_bits(), now);
            if let Some(one) = self.instances.remove(&index) {
                provider.record_exit(&one);
            }
        }
    }

    /// Stops the members that it started: they are not needed any more, or are out of the group with the
    /// source that named them.
    async fn stop_members(&mut self) {
        if self.has_successor().await {
            return;
        }
        let ProviderHandle::PerInstance(provider) = &self.provider else { return };
        let provider = Arc::clone(provider);
        let stop = |one: Instance| {
            let (provider, group) = (Arc::clone(&provider), Arc::clone(&self.scaling.group));
            let stop = StopRequest {
                group,
                instance: one,
                why: "the balancer stops, or its configuration says so".into(),
            };
            async move { provider.stop(stop).await }
        };
        let mut stops: JoinSet<_> = self.instances.values().cloned().map(&stop).collect();
        // Members that are just being started are stopped as soon as they are.
        while !(self.tasks.is_empty() && stops.is_empty()) {
            tokio::select! {
                Some(done) = self.tasks.join_next() => {
                    if let Ok(CompletedAction::Started(_, Ok(instance))) = done {
                        stops.spawn(stop(instance));
                    }
                }
                Some(stopped) = stops.join_next() => if let Ok(Err(why)) = stopped {
                    tracing::warn!("a member of group {} cannot be stopped: {why}", self.scaling.group);
                },
            }
        }
        self.delete_instance_list().await;
    }
}

/// Returns random bits.
fn random_bits() -> u64 {
    RandomState::new().hash_one(0)
}
