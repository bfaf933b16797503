//! Groups whose members are counted: what is said of them, and what operators said.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use plimsoll_brain::scale::crew::Stage;
use plimsoll_brain::scale::{Rules, Target};
use plimsoll_brain::status::{GroupStatus, ScalerStatus};
use plimsoll_brain::{Event, EventKind};
use plimsoll_cluster::discover::{Heard, Listed, SourceSettings, Told};
use plimsoll_cluster::scaler::Instance;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc, oneshot};

use super::{Running, lock};
use crate::config::{Scaling, count};

/// What is known of scalers.
#[derive(Debug, Default)]
pub(crate) struct Scaled {
    /// What each said last, and when.
    said: Mutex<BTreeMap<Arc<str>, (ScalerStatus, Instant)>>,
    /// What operators said, until the next reload.
    wishes: Mutex<BTreeMap<Arc<str>, Wish>>,
    /// Other scalers may be in the configuration, or an operator said something.
    changed: Notify,
    /// To those who scale, once they do.
    crews: Mutex<Option<mpsc::Sender<Tell>>>,
    /// Members that a process before this one started, until somebody looks after them.
    inherited: Mutex<BTreeMap<Arc<str>, Vec<Manned>>>,
}

/// What those who scale are told of the process.
#[derive(Debug)]
pub(crate) enum Tell {
    /// Nobody is started or taken away from now on.
    Halt,
    /// Stop whom you started.
    End,
    /// The same as to halt; and say so once nobody is being started, or who is all the same.
    Settle(oneshot::Sender<Result<(), String>>),
    /// Do nothing from now on; and say whom there is.
    Yield(oneshot::Sender<Vec<Crewed>>),
    /// Go on.
    Resume,
    /// End: another process goes on.
    Leave,
}

/// A member that was started, and what becomes of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manned {
    pub(crate) instance: Instance,
    pub(crate) stage: Stage,
}

/// What one process tells another of a group whose members are counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Crewed {
    pub(crate) group: String,
    /// Who started them.
    pub(crate) provider: String,
    pub(crate) members: Vec<Manned>,
    /// What operators said.
    #[serde(default)]
    pub(crate) wish: Wish,
}

/// What an operator wants of a scaler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Wish {
    min: Option<u32>,
    max: Option<u32>,
    pub(crate) paused: bool,
}

impl Wish {
    /// What is decided by then.
    pub(crate) fn over(self, rules: &Rules) -> Rules {
        let (min, max) = (self.min.unwrap_or(rules.min), self.max.unwrap_or(rules.max));
        Rules { min: min.min(max), max, ..rules.clone() }
    }
}

impl Scaled {
    /// A scaler says how it is; nothing is said any more of one that is gone.
    pub(crate) fn say(&self, group: &Arc<str>, status: Option<ScalerStatus>) {
        let mut said = lock(&self.said);
        match status {
            Some(status) => drop(said.insert(Arc::clone(group), (status, Instant::now()))),
            None => drop(said.remove(group)),
        }
    }

    /// Those who scale can be told something from now on.
    pub(crate) fn attend(&self, crews: mpsc::Sender<Tell>) {
        *lock(&self.crews) = Some(crews);
    }

    /// Tells them; false if there is nobody. Waits for room: not to be called where waiting is not allowed.
    fn tell(&self, what: Tell) -> bool {
        let crews = lock(&self.crews).clone();
        crews.is_some_and(|crews| crews.blocking_send(what).is_ok())
    }

    /// Members of a group that a process before this one started, once.
    pub(crate) fn inherited(&self, group: &str) -> Vec<Manned> {
        lock(&self.inherited).remove(group).unwrap_or_default()
    }

    /// What an operator wants of one.
    pub(crate) fn wish(&self, group: &str) -> Wish {
        lock(&self.wishes).get(group).copied().unwrap_or_default()
    }

    /// Another file is in force, which says all that counts.
    pub(super) fn reloaded(&self) {
        lock(&self.wishes).clear();
        self.changed.notify_one();
    }

    /// Fills in what there is to be seen.
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

