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
fn discovered_member(scaling: &GroupScaling, instance: &Instance, leaving: bool) -> DiscoveredMember {
    let (capacity, limit) = (scaling.rules.unit_capacity, scaling.limit);
    DiscoveredMember {
        name: instance.address.to_string().into(),
        address: instance.address,
        capacity,
        limit,
        leaving,
    }
}

impl GroupAutoscaler {
    /// Begins: at once if no other balancer could decide.
    pub(super) async fn join_election(&mut self) {
        let group = &self.scaling.group;
        if !self.balancer.shares_scaling() {
            self.leadership.is_leader = true;
            return self.adopt_members().await;
        }
        if self.balancer.leadership(group) == ScalerLeader::ThisBalancer {
            // A process before this one decided.
            return self.become_leader().await;
        }
        self.update_settings(self.scaling.clone());
    }

    /// Looks which balancer decides, and follows.
    pub(super) async fn check_leadership(&mut self, instant: Instant) {
        if !self.balancer.shares_scaling() || self.leadership.has_resigned {
            return;
        }
        match self.balancer.leadership(&self.scaling.group) {
            // During an upgrade it stays as it is.
            ScalerLeader::Other(_) | ScalerLeader::NoBalancer if self.is_halted => {}
            ScalerLeader::ThisBalancer => {
                self.leadership.other_leader = None;
                if !self.leadership.is_leader {
                    self.become_leader().await;
                    let reason = "this balancer decides from now on how many members there are".into();
                    self.publish_event(EventKind::Changed, None, reason, Vec::new());
                }
                if self
                    .leadership
                    .renewed_at
                    .is_none_or(|renewed_at| instant.duration_since(renewed_at) >= LEADER_LEASE / 5)
                {
                    self.leadership.renewed_at = Some(instant);
                    self.balancer.renew_leadership(&self.scaling.group);
                }
            }
            ScalerLeader::Other(name) => {
                if self.leadership.is_leader {
                    self.step_down(&name);
                }
                self.leadership.other_leader = Some(name);
                let instance_list = self.balancer.instances(&self.scaling.group);
                if instance_list.is_some() && instance_list != self.leadership.instance_list {
                    self.leadership.instance_list = instance_list;
                    self.has_unapplied_members = true;
                }
            }
            ScalerLeader::NoBalancer if !self.leadership.is_campaigning => {
                self.leadership.is_campaigning = true;
                let (balancer, group) = (Arc::clone(&self.balancer), Arc::clone(&self.scaling.group));
                self.tasks.spawn(async move {
                    let result = spawn_blocking(move || balancer.acquire_leadership(&group)).await;
                    CompletedAction::CampaignEnded(result.unwrap_or_else(|error| Err(error.to_string())))
                });
            }
            ScalerLeader::NoBalancer => {}
        }
    }

    /// Takes the end of an attempt to decide. The next look shows its success.
    pub(super) fn handle_campaign(&mut self, outcome: &Result<(), String>) {
        self.leadership.is_campaigning = false;
        if let Err(error) = outcome {
            tracing::debug!("group {}: {error}", self.scaling.group);
        }
    }

    /// Becomes the leader: this balancer goes on with the present members.
    async fn become_leader(&mut self) {
        let instance_list = self.balancer.instances(&self.scaling.group);
        let matching = instance_list.filter(|list| list.provider == self.scaling.provider.name());
        // All stay in force, and nothing is written, until the owner of each is known.
        self.leadership.foreign_instances = matching.map(|list| list.members).unwrap_or_default();
        (self.leadership.is_leader, self.leadership.is_publishing) = (true, true);
        self.adopt_members().await;
        for scaled_instance in std::mem::take(&mut self.leadership.foreign_instances) {
            let ScaledInstance { instance, stage } = &scaled_instance;
            if self.instance_set.instances().iter().any(|known| known.id == instance.id) {
                continue;
            }
            if self.scaling.provider.is_machine_independent()
                && self.instance_set.instance(instance.index).is_none()
            {
                let name: Arc<str> = instance.address.to_string().into();
                self.instance_set.restore(
                    instance.index,
                    instance.id.clone(),
                    Some(name),
                    *stage,
                    self.now(),
                );
                self.instances.insert(instance.index, instance.clone());
            } else {
                self.leadership.foreign_instances.push(scaled_instance);
            }
        }
        self.leadership.is_publishing = false;
        self.has_unapplied_members = true;
        self.next_decision_at = Instant::now();
    }

