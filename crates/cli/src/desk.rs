//! The balancer as the load manager sees it: its groups are object groups, its members are the locations of
//! loads.

use std::collections::BTreeSet;
use std::sync::Arc;

use plimsoll_admin::{Audit, Caller};
use plimsoll_cluster::corba::{Deed, Desk, GroupMember, Location, ObjectGroup, Refusal, StrategyInfo};
use plimsoll_wire::giop::Ior;
use serde_json::Value;

use crate::running::Running;

/// A running balancer, and its audit log.
pub(crate) struct Office(pub(crate) Arc<Running>, pub(crate) Option<Arc<Audit>>);

impl Desk for Office {
    fn report(&self, location: &str, values: &[(String, f64)]) {
        self.0.located(location, values);
    }

    fn alerted(&self) -> BTreeSet<String> {
        let force = self.0.force();
        let engine = self.0.engine();
        let alerted = force
            .located()
            .filter(|(group, member, _)| engine.asked_to_shed(Some(group), &member.name).is_some());
        alerted.map(|(_, _, location)| location.text().to_owned()).collect()
    }

    fn groups(&self) -> Vec<ObjectGroup> {
        let force = self.0.force();
        let names = force.settings.groups.iter().map(|group| &group.spec.name);
        names.map(|name| self.group(name)).collect()
    }

    fn create(&self, type_id: &str, strategy: Option<&StrategyInfo>) -> Result<ObjectGroup, Refusal> {
        let name = self.0.change(|made, base, _, machine| made.create(base, machine, type_id, strategy))?;
        Ok(self.group(&name))
    }

    fn delete(&self, id: u64) -> Result<(), Refusal> {
        self.0.change(|made, _, _, _| made.delete(&made.named(id).ok_or(Refusal::NoGroup)?))
    }

    fn add(&self, id: u64, location: &Location, object: &Ior) -> Result<(), Refusal> {
        self.0.change(|made, _, force, _| {
            made.add(force, &made.named(id).ok_or(Refusal::NoGroup)?, location, object)
        })
    }

    fn remove(&self, id: u64, location: &str) -> Result<(), Refusal> {
        self.0.change(|made, _, force, _| {
            made.remove(force, &made.named(id).ok_or(Refusal::NoGroup)?, location)
        })
    }

    fn begin(&self, deed: &Deed) -> Result<u64, String> {
        self.1.as_ref().map_or(Ok(0), |audit| audit.begin(&line(deed)))
    }

    fn end(&self, number: u64, deed: &Deed, outcome: Result<(), &str>) {
        if let Some(audit) = &self.1 {
            audit.end(number, &line(deed), outcome);
        }
    }
}

/// Returns the line of the audit log: the caller is unknown, except for the address.
fn line(deed: &Deed) -> plimsoll_admin::Deed {
    plimsoll_admin::Deed {
        caller: Caller::nobody(),
        from: deed.from.to_string(),
        verb: deed.operation,
        target: deed.target.clone(),
        arguments: Value::Null,
    }
}

impl Office {
    fn group(&self, name: &Arc<str>) -> ObjectGroup {
        let members = self.0.force().objects(name);
        let member = |(_, location, object)| GroupMember { location, object };
        ObjectGroup {
            id: self.0.number(name),
            reference: self.0.engine().reference(name),
            members: members.into_iter().map(member).collect(),
        }
    }
}
