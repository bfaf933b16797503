//! The load manager object: loads, monitors and alerts by location, and the backend's groups.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use plimsoll_wire::giop::{CorbaAny, Ior, SystemException};
use tokio::runtime::Handle;
use tokio::time::MissedTickBehavior;

use super::alert::LoadAlert;
use super::answer::{CallError, OperationResult, UserException};
use super::call::{ManagerCall, NumberedLoads};
use super::monitors::LoadMonitor;
use super::properties::{self, Property, merged, strategy};
use super::{ChangeRequest, GroupError, LoadManagerBackend, Location, ObjectGroup};
use crate::lock;

/// The maximum number of locations with loads, with monitors, and with alerts.
const MAX_LOCATIONS: usize = 1024;
/// The maximum number of groups that clients create: each has a socket for each core.
const MAX_CREATED_GROUPS: usize = 256;
/// The age at which the loads of a location may be replaced by those of another.
const LOADS_LIFETIME: Duration = Duration::from_secs(60);
/// The interval of queries for the locations under alert.
const ALERT_INTERVAL: Duration = Duration::from_millis(100);

/// The object's types.
const INTERFACE_IDS: [&[u8]; 5] = [
    b"IDL:tao.lb/CosLoadBalancing/LoadManager:1.0",
    b"IDL:omg.org/PortableGroup/PropertyManager:1.0",
    b"IDL:omg.org/PortableGroup/ObjectGroupManager:1.0",
    b"IDL:omg.org/PortableGroup/GenericFactory:1.0",
    b"IDL:omg.org/CORBA/Object:1.0",
];

/// The names of the loads that have one, by their number.
const LOAD_NAMES: [&str; 5] = ["load_average", "disk", "memory", "network", "requests_per_second"];

type CallOutcome = Result<OperationResult, CallError>;

/// The load manager object.
pub(super) struct Servant {
    backend: Arc<dyn LoadManagerBackend>,
    interval: Duration,
    runtime: Handle,
    state: Mutex<ServantState>,
}

#[derive(Default)]
struct ServantState {
    /// By the text of the location, as in the following maps.
    loads: BTreeMap<String, (NumberedLoads, Instant)>,
    monitors: BTreeMap<String, LoadMonitor>,
    alerts: BTreeMap<String, LoadAlert>,
    /// The locations under alert in the backend's last response.
    alerted: BTreeSet<String>,
    defaults: Vec<Property>,
    /// The properties of the groups that clients created, by their number.
    created: BTreeMap<u64, Vec<Property>>,
}

impl Servant {
    pub(super) fn new(
        backend: Arc<dyn LoadManagerBackend>,
        interval: Duration,
        runtime: Handle,
    ) -> Arc<Self> {
        Arc::new(Self { backend, interval, runtime, state: Mutex::default() })
    }

    /// Performs an operation for a client, on a thread that may block.
    pub(super) async fn perform(self: &Arc<Self>, from: SocketAddr, call: ManagerCall) -> CallOutcome {
        let servant = Arc::clone(self);
        let result = self.runtime.spawn_blocking(move || servant.perform_logged(from, call)).await;
        result.unwrap_or(Err(CallError::System(SystemException::INTERNAL)))
    }

    /// Performs an operation; changes are recorded before and after.
    pub(super) fn perform_logged(self: &Arc<Self>, from: SocketAddr, call: ManagerCall) -> CallOutcome {
        let Some((operation, target)) = call.change_target() else { return self.execute(call) };
        let request = ChangeRequest { from, operation, target };
        let number = self.backend.begin_change(&request).map_err(|error| {
            tracing::error!("load manager: {operation} refused: {error}");
            SystemException::NO_RESOURCES
        })?;
        let outcome = self.execute(call);
        let exception_name = outcome.as_ref().err().map(CallError::name);
        self.backend.end_change(number, &request, exception_name.as_deref().map_or(Ok(()), Err));
        outcome
    }

    /// Records the loads from a monitor.
    pub(super) async fn record_loads(self: &Arc<Self>, location: Location, loads: NumberedLoads) {
        let servant = Arc::clone(self);
        // Without room for them there is no caller to notify.
        let _ = self.runtime.spawn_blocking(move || servant.push_loads(&location, loads)).await;
    }

