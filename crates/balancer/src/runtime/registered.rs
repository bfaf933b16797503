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
fn below(group: &str) -> String {
    format!("{KEY_PREFIX}{}/", escape_name(group))
}

/// Returns the key of a member.
fn key(group: &str, member: &str) -> String {
    below(group) + &escape_name(member)
}

/// Returns all members of a group, or of all groups, with group and name. Values that cannot be parsed are
/// ignored.
fn registered_members<'v>(
    view: &'v StoreSnapshot,
    below: &'v str,
) -> impl Iterator<Item = (String, String, RegisteredMember)> + 'v {
    view.with_prefix(below).filter_map(move |(rest, entry)| {
        let whole = format!("{below}{rest}");
        let (group, member) = whole.strip_prefix(KEY_PREFIX)?.split_once('/')?;
        let found: RegisteredMember = serde_json::from_str(&entry.value).ok()?;
        let usable = found.capacity.is_finite() && found.capacity > 0.0 && found.address.port() != 0;
        Some((unescape_name(group)?, unescape_name(member)?, found)).filter(|_| usable)
    })
}

/// Returns groups and names of those that are about to leave.
pub(super) fn draining(view: &StoreSnapshot) -> impl Iterator<Item = (String, String)> {
    registered_members(view, KEY_PREFIX)
        .filter(|(.., found)| found.draining)
        .map(|(group, member, _)| (group, member))
}

/// Returns the answers of the sources of registered members.
pub(crate) fn registered_answers(view: &StoreSnapshot, discoveries: &[GroupDiscovery]) -> Vec<SourceUpdate> {
    let mut heard = Vec::new();
    for GroupDiscovery { group, sources, .. } in discoveries {
        let source = sources.iter().find(|source| matches!(source.kind, SourceKind::Registered(_)));
        let Some(source) = source else { continue };
        let below = below(group);
        let listed = |(_, name, found): (String, String, RegisteredMember)| DiscoveredMember {
            name: name.into(),
            address: found.address,
            capacity: found.capacity,
            limit: found.max_connections,
            leaving: false,
        };
        let members = Some(registered_members(view, &below).map(listed).collect());
        let said = Ok(MemberList { members, note: None });
        heard.push(SourceUpdate { group: Arc::clone(group), source: Arc::clone(source), result: said });
    }
    heard
}

impl RegisteredMember {
    fn new(address: SocketAddr, asked: &Registration) -> Self {
        let Registration { capacity, max_connections, ttl_seconds, draining } = *asked;
        Self { address, capacity, max_connections, ttl_seconds, draining }
    }

    fn ttl(&self) -> Option<Duration> {
        self.ttl_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }
}

/// Parses the name of a member.
fn name(member: &str) -> Result<MemberAddress, RegistrationError> {
    member.parse().map_err(|why| RegistrationError::Invalid(format!("member {member}: {why}")))
}

fn unregistered(why: StoreError) -> RegistrationError {
    match why {
        StoreError::Conflict(_) | StoreError::Invalid(_) => RegistrationError::Invalid(why.to_string()),
        StoreError::Unavailable(_) | StoreError::OutcomeUnknown(_) => {
            RegistrationError::StoreUnavailable(why.to_string())
        }
    }
}

impl BalancerRuntime {
    /// Renews a member with its known values.
    pub(super) fn renew_member(
        &self,
        group: &str,
        member: &str,
        asked: &Registration,
    ) -> Option<Result<Answer, RegistrationError>> {
        // The group may not take members any more.
        self.check_accepts_members(group).ok()?;
        let name = name(member).ok()?.to_string();
        let view = self.store.snapshot();
        let entry = view.entries.get(&key(group, &name))?;
        let known: RegisteredMember = serde_json::from_str(&entry.value).ok()?;
        if known != RegisteredMember::new(known.address, asked) {
            return None;
        }
        // A member that leaves gets an answer about its work only once it gets nothing new here.
        if known.draining {
            let drained = OperatorAction::Drained(group.to_owned(), name.clone());
            if !self.operator_actions.try_lock().is_ok_and(|kept| kept.contains_key(&drained)) {
                return None;
            }
        }
        // Another registration of the same member may have had no lease.
        match known.ttl_seconds.map(|_| self.store.renew(&key(group, &name))) {
            Some(Ok(false)) => None,
            Some(Err(why)) => Some(Err(unregistered(why))),
            Some(Ok(true)) | None => Some(Ok(self.registered(group, name, &known))),
        }
    }

