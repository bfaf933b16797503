//! Groups with scalers: their status, and operators' settings.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use plimsoll_brain::autoscale::instances::InstanceState;
use plimsoll_brain::autoscale::{ScaleTarget, ScalerSettings};
use plimsoll_brain::status::{GroupStatus, ScalerStatus};
use plimsoll_brain::{Event, EventKind};
use plimsoll_cluster::discover::{DiscoveredMember, MemberList, SourceSettings, SourceUpdate};
use plimsoll_cluster::scaler::Instance;
use plimsoll_cluster::store::StoreChange;
use plimsoll_config::{GroupScaling, pluralize};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc, oneshot};

use super::operator_state::{OperatorAction, with_timestamp};
use super::scaler_leader::random_id;
use super::{BalancerRuntime, lock};

/// The state of scalers.
#[derive(Debug, Default)]
pub(crate) struct ScalerRegistry {
    /// The last status of each, and its time.
    statuses: Mutex<BTreeMap<Arc<str>, (ScalerStatus, Instant)>>,
    /// The operators' settings, as in the store.
    overrides: Mutex<BTreeMap<Arc<str>, ScalerOverride>>,
    /// The signal that other scalers may be in the configuration, or that an operator has changed a setting.
    change_notify: Notify,
    /// The sender to the tasks of the scalers, once they run.
    task_sender: Mutex<Option<mpsc::Sender<ScalerMessage>>>,
    /// The identity of this balancer among those that decide; that of the process before, after an upgrade.
    identity: Mutex<Option<String>>,
    /// Members that a process before this one started, until a task takes them over.
    inherited: Mutex<BTreeMap<Arc<str>, Vec<ScaledInstance>>>,
}

/// A message to the tasks of the scalers.
#[derive(Debug)]
pub(crate) enum ScalerMessage {
    /// Halts: no member is started or taken away from now on.
    Halt,
    /// Stops the members that the tasks started.
    End,
    /// Halts, and replies once no member is being started, or with the group in which one still is.
    Settle(oneshot::Sender<Result<(), String>>),
    /// Stops all work, and replies with the members.
    Yield(oneshot::Sender<Vec<GroupInstances>>),
    /// Goes on.
    Resume,
    /// Ends: another process goes on.
    Leave,
}

/// A member that was started, and its stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ScaledInstance {
    pub instance: Instance,
    pub stage: InstanceState,
}

/// The state of a group with a scaler, for another process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct GroupInstances {
    pub group: String,
    /// The provider that started them.
    pub provider: String,
    pub members: Vec<ScaledInstance>,
    /// The identity of the balancer among those that decide.
    #[serde(default)]
    pub identity: Option<String>,
}

/// An operator's settings of a scaler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScalerOverride {
    min: Option<u32>,
    max: Option<u32>,
    pub paused: bool,
}

/// A setting that an operator can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ScalerSetting {
    /// The least number of members.
    Min,
    /// The largest number of members.
    Max,
    /// The pause, in which only members missing below the least are started.
    Pause,
}

impl ScalerSetting {
    const ALL: [Self; 3] = [Self::Min, Self::Max, Self::Pause];

    /// Returns the name after `scaler.`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Min => "min",
            Self::Max => "max",
            Self::Pause => "pause",
        }
    }

    /// Returns the setting of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|setting| setting.name() == name)
    }
}

impl ScalerOverride {
    /// Returns the rules with these settings.
    pub(crate) fn apply_to(self, rules: &ScalerSettings) -> ScalerSettings {
        let (min, max) = (self.min.unwrap_or(rules.min), self.max.unwrap_or(rules.max));
        ScalerSettings { min: min.min(max), max, ..rules.clone() }
    }

    /// Returns the settings with one change, as an operator writes it; `None` takes a setting back.
    fn with_setting(self, setting: ScalerSetting, value: Option<&str>) -> Result<Self, String> {
        let value = value.map(str::trim);
        let parse_count = |value: &str| match value.parse::<u32>() {
            Ok(member_count) if member_count <= MAX_MEMBERS => Ok(member_count),
            _ => Err(format!(
                "scaler.{} is a number of members, at most {MAX_MEMBERS}, not {value:?}",
                setting.name()
            )),
        };
        match setting {
            ScalerSetting::Min => Ok(Self { min: value.map(parse_count).transpose()?, ..self }),
            ScalerSetting::Max => {
                Ok(Self { max: value.map(parse_count).transpose()?.map(|max| max.max(1)), ..self })
            }
            ScalerSetting::Pause => match value.unwrap_or("false") {
                "true" => Ok(Self { paused: true, ..self }),
                "false" => Ok(Self { paused: false, ..self }),
                unknown_value => Err(format!("scaler.pause is true or false, not {unknown_value:?}")),
            },
        }
    }

