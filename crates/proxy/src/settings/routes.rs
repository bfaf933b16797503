//! The routes of a listener: conditions on a request, and the group or the response for requests that meet
//! them.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use plimsoll_brain::route::{RouteRule, RouteTable};

/// The routes of a listener, compiled.
pub struct ListenerRoutes {
    table: RouteTable,
    routes: Vec<RouteSettings>,
    /// The groups of all routes, each once.
    groups: Vec<Arc<str>>,
    /// The split of each route, for those that lead to groups.
    splits: Vec<Option<WeightedSplit>>,
    has_default_group: bool,
}

/// A route of a listener.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteSettings {
    /// The name in logs and metrics, unique in its listener.
    pub name: Arc<str>,
    /// The conditions.
    pub rule: RouteRule,
    /// The handling of requests that meet them.
    pub action: RouteAction,
}

/// The handling of the requests of a route.
#[derive(Clone, Debug, PartialEq)]
pub enum RouteAction {
    /// Requests go to groups, each with its weight. A group with weight 0 gets none, unless all have 0.
    Forward(Vec<(Arc<str>, u32)>),
    /// The client is redirected.
    Redirect(RedirectSettings),
    /// The balancer responds itself.
    Respond(ResponseSettings),
}

/// A redirect: the request's own URL, with these parts replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedirectSettings {
    /// The status: 301, 302, 303, 307 or 308.
    pub status: u16,
    /// `http` or `https`; without it, the scheme of the client's connection.
    pub scheme: Option<Box<str>>,
    /// The host; without it, that of the request.
    pub host: Option<Box<str>>,
    /// The port. Without it: the request's, unless scheme or host are given.
    pub port: Option<u16>,
    /// The path.
    pub path: RedirectPath,
}

/// The path of a redirect. The query is always kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RedirectPath {
    /// The request's own.
    #[default]
    Keep,
    /// This one.
    Replace(Box<str>),
    /// The request's own, with the prefix that the route matches replaced by this one.
    ReplacePrefix(Box<str>),
}

/// A response of the balancer's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseSettings {
    /// The status, 200 to 599.
    pub status: u16,
    /// The type of the body.
    pub content_type: Box<str>,
    /// The body.
    pub body: Arc<[u8]>,
}

impl ListenerRoutes {
    /// Compiles the routes. `has_default_group` is `true` if requests that no route takes go to the
    /// listener's group; otherwise they are rejected.
    pub fn new(routes: Vec<RouteSettings>, has_default_group: bool) -> Self {
        let table = RouteTable::new(routes.iter().map(|route| route.rule.clone()).collect());
        let mut groups: Vec<Arc<str>> = Vec::new();
        let mut index_of = HashMap::new();
        let mut split = |targets: &[(Arc<str>, u32)]| {
            let weighted = targets.iter().map(|(group, weight)| {
                let index = *index_of.entry(Arc::clone(group)).or_insert_with(|| {
                    groups.push(Arc::clone(group));
                    groups.len() - 1
                });
                (index, *weight)
            });
            WeightedSplit::new(weighted.collect())
        };
        let splits = routes
            .iter()
            .map(|route| match &route.action {
                RouteAction::Forward(targets) => Some(split(targets)),
                RouteAction::Redirect(_) | RouteAction::Respond(_) => None,
            })
            .collect();
        Self { table, routes, groups, splits, has_default_group }
    }

    /// Returns the routes in the order of their settings.
    pub fn routes(&self) -> &[RouteSettings] {
        &self.routes
    }

    /// Returns the groups that routes lead to, each once.
    pub fn groups(&self) -> &[Arc<str>] {
        &self.groups
    }

    /// Returns `true` if requests that no route takes go to the listener's group.
    pub fn has_default_group(&self) -> bool {
        self.has_default_group
    }

    /// Returns the compiled conditions; indices are those of [`routes`](Self::routes).
    pub fn table(&self) -> &RouteTable {
        &self.table
    }

    /// Returns the split of a route that leads to groups.
    pub(crate) fn split(&self, route: usize) -> Option<&WeightedSplit> {
        self.splits.get(route)?.as_ref()
    }
}

impl fmt::Debug for ListenerRoutes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { routes, has_default_group, .. } = self;
        let mut fields = out.debug_struct("ListenerRoutes");
        fields.field("routes", routes).field("has_default_group", has_default_group);
        // The rest follows from these.
        fields.finish_non_exhaustive()
    }
}

impl PartialEq for ListenerRoutes {
    fn eq(&self, other: &Self) -> bool {
        self.has_default_group == other.has_default_group && self.routes == other.routes
    }
}

/// A split of requests among groups by weight.
pub(crate) struct WeightedSplit {
    /// The groups by index. Each comes with the upper bound of its share of the numbers below 2^32.
    bounds: Vec<(usize, u64)>,
}

impl WeightedSplit {
    /// Creates a split among groups, given by index. Groups with weight 0 get nothing, unless all have 0:
    /// then all get the same.
    fn new(targets: Vec<(usize, u32)>) -> Self {
        let total: u64 = targets.iter().map(|(_, weight)| u64::from(*weight)).sum();
        let weight_of = |weight: u32| if total == 0 { 1 } else { u64::from(weight) };
        let total = if total == 0 { targets.len() as u64 } else { total };
        let mut sum = 0;
        let bounds = targets.into_iter().map(|(group, weight)| {
            sum += weight_of(weight);
            // Rounding loses at most one of 2^32 numbers.
            (group, (u128::from(sum) * (1 << 32) / u128::from(total)) as u64)
        });
        Self { bounds: bounds.collect() }
    }

    /// Returns the index of the group for a number below 2^32; `None` without groups.
    pub(crate) fn choose(&self, number: u32) -> Option<usize> {
        let (only, rest) = self.bounds.split_first()?;
        if rest.is_empty() {
            return Some(only.0);
        }
        self.bounds.iter().find(|(_, bound)| u64::from(number) < *bound).map(|(group, _)| *group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(weights: &[u32]) -> Vec<usize> {
        let split = WeightedSplit::new(weights.iter().copied().enumerate().collect());
        let mut counts = vec![0; weights.len()];
        for step in 0..10_000_u32 {
            // The golden ratio's multiples are spread evenly.
            counts[split.choose(step.wrapping_mul(2_654_435_769)).expect("there is a group")] += 1;
        }
        counts
    }

    #[test]
    fn a_split_follows_its_weights() {
        for (weights, expected) in [
            (&[95, 5][..], &[9_500, 500][..]),
            (&[1], &[10_000]),
            (&[0, 1], &[0, 10_000]),
            (&[1, 0, 1], &[5_000, 0, 5_000]),
            (&[0, 0], &[5_000, 5_000]),
            (&[u32::MAX, u32::MAX], &[5_000, 5_000]),
        ] {
            let counts = shares(weights);
            let close = counts.iter().zip(expected).all(|(count, expected)| count.abs_diff(*expected) <= 3);
            assert!(close, "{weights:?}: {counts:?}");
        }
    }

    #[test]
    fn a_split_covers_all_numbers() {
        for weights in [&[3, 3, 3][..], &[1, 2, 4, 8, 16], &[7]] {
            let split = WeightedSplit::new(weights.iter().copied().enumerate().collect());
            assert!([0, 1, u32::MAX / 2, u32::MAX - 1, u32::MAX].iter().all(|n| split.choose(*n).is_some()));
        }
        assert_eq!(WeightedSplit::new(Vec::new()).choose(0), None);
    }
}
