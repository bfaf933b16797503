//! The members that a scaler started: the state of each from the order until it is gone.
//!
//! It is a value driven from outside. [`InstanceSet::request_starts`], [`InstanceSet::remove`],
//! [`InstanceSet::record_start`], [`InstanceSet::record_exit`] and the like record what happened,
//! [`InstanceSet::tick`] the time, and [`InstanceSet::poll_action`] returns the next action.
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
//! `first` to `max_backoff`, less a random part of up to a half. Then members are started one at a time until
//! one has served for `settled`: a wrong command starts no storm.
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
pub struct InstanceTimeouts {
    /// The time from its start until it must serve.
    pub start_deadline: Duration,
    /// The time from its drain until it is stopped, whatever its work.
    pub drain_deadline: Duration,
    /// The pause after a failure, before the random part is subtracted.
    pub first: Duration,
    /// The longest pause.
    pub max_backoff: Duration,
    /// The time of service after which a member ends a row of failures.
    pub settled_after: Duration,
}

impl Default for InstanceTimeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            start_deadline: seconds(60),
            drain_deadline: seconds(30),
            first: seconds(1),
            max_backoff: seconds(60),
            settled_after: seconds(30),
        }
    }
}

/// The state of a started member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InstanceState {
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
pub struct ScalerInstance {
    /// The smallest number that no other present member has.
    pub index: u32,
    /// The provider's identifier; empty before the start.
    pub id: String,
    /// Its name in the group (`host:port`), if the provider returns it.
    pub member: Option<Arc<str>>,
    /// The state.
    pub state: InstanceState,
    /// The time of the last change of the state.
    pub since: Time,
    /// The time of its start.
    started_at: Time,
    /// Whether it had no work at the previous look.
    was_idle: bool,
    /// The time since which it cannot be used.
    lost_since: Option<Time>,
    /// The time of the next attempt to stop it.
    stop_retry_at: Option<Time>,
    /// Whether stopping it failed.
    stop_failed: bool,
}

/// The next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstanceAction {
    /// Start a member; the outcome goes to [`InstanceSet::record_start`].
    Start {
        /// Its number.
        index: u32,
    },
    /// Drain it.
    Drain {
        /// Its number.
        index: u32,
    },
    /// Apply the changed members of the group: [`InstanceSet::members`].
    ApplyMembers,
    /// Stop it; the outcome goes to [`InstanceSet::record_stop`]. The previous order has removed it from its
    /// group.
    Stop {
        /// Its number.
        index: u32,
    },
}

/// The observed state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceObservation {
    /// Whether it can be chosen.
    pub usable: bool,
    /// The requests in flight.
    pub in_flight: u32,
}

/// A notification.
#[derive(Clone, Debug, PartialEq)]
pub enum InstanceEvent {
    /// A member serves, with the time since its start.
    Serving(Arc<str>, Duration),
    /// A member has ended by itself, with the reason.
    Ended(Arc<str>, String),
    /// The provider failed after a success, with the reason and the pause until the next start.
    Failed(String, Duration),
    /// The provider works again, after this number of failures in a row.
    Recovered(u32),
}

/// The members that a scaler started.
#[derive(Clone, Debug)]
pub struct InstanceSet {
    timeouts: InstanceTimeouts,
    instances: Vec<ScalerInstance>,
    actions: VecDeque<InstanceAction>,
    events: VecDeque<InstanceEvent>,
    failures: u32,
    /// The time before which none is started.
    next_start_at: Option<Time>,
    /// The reason of the last failure.
    last_failure: Option<String>,
}

impl InstanceSet {
    /// Returns a set without members.
    pub fn new(timeouts: InstanceTimeouts) -> Self {
        let (instances, actions, events) = (Vec::new(), VecDeque::new(), VecDeque::new());
        Self { timeouts, instances, actions, events, failures: 0, next_start_at: None, last_failure: None }
    }

    /// Applies other time limits.
    pub fn set_timeouts(&mut self, timeouts: InstanceTimeouts) {
        self.timeouts = timeouts;
    }

    /// Returns all started members, by number.
    pub fn instances(&self) -> &[ScalerInstance] {
        &self.instances
    }

    /// Returns a started member.
    pub fn instance(&self, index: u32) -> Option<&ScalerInstance> {
        self.instances.iter().find(|instance| instance.index == index)
    }