    /// Returns the value in force of a setting, for people.
    fn display_value(self, setting: ScalerSetting, rules: &ScalerSettings) -> String {
        let rules = self.apply_to(rules);
        match setting {
            ScalerSetting::Min => rules.min.to_string(),
            ScalerSetting::Max => rules.max.to_string(),
            ScalerSetting::Pause => self.paused.to_string(),
        }
    }
}

/// The maximum number of members that an operator may ask for.
const MAX_MEMBERS: u32 = 4096;

impl ScalerRegistry {
    /// Sets the status of a scaler; `None` if it is gone.
    pub(crate) fn set_status(&self, group: &Arc<str>, status: Option<ScalerStatus>) {
        let mut statuses = lock(&self.statuses);
        match status {
            Some(status) => drop(statuses.insert(Arc::clone(group), (status, Instant::now()))),
            None => drop(statuses.remove(group)),
        }
    }

    /// Sets the sender to the tasks of the scalers.
    pub(crate) fn set_task_sender(&self, task_sender: mpsc::Sender<ScalerMessage>) {
        *lock(&self.task_sender) = Some(task_sender);
    }

    /// Sends a message to the tasks; returns `false` if there are none. It waits for room: it must not be
    /// called where waiting is not allowed.
    fn send(&self, message: ScalerMessage) -> bool {
        let task_sender = lock(&self.task_sender).clone();
        task_sender.is_some_and(|task_sender| task_sender.blocking_send(message).is_ok())
    }

    /// Returns the members of a group that a process before this one started, once.
    pub(crate) fn take_inherited(&self, group: &str) -> Vec<ScaledInstance> {
        lock(&self.inherited).remove(group).unwrap_or_default()
    }

    /// Returns the identity of this balancer among those that decide.
    pub(crate) fn identity(&self) -> String {
        lock(&self.identity).get_or_insert_with(random_id).clone()
    }

    /// Returns an operator's settings of a scaler.
    pub(crate) fn override_of(&self, group: &str) -> ScalerOverride {
        lock(&self.overrides).get(group).copied().unwrap_or_default()
    }

    /// Signals that another file is in force.
    pub(super) fn reloaded(&self) {
        self.change_notify.notify_one();
    }

    /// Sets an operator's settings of a scaler; returns `false` if they are the same.
    fn set_override(&self, group: &str, scaler_override: ScalerOverride) -> bool {
        let previous = lock(&self.overrides).insert(group.into(), scaler_override).unwrap_or_default();
        if previous != scaler_override {
            self.change_notify.notify_one();
        }
        previous != scaler_override
    }

    /// Fills in the status of the scalers.
    pub(super) fn fill_status(&self, groups: &mut [GroupStatus]) {
        let statuses = lock(&self.statuses);
        for group in groups {
            let entry = statuses.get(group.name.as_str());
            group.scaler = entry.map(|(status, recorded_at)| {
                let elapsed = recorded_at.elapsed().as_secs_f64();
                ScalerStatus { age_seconds: status.age_seconds.map(|age| age + elapsed), ..status.clone() }
            });
        }
    }
}

/// Returns a target as a status has it.
pub(crate) fn target_text(target: ScaleTarget) -> String {
    match target {
        ScaleTarget::Utilization(fraction) => format!("utilization {fraction}"),
        ScaleTarget::ResponseTime(seconds) => format!("response_time {seconds}"),
        ScaleTarget::HeadRoom(fraction) => format!("headroom {fraction}"),
    }
}

impl BalancerRuntime {
    /// Returns the state of scalers.
    pub(crate) fn scalers(&self) -> &ScalerRegistry {
        &self.scalers
    }

    /// Returns the groups with scalers.
    pub(crate) fn scalings(&self) -> Vec<GroupScaling> {
        lock(&self.file_config).scalings.clone()
    }