    /// Forwards changes of the locations under alert, forever.
    pub(super) async fn follow_alerts(self: &Arc<Self>) {
        let mut tick = tokio::time::interval(ALERT_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if lock(&self.state).alerts.is_empty() {
                continue;
            }
            let servant = Arc::clone(self);
            let Ok(alerted_now) =
                self.runtime.spawn_blocking(move || servant.backend.alerted_locations()).await
            else {
                continue;
            };
            let mut state = lock(&self.state);
            for location in alerted_now.symmetric_difference(&state.alerted) {
                if let Some(alert) = state.alerts.get(location) {
                    alert.set_alerted(alerted_now.contains(location));
                }
            }
            state.alerted = alerted_now;
        }
    }

    pub(super) fn execute(self: &Arc<Self>, call: ManagerCall) -> CallOutcome {
        match call {
            ManagerCall::IsA(id) => Ok(OperationResult::Truth(INTERFACE_IDS.contains(&id.as_slice()))),
            ManagerCall::NonExistent => Ok(OperationResult::Truth(false)),
            ManagerCall::PushLoads(location, loads) => self.push_loads(&location, loads),
            ManagerCall::Loads(location) => {
                let state = lock(&self.state);
                let (loads, _) = state.loads.get(location.text()).ok_or(UserException::LocationNotFound)?;
                Ok(OperationResult::Loads(loads.clone()))
            }
            ManagerCall::EnableAlert(location) => self.set_alert(&location, true),
            ManagerCall::DisableAlert(location) => self.set_alert(&location, false),
            ManagerCall::RegisterAlert(location, object) => self.register_alert(location, object),
            ManagerCall::Alert(location) => {
                let state = lock(&self.state);
                let alert = state.alerts.get(location.text()).ok_or(UserException::LoadAlertNotFound)?;
                Ok(OperationResult::Object(alert.object.clone()))
            }
            ManagerCall::RemoveAlert(location) => {
                let removed = lock(&self.state).alerts.remove(location.text());
                removed
                    .map(|_| OperationResult::Nothing)
                    .ok_or_else(|| UserException::LoadAlertNotFound.into())
            }
            ManagerCall::RegisterMonitor(location, object) => self.register_monitor(location, object),
            ManagerCall::Monitor(location) => {
                let state = lock(&self.state);
                let monitor = state.monitors.get(location.text()).ok_or(UserException::LocationNotFound)?;
                Ok(OperationResult::Object(monitor.object.clone()))
            }
            ManagerCall::RemoveMonitor(location) => {
                let removed = lock(&self.state).monitors.remove(location.text());
                removed
                    .map(|_| OperationResult::Nothing)
                    .ok_or_else(|| UserException::LocationNotFound.into())
            }
            ManagerCall::SetDefaults(properties) => {
                strategy(&properties)?;
                let mut state = lock(&self.state);
                let properties = merged(&state.defaults, &properties);
                if properties.len() > properties::MAX_PROPERTIES {
                    return Err(SystemException::NO_RESOURCES.into());
                }
                state.defaults = properties;
                Ok(OperationResult::Nothing)
            }
            ManagerCall::Defaults => Ok(OperationResult::Properties(lock(&self.state).defaults.clone())),
            ManagerCall::RemoveDefaults(properties) => {
                let is_named =
                    |candidate: &Property| properties.iter().any(|property| property.name == candidate.name);
                lock(&self.state).defaults.retain(|candidate| !is_named(candidate));
                Ok(OperationResult::Nothing)
            }
            other => self.execute_group_call(other),
        }
    }