    /// Takes a member into a group.
    pub(super) fn register_member(
        &self,
        group: &str,
        member: &str,
        asked: &Registration,
    ) -> Result<Answer, RegistrationError> {
        self.check_accepts_members(group)?;
        let address = name(member)?;
        let found = look_up(&address).map_err(|why| {
            RegistrationError::Invalid(format!("member {member} cannot be looked up: {why}"))
        })?;
        let (name, wanted) = (address.to_string(), RegisteredMember::new(found, asked));
        let (key, view) = (key(group, &name), self.store.snapshot());
        if !view.entries.contains_key(&key) && registered_members(&view, &below(group)).count() >= MAX_MEMBERS
        {
            let why = format!("group {group} has {MAX_MEMBERS} registered members, and that is the most");
            return Err(RegistrationError::Invalid(why));
        }
        let said =
            serde_json::to_string(&wanted).map_err(|why| RegistrationError::Invalid(why.to_string()))?;
        // The last writer wins: a member that registers at two balancers at once is no conflict.
        let change = StoreChange::default().and_put(key, said, wanted.ttl());
        {
            let _kept = self.lock_actions().map_err(RegistrationError::StoreUnavailable)?;
            self.store.commit(&change).map_err(unregistered)?;
        }
        if wanted.draining {
            self.reapply_actions(Reapply::Nothing);
        }
        Ok(self.registered(group, name, &wanted))
    }

    /// Removes a registered member.
    pub(super) fn deregister_member(&self, group: &str, member: &str) -> Result<(), RegistrationError> {
        let (name, view) = (name(member)?.to_string(), self.store.snapshot());
        let key = key(group, &name);
        if !view.entries.contains_key(&key) {
            let why = format!("no member {name} of group {group} was registered");
            return Err(RegistrationError::Unknown(why));
        }
        let _kept = self.lock_actions().map_err(RegistrationError::StoreUnavailable)?;
        self.store.commit(&StoreChange::delete(key)).map_err(unregistered)
    }

    fn check_accepts_members(&self, group: &str) -> Result<(), RegistrationError> {
        let takes = {
            let base = lock(&self.file_config);
            let mut its = base.discoveries.iter().filter(|discovery| *discovery.group == *group);
            its.any(|one| one.sources.iter().any(|source| matches!(source.kind, SourceKind::Registered(_))))
        };
        if takes {
            return Ok(());
        }
        let force = self.effective_config();
        if force.settings.groups.iter().any(|settings| *settings.spec.name == *group) {
            let why = format!(
                "group {group} takes no members that are registered: add [[group.discover]] with registered \
                 = true to it"
            );
            return Err(RegistrationError::Invalid(why));
        }
        Err(RegistrationError::Unknown(format!("there is no group {group}")))
    }

    fn registered(&self, group: &str, name: String, known: &RegisteredMember) -> Answer {
        // Only a member that leaves needs the count, which takes a look at all members.
        let counters = if known.draining { self.engine.member_counters(group) } else { Vec::new() };
        let in_flight = counters.iter().find(|one| *one.name == *name).map_or(0, |one| one.in_flight);
        Answer {
            group: group.to_owned(),
            member: name,
            address: known.address.to_string(),
            ttl_seconds: known.ttl_seconds,
            draining: known.draining,
            in_flight: in_flight.into(),
        }
    }
}
