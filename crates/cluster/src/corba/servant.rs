//! The load manager object: loads, monitors and alerts by location, and the desk's groups.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use plimsoll_wire::giop::{Any, Ior, SystemException};
use tokio::runtime::Handle;
use tokio::time::MissedTickBehavior;

use super::alert::Alert;
use super::answer::{Answer, Fault, Raised};
use super::call::{Call, Loads};
use super::properties::{self, Property, merged, strategy};
use super::pull::Monitor;
use super::{Deed, Desk, Location, ObjectGroup, Refusal};
use crate::lock;

/// The maximum number of locations with loads, with monitors, and with alerts.
const LOCATIONS: usize = 1024;
/// The maximum number of groups that clients create: each has a socket for each core.
const GROUPS: usize = 256;
/// The age at which the loads of a location may be replaced by those of another.
const STALE: Duration = Duration::from_secs(60);
/// The interval of queries for the locations under alert.
const LOOK: Duration = Duration::from_millis(100);

/// The object's types.
const TYPES: [&[u8]; 5] = [
    b"IDL:tao.lb/CosLoadBalancing/LoadManager:1.0",
    b"IDL:omg.org/PortableGroup/PropertyManager:1.0",
    b"IDL:omg.org/PortableGroup/ObjectGroupManager:1.0",
    b"IDL:omg.org/PortableGroup/GenericFactory:1.0",
    b"IDL:omg.org/CORBA/Object:1.0",
];

/// The names of the loads that have one, by their number.
const NAMES: [&str; 5] = ["load_average", "disk", "memory", "network", "requests_per_second"];

type Outcome = Result<Answer, Fault>;

/// The load manager object.
pub(super) struct Servant {
    desk: Arc<dyn Desk>,
    interval: Duration,
    runtime: Handle,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By the text of the location, as in the following maps.
    loads: BTreeMap<String, (Loads, Instant)>,
    monitors: BTreeMap<String, Monitor>,
    alerts: BTreeMap<String, Alert>,
    /// The locations under alert in the desk's last response.
    alerted: BTreeSet<String>,
    defaults: Vec<Property>,
    /// The properties of the groups that clients created, by their number.
    made: BTreeMap<u64, Vec<Property>>,
}

impl Servant {
    pub(super) fn new(desk: Arc<dyn Desk>, interval: Duration, runtime: Handle) -> Arc<Self> {
        Arc::new(Self { desk, interval, runtime, state: Mutex::default() })
    }

    /// Performs an operation for a client, on a thread that may block.
    pub(super) async fn perform(self: &Arc<Self>, from: SocketAddr, call: Call) -> Outcome {
        let own = Arc::clone(self);
        let done = self.runtime.spawn_blocking(move || own.noted(from, call)).await;
        done.unwrap_or(Err(Fault::System(SystemException::INTERNAL)))
    }

    /// Performs an operation; changes are recorded before and after.
    pub(super) fn noted(self: &Arc<Self>, from: SocketAddr, call: Call) -> Outcome {
        let Some((operation, target)) = call.changes() else { return self.answer(call) };
        let deed = Deed { from, operation, target };
        let number = self.desk.begin(&deed).map_err(|why| {
            tracing::error!("load manager: {operation} refused: {why}");
            SystemException::NO_RESOURCES
        })?;
        let outcome = self.answer(call);
        let why = outcome.as_ref().err().map(Fault::name);
        self.desk.end(number, &deed, why.as_deref().map_or(Ok(()), Err));
        outcome
    }

    /// Records the loads from a monitor.
    pub(super) async fn pulled(self: &Arc<Self>, location: Location, loads: Loads) {
        let own = Arc::clone(self);
        // Without room for them there is no caller to notify.
        let _ = self.runtime.spawn_blocking(move || own.push(&location, loads)).await;
    }

    /// Forwards changes of the locations under alert, forever.
    pub(super) async fn follow_alerts(self: &Arc<Self>) {
        let mut tick = tokio::time::interval(LOOK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if lock(&self.state).alerts.is_empty() {
                continue;
            }
            let own = Arc::clone(self);
            let Ok(now) = self.runtime.spawn_blocking(move || own.desk.alerted()).await else { continue };
            let mut state = lock(&self.state);
            for location in now.symmetric_difference(&state.alerted) {
                if let Some(alert) = state.alerts.get(location) {
                    alert.want(now.contains(location));
                }
            }
            state.alerted = now;
        }
    }