    /// Performs the operations on groups.
    fn execute_group_call(&self, call: ManagerCall) -> CallOutcome {
        match call {
            ManagerCall::Properties(group) => {
                let id = self.group(&group)?.id;
                let state = lock(&self.state);
                let properties = state.created.get(&id).map(Vec::as_slice).unwrap_or_default();
                Ok(OperationResult::Properties(merged(&state.defaults, properties)))
            }
            ManagerCall::AddMember(group, location, object) => {
                let id = self.group(&group)?.id;
                self.backend
                    .add_member(id, &location, &object)
                    .map_err(|error| exception_for("add_member", error))?;
                Ok(OperationResult::Object(self.reference_by_id(id)?))
            }
            ManagerCall::RemoveMember(group, location) => {
                let id = self.group(&group)?.id;
                self.backend
                    .remove_member(id, location.text())
                    .map_err(|error| exception_for("remove_member", error))?;
                Ok(OperationResult::Object(self.reference_by_id(id)?))
            }
            ManagerCall::Locations(group) => {
                let members = self.group(&group)?.members;
                Ok(OperationResult::Locations(members.into_iter().map(|member| member.location).collect()))
            }
            ManagerCall::GroupsAt(location) => {
                let has_member_here =
                    |group: &ObjectGroup| group.members.iter().any(|member| member.location == location);
                let groups = self.backend.groups().into_iter().filter(has_member_here);
                Ok(OperationResult::Objects(groups.filter_map(|group| group.reference).collect()))
            }
            ManagerCall::GroupId(group) => Ok(OperationResult::Number(self.group(&group)?.id)),
            ManagerCall::GroupReference(group) => {
                Ok(OperationResult::Object(self.reference_by_id(self.group(&group)?.id)?))
            }
            ManagerCall::GroupById(id) => Ok(OperationResult::Object(self.reference_by_id(id)?)),
            ManagerCall::MemberReference(group, location) => {
                let mut members = self.group(&group)?.members.into_iter();
                let member = members
                    .find(|member| member.location == location)
                    .ok_or(UserException::MemberNotFound)?;
                Ok(OperationResult::Object(member.object))
            }
            ManagerCall::Create(type_id, properties) => self.create(&type_id, properties),
            ManagerCall::Delete(number) => {
                let id = number
                    .as_integer()
                    .and_then(|id| u64::try_from(id).ok())
                    .ok_or(UserException::ObjectNotFound)?;
                self.backend.delete_group(id).map_err(|_| UserException::ObjectNotFound)?;
                lock(&self.state).created.remove(&id);
                Ok(OperationResult::Nothing)
            }
            _ => Err(SystemException::BAD_OPERATION.into()),
        }
    }

    fn push_loads(&self, location: &Location, loads: NumberedLoads) -> CallOutcome {
        let values = name_loads(&loads);
        {
            let (now, mut state) = (Instant::now(), lock(&self.state));
            if !state.loads.contains_key(location.text()) && state.loads.len() >= MAX_LOCATIONS {
                state.loads.retain(|_, (_, at)| now.saturating_duration_since(*at) < LOADS_LIFETIME);
                if state.loads.len() >= MAX_LOCATIONS {
                    return Err(SystemException::NO_RESOURCES.into());
                }
            }
            state.loads.insert(location.text().to_owned(), (loads, now));
        }
        if !values.is_empty() {
            self.backend.record_loads(location.text(), &values);
        }
        Ok(OperationResult::Nothing)
    }

    fn set_alert(&self, location: &Location, alerted: bool) -> CallOutcome {
        let state = lock(&self.state);
        state.alerts.get(location.text()).ok_or(UserException::LoadAlertNotFound)?.set_alerted(alerted);
        Ok(OperationResult::Nothing)
    }

    fn register_alert(&self, location: Location, object: Ior) -> CallOutcome {
        let mut state = lock(&self.state);
        match state.alerts.get(location.text()) {
            Some(alert) if !alert.has_failed() => return Err(UserException::LoadAlertAlreadyPresent.into()),
            None if state.alerts.len() >= MAX_LOCATIONS => return Err(SystemException::NO_RESOURCES.into()),
            _ => {}
        }
        let text = location.text().to_owned();
        // If the location is already under alert, the next query finds it and calls the alert.
        state.alerted.remove(&text);
        let alert = LoadAlert::start(&self.runtime, location, object);
        state.alerts.insert(text, alert);
        Ok(OperationResult::Nothing)
    }

