//! The reasons why a rule takes a request.

use alloc::vec::Vec;
use core::fmt;

use super::build::{ConditionRank, PatternRank};
use super::text::strip_port;
use super::{HostPattern, PathPattern, RequestFields, RouteRule, RouteTable};

/// The rule that takes a request, and those before it that do not match. Patterns and names are in the
/// normal form of [`RouteRule`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteExplanation<'table> {
    /// The rule that takes the request; the same as [`RouteTable::find`] returns.
    pub taken_by: Option<TakenRoute<'table>>,
    /// The rules that would have come before it, in order of precedence; all rules if none takes the
    /// request.
    pub preceding: Vec<PrecedingRoute<'table>>,
    /// The rules that match, too, and come after it, in order of precedence, by their indices.
    pub following: Vec<usize>,
}

/// The rule that takes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenRoute<'table> {
    /// The index of the rule.
    pub route: usize,
    /// The best of its hosts that match; `None` if it has none.
    pub host: Option<&'table HostPattern>,
    /// The best of its paths that match; `None` if that is the prefix `/` or it has none.
    pub path: Option<&'table PathPattern>,
}

/// A rule that would have come before the one that takes a request.
///
/// Its place is that of its best host and path: among those that match the request, if there are any, and
/// among all otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrecedingRoute<'table> {
    /// The index of the rule.
    pub route: usize,
    /// The first condition that does not hold.
    pub mismatch: Mismatch<'table>,
}

/// A condition that does not hold, in the order in which they are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mismatch<'table> {
    /// No host matches.
    Host,
    /// A host matches, and no path.
    Path,
    /// The method is none of the rule's.
    Method,
    /// The header of this name is absent or has another value.
    Header(&'table str),
    /// The parameter of this name is absent or has another value.
    Query(&'table str),
    /// The cookie of this name is absent or has another value.
    Cookie(&'table str),
}

impl fmt::Display for Mismatch<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => out.write_str("the host does not match"),
            Self::Path => out.write_str("the path does not match"),
            Self::Method => out.write_str("the method does not match"),
            Self::Header(name) => write!(out, "the header {name} is absent or has another value"),
            Self::Query(name) => write!(out, "the query parameter {name} is absent or has another value"),
            Self::Cookie(name) => write!(out, "the cookie {name} is absent or has another value"),
        }
    }
}

impl RouteTable {
    /// Returns the rule that takes a request, and why no rule before it does, in time O(n log n).
    pub fn explain(&self, request: &impl RequestFields) -> RouteExplanation<'_> {
        let host = strip_port(request.host());
        let appraise = |route| Appraisal::new(route, &self.rules[route], host, request);
        let taken = self.find(request).map(appraise);
        let mut following: Vec<_> = (0..self.rules.len())
            .map(appraise)
            .filter(|appraisal| appraisal.mismatch.is_none())
            .filter(|appraisal| taken.as_ref().is_some_and(|taken| taken.rank < appraisal.rank))
            .map(|appraisal| (appraisal.rank, appraisal.route.route))
            .collect();
        following.sort_unstable_by_key(|(rank, _)| *rank);
        let mut preceding: Vec<_> = (0..self.rules.len())
            .map(appraise)
            .filter_map(|appraisal| Some((appraisal.rank, appraisal.preceding()?)))
            .filter(|(rank, _)| taken.as_ref().is_none_or(|taken| *rank < taken.rank))
            .collect();
        preceding.sort_unstable_by_key(|(rank, _)| *rank);
        RouteExplanation {
            taken_by: taken.map(|taken| taken.route),
            preceding: preceding.into_iter().map(|(_, route)| route).collect(),
            following: following.into_iter().map(|(_, route)| route).collect(),
        }
    }
}

/// The place of a rule for a request.
struct Appraisal<'table> {
    rank: (PatternRank, PatternRank, ConditionRank),
    /// The rule with its best host and path.
    route: TakenRoute<'table>,
    mismatch: Option<Mismatch<'table>>,
}

impl<'table> Appraisal<'table> {
    fn new(route: usize, rule: &'table RouteRule, host: &[u8], request: &impl RequestFields) -> Self {
        let path = request.path();
        let of_host = |pattern| PatternRank::of_host(Some(pattern));
        let best_host = find_best(&rule.hosts, of_host, |pattern| pattern.matches(host));
        let best_path = find_best(&rule.paths, PatternRank::of_path, |pattern| pattern.matches(path));
        let mismatch = if best_host.is_some_and(|(_, matches)| !matches) {
            Some(Mismatch::Host)
        } else if best_path.is_some_and(|(_, matches)| !matches) {
            Some(Mismatch::Path)
        } else {
            rule.failed_condition(request)
        };
        let host = best_host.map(|(host, _)| host);
        let path = best_path.map(|(path, _)| path);
        let path_rank = path.map_or(PatternRank::Any, PatternRank::of_path);
        Self {
            rank: (PatternRank::of_host(host), path_rank, ConditionRank::new(route, rule)),
            route: TakenRoute { route, host, path: path.filter(|_| path_rank != PatternRank::Any) },
            mismatch,
        }
    }

    fn preceding(self) -> Option<PrecedingRoute<'table>> {
        let route = self.route.route;
        self.mismatch.map(|mismatch| PrecedingRoute { route, mismatch })
    }
}

/// Returns the best of the patterns that match, or the best of all, and whether it matches.
fn find_best<'table, P>(
    patterns: &'table [P],
    rank: impl Fn(&'table P) -> PatternRank,
    matches: impl Fn(&P) -> bool,
) -> Option<(&'table P, bool)> {
    let with_match = patterns.iter().map(|pattern| (pattern, matches(pattern)));
    with_match.min_by_key(|(pattern, matches)| (!matches, rank(pattern)))
}
