//! The leadership of an autoscaler if several balancers share a store. One of them decides; the others put
//! its members in force, watch, and take over when it is gone.
//!
//! Members that a program or a server starts (`exec`, `webhook`) can be stopped by any balancer: the next one
//! that decides goes on with them. Processes, units and containers of another machine stay in force for as
//! long as they can be used. No balancer here stops them, and they are replaced here once they cannot be
//! used.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::autoscale::instances::{InstanceSet, InstanceState, ScalerInstance};
use plimsoll_brain::{EventKind, Time};
use plimsoll_cluster::discover::DiscoveredMember;
use plimsoll_cluster::scaler::Instance;
use plimsoll_config::GroupScaling;
use plimsoll_proxy::GroupSnapshot;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use super::replica_count::ReplicaCount;
use super::{CompletedAction, GroupAutoscaler, UNUSABLE_GRACE};
use crate::runtime::scaler_leader::{InstanceList, LEADER_LEASE, ScalerLeader};
use crate::runtime::scaler_state::ScaledInstance;

/// The time for another balancer to take over.
const TAKEOVER_TIME: Duration = Duration::from_secs(2);

/// The time in which others may not know yet that a member is drained.
const DRAIN_PROPAGATION: Duration = Duration::from_secs(2);

/// The balancer that decides, and the members that the others know.
#[derive(Debug, Default)]
pub(super) struct LeaderState {
    /// Whether this balancer decides, as it does without a shared store.
    pub(super) is_leader: bool,
    /// The name of another balancer that decides.
    pub(super) other_leader: Option<String>,
    /// Whether it does not decide any more, as the process ends.
    has_resigned: bool,
    /// Whether an attempt to decide is running.
    is_campaigning: bool,
    /// The time when the lease was renewed.
    renewed_at: Option<Instant>,
    /// The instance list in the store, as this balancer wrote it or put it in force; `is_publishing` while it
    /// is being written.
    instance_list: Option<InstanceList>,
    is_publishing: bool,
    /// The members that a former deciding balancer has started, and that only it could stop.
    foreign_instances: Vec<ScaledInstance>,
}

impl LeaderState {
    /// Forgets the acts that were broken off.
    pub(super) fn forget_pending(&mut self) {
        (self.is_campaigning, self.is_publishing) = (false, false);
    }
}

/// Returns a member as its group lists it.
fn to_listed(scaling: &GroupScaling, one: &Instance, leaving: bool) -> DiscoveredMember {
    let (capacity, limit) = (scaling.rules.unit_capacity, scaling.limit);
    DiscoveredMember { name: one.address.to_string().into(), address: one.address, capacity, limit, leaving }
}

impl GroupAutoscaler {
    /// Begins: at once if no other balancer could decide.
    pub(super) async fn join_election(&mut self) {
        let group = &self.scaling.group;
        if !self.running.shares_scaling() {
            self.leadership.is_leader = true;
            return self.adopt_members().await;
        }
        if self.running.leadership(group) == ScalerLeader::ThisBalancer {
            // A process before this one decided.
            return self.become_leader().await;
        }
        self.update_settings(self.scaling.clone());
    }

    /// Looks which balancer decides, and follows.
    pub(super) async fn check_leadership(&mut self, at: Instant) {
        if !self.running.shares_scaling() || self.leadership.has_resigned {
            return;
        }
        match self.running.leadership(&self.scaling.group) {
            // During an upgrade it stays as it is.
            ScalerLeader::Other(_) | ScalerLeader::NoBalancer if self.is_halted => {}
            ScalerLeader::ThisBalancer => {
                self.leadership.other_leader = None;
                if !self.leadership.is_leader {
                    self.become_leader().await;
                    let why = "this balancer decides from now on how many members there are".into();
                    self.publish_event(EventKind::Changed, None, why, Vec::new());
                }
                if self.leadership.renewed_at.is_none_or(|held| at.duration_since(held) >= LEADER_LEASE / 5) {
                    self.leadership.renewed_at = Some(at);
                    self.running.renew_leadership(&self.scaling.group);
                }
            }
            ScalerLeader::Other(name) => {
                if self.leadership.is_leader {
                    self.step_down(&name);
                }
                self.leadership.other_leader = Some(name);
                let roll = self.running.instances(&self.scaling.group);
                if roll.is_some() && roll != self.leadership.instance_list {
                    self.leadership.instance_list = roll;
                    self.has_unapplied_members = true;
                }
            }
            ScalerLeader::NoBalancer if !self.leadership.is_campaigning => {
                self.leadership.is_campaigning = true;
                let (running, group) = (Arc::clone(&self.running), Arc::clone(&self.scaling.group));
                self.tasks.spawn(async move {
                    let stood = spawn_blocking(move || running.acquire_leadership(&group)).await;
                    CompletedAction::CampaignEnded(stood.unwrap_or_else(|why| Err(why.to_string())))
                });
            }
            ScalerLeader::NoBalancer => {}
        }
    }