    fn register_monitor(self: &Arc<Self>, location: Location, object: Ior) -> CallOutcome {
        let mut state = lock(&self.state);
        match state.monitors.get(location.text()) {
            Some(monitor) if !monitor.has_failed() => return Err(UserException::MonitorAlreadyPresent.into()),
            None if state.monitors.len() >= MAX_LOCATIONS => return Err(SystemException::NO_RESOURCES.into()),
            _ => {}
        }
        let text = location.text().to_owned();
        let monitor =
            LoadMonitor::start(&self.runtime, Arc::downgrade(self), location, object, self.interval);
        state.monitors.insert(text, monitor);
        Ok(OperationResult::Nothing)
    }

    fn create(&self, type_id: &str, overrides: Vec<Property>) -> CallOutcome {
        let properties = {
            let state = lock(&self.state);
            if state.created.len() >= MAX_CREATED_GROUPS {
                return Err(SystemException::NO_RESOURCES.into());
            }
            merged(&state.defaults, &overrides)
        };
        let strategy = strategy(&properties)?;
        let group = self.backend.create_group(type_id, strategy.as_ref()).map_err(|error| match error {
            GroupError::Strategy(reason) => {
                tracing::warn!("load manager: create_object refused: {reason}");
                let strategy_property =
                    properties.iter().find(|property| matches!(property.value, CorbaAny::Struct(_)));
                strategy_property
                    .cloned()
                    .map_or(UserException::ObjectNotCreated, UserException::InvalidProperty)
                    .into()
            }
            error => exception_for("create_object", error),
        })?;
        let number = u32::try_from(group.id).map_err(|_| UserException::ObjectNotCreated)?;
        lock(&self.state).created.insert(group.id, overrides);
        let reference = group.reference.ok_or(UserException::ObjectNotCreated)?;
        Ok(OperationResult::Created(reference, CorbaAny::ULong(number)))
    }

    /// Returns the known group with the key of a reference.
    fn group(&self, reference: &Ior) -> Result<ObjectGroup, CallError> {
        let key = reference.first_iiop_profile().ok_or(UserException::ObjectGroupNotFound)?.key;
        let has_same_key = |group: &ObjectGroup| {
            group
                .reference
                .as_ref()
                .and_then(Ior::first_iiop_profile)
                .is_some_and(|profile| profile.key == key)
        };
        Ok(self.backend.groups().into_iter().find(has_same_key).ok_or(UserException::ObjectGroupNotFound)?)
    }

    fn reference_by_id(&self, id: u64) -> Result<Ior, CallError> {
        let group = self.backend.groups().into_iter().find(|group| group.id == id);
        Ok(group.and_then(|group| group.reference).ok_or(UserException::ObjectGroupNotFound)?)
    }
}

/// Names the loads. The first one is also `load`: TAO's own strategies use it.
fn name_loads(loads: &NumberedLoads) -> Vec<(String, f64)> {
    let name = |id: u32| {
        let known_name = usize::try_from(id).ok().and_then(|id| LOAD_NAMES.get(id));
        known_name.map_or_else(|| format!("load_{id}"), |name| (*name).to_owned())
    };
    let first = loads.first().map(|(_, value)| ("load".to_owned(), f64::from(*value)));
    first.into_iter().chain(loads.iter().map(|(id, value)| (name(*id), f64::from(*value)))).collect()
}

/// Converts a refusal to the client's exception. The reason is logged for the operator: the reply has no
/// field for it.
fn exception_for(operation: &str, error: GroupError) -> CallError {
    let exception = match error {
        GroupError::NoGroup => UserException::ObjectGroupNotFound,
        GroupError::NoMember => UserException::MemberNotFound,
        GroupError::MemberExists => UserException::MemberAlreadyPresent,
        GroupError::Strategy(reason) | GroupError::Impossible(reason) => {
            tracing::warn!("load manager: {operation} refused: {reason}");
            match operation {
                "create_object" => UserException::ObjectNotCreated,
                "add_member" => UserException::ObjectNotAdded,
                _ => return SystemException::INTERNAL.into(),
            }
        }
    };
    exception.into()
}