    /// Returns the names of the members that the file lists for a group.
    pub(crate) fn listed_members(&self, group: &str) -> Vec<Arc<str>> {
        let file_config = lock(&self.file_config);
        let settings = file_config.settings.groups.iter().filter(|settings| *settings.spec.name == *group);
        settings
            .flat_map(|settings| &settings.spec.members)
            .map(|group_settings| Arc::clone(&group_settings.name))
            .collect()
    }

    /// Returns once other scalers may be in force.
    pub(crate) async fn scalings_changed(&self) {
        self.scalers.change_notify.notified().await;
    }

    /// Puts the members that a scaler has started in force. It waits for locks: it must not be called where
    /// waiting is not allowed.
    ///
    /// # Errors
    /// Fails if they cannot be; those before stay then.
    pub(crate) fn apply_instances(
        &self,
        group: &Arc<str>,
        source: &Arc<SourceSettings>,
        members: Vec<DiscoveredMember>,
    ) -> Result<(), String> {
        let result = Ok(MemberList { members: Some(members), note: None });
        let (group, source) = (Arc::clone(group), Arc::clone(source));
        if let Some(event) = self.discovery.record_answer(SourceUpdate { group, source, result }) {
            self.engine.write_event(event);
        }
        self.apply_discovered()
    }

    /// Halts the scalers until they resume; returns once no member is being started.
    ///
    /// # Errors
    /// Fails if one is, and takes long.
    pub(super) fn halt_scalers(&self) -> Result<(), String> {
        let (reply, receiver) = oneshot::channel();
        if self.scalers.send(ScalerMessage::Settle(reply)) {
            return receiver.blocking_recv().unwrap_or(Ok(()));
        }
        if self.scalings().is_empty() { Ok(()) } else { Err("those who scale have not begun yet".into()) }
    }

    /// Stops all work of the scalers; returns the members that they started.
    pub(super) fn yield_instances(&self) -> Vec<GroupInstances> {
        let (reply, receiver) = oneshot::channel();
        if self.scalers.send(ScalerMessage::Yield(reply)) {
            receiver.blocking_recv().unwrap_or_default()
        } else {
            Vec::new()
        }
    }

    /// Resumes the scalers.
    pub(super) fn resume_scalers(&self) {
        self.scalers.send(ScalerMessage::Resume);
    }

    /// Takes over the members that a process before this one started: they are in force before any client is
    /// served.
    pub(super) fn inherit_instances(&self, group_instances: GroupInstances) {
        let GroupInstances { group, provider, members, identity } = group_instances;
        if identity.is_some() {
            *lock(&self.scalers.identity) = identity;
        }
        let scalings = self.scalings();
        let Some(scaling) = scalings
            .iter()
            .find(|candidate| *candidate.group == *group && candidate.provider.name() == provider)
        else {
            if !members.is_empty() {
                tracing::warn!(
                    "group {group}: {} that {provider} started before go on, and nobody looks after them: \
                     the configuration \
                     has no such scaler any more",
                    pluralize(members.len(), "member")
                );
            }
            return;
        };
        if let Some(source) = &scaling.source {
            let listed_member = |instance: &ScaledInstance| DiscoveredMember {
                name: instance.instance.address.to_string().into(),
                address: instance.instance.address,
                capacity: scaling.rules.unit_capacity,
                limit: scaling.limit,
                leaving: false,
            };
            let remaining = members.iter().filter(|instance| instance.stage != InstanceState::Stopping);
            if let Err(error) =
                self.apply_instances(&scaling.group, source, remaining.map(listed_member).collect())
            {
                tracing::warn!(
                    "group {group}: members that were started cannot be put in force yet: {error}"
                );
            }
        }
        lock(&self.scalers.inherited).insert(Arc::clone(&scaling.group), members);
    }

