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
    fn describe_replaced(&self, weight_text: &str) -> String {
        match &self.weight {
            Some(weight) => {
                let text: Vec<&str> = weight.text().split_whitespace().collect();
                format!("{weight_text} (the weight was `{}`)", text.join(" "))
            }
            None => weight_text.to_owned(),
        }
    }
}

impl BalancerRuntime {
    /// Switches a group's balancing off or on. While it is off its members take equal turns.
    pub(super) fn set_balancing(&self, group: &str, enabled: bool) -> Result<Vec<String>, String> {
        let _reload_guard = lock(&self.reload_lock);
        let Some(current) = self.current_balancing(group) else {
            let effective_config = self.effective_config();
            let names: Vec<&str> = effective_config
                .settings
                .groups
                .iter()
                .map(|group_settings| &*group_settings.spec.name)
                .collect();
            return Err(format!("no group {group}; there are: {}", names.join(", ")));
        };
        let saved = lock(&self.disabled_balancing).get(group).cloned();
        let (balancing, kind, reason) = match (saved, enabled) {
            (None, true) | (Some(_), false) => return Ok(Vec::new()),
            (Some(saved), true) => (saved, EventKind::Enabled, "balancing enabled by an operator"),
            (None, false) => {
                let round_robin = strategy::find("round_robin").ok_or("there is no strategy round_robin")?;
                lock(&self.disabled_balancing).insert(group.to_owned(), current.clone());
                let round_robin = GroupBalancing {
                    strategy: round_robin,
                    params: StrategyParams::defaults(round_robin),
                    weight: None,
                };
                let reason = "balancing disabled by an operator: members take equal turns, until it is \
                           enabled or \
                           the next reload";
                (round_robin, EventKind::Disabled, reason)
            }
        };
        // If members take turns already nothing changes, and the message names no other strategy.
        let previous = match current.is_same(&balancing) {
            true => current.strategy.name.to_owned(),
            false => self.apply_balancing(group, &balancing, balancing.strategy.name)?,
        };
        if enabled {
            lock(&self.disabled_balancing).remove(group);
        }
        self.engine.write_group_event(kind, group, reason.to_owned());
        let (strategy_name, now) = (balancing.strategy.name, if enabled { "enabled" } else { "disabled" });
        Ok(vec![match previous == strategy_name {
            true => format!("~ group {group}: balancing {now}: strategy {strategy_name}, as before"),
            false => format!("~ group {group}: balancing {now}: strategy {previous} -> {strategy_name}"),
        }])
    }

    /// Returns the balancing of a group now.
    pub(super) fn current_balancing(&self, group: &str) -> Option<GroupBalancing> {
        let effective_config = self.effective_config();
        let settings =
            effective_config.settings.groups.iter().find(|settings| *settings.spec.name == *group)?;
        let cluster_group =
            effective_config.cluster_groups.iter().find(|cluster_group| *cluster_group.name == *group);
        Some(GroupBalancing {
            strategy: settings.spec.strategy,
            params: settings.spec.params.clone(),
            weight: cluster_group.and_then(|cluster_group| cluster_group.weight.clone()),
        })
    }

    /// Sets another balancing of a group; returns the former one, for people.
    pub(super) fn apply_balancing(
        &self,
        group: &str,
        balancing: &GroupBalancing,
        strategy_text: &str,
    ) -> Result<String, String> {
        let current = self.current_balancing(group);
        let description = current
            .as_ref()
            .map_or_else(|| strategy_text.to_owned(), |current| current.describe_replaced(strategy_text));
        let previous =
            self.engine.set_strategy(group, balancing.strategy, balancing.params.clone(), &description)?;
        self.cluster.set_weight_expression(group, balancing.weight.clone());
        self.remember_balancing(group, balancing.strategy, &balancing.params, balancing.weight.as_ref());
        Ok(previous)
    }

    /// Keeps an operator's choice, so that a change of a client of the load manager does not undo it.
    pub(super) fn remember_balancing(
        &self,
        group: &str,
        strategy: &'static Strategy,
        params: &StrategyParams,
        weight: Option<&cluster::Expression>,
    ) {
        let set_strategy = |settings: &mut proxy::GroupSettings| {
            settings.spec.strategy = strategy;
            settings.spec.params = params.clone();
        };
        let mut file_config = lock(&self.file_config);
        if !lock(&self.overlay).apply_strategy(group, set_strategy)
            && let Some(settings) = file_config
                .settings
                .groups
                .iter_mut()
                .find(|group_settings| *group_settings.spec.name == *group)
        {
            set_strategy(Arc::make_mut(settings));
        }
        if let Some(cluster_group) =
            file_config.cluster_groups.iter_mut().find(|cluster_group| *cluster_group.name == *group)
        {
            Arc::make_mut(cluster_group).weight = weight.cloned();
        }
        let effective_config = file_config.with_overlay(&lock(&self.overlay));
        *lock(&self.effective_config) = Arc::new(effective_config);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_expression_was_is_told() {
        let balancing_of = |name: &str, weight: Option<&str>| {
            let strategy = strategy::find(name).unwrap_or(strategy::EXPRESSION);
            let weight = weight.map(|weight| cluster::Expression::new(weight).unwrap());
            GroupBalancing { strategy, params: StrategyParams::defaults(strategy), weight }
        };
        let (round_robin, weight) =
            (balancing_of("round_robin", None), balancing_of("expression", Some("capacity /\n (1 + cpu)")));
        assert_eq!(round_robin.describe_replaced("random"), "random");
        assert_eq!(weight.describe_replaced("random"), "random (the weight was `capacity / (1 + cpu)`)");
        assert!(round_robin.is_same(&round_robin) && weight.is_same(&weight));
        assert!(
            !round_robin.is_same(&weight) && !weight.is_same(&balancing_of("expression", Some("capacity")))
        );
        assert!(!round_robin.is_same(&balancing_of("random", None)));
    }
}