    pub(super) fn answer(self: &Arc<Self>, call: Call) -> Outcome {
        match call {
            Call::IsA(id) => Ok(Answer::Truth(TYPES.contains(&id.as_slice()))),
            Call::NonExistent => Ok(Answer::Truth(false)),
            Call::PushLoads(location, loads) => self.push(&location, loads),
            Call::Loads(location) => {
                let state = lock(&self.state);
                let (loads, _) = state.loads.get(location.text()).ok_or(Raised::LocationNotFound)?;
                Ok(Answer::Loads(loads.clone()))
            }
            Call::EnableAlert(location) => self.alert(&location, true),
            Call::DisableAlert(location) => self.alert(&location, false),
            Call::RegisterAlert(location, object) => self.register_alert(location, object),
            Call::Alert(location) => {
                let state = lock(&self.state);
                let alert = state.alerts.get(location.text()).ok_or(Raised::LoadAlertNotFound)?;
                Ok(Answer::Object(alert.object.clone()))
            }
            Call::RemoveAlert(location) => {
                let removed = lock(&self.state).alerts.remove(location.text());
                removed.map(|_| Answer::Nothing).ok_or_else(|| Raised::LoadAlertNotFound.into())
            }
            Call::RegisterMonitor(location, object) => self.register_monitor(location, object),
            Call::Monitor(location) => {
                let state = lock(&self.state);
                let monitor = state.monitors.get(location.text()).ok_or(Raised::LocationNotFound)?;
                Ok(Answer::Object(monitor.object.clone()))
            }
            Call::RemoveMonitor(location) => {
                let removed = lock(&self.state).monitors.remove(location.text());
                removed.map(|_| Answer::Nothing).ok_or_else(|| Raised::LocationNotFound.into())
            }
            Call::SetDefaults(properties) => {
                strategy(&properties)?;
                let mut state = lock(&self.state);
                let all = merged(&state.defaults, &properties);
                if all.len() > properties::MOST {
                    return Err(SystemException::NO_RESOURCES.into());
                }
                state.defaults = all;
                Ok(Answer::Nothing)
            }
            Call::Defaults => Ok(Answer::Properties(lock(&self.state).defaults.clone())),
            Call::RemoveDefaults(properties) => {
                let named = |one: &Property| properties.iter().any(|property| property.name == one.name);
                lock(&self.state).defaults.retain(|one| !named(one));
                Ok(Answer::Nothing)
            }
            other => self.of_groups(other),
        }
    }

    /// Performs the operations on groups.
    fn of_groups(&self, call: Call) -> Outcome {
        match call {
            Call::Properties(group) => {
                let id = self.group(&group)?.id;
                let state = lock(&self.state);
                let own = state.made.get(&id).map(Vec::as_slice).unwrap_or_default();
                Ok(Answer::Properties(merged(&state.defaults, own)))
            }
            Call::AddMember(group, location, object) => {
                let id = self.group(&group)?.id;
                self.desk.add(id, &location, &object).map_err(|why| told("add_member", why))?;
                Ok(Answer::Object(self.by_id(id)?))
            }
            Call::RemoveMember(group, location) => {
                let id = self.group(&group)?.id;
                self.desk.remove(id, location.text()).map_err(|why| told("remove_member", why))?;
                Ok(Answer::Object(self.by_id(id)?))
            }
            Call::Locations(group) => {
                let members = self.group(&group)?.members;
                Ok(Answer::Locations(members.into_iter().map(|member| member.location).collect()))
            }
            Call::GroupsAt(location) => {
                let here =
                    |group: &ObjectGroup| group.members.iter().any(|member| member.location == location);
                let groups = self.desk.groups().into_iter().filter(here);
                Ok(Answer::Objects(groups.filter_map(|group| group.reference).collect()))
            }
            Call::GroupId(group) => Ok(Answer::Number(self.group(&group)?.id)),
            Call::GroupReference(group) => Ok(Answer::Object(self.by_id(self.group(&group)?.id)?)),
            Call::GroupById(id) => Ok(Answer::Object(self.by_id(id)?)),
            Call::MemberReference(group, location) => {
                let mut members = self.group(&group)?.members.into_iter();
                let member =
                    members.find(|member| member.location == location).ok_or(Raised::MemberNotFound)?;
                Ok(Answer::Object(member.object))
            }
            Call::Create(type_id, own) => self.create(&type_id, own),
            Call::Delete(number) => {
                let id =
                    number.whole().and_then(|id| u64::try_from(id).ok()).ok_or(Raised::ObjectNotFound)?;
                self.desk.delete(id).map_err(|_| Raised::ObjectNotFound)?;
                lock(&self.state).made.remove(&id);
                Ok(Answer::Nothing)
            }
            _ => Err(SystemException::BAD_OPERATION.into()),
        }
    }

    fn push(&self, location: &Location, loads: Loads) -> Outcome {
        let values = named(&loads);
        {
            let (now, mut state) = (Instant::now(), lock(&self.state));
            if !state.loads.contains_key(location.text()) && state.loads.len() >= LOCATIONS {
                state.loads.retain(|_, (_, at)| now.saturating_duration_since(*at) < STALE);
                if state.loads.len() >= LOCATIONS {
                    return Err(SystemException::NO_RESOURCES.into());
                }
            }
            state.loads.insert(location.text().to_owned(), (loads, now));
        }
        if !values.is_empty() {
            self.desk.report(location.text(), &values);
        }
        Ok(Answer::Nothing)
    }

