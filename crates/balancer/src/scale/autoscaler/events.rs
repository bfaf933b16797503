//! The output of an autoscaler: events, and the state of its group.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::autoscale::instances::{InstanceEvent, InstanceState};
use plimsoll_brain::autoscale::{ScaleDecision, ScaleReason};
use plimsoll_brain::status::{ScaledMember, ScalerStatus};
use plimsoll_brain::{Event, EventKind};
use plimsoll_cluster::scaler::ProviderHandle;
use plimsoll_config::pluralize;

use super::GroupAutoscaler;
use crate::runtime::scaler_state::target_text;

impl GroupAutoscaler {
    pub(super) fn publish_instance_event(&mut self, event: InstanceEvent) {
        let seconds = |time: Duration| time.as_secs_f64();
        match event {
            InstanceEvent::Serving(_, start_time) => self.scaler.record_start_time(start_time),
            InstanceEvent::Ended(member, reason) => {
                self.publish_event(EventKind::MemberEnded, Some(member), reason, Vec::new())
            }
            InstanceEvent::Failed(reason, pause) => {
                let reason = format!(
                    "{}: {reason}; no instance is started for {:.1} s",
                    self.scaling.provider.name(),
                    seconds(pause)
                );
                let failures = f64::from(self.instance_set.failures().0);
                let inputs =
                    vec![("failures".to_owned(), failures), ("pause_seconds".to_owned(), seconds(pause))];
                self.publish_event(EventKind::ScalerFailed, None, reason, inputs);
            }
            InstanceEvent::Recovered(failures) => {
                let reason =
                    format!("{} works again, after {failures} failures", self.scaling.provider.name());
                self.publish_event(
                    EventKind::ScalerRecovered,
                    None,
                    reason,
                    vec![("failures".to_owned(), f64::from(failures))],
                );
            }
        }
    }

    pub(super) fn publish_event(
        &self,
        kind: EventKind,
        member: Option<Arc<str>>,
        reason: String,
        inputs: Vec<(String, f64)>,
    ) {
        self.balancer.engine().write_event(Event {
            kind,
            group: Arc::clone(&self.scaling.group),
            member,
            why: reason,
            inputs,
        });
    }

    /// Publishes its state.
    pub(super) fn publish_state(&self) {
        // A reader of advice takes an unknown value for the least.
        if self.last_decision.is_none() && matches!(self.provider, ProviderHandle::None) {
            return;
        }
        let rules = self.scaler.settings();
        let now = self.now();
        let (failures, failure) = self.instance_set.failures();
        let failure = failure.or(self.replica_count.last_error.as_deref());
        let started = self.instance_set.instances().iter().map(|instance| ScaledMember {
            index: instance.index,
            id: instance.id.clone(),
            member: instance.member.as_deref().map(str::to_owned),
            stage: instance.state,
            since_seconds: now.since(instance.since).as_secs_f64(),
        });
        let coming = self
            .instance_set
            .instances()
            .iter()
            .filter(|instance| matches!(instance.state, InstanceState::Asked | InstanceState::Coming));
        let mut status = ScalerStatus {
            provider: self.scaling.provider.name().to_owned(),
            target: target_text(rules.target),
            desired: rules.min,
            coming: coming.count() as u32,
            min: rules.min,
            max: rules.max,
            dry_run: self.scaling.dry_run,
            paused: self.scaler.is_paused(),
            start_seconds: self.scaler.start_seconds(),
            failures,
            failure: failure.map(str::to_owned),
            pause_seconds: self.instance_set.start_backoff(now).as_secs_f64(),
            started: started.collect(),
            ..ScalerStatus::default()
        };
        if let Some((decision, decided_at)) = &self.last_decision {
            (status.desired, status.members) = (decision.desired, decision.present);
            status.why = decision.explanation.clone();
            status.reason = decision.reason;
            status.inputs = decision.inputs.iter().cloned().collect();
            status.age_seconds = Some(decided_at.elapsed().as_secs_f64());
            status.actions = actions(decision);
        }
        if let Some(leader) = &self.leadership.other_leader {
            status.reason = ScaleReason::Elsewhere;
            status.why = format!("{leader} decides; seen from here: {}", status.why);
            status.decides = Some(leader.clone());
            status.actions.clear();
        } else if failures > 0 && status.desired != status.members {
            status.reason = ScaleReason::Failing;
        }
        self.balancer.scalers().set_status(&self.scaling.group, Some(status));
    }
}

/// Returns the actions of a decision, one line each.
fn actions(decision: &ScaleDecision) -> Vec<String> {
    let start = (decision.add > 0).then(|| format!("start {}", members(decision.add)));
    let remove = decision.remove.iter().filter(|name| !name.is_empty());
    start.into_iter().chain(remove.map(|name| format!("drain {name}, then stop it"))).collect()
}

pub(super) fn members(count: u32) -> String {
    pluralize(count as usize, "member")
}