    /// Takes the end of an attempt to decide. The next look shows its success.
    pub(super) fn handle_campaign(&mut self, outcome: &Result<(), String>) {
        self.leadership.is_campaigning = false;
        if let Err(why) = outcome {
            tracing::debug!("group {}: {why}", self.scaling.group);
        }
    }

    /// Becomes the leader: this balancer goes on with the present members.
    async fn become_leader(&mut self) {
        let roll = self.running.instances(&self.scaling.group);
        let same = roll.filter(|roll| roll.provider == self.scaling.provider.name());
        // All stay in force, and nothing is written, until the owner of each is known.
        self.leadership.foreign_instances = same.map(|roll| roll.members).unwrap_or_default();
        (self.leadership.is_leader, self.leadership.is_publishing) = (true, true);
        self.adopt_members().await;
        for one in std::mem::take(&mut self.leadership.foreign_instances) {
            let ScaledInstance { instance, stage } = &one;
            if self.crew.instances().iter().any(|hand| hand.id == instance.id) {
                continue;
            }
            if self.scaling.provider.is_machine_independent() && self.crew.instance(instance.index).is_none()
            {
                let name: Arc<str> = instance.address.to_string().into();
                self.crew.restore(instance.index, instance.id.clone(), Some(name), *stage, self.now());
                self.instances.insert(instance.index, instance.clone());
            } else {
                self.leadership.foreign_instances.push(one);
            }
        }
        self.leadership.is_publishing = false;
        self.has_unapplied_members = true;
        self.next_decision_at = Instant::now();
    }

    /// Gives up the leadership: another balancer decides, which could not know that this one is there. The
    /// started members are that one's affair.
    fn step_down(&mut self, name: &str) {
        self.crew = InstanceSet::new(self.scaling.instance_rules);
        self.instances.clear();
        self.leadership = LeaderState::default();
        self.replica_count = ReplicaCount::default();
        let why = format!("{name} decides from now on how many members there are");
        self.publish_event(EventKind::Changed, None, why, Vec::new());
    }

    /// Resigns before the process ends: another balancer may decide at once.
    pub(super) async fn resign(&mut self) {
        if !(self.running.shares_scaling() && self.leadership.is_leader) {
            return;
        }
        self.leadership.has_resigned = true;
        let mut roll = self.own_instance_list();
        // The members end with this process: they get no new requests.
        let ends = !self.scaling.leaves_members && !self.scaling.provider.is_machine_independent();
        roll.members.iter_mut().filter(|_| ends).for_each(|one| one.stage = InstanceState::Draining);
        let (running, group) = (Arc::clone(&self.running), Arc::clone(&self.scaling.group));
        let resigned = spawn_blocking(move || {
            running.publish_instances(&group, &roll)?;
            running.resign_leadership(&group)
        });
        if let Ok(Err(why)) = resigned.await {
            tracing::debug!("group {}: {why}", self.scaling.group);
        }
    }

    /// Returns `true` if another balancer has the started members. A watching balancer takes them over at
    /// once, for which this waits for a moment.
    pub(super) async fn has_successor(&mut self) -> bool {
        if !(self.running.shares_scaling()
            && self.scaling.provider.is_machine_independent()
            && self.leadership.has_resigned)
        {
            return false;
        }
        let mut views = self.running.store().snapshots();
        let end = Instant::now() + TAKEOVER_TIME;
        loop {
            if let ScalerLeader::Other(_) = self.running.leadership(&self.scaling.group) {
                return true;
            }
            if !matches!(timeout_at(end, views.changed()).await, Ok(Ok(()))) {
                return false;
            }
        }
    }

    /// Removes the instance list: the members have been stopped, and no balancer should look for them.
    pub(super) async fn delete_instance_list(&mut self) {
        if !(self.running.shares_scaling() && self.leadership.is_leader) {
            return;
        }
        let roll = InstanceList {
            provider: self.scaling.provider.name().into(),
            members: self.leadership.foreign_instances.clone(),
        };
        let (running, group) = (Arc::clone(&self.running), Arc::clone(&self.scaling.group));
        if let Ok(Err(why)) = spawn_blocking(move || running.remove_instances(&group, &roll)).await {
            tracing::debug!("group {}: {why}", self.scaling.group);
        }
    }