    /// `key` is what follows `scaler.`; what changed, one line each.
    fn set(&self, scaling: &Scaling, key: &str, value: &str) -> Result<Vec<String>, String> {
        let group = &scaling.group;
        let mut wishes = lock(&self.wishes);
        let mut wish = wishes.get(group).copied().unwrap_or_default();
        let number = || match value.trim().parse::<u32>() {
            Ok(number) if number <= 4096 => Ok(number),
            _ => Err(format!("scaler.{key} is a number of members, at most 4096, not {value:?}")),
        };
        let before = wish.over(&scaling.rules);
        let old = match key {
            "min" => {
                wish.min = Some(number()?);
                before.min.to_string()
            }
            "max" => {
                wish.max = Some(number()?.max(1));
                before.max.to_string()
            }
            "pause" => {
                let old = wish.paused;
                wish.paused = match value.trim() {
                    "true" => true,
                    "false" => false,
                    _ => return Err(format!("scaler.pause is true or false, not {value:?}")),
                };
                old.to_string()
            }
            _ => {
                return Err(format!(
                    "there is no scaler.{key}; there are: scaler.min, scaler.max, scaler.pause"
                ));
            }
        };
        let (min, max) = (wish.min.unwrap_or(scaling.rules.min), wish.max.unwrap_or(scaling.rules.max));
        if min > max {
            return Err(format!("scaler.min ({min}) would be above scaler.max ({max})"));
        }
        wishes.insert(Arc::clone(group), wish);
        drop(wishes);
        self.changed.notify_one();
        Ok(vec![format!("~ group {group}: scaler.{key} {old} -> {}", value.trim())])
    }
}

/// As a status has it.
pub(crate) fn written(target: Target) -> String {
    match target {
        Target::Utilization(part) => format!("utilization {part}"),
        Target::ResponseTime(seconds) => format!("response_time {seconds}"),
        Target::HeadRoom(part) => format!("head_room {part}"),
    }
}

impl Running {
    /// What is known of scalers.
    pub(crate) fn scaled(&self) -> &Scaled {
        &self.scaled
    }

    /// The groups whose members are counted.
    pub(crate) fn scalings(&self) -> Vec<Scaling> {
        lock(&self.base).scalings.clone()
    }

    /// Names of the members that the file lists for a group.
    pub(crate) fn listed(&self, group: &str) -> Vec<Arc<str>> {
        let base = lock(&self.base);
        let settings = base.settings.groups.iter().filter(|settings| *settings.spec.name == *group);
        settings.flat_map(|settings| &settings.spec.members).map(|one| Arc::clone(&one.name)).collect()
    }

    /// Returns once other scalers may be in force.
    pub(crate) async fn scalings_changed(&self) {
        self.scaled.changed.notified().await;
    }

    /// Puts in force whom a scaler has started. Waits for locks: not to be called where waiting is not allowed.
    ///
    /// # Errors
    /// They cannot be; those before stay then.
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

    /// Nobody is started or taken away from now on, until those who scale go on; returns once nobody is being started.
    ///
    /// # Errors
    /// Somebody is, and takes long.
    pub(super) fn settle_crews(&self) -> Result<(), String> {
        let (reply, said) = oneshot::channel();
        if self.scaled.tell(Tell::Settle(reply)) {
            return said.blocking_recv().unwrap_or(Ok(()));
        }
        if self.scalings().is_empty() { Ok(()) } else { Err("those who scale have not begun yet".into()) }
    }

    /// Members that were started. Nothing is done about them here from now on.
    pub(super) fn yield_crews(&self) -> Vec<Crewed> {
        let (reply, said) = oneshot::channel();
        if self.scaled.tell(Tell::Yield(reply)) {
            said.blocking_recv().unwrap_or_default()
        } else {
            Vec::new()
        }
    }

    /// Those who scale go on.
    pub(super) fn resume_crews(&self) {
        self.scaled.tell(Tell::Resume);
    }

    /// Goes on with members that a process before this one started: they are in force before anybody is served.
    pub(super) fn inherit_crew(&self, crewed: Crewed) {
        let Crewed { group, provider, members, wish } = crewed;
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
        lock(&self.scaled.wishes).insert(Arc::clone(&scaling.group), wish);
        lock(&self.scaled.inherited).insert(Arc::clone(&scaling.group), members);
    }

    /// An operator changes something of a scaler.
    pub(super) fn set_scaler(&self, group: &str, key: &str, value: &str) -> Result<Vec<String>, String> {
        let scalings = self.scalings();
        let Some(scaling) = scalings.iter().find(|scaling| *scaling.group == *group) else {
            return Err(format!("group {group} has no scaler"));
        };
        self.in_charge()?;
        let lines = self.scaled.set(scaling, key, value)?;
        let why = format!("scaler.{key} is {} by an operator, until the next reload", value.trim());
        let event =
            Event { kind: EventKind::Changed, group: group.into(), member: None, why, inputs: Vec::new() };
        self.engine.tell(event);
        Ok(lines)
    }
}