    /// Gives up the leadership: another balancer decides, which could not know that this one is there. The
    /// started members are that one's affair.
    fn step_down(&mut self, name: &str) {
        self.instance_set = InstanceSet::new(self.scaling.instance_rules);
        self.instances.clear();
        self.leadership = LeaderState::default();
        self.replica_count = ReplicaCount::default();
        let reason = format!("{name} decides from now on how many members there are");
        self.publish_event(EventKind::Changed, None, reason, Vec::new());
    }

    /// Resigns before the process ends: another balancer may decide at once.
    pub(super) async fn resign(&mut self) {
        if !(self.balancer.shares_scaling() && self.leadership.is_leader) {
            return;
        }
        self.leadership.has_resigned = true;
        let mut instance_list = self.own_instance_list();
        // The members end with this process: they get no new requests.
        let stops_members = !self.scaling.leaves_members && !self.scaling.provider.is_machine_independent();
        instance_list
            .members
            .iter_mut()
            .filter(|_| stops_members)
            .for_each(|instance| instance.stage = InstanceState::Draining);
        let (balancer, group) = (Arc::clone(&self.balancer), Arc::clone(&self.scaling.group));
        let resignation = spawn_blocking(move || {
            balancer.publish_instances(&group, &instance_list)?;
            balancer.resign_leadership(&group)
        });
        if let Ok(Err(error)) = resignation.await {
            tracing::debug!("group {}: {error}", self.scaling.group);
        }
    }

    /// Returns `true` if another balancer has the started members. A watching balancer takes them over at
    /// once, for which this waits for a moment.
    pub(super) async fn has_successor(&mut self) -> bool {
        if !(self.balancer.shares_scaling()
            && self.scaling.provider.is_machine_independent()
            && self.leadership.has_resigned)
        {
            return false;
        }
        let mut views = self.balancer.store().snapshots();
        let deadline = Instant::now() + TAKEOVER_TIME;
        loop {
            if let ScalerLeader::Other(_) = self.balancer.leadership(&self.scaling.group) {
                return true;
            }
            if !matches!(timeout_at(deadline, views.changed()).await, Ok(Ok(()))) {
                return false;
            }
        }
    }

    /// Removes the instance list: the members have been stopped, and no balancer should look for them.
    pub(super) async fn delete_instance_list(&mut self) {
        if !(self.balancer.shares_scaling() && self.leadership.is_leader) {
            return;
        }
        let instance_list = InstanceList {
            provider: self.scaling.provider.name().into(),
            members: self.leadership.foreign_instances.clone(),
        };
        let (balancer, group) = (Arc::clone(&self.balancer), Arc::clone(&self.scaling.group));
        if let Ok(Err(error)) =
            spawn_blocking(move || balancer.remove_instances(&group, &instance_list)).await
        {
            tracing::debug!("group {}: {error}", self.scaling.group);
        }
    }

    fn own_instance_list(&self) -> InstanceList {
        let to_scaled = |scaler_instance: &ScalerInstance| {
            let is_active = matches!(
                scaler_instance.state,
                InstanceState::Coming | InstanceState::Serving | InstanceState::Draining
            );
            let instance = self.instances.get(&scaler_instance.index).filter(|_| is_active)?.clone();
            Some(ScaledInstance { instance, stage: scaler_instance.state })
        };
        let own_instances = self.instance_set.instances().iter().filter_map(to_scaled);
        let members = own_instances.chain(self.leadership.foreign_instances.iter().cloned()).collect();
        InstanceList { provider: self.scaling.provider.name().into(), members }
    }