    /// Returns the names of the members in the group: those that serve, are coming, or drain.
    pub fn members(&self) -> impl Iterator<Item = &Arc<str>> {
        let may_be_member = |instance: &&ScalerInstance| {
            matches!(instance.state, InstanceState::Coming | InstanceState::Serving | InstanceState::Draining)
        };
        self.instances.iter().filter(may_be_member).filter_map(|instance| instance.member.as_ref())
    }

    /// Returns the number of members that were ordered and have no name yet.
    pub fn asked(&self) -> u32 {
        self.instances.iter().filter(|instance| instance.state == InstanceState::Asked).count() as u32
    }

    /// Returns the number of failures in a row, and the reason of the last one.
    pub fn failures(&self) -> (u32, Option<&str>) {
        (self.failures, self.last_failure.as_deref())
    }

    /// Returns the remaining time without starts.
    pub fn start_backoff(&self, now: Time) -> Duration {
        self.next_start_at.map_or(Duration::ZERO, |until| until.since(now))
    }

    /// Adds a present member that was started earlier: it counts as serving, and is lost if it does not
    /// serve.
    pub fn adopt(&mut self, index: u32, id: String, member: Option<Arc<str>>, now: Time) {
        if self.instance(index).is_none() {
            let instance = ScalerInstance {
                id,
                member,
                state: InstanceState::Serving,
                ..ScalerInstance::requested(index, now)
            };
            self.insert(instance);
            self.actions.push_back(InstanceAction::ApplyMembers);
        }
    }

    /// Adds a member from another process, with its state there: unfinished steps are repeated.
    pub fn restore(
        &mut self,
        index: u32,
        id: String,
        member: Option<Arc<str>>,
        state: InstanceState,
        now: Time,
    ) {
        // A member that was only ordered has no identity.
        if state == InstanceState::Asked || self.instance(index).is_some() {
            return;
        }
        self.insert(ScalerInstance { id, member, state, ..ScalerInstance::requested(index, now) });
        self.actions.push_back(InstanceAction::ApplyMembers);
        if state == InstanceState::Stopping {
            self.actions.push_back(InstanceAction::Stop { index });
        }
    }

    /// Orders more members; returns the number ordered now.
    pub fn request_starts(&mut self, count: u32, now: Time) -> u32 {
        let (is_backing_off, requested) = (!self.start_backoff(now).is_zero(), self.asked());
        let unsettled = self
            .instances
            .iter()
            .filter(|instance| matches!(instance.state, InstanceState::Asked | InstanceState::Coming));
        let allowed = match self.failures {
            _ if is_backing_off => 0,
            0 => MAX_REQUESTED.saturating_sub(requested),
            // One member that shows whether starts succeed now.
            _ => 1_u32.saturating_sub(unsettled.count() as u32),
        };
        let count = count.min(allowed);
        for _ in 0..count {
            let index = self.free_index();
            self.insert(ScalerInstance::requested(index, now));
            self.actions.push_back(InstanceAction::Start { index });
        }
        count
    }