    fn alert(&self, location: &Location, alerted: bool) -> Outcome {
        let state = lock(&self.state);
        state.alerts.get(location.text()).ok_or(Raised::LoadAlertNotFound)?.want(alerted);
        Ok(Answer::Nothing)
    }

    fn register_alert(&self, location: Location, object: Ior) -> Outcome {
        let mut state = lock(&self.state);
        match state.alerts.get(location.text()) {
            Some(alert) if !alert.lost() => return Err(Raised::LoadAlertAlreadyPresent.into()),
            None if state.alerts.len() >= LOCATIONS => return Err(SystemException::NO_RESOURCES.into()),
            _ => {}
        }
        let text = location.text().to_owned();
        // If the location is already under alert, the next query finds it and calls the alert.
        state.alerted.remove(&text);
        let alert = Alert::start(&self.runtime, location, object);
        state.alerts.insert(text, alert);
        Ok(Answer::Nothing)
    }

    fn register_monitor(self: &Arc<Self>, location: Location, object: Ior) -> Outcome {
        let mut state = lock(&self.state);
        match state.monitors.get(location.text()) {
            Some(monitor) if !monitor.lost() => return Err(Raised::MonitorAlreadyPresent.into()),
            None if state.monitors.len() >= LOCATIONS => return Err(SystemException::NO_RESOURCES.into()),
            _ => {}
        }
        let text = location.text().to_owned();
        let monitor = Monitor::start(&self.runtime, Arc::downgrade(self), location, object, self.interval);
        state.monitors.insert(text, monitor);
        Ok(Answer::Nothing)
    }

    fn create(&self, type_id: &str, own: Vec<Property>) -> Outcome {
        let all = {
            let state = lock(&self.state);
            if state.made.len() >= GROUPS {
                return Err(SystemException::NO_RESOURCES.into());
            }
            merged(&state.defaults, &own)
        };
        let strategy = strategy(&all)?;
        let group = self.desk.create(type_id, strategy.as_ref()).map_err(|why| match why {
            Refusal::Strategy(why) => {
                tracing::warn!("load manager: create_object refused: {why}");
                let said = all.iter().find(|one| matches!(one.value, Any::Struct(_)));
                said.cloned().map_or(Raised::ObjectNotCreated, Raised::InvalidProperty).into()
            }
            why => told("create_object", why),
        })?;
        let number = u32::try_from(group.id).map_err(|_| Raised::ObjectNotCreated)?;
        lock(&self.state).made.insert(group.id, own);
        let reference = group.reference.ok_or(Raised::ObjectNotCreated)?;
        Ok(Answer::Created(reference, Any::ULong(number)))
    }

    /// Returns the known group with the key of a reference.
    fn group(&self, reference: &Ior) -> Result<ObjectGroup, Fault> {
        let key = reference.iiop().ok_or(Raised::ObjectGroupNotFound)?.key;
        let same = |group: &ObjectGroup| {
            group.reference.as_ref().and_then(Ior::iiop).is_some_and(|profile| profile.key == key)
        };
        Ok(self.desk.groups().into_iter().find(same).ok_or(Raised::ObjectGroupNotFound)?)
    }

    fn by_id(&self, id: u64) -> Result<Ior, Fault> {
        let group = self.desk.groups().into_iter().find(|group| group.id == id);
        Ok(group.and_then(|group| group.reference).ok_or(Raised::ObjectGroupNotFound)?)
    }
}

/// Names the loads. The first one is also `load`: TAO's own strategies use it.
fn named(loads: &Loads) -> Vec<(String, f64)> {
    let name = |id: u32| {
        let known = usize::try_from(id).ok().and_then(|id| NAMES.get(id));
        known.map_or_else(|| format!("load_{id}"), |name| (*name).to_owned())
    };
    let first = loads.first().map(|(_, value)| ("load".to_owned(), f64::from(*value)));
    first.into_iter().chain(loads.iter().map(|(id, value)| (name(*id), f64::from(*value)))).collect()
}

/// Converts a refusal to the client's exception. The reason is logged for the operator: the reply has no
/// field for it.
fn told(operation: &str, why: Refusal) -> Fault {
    let raised = match why {
        Refusal::NoGroup => Raised::ObjectGroupNotFound,
        Refusal::NoMember => Raised::MemberNotFound,
        Refusal::MemberThere => Raised::MemberAlreadyPresent,
        Refusal::Strategy(why) | Refusal::Impossible(why) => {
            tracing::warn!("load manager: {operation} refused: {why}");
            match operation {
                "create_object" => Raised::ObjectNotCreated,
                "add_member" => Raised::ObjectNotAdded,
                _ => return SystemException::INTERNAL.into(),
            }
        }
    };
    raised.into()
}