    fn own_instance_list(&self) -> InstanceList {
        let manned = |hand: &ScalerInstance| {
            let there = matches!(
                hand.state,
                InstanceState::Coming | InstanceState::Serving | InstanceState::Draining
            );
            let instance = self.instances.get(&hand.index).filter(|_| there)?.clone();
            Some(ScaledInstance { instance, stage: hand.state })
        };
        let own = self.crew.instances().iter().filter_map(manned);
        let members = own.chain(self.leadership.foreign_instances.iter().cloned()).collect();
        InstanceList { provider: self.scaling.provider.name().into(), members }
    }

    /// Publishes the members to the others.
    pub(super) fn publish_instances(&mut self) {
        let together =
            self.running.shares_scaling() && self.leadership.is_leader && self.scaling.source.is_some();
        if !together || self.leadership.is_publishing || self.is_halted {
            return;
        }
        let roll = self.own_instance_list();
        if self.leadership.instance_list.as_ref() == Some(&roll) {
            return;
        }
        self.leadership.is_publishing = true;
        let (running, group) = (Arc::clone(&self.running), Arc::clone(&self.scaling.group));
        self.tasks.spawn(async move {
            let written = roll.clone();
            let done = spawn_blocking(move || running.publish_instances(&group, &written)).await;
            CompletedAction::InstancesPublished(
                done.unwrap_or_else(|why| Err(why.to_string())).map(|()| roll),
            )
        });
    }

    /// Takes the result of publishing; a failure is repeated at the next look.
    pub(super) fn handle_published(&mut self, outcome: Result<InstanceList, String>) {
        self.leadership.is_publishing = false;
        match outcome {
            Ok(roll) if self.leadership.is_leader => self.leadership.instance_list = Some(roll),
            Ok(_) => {}
            Err(why) => tracing::debug!("group {}: {why}", self.scaling.group),
        }
    }

    /// Returns the members that were started, here or elsewhere, for the group.
    pub(super) fn listed_members(&self) -> Vec<DiscoveredMember> {
        if !self.leadership.is_leader {
            let roll = self.leadership.instance_list.iter().flat_map(|roll| &roll.members);
            let leaving =
                |one: &ScaledInstance| matches!(one.stage, InstanceState::Draining | InstanceState::Stopping);
            return roll.map(|one| to_listed(&self.scaling, &one.instance, leaving(one))).collect();
        }
        let of = |name: &Arc<str>| self.instances.values().find(|one| *one.address.to_string() == **name);
        let own = self.crew.members().filter_map(of).map(|one| to_listed(&self.scaling, one, false));
        let mut all: Vec<DiscoveredMember> = own.collect();
        for ScaledInstance { instance, stage } in &self.leadership.foreign_instances {
            if all.iter().all(|known| known.address != instance.address) {
                all.push(to_listed(&self.scaling, instance, *stage == InstanceState::Draining));
            }
        }
        all
    }

    /// Gives up members that no balancer here could stop, once they cannot be used.
    pub(super) fn drop_unusable_foreign(&mut self, look: &GroupSnapshot) {
        let before = self.leadership.foreign_instances.len();
        self.leadership.foreign_instances.retain(|one| {
            let name = one.instance.address.to_string();
            let member = look.status.members.iter().find(|member| member.name == name);
            member.is_none_or(|member| {
                member.state.is_eligible() || member.since_seconds < UNUSABLE_GRACE.as_secs_f64()
            })
        });
        self.has_unapplied_members |= self.leadership.foreign_instances.len() < before;
    }

    /// Returns the drained members that may still serve other balancers, which may not know of the drain yet
    /// or do not report.
    pub(super) fn protected_members(&self, now: Time) -> Vec<Arc<str>> {
        if !self.running.shares_scaling() {
            return Vec::new();
        }
        let says = self.running.knows_peer_loads();
        let held = |hand: &&ScalerInstance| {
            hand.state == InstanceState::Draining && (!says || now.since(hand.since) < DRAIN_PROPAGATION)
        };
        self.crew.instances().iter().filter(held).filter_map(|hand| hand.member.clone()).collect()
    }

    /// Returns `true` if another balancer may decide by now, which this one cannot find out.
    pub(super) fn is_lease_uncertain(&self) -> bool {
        let together = self.running.shares_scaling() && self.leadership.is_leader;
        together && self.running.store_outage().is_some_and(|away| away > LEADER_LEASE)
    }
}
