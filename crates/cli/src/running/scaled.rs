//! Groups with scalers: their status, and operators' settings.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use plimsoll_brain::scale::crew::Stage;
use plimsoll_brain::scale::{Rules, Target};
use plimsoll_brain::status::{GroupStatus, ScalerStatus};
use plimsoll_brain::{Event, EventKind};
use plimsoll_cluster::discover::{Heard, Listed, SourceSettings, Told};
use plimsoll_cluster::scaler::Instance;
use plimsoll_cluster::store::Change;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc, oneshot};

use super::kept::{Deed, stamped};
use super::owner::fresh;
use super::{Running, lock};
use crate::config::{Scaling, count};

/// The state of scalers.
#[derive(Debug, Default)]
pub(crate) struct Scaled {
    /// The last status of each, and its time.
    said: Mutex<BTreeMap<Arc<str>, (ScalerStatus, Instant)>>,
    /// The operators' settings, as in the store.
    wishes: Mutex<BTreeMap<Arc<str>, Wish>>,
    /// The signal that other scalers may be in the configuration, or that an operator has changed a setting.
    changed: Notify,
    /// The sender to the tasks of the scalers, once they run.
    crews: Mutex<Option<mpsc::Sender<Tell>>>,
    /// The identity of this balancer among those that decide; that of the process before, after an upgrade.
    identity: Mutex<Option<String>>,
    /// Members that a process before this one started, until a task takes them over.
    inherited: Mutex<BTreeMap<Arc<str>, Vec<Manned>>>,
}

/// A message to the tasks of the scalers.
#[derive(Debug)]
pub(crate) enum Tell {
    /// Halts: no member is started or taken away from now on.
    Halt,
    /// Stops the members that the tasks started.
    End,
    /// Halts, and replies once no member is being started, or with the group in which one still is.
    Settle(oneshot::Sender<Result<(), String>>),
    /// Stops all work, and replies with the members.
    Yield(oneshot::Sender<Vec<Crewed>>),
    /// Goes on.
    Resume,
    /// Ends: another process goes on.
    Leave,
}

/// A member that was started, and its stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manned {
    pub(crate) instance: Instance,
    pub(crate) stage: Stage,
}

/// The state of a group with a scaler, for another process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Crewed {
    pub(crate) group: String,
    /// The provider that started them.
    pub(crate) provider: String,
    pub(crate) members: Vec<Manned>,
    /// The identity of the balancer among those that decide.
    #[serde(default)]
    pub(crate) identity: Option<String>,
}

/// An operator's settings of a scaler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    min: Option<u32>,
    max: Option<u32>,
    pub(crate) paused: bool,
}

/// A setting that an operator can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Knob {
    /// The least number of members.
    Min,
    /// The largest number of members.
    Max,
    /// The pause, in which only members missing below the least are started.
    Pause,
}

impl Knob {
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
        Self::ALL.into_iter().find(|knob| knob.name() == name)
    }
}

impl Wish {
    /// Returns the rules with these settings.
    pub(crate) fn over(self, rules: &Rules) -> Rules {
        let (min, max) = (self.min.unwrap_or(rules.min), self.max.unwrap_or(rules.max));
        Rules { min: min.min(max), max, ..rules.clone() }
    }

    /// Returns the settings with one change, as an operator writes it; `None` takes a setting back.
    fn with(self, knob: Knob, value: Option<&str>) -> Result<Self, String> {
        let value = value.map(str::trim);
        let number = |value: &str| match value.parse::<u32>() {
            Ok(number) if number <= MOST => Ok(number),
            _ => Err(format!("scaler.{} is a number of members, at most {MOST}, not {value:?}", knob.name())),
        };
        match knob {
            Knob::Min => Ok(Self { min: value.map(number).transpose()?, ..self }),
            Knob::Max => Ok(Self { max: value.map(number).transpose()?.map(|max| max.max(1)), ..self }),
            Knob::Pause => match value.unwrap_or("false") {
                "true" => Ok(Self { paused: true, ..self }),
                "false" => Ok(Self { paused: false, ..self }),
                other => Err(format!("scaler.pause is true or false, not {other:?}")),
            },
        }
    }

    /// Returns the value in force of a setting, for people.
    fn shown(self, knob: Knob, rules: &Rules) -> String {
        let rules = self.over(rules);
        match knob {
            Knob::Min => rules.min.to_string(),
            Knob::Max => rules.max.to_string(),
            Knob::Pause => self.paused.to_string(),
        }
    }
}

/// The maximum number of members that an operator may ask for.
const MOST: u32 = 4096;

impl Scaled {
    /// Sets the status of a scaler; `None` if it is gone.
    pub(crate) fn say(&self, group: &Arc<str>, status: Option<ScalerStatus>) {
        let mut said = lock(&self.said);
        match status {
            Some(status) => drop(said.insert(Arc::clone(group), (status, Instant::now()))),
            None => drop(said.remove(group)),
        }
    }

    /// Sets the sender to the tasks of the scalers.
    pub(crate) fn attend(&self, crews: mpsc::Sender<Tell>) {
        *lock(&self.crews) = Some(crews);
    }