    /// Changes a setting of a scaler for an operator, until the next reload of any balancer.
    pub(super) fn set_scaler(&self, group: &str, key: &str, value: &str) -> Result<Vec<String>, String> {
        let scalings = self.scalings();
        let Some(scaling) = scalings.iter().find(|scaling| *scaling.group == *group) else {
            return Err(format!("group {group} has no scaler"));
        };
        let Some(setting) = ScalerSetting::named(key) else {
            let setting_names: Vec<String> =
                ScalerSetting::ALL.iter().map(|setting| format!("scaler.{}", setting.name())).collect();
            return Err(format!("there is no scaler.{key}; there are: {}", setting_names.join(", ")));
        };
        let mut actions = self.lock_actions()?;
        let (previous, rules) = (self.scalers.override_of(group), &scaling.rules);
        let changed = previous.with_setting(setting, Some(value))?;
        let (min, max) = (changed.min.unwrap_or(rules.min), changed.max.unwrap_or(rules.max));
        if min > max {
            return Err(format!("scaler.min ({min}) would be above scaler.max ({max})"));
        }
        let action = OperatorAction::Scaler(group.to_owned(), setting);
        let value_json: Value = serde_json::from_str(value.trim()).unwrap_or_else(|_| value.trim().into());
        let value_text = with_timestamp(json!({"value": value_json}));
        self.commit(StoreChange::put(action.key(), value_text.as_str()))?;
        actions.insert(action, value_text.into());
        self.apply_override(group, setting, changed);
        let previous_value = previous.display_value(setting, rules);
        Ok(vec![format!("~ group {group}: scaler.{key} {previous_value} -> {}", value.trim())])
    }

    /// Puts an operator's setting of a scaler in force, from here or another balancer; `None` takes it back.
    pub(super) fn apply_scaler_setting(
        &self,
        group: &str,
        setting: ScalerSetting,
        value_text: Option<&str>,
    ) -> Result<(), String> {
        let value = match value_text {
            None => None,
            Some(value_text) => {
                let parsed: Value = serde_json::from_str(value_text).map_err(|error| error.to_string())?;
                match &parsed["value"] {
                    Value::Null => return Err("it says no value".into()),
                    Value::String(text) => Some(text.clone()),
                    setting_value => Some(setting_value.to_string()),
                }
            }
        };
        let scaler_override = self.scalers.override_of(group).with_setting(setting, value.as_deref())?;
        if value_text.is_some() {
            self.apply_override(group, setting, scaler_override);
        } else {
            self.scalers.set_override(group, scaler_override);
        }
        Ok(())
    }

    fn apply_override(&self, group: &str, setting: ScalerSetting, scaler_override: ScalerOverride) {
        if !self.scalers.set_override(group, scaler_override) {
            return;
        }
        let Some(scaling) = self.scalings().into_iter().find(|scaling| *scaling.group == *group) else {
            return;
        };
        let now = scaler_override.display_value(setting, &scaling.rules);
        let reason = format!("scaler.{} is {now} by an operator, until the next reload", setting.name());
        let event = Event {
            kind: EventKind::Changed,
            group: group.into(),
            member: None,
            why: reason,
            inputs: Vec::new(),
        };
        self.engine.write_event(event);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_operators_say_counts_until_it_is_taken_back() {
        let rules = ScalerSettings {
            min: 2,
            max: 5,
            target: ScaleTarget::HeadRoom(0.3),
            unit_capacity: 1.0,
            cool_up: Duration::ZERO,
            cool_down: Duration::ZERO,
            step_up: 1,
            step_down: 1,
            stabilize: Duration::ZERO,
            start_time: Duration::ZERO,
        };
        let scaler_override =
            ScalerOverride::default().with_setting(ScalerSetting::Min, Some(" 3 ")).unwrap();
        assert_eq!(
            (scaler_override.apply_to(&rules).min, scaler_override.display_value(ScalerSetting::Min, &rules)),
            (3, "3".into())
        );
        let scaler_override = scaler_override
            .with_setting(ScalerSetting::Max, Some("2"))
            .unwrap()
            .with_setting(ScalerSetting::Pause, Some("true"))
            .unwrap();
        // Two operators did not know of each other: the largest number counts.
        assert_eq!(
            (
                scaler_override.apply_to(&rules).min,
                scaler_override.apply_to(&rules).max,
                scaler_override.paused
            ),
            (2, 2, true)
        );
        let scaler_override = scaler_override
            .with_setting(ScalerSetting::Max, None)
            .unwrap()
            .with_setting(ScalerSetting::Pause, None)
            .unwrap();
        assert_eq!(
            (
                scaler_override.apply_to(&rules).min,
                scaler_override.apply_to(&rules).max,
                scaler_override.paused
            ),
            (3, 5, false)
        );
        for (setting, invalid_value) in
            [(ScalerSetting::Min, "many"), (ScalerSetting::Max, "4097"), (ScalerSetting::Pause, "yes")]
        {
            assert!(
                scaler_override
                    .with_setting(setting, Some(invalid_value))
                    .unwrap_err()
                    .contains(setting.name()),
                "{invalid_value}"
            );
        }
    }
}
