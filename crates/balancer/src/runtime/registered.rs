//! Registered members in the store: `members/GROUP/MEMBER`, with a lease if an agent registered them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_admin::{RegisteredMember as Answer, Registration, RegistrationError};
use plimsoll_cluster::discover::{DiscoveredMember, MAX_MEMBERS, MemberList, SourceKind, SourceUpdate};
use plimsoll_cluster::store::{StoreChange, StoreError, StoreSnapshot};
use plimsoll_config::{GroupDiscovery, MemberAddress, look_up};
use serde::{Deserialize, Serialize};

use super::operator_state::{OperatorAction, Reapply, escape_name, unescape_name};
use super::{BalancerRuntime, lock};

/// The prefix of the keys.
const KEY_PREFIX: &str = "members/";

/// The stored values of a member. Other values are ignored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RegisteredMember {
    /// The address, looked up once by the balancer that registered it.
    pub(super) address: SocketAddr,
    /// The capacity relative to the others.
    pub(super) capacity: f64,
    /// The maximum at once; the group's if `None`.
    pub(super) max_connections: Option<u32>,
    /// The time after which it is removed without a renewal; `None` for one that stays.
    pub(super) ttl_seconds: Option<f64>,
    /// Whether it is about to leave, and gets nothing new.
    #[serde(default)]
    pub(super) draining: bool,
}

/// Returns the prefix of the keys of a group's members.
fn group_prefix(group: &str) -> String {
    format!("{KEY_PREFIX}{}/", escape_name(group))
}

/// Returns the key of a member.
fn key(group: &str, member: &str) -> String {
    group_prefix(group) + &escape_name(member)
}

/// Returns all members of a group, or of all groups, with group and name. Values that cannot be parsed are
/// ignored.
fn registered_members<'v>(
    snapshot: &'v StoreSnapshot,
    prefix: &'v str,
) -> impl Iterator<Item = (String, String, RegisteredMember)> + 'v {
    snapshot.with_prefix(prefix).filter_map(move |(rest, entry)| {
        let key = format!("{prefix}{rest}");
        let (group, member) = key.strip_prefix(KEY_PREFIX)?.split_once('/')?;
        let registered: RegisteredMember = serde_json::from_str(&entry.value).ok()?;
        let is_usable =
            registered.capacity.is_finite() && registered.capacity > 0.0 && registered.address.port() != 0;
        Some((unescape_name(group)?, unescape_name(member)?, registered)).filter(|_| is_usable)
    })
}

/// Returns groups and names of those that are about to leave.
pub(super) fn draining(snapshot: &StoreSnapshot) -> impl Iterator<Item = (String, String)> {
    registered_members(snapshot, KEY_PREFIX)
        .filter(|(.., registered)| registered.draining)
        .map(|(group, member, _)| (group, member))
}

/// Returns the answers of the sources of registered members.
pub(crate) fn registered_answers(
    snapshot: &StoreSnapshot,
    discoveries: &[GroupDiscovery],
) -> Vec<SourceUpdate> {
    let mut updates = Vec::new();
    for GroupDiscovery { group, sources, .. } in discoveries {
        let source = sources.iter().find(|source| matches!(source.kind, SourceKind::Registered(_)));
        let Some(source) = source else { continue };
        let group_path = group_prefix(group);
        let listed_member = |(_, name, registered): (String, String, RegisteredMember)| DiscoveredMember {
            name: name.into(),
            address: registered.address,
            capacity: registered.capacity,
            limit: registered.max_connections,
            leaving: false,
        };
        let members = Some(registered_members(snapshot, &group_path).map(listed_member).collect());
        let result = Ok(MemberList { members, note: None });
        updates.push(SourceUpdate { group: Arc::clone(group), source: Arc::clone(source), result });
    }
    updates
}

impl RegisteredMember {
    fn new(address: SocketAddr, registration: &Registration) -> Self {
        let Registration { capacity, max_connections, ttl_seconds, draining } = *registration;
        Self { address, capacity, max_connections, ttl_seconds, draining }
    }

    fn ttl(&self) -> Option<Duration> {
        self.ttl_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }
}

/// Parses the name of a member.
fn name(member: &str) -> Result<MemberAddress, RegistrationError> {
    member.parse().map_err(|error| RegistrationError::Invalid(format!("member {member}: {error}")))
}

fn unregistered(reason: StoreError) -> RegistrationError {
    match reason {
        StoreError::Conflict(_) | StoreError::Invalid(_) => RegistrationError::Invalid(reason.to_string()),
        StoreError::Unavailable(_) | StoreError::OutcomeUnknown(_) => {
            RegistrationError::StoreUnavailable(reason.to_string())
        }
    }
}

