//! The compilation of rules into hashed hosts and paths.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::length_set::LengthSet;
use super::text::prefix_text;
use super::text_index::{HOST_SEED, IndexedText, TextIndex};
use super::{HostPattern, PathPattern, RouteRule};

/// The compiled form of rules, without the rules.
#[derive(Clone, Debug)]
pub(super) struct Routing {
    /// Whether any rule has a host.
    pub(super) has_hosts: bool,
    /// The indices of nodes by host.
    pub(super) exact_hosts: TextIndex<u32, true>,
    /// The indices of nodes by the suffix of a wildcard.
    pub(super) suffixes: TextIndex<u32, true>,
    pub(super) suffix_lengths: LengthSet,
    /// The rules of each host and wildcard.
    pub(super) nodes: Vec<HostNode>,
    /// The rules without a host.
    pub(super) any_host: HostNode,
    /// The rules by path, under the seeds of the nodes.
    pub(super) exact_paths: TextIndex<RuleRange, false>,
    /// The rules by prefix, but for the prefix `/`.
    pub(super) prefixes: TextIndex<RuleRange, false>,
    /// The rules of each host and path, in order of precedence.
    all_candidates: Vec<RouteCandidate>,
}

/// The rules of a host.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostNode {
    /// The seed of its paths.
    pub(super) seed: u64,
    /// Whether any rule has a path other than the prefix `/`.
    pub(super) has_paths: bool,
    pub(super) exact_lengths: LengthSet,
    pub(super) prefix_lengths: LengthSet,
    /// The rules with a regular expression.
    pub(super) regexes: RuleRange,
    /// The rules with the prefix `/` or no path.
    pub(super) any_path: RuleRange,
}

/// The rules of a host and path: a range of the candidates.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RuleRange {
    begin: u32,
    end: u32,
}

/// A rule under one of its hosts and paths.
#[derive(Clone, Copy, Debug)]
pub(super) struct RouteCandidate {
    pub(super) rule: u32,
    /// Whether it has no conditions but the host and the path.
    pub(super) is_unconditional: bool,
}

/// The rank of a host or path among all patterns that match a request; the smallest comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PatternRank {
    Exact,
    /// A wildcard or prefix of this length.
    Part(Reverse<usize>),
    Regex,
    Any,
}

/// The rank of a rule among those of the same host and path; the smallest comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ConditionRank {
    is_without_method: bool,
    headers: Reverse<usize>,
    queries: Reverse<usize>,
    rule: usize,
}

impl Routing {
    /// Compiles rules in normal form.
    pub(super) fn new(rules: &[RouteRule]) -> Self {
        let (hosts, entries) = collect_entries(rules);
        let mut nodes: Vec<HostNode> = (0..hosts.len() as u64 + 1).map(HostNode::new).collect();
        let mut exact_paths = Vec::new();
        let mut prefixes = Vec::new();
        let mut all_candidates = Vec::with_capacity(entries.len());
        for group in entries.chunk_by(|first, second| first.node == second.node && first.path == second.path)
        {
            let begin = all_candidates.len() as u32;
            all_candidates.extend(group.iter().map(|entry| RouteCandidate::new(entry.rank.rule, rules)));
            let range = RuleRange { begin, end: all_candidates.len() as u32 };
            let node = &mut nodes[group[0].node as usize];
            node.has_paths |= group[0].path != PathKey::Any;
            match group[0].path {
                PathKey::Exact(text) => {
                    node.exact_lengths.insert(text.len());
                    exact_paths.push(IndexedText { seed: node.seed, text: text.into(), value: range });
                }
                PathKey::Prefix(text) => {
                    node.prefix_lengths.insert(text.len());
                    prefixes.push(IndexedText { seed: node.seed, text: text.into(), value: range });
                }
                PathKey::Regex => node.regexes = range,
                PathKey::Any => node.any_path = range,
            }
        }
        let mut exact_hosts = Vec::new();
        let mut suffixes = Vec::new();
        let mut suffix_lengths = LengthSet::default();
        for (host, node) in hosts {
            match host {
                HostPattern::Exact(name) => {
                    exact_hosts.push(IndexedText { seed: HOST_SEED, text: name.clone(), value: node });
                }
                HostPattern::Suffix(suffix) => {
                    suffix_lengths.insert(suffix.len());
                    suffixes.push(IndexedText { seed: HOST_SEED, text: suffix.clone(), value: node });
                }
            }
        }
        Self {
            has_hosts: !(exact_hosts.is_empty() && suffixes.is_empty()),
            exact_hosts: TextIndex::new(exact_hosts),
            suffixes: TextIndex::new(suffixes),
            suffix_lengths,
            any_host: nodes[ANY_HOST as usize],
            nodes,
            exact_paths: TextIndex::new(exact_paths),
            prefixes: TextIndex::new(prefixes),
            all_candidates,
        }
    }

