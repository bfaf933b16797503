//! The choice of the balancer that decides the number of a group's members, among several with one store
//! (etcd): one of them, by a lease that it renews. The members that it started are in the store as well: so
//! all have those members, and the next one that decides goes on with them.
//!
//! | key | meaning |
//! | --- | --- |
//! | `scaler/GROUP/owner` | the balancer that decides, with a lease of [`LEADER_LEASE`] |
//! | `scaler/GROUP/members` | the members that it started |

use std::time::Duration;

use plimsoll_cluster::store::{StoreChange, StoreSnapshot};
use plimsoll_config as config;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::operator_state::escape_name;
use super::scaler_state::ScaledInstance;
use super::{BalancerRuntime, lock};

/// The time after which a silent balancer does not decide any more.
pub(crate) const LEADER_LEASE: Duration = Duration::from_secs(15);

/// The balancer that decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ScalerLeader {
    /// This balancer.
    ThisBalancer,
    /// Another one, by its name.
    Other(String),
    /// None yet, or any more.
    NoBalancer,
}

/// The owner in the store.
#[derive(Debug, Serialize, Deserialize)]
struct LeaderRecord {
    /// Its name, for people.
    balancer: String,
    /// The identity by which it knows itself, also after an upgrade.
    id: String,
}

/// The members that a scaler started, in the store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct InstanceList {
    pub provider: String,
    pub members: Vec<ScaledInstance>,
}

fn owner_key(group: &str) -> String {
    format!("scaler/{}/owner", escape_name(group))
}

fn members_key(group: &str) -> String {
    format!("scaler/{}/members", escape_name(group))
}

fn owner(snapshot: &StoreSnapshot, group: &str) -> Option<LeaderRecord> {
    read(snapshot, &owner_key(group))
}

/// Reads a value; one that cannot be parsed is foreign, and is ignored.
fn read<T: DeserializeOwned>(snapshot: &StoreSnapshot, key: &str) -> Option<T> {
    serde_json::from_str(&snapshot.entries.get(key)?.value).ok()
}

impl BalancerRuntime {
    /// Returns `true` if several balancers share the store, so that one of them decides.
    pub(crate) fn shares_scaling(&self) -> bool {
        self.store.kind() == "etcd"
    }

    /// Returns the balancer that decides for a group, by the last view of the store.
    pub(crate) fn leadership(&self, group: &str) -> ScalerLeader {
        match owner(&self.store.snapshot(), group) {
            None => ScalerLeader::NoBalancer,
            Some(owner) if owner.id == self.scalers.identity() => ScalerLeader::ThisBalancer,
            Some(owner) => ScalerLeader::Other(owner.balancer),
        }
    }

    /// Starts to decide for a group, if no other balancer does. It waits for the store.
    ///
    /// # Errors
    /// Fails if another one does, or the store is away.
    pub(crate) fn acquire_leadership(&self, group: &str) -> Result<(), String> {
        self.check_in_charge()?;
        let configured_name =
            lock(&self.file_config).fleet.as_ref().and_then(|fleet| Some(fleet.name.as_ref()?.0.clone()));
        let owner = LeaderRecord {
            balancer: configured_name.unwrap_or_else(config::host),
            id: self.scalers.identity(),
        };
        let value = serde_json::to_string(&owner).map_err(|error| error.to_string())?;
        self.commit(StoreChange::default().and_put(owner_key(group), value, Some(LEADER_LEASE)))
    }

    /// Renews the lease to decide. A failure, or the loss of the lease, is seen in the store.
    pub(crate) fn renew_leadership(&self, group: &str) {
        if let Ok(false) | Err(_) = self.store.renew(&owner_key(group)) {
            tracing::debug!("group {group}: the lease of its scaler is not renewed");
        }
    }

    /// Stops to decide, so that another balancer can at once. It waits for the store.
    ///
    /// # Errors
    /// Fails if the store is away: the lease ends by itself then.
    pub(crate) fn resign_leadership(&self, group: &str) -> Result<(), String> {
        let snapshot = self.store.snapshot();
        let is_leader = owner(&snapshot, group).is_some_and(|owner| owner.id == self.scalers.identity());
        if is_leader { self.commit(StoreChange::delete(owner_key(group))) } else { Ok(()) }
    }

