//! Rules that no request reaches.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use super::build::ConditionRank;
use super::{FieldCondition, FieldTest, HostPattern, PathPattern, RouteRule, RouteTable};

/// A rule that takes no request, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RouteConflict {
    /// Another rule comes before `route` and matches all requests that `route` matches.
    Unreachable {
        /// The rule that takes no request.
        route: usize,
        /// The other rule.
        by: usize,
    },
    /// Two rules have the same conditions, so the first written counts.
    Equal {
        /// The rule that takes no request.
        route: usize,
        /// The first rule with the same conditions.
        first: usize,
    },
}

impl RouteTable {
    /// Returns rules that take no request, at most one conflict for each, in the order of writing.
    ///
    /// Each rule that it returns takes none; it need not return all. It finds rules with equal conditions,
    /// and those that one other rule covers which has all their hosts and paths. It does not compare regular
    /// expressions with each other, and compares a rule with no more than 500 others.
    pub fn conflicts(&self) -> Vec<RouteConflict> {
        let peers = self.group_by_first_pair();
        let mut first_by_conditions = BTreeMap::new();
        let mut conflicts = vec![];
        for (route, rule) in self.rules.iter().enumerate() {
            let first = *first_by_conditions.entry(rule).or_insert(route);
            if first != route {
                conflicts.push(RouteConflict::Equal { route, first });
                continue;
            }
            let rank = ConditionRank::new(route, rule);
            let peers_of_rule = first_pair(rule).and_then(|pair| peers.get(&pair));
            let before = peers_of_rule.into_iter().flatten().take_while(|(peer_rank, _)| *peer_rank < rank);
            let cover = before.take(MAX_COMPARISONS).find(|(_, peer)| self.rules[*peer].covers(rule));
            if let Some(&(_, by)) = cover {
                conflicts.push(RouteConflict::Unreachable { route, by });
            }
        }
        conflicts
    }

    /// Returns, for the first host and path of each rule, all rules that have both, in order of precedence.
    fn group_by_first_pair(&self) -> BTreeMap<HostAndPath<'_>, Vec<(ConditionRank, usize)>> {
        let mut groups: BTreeMap<_, _> =
            self.rules.iter().filter_map(first_pair).map(|pair| (pair, vec![])).collect();
        for (route, rule) in self.rules.iter().enumerate() {
            for host in rule.hosts_or_none() {
                for path in &rule.paths {
                    if let Some(group) = groups.get_mut(&(host, path)) {
                        group.push((ConditionRank::new(route, rule), route));
                    }
                }
            }
        }
        groups.values_mut().for_each(|group| group.sort_unstable());
        groups
    }
}

/// The maximum number of rules that a rule is compared with.
const MAX_COMPARISONS: usize = 500;

type HostAndPath<'rules> = (Option<&'rules HostPattern>, &'rules PathPattern);

fn first_pair(rule: &RouteRule) -> Option<HostAndPath<'_>> {
    rule.paths.first().map(|path| (rule.hosts.first(), path))
}

impl RouteRule {
    fn hosts_or_none(&self) -> impl Iterator<Item = Option<&HostPattern>> {
        let none = self.hosts.is_empty().then_some(None);
        self.hosts.iter().map(Some).chain(none)
    }

    /// Returns `true` only if this rule has each host and path of another and matches whatever that matches.
    ///
    /// Each pair that lets the other match is then a pair of this rule, too. So the one whose conditions
    /// rank higher takes all requests that both match.
    fn covers(&self, other: &Self) -> bool {
        let has_hosts =
            if other.hosts.is_empty() { self.hosts.is_empty() } else { is_subset(&other.hosts, &self.hosts) };
        let has_methods =
            self.methods.is_empty() || !other.methods.is_empty() && is_subset(&other.methods, &self.methods);
        has_hosts
            && has_methods
            && is_subset(&other.paths, &self.paths)
            && are_implied(&self.headers, &other.headers)
            && are_implied(&self.queries, &other.queries)
            && are_implied(&self.cookies, &other.cookies)
    }
}

/// Returns whether each of some items is among others that are sorted.
fn is_subset<T: Ord>(items: &[T], sorted: &[T]) -> bool {
    items.iter().all(|item| sorted.binary_search(item).is_ok())
}

/// Returns `true` only if conditions hold whenever some others hold.
fn are_implied(conditions: &[FieldCondition], others: &[FieldCondition]) -> bool {
    conditions.iter().all(|condition| {
        others.iter().any(|other| other.name == condition.name && is_implied(&condition.test, &other.test))
    })
}

fn is_implied(test: &FieldTest, other: &FieldTest) -> bool {
    match (test, other) {
        (FieldTest::Present, _) => true,
        (FieldTest::Regex(regex), FieldTest::Exact(value)) => regex.matches(value.as_bytes()),
        _ => test == other,
    }
}
