//! The balancing of a group, as operators set it until the next reload.

use std::sync::Arc;

use plimsoll_brain::{EventKind, Knobs, Strategy, strategy};
use plimsoll_cluster as cluster;
use plimsoll_proxy as proxy;

use super::{Running, lock};

/// The balancing of a group.
#[derive(Clone)]
pub(super) struct Balancing {
    pub(super) strategy: &'static Strategy,
    pub(super) knobs: Knobs,
    pub(super) weight: Option<cluster::Expression>,
}

impl Balancing {
    fn same(&self, other: &Self) -> bool {
        self.strategy.name == other.strategy.name && self.knobs == other.knobs && self.weight == other.weight
    }

    /// Returns its text for a message when another takes its place: an expression is quoted, too.
    fn instead(&self, written: &str) -> String {
        match &self.weight {
            Some(weight) => {
                let text: Vec<&str> = weight.text().split_whitespace().collect();
                format!("{written} (the weight was `{}`)", text.join(" "))
            }
            None => written.to_owned(),
        }
    }
}

impl Running {
    /// Switches a group's balancing off or on. While it is off its members take equal turns.
    pub(super) fn balance(&self, group: &str, on: bool) -> Result<Vec<String>, String> {
        let _one = lock(&self.reloading);
        let Some(own) = self.in_force(group) else {
            let force = self.force();
            let names: Vec<&str> = force.settings.groups.iter().map(|one| &*one.spec.name).collect();
            return Err(format!("no group {group}; there are: {}", names.join(", ")));
        };
        let kept = lock(&self.off).get(group).cloned();
        let (balancing, kind, why) = match (kept, on) {
            (None, true) | (Some(_), false) => return Ok(Vec::new()),
            (Some(kept), true) => (kept, EventKind::Enabled, "balancing enabled by an operator"),
            (None, false) => {
                let turns = strategy::find("round_robin").ok_or("there is no strategy round_robin")?;
                lock(&self.off).insert(group.to_owned(), own.clone());
                let turns = Balancing { strategy: turns, knobs: Knobs::defaults(turns), weight: None };
                let why = "balancing disabled by an operator: members take equal turns, until it is enabled or \
                           the next reload";
                (turns, EventKind::Disabled, why)
            }
        };
        // If members take turns already nothing changes, and the message names no other strategy.
        let before = match own.same(&balancing) {
            true => own.strategy.name.to_owned(),
            false => self.choose(group, &balancing, balancing.strategy.name)?,
        };
        if on {
            lock(&self.off).remove(group);
        }
        self.engine.note(kind, group, why.to_owned());
        let (after, now) = (balancing.strategy.name, if on { "enabled" } else { "disabled" });
        Ok(vec![match before == after {
            true => format!("~ group {group}: balancing {now}: strategy {after}, as before"),
            false => format!("~ group {group}: balancing {now}: strategy {before} -> {after}"),
        }])
    }

    /// Returns the balancing of a group now.
    pub(super) fn in_force(&self, group: &str) -> Option<Balancing> {
        let force = self.force();
        let settings = force.settings.groups.iter().find(|settings| *settings.spec.name == *group)?;
        let watched = force.watched.iter().find(|watched| *watched.name == *group);
        Some(Balancing {
            strategy: settings.spec.strategy,
            knobs: settings.spec.knobs.clone(),
            weight: watched.and_then(|watched| watched.weight.clone()),
        })
    }

    /// Sets another balancing of a group; returns the former one, for people.
    pub(super) fn choose(&self, group: &str, by: &Balancing, written: &str) -> Result<String, String> {
        let was = self.in_force(group);
        let told = was.as_ref().map_or_else(|| written.to_owned(), |was| was.instead(written));
        let before = self.engine.choose_by(group, by.strategy, by.knobs.clone(), &told)?;
        self.cluster.weigh(group, by.weight.clone());
        self.chosen(group, by.strategy, &by.knobs, by.weight.as_ref());
        Ok(before)
    }

    /// Keeps an operator's choice, so that a change of a client of the load manager does not undo it.
    pub(super) fn chosen(
        &self,
        group: &str,
        strategy: &'static Strategy,
        knobs: &Knobs,
        weight: Option<&cluster::Expression>,
    ) {
        let choose = |settings: &mut proxy::GroupSettings| {
            settings.spec.strategy = strategy;
            settings.spec.knobs = knobs.clone();
        };
        let mut base = lock(&self.base);
        if !lock(&self.made).choose(group, choose)
            && let Some(settings) = base.settings.groups.iter_mut().find(|one| *one.spec.name == *group)
        {
            choose(Arc::make_mut(settings));
        }
        if let Some(watched) = base.watched.iter_mut().find(|watched| *watched.name == *group) {
            Arc::make_mut(watched).weight = weight.cloned();
        }
        let force = base.with(&lock(&self.made));
        *lock(&self.force) = Arc::new(force);
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
            Balancing { strategy, knobs: Knobs::defaults(strategy), weight }
        };
        let (turns, weight) = (by("round_robin", None), by("expression", Some("capacity /\n (1 + cpu)")));
        assert_eq!(turns.instead("random"), "random");
        assert_eq!(weight.instead("random"), "random (the weight was `capacity / (1 + cpu)`)");
        assert!(turns.same(&turns) && weight.same(&weight));
        assert!(!turns.same(&weight) && !weight.same(&by("expression", Some("capacity"))));
        assert!(!turns.same(&by("random", None)));
    }
}