    /// Returns the rules of a range, in order of precedence.
    pub(super) fn candidates(&self, range: RuleRange) -> &[RouteCandidate] {
        &self.all_candidates[range.begin as usize..range.end as usize]
    }
}

impl HostNode {
    fn new(number: u64) -> Self {
        Self {
            seed: crate::mix(number),
            has_paths: false,
            exact_lengths: LengthSet::default(),
            prefix_lengths: LengthSet::default(),
            regexes: RuleRange::default(),
            any_path: RuleRange::default(),
        }
    }
}

impl RouteCandidate {
    fn new(rule: usize, rules: &[RouteRule]) -> Self {
        let RouteRule { methods, headers, queries, cookies, .. } = &rules[rule];
        Self {
            rule: rule as u32,
            is_unconditional: methods.is_empty()
                && headers.is_empty()
                && queries.is_empty()
                && cookies.is_empty(),
        }
    }
}

impl PatternRank {
    /// Returns the rank of a host, or of no host.
    pub(super) fn of_host(host: Option<&HostPattern>) -> Self {
        match host {
            Some(HostPattern::Exact(_)) => Self::Exact,
            Some(HostPattern::Suffix(suffix)) => Self::Part(Reverse(suffix.len())),
            None => Self::Any,
        }
    }

    pub(super) fn of_path(path: &PathPattern) -> Self {
        match path {
            PathPattern::Exact(_) => Self::Exact,
            PathPattern::Regex(_) => Self::Regex,
            PathPattern::Prefix(prefix) if prefix_text(prefix).is_empty() => Self::Any,
            PathPattern::Prefix(prefix) => Self::Part(Reverse(prefix_text(prefix).len())),
        }
    }
}

impl ConditionRank {
    pub(super) fn new(number: usize, rule: &RouteRule) -> Self {
        Self {
            is_without_method: rule.methods.is_empty(),
            headers: Reverse(rule.headers.len() + rule.cookies.len()),
            queries: Reverse(rule.queries.len()),
            rule: number,
        }
    }
}

/// The node of the rules without a host; those of hosts follow it.
const ANY_HOST: u32 = 0;

/// A pair of a rule's hosts and paths, in the order of the compiled form.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct RouteEntry<'rules> {
    node: u32,
    path: PathKey<'rules>,
    rank: ConditionRank,
}

/// The paths that share candidates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PathKey<'rules> {
    Exact(&'rules str),
    Prefix(&'rules str),
    Regex,
    Any,
}

/// Returns the node of each host, and the sorted pairs of all rules.
fn collect_entries(rules: &[RouteRule]) -> (BTreeMap<&HostPattern, u32>, Vec<RouteEntry<'_>>) {
    let mut hosts = BTreeMap::new();
    let mut entries = Vec::with_capacity(rules.len());
    for (number, rule) in rules.iter().enumerate() {
        let rank = ConditionRank::new(number, rule);
        let mut push = |node| {
            let keys = rule.paths.iter().map(PathKey::new);
            entries.extend(keys.map(|path| RouteEntry { node, path, rank }));
        };
        if rule.hosts.is_empty() {
            push(ANY_HOST);
        }
        for host in &rule.hosts {
            let next_node = hosts.len() as u32 + 1;
            push(*hosts.entry(host).or_insert(next_node));
        }
    }
    entries.sort_unstable();
    // A rule with several regular expressions is one candidate.
    entries.dedup();
    (hosts, entries)
}

impl<'rules> PathKey<'rules> {
    fn new(path: &'rules PathPattern) -> Self {
        match path {
            PathPattern::Exact(text) => Self::Exact(text),
            PathPattern::Prefix(prefix) if prefix_text(prefix).is_empty() => Self::Any,
            PathPattern::Prefix(prefix) => Self::Prefix(prefix_text(prefix)),
            PathPattern::Regex(_) => Self::Regex,
        }
    }
}