    /// Removes members by name; returns the number that will be removed.
    pub fn remove<'a>(&mut self, members: impl IntoIterator<Item = &'a str>, now: Time) -> u32 {
        let mut count = 0;
        for member in members {
            let is_member = |instance: &&mut ScalerInstance| instance.member.as_deref() == Some(member);
            let Some(instance) = self.instances.iter_mut().find(is_member) else { continue };
            let index = instance.index;
            match instance.state {
                InstanceState::Serving => {
                    instance.set_state(InstanceState::Draining, now);
                    self.actions.push_back(InstanceAction::Drain { index });
                }
                // It has no work that could end.
                InstanceState::Coming => self.stop(index, now),
                InstanceState::Asked | InstanceState::Draining | InstanceState::Stopping => continue,
            }
            count += 1;
        }
        count
    }

    /// Removes all members.
    pub fn remove_all(&mut self, now: Time) {
        let names: Vec<Arc<str>> =
            self.instances.iter().filter_map(|instance| instance.member.clone()).collect();
        self.remove(names.iter().map(|name| &**name), now);
    }

    /// Records the outcome of a start. `chance` is random bits.
    pub fn record_start(
        &mut self,
        index: u32,
        outcome: Result<(String, Option<Arc<str>>), String>,
        random_bits: u64,
        now: Time,
    ) {
        let Some(position) = self
            .instances
            .iter()
            .position(|instance| instance.index == index && instance.state == InstanceState::Asked)
        else {
            return;
        };
        match outcome {
            Ok((id, member)) => {
                // Two members of one name could not be distinguished.
                let name_taken =
                    member.is_some() && self.instances.iter().any(|instance| instance.member == member);
                let instance = &mut self.instances[position];
                (instance.id, instance.started_at) = (id, now);
                if name_taken {
                    instance.set_state(InstanceState::Coming, now);
                    self.stop(index, now);
                    self.record_failure(
                        "the member that was started has the name of another one".into(),
                        random_bits,
                        now,
                    );
                    return;
                }
                instance.member = member;
                instance.set_state(InstanceState::Coming, now);
                self.actions.push_back(InstanceAction::ApplyMembers);
            }
            Err(reason) => {
                self.instances.remove(position);
                self.record_failure(reason, random_bits, now);
            }
        }
    }

    /// Records that a member has ended by itself.
    pub fn record_exit(&mut self, index: u32, reason: String, random_bits: u64, now: Time) {
        let Some(position) = self.instances.iter().position(|instance| instance.index == index) else {
            return;
        };
        let instance = self.instances.remove(position);
        self.actions.push_back(InstanceAction::ApplyMembers);
        let settled = now.since(instance.started_at) >= self.timeouts.settled_after
            && instance.state == InstanceState::Serving;
        match instance.state {
            // It was to be removed.
            InstanceState::Stopping | InstanceState::Draining => return,
            InstanceState::Asked | InstanceState::Coming | InstanceState::Serving => {}
        }
        if let Some(member) = instance.member {
            self.events.push_back(InstanceEvent::Ended(member, reason.clone()));
        }
        // A member that worked for that long is no evidence against the next.
        if !settled {
            self.record_failure(reason, random_bits, now);
        }
    }

    /// Records the outcome of a stop.
    pub fn record_stop(&mut self, index: u32, outcome: Result<(), String>, random_bits: u64, now: Time) {
        let Some(position) = self.instances.iter().position(|instance| instance.index == index) else {
            return;
        };
        match outcome {
            Ok(()) => {
                if self.instances.remove(position).stop_failed {
                    self.record_recovery();
                }
            }
            Err(reason) => {
                self.record_failure(reason, random_bits, now);
                let instance = &mut self.instances[position];
                (instance.stop_retry_at, instance.stop_failed) = (self.next_start_at, true);
            }
        }
    }

    /// Advances the time. `look` returns the observed state of a member, by name; `None` for one that the
    /// group does not have.
    pub fn tick(
        &mut self,
        observe_member: impl Fn(&str) -> Option<InstanceObservation>,
        random_bits: u64,
        now: Time,
    ) {
        let timeouts = self.timeouts;
        let (mut stop_indices, mut deadline_error) = (Vec::new(), None);
        for instance in &mut self.instances {
            let observation = instance.member.as_deref().and_then(&observe_member);
            let usable = observation.is_some_and(|observation| observation.usable);
            let idle = observation.is_none_or(|observation| observation.in_flight == 0);
            match instance.state {
                InstanceState::Asked => {}
                InstanceState::Coming if usable || instance.member.is_none() => {
                    let start_time = now.since(instance.started_at);
                    if let Some(member) = &instance.member {
                        self.events.push_back(InstanceEvent::Serving(Arc::clone(member), start_time));
                    }
                    instance.set_state(InstanceState::Serving, now);
                }
                InstanceState::Coming => {
                    if now.since(instance.started_at) >= timeouts.start_deadline {
                        let name = instance.member.as_deref().unwrap_or_default();
                        deadline_error = Some(alloc::format!(
                            "{name} could not be used within {} s of being started",
                            timeouts.start_deadline.as_secs_f64()
                        ));
                        stop_indices.push(instance.index);
                    }
                }
                InstanceState::Serving => {
                    let is_lost = instance.member.is_some() && !usable;
                    instance.lost_since = is_lost.then(|| instance.lost_since.unwrap_or(now));
                    if instance.lost_since.is_some_and(|since| now.since(since) >= timeouts.start_deadline) {
                        stop_indices.push(instance.index);
                    }
                }
                InstanceState::Draining => {
                    // Twice, because a request may be on its way between the choice and the count.
                    if (idle && instance.was_idle) || now.since(instance.since) >= timeouts.drain_deadline {
                        stop_indices.push(instance.index);
                    }
                    instance.was_idle = idle;
                }
                InstanceState::Stopping => {
                    if instance.stop_retry_at.is_some_and(|retry_at| retry_at <= now) {
                        instance.stop_retry_at = None;
                        self.actions.push_back(InstanceAction::Stop { index: instance.index });
                    }
                }
            }
        }
        for index in stop_indices {
            self.stop(index, now);
        }
        if let Some(reason) = deadline_error {
            self.record_failure(reason, random_bits, now);
        }
        let is_settled = |instance: &ScalerInstance| {
            instance.state == InstanceState::Serving && now.since(instance.since) >= timeouts.settled_after
        };
        let start_succeeded = self.instances.iter().any(settled_since(self.next_start_at, is_settled));
        // No member was wanted since, or all were present: the failure was long ago.
        let all_serving = self
            .instances
            .iter()
            .all(|instance| instance.state == InstanceState::Serving && instance.lost_since.is_none());
        let backoff_expired =
            self.next_start_at.is_some_and(|until| now.since(until) >= timeouts.max_backoff);
        if self.failures > 0
            && self.start_backoff(now).is_zero()
            && (start_succeeded || all_serving && backoff_expired)
        {
            self.record_recovery();
        }
    }

    /// Returns the next action.
    pub fn poll_action(&mut self) -> Option<InstanceAction> {
        self.actions.pop_front()
    }

    /// Returns the next notification.
    pub fn poll_event(&mut self) -> Option<InstanceEvent> {
        self.events.pop_front()
    }

    /// Returns `true` if a step is in progress, so that frequent looks are useful.
    pub fn is_busy(&self) -> bool {
        self.instances.iter().any(|instance| instance.state != InstanceState::Serving)
    }

    fn stop(&mut self, index: u32, now: Time) {
        if let Some(instance) = self.instances.iter_mut().find(|instance| instance.index == index) {
            instance.set_state(InstanceState::Stopping, now);
            self.actions.push_back(InstanceAction::ApplyMembers);
            self.actions.push_back(InstanceAction::Stop { index });
        }
    }

    fn record_recovery(&mut self) {
        if self.failures > 0 {
            self.events.push_back(InstanceEvent::Recovered(self.failures));
            (self.failures, self.last_failure, self.next_start_at) = (0, None, None);
        }
    }

    fn record_failure(&mut self, reason: String, random_bits: u64, now: Time) {
        self.failures = self.failures.saturating_add(1);
        let doubled = self.timeouts.first.saturating_mul(1 << (self.failures - 1).min(20));
        let max_pause = doubled.min(self.timeouts.max_backoff);
        let jitter = (max_pause.as_nanos() / 2 * u128::from(random_bits >> 32)) >> 32;
        let pause = max_pause.saturating_sub(Duration::from_nanos(u64::try_from(jitter).unwrap_or(u64::MAX)));
        self.next_start_at = Some(now + pause);
        // Once for failures in a row, and again if the reason changes.
        if self.last_failure.as_ref() != Some(&reason) {
            self.events.push_back(InstanceEvent::Failed(reason.clone(), pause));
        }
        self.last_failure = Some(reason);
    }

    /// Returns the smallest free number.
    fn free_index(&self) -> u32 {
        let mut index = 0;
        for instance in &self.instances {
            if instance.index != index {
                break;
            }
            index += 1;
        }
        index
    }

    fn insert(&mut self, instance: ScalerInstance) {
        let position = self.instances.partition_point(|other| other.index < instance.index);
        self.instances.insert(position, instance);
    }
}

impl ScalerInstance {
    fn requested(index: u32, now: Time) -> Self {
        let (id, member, state, was_idle) = (String::new(), None, InstanceState::Asked, false);
        Self {
            index,
            id,
            member,
            state,
            since: now,
            started_at: now,
            was_idle,
            lost_since: None,
            stop_retry_at: None,
            stop_failed: false,
        }
    }

    fn set_state(&mut self, state: InstanceState, now: Time) {
        (self.state, self.since, self.was_idle, self.lost_since) = (state, now, false, None);
    }
}

/// Returns the predicate of settled members started after the last failure, which show that it is over.
/// Earlier ones do not.
fn settled_since(
    next_start_at: Option<Time>,
    is_settled: impl Fn(&ScalerInstance) -> bool,
) -> impl Fn(&ScalerInstance) -> bool {
    move |instance| is_settled(instance) && next_start_at.is_none_or(|until| instance.started_at >= until)
}

/// The maximum number of members ordered at once.
const MAX_REQUESTED: u32 = 64;