    /// Sends a message to the tasks; returns `false` if there are none. It waits for room: it must not be
    /// called where waiting is not allowed.
    fn tell(&self, what: Tell) -> bool {
        let crews = lock(&self.crews).clone();
        crews.is_some_and(|crews| crews.blocking_send(what).is_ok())
    }

    /// Returns the members of a group that a process before this one started, once.
    pub(crate) fn inherited(&self, group: &str) -> Vec<Manned> {
        lock(&self.inherited).remove(group).unwrap_or_default()
    }

    /// Returns the identity of this balancer among those that decide.
    pub(crate) fn identity(&self) -> String {
        lock(&self.identity).get_or_insert_with(fresh).clone()
    }

    /// Returns an operator's settings of a scaler.
    pub(crate) fn wish(&self, group: &str) -> Wish {
        lock(&self.wishes).get(group).copied().unwrap_or_default()
    }

    /// Signals that another file is in force.
    pub(super) fn reloaded(&self) {
        self.changed.notify_one();
    }

    /// Sets an operator's settings of a scaler; returns `false` if they are the same.
    fn want(&self, group: &str, wish: Wish) -> bool {
        let before = lock(&self.wishes).insert(group.into(), wish).unwrap_or_default();
        if before != wish {
            self.changed.notify_one();
        }
        before != wish
    }

    /// Fills in the status of the scalers.
    pub(super) fn show(&self, groups: &mut [GroupStatus]) {
        let said = lock(&self.said);
        for group in groups {
            let known = said.get(group.name.as_str());
            group.scaler = known.map(|(status, at)| {
                let older = at.elapsed().as_secs_f64();
                ScalerStatus { age_seconds: status.age_seconds.map(|age| age + older), ..status.clone() }
            });
        }
    }
}

/// Returns a target as a status has it.
pub(crate) fn written(target: Target) -> String {
    match target {
        Target::Utilization(part) => format!("utilization {part}"),
        Target::ResponseTime(seconds) => format!("response_time {seconds}"),
        Target::HeadRoom(part) => format!("head_room {part}"),
    }
}

impl Running {
    /// Returns the state of scalers.
    pub(crate) fn scaled(&self) -> &Scaled {
        &self.scaled
    }

    /// Returns the groups with scalers.
    pub(crate) fn scalings(&self) -> Vec<Scaling> {
        lock(&self.base).scalings.clone()
    }

    /// Returns the names of the members that the file lists for a group.
    pub(crate) fn listed(&self, group: &str) -> Vec<Arc<str>> {
        let base = lock(&self.base);
        let settings = base.settings.groups.iter().filter(|settings| *settings.spec.name == *group);
        settings.flat_map(|settings| &settings.spec.members).map(|one| Arc::clone(&one.name)).collect()
    }

    /// Returns once other scalers may be in force.
    pub(crate) async fn scalings_changed(&self) {
        self.scaled.changed.notified().await;
    }

    /// Puts the members that a scaler has started in force. It waits for locks: it must not be called where
    /// waiting is not allowed.
    ///
    /// # Errors
    /// Fails if they cannot be; those before stay then.
    pub(crate) fn man(
        &self,
        group: &Arc<str>,
        source: &Arc<SourceSettings>,
        members: Vec<Listed>,
    ) -> Result<(), String> {
        let said = Ok(Told { members: Some(members), note: None });
        let (group, source) = (Arc::clone(group), Arc::clone(source));
        if let Some(event) = self.discovered.hear(Heard { group, source, said }) {
            self.engine.tell(event);
        }
        self.find()
    }

    /// Halts the scalers until they resume; returns once no member is being started.
    ///
    /// # Errors
    /// Fails if one is, and takes long.
    pub(super) fn settle_crews(&self) -> Result<(), String> {
        let (reply, said) = oneshot::channel();
        if self.scaled.tell(Tell::Settle(reply)) {
            return said.blocking_recv().unwrap_or(Ok(()));
        }
        if self.scalings().is_empty() { Ok(()) } else { Err("those who scale have not begun yet".into()) }
    }

    /// Stops all work of the scalers; returns the members that they started.
    pub(super) fn yield_crews(&self) -> Vec<Crewed> {
        let (reply, said) = oneshot::channel();
        if self.scaled.tell(Tell::Yield(reply)) {
            said.blocking_recv().unwrap_or_default()
        } else {
            Vec::new()
        }
    }

    /// Resumes the scalers.
    pub(super) fn resume_crews(&self) {
        self.scaled.tell(Tell::Resume);
    }