    /// Publishes the members to the others.
    pub(super) fn publish_instances(&mut self) {
        let is_shared =
            self.balancer.shares_scaling() && self.leadership.is_leader && self.scaling.source.is_some();
        if !is_shared || self.leadership.is_publishing || self.is_halted {
            return;
        }
        let instance_list = self.own_instance_list();
        if self.leadership.instance_list.as_ref() == Some(&instance_list) {
            return;
        }
        self.leadership.is_publishing = true;
        let (balancer, group) = (Arc::clone(&self.balancer), Arc::clone(&self.scaling.group));
        self.tasks.spawn(async move {
            let published = instance_list.clone();
            let result = spawn_blocking(move || balancer.publish_instances(&group, &published)).await;
            CompletedAction::InstancesPublished(
                result.unwrap_or_else(|error| Err(error.to_string())).map(|()| instance_list),
            )
        });
    }

    /// Takes the result of publishing; a failure is repeated at the next look.
    pub(super) fn handle_published(&mut self, outcome: Result<InstanceList, String>) {
        self.leadership.is_publishing = false;
        match outcome {
            Ok(instance_list) if self.leadership.is_leader => {
                self.leadership.instance_list = Some(instance_list)
            }
            Ok(_) => {}
            Err(error) => tracing::debug!("group {}: {error}", self.scaling.group),
        }
    }

    /// Returns the members that were started, here or elsewhere, for the group.
    pub(super) fn listed_members(&self) -> Vec<DiscoveredMember> {
        if !self.leadership.is_leader {
            let listed = self.leadership.instance_list.iter().flat_map(|list| &list.members);
            let is_leaving = |instance: &ScaledInstance| {
                matches!(instance.stage, InstanceState::Draining | InstanceState::Stopping)
            };
            return listed
                .map(|instance| discovered_member(&self.scaling, &instance.instance, is_leaving(instance)))
                .collect();
        }
        let instance_named = |name: &Arc<str>| {
            self.instances.values().find(|instance| *instance.address.to_string() == **name)
        };
        let own_members = self
            .instance_set
            .members()
            .filter_map(instance_named)
            .map(|instance| discovered_member(&self.scaling, instance, false));
        let mut members: Vec<DiscoveredMember> = own_members.collect();
        for ScaledInstance { instance, stage } in &self.leadership.foreign_instances {
            if members.iter().all(|member| member.address != instance.address) {
                members.push(discovered_member(&self.scaling, instance, *stage == InstanceState::Draining));
            }
        }
        members
    }

    /// Gives up members that no balancer here could stop, once they cannot be used.
    pub(super) fn drop_unusable_foreign(&mut self, snapshot: &GroupSnapshot) {
        let previous_len = self.leadership.foreign_instances.len();
        self.leadership.foreign_instances.retain(|foreign| {
            let name = foreign.instance.address.to_string();
            let member = snapshot.status.members.iter().find(|member| member.name == name);
            member.is_none_or(|member| {
                member.state.is_eligible() || member.since_seconds < UNUSABLE_GRACE.as_secs_f64()
            })
        });
        self.has_unapplied_members |= self.leadership.foreign_instances.len() < previous_len;
    }

    /// Returns the drained members that may still serve other balancers, which may not know of the drain yet
    /// or do not report.
    pub(super) fn protected_members(&self, now: Time) -> Vec<Arc<str>> {
        if !self.balancer.shares_scaling() {
            return Vec::new();
        }
        let knows_peer_loads = self.balancer.knows_peer_loads();
        let is_protected = |instance: &&ScalerInstance| {
            instance.state == InstanceState::Draining
                && (!knows_peer_loads || now.since(instance.since) < DRAIN_PROPAGATION)
        };
        self.instance_set
            .instances()
            .iter()
            .filter(is_protected)
            .filter_map(|instance| instance.member.clone())
            .collect()
    }

    /// Returns `true` if another balancer may decide by now, which this one cannot find out.
    pub(super) fn is_lease_uncertain(&self) -> bool {
        let is_shared = self.balancer.shares_scaling() && self.leadership.is_leader;
        is_shared && self.balancer.store_outage().is_some_and(|outage| outage > LEADER_LEASE)
    }
}