impl BalancerRuntime {
    /// Renews a member with its known values.
    pub(super) fn renew_member(
        &self,
        group: &str,
        member: &str,
        registration: &Registration,
    ) -> Option<Result<Answer, RegistrationError>> {
        // The group may not take members any more.
        self.check_accepts_members(group).ok()?;
        let name = name(member).ok()?.to_string();
        let snapshot = self.store.snapshot();
        let entry = snapshot.entries.get(&key(group, &name))?;
        let stored: RegisteredMember = serde_json::from_str(&entry.value).ok()?;
        if stored != RegisteredMember::new(stored.address, registration) {
            return None;
        }
        // A member that leaves gets an answer about its work only once it gets nothing new here.
        if stored.draining {
            let drained = OperatorAction::Drained(group.to_owned(), name.clone());
            if !self.operator_actions.try_lock().is_ok_and(|actions| actions.contains_key(&drained)) {
                return None;
            }
        }
        // Another registration of the same member may have had no lease.
        match stored.ttl_seconds.map(|_| self.store.renew(&key(group, &name))) {
            Some(Ok(false)) => None,
            Some(Err(error)) => Some(Err(unregistered(error))),
            Some(Ok(true)) | None => Some(Ok(self.registered(group, name, &stored))),
        }
    }

    /// Takes a member into a group.
    pub(super) fn register_member(
        &self,
        group: &str,
        member: &str,
        registration: &Registration,
    ) -> Result<Answer, RegistrationError> {
        self.check_accepts_members(group)?;
        let address = name(member)?;
        let member_address = look_up(&address).map_err(|error| {
            RegistrationError::Invalid(format!("member {member} cannot be looked up: {error}"))
        })?;
        let (name, registered) = (address.to_string(), RegisteredMember::new(member_address, registration));
        let (key, snapshot) = (key(group, &name), self.store.snapshot());
        if !snapshot.entries.contains_key(&key)
            && registered_members(&snapshot, &group_prefix(group)).count() >= MAX_MEMBERS
        {
            let reason = format!("group {group} has {MAX_MEMBERS} registered members, and that is the most");
            return Err(RegistrationError::Invalid(reason));
        }
        let value = serde_json::to_string(&registered)
            .map_err(|error| RegistrationError::Invalid(error.to_string()))?;
        // The last writer wins: a member that registers at two balancers at once is no conflict.
        let change = StoreChange::default().and_put(key, value, registered.ttl());
        {
            let _actions_guard = self.lock_actions().map_err(RegistrationError::StoreUnavailable)?;
            self.store.commit(&change).map_err(unregistered)?;
        }
        if registered.draining {
            self.reapply_actions(Reapply::Nothing);
        }
        Ok(self.registered(group, name, &registered))
    }

    /// Removes a registered member.
    pub(super) fn deregister_member(&self, group: &str, member: &str) -> Result<(), RegistrationError> {
        let (name, snapshot) = (name(member)?.to_string(), self.store.snapshot());
        let key = key(group, &name);
        if !snapshot.entries.contains_key(&key) {
            let reason = format!("no member {name} of group {group} was registered");
            return Err(RegistrationError::Unknown(reason));
        }
        let _actions_guard = self.lock_actions().map_err(RegistrationError::StoreUnavailable)?;
        self.store.commit(&StoreChange::delete(key)).map_err(unregistered)
    }

    fn check_accepts_members(&self, group: &str) -> Result<(), RegistrationError> {
        let accepts_members = {
            let file_config = lock(&self.file_config);
            let mut group_discoveries =
                file_config.discoveries.iter().filter(|discovery| *discovery.group == *group);
            group_discoveries.any(|candidate| {
                candidate.sources.iter().any(|source| matches!(source.kind, SourceKind::Registered(_)))
            })
        };
        if accepts_members {
            return Ok(());
        }
        let effective_config = self.effective_config();
        if effective_config.settings.groups.iter().any(|settings| *settings.spec.name == *group) {
            let reason = format!(
                "group {group} takes no members that are registered: add [[group.discover]] with registered \
                 = true to it"
            );
            return Err(RegistrationError::Invalid(reason));
        }
        Err(RegistrationError::Unknown(format!("there is no group {group}")))
    }

    fn registered(&self, group: &str, name: String, stored: &RegisteredMember) -> Answer {
        // Only a member that leaves needs the count, which takes a look at all members.
        let counters = if stored.draining { self.engine.member_counters(group) } else { Vec::new() };
        let in_flight =
            counters.iter().find(|counter| *counter.name == *name).map_or(0, |counter| counter.in_flight);
        Answer {
            group: group.to_owned(),
            member: name,
            address: stored.address.to_string(),
            ttl_seconds: stored.ttl_seconds,
            draining: stored.draining,
            in_flight: in_flight.into(),
        }
    }
}