    /// Takes over the members that a process before this one started: they are in force before any client is
    /// served.
    pub(super) fn inherit_crew(&self, crewed: Crewed) {
        let Crewed { group, provider, members, identity } = crewed;
        if identity.is_some() {
            *lock(&self.scaled.identity) = identity;
        }
        let scalings = self.scalings();
        let Some(scaling) = scalings.iter().find(|one| *one.group == *group && one.kind.name() == provider)
        else {
            if !members.is_empty() {
                tracing::warn!(
                    "group {group}: {} that {provider} started before go on, and nobody looks after them: the configuration \
                     has no such scaler any more",
                    count(members.len(), "member")
                );
            }
            return;
        };
        if let Some(source) = &scaling.source {
            let listed = |one: &Manned| Listed {
                name: one.instance.address.to_string().into(),
                address: one.instance.address,
                capacity: scaling.rules.unit,
                limit: scaling.limit,
                leaving: false,
            };
            let there = members.iter().filter(|one| one.stage != Stage::Stopping);
            if let Err(why) = self.man(&scaling.group, source, there.map(listed).collect()) {
                tracing::warn!("group {group}: members that were started cannot be put in force yet: {why}");
            }
        }
        lock(&self.scaled.inherited).insert(Arc::clone(&scaling.group), members);
    }

    /// Changes a setting of a scaler for an operator, until the next reload of any balancer.
    pub(super) fn set_scaler(&self, group: &str, key: &str, value: &str) -> Result<Vec<String>, String> {
        let scalings = self.scalings();
        let Some(scaling) = scalings.iter().find(|scaling| *scaling.group == *group) else {
            return Err(format!("group {group} has no scaler"));
        };
        let Some(knob) = Knob::named(key) else {
            let all: Vec<String> = Knob::ALL.iter().map(|knob| format!("scaler.{}", knob.name())).collect();
            return Err(format!("there is no scaler.{key}; there are: {}", all.join(", ")));
        };
        let mut kept = self.kept_in_charge()?;
        let (before, rules) = (self.scaled.wish(group), &scaling.rules);
        let after = before.with(knob, Some(value))?;
        let (min, max) = (after.min.unwrap_or(rules.min), after.max.unwrap_or(rules.max));
        if min > max {
            return Err(format!("scaler.min ({min}) would be above scaler.max ({max})"));
        }
        let deed = Deed::Scaler(group.to_owned(), knob);
        let said: Value = serde_json::from_str(value.trim()).unwrap_or_else(|_| value.trim().into());
        let said = stamped(json!({"value": said}));
        self.commit(Change::put(deed.key(), said.as_str()))?;
        kept.insert(deed, said.into());
        self.want(group, knob, after);
        let old = before.shown(knob, rules);
        Ok(vec![format!("~ group {group}: scaler.{key} {old} -> {}", value.trim())])
    }

    /// Puts an operator's setting of a scaler in force, from here or another balancer; `None` takes it back.
    pub(super) fn wish(&self, group: &str, knob: Knob, said: Option<&str>) -> Result<(), String> {
        let value = match said {
            None => None,
            Some(said) => {
                let said: Value = serde_json::from_str(said).map_err(|why| why.to_string())?;
                match &said["value"] {
                    Value::Null => return Err("it says no value".into()),
                    Value::String(text) => Some(text.clone()),
                    other => Some(other.to_string()),
                }
            }
        };
        let wish = self.scaled.wish(group).with(knob, value.as_deref())?;
        if said.is_some() {
            self.want(group, knob, wish);
        } else {
            self.scaled.want(group, wish);
        }
        Ok(())
    }

    fn want(&self, group: &str, knob: Knob, wish: Wish) {
        if !self.scaled.want(group, wish) {
            return;
        }
        let Some(scaling) = self.scalings().into_iter().find(|scaling| *scaling.group == *group) else {
            return;
        };
        let now = wish.shown(knob, &scaling.rules);
        let why = format!("scaler.{} is {now} by an operator, until the next reload", knob.name());
        let event =
            Event { kind: EventKind::Changed, group: group.into(), member: None, why, inputs: Vec::new() };
        self.engine.tell(event);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_operators_say_counts_until_it_is_taken_back() {
        let rules = Rules {
            min: 2,
            max: 5,
            target: Target::HeadRoom(0.3),
            unit: 1.0,
            cool_up: Duration::ZERO,
            cool_down: Duration::ZERO,
            step_up: 1,
            step_down: 1,
            stabilize: Duration::ZERO,
            start_time: Duration::ZERO,
        };
        let wish = Wish::default().with(Knob::Min, Some(" 3 ")).unwrap();
        assert_eq!((wish.over(&rules).min, wish.shown(Knob::Min, &rules)), (3, "3".into()));
        let wish = wish.with(Knob::Max, Some("2")).unwrap().with(Knob::Pause, Some("true")).unwrap();
        // Two operators did not know of each other: the largest number counts.
        assert_eq!((wish.over(&rules).min, wish.over(&rules).max, wish.paused), (2, 2, true));
        let wish = wish.with(Knob::Max, None).unwrap().with(Knob::Pause, None).unwrap();
        assert_eq!((wish.over(&rules).min, wish.over(&rules).max, wish.paused), (3, 5, false));
        for (knob, wrong) in [(Knob::Min, "many"), (Knob::Max, "4097"), (Knob::Pause, "yes")] {
            assert!(wish.with(knob, Some(wrong)).unwrap_err().contains(knob.name()), "{wrong}");
        }
    }
}
