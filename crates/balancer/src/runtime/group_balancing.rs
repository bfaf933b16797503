//! The balancing of a group, as operators set it until the next reload.

use std::sync::Arc;

use plimsoll_brain::{EventKind, Strategy, StrategyParams, strategy};
use plimsoll_cluster as cluster;
use plimsoll_proxy as proxy;

use super::{BalancerRuntime, lock};

/// The balancing of a group.
#[derive(Clone)]
pub(super) struct GroupBalancing {
    pub(super) strategy: &'static Strategy,
    pub(super) params: StrategyParams,
    pub(super) weight: Option<cluster::Expression>,
}

impl GroupBalancing {
    fn is_same(&self, other: &Self) -> bool {
        self.strategy.name == other.strategy.name
            && self.params == other.params
            && self.weight == other.weight
    }

    /// Returns its text for a message when another takes its place: an expression is quoted, too.
    fn describe_replaced(&self, written: &str) -> String {
        match &self.weight {
            Some(weight) => {
                let text: Vec<&str> = weight.text().split_whitespace().collect();
                format!("{written} (the weight was `{}`)", text.join(" "))
            }
            None => written.to_owned(),
        }
    }
}

impl BalancerRuntime {
    /// Switches a group's balancing off or on. While it is off its members take equal turns.
    pub(super) fn set_balancing(&self, group: &str, on: bool) -> Result<Vec<String>, String> {
        let _one = lock(&self.reloading);
        let Some(own) = self.current_balancing(group) else {
            let force = self.effective_config();
            let names: Vec<&str> = force.settings.groups.iter().map(|one| &*one.spec.name).collect();
            return Err(format!("no group {group}; there are: {}", names.join(", ")));
        };
        let kept = lock(&self.unbalanced).get(group).cloned();
        let (balancing, kind, why) = match (kept, on) {
            (None, true) | (Some(_), false) => return Ok(Vec::new()),
            (Some(kept), true) => (kept, EventKind::Enabled, "balancing enabled by an operator"),
            (None, false) => {
                let turns = strategy::find("round_robin").ok_or("there is no strategy round_robin")?;
                lock(&self.unbalanced).insert(group.to_owned(), own.clone());
                let turns =
                    GroupBalancing { strategy: turns, params: StrategyParams::defaults(turns), weight: None };
                let why = "balancing disabled by an operator: members take equal turns, until it is enabled \
                           or \
                           the next reload";
                (turns, EventKind::Disabled, why)
            }
        };
        // If members take turns already nothing changes, and the message names no other strategy.
        let before = match own.is_same(&balancing) {
            true => own.strategy.name.to_owned(),
            false => self.apply_balancing(group, &balancing, balancing.strategy.name)?,
        };
        if on {
            lock(&self.unbalanced).remove(group);
        }
        self.engine.write_group_event(kind, group, why.to_owned());
        let (after, now) = (balancing.strategy.name, if on { "enabled" } else { "disabled" });
        Ok(vec![match before == after {
            true => format!("~ group {group}: balancing {now}: strategy {after}, as before"),
            false => format!("~ group {group}: balancing {now}: strategy {before} -> {after}"),
        }])
    }

    /// Returns the balancing of a group now.
    pub(super) fn current_balancing(&self, group: &str) -> Option<GroupBalancing> {
        let force = self.effective_config();
        let settings = force.settings.groups.iter().find(|settings| *settings.spec.name == *group)?;
        let watched = force.watched.iter().find(|watched| *watched.name == *group);
        Some(GroupBalancing {
            strategy: settings.spec.strategy,
            params: settings.spec.params.clone(),
            weight: watched.and_then(|watched| watched.weight.clone()),
        })
    }

    /// Sets another balancing of a group; returns the former one, for people.
    pub(super) fn apply_balancing(
        &self,
        group: &str,
        by: &GroupBalancing,
        written: &str,
    ) -> Result<String, String> {
        let was = self.current_balancing(group);
        let told = was.as_ref().map_or_else(|| written.to_owned(), |was| was.describe_replaced(written));
        let before = self.engine.set_strategy(group, by.strategy, by.params.clone(), &told)?;
        self.cluster.set_weight_expression(group, by.weight.clone());
        self.remember_balancing(group, by.strategy, &by.params, by.weight.as_ref());
        Ok(before)
    }

    /// Keeps an operator's choice, so that a change of a client of the load manager does not undo it.
    pub(super) fn remember_balancing(
        &self,
        group: &str,
        strategy: &'static Strategy,
        knobs: &StrategyParams,
        weight: Option<&cluster::Expression>,
    ) {
        let choose = |settings: &mut proxy::GroupSettings| {
            settings.spec.strategy = strategy;
            settings.spec.params = knobs.clone();
        };
        let mut base = lock(&self.file_config);
        if !lock(&self.overlay).apply_strategy(group, choose)
            && let Some(settings) = base.settings.groups.iter_mut().find(|one| *one.spec.name == *group)
        {
            choose(Arc::make_mut(settings));
        }
        if let Some(watched) = base.watched.iter_mut().find(|watched| *watched.name == *group) {
            Arc::make_mut(watched).weight = weight.cloned();
        }
        let force = base.with_overlay(&lock(&self.overlay));
        *lock(&self.effective_config) = Arc::new(force);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_expression_was_is_told() {
        let by = |name: &str, weight: Option<&str>| {
            let strategy = strategy::find(name).unwrap_or(strategy::EXPRESSION);
            let weight = weight.map(|weight| cluster::Expression::new(weight).unwrap());
            GroupBalancing { strategy, params: StrategyParams::defaults(strategy), weight }
        };
        let (turns, weight) = (by("round_robin", None), by("expression", Some("capacity /\n (1 + cpu)")));
        assert_eq!(turns.describe_replaced("random"), "random");
        assert_eq!(weight.describe_replaced("random"), "random (the weight was `capacity / (1 + cpu)`)");
        assert!(turns.is_same(&turns) && weight.is_same(&weight));
        assert!(!turns.is_same(&weight) && !weight.is_same(&by("expression", Some("capacity"))));
        assert!(!turns.is_same(&by("random", None)));
    }
}