    /// Returns the members that the deciding balancers of a group have started.
    pub(crate) fn instances(&self, group: &str) -> Option<InstanceList> {
        read(&self.store.snapshot(), &members_key(group))
    }

    /// Puts the members that this balancer has started into the store, if it is the one that decides. It
    /// waits for the store.
    ///
    /// # Errors
    /// Fails if it does not decide any more, or the store is away.
    pub(crate) fn publish_instances(&self, group: &str, instances: &InstanceList) -> Result<(), String> {
        let snapshot = self.store.snapshot();
        if owner(&snapshot, group).is_none_or(|owner| owner.id != self.scalers.identity()) {
            return Err("another balancer decides".into());
        }
        let value = serde_json::to_string(instances).map_err(|error| error.to_string())?;
        let keys = [owner_key(group), members_key(group)];
        let mut change = StoreChange::put(members_key(group), value);
        // A balancer that has lost the lease meanwhile changes nothing.
        change.unchanged = keys.map(|key| (key.clone(), snapshot.revision_of(&key))).into();
        self.store.commit(&change).map_err(|error| error.to_string())
    }

    /// Keeps only these of the members that this balancer had started, if no other decides by now. It waits
    /// for the store.
    ///
    /// # Errors
    /// Fails if the store is away, or another balancer was faster.
    pub(crate) fn remove_instances(&self, group: &str, instances: &InstanceList) -> Result<(), String> {
        if self.leadership(group) != ScalerLeader::NoBalancer {
            return Ok(());
        }
        let value = serde_json::to_string(instances).map_err(|error| error.to_string())?;
        self.commit(StoreChange::put(members_key(group), value))
    }

    /// Returns the time for which the store has been unusable.
    pub(crate) fn store_outage(&self) -> Option<Duration> {
        self.store.health().problem.map(|(_, lost_at)| lost_at.elapsed())
    }

    /// Returns `true` if it knows the requests in flight of other balancers.
    pub(crate) fn knows_peer_loads(&self) -> bool {
        lock(&self.fleet).is_some()
    }
}

/// Returns a name that no other process has, of random bits.
pub(super) fn random_id() -> String {
    use std::hash::{BuildHasher as _, RandomState};
    let random_bits = || RandomState::new().hash_one(std::process::id());
    format!("{:016x}{:016x}", random_bits(), random_bits())
}

#[cfg(test)]
mod tests {
    use plimsoll_brain::autoscale::instances::InstanceState;
    use plimsoll_cluster::scaler::Instance;
    use plimsoll_cluster::store::StoreEntry;

    use super::*;

    #[test]
    fn what_stands_in_the_store_is_read_and_what_is_none_of_ours_says_nothing() {
        let instance = Instance { index: 3, id: "i-07".into(), address: ([10, 0, 0, 3], 80).into() };
        let instances = InstanceList {
            provider: "exec".into(),
            members: vec![ScaledInstance { instance, stage: InstanceState::Draining }],
        };
        let entry = |value: String| StoreEntry { value: value.into(), revision: 1, lease: 0 };
        let mut snapshot = StoreSnapshot::default();
        let group = "game servers/1";
        snapshot.entries.insert(members_key(group), entry(serde_json::to_string(&instances).unwrap()));
        snapshot
            .entries
            .insert(owner_key(group), entry("{\"balancer\": \"lb1\", \"id\": \"ab\", \"of\": 3}".into()));
        assert_eq!(members_key(group), "scaler/game servers%2F1/members");
        assert_eq!(read::<InstanceList>(&snapshot, &members_key(group)), Some(instances));
        assert_eq!(owner(&snapshot, group).unwrap().balancer, "lb1");
        snapshot.entries.insert(owner_key(group), entry("lb1".into()));
        assert!(owner(&snapshot, group).is_none() && owner(&snapshot, "other").is_none());
        assert_ne!(random_id(), random_id());
    }
}
