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
    balancer: Arc<BalancerRuntime>,
    scaling: GroupScaling,
    provider: ProviderHandle,
    scaler: Scaler,
    instance_set: InstanceSet,
    /// The members that were started, by number.
    instances: BTreeMap<u32, Instance>,
    /// The running acts of the provider.
    tasks: JoinSet<CompletedAction>,
    /// The zero of the brain's time.
    epoch: Instant,
    previous: PreviousCounters,
    last_observed_at: Option<Instant>,
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
    pub(super) fn new(balancer: Arc<BalancerRuntime>, scaling: GroupScaling) -> Self {
        let now = Instant::now();
        let provider = scaling.provider.open(&scaling.group);
        Self {
            next_listing_at: (!matches!(provider, ProviderHandle::None)).then_some(now),
            provider,
            scaler: Scaler::new(scaling.rules.clone()),
            instance_set: InstanceSet::new(scaling.instance_rules),
            instances: BTreeMap::new(),
            tasks: JoinSet::new(),
            epoch: now,
            previous: PreviousCounters::default(),
            last_observed_at: None,
            last_decision: None,
            next_decision_at: now,
            has_unapplied_members: false,
            is_halted: false,
            settling: None,
            replica_count: ReplicaCount::default(),
            leadership: LeaderState::default(),
            balancer,
            scaling,
        }
    }

    /// Runs until it gets the message to end.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<ScalerCommand>) {
        self.join_election().await;
        let mut views = self.balancer.store().snapshots();
        loop {
            self.reply_if_settled();
            let next_tick = if self.instance_set.is_busy() || self.has_unapplied_members {
                Instant::now() + BUSY_INTERVAL
            } else {
                self.next_decision_at
            };
            let wake_at = self
                .next_listing_at
                .map_or(next_tick, |listing_at| next_tick.min(listing_at))
                .min(self.next_decision_at);
            tokio::select! {
                command = commands.recv() => match command {
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
                        match commands.recv().await {
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
                        self.balancer.scalers().set_status(&self.scaling.group, None);
                        // The members have left the group, and end their requests.
                        let _ = timeout(self.scaling.instance_rules.drain_deadline, commands.recv()).await;
                        self.stop_members().await;
                        return;
                    }
                },
                Some(action) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    if let Ok(action) = action {
                        self.handle_action(action);
                        self.handle_completed().await;
                    }
                }
                Ok(()) = views.changed(), if self.balancer.shares_scaling() => {
                    self.check_leadership(Instant::now()).await;
                    self.handle_completed().await;
                }
                () = sleep_until(wake_at) => self.tick().await,
            }
        }
    }

    fn update_settings(&mut self, scaling: GroupScaling) {
        let scaling_override = self.balancer.scalers().override_of(&scaling.group);
        self.scaler.apply_settings(scaling_override.apply_to(&scaling.rules));
        self.scaler.set_paused(scaling_override.paused);
        self.instance_set.set_timeouts(scaling.instance_rules);
        self.scaling = scaling;
        self.next_decision_at = Instant::now();
    }

    fn now(&self) -> Time {
        Time(1) + self.epoch.elapsed()
    }

    async fn tick(&mut self) {
        let instant = Instant::now();
        let Some(snapshot) = self.balancer.engine().group_snapshot(&self.scaling.group) else {
            // A reload is about to remove the group, or to add it.
            self.next_decision_at = instant + self.scaling.interval;
            return;
        };
        self.check_leadership(instant).await;
        if self.leadership.is_leader {
            self.drop_unusable_foreign(&snapshot);
        }
        let now = self.now();
        let protected = self.protected_members(now);
        let observe = |name: &str| {
            let observation = find_member(&snapshot.status, name)?;
            let is_protected = protected.iter().any(|member| **member == *name);
            Some(InstanceObservation {
                in_flight: observation.in_flight.max(u32::from(is_protected)),
                ..observation
            })
        };
        self.instance_set.tick(observe, random_bits(), now);
        if self.next_listing_at.is_some_and(|listing_at| listing_at <= instant) {
            self.next_listing_at = None;
            match &self.provider {
                ProviderHandle::PerInstance(provider) => {
                    let provider = Arc::clone(provider);
                    self.tasks.spawn(async move {
                        CompletedAction::InstancesListed(now, provider.running_instances().await)
                    });
                }
                ProviderHandle::ReplicaCount(kubernetes) => {
                    let (changes_sent, kubernetes) =
                        (self.replica_count.changes_sent, Arc::clone(kubernetes));
                    self.tasks.spawn(async move {
                        CompletedAction::ReplicasRead(changes_sent, kubernetes.replicas().await)
                    });
                }
                ProviderHandle::None => {}
            }
        }
        if self.next_decision_at <= instant {
            self.next_decision_at = instant + self.scaling.interval;
            if !self.is_halted {
                self.decide(&snapshot, instant, now);
            }
        }
        self.handle_completed().await;
    }

    fn decide(&mut self, snapshot: &GroupSnapshot, instant: Instant, now: Time) {
        let seconds = self
            .last_observed_at
            .replace(instant)
            .map_or(0.0, |previous| instant.duration_since(previous).as_secs_f64());
        let rates = self.previous.rates_since(snapshot, seconds);
        let counts_replicas = matches!(self.provider, ProviderHandle::ReplicaCount(_) | ProviderHandle::None);
        let Some(awaited) = self.awaited_members(snapshot, instant) else { return };
        let roster = MemberRoster {
            instance_set: &self.instance_set,
            removes_any: counts_replicas,
            awaited,
            unit_capacity: self.scaling.rules.unit_capacity,
            grace: UNUSABLE_GRACE.max(Duration::from_secs_f64(self.scaler.start_seconds().min(3600.0))),
        };
        let members = roster.observe_members(snapshot);
        // The first look has no rates yet; members missing below the least are seen all the same.
        let unknown_rates =
            GroupRates { rate: f64::NAN, rate_elsewhere: 0.0, queued: 0.0, refused: 0.0, response_p95: None };
        let GroupRates { rate, rate_elsewhere, queued: waiting, refused, response_p95 } =
            rates.unwrap_or(unknown_rates);
        let load_line_known = snapshot.status.load_line.as_ref().is_some_and(|line| line.capacity.is_some());
        let observation = GroupObservation {
            members: &members,
            load_line_known,
            rate,
            peer_rate: rate_elsewhere,
            waiting,
            rejected: refused,
            response_p95,
        };
        let is_dry_run = self.scaling.dry_run
            || matches!(self.provider, ProviderHandle::None)
            || !self.leadership.is_leader;
        let paused = self.balancer.scalers().override_of(&self.scaling.group).paused;
        self.scaler.set_paused(paused || self.is_lease_uncertain());
        let decision = self.scaler.observe(&observation, is_dry_run, now);
        if self.leadership.is_leader {
            self.apply_decision(&decision, is_dry_run, now);
        }
        self.last_decision = Some((decision, instant));
    }

    fn apply_decision(&mut self, decision: &ScaleDecision, is_dry_run: bool, now: Time) {
        let has_actions = decision.add > 0 || !decision.remove.is_empty();
        let inputs = decision.inputs.clone();
        if is_dry_run {
            if decision.desired_changed && decision.desired != decision.present {
                let members_text = members(decision.desired);
                let reason =
                    format!("would have {members_text}, not {}: {}", decision.present, decision.explanation);
                self.publish_event(EventKind::Scaled, None, reason, inputs);
            }
            return;
        }
        if !has_actions {
            return;
        }
        if let ProviderHandle::ReplicaCount(kubernetes) = &self.provider {
            let (static_count, rules) = (self.static_members(), self.scaler.settings());
            let [min, max] = [rules.min, rules.max].map(|bound| bound.saturating_sub(static_count));
            let target = self.replica_count.next_target(decision.add, decision.remove.len() as u32, min, max);
            let Some((replicas, previous)) = target.filter(|_| !self.replica_count.is_changing) else {
                return;
            };
            let kubernetes = Arc::clone(kubernetes);
            (self.replica_count.is_changing, self.replica_count.changes_sent) =
                (true, self.replica_count.changes_sent + 1);
            self.tasks.spawn(async move {
                CompletedAction::ReplicasSet(replicas, kubernetes.set_replicas(replicas).await)
            });
            let reason = format!(
                "{} in place of {}: {}",
                members(replicas + static_count),
                previous + static_count,
                decision.explanation
            );
            return self.publish_event(EventKind::Scaled, None, reason, inputs);
        }
        let added = self.instance_set.request_starts(decision.add, now);
        let removed = self.instance_set.remove(decision.remove.iter().map(String::as_str), now);
        // A pause after a failed command is not worth an event.
        if added + removed > 0 {
            let desired = (decision.present + added).saturating_sub(removed);
            let reason =
                format!("{} in place of {}: {}", members(desired), decision.present, decision.explanation);
            self.publish_event(EventKind::Scaled, None, reason, inputs);
        }
    }

    /// Applies all finished acts and publishes their events.
    async fn handle_completed(&mut self) {
        loop {
            while let Some(event) = self.instance_set.poll_event() {
                self.publish_instance_event(event);
            }
            if self.has_unapplied_members {
                self.apply_members().await;
                if self.has_unapplied_members {
                    break;
                }
            }
            let Some(action) = self.instance_set.poll_action() else { break };
            self.start_action(action);
        }
        self.publish_instances();
        self.publish_state();
    }

    fn start_action(&mut self, action: InstanceAction) {
        let ProviderHandle::PerInstance(provider) = &self.provider else { return };
        let (provider, group) = (Arc::clone(provider), Arc::clone(&self.scaling.group));
        let reason: Arc<str> = self
            .last_decision
            .as_ref()
            .map_or_else(String::new, |(decision, _)| decision.explanation.clone())
            .into();
        match action {
            InstanceAction::ApplyMembers => self.has_unapplied_members = true,
            InstanceAction::Start { index } => {
                let spec = InstanceSpec { group, index, why: reason };
                self.tasks.spawn(async move { CompletedAction::Started(index, provider.start(spec).await) });
            }
            InstanceAction::Stop { index } => {
                let Some(instance) = self.instances.get(&index).cloned() else {
                    return self.instance_set.record_stop(index, Ok(()), random_bits(), self.now());
                };
                let request = StopRequest { group, instance, why: reason };
                self.tasks
                    .spawn(async move { CompletedAction::Stopped(index, provider.stop(request).await) });
            }
            InstanceAction::Drain { index } => {
                let Some(member) =
                    self.instance_set.instance(index).and_then(|instance| instance.member.clone())
                else {
                    return;
                };
                let balancer = Arc::clone(&self.balancer);
                // A hand-over server may have to be notified first, and waited for.
                drop(spawn_blocking(move || {
                    let result = balancer.engine().drain_by(Some(&group), &member, DrainInitiator::Scaler);
                    if let Err(error) = result {
                        tracing::warn!("{member} cannot be drained: {error}");
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
        let (balancer, group) = (Arc::clone(&self.balancer), Arc::clone(&self.scaling.group));
        let outcome = spawn_blocking(move || balancer.apply_instances(&group, &source, members)).await;
        match outcome {
            Ok(Ok(())) => self.has_unapplied_members = false,
            Ok(Err(error)) => tracing::error!("members that were started cannot be put in force: {error}"),
            Err(error) => tracing::error!("members that were started cannot be put in force: {error}"),
        }
    }

    fn handle_action(&mut self, action: CompletedAction) {
        let now = self.now();
        match action {
            CompletedAction::Started(_, Ok(instance)) if !self.leadership.is_leader => {
                // Another balancer decides by now, and does not know this member.
                let ProviderHandle::PerInstance(provider) = &self.provider else { return };
                let (provider, group) = (Arc::clone(provider), Arc::clone(&self.scaling.group));
                let request = StopRequest { group, instance, why: "another balancer decides".into() };
                self.tasks.spawn(async move {
                    let index = request.instance.index;
                    CompletedAction::Stopped(index, provider.stop(request).await)
                });
            }
            CompletedAction::CampaignEnded(outcome) => self.handle_campaign(&outcome),
            CompletedAction::InstancesPublished(outcome) => self.handle_published(outcome),
            CompletedAction::Started(index, Ok(instance)) => {
                let (id, name) = (instance.id.clone(), Arc::from(instance.address.to_string()));
                self.instances.insert(index, instance);
                self.instance_set.record_start(index, Ok((id, Some(name))), random_bits(), now);
            }
            CompletedAction::Started(index, Err(error)) => {
                self.instance_set.record_start(index, Err(error), random_bits(), now)
            }
            CompletedAction::Stopped(index, outcome) => {
                if outcome.is_ok() {
                    self.instances.remove(&index);
                }
                self.instance_set.record_stop(index, outcome, random_bits(), now);
            }
            CompletedAction::InstancesListed(asked_at, outcome) => self.handle_listed(outcome, asked_at, now),
            CompletedAction::ReplicasRead(changes_sent, outcome) => {
                self.handle_replicas(changes_sent, outcome)
            }
            CompletedAction::ReplicasSet(replicas, outcome) => {
                self.replica_count.is_changing = false;
                if let Ok(answered) = outcome {
                    self.replica_count.record_answer(answered);
                }
                if outcome == Ok(replicas) {
                    return;
                }
                let error = outcome.map_or_else(
                    |error| error,
                    |answered| format!("it has {answered} replicas in place of {replicas}"),
                );
                self.publish_event(EventKind::ScalerFailed, None, format!("kubernetes: {error}"), Vec::new());
            }
        }
    }

    /// Handles the present members: those that are missing have ended by themselves.
    fn handle_listed(&mut self, outcome: Result<Option<Vec<Instance>>, String>, asked_at: Time, now: Time) {
        let ProviderHandle::PerInstance(provider) = &self.provider else { return };
        let provider = Arc::clone(provider);
        let Ok(listed) = outcome else {
            // The last members are still those that are known.
            self.next_listing_at = Some(Instant::now() + provider.min_query_interval());
            return;
        };
        // A provider that cannot list its members is not asked again.
        let Some(listed) = listed else { return };
        self.next_listing_at = Some(Instant::now() + provider.min_query_interval());
        // A member that was started meanwhile could not be there yet.
        let is_listed = |instance: &ScalerInstance| {
            instance.since >= asked_at
                || listed.iter().any(|listed_instance| listed_instance.id == instance.id)
        };
        let active = self.instance_set.instances().iter().filter(|instance| {
            matches!(instance.state, InstanceState::Coming | InstanceState::Serving | InstanceState::Draining)
        });
        let missing: Vec<(u32, String)> = active
            .filter(|instance| !is_listed(instance))
            .map(|instance| (instance.index, instance.id.clone()))
            .collect();
        for (index, id) in missing {
            let reason = provider.exit_reason(&id).unwrap_or_else(|| "it is not there any more".into());
            self.instance_set.record_exit(index, reason, random_bits(), now);
            if let Some(instance) = self.instances.remove(&index) {
                provider.record_exit(&instance);
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
        let stop_instance = |instance: Instance| {
            let (provider, group) = (Arc::clone(&provider), Arc::clone(&self.scaling.group));
            let request = StopRequest {
                group,
                instance,
                why: "the balancer stops, or its configuration says so".into(),
            };
            async move { provider.stop(request).await }
        };
        let mut stops: JoinSet<_> = self.instances.values().cloned().map(&stop_instance).collect();
        // Members that are just being started are stopped as soon as they are.
        while !(self.tasks.is_empty() && stops.is_empty()) {
            tokio::select! {
                Some(done) = self.tasks.join_next() => {
                    if let Ok(CompletedAction::Started(_, Ok(instance))) = done {
                        stops.spawn(stop_instance(instance));
                    }
                }
                Some(result) = stops.join_next() => if let Ok(Err(error)) = result {
                    tracing::warn!("a member of group {} cannot be stopped: {error}", self.scaling.group);
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
