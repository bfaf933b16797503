//! The succession of an autoscaler after another process, or a balancer before this one: it finds the started
//! members again, and gives way to the next.

use std::sync::Arc;

use plimsoll_brain::autoscale::instances::{InstanceAction, InstanceState, ScalerInstance};
use plimsoll_brain::{EventKind, Time};
use plimsoll_cluster::scaler::ProviderHandle;
use tokio::time::Instant;

use super::GroupAutoscaler;
use crate::runtime::scaler_state::{GroupInstances, ScaledInstance};

impl GroupAutoscaler {
    /// Replies that no member is being started, if that is so and awaited.
    pub(super) fn reply_if_settled(&mut self) {
        let is_starting = self.instance_set.asked() > 0 || self.replica_count.is_changing;
        if !is_starting && let Some(reply) = self.settling.take() {
            // The receiver may not wait any more.
            let _ = reply.send(());
        }
    }

    /// Stops all work; returns the members. A member that is being stopped is stopped again by the next
    /// process.
    pub(super) async fn hand_off(&mut self) -> GroupInstances {
        (self.is_halted, self.settling) = (true, None);
        self.tasks.abort_all();
        while let Some(action) = self.tasks.join_next().await {
            if let Ok(action) = action {
                self.handle_action(action);
            }
        }
        let to_scaled = |scaler_instance: &ScalerInstance| {
            Some(ScaledInstance {
                instance: self.instances.get(&scaler_instance.index)?.clone(),
                stage: scaler_instance.state,
            })
        };
        GroupInstances {
            group: self.scaling.group.to_string(),
            provider: self.scaling.provider.name().to_owned(),
            members: self.instance_set.instances().iter().filter_map(to_scaled).collect(),
            identity: Some(self.balancer.scalers().identity()),
        }
    }

    /// Goes on, because no other process does: acts that were broken off begin again.
    pub(super) fn resume(&mut self) {
        self.is_halted = false;
        self.leadership.forget_pending();
        self.next_decision_at = Instant::now();
        self.next_listing_at =
            (!matches!(self.provider, ProviderHandle::None)).then_some(self.next_decision_at);
        self.replica_count.is_changing = false;
        let stopping =
            self.instance_set.instances().iter().filter(|instance| instance.state == InstanceState::Stopping);
        for index in stopping.map(|instance| instance.index).collect::<Vec<_>>() {
            self.start_action(InstanceAction::Stop { index });
        }
    }

    /// Releases the members: another process has all that were started.
    pub(super) fn release_members(&self) {
        if let ProviderHandle::PerInstance(provider) = &self.provider {
            provider.release_all();
        }
    }

    /// Finds the members that a balancer before this one started.
    pub(super) async fn adopt_members(&mut self) {
        self.update_settings(self.scaling.clone());
        let inherited = self.balancer.scalers().take_inherited(&self.scaling.group);
        let ProviderHandle::PerInstance(provider) = &self.provider else { return };
        for ScaledInstance { instance, stage } in inherited {
            let name: Arc<str> = instance.address.to_string().into();
            provider.adopt(&instance);
            let now = Time(1) + self.epoch.elapsed();
            self.instance_set.restore(instance.index, instance.id.clone(), Some(name), stage, now);
            self.instances.insert(instance.index, instance);
        }
        match provider.running_instances().await {
            Ok(listed) => {
                for instance in listed.into_iter().flatten() {
                    let name: Arc<str> = instance.address.to_string().into();
                    self.instance_set.adopt(instance.index, instance.id.clone(), Some(name), self.now());
                    self.instances.insert(instance.index, instance);
                }
                self.handle_completed().await;
            }
            Err(error) => {
                let message = format!("{} cannot say who is there: {error}", self.scaling.provider.name());
                self.publish_event(EventKind::ScalerFailed, None, message, Vec::new());
            }
        }
    }
}
