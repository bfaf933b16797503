//! The balancer as the load manager sees it: its groups are object groups, its members are the locations of
//! loads.

use std::collections::BTreeSet;
use std::sync::Arc;

use plimsoll_admin::{AuditLog, Caller};
use plimsoll_cluster::corba::{
    ChangeRequest, GroupError, GroupMember, LoadManagerBackend, Location, ObjectGroup, StrategyInfo,
};
use plimsoll_wire::giop::Ior;
use serde_json::Value;

use crate::runtime::BalancerRuntime;

/// A running balancer, and its audit log.
pub(crate) struct LoadManagerAdapter(pub Arc<BalancerRuntime>, pub Option<Arc<AuditLog>>);

impl LoadManagerBackend for LoadManagerAdapter {
    fn record_loads(&self, location: &str, values: &[(String, f64)]) {
        self.0.record_location_loads(location, values);
    }

    fn alerted_locations(&self) -> BTreeSet<String> {
        let effective_config = self.0.effective_config();
        let engine = self.0.engine();
        let alerted_set = effective_config
            .member_locations()
            .filter(|(group, member, _)| engine.requested_shed(Some(group), &member.name).is_some());
        alerted_set.map(|(_, _, location)| location.text().to_owned()).collect()
    }

    fn groups(&self) -> Vec<ObjectGroup> {
        let effective_config = self.0.effective_config();
        let names = effective_config.settings.groups.iter().map(|group| &group.spec.name);
        names.map(|name| self.group(name)).collect()
    }

    fn create_group(
        &self,
        type_id: &str,
        strategy: Option<&StrategyInfo>,
    ) -> Result<ObjectGroup, GroupError> {
        let name = self.0.change_overlay(|overlay, file_config, _, machine| {
            overlay.create(file_config, machine, type_id, strategy)
        })?;
        Ok(self.group(&name))
    }

    fn delete_group(&self, id: u64) -> Result<(), GroupError> {
        self.0.change_overlay(|overlay, _, _, _| {
            overlay.delete(&overlay.group_of(id).ok_or(GroupError::NoGroup)?)
        })
    }

    fn add_member(&self, id: u64, location: &Location, object: &Ior) -> Result<(), GroupError> {
        self.0.change_overlay(|overlay, _, effective_config, _| {
            overlay.add(effective_config, &overlay.group_of(id).ok_or(GroupError::NoGroup)?, location, object)
        })
    }

    fn remove_member(&self, id: u64, location: &str) -> Result<(), GroupError> {
        self.0.change_overlay(|overlay, _, effective_config, _| {
            overlay.remove(effective_config, &overlay.group_of(id).ok_or(GroupError::NoGroup)?, location)
        })
    }

    fn begin_change(&self, change: &ChangeRequest) -> Result<u64, String> {
        self.1.as_ref().map_or(Ok(0), |audit| audit.begin_change(&audit_entry(change)))
    }

    fn end_change(&self, number: u64, change: &ChangeRequest, outcome: Result<(), &str>) {
        if let Some(audit) = &self.1 {
            audit.end_change(number, &audit_entry(change), outcome);
        }
    }
}

/// Returns the line of the audit log: the caller is unknown, except for the address.
fn audit_entry(change: &ChangeRequest) -> plimsoll_admin::AuditedRequest {
    plimsoll_admin::AuditedRequest {
        caller: Caller::unauthenticated(),
        from: change.from.to_string(),
        verb: change.operation,
        target: change.target.clone(),
        arguments: Value::Null,
    }
}

impl LoadManagerAdapter {
    fn group(&self, name: &Arc<str>) -> ObjectGroup {
        let members = self.0.effective_config().objects(name);
        let member = |(_, location, object)| GroupMember { location, object };
        ObjectGroup {
            id: self.0.group_number(name),
            reference: self.0.engine().reference(name),
            members: members.into_iter().map(member).collect(),
        }
    }
}
